/*
 * shmem.c - what our processes and the server's backends share.
 *
 * Sized once at the start from max_worker_processes.  One lock covers the
 * entries of databases and the slots of processes; the clock of event ids, the
 * hints and the latches need none.  A crash of any backend makes the postmaster
 * start over with all of this empty, so nothing here is the only copy of a fact.
 */
#include "outbox.h"

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "counters.h"
#include "event_id.h"
#include "settings.h"
#include "shmem.h"

#define TRANCHE "outbox"

/* entries for databases that publish but are not served, beside those that can be */
#define SPARE_DATABASES 256

OutboxShared *outbox_shared = NULL;

static shmem_request_hook_type previous_request_hook = NULL;
static shmem_startup_hook_type previous_startup_hook = NULL;

static void request_shmem(void);
static void create_shmem(void);
static Size shmem_size(void);
static int64 random_identity(void);

void
outbox_shmem_init(void)
{
	previous_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = create_shmem;
}

static int
database_count(void)
{
	return max_worker_processes + SPARE_DATABASES;
}

/* more than can run: a slot is reserved before the server grants a process */
static int
process_count(void)
{
	return max_worker_processes + 8;
}

static Size
shmem_size(void)
{
	Size		size = MAXALIGN(sizeof(OutboxShared));

	size = add_size(size, MAXALIGN(mul_size(database_count(), sizeof(OutboxDatabase))));
	return add_size(size, MAXALIGN(mul_size(process_count(), sizeof(OutboxProcess))));
}

static void
request_shmem(void)
{
	if (previous_request_hook)
		previous_request_hook();
	RequestAddinShmemSpace(shmem_size());
	RequestAddinShmemSpace(outbox_counters_size());
	RequestNamedLWLockTranche(TRANCHE, 2);
}

static void
create_shmem(void)
{
	bool		found;
	char	   *at;
	void	   *counters;

	if (previous_startup_hook)
		previous_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	outbox_shared = ShmemInitStruct("outbox", shmem_size(), &found);
	if (!found)
	{
		memset(outbox_shared, 0, shmem_size());
		outbox_shared->lock = &GetNamedLWLockTranche(TRANCHE)->lock;
		outbox_shared->run_id = random_identity();
		outbox_shared->max_databases = database_count();
		outbox_shared->max_processes = process_count();

		at = (char *) outbox_shared + MAXALIGN(sizeof(OutboxShared));
		outbox_shared->databases = (OutboxDatabase *) at;
		at += MAXALIGN(mul_size(database_count(), sizeof(OutboxDatabase)));
		outbox_shared->processes = (OutboxProcess *) at;

		pg_atomic_init_u64(&outbox_shared->id_time, 0);
		pg_atomic_init_u64(&outbox_shared->id_time_left, 0);
		pg_atomic_init_u32(&outbox_shared->launcher_rescan, RESCAN_NONE);
		for (int i = 0; i < outbox_shared->max_databases; i++)
		{
			OutboxDatabase *db = &outbox_shared->databases[i];

			pg_atomic_init_u32(&db->router_slot, 0);
			pg_atomic_init_u64(&db->segment_wanted, 0);
			pg_atomic_init_u32(&db->next_subscription, 0);
			pg_atomic_init_u64(&db->swept, (uint64) DT_NOBEGIN);
			pg_atomic_init_u32(&db->late_leases, 0);
			pg_atomic_init_u32(&db->outage_changes, 0);
			pg_atomic_init_u64(&db->returns_since, 0);
			for (int slot = 0; slot < OUTBOX_RETURN_SLOTS; slot++)
				pg_atomic_init_u64(&db->returns[slot], 0);
			SpinLockInit(&db->sweep_lock);
			for (int bit = 0; bit < OUTBOX_HINT_BITS; bit++)
				pg_atomic_init_u32(&db->work_counts[bit], 0);
		}
		for (int i = 0; i < outbox_shared->max_processes; i++)
		{
			OutboxProcess *process = &outbox_shared->processes[i];

			pg_atomic_init_u32(&process->subscription_id, 0);
			pg_atomic_init_u64(&process->busy_since, 0);
			pg_atomic_init_u32(&process->call_us, 0);
			pg_atomic_init_u32(&process->lane, 0);
		}
	}
	counters = ShmemInitStruct("outbox counters", outbox_counters_size(), &found);
	outbox_counters_attach(counters, &GetNamedLWLockTranche(TRANCHE)[1].lock, found);
	LWLockRelease(AddinShmemInitLock);
}

static int64
random_identity(void)
{
	int64		identity = 0;

	while (identity == 0)
	{
		if (!pg_strong_random(&identity, sizeof(identity)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate a random number")));
	}
	return identity;
}

/* ---------------------------------------------------------------- databases */

OutboxDatabase *
outbox_shmem_entry(Oid oid)
{
	Assert(LWLockHeldByMe(outbox_shared->lock));
	for (int i = 0; i < outbox_shared->max_databases; i++)
	{
		if (outbox_shared->databases[i].oid == oid)
			return &outbox_shared->databases[i];
	}
	return NULL;
}

OutboxDatabase *
outbox_shmem_find_database(Oid oid)
{
	OutboxDatabase *db = NULL;

	if (outbox_shared == NULL || !OidIsValid(oid))
		return NULL;
	LWLockAcquire(outbox_shared->lock, LW_SHARED);
	db = outbox_shmem_entry(oid);
	LWLockRelease(outbox_shared->lock);
	return db;
}

OutboxDatabase *
outbox_shmem_my_database(void)
{
	static OutboxDatabase *mine = NULL;

	/* the entry may have been forgotten and given to another database meanwhile */
	if (mine == NULL || mine->oid != MyDatabaseId)
		mine = outbox_shmem_find_database(MyDatabaseId);
	return mine;
}

OutboxDatabase *
outbox_shmem_ensure_database(Oid oid)
{
	OutboxDatabase *db;

	if (outbox_shared == NULL || !OidIsValid(oid))
		return NULL;
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	db = outbox_shmem_entry(oid);
	if (db == NULL && (db = outbox_shmem_entry(InvalidOid)) != NULL)
	{
		db->ids_merged = false;
		db->probe = false;
		db->bars = 0;
		pg_atomic_write_u32(&db->router_slot, 0);
		pg_atomic_write_u32(&db->next_subscription, 0);
		pg_atomic_write_u64(&db->swept, (uint64) DT_NOBEGIN);
		outbox_shmem_count_outage_change(db);
		pg_atomic_write_u64(&db->returns_since, 0);
		memset(db->interrupted, 0, sizeof(db->interrupted));
		memset(&db->sweep_place, 0, sizeof(db->sweep_place));
		pg_write_barrier();
		db->oid = oid;
	}
	LWLockRelease(outbox_shared->lock);
	return db;
}

void
outbox_shmem_forget_database(Oid oid)
{
	OutboxDatabase *db;
	bool		used;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	db = outbox_shmem_entry(oid);
	used = (db == NULL || db->probe || db->bars > 0);
	for (int i = 0; !used && i < outbox_shared->max_processes; i++)
		used = (outbox_shared->processes[i].kind != PROCESS_FREE &&
				outbox_shared->processes[i].database == oid);
	if (!used)
		db->oid = InvalidOid;
	LWLockRelease(outbox_shared->lock);
}

/* to a value, unless it is further */
static void
raise_to(pg_atomic_uint64 *value, uint64 to)
{
	uint64		last = pg_atomic_read_u64(value);

	while (last < to && !pg_atomic_compare_exchange_u64(value, &last, to))
		;
}

/* ---------------------------------------------------------------- what went back */

void
outbox_shmem_note_returned(OutboxDatabase *db, int64 lease_id)
{
	raise_to(&db->returns[lease_id % OUTBOX_RETURN_SLOTS], (uint64) lease_id);
	pg_memory_barrier();
}

bool
outbox_shmem_nothing_returned(OutboxDatabase *db, int64 lease_id, uint64 claim_xid)
{
	uint64		since = pg_atomic_read_u64(&db->returns_since);

	if (since == 0)
	{
		uint64		next = U64FromFullTransactionId(ReadNextFullTransactionId());

		(void) pg_atomic_compare_exchange_u64(&db->returns_since, &since, next);
		return false;
	}
	pg_memory_barrier();
	return claim_xid >= since && pg_atomic_read_u64(&db->returns[lease_id % OUTBOX_RETURN_SLOTS]) < (uint64) lease_id;
}

/* ---------------------------------------------------------------- what was interrupted */

/* The slot of this event, or else one that is free, or else any.  Under the lock. */
static OutboxInterrupted *
find_interrupted(OutboxDatabase *db, int32 subscription_id, const pg_uuid_t *event_id)
{
	OutboxInterrupted *place = NULL;

	for (int i = 0; i < OUTBOX_INTERRUPTED_SLOTS; i++)
	{
		OutboxInterrupted *slot = &db->interrupted[i];

		if (slot->times > 0 && slot->subscription_id == subscription_id &&
			memcmp(&slot->event_id, event_id, sizeof(pg_uuid_t)) == 0)
			return slot;
		if (place == NULL && slot->times == 0)
			place = slot;
	}
	if (place == NULL)
		place = &db->interrupted[pg_prng_uint64_range(&pg_global_prng_state, 0, OUTBOX_INTERRUPTED_SLOTS - 1)];
	place->subscription_id = subscription_id;
	place->event_id = *event_id;
	place->times = 0;
	return place;
}

uint32
outbox_shmem_count_interruption(OutboxDatabase *db, int32 subscription_id, const pg_uuid_t *event_id)
{
	uint32		times;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	times = ++find_interrupted(db, subscription_id, event_id)->times;
	LWLockRelease(outbox_shared->lock);
	return times;
}

/* ---------------------------------------------------------------- event ids */

uint64
outbox_shmem_next_id_time(int count)
{
	uint64		last = pg_atomic_read_u64(&outbox_shared->id_time);

	for (;;)
	{
		bool		rebased = false;
		OutboxIdTime now = outbox_event_id_time_from(outbox_settings_now());
		OutboxIdTime next = outbox_event_id_next(now, last, count, &rebased);

		/* before the clock is set back: whoever finds it so finds this too */
		if (rebased)
			raise_to(&outbox_shared->id_time_left, last);
		if (pg_atomic_compare_exchange_u64(&outbox_shared->id_time, &last, next + count - 1))
		{
			if (rebased)
				ereport(LOG,
						(errmsg("outbox: the clock of event ids is set back to the wall clock"),
						 errdetail("The last event id was more than an hour ahead.")));
			return next;
		}
	}
}

void
outbox_shmem_merge_id_time(uint64 id_time)
{
	raise_to(&outbox_shared->id_time, id_time);
}

uint64
outbox_shmem_highest_id_time(void)
{
	uint64		last = pg_atomic_read_u64(&outbox_shared->id_time);
	uint64		left;

	pg_read_barrier();
	left = pg_atomic_read_u64(&outbox_shared->id_time_left);
	return Max(last, left);
}

/* ---------------------------------------------------------------- processes */

OutboxProcess *
outbox_shmem_find_process(int64 process_id)
{
	OutboxProcess *found = NULL;

	if (process_id == 0)
		return NULL;
	LWLockAcquire(outbox_shared->lock, LW_SHARED);
	for (int i = 0; found == NULL && i < outbox_shared->max_processes; i++)
	{
		OutboxProcess *process = &outbox_shared->processes[i];

		if (process->kind != PROCESS_FREE && process->process_id == process_id &&
			process->database == MyDatabaseId)
			found = process;
	}
	LWLockRelease(outbox_shared->lock);
	return found;
}

/* ---------------------------------------------------------------- hints */

/* neighbouring lanes of a subscription have different bits */
uint32
outbox_shmem_hint_bit(uint32 subscription_id, uint32 lane)
{
	return (subscription_id * 0x9E3779B1u + lane) % OUTBOX_HINT_BITS;
}

/* ---------------------------------------------------------------- leases */

TimestampTz
outbox_shmem_swept(OutboxDatabase *db)
{
	return (TimestampTz) pg_atomic_read_u64(&db->swept);
}

uint32
outbox_shmem_late_leases(OutboxDatabase *db)
{
	uint32		late_leases = pg_atomic_read_u32(&db->late_leases);

	pg_memory_barrier();
	return late_leases;
}

static void
move_back(OutboxDatabase *db, TimestampTz to)
{
	uint64		swept = pg_atomic_read_u64(&db->swept);

	while ((TimestampTz) swept > to && !pg_atomic_compare_exchange_u64(&db->swept, &swept, (uint64) to))
		;
}

/* Whoever commits a late lease counts it, then looks at `swept`; here it is the other way round: one of us sees the other. */
void
outbox_shmem_sweep(OutboxDatabase *db, TimestampTz from, TimestampTz to, uint32 late_leases)
{
	uint64		expected = (uint64) from;

	if (pg_atomic_compare_exchange_u64(&db->swept, &expected, (uint64) to) &&
		outbox_shmem_late_leases(db) != late_leases)
		move_back(db, from);
}

void
outbox_shmem_unsweep(OutboxDatabase *db, TimestampTz expires_at, bool late)
{
	if (late)
		pg_atomic_fetch_add_u32(&db->late_leases, 1);
	move_back(db, expires_at);
}

void
outbox_shmem_get_sweep_place(OutboxDatabase *db, OutboxSweepPlace *place)
{
	SpinLockAcquire(&db->sweep_lock);
	*place = db->sweep_place;
	SpinLockRelease(&db->sweep_lock);
}

void
outbox_shmem_set_sweep_place(OutboxDatabase *db, const OutboxSweepPlace *place)
{
	SpinLockAcquire(&db->sweep_lock);
	db->sweep_place = *place;
	SpinLockRelease(&db->sweep_lock);
}

/* ---------------------------------------------------------------- latches */

/* A latch belongs to a place in the PGPROC array: at worst it wakes a stranger once. */
static void
set_latch(Latch *latch)
{
	if (latch != NULL)
		SetLatch(latch);
}

void
outbox_shmem_wake_router(OutboxDatabase *db)
{
	uint32		slot = pg_atomic_read_u32(&db->router_slot);

	if (slot != 0)
		set_latch(outbox_shared->processes[slot - 1].latch);
}

/* Busy workers too: they may be past the lane in question. */
void
outbox_shmem_wake_workers(Oid database)
{
	if (outbox_shared == NULL)
		return;
	LWLockAcquire(outbox_shared->lock, LW_SHARED);
	for (int i = 0; i < outbox_shared->max_processes; i++)
	{
		OutboxProcess *process = &outbox_shared->processes[i];

		if (process->kind == PROCESS_WORKER && process->database == database)
			set_latch(process->latch);
	}
	LWLockRelease(outbox_shared->lock);
}

void
outbox_shmem_wake_launcher(bool rescan)
{
	if (outbox_shared == NULL)
		return;
	if (rescan)
		outbox_shmem_announce_database(MyDatabaseId, true);
	else
		set_latch(outbox_shared->launcher_latch);
}

/* May run in a transaction callback: raises no error, allocates nothing. */
void
outbox_shmem_announce_database(Oid oid, bool probe)
{
	OutboxRescan rescan = RESCAN_DATABASES;

	if (outbox_shared == NULL)
		return;
	if (probe)
	{
		OutboxDatabase *db = outbox_shmem_ensure_database(oid);

		LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
		if (db != NULL && db->oid == oid)
			db->probe = true;
		else
			rescan = RESCAN_EVERYTHING;
		LWLockRelease(outbox_shared->lock);
	}
	/* the stronger demand stays */
	for (uint32 old = pg_atomic_read_u32(&outbox_shared->launcher_rescan); old < rescan;)
	{
		if (pg_atomic_compare_exchange_u32(&outbox_shared->launcher_rescan, &old, rescan))
			break;
	}
	set_latch(outbox_shared->launcher_latch);
}
