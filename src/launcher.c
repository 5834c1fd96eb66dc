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

#include "children.h"
#include "counters.h"
#include "launcher.h"
#include "process.h"
#include "settings.h"
#include "shmem.h"
#include "slots.h"

/* databases probed at the same time */
#define PROBES_MAX 3

/* read pg_database again even if nobody said so */
#define READ_INTERVAL_MS 60000

/* between a child's early end and the next start, at most */
#define REST_MAX_MS 4000
#define PROBE_REST_MAX_MS 300000

/* no slot in the server: another try, and how long before it is worth a warning */
#define SHORTAGE_RETRY_MS 250
#define SHORTAGE_PATIENCE_MS 1500
#define SHORTAGE_PAUSE_MS 3000
#define SHORTAGE_WARNING_MS 60000

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
	OutboxChild router;
	int			nworkers;		/* length of the array */
	OutboxChild *workers;
} Database;

static HTAB *databases;
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
static OutboxChild *find_child(Database *db, OutboxProcessKind kind, int number);
static void adopt_children(void);
static void see_to_database(Database *db);
static void child_ended(Database *db, OutboxChild *child, OutboxProcessEnd end, bool short_lived);
static bool is_wanted(const Database *db, int number);
static void start_missing(void);
static bool start_routers(DatabaseState state);
static bool start_workers(int number);
static bool start_one(Database *db, OutboxChild *child, int number);
static void meet_shortage(int number);
static void free_a_slot_for(int number);
static long time_to_sleep(void);
static int	workers_wanted(void);

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
		long		timeout;

		see_to_signals();
		look();
		timeout = time_to_sleep();
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

	outbox_children_reset_next_look();
	read_databases_if_due();

	hash_seq_init(&sequence, databases);
	while ((db = hash_seq_search(&sequence)) != NULL)
		see_to_database(db);
	start_missing();
}

/* By the clock there is something to do soon, or nothing: then one look a poll interval. */
static long
time_to_sleep(void)
{
	uint64		now = outbox_process_clock();
	uint64		next = outbox_children_next_look();

	if (next == 0)
		return outbox_poll_interval;
	return (next > now) ? Min((long) (next - now), outbox_poll_interval) : 0;
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
	{
		outbox_shmem_forget_database(oids[i]);
		outbox_counters_forget(oids[i]);
	}

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

static OutboxChild *
find_child(Database *db, OutboxProcessKind kind, int number)
{
	if (kind == PROCESS_ROUTER)
		return &db->router;
	if (number > db->nworkers)
	{
		Size		size = sizeof(OutboxChild) * number;

		db->workers = (db->workers == NULL)
			? MemoryContextAlloc(TopMemoryContext, size)
			: repalloc(db->workers, size);
		memset(db->workers + db->nworkers, 0, sizeof(OutboxChild) * (number - db->nworkers));
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
		OutboxChild *child;

		if (slot->kind == PROCESS_FREE)
			continue;
		child = find_child(find_database(slot->database), slot->kind, slot->number);
		outbox_children_adopt(child, slot);
	}
	LWLockRelease(outbox_shared->lock);
}

static void
see_to_database(Database *db)
{
	OutboxDatabase *shared = outbox_shmem_find_database(db->oid);

	if (shared != NULL && pg_atomic_read_u32(&shared->router_slot) != 0)
		db->state = DATABASE_PRESENT;
	for (int number = OUTBOX_ROUTER; number <= db->nworkers; number++)
	{
		OutboxChild *child = (number == OUTBOX_ROUTER) ? &db->router : &db->workers[number - 1];
		OutboxProcessEnd end;
		bool		short_lived;

		if (child->slot == NULL)
			continue;
		if (outbox_children_has_ended(child, &end, &short_lived))
			child_ended(db, child, end, short_lived);
		else if (!is_wanted(db, number))
			outbox_children_ask_to_end(child);
	}
}

static void
child_ended(Database *db, OutboxChild *child, OutboxProcessEnd end, bool short_lived)
{
	/* what we were told meanwhile may be news that it has not seen */
	if (end == END_ABSENT)
		db->state = db->told ? DATABASE_UNKNOWN : DATABASE_ABSENT;
	outbox_children_rest(child, end != END_UNKNOWN || !short_lived,
						 db->state == DATABASE_UNKNOWN ? PROBE_REST_MAX_MS : REST_MAX_MS);
}

/* Workers only where the extension was found; a router also to find out. */
static bool
is_wanted(const Database *db, int number)
{
	if (!outbox_dispatch || !db->listed || db->state == DATABASE_ABSENT)
		return false;
	return number == OUTBOX_ROUTER || (db->state == DATABASE_PRESENT && number <= workers_wanted());
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
		outbox_children_look_again_at(shortage.retry_at);
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
		if (db->state != state || !is_wanted(db, OUTBOX_ROUTER) || db->router.slot != NULL)
			continue;
		/* the end of a probe wakes us */
		if (state == DATABASE_UNKNOWN && probes >= PROBES_MAX)
			continue;
		if (!start_one(db, &db->router, OUTBOX_ROUTER))
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
		OutboxChild *child;

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
start_one(Database *db, OutboxChild *child, int number)
{
	if (child->start_at > outbox_process_clock())
	{
		outbox_children_look_again_at(child->start_at);
		return true;
	}
	switch (outbox_children_start(child, db->oid, NameStr(db->name), number))
	{
		case START_DONE:
			if (number == OUTBOX_ROUTER)
				db->told = false;
			return true;
		case START_LATER:
			return true;
		case START_NO_SLOT:
			break;
	}
	meet_shortage(number);
	return false;
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
	outbox_children_look_again_at(shortage.retry_at);
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
	OutboxChild *last = NULL;
	int			last_number = Max(wanted, 1);
	bool		ending = false;

	hash_seq_init(&sequence, databases);
	while ((db = hash_seq_search(&sequence)) != NULL)
	{
		for (int number = 1; number <= db->nworkers; number++)
		{
			OutboxChild *child = &db->workers[number - 1];

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
		outbox_children_ask_to_end(last);
	if (last != NULL)
		shortage.retry_at = outbox_process_clock() + SHORTAGE_RETRY_MS;
}
