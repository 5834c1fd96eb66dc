/*
 * waiters.c - sessions in outbox.wait(), and how they are woken.
 *
 * Publishers know nothing of this: whoever puts something into reach of a claim wakes
 * the waiters, which is the router, once it has placed events, and whoever settles or opens
 * something by hand.  Each announcement is counted, by a hash of the subscription, and
 * wakes no more waiters than there is work for them; the others compare the
 * counts at their poll interval, so that the one who was chosen may dawdle, or go away.
 *
 * Nothing is missed: a waiter enters, then notes the counts, then looks; an announcer commits,
 * then counts, then looks for waiters.  One of the two sees the other.
 *
 * A session has the slot of its place in the array of processes, so there is always one.
 */
#include "outbox.h"

#include "lib/ilist.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "waiters.h"

#define TRANCHE "outbox_waiters"
#define WAITER_BITS		1024
#define WAITER_WORDS	(WAITER_BITS / 64)

typedef struct Waiter
{
	dlist_node	node;
	Oid			database;
	Latch	   *latch;
	bool		chosen;			/* woken, and has not looked since */
	uint64		subscriptions[WAITER_WORDS];	/* by bit_of() */
} Waiter;

typedef struct Waiters
{
	LWLock	   *lock;			/* the list, and what is in it */
	dlist_head	list;			/* of those who wait, the longest first */
	pg_atomic_uint32 announced[WAITER_BITS];	/* numbers that only grow */
	pg_atomic_uint32 waiting[WAITER_BITS];	/* how many wait for it */
	Waiter		slots[FLEXIBLE_ARRAY_MEMBER];	/* [MaxBackends] */
} Waiters;

static Waiters *waiters = NULL;
static Waiter *self = NULL;		/* set while we wait */
static uint32 announced_before; /* sum of the counts of ours, when the last look began */

static shmem_request_hook_type previous_request_hook = NULL;
static shmem_startup_hook_type previous_startup_hook = NULL;

/* ---------------------------------------------------------------- shared memory */

static Size
shmem_size(void)
{
	return add_size(offsetof(Waiters, slots), mul_size(MaxBackends, sizeof(Waiter)));
}

static void
request_shmem(void)
{
	if (previous_request_hook)
		previous_request_hook();
	RequestAddinShmemSpace(shmem_size());
	RequestNamedLWLockTranche(TRANCHE, 1);
}

static void
create_shmem(void)
{
	bool		found;

	if (previous_startup_hook)
		previous_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	waiters = ShmemInitStruct("outbox waiters", shmem_size(), &found);
	if (!found)
	{
		memset(waiters, 0, shmem_size());
		waiters->lock = &GetNamedLWLockTranche(TRANCHE)->lock;
		dlist_init(&waiters->list);
		for (int bit = 0; bit < WAITER_BITS; bit++)
		{
			pg_atomic_init_u32(&waiters->announced[bit], 0);
			pg_atomic_init_u32(&waiters->waiting[bit], 0);
		}
	}
	LWLockRelease(AddinShmemInitLock);
}

void
outbox_waiters_init(void)
{
	previous_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = create_shmem;
}

/* ---------------------------------------------------------------- bits */

/* Of two whose ids differ by a multiple of WAITER_BITS, one may be woken for the other, which then waits for its poll. */
static uint32
bit_of(int32 subscription_id)
{
	return (MyDatabaseId * 0x9E3779B1u + (uint32) subscription_id) % WAITER_BITS;
}

static bool
has_bit(const Waiter *waiter, uint32 bit)
{
	return (waiter->subscriptions[bit / 64] & (UINT64CONST(1) << (bit % 64))) != 0;
}

static bool
have_common_bit(const Waiter *a, const Waiter *b)
{
	for (int i = 0; i < WAITER_WORDS; i++)
	{
		if ((a->subscriptions[i] & b->subscriptions[i]) != 0)
			return true;
	}
	return false;
}

static uint32
sum_of_announced(const Waiter *waiter)
{
	uint32		sum = 0;

	for (int i = 0; i < WAITER_WORDS; i++)
	{
		for (uint64 word = waiter->subscriptions[i]; word != 0; word &= word - 1)
			sum += pg_atomic_read_u32(&waiters->announced[i * 64 + pg_rightmost_one_pos64(word)]);
	}
	return sum;
}

/* ---------------------------------------------------------------- those who wait */

static void
leave_at_exit(int code, Datum arg)
{
	outbox_waiters_leave(false);
}

void
outbox_waiters_enter(int n, const int32 *subscription_ids)
{
	static bool registered = false;
	int			place = (int) (MyProc - ProcGlobal->allProcs);

	Assert(self == NULL && place >= 0 && place < MaxBackends);
	if (!registered)
	{
		before_shmem_exit(leave_at_exit, (Datum) 0);
		registered = true;
	}
	LWLockAcquire(waiters->lock, LW_EXCLUSIVE);
	self = &waiters->slots[place];
	memset(self, 0, sizeof(*self));
	self->database = MyDatabaseId;
	self->latch = MyLatch;
	for (int i = 0; i < n; i++)
	{
		uint32		bit = bit_of(subscription_ids[i]);

		if (!has_bit(self, bit))
			pg_atomic_fetch_add_u32(&waiters->waiting[bit], 1);
		self->subscriptions[bit / 64] |= UINT64CONST(1) << (bit % 64);
	}
	dlist_push_tail(&waiters->list, &self->node);
	LWLockRelease(waiters->lock);
	outbox_waiters_begin_look();
}

static void
choose(Waiter *waiter)
{
	Assert(LWLockHeldByMeInMode(waiters->lock, LW_EXCLUSIVE));
	waiter->chosen = true;
	SetLatch(waiter->latch);
}

/* We were to see to something, and go away without. */
static void
choose_another(void)
{
	dlist_iter	at;

	dlist_foreach(at, &waiters->list)
	{
		Waiter	   *waiter = dlist_container(Waiter, node, at.cur);

		if (waiter == self || waiter->chosen || waiter->database != self->database || !have_common_bit(waiter, self))
			continue;
		choose(waiter);
		return;
	}
}

void
outbox_waiters_leave(bool satisfied)
{
	if (self == NULL)
		return;
	LWLockAcquire(waiters->lock, LW_EXCLUSIVE);
	if (self->chosen && !satisfied)
		choose_another();
	dlist_delete(&self->node);
	for (int i = 0; i < WAITER_WORDS; i++)
	{
		for (uint64 word = self->subscriptions[i]; word != 0; word &= word - 1)
			pg_atomic_fetch_sub_u32(&waiters->waiting[i * 64 + pg_rightmost_one_pos64(word)], 1);
	}
	self = NULL;
	LWLockRelease(waiters->lock);
}

void
outbox_waiters_begin_look(void)
{
	LWLockAcquire(waiters->lock, LW_EXCLUSIVE);
	self->chosen = false;
	LWLockRelease(waiters->lock);
	announced_before = sum_of_announced(self);
	pg_memory_barrier();
}

bool
outbox_waiters_have_news(void)
{
	return sum_of_announced(self) != announced_before;
}

/* Read without the lock: whoever sets it, sets our latch after that. */
bool
outbox_waiters_are_chosen(void)
{
	return ((volatile Waiter *) self)->chosen;
}

/* ---------------------------------------------------------------- those who wake */

void
outbox_waiters_wake(int32 subscription_id, int most)
{
	uint32		bit = bit_of(subscription_id);
	dlist_iter	at;

	if (waiters == NULL || most <= 0)
		return;
	/* the addition is a barrier between our commit and the look for waiters */
	pg_atomic_fetch_add_u32(&waiters->announced[bit], 1);
	if (pg_atomic_read_u32(&waiters->waiting[bit]) == 0)
		return;
	LWLockAcquire(waiters->lock, LW_EXCLUSIVE);
	dlist_foreach(at, &waiters->list)
	{
		Waiter	   *waiter = dlist_container(Waiter, node, at.cur);

		if (waiter->chosen || waiter->database != MyDatabaseId || !has_bit(waiter, bit))
			continue;
		choose(waiter);
		if (--most == 0)
			break;
	}
	LWLockRelease(waiters->lock);
}

void
outbox_waiters_wake_all(void)
{
	dlist_iter	at;

	if (waiters == NULL)
		return;
	for (int bit = 0; bit < WAITER_BITS; bit++)
		pg_atomic_fetch_add_u32(&waiters->announced[bit], 1);
	LWLockAcquire(waiters->lock, LW_EXCLUSIVE);
	dlist_foreach(at, &waiters->list)
	{
		Waiter	   *waiter = dlist_container(Waiter, node, at.cur);

		if (waiter->database == MyDatabaseId)
			choose(waiter);
	}
	LWLockRelease(waiters->lock);
}
