/*
 * shmem.h - what our processes and the server's backends share: the clock of
 * event ids, one entry for each database that is served, one slot for each of
 * our processes.
 *
 * Everything here may be lost with the server: it holds hints, liveness and
 * the last id issued, never the only copy of a fact.
 */
#ifndef OUTBOX_SHMEM_H
#define OUTBOX_SHMEM_H

#include "outbox.h"

#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/spin.h"

/* a lane that may hold work, as a bit; lanes that share one only cost a look */
#define OUTBOX_HINT_WORDS	16
#define OUTBOX_HINT_BITS	(OUTBOX_HINT_WORDS * 64)

/* how far somebody's sweep came; begins with zeros */
typedef struct OutboxSweepPlace
{
	bool		under_way;
	bool		behind_open;	/* it has passed one that had not ended */
	bool		ahead;			/* never begins again, and says nothing of those before */
	TimestampTz swept;			/* all that expired before it had ended, when it was looked at last */
	TimestampTz from;			/* goes on behind this one */
	int64		from_id;
} OutboxSweepPlace;

#define OUTBOX_RETURN_SLOTS		64

/* an event whose handler SIGTERM has ended, and how often */
typedef struct OutboxInterrupted
{
	int32		subscription_id;
	uint32		times;			/* 0: free */
	pg_uuid_t	event_id;
} OutboxInterrupted;

#define OUTBOX_INTERRUPTED_SLOTS	32

typedef struct OutboxDatabase
{
	Oid			oid;			/* InvalidOid: free */
	bool		ids_merged;		/* the highest id of its log is in the clock */
	bool		probe;			/* the launcher should look whether the extension is there */
	int			bars;			/* statements under way that keep our processes out */
	pg_atomic_uint32 router_slot;	/* index of the router's slot + 1, or 0 */
	pg_atomic_uint64 segment_wanted;	/* OutboxIdTime that a publisher has no segment for, or 0 */
	OutboxInterrupted interrupted[OUTBOX_INTERRUPTED_SLOTS];	/* under lock */
	pg_atomic_uint32 next_subscription; /* where a fresh worker begins */
	pg_atomic_uint64 swept;		/* TimestampTz: leases of external workers that expire before it have ended */
	pg_atomic_uint32 late_leases;	/* counts those that had expired when they were committed */
	pg_atomic_uint32 outage_changes;	/* see outbox_shmem_outage_changes() */
	pg_atomic_uint64 returns_since; /* see outbox_shmem_nothing_returned(); 0: not yet */
	pg_atomic_uint64 returns[OUTBOX_RETURN_SLOTS];	/* the highest lease of each slot */
	slock_t		sweep_lock;
	OutboxSweepPlace sweep_place;	/* of claims; by sweep_lock */
	pg_atomic_uint32 work_counts[OUTBOX_HINT_BITS]; /* see outbox_shmem_count_work() */
} OutboxDatabase;

typedef enum OutboxProcessKind
{
	PROCESS_FREE = 0,
	PROCESS_ROUTER,
	PROCESS_WORKER
} OutboxProcessKind;

/* why a process ended; read by the launcher after the slot is free again */
typedef enum OutboxProcessEnd
{
	END_UNKNOWN = 0,			/* an error, or a signal that cannot be handled */
	END_ASKED,					/* SIGTERM */
	END_ABSENT,					/* the extension is not installed */
	END_REPLACED				/* a worker that another one must follow */
} OutboxProcessEnd;

typedef struct OutboxProcess
{
	OutboxProcessKind kind;		/* under lock */
	int			number;			/* of a worker, from 1 */
	int			pid;			/* 0: registered, not yet started */
	Oid			database;
	uint32		generation;		/* counts the uses of this slot */
	OutboxProcessEnd end;		/* of the last process here */
	TimestampTz registered_at;
	int64		process_id;		/* random, names the holder of a lease; 0 until started */
	bool		asked;			/* to end, by one of our own processes or statements; set before the signal */
	Latch	   *latch;			/* in the PGPROC array: never dangling */

	/* what it does just now, written by itself without lock, read for display and choice */
	pg_atomic_uint32 subscription_id;	/* 0: idle */
	pg_atomic_uint64 busy_since;	/* TimestampTz of the batch's start, or 0 */
	pg_atomic_uint32 call_us;	/* how long calls of this handler have taken on average; 0: not known */
	pg_atomic_uint32 lane;
	pg_uuid_t	event_id;		/* may be torn: display only */
	int			replay_no;		/* of that delivery */
	Oid			role;			/* the role whose handlers it has run, or InvalidOid */
} OutboxProcess;

typedef enum OutboxRescan
{
	RESCAN_NONE = 0,
	RESCAN_DATABASES,			/* some were made, dropped, changed, or are to be probed */
	RESCAN_EVERYTHING			/* probe all of them again */
} OutboxRescan;

typedef struct OutboxShared
{
	LWLock	   *lock;			/* databases, processes, launcher */
	int64		run_id;			/* random, of this start of the server */
	pg_atomic_uint64 id_time;	/* OutboxIdTime last issued */
	pg_atomic_uint64 id_time_left;	/* the highest one that the clock was set back from */
	Latch	   *launcher_latch;
	int			launcher_pid;
	pg_atomic_uint32 launcher_rescan;	/* set: look at the databases again (OutboxRescan) */
	int			max_databases;
	int			max_processes;
	OutboxDatabase *databases;	/* [max_databases] */
	OutboxProcess *processes;	/* [max_processes] */
} OutboxShared;

extern PGDLLIMPORT OutboxShared *outbox_shared;

/* in _PG_init: the shared memory hooks */
extern void outbox_shmem_init(void);

/* the entry of a database, or NULL; takes and releases the lock (shared) */
extern OutboxDatabase *outbox_shmem_find_database(Oid oid);

/* the same for a caller that holds the lock; InvalidOid: one that is free */
extern OutboxDatabase *outbox_shmem_entry(Oid oid);

/* the same for our own database, remembered; NULL when there is none (yet) */
extern OutboxDatabase *outbox_shmem_my_database(void);

/* the entry of a database, made when missing; NULL when there is no room */
extern OutboxDatabase *outbox_shmem_ensure_database(Oid oid);

/*
 * Issue `count` consecutive id times, the first one is returned; merges the wall clock.
 * outbox_shmem_merge_id_time raises the clock to an id found in a log.
 */
extern uint64 outbox_shmem_next_id_time(int count);
extern void outbox_shmem_merge_id_time(uint64 id_time);

/* no id that this run of the server has issued is beyond it */
extern uint64 outbox_shmem_highest_id_time(void);

/* is the process of this database that calls itself process_id alive?  its slot, or NULL */
extern OutboxProcess *outbox_shmem_find_process(int64 process_id);

/* hints that a lane may hold work */
extern uint32 outbox_shmem_hint_bit(uint32 subscription_id, uint32 lane);

/*
 * "There may be work in this lane": a number that only grows; each worker
 * compares it with what it saw when it last looked.  Lanes that share one only cost a look.
 */
static inline void
outbox_shmem_count_work(OutboxDatabase *db, uint32 bit)
{
	pg_atomic_fetch_add_u32(&db->work_counts[bit], 1);
}

static inline uint32
outbox_shmem_work_count(OutboxDatabase *db, uint32 bit)
{
	return pg_atomic_read_u32(&db->work_counts[bit]);
}

/*
 * All leases of external workers that expire before that have ended: where a sweep begins.  It moves forward from
 * `from` to `to` unless a lease that expires earlier has been committed since the sweep read
 * outbox_shmem_late_leases(), which it does first.
 */
extern TimestampTz outbox_shmem_swept(OutboxDatabase *db);
extern uint32 outbox_shmem_late_leases(OutboxDatabase *db);
extern void outbox_shmem_sweep(OutboxDatabase *db, TimestampTz from, TimestampTz to, uint32 late_leases);

/*
 * Counts the changes of outages: whoever changes a row of outbox.subscription_state in that respect has locked it, and then
 * counts, before it commits.  So a row that nobody held when it was read, after the count, is the same as long as the
 * count is.
 */
static inline uint32
outbox_shmem_outage_changes(OutboxDatabase *db)
{
	uint32		changes = pg_atomic_read_u32(&db->outage_changes);

	pg_memory_barrier();
	return changes;
}

static inline void
outbox_shmem_count_outage_change(OutboxDatabase *db)
{
	pg_atomic_fetch_add_u32(&db->outage_changes, 1);
}

/*
 * Whoever lets an event of a lease fail or go back notes the lease before he commits.  Then nothing of a lease has gone back yet when it
 * was claimed since notes are taken, by claim_xid, and neither it nor a later one of its slot is noted.  Notes are taken from the
 * first question on, so never on a standby, whose leases are noted elsewhere.
 */
extern void outbox_shmem_note_returned(OutboxDatabase *db, int64 lease_id);
extern bool outbox_shmem_nothing_returned(OutboxDatabase *db, int64 lease_id, uint64 claim_xid);

/*
 * SIGTERM has ended the handler of this event: how often by now.  With more such events than are remembered some are forgotten,
 * at random, so that none is forgotten each time.
 */
extern uint32 outbox_shmem_count_interruption(OutboxDatabase *db, int32 subscription_id, const pg_uuid_t *event_id);

/*
 * How far the sweep of the last claim came, whichever session's: the next one goes on there.  So a session that claims once
 * does not look at the same few leases as the one before, behind which others would never have their turn.
 */
extern void outbox_shmem_get_sweep_place(OutboxDatabase *db, OutboxSweepPlace *place);
extern void outbox_shmem_set_sweep_place(OutboxDatabase *db, const OutboxSweepPlace *place);

/* a lease is committed that expires then; late: it has expired */
extern void outbox_shmem_unsweep(OutboxDatabase *db, TimestampTz expires_at, bool late);

/*
 * Tell the launcher about a database other than our own: it was made, dropped, changed, or
 * should be probed (InvalidOid: only look at pg_database again).
 */
extern void outbox_shmem_announce_database(Oid oid, bool probe);

/* forget the entry of a database that is not served and has no statement under way; for the launcher */
extern void outbox_shmem_forget_database(Oid oid);

/* set latches: of the router, of idle workers, of all workers of a database, of the launcher */
extern void outbox_shmem_wake_router(OutboxDatabase *db);
extern void outbox_shmem_wake_workers(Oid database);
extern void outbox_shmem_wake_launcher(bool rescan);

#endif							/* OUTBOX_SHMEM_H */
