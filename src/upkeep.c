/*
 * upkeep.c - the tasks of upkeep, by whom they are done, and what came of them.
 *
 * The router does them between its rounds, a step at a time, one task after the other; but some have a step between
 * all others, as they must not wait for those that take long, or take long themselves.  outbox.maintain() does them
 * all at once.  Each step commits, so that whoever is killed has lost one step.  Steps exclude each other by a lock
 * that the router only tries for, and two runs of outbox.maintain() by another one.
 *
 * A step that fails is undone alone, written down with its SQLSTATE, and the other tasks go on.
 */
#include "outbox.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "claim_settle.h"
#include "event_id.h"
#include "extension.h"
#include "grants.h"
#include "maintenance.h"
#include "retention.h"
#include "retired.h"
#include "routing.h"
#include "run_as.h"
#include "segment.h"
#include "session.h"
#include "settings.h"
#include "shmem.h"
#include "store.h"
#include "subscription.h"
#include "upkeep.h"

#define SEGMENTS_AHEAD_DAYS	30
#define OFTEN_US		(10 * USECS_PER_SEC)	/* between two rounds of the router */
#define SELDOM_US		(300 * USECS_PER_SEC)	/* between two rounds with all tasks */
#define FIRST_US		(20 * USECS_PER_SEC)	/* from the router's start to the first of these */
#define TRIM_BY_US		(60 * USECS_PER_SEC)	/* so long trimming makes way for workers */
#define RECORD_US		(60 * USECS_PER_SEC)	/* between two records of a task that goes well */
#define PAUSE_MAX_MS	100
#define REST			10		/* of a task that asks for it: so many times as long as its step took, */
#define REST_MAX_US		USECS_PER_SEC	/* and no longer than this */

/* advisory locks that no SQL function can name */
#define LOCK_CLASS_STEP	4
#define LOCK_CLASS_RUN	5

typedef struct Task
{
	const char *name;
	bool		(*step) (OutboxPass *pass);
	bool		often;			/* in each round of the router */
	bool		follows;		/* only when the task before it has no more to do */
	bool		apart;			/* may take long: keeps nobody from the other tasks */
	bool		trims;			/* row by row: each step but the last is as large as one may be */
	bool		between;		/* in the router: has no turn, but a step between all the others */
} Task;

static bool make_segments_ahead(OutboxPass *pass);
static bool seal_segments(OutboxPass *pass);
static bool refresh_rights(OutboxPass *pass);

static const Task tasks[] = {
	{"segments ahead", make_segments_ahead, .often = true},
	{"sealing", seal_segments, .often = true},
	{"lanes", outbox_maintenance_trim_lanes, .trims = true, .often = true},
	{"rights", refresh_rights, .often = true},
	{"ticks", outbox_maintenance_trim_ticks, .trims = true, .often = true},
	{"leases", outbox_maintenance_trim_leases, .trims = true, .often = true},
	{"parked events", outbox_maintenance_trim_parked, .trims = true, .often = true},
	{"archive", outbox_retention_archive, .apart = true},
	{"events", outbox_retention_drop_events, .follows = true},
	{"receipts", outbox_retention_drop_receipts, .follows = true},
	{"kept events", outbox_retention_trim_kept, .follows = true},
	{"batches", outbox_maintenance_trim_batches, .trims = true, .follows = true},
	{"retired tables", outbox_retired_shrink, .follows = true, .between = true},
	{"attempts", outbox_maintenance_trim_attempts, .trims = true},
	{"discarded deliveries", outbox_maintenance_trim_discarded, .trims = true},
	{"deduplication", outbox_maintenance_trim_dedup, .trims = true},
	{"consumed messages", outbox_maintenance_trim_consumed, .trims = true},
	{"reviews", outbox_maintenance_count_reviews},
};

#define TASKS ((int) lengthof(tasks))
#define SEALING 1
#define RETIRED 12
#define TAKE_BACK		100		/* events of expired leases, in one transaction */
#define TAKE_BACK_LOOKS	2000	/* at leases, ended ones too, for that */
#define SWEEP_SHORT_US	(50 * 1000) /* a sweep of that length may follow the one before at once */
#define SWEEP_REST		10		/* after a longer one: so many times its length, */
#define SWEEP_REST_MAX_US	(60 * USECS_PER_SEC)	/* and no longer than this */

/* What came before is before, also when the clock had been ahead then: "failing" is told by which of the two is the later one. */
static OutboxStatement record_task = {
	"insert into outbox.maintenance as m (task, last_run, last_success, last_error_at, last_error,"
	" removed, removed_total, kept, kept_why, resume_at)"
	" values ($1, $2, case when $3 is null then $2 end, case when $3 is not null then $2 end, $3, $4, $4, $5, $6, $7)"
	" on conflict (task) do update set last_run = $2,"
	" last_success = coalesce(excluded.last_success, least(m.last_success, $2 - interval '1 microsecond')),"
	" last_error_at = coalesce(excluded.last_error_at, least(m.last_error_at, $2 - interval '1 microsecond')),"
	" last_error = coalesce($3, m.last_error),"
	" removed = $4, removed_total = m.removed_total + $4, kept = $5, kept_why = $6, resume_at = $7",
	7, {TEXTOID, TIMESTAMPTZOID, TEXTOID, INT8OID, INT8OID, TEXTOID, INT8OID}
};

/* of a pass that goes on: what was kept is known at its end */
static OutboxStatement record_going_on = {
	"insert into outbox.maintenance as m (task, last_run, last_success, removed, removed_total)"
	" values ($1, $2, $2, $3, $3)"
	" on conflict (task) do update set last_run = $2, last_success = $2,"
	" last_error_at = least(m.last_error_at, $2 - interval '1 microsecond'),"
	" removed = $3, removed_total = m.removed_total + $3",
	3, {TEXTOID, TIMESTAMPTZOID, INT8OID}
};

static OutboxStatement select_last_run = {
	"select last_run from outbox.maintenance where task = 'leases'"
};

static OutboxStatement select_resume = {
	"select resume_at from outbox.maintenance where task = $1",
	1, {TEXTOID}
};

/* a task and how far it is */
typedef struct Progress
{
	OutboxPass	pass;
	bool		finished;
	int			error;			/* SQLSTATE of the step that ended the pass, or 0 */
	int			reported_error;
	int64		recorded_at;	/* outbox_settings_ticks() */
	int64		told_at;		/* the same, of the pass that goes on: its begin, or when it was written down since */
	int64		rest_until;		/* the same; 0: no rest is asked for */
} Progress;

/* the router's */
static Progress *router_progress = NULL;
static bool archive_is_due = false;

/* ---------------------------------------------------------------- tasks that need little */

/* Once in each process it looks whether the tables came with an upgrade of the cluster. */
static bool
make_segments_ahead(OutboxPass *pass)
{
	static bool looked = false;

	if (!looked)
	{
		outbox_extension_settle_upgrade();
		outbox_segment_adopt_all();
	}
	looked = true;
	return outbox_segment_make_ahead(SEGMENTS_AHEAD_DAYS);
}

static bool
seal_segments(OutboxPass *pass)
{
	return outbox_maintenance_seal(pass->incarnation);
}

static bool
refresh_rights(OutboxPass *pass)
{
	outbox_grants_refresh(false);
	outbox_run_as_refresh();
	return false;
}

/* ---------------------------------------------------------------- passes */

static Progress *
make_progress(MemoryContext context)
{
	MemoryContext caller = MemoryContextSwitchTo(context);
	Progress   *progress = palloc0(TASKS * sizeof(Progress));

	for (int i = 0; i < TASKS; i++)
		initStringInfo(&progress[i].pass.kept_why);
	MemoryContextSwitchTo(caller);
	return progress;
}

static void
begin_pass(Progress *progress)
{
	OutboxPass *pass = &progress->pass;

	memset(&pass->after, 0, sizeof(pass->after));
	pass->reached = 0;
	pass->kept = 0;
	pass->archive_due = pass->rest = false;
	resetStringInfo(&pass->kept_why);
	progress->finished = false;
	progress->error = 0;
	progress->told_at = outbox_settings_ticks();
}

static bool
lock_steps(bool wait)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, 1, LOCK_CLASS_STEP);
	return LockAcquire(&tag, ExclusiveLock, false, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

static bool
take_step(const Task *task, OutboxPass *pass, bool wait)
{
	OutboxSession session;
	bool		more;

	pass->rest = false;
	outbox_session_enter(&session);
	(void) set_config_option("lock_timeout", "1s", PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	if (wait && !task->apart)
		(void) lock_steps(true);
	more = task->step(pass);
	outbox_session_leave(&session);
	return more;
}

/* After the commit of a step that began at `begin`. */
static void
rest(Progress *progress, int64 begin)
{
	int64		now = outbox_settings_ticks();

	progress->rest_until = progress->pass.rest ? now + Min(REST * (now - begin), REST_MAX_US) : 0;
}

/* An error that is not the task's, but somebody's who wants us to stop. */
static bool
must_stop(const ErrorData *error)
{
	return error->sqlerrcode == ERRCODE_QUERY_CANCELED || error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN ||
		QueryCancelPending || ProcDiePending;
}

/* In a subtransaction: whatever goes wrong, the transaction goes on. */
static void
attempt_step(const Task *task, Progress *progress, bool wait)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(caller);
	PG_TRY();
	{
		bool		more = take_step(task, &progress->pass, wait);

		ReleaseCurrentSubTransaction();
		progress->finished = !more;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(caller);
		CurrentResourceOwner = owner;
		if (must_stop(error))
			ReThrowError(error);
		progress->error = error->sqlerrcode;
		progress->finished = true;
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	CurrentResourceOwner = owner;
}

/* ---------------------------------------------------------------- what came of it */

/* Not the message: it may hold data. */
static void
report_error(const Task *task, Progress *progress, int level)
{
	if (progress->error == 0 || (level == LOG && progress->error == progress->reported_error))
		return;
	ereport(level,
			(errcode(progress->error),
			 errmsg("upkeep task \"%s\" failed, code %s", task->name, unpack_sql_state(progress->error)),
			 errhint("The view outbox.maintenance_status shows each task; this one is tried again.")));
}

static void
record(const Task *task, Progress *progress)
{
	OutboxPass *pass = &progress->pass;
	Datum		args[7];
	char		nulls[7] = {' ', ' ', 'n', ' ', ' ', 'n', ' '};

	args[0] = CStringGetTextDatum(task->name);
	args[1] = TimestampTzGetDatum(outbox_settings_now());
	if (progress->error != 0)
	{
		args[2] = CStringGetTextDatum(unpack_sql_state(progress->error));
		nulls[2] = ' ';
	}
	args[3] = Int64GetDatum(pass->removed);
	args[4] = Int64GetDatum(pass->kept);
	if (pass->kept_why.len > 0)
	{
		args[5] = CStringGetTextDatum(pass->kept_why.data);
		nulls[5] = ' ';
	}
	args[6] = Int64GetDatum(progress->finished ? 0 : pass->reached);
	(void) outbox_store_run(&record_task, args, nulls, 0);
	pass->removed = 0;
	progress->reported_error = progress->error;
	progress->recorded_at = outbox_settings_ticks();
}

/*
 * A pass may take hours, and is well meanwhile: now and then that is written down.  Not when the last one ended in an
 * error, which this one may meet again.
 */
static void
record_meanwhile(const Task *task, Progress *progress)
{
	Datum		args[3];

	if (progress->reported_error != 0 || outbox_settings_ticks() - progress->told_at < RECORD_US)
		return;
	args[0] = CStringGetTextDatum(task->name);
	args[1] = TimestampTzGetDatum(outbox_settings_now());
	args[2] = Int64GetDatum(progress->pass.removed);
	(void) outbox_store_run(&record_going_on, args, NULL, 0);
	progress->pass.removed = 0;
	progress->told_at = outbox_settings_ticks();
}

/* Is it news?  What the router does every few seconds need not be written down each time. */
static bool
is_worth_recording(const Progress *progress)
{
	return progress->error != progress->reported_error || progress->recorded_at == 0 ||
		outbox_settings_ticks() - progress->recorded_at >= RECORD_US;
}

/* ---------------------------------------------------------------- the router */

/* Is a batch under way? Trimming takes processors and WAL from it, and can wait for a lull. */
static bool
workers_are_busy(void)
{
	for (int i = 0; i < outbox_shared->max_processes; i++)
	{
		OutboxProcess *process = &outbox_shared->processes[i];

		if (process->kind == PROCESS_WORKER && process->database == MyDatabaseId &&
			pg_atomic_read_u64(&process->busy_since) != 0)
			return true;
	}
	return false;
}

/* A publisher waits for a segment, and no process could be had to make it. */
static void
make_wanted_segment(void)
{
	OutboxDatabase *db = outbox_shmem_my_database();
	OutboxIdTime wanted = db == NULL ? 0 : pg_atomic_read_u64(&db->segment_wanted);
	pg_uuid_t	id;

	if (wanted == 0)
		return;
	outbox_event_id_floor(wanted, &id);
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) outbox_segment_provide(&id, false);
	PopActiveSnapshot();
	CommitTransactionCommand();
	pg_atomic_compare_exchange_u64(&db->segment_wanted, &wanted, 0);
}

static void
begin_transaction(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
}

static void
commit_transaction(void)
{
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
}

static bool
sweep_leases(OutboxSweepPlace *place)
{
	bool		more;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	more = outbox_claim_settle_sweep(outbox_shmem_my_database(), TAKE_BACK, TAKE_BACK_LOOKS, place);
	PopActiveSnapshot();
	CommitTransactionCommand();
	return more;
}

/* When upkeep was last done, perhaps before the server's start: what had expired by then was looked at by then, as a rule. */
static TimestampTz
last_upkeep(void)
{
	TimestampTz at = DT_NOBEGIN;
	OutboxSession session;
	bool		isnull = true;
	Datum		value = 0;

	begin_transaction();
	outbox_session_enter(&session);
	if (outbox_store_run(&select_last_run, NULL, NULL, 1) > 0)
		value = outbox_store_value(0, 1, &isnull);
	if (!isnull)
		at = DatumGetTimestampTz(value);
	outbox_session_leave(&session);
	commit_transaction();
	return at;
}

/*
 * Leases of external workers that have expired.  From one on that cannot be taken back, and after a start of the server, all
 * have to be looked at again, also those that have ended.  When these are many, then not all the time; and what expires
 * meanwhile does not wait for that: another sweep goes ahead, with what has expired last.
 */
static bool
take_back_expired(void)
{
	static OutboxSweepPlace all = {0};
	static OutboxSweepPlace last = {.ahead = true};
	static bool begun = false;
	static int64 begun_at = 0;	/* these are outbox_settings_ticks() */
	static int64 rest_until = 0;
	int64		now = outbox_settings_ticks();
	bool		whole = false;

	if (all.under_way || now >= rest_until)
	{
		if (!all.under_way)
			begun_at = now;
		whole = !sweep_leases(&all) && outbox_settings_ticks() - begun_at < SWEEP_SHORT_US;
		if (!all.under_way && !whole)
		{
			int64		length = outbox_settings_ticks() - begun_at;

			rest_until = begun_at + length + Min(SWEEP_REST * length, SWEEP_REST_MAX_US);
		}
	}
	if (whole)
	{
		last.from = all.from;
		last.from_id = all.from_id;
	}
	else if (!begun)
		last.from = Max(all.from, last_upkeep());
	begun = true;
	return (!whole && sweep_leases(&last)) || all.under_way;
}

/* The next step of the task; true when the task's turn is over. */
static bool
advance_task(const Task *task, Progress *progress)
{
	if (!lock_steps(false))
		return false;
	attempt_step(task, progress, false);
	if (!progress->finished)
	{
		record_meanwhile(task, progress);
		return false;
	}
	report_error(task, progress, LOG);
	if (is_worth_recording(progress))
		record(task, progress);
	if (task->step == outbox_retention_archive)
		archive_is_due = progress->pass.archive_due;
	return true;
}

/*
 * Segments must not wait until a backlog is trimmed, and the steps of sealing wait for the ticks in between, which would be a
 * round each.  Costs a look into a cache.
 */
static void
mind_segments(int incarnation)
{
	for (int i = 0; i <= SEALING && lock_steps(false); i++)
	{
		router_progress[i].pass.incarnation = incarnation;
		router_progress[i].error = 0;
		attempt_step(&tasks[i], &router_progress[i], false);
	}
}

/* A step with retired tables, in a transaction of its own.  True when there is more of it. */
static bool
shrink_retired(void)
{
	const Task *task = &tasks[RETIRED];
	Progress   *progress = &router_progress[RETIRED];
	int64		begin = outbox_settings_ticks();
	bool		locked;

	Assert(task->between);
	if (begin < progress->rest_until)
		return !progress->finished;
	begin_transaction();
	locked = lock_steps(false);
	if (locked)
	{
		if (progress->finished)
			begin_pass(progress);
		attempt_step(task, progress, false);
		if (progress->finished)
		{
			report_error(task, progress, LOG);
			if (progress->pass.removed > 0 || is_worth_recording(progress))
				record(task, progress);
		}
		else
			record_meanwhile(task, progress);
	}
	commit_transaction();
	rest(progress, begin);
	if (progress->finished)
		progress->rest_until = begin + OFTEN_US;
	return locked && !progress->finished;
}

/* The rounds of the router: which task is next, and when. */
static bool
advance_round(OutboxSubscription *subscriptions, int n, int incarnation)
{
	static int	at = 0;
	static bool begun = false;
	static bool all = false;
	static int64 next = 0;
	static int64 next_with_all = 0;
	static int64 trim_by = 0;
	int64		now = outbox_settings_ticks();
	Progress   *progress;

	if (next_with_all == 0)
		next_with_all = now + FIRST_US;
	if (at == 0 && !begun)
	{
		if (now < next)
		{
			mind_segments(incarnation);
			return false;
		}
		all = now >= next_with_all;
		trim_by = now + TRIM_BY_US;
	}
	if (at > SEALING)
		mind_segments(incarnation);
	if (at > SEALING && now < trim_by && workers_are_busy())
		return false;
	progress = &router_progress[at];
	if (!begun)
		begin_pass(progress);
	begun = true;
	progress->pass.subscriptions = subscriptions;
	progress->pass.nsubscriptions = n;
	progress->pass.incarnation = incarnation;
	if (!advance_task(&tasks[at], progress))
		return true;
	begun = false;
	do
		at++;
	while (at < TASKS && (tasks[at].between || (!all && !tasks[at].often)));
	if (at < TASKS)
		return true;
	at = 0;
	next = now + OFTEN_US;
	if (all)
		next_with_all = now + SELDOM_US;
	return false;
}

/* Half of the time at most: publishers and workers need processors and the disk meanwhile. */
static long
pause_after(int64 begin, bool more, bool shrinks)
{
	int64		now = outbox_settings_ticks();
	int64		pause = more ? Min((now - begin) / 1000, PAUSE_MAX_MS) : outbox_poll_interval;

	if (shrinks)
		pause = Min(pause, Max(now - begin, router_progress[RETIRED].rest_until - now) / 1000);
	return (long) pause;
}

long
outbox_upkeep_step(void)
{
	int64		begin = outbox_settings_ticks();
	OutboxIncarnation known;
	OutboxSubscription *subscriptions;
	bool		ours;
	bool		more;
	int			n;

	make_wanted_segment();
	SetCurrentStatementStartTimestamp();
	more = take_back_expired();
	if (router_progress == NULL)
		router_progress = make_progress(TopMemoryContext);
	begin_transaction();
	outbox_extension_incarnation(&known);
	n = outbox_subscription_all(&subscriptions);
	/* a second router leaves it alone: what the lanes need is known to the one who appends to them */
	ours = known.recorded && !known.held && outbox_routing_is_ours();
	if (ours)
	{
		more |= outbox_maintenance_end_generations(subscriptions, n);
		more |= advance_round(subscriptions, n, known.incarnation);
	}
	commit_transaction();
	return pause_after(begin, more, ours && shrink_retired());
}

bool
outbox_upkeep_archive_is_due(void)
{
	return archive_is_due;
}

/* ---------------------------------------------------------------- all at once */

/* What a caller's session is set to must not reach the transactions of a CALL. */
static void
begin_part(bool in_call)
{
	if (!in_call)
	{
		begin_transaction();
		return;
	}
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	XactIsoLevel = XACT_READ_COMMITTED;
	XactReadOnly = false;
	PushActiveSnapshot(GetTransactionSnapshot());
}

static void
end_part(bool in_call)
{
	if (!in_call)
	{
		commit_transaction();
		return;
	}
	PopActiveSnapshot();
	SPI_commit();
	SPI_finish();
}

/* Where a run before this one was stopped by the time. */
static void
resume_pass(const Task *task, Progress *progress)
{
	Datum		name = CStringGetTextDatum(task->name);
	OutboxSession session;
	bool		isnull;

	outbox_session_enter(&session);
	begin_pass(progress);
	if (outbox_store_run(&select_resume, &name, NULL, 1) > 0)
		progress->pass.reached = DatumGetInt64(outbox_store_value(0, 1, &isnull));
	outbox_session_leave(&session);
	progress->pass.patient = true;
	progress->pass.may_archive = true;
}

static void
record_part(const Task *task, Progress *progress)
{
	OutboxSession session;

	outbox_session_enter(&session);
	record(task, progress);
	outbox_session_leave(&session);
}

/* One step of one task in a transaction; false when the database is held. */
static bool
run_part(bool in_call, int i, Progress *progress, bool begin)
{
	int64		begun_at = outbox_settings_ticks();
	OutboxIncarnation known;
	OutboxSubscription *subscriptions;
	OutboxSession session;

	begin_part(in_call);
	outbox_extension_incarnation(&known);
	if (!known.held && known.recorded)
	{
		outbox_session_enter(&session);
		progress->pass.nsubscriptions = outbox_subscription_all(&subscriptions);
		outbox_session_leave(&session);
		if (begin)
			resume_pass(&tasks[i], progress);
		progress->pass.subscriptions = subscriptions;
		progress->pass.incarnation = known.incarnation;
		attempt_step(&tasks[i], progress, true);
		if (progress->finished)
		{
			report_error(&tasks[i], progress, WARNING);
			record_part(&tasks[i], progress);
		}
	}
	else
		progress->finished = true;
	end_part(in_call);
	rest(progress, begun_at);
	return !known.held;
}

/* The time is up. */
static void
record_unfinished(bool in_call, Progress *progress, const bool *begun)
{
	for (int i = 0; i < TASKS; i++)
	{
		if (!begun[i] || progress[i].finished)
			continue;
		begin_part(in_call);
		record_part(&tasks[i], &progress[i]);
		end_part(in_call);
	}
}

/* All that are left have a rest. */
static void
wait_until(int64 at)
{
	int64		left = at - outbox_settings_ticks();

	if (left <= 0)
		return;
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, (long) (left / 1000) + 1, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/* A step of each task in turn, so that none is kept from its work by another that has much to do. */
static OutboxUpkeepEnd
run_all(bool in_call, int64 budget_us, MemoryContext context)
{
	Progress   *progress = make_progress(context);
	bool		begun[TASKS];
	int64		end = outbox_settings_ticks() + budget_us;
	int			left = TASKS;

	memset(begun, 0, sizeof(begun));
	while (left > 0)
	{
		int64		next = end;

		for (int i = 0; i < TASKS; i++)
		{
			CHECK_FOR_INTERRUPTS();
			if (progress[i].finished || (tasks[i].follows && !progress[i - 1].finished))
				continue;
			if (outbox_settings_ticks() >= end)
			{
				record_unfinished(in_call, progress, begun);
				return UPKEEP_MORE;
			}
			if (outbox_settings_ticks() >= progress[i].rest_until)
			{
				int64		at = outbox_settings_ticks();

				if (!run_part(in_call, i, &progress[i], !begun[i]))
					return UPKEEP_HELD;
				begun[i] = true;
				left -= progress[i].finished;
				/* as in the router, half of the time while there is much to do */
				if (!progress[i].finished && tasks[i].trims)
					wait_until(Min(2 * outbox_settings_ticks() - at, outbox_settings_ticks() + PAUSE_MAX_MS * 1000));
			}
			next = Min(next, progress[i].rest_until);
		}
		if (left > 0)
			wait_until(next);
	}
	return UPKEEP_DONE;
}

OutboxUpkeepEnd
outbox_upkeep_run(bool in_call, int64 budget_us)
{
	MemoryContext context = AllocSetContextCreate(in_call ? PortalContext : TopMemoryContext, "outbox upkeep",
												  ALLOCSET_DEFAULT_SIZES);
	volatile OutboxUpkeepEnd end = UPKEEP_BUSY;
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, 1, LOCK_CLASS_RUN);
	if (LockAcquire(&tag, ExclusiveLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
		return UPKEEP_BUSY;
	PG_TRY();
	{
		end = run_all(in_call, budget_us, context);
	}
	PG_FINALLY();
	{
		(void) LockRelease(&tag, ExclusiveLock, true);
	}
	PG_END_TRY();
	MemoryContextDelete(context);
	return end;
}
