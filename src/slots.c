/*
 * slots.c - the life of a process slot, one function a transition.
 *
 * Only the launcher reserves, so what a process leaves in its slot stays
 * readable to the launcher after the slot is free.  A slot's generation tells
 * its uses apart.  A statement that must have a database for itself first bars
 * it and then stops what is there: the bar is checked where a slot is
 * reserved and again where a process attaches to it, so none slips in between.
 */
#include "outbox.h"

#include <signal.h>

#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/timestamp.h"

#include "settings.h"
#include "shmem.h"
#include "slots.h"

#define STOP_POLL_MS 10

static bool attached = false;

static bool is_barred(Oid database);
static void free_slot(OutboxProcess *slot);
static void ask_to_end(OutboxProcess *slot);
static int	list_processes(Oid database, int *pids);
static bool is_gone(Oid database, const int *pids, int npids);
static uint32 wait_event(void);

OutboxReservation
outbox_slots_reserve(Oid database, OutboxProcessKind kind, int number, OutboxProcess **slot)
{
	OutboxReservation result = RESERVE_FULL;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);

	/*
	 * A bar that came and went since the databases were read leaves a demand to read them again: the database may be
	 * gone.
	 */
	if (is_barred(database) || pg_atomic_read_u32(&outbox_shared->launcher_rescan) != RESCAN_NONE)
		result = RESERVE_LATER;
	for (int i = 0; result == RESERVE_FULL && i < outbox_shared->max_processes; i++)
	{
		OutboxProcess *free = &outbox_shared->processes[i];

		if (free->kind != PROCESS_FREE)
			continue;
		free->kind = kind;
		free->number = number;
		free->pid = 0;
		free->database = database;
		free->generation++;
		free->end = END_UNKNOWN;
		free->registered_at = GetCurrentTimestamp();
		free->process_id = 0;
		free->asked = false;
		free->latch = NULL;
		free->role = InvalidOid;
		memset(&free->event_id, 0, sizeof(free->event_id)); /* whoever was here may have been killed at one */
		pg_atomic_write_u32(&free->subscription_id, 0);
		pg_atomic_write_u64(&free->busy_since, 0);
		pg_atomic_write_u32(&free->call_us, 0);
		pg_atomic_write_u32(&free->lane, 0);
		*slot = free;
		result = RESERVED;
	}
	LWLockRelease(outbox_shared->lock);
	return result;
}

bool
outbox_slots_attach(OutboxProcess *slot, uint32 generation)
{
	int64		identity = 0;
	bool		mine;

	while (identity == 0)
	{
		if (!pg_strong_random(&identity, sizeof(identity)))
			ereport(FATAL,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate a random number")));
	}

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	mine = (slot->kind != PROCESS_FREE && slot->generation == generation && slot->pid == 0);
	if (mine && is_barred(slot->database))
	{
		free_slot(slot);
		slot->end = END_ASKED;
		mine = false;
	}
	if (mine)
	{
		slot->pid = MyProcPid;
		slot->process_id = identity;
		slot->latch = &MyProc->procLatch;
		attached = true;
	}
	LWLockRelease(outbox_shared->lock);
	return mine;
}

bool
outbox_slots_is_attached(void)
{
	return attached;
}

void
outbox_slots_detach(OutboxProcess *slot)
{
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	if (slot->pid == MyProcPid)
		free_slot(slot);
	LWLockRelease(outbox_shared->lock);
}

void
outbox_slots_expire(OutboxProcess *slot, uint32 generation)
{
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	if (slot->kind != PROCESS_FREE && slot->generation == generation)
	{
		free_slot(slot);
		slot->generation++;
	}
	LWLockRelease(outbox_shared->lock);
}

static void
free_slot(OutboxProcess *slot)
{
	OutboxDatabase *db = outbox_shmem_entry(slot->database);

	if (db != NULL && pg_atomic_read_u32(&db->router_slot) == slot - outbox_shared->processes + 1)
		pg_atomic_write_u32(&db->router_slot, 0);
	slot->kind = PROCESS_FREE;
	slot->pid = 0;
	slot->process_id = 0;
}

void
outbox_slots_terminate(OutboxProcess *slot, uint32 generation)
{
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	if (slot->kind != PROCESS_FREE && slot->generation == generation)
		ask_to_end(slot);
	LWLockRelease(outbox_shared->lock);
}

bool
outbox_slots_is_used(OutboxProcess *slot, uint32 generation)
{
	bool		used;

	LWLockAcquire(outbox_shared->lock, LW_SHARED);
	used = (slot->kind != PROCESS_FREE && slot->generation == generation);
	LWLockRelease(outbox_shared->lock);
	return used;
}

/* Under the lock a process keeps its slot, so the pid is still its own. */
static void
ask_to_end(OutboxProcess *slot)
{
	Assert(LWLockHeldByMeInMode(outbox_shared->lock, LW_EXCLUSIVE));
	if (slot->pid != 0)
	{
		slot->asked = true;
		kill(slot->pid, SIGTERM);
	}
	else
	{
		free_slot(slot);
		slot->generation++;
	}
}

/* ---------------------------------------------------------------- bars */

static bool
is_barred(Oid database)
{
	OutboxDatabase *db = outbox_shmem_entry(database);

	return db != NULL && db->bars > 0;
}

bool
outbox_slots_bar(Oid database)
{
	OutboxDatabase *db;

	/* between the two steps the launcher may forget an unused entry */
	while ((db = outbox_shmem_ensure_database(database)) != NULL)
	{
		bool		done;

		LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
		done = (db->oid == database);
		if (done)
			db->bars++;
		LWLockRelease(outbox_shared->lock);
		if (done)
			return true;
	}
	return false;
}

/* In transaction callbacks: raises no error. */
void
outbox_slots_unbar(Oid database)
{
	OutboxDatabase *db;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	db = outbox_shmem_entry(database);
	if (db != NULL && db->bars > 0)
		db->bars--;
	LWLockRelease(outbox_shared->lock);
	outbox_shmem_announce_database(database, true);
}

bool
outbox_slots_stop_database(Oid database, int timeout_ms)
{
	int		   *pids = palloc(sizeof(int) * outbox_shared->max_processes);
	TimestampTz started = GetCurrentTimestamp();
	int			npids;
	bool		gone;

	npids = list_processes(database, pids);
	while (!(gone = is_gone(database, pids, npids)))
	{
		if (TimestampDifferenceExceeds(started, GetCurrentTimestamp(), timeout_ms))
			break;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, STOP_POLL_MS, wait_event());
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	pfree(pids);
	return gone;
}

/* Ask each to end, and note the pids. */
static int
list_processes(Oid database, int *pids)
{
	int			npids = 0;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < outbox_shared->max_processes; i++)
	{
		OutboxProcess *slot = &outbox_shared->processes[i];

		if (slot->kind == PROCESS_FREE || slot->database != database || slot->pid == MyProcPid)
			continue;
		if (slot->pid != 0)
			pids[npids++] = slot->pid;
		ask_to_end(slot);
	}
	LWLockRelease(outbox_shared->lock);
	return npids;
}

/*
 * A process frees its slot a moment before it leaves PostgreSQL's list of
 * processes, and until then PostgreSQL counts it as a user of the database.
 */
static bool
is_gone(Oid database, const int *pids, int npids)
{
	bool		used = false;

	LWLockAcquire(outbox_shared->lock, LW_SHARED);
	for (int i = 0; i < outbox_shared->max_processes && !used; i++)
	{
		OutboxProcess *slot = &outbox_shared->processes[i];

		used = (slot->kind != PROCESS_FREE && slot->database == database && slot->pid != MyProcPid);
	}
	LWLockRelease(outbox_shared->lock);

	for (int i = 0; i < npids && !used; i++)
	{
		PGPROC	   *proc = BackendPidGetProc(pids[i]);

		used = (proc != NULL && proc->databaseId == database);
	}
	return !used;
}

static uint32
wait_event(void)
{
	static uint32 event = 0;

	if (event == 0)
		event = outbox_compat_wait_event("OutboxStopProcesses");
	return event;
}
