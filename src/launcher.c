/*
 * launcher.c - keeps a router and the workers running in each database that
 * has the extension.
 *
 * Started by the postmaster, connected to no database.  Only inside a database can
 * one see whether the extension is there, so each database is probed once by
 * starting its router; a router that finds nothing ends at once, and the database is left
 * alone until CREATE EXTENSION commits in it, or a statement that had it barred ends.
 *
 *     unknown --router entered--> present --router found nothing--> absent --told--> unknown
 *
 * Children announce themselves and their end by our latch; the postmaster's
 * notification follows when the server's slot is free again.  So with nothing to do we
 * only wake up once a poll interval.  Everything is remembered in our own memory; a new launcher
 * adopts the children that it finds in shared memory.
 */
#include "outbox.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "storage/sinval.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "launcher.h"
#include "process.h"
#include "settings.h"
#include "shmem.h"
#include "slots.h"

/* databases probed at the same time */
#define PROBES_MAX 3

/* read pg_database again even if nobody said so */
#define READ_INTERVAL_MS 60000

/* a child that ends younger than this has failed to start well */
#define SHORT_LIFE_MS 5000
#define RESTART_MIN_MS 100
#define RESTART_MAX_MS 4000
#define PROBE_RESTART_MAX_MS 300000

/* registered, but not started */
#define START_TIMEOUT_MS 60000

/* no slot in the server: another try, and how long before it is worth a warning */
#define SHORTAGE_RETRY_MS 250
#define SHORTAGE_PATIENCE_MS 1500
#define SHORTAGE_PAUSE_MS 3000
#define SHORTAGE_WARNING_MS 60000

/* asked to end but still there: ask again */
#define ASK_AGAIN_MS 5000

typedef struct Child
{
	OutboxProcess *slot;		/* NULL: none */
	uint32		generation;
	BackgroundWorkerHandle *handle; /* NULL: adopted from an earlier launcher */
	uint64		started_at;
	uint64		asked_at;		/* to end; 0: not */
	uint64		start_at;		/* the next one not before */
	int			failures;		/* in a row */
} Child;

typedef enum DatabaseState
{
	DATABASE_UNKNOWN,
	DATABASE_PRESENT,
	DATABASE_ABSENT
} DatabaseState;

typedef struct Database
{
	Oid			oid;			/* hash key */
	NameData	name;
	bool		exists;			/* in pg_database */
	bool		listed;			/* and open to connections, no template */
	DatabaseState state;
	bool		told;			/* that it may have the extension, since its router was started */
	Child		router;
	int			nworkers;		/* length of the array */
	Child	   *workers;
} Database;

typedef enum StartResult
{
	STARTED,
	NOT_NOW,
	NO_SLOT
} StartResult;

static HTAB *databases;
static uint64 next_look;		/* when there is something to do by the clock */
static uint64 databases_read_at;

static struct
{
	uint64		since;			/* 0: none */
	uint64		retry_at;
	uint64		warned_at;
}			shortage;

static void start_up(void);
static void shut_down(int code, Datum argument);
static void see_to_signals(void);
static void look(void);
static void read_databases_if_due(void);
static void read_databases(void);
static void forget_databases(void);
static void take_announcements(bool everything);
static Database *find_database(Oid oid);
static Child *find_child(Database *db, OutboxProcessKind kind, int number);
static void adopt_children(void);
static void see_to_database(Database *db);
static void see_to_child(Database *db, Child *child);
static void child_ended(Database *db, Child *child);
static void rest_before_restart(Database *db, Child *child, bool healthy);
static bool is_wanted(const Database *db, int number);
static void ask_to_end(Child *child);
static void start_missing(void);
static bool start_routers(DatabaseState state);
static bool start_workers(int number);
static bool start_one(Database *db, Child *child, int number);
static StartResult register_child(Database *db, Child *child, int number);
static void describe_child(BackgroundWorker *worker, const Database *db, int number, const OutboxProcess *slot);
static void meet_shortage(int number);
static void free_a_slot_for(int number);
static void show_numbers(Database *db);
static void look_again_at(uint64 at);
static int	workers_wanted(void);

/* number 0 is the router */
#define ROUTER 0

/* ---------------------------------------------------------------- the process */

void
outbox_launcher_register(void)
{
	BackgroundWorker worker = {
		.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION,
		.bgw_start_time = BgWorkerStart_RecoveryFinished,
		.bgw_restart_time = 1,
	};

	strlcpy(worker.bgw_name, "outbox launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "outbox launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, OUTBOX_LIBRARY, sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "outbox_launcher_main", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

void
outbox_launcher_main(Datum argument)
{
	uint32		wait_event;

	start_up();
	wait_event = outbox_compat_wait_event("OutboxLauncher");
	for (;;)
	{
		uint64		now;
		long		timeout = outbox_poll_interval;

		see_to_signals();
		look();

		now = outbox_process_clock();
		if (next_look != 0)
			timeout = (next_look > now) ? Min(timeout, (long) (next_look - now)) : 0;
		pgstat_report_activity(STATE_IDLE, NULL);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, timeout, wait_event);
		ResetLatch(MyLatch);
	}
}

static void
start_up(void)
{
	HASHCTL		control = {.keysize = sizeof(Oid), .entrysize = sizeof(Database)};

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	pqsignal(SIGINT, SIG_IGN);	/* there is never anything to cancel */
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	SetConfigOption("application_name", MyBgworkerEntry->bgw_name, PGC_SUSET, PGC_S_OVERRIDE);

	databases = hash_create("outbox databases", 64, &control, HASH_ELEM | HASH_BLOBS);

	before_shmem_exit(shut_down, (Datum) 0);
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	outbox_shared->launcher_pid = MyProcPid;
	outbox_shared->launcher_latch = &MyProc->procLatch;
	LWLockRelease(outbox_shared->lock);

	adopt_children();
}

static void
shut_down(int code, Datum argument)
{
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	outbox_shared->launcher_pid = 0;
	outbox_shared->launcher_latch = NULL;
	LWLockRelease(outbox_shared->lock);
}

/* Exit code 1 makes the postmaster start us again; at a shutdown it does not. */
static void
see_to_signals(void)
{
	if (ShutdownRequestPending)
		proc_exit(1);
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
	/* transactions of ours are rare: keep up with invalidations, as others wait for the slowest */
	if (catchupInterruptPending)
		ProcessCatchupInterrupt();
}

static void
look(void)
{
	HASH_SEQ_STATUS sequence;
	Database   *db;

	next_look = 0;
	read_databases_if_due();

	hash_seq_init(&sequence, databases);
	while ((db = hash_seq_search(&sequence)) != NULL)
		see_to_database(db);
	start_missing();

	hash_seq_init(&sequence, databases);
	while ((db = hash_seq_search(&sequence)) != NULL)
		show_numbers(db);
}

static void
look_again_at(uint64 at)
{
	if (next_look == 0 || at < next_look)
		next_look = at;
}

static int
workers_wanted(void)
{
	return outbox_dispatch ? outbox_workers : 0;
}

/* ---------------------------------------------------------------- databases */

static void
read_databases_if_due(void)
{
	uint64		now = outbox_process_clock();
	uint32		rescan = pg_atomic_exchange_u32(&outbox_shared->launcher_rescan, RESCAN_NONE);

	if (rescan == RESCAN_NONE && databases_read_at != 0 && now < databases_read_at + READ_INTERVAL_MS)
		return;
	databases_read_at = now;
	pgstat_report_activity(STATE_RUNNING, "reading pg_database");
	read_databases();
	take_announcements(rescan == RESCAN_EVERYTHING);
	forget_databases();
}

static void
read_databases(void)
{
	HASH_SEQ_STATUS sequence;
	Database   *db;
	Relation	relation;
	TableScanDesc scan;
	HeapTuple	tuple;

	hash_seq_init(&sequence, databases);
	while ((db = hash_seq_search(&sequence)) != NULL)
		db->exists = db->listed = false;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	relation = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(relation, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database row = (Form_pg_database) GETSTRUCT(tuple);

		db = find_database(row->oid);
		db->name = row->datname;
		db->exists = true;
		db->listed = (row->datallowconn && !row->datistemplate &&
					  row->datconnlimit != OUTBOX_COMPAT_INVALID_DATABASE);
	}
	table_endscan(scan);
	table_close(relation, AccessShareLock);
	CommitTransactionCommand();
}

/* Our entry of a database, made when missing. */
static Database *
find_database(Oid oid)
{
	bool		found;
	Database   *db = hash_search(databases, &oid, HASH_ENTER, &found);

	if (!found)
	{
		memset(db, 0, sizeof(Database));
		db->oid = oid;
	}
	return db;
}

/* Databases whose state may have changed are probed again. */
static void
take_announcements(bool everything)
{
	HASH_SEQ_STATUS sequence;
	Database   *db;

	hash_seq_init(&sequence, databases);
	while ((db = hash_seq_search(&sequence)) != NULL)
	{
		OutboxDatabase *shared = outbox_shmem_find_database(db->oid);
		bool		probe = everything;

		if (shared != NULL)
		{
			LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
			if (shared->oid == db->oid)
			{
				probe = probe || shared->probe;
				shared->probe = false;
			}
			LWLockRelease(outbox_shared->lock);
		}
		if (!probe)
			continue;
		db->told = true;
		db->router.start_at = 0;
		if (db->state == DATABASE_ABSENT)
			db->state = DATABASE_UNKNOWN;
	}
}

/*
 * Those that are gone from pg_database, here and in shared memory.  No others: a backend
 * of a database that exists may hold on to the entry.
 */
static void
forget_databases(void)
{
	HASH_SEQ_STATUS sequence;
	Database   *db;
	Oid			oids[64];
	int			noids = 0;

	LWLockAcquire(outbox_shared->lock, LW_SHARED);
	for (int i = 0; i < outbox_shared->max_databases && noids < lengthof(oids); i++)
	{
		Oid			oid = outbox_shared->databases[i].oid;

		if (OidIsValid(oid) &&
			((db = hash_search(databases, &oid, HASH_FIND, NULL)) == NULL || !db->exists))
			oids[noids++] = oid;
	}
	LWLockRelease(outbox_shared->lock);
	for (int i = 0; i < noids; i++)
		outbox_shmem_forget_database(oids[i]);

	hash_seq_init(&sequence, databases);
	while ((db = hash_seq_search(&sequence)) != NULL)
	{
		bool		used = db->exists || db->router.slot != NULL;

		for (int i = 0; i < db->nworkers; i++)
			used = used || db->workers[i].slot != NULL;
		if (used)
			continue;
		if (db->workers != NULL)
			pfree(db->workers);
		hash_search(databases, &db->oid, HASH_REMOVE, NULL);
	}
}

/* ---------------------------------------------------------------- children */

static Child *
find_child(Database *db, OutboxProcessKind kind, int number)
{
	if (kind == PROCESS_ROUTER)
		return &db->router;
	if (number > db->nworkers)
	{
		Size		size = sizeof(Child) * number;

		db->workers = (db->workers == NULL)
			? MemoryContextAlloc(TopMemoryContext, size)
			: repalloc(db->workers, size);
		memset(db->workers + db->nworkers, 0, sizeof(Child) * (number - db->nworkers));
		db->nworkers = number;
	}
	return &db->workers[number - 1];
}

/* What an earlier launcher has left. */
static void
adopt_children(void)
{
	LWLockAcquire(outbox_shared->lock, LW_SHARED);
	for (int i = 0; i < outbox_shared->max_processes; i++)
	{
		OutboxProcess *slot = &outbox_shared->processes[i];
		Child	   *child;

		if (slot->kind == PROCESS_FREE)
			continue;
		child = find_child(find_database(slot->database), slot->kind, slot->number);
		child->slot = slot;
		child->generation = slot->generation;
		child->started_at = outbox_process_clock();
	}
	LWLockRelease(outbox_shared->lock);
}

static void
see_to_database(Database *db)
{
	OutboxDatabase *shared = outbox_shmem_find_database(db->oid);

	if (shared != NULL && pg_atomic_read_u32(&shared->router_slot) != 0)
		db->state = DATABASE_PRESENT;
	for (int number = ROUTER; number <= db->nworkers; number++)
	{
		Child	   *child = (number == ROUTER) ? &db->router : &db->workers[number - 1];

		if (child->slot == NULL)
			continue;
		see_to_child(db, child);
		if (child->slot != NULL && !is_wanted(db, number))
			ask_to_end(child);
	}
}

/* Has it ended, or never begun? */
static void
see_to_child(Database *db, Child *child)
{
	uint64		now = outbox_process_clock();
	pid_t		pid;
	BgwHandleStatus status = BGWH_STARTED;

	if (child->handle != NULL)
		status = GetBackgroundWorkerPid(child->handle, &pid);

	if (!outbox_slots_is_used(child->slot, child->generation))
	{
		/* the slot in the server is free a moment later: the postmaster will tell */
		if (status == BGWH_STARTED && child->handle != NULL)
			look_again_at(now + SHORTAGE_RETRY_MS);
		else
			child_ended(db, child);
	}
	else if (status == BGWH_STOPPED ||
			 (child->slot->pid == 0 && now >= child->started_at + START_TIMEOUT_MS))
	{
		/* it could not be started; should it start after all, it finds its slot taken away */
		if (child->handle != NULL)
			TerminateBackgroundWorker(child->handle);
		outbox_slots_terminate(child->slot, child->generation);
		child_ended(db, child);
	}
	else if (child->slot->pid == 0)
		look_again_at(child->started_at + START_TIMEOUT_MS);
}

static void
child_ended(Database *db, Child *child)
{
	OutboxProcessEnd end = END_UNKNOWN;
	bool		short_lived = outbox_process_clock() < child->started_at + SHORT_LIFE_MS;

	/* else the slot was taken away from a process that never started */
	if (child->slot->generation == child->generation)
		end = child->slot->end;
	/* what we were told meanwhile may be news that it has not seen */
	if (end == END_ABSENT)
		db->state = db->told ? DATABASE_UNKNOWN : DATABASE_ABSENT;
	rest_before_restart(db, child, end != END_UNKNOWN || !short_lived);

	if (child->handle != NULL)
		pfree(child->handle);
	child->slot = NULL;
	child->handle = NULL;
	child->asked_at = 0;
}

/* The first time at once, then at a growing distance. */
static void
rest_before_restart(Database *db, Child *child, bool healthy)
{
	uint64		rest_max = (db->state == DATABASE_UNKNOWN) ? PROBE_RESTART_MAX_MS : RESTART_MAX_MS;
	uint64		rest = 0;

	child->failures = healthy ? 0 : child->failures + 1;
	if (child->failures > 1)
		rest = Min(rest_max, (uint64) RESTART_MIN_MS << Min(child->failures - 2, 20));
	child->start_at = outbox_process_clock() + rest;
}

/* Workers only where the extension was found; a router also to find out. */
static bool
is_wanted(const Database *db, int number)
{
	if (!outbox_dispatch || !db->listed || db->state == DATABASE_ABSENT)
		return false;
	return number == ROUTER || (db->state == DATABASE_PRESENT && number <= workers_wanted());
}

static void
ask_to_end(Child *child)
{
	uint64		now = outbox_process_clock();

	if (child->asked_at == 0 || now >= child->asked_at + ASK_AGAIN_MS)
	{
		child->asked_at = now;
		outbox_slots_terminate(child->slot, child->generation);
	}
	look_again_at(child->asked_at + ASK_AGAIN_MS);
}

/* ---------------------------------------------------------------- starting */

/*
 * Routers first, then one worker in each database, then a second one, so that a
 * shortage of slots is shared out.  Stops where the server grants no more.
 */
static void
start_missing(void)
{
	uint64		now = outbox_process_clock();

	if (shortage.retry_at > now)
	{
		look_again_at(shortage.retry_at);
		return;
	}
	if (!start_routers(DATABASE_PRESENT) || !start_routers(DATABASE_UNKNOWN))
		return;
	for (int number = 1; number <= workers_wanted(); number++)
	{
		if (!start_workers(number))
			return;
	}
	shortage.since = 0;
	shortage.retry_at = 0;
}

static bool
start_routers(DatabaseState state)
{
	HASH_SEQ_STATUS sequence;
	Database   *db;
	int			probes = 0;

	if (state == DATABASE_UNKNOWN)
	{
		hash_seq_init(&sequence, databases);
		while ((db = hash_seq_search(&sequence)) != NULL)
			probes += (db->state == DATABASE_UNKNOWN && db->router.slot != NULL);
	}
	hash_seq_init(&sequence, databases);
	while ((db = hash_seq_search(&sequence)) != NULL)
	{
		if (db->state != state || !is_wanted(db, ROUTER) || db->router.slot != NULL)
			continue;
		/* the end of a probe wakes us */
		if (state == DATABASE_UNKNOWN && probes >= PROBES_MAX)
			continue;
		if (!start_one(db, &db->router, ROUTER))
		{
			hash_seq_term(&sequence);
			return false;
		}
		probes += (db->router.slot != NULL);
	}
	return true;
}

static bool
start_workers(int number)
{
	HASH_SEQ_STATUS sequence;
	Database   *db;

	hash_seq_init(&sequence, databases);
	while ((db = hash_seq_search(&sequence)) != NULL)
	{
		Child	   *child;

		if (!is_wanted(db, number))
			continue;
		child = find_child(db, PROCESS_WORKER, number);
		if (child->slot == NULL && !start_one(db, child, number))
		{
			hash_seq_term(&sequence);
			return false;
		}
	}
	return true;
}

/* False when the server has no slot left. */
static bool
start_one(Database *db, Child *child, int number)
{
	if (child->start_at > outbox_process_clock())
	{
		look_again_at(child->start_at);
		return true;
	}
	if (register_child(db, child, number) != NO_SLOT)
		return true;
	meet_shortage(number);
	return false;
}

static StartResult
register_child(Database *db, Child *child, int number)
{
	BackgroundWorker worker;
	OutboxProcess *slot;
	MemoryContext caller;
	bool		registered;

	switch (outbox_slots_reserve(db->oid, number == ROUTER ? PROCESS_ROUTER : PROCESS_WORKER, number, &slot))
	{
		case RESERVED:
			break;
		case RESERVE_LATER:
			return NOT_NOW;		/* whoever lifts the bar wakes us */
		case RESERVE_FULL:
			return NO_SLOT;
	}
	if (number == ROUTER)
		db->told = false;
	describe_child(&worker, db, number, slot);
	caller = MemoryContextSwitchTo(TopMemoryContext);
	registered = RegisterDynamicBackgroundWorker(&worker, &child->handle);
	MemoryContextSwitchTo(caller);
	if (!registered)
	{
		child->handle = NULL;
		outbox_slots_terminate(slot, slot->generation);
		return NO_SLOT;
	}
	child->slot = slot;
	child->generation = slot->generation;
	child->started_at = outbox_process_clock();
	child->asked_at = 0;
	look_again_at(child->started_at + START_TIMEOUT_MS);
	return STARTED;
}

static void
describe_child(BackgroundWorker *worker, const Database *db, int number, const OutboxProcess *slot)
{
	const char *type = (number == ROUTER) ? "outbox router" : "outbox worker";

	memset(worker, 0, sizeof(BackgroundWorker));
	if (number == ROUTER)
		snprintf(worker->bgw_name, BGW_MAXLEN, "%s %s", type, NameStr(db->name));
	else
		snprintf(worker->bgw_name, BGW_MAXLEN, "%s %d %s", type, number, NameStr(db->name));

	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = BGW_NEVER_RESTART;
	worker->bgw_main_arg = Int32GetDatum(slot - outbox_shared->processes);
	worker->bgw_notify_pid = MyProcPid;
	strlcpy(worker->bgw_type, type, BGW_MAXLEN);
	strlcpy(worker->bgw_library_name, OUTBOX_LIBRARY, sizeof(worker->bgw_library_name));
	strlcpy(worker->bgw_function_name, number == ROUTER ? "outbox_router_main" : "outbox_worker_main", BGW_MAXLEN);
	StaticAssertStmt(sizeof(slot->generation) <= BGW_EXTRALEN, "the generation must fit");
	memcpy(worker->bgw_extra, &slot->generation, sizeof(slot->generation));
}

/* ---------------------------------------------------------------- no slot left in the server */

static void
meet_shortage(int number)
{
	uint64		now = outbox_process_clock();

	if (shortage.since == 0)
		shortage.since = now;
	if (now < shortage.since + SHORTAGE_PATIENCE_MS)
		shortage.retry_at = now + SHORTAGE_RETRY_MS;
	else
	{
		shortage.retry_at = now + SHORTAGE_PAUSE_MS;
		free_a_slot_for(number);
		if (shortage.warned_at == 0 || now >= shortage.warned_at + SHORTAGE_WARNING_MS)
		{
			shortage.warned_at = now;
			ereport(WARNING,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("no background worker slot is free for an outbox process"),
					 errdetail("The databases are served by fewer processes than wanted."),
					 errhint("Raise \"max_worker_processes\" (now %d): the launcher needs one, and each database one for its router and \"outbox.workers\" for its workers.",
							 max_worker_processes)));
		}
	}
	look_again_at(shortage.retry_at);
}

/*
 * A database must not go without a router, or without its first worker, because
 * others came first: they give up what they have more of.
 */
static void
free_a_slot_for(int wanted)
{
	HASH_SEQ_STATUS sequence;
	Database   *db;
	Child	   *last = NULL;
	int			last_number = Max(wanted, 1);
	bool		ending = false;

	hash_seq_init(&sequence, databases);
	while ((db = hash_seq_search(&sequence)) != NULL)
	{
		for (int number = 1; number <= db->nworkers; number++)
		{
			Child	   *child = &db->workers[number - 1];

			if (child->slot == NULL)
				continue;
			ending = ending || child->asked_at != 0;
			if (number > last_number)
			{
				last = child;
				last_number = number;
			}
		}
	}
	if (last != NULL && !ending)
		ask_to_end(last);
	if (last != NULL)
		shortage.retry_at = outbox_process_clock() + SHORTAGE_RETRY_MS;
}

/* For outbox.worker_status. */
static void
show_numbers(Database *db)
{
	OutboxDatabase *shared;

	if (db->state != DATABASE_PRESENT || (shared = outbox_shmem_find_database(db->oid)) == NULL)
		return;
	shared->workers_wanted = db->listed ? workers_wanted() : 0;
}
