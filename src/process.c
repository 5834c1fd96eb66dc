/*
 * process.c - what router and worker have in common.
 *
 * Both are started by the launcher for one database and never restarted by the
 * postmaster.  They promise: no transaction, snapshot or lock while they wait; signals
 * and procsignal barriers answered in every state; an error costs one log
 * line and a rest, not the process; when the extension is gone or the launcher asks, a
 * quiet end with exit code 0.
 *
 * SIGTERM asks to end.  The round under way is finished, except that a handler
 * is cancelled as by a query cancel, so that leases can be given back.  Whoever has
 * not ended after TERM_GRACE_SECONDS is ended as any backend would be.
 */
#include "outbox.h"

#include <signal.h>
#include <time.h>

#include "access/xact.h"
#include "catalog/pg_extension.h"
#include "commands/dbcommands.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"

#include "handler.h"
#include "extension.h"
#include "process.h"
#include "session.h"
#include "settings.h"
#include "slots.h"

#define TERM_GRACE_SECONDS 3
#define REST_MIN_MS 100
#define REST_MAX_MS 5000
#define SAME_ERROR_MS 60000

#if defined(_POSIX_TIMERS) && _POSIX_TIMERS > 0
#define HAVE_GRACE_TIMER 1
static timer_t grace_timer;
static bool grace_timer_made = false;
#endif

static volatile sig_atomic_t connecting = false;
static emit_log_hook_type next_log_hook = NULL;

static MemoryContext round_context = NULL;
static const char *database_name = NULL;
static bool look_is_due = true;
static OutboxPresence presence = PRESENCE_UNSURE;
static uint64 looked_at = 0;

static void install_signals(void);
static void make_grace_timer(void);
static void handle_sigterm(SIGNAL_ARGS);
static void detach(int code, Datum slot);
static void connect_to_database(Oid database, bool synchronous_commit);
static void remember_database(void);
static void note_invalidation(Datum argument, Oid relid);
static OutboxPresence look_up_extension(void);
static long rest_after_error(OutboxTask *task, OutboxProcess *self, ErrorData *error);
static bool is_worth_a_line(OutboxTask *task, const ErrorData *error);
static void report(ErrorData *error);
static void strip(ErrorData *error);
static void filter_log(ErrorData *error);
static void recover(OutboxTask *task, OutboxProcess *self);
static void see_to_signals(void);
static void add_context(void *argument);

/* ---------------------------------------------------------------- start and end */

OutboxProcess *
outbox_process_begin(Datum argument, bool synchronous_commit)
{
	OutboxProcess *self = &outbox_shared->processes[DatumGetInt32(argument)];
	uint32		generation;

	memcpy(&generation, MyBgworkerEntry->bgw_extra, sizeof(generation));
	next_log_hook = emit_log_hook;
	emit_log_hook = filter_log;
	install_signals();
	BackgroundWorkerUnblockSignals();

	if (!outbox_slots_attach(self, generation))
	{
		outbox_shmem_wake_launcher(false);
		proc_exit(0);
	}
	before_shmem_exit(detach, PointerGetDatum(self));

	round_context = AllocSetContextCreate(TopMemoryContext, "outbox round", ALLOCSET_DEFAULT_SIZES);
	outbox_session_remember_search_path();
	connect_to_database(self->database, synchronous_commit);
	CacheRegisterRelcacheCallback(note_invalidation, (Datum) 0);
	return self;
}

void
outbox_process_end(OutboxProcess *self, OutboxProcessEnd end)
{
	self->end = end;
	proc_exit(0);
}

bool
outbox_process_is_asked_to_end(void)
{
	return ShutdownRequestPending;
}

/*
 * Runs after an open transaction is aborted, so its locks are gone when the slot is free.  What ended us in the midst of a
 * subscription, as a handler's FATAL, may do so again: whoever comes in our place begins with the next one.
 */
static void
detach(int code, Datum slot)
{
	OutboxProcess *self = (OutboxProcess *) DatumGetPointer(slot);
	OutboxDatabase *db = outbox_shmem_my_database();
	uint32		subscription_id = pg_atomic_read_u32(&self->subscription_id);

	if (self->end == END_UNKNOWN && subscription_id != 0 && db != NULL)
		pg_atomic_write_u32(&db->next_subscription, subscription_id + 1);
	outbox_slots_detach(self);
	outbox_shmem_wake_launcher(false);
}

static void
install_signals(void)
{
	/* SIGINT and SIGUSR1 are as the postmaster's child has set them: query cancel, procsignal */
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, handle_sigterm);
	make_grace_timer();
}

/* The server's own timeouts cannot be armed from a signal handler; a POSIX timer can. */
static void
make_grace_timer(void)
{
#ifdef HAVE_GRACE_TIMER
	struct sigevent event = {0};

	pqsignal(SIGUSR2, die);
	event.sigev_notify = SIGEV_SIGNAL;
	event.sigev_signo = SIGUSR2;
	grace_timer_made = (timer_create(CLOCK_MONOTONIC, &event, &grace_timer) == 0);
#endif
}

static void
handle_sigterm(SIGNAL_ARGS)
{
	int			save_errno = errno;

	if (!proc_exit_inprogress)
	{
#ifdef HAVE_GRACE_TIMER
		if (!ShutdownRequestPending && grace_timer_made)
		{
			struct itimerspec grace = {.it_value.tv_sec = TERM_GRACE_SECONDS};

			(void) timer_settime(grace_timer, 0, &grace, NULL);
		}
#endif
		ShutdownRequestPending = true;
		if (connecting || outbox_handler_running)
		{
			InterruptPending = true;
			QueryCancelPending = true;
		}
	}
	SetLatch(MyLatch);
	errno = save_errno;
}

/*
 * Connecting waits for a lock on the database.  When the one who holds it wants us
 * to end, we do so without a word: SIGTERM cancels until we are through.
 */
static void
connect_to_database(Oid database, bool synchronous_commit)
{
	connecting = true;
	PG_TRY();
	{
		if (ShutdownRequestPending)
			proc_exit(0);
		BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
		outbox_session_pin(synchronous_commit);
		remember_database();
		connecting = false;
	}
	PG_CATCH();
	{
		if (!ShutdownRequestPending)
			PG_RE_THROW();
		FlushErrorState();
		proc_exit(0);
	}
	PG_END_TRY();
	QueryCancelPending = false;
}

/* The name stays true: whoever renames a database stops its processes first. */
static void
remember_database(void)
{
	char	   *name;

	StartTransactionCommand();
	name = get_database_name(MyDatabaseId);
	database_name = MemoryContextStrdup(TopMemoryContext, name != NULL ? name : "");
	CommitTransactionCommand();
}

/* ---------------------------------------------------------------- is the extension there? */

/* DROP EXTENSION invalidates the relations it drops. */
static void
note_invalidation(Datum argument, Oid relid)
{
	look_is_due = true;
}

static long
run_look_up(OutboxProcess *self)
{
	presence = look_up_extension();
	return 0;
}

OutboxPresence
outbox_process_look_for_extension(void)
{
	static OutboxTask task = {.activity = "looking for the extension", .run = run_look_up};

	AcceptInvalidationMessages();
	if (look_is_due || outbox_process_clock() >= looked_at + outbox_poll_interval)
	{
		look_is_due = false;
		looked_at = outbox_process_clock();
		if (outbox_process_attempt(&task, NULL) > 0)
			look_is_due = true;
	}
	return presence;
}

/* Between a new library and ALTER EXTENSION nothing is done here; said once a minute. */
static void
report_version(const OutboxExtension *extension)
{
	static uint64 reported_at = 0;
	uint64		now = outbox_process_clock();

	if (reported_at != 0 && now < reported_at + SAME_ERROR_MS)
		return;
	reported_at = now;
	outbox_extension_report_version(LOG, extension);
}

/*
 * A lock that conflicts with ours means that the extension is being dropped or
 * updated.  We do not wait for it: the transaction may be open for long, or prepared.
 * Under the lock it is looked up again: until then it may have gone.
 */
static OutboxPresence
find_extension(void)
{
	OutboxExtension extension;

	if (!outbox_extension_lookup(&extension))
		return PRESENCE_NO;
	if (!ConditionalLockDatabaseObject(ExtensionRelationId, extension.oid, 0, AccessShareLock))
		return PRESENCE_UNSURE;
	if (!outbox_extension_lookup(&extension))
		return PRESENCE_NO;
	if (outbox_extension_is_current(&extension))
		return PRESENCE_YES;
	report_version(&extension);
	return PRESENCE_UNSURE;
}

static OutboxPresence
look_up_extension(void)
{
	OutboxPresence result;

	StartTransactionCommand();
	result = find_extension();
	CommitTransactionCommand();
	return result;
}

/* ---------------------------------------------------------------- rounds */

long
outbox_process_attempt(OutboxTask *task, OutboxProcess *self)
{
	ErrorContextCallback context = {.callback = add_context, .previous = error_context_stack};
	ErrorData  *volatile error = NULL;
	volatile long delay = 0;
	uint64		now = outbox_process_clock();

	if (task->retry_at > now)
		return (long) (task->retry_at - now);

	pgstat_report_activity(STATE_RUNNING, task->activity);
	error_context_stack = &context;
	PG_TRY();
	{
		MemoryContextSwitchTo(round_context);
		delay = task->run(self);
		task->failures = 0;
		task->retry_at = 0;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(TopMemoryContext);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	error_context_stack = context.previous;

	if (error != NULL)
	{
		delay = rest_after_error(task, self, error);
		FreeErrorData(error);
	}
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextReset(round_context);
	return delay;
}

/* Whatever the error was, leave no transaction behind; log it unless it tells nothing. */
static long
rest_after_error(OutboxTask *task, OutboxProcess *self, ErrorData *error)
{
	long		rest;

	AbortCurrentTransaction();
	MemoryContextSwitchTo(round_context);
	recover(task, self);

	if (ShutdownRequestPending && error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		return 0;
	look_is_due = true;
	if (self != NULL && outbox_process_look_for_extension() == PRESENCE_NO)
		return 0;				/* the error was the sight of that */

	if (is_worth_a_line(task, error))
		report(error);
	rest = Min(REST_MAX_MS, (long) REST_MIN_MS << Min(task->failures, 10));
	task->failures++;
	task->retry_at = outbox_process_clock() + rest;
	return rest;
}

/* The same error again and again is logged once a minute. */
static bool
is_worth_a_line(OutboxTask *task, const ErrorData *error)
{
	uint64		now = outbox_process_clock();
	uint32		hash = error->sqlerrcode;

	if (error->message != NULL)
		hash ^= DatumGetUInt32(hash_any((const unsigned char *) error->message, strlen(error->message)));
	if (task->failures > 0 && hash == task->reported_hash && now < task->reported_at + SAME_ERROR_MS)
		return false;
	task->reported_hash = hash;
	task->reported_at = now;
	return true;
}

/* One line of its own: details of a statement may be rows, and its context what it was called with. */
static void
report(ErrorData *error)
{
	strip(error);
	error->context = psprintf("%s of database \"%s\"", MyBgworkerEntry->bgw_type, database_name);
	PG_TRY();
	{
		ReThrowError(error);
	}
	PG_CATCH();
	{
		EmitErrorReport();
		FlushErrorState();
	}
	PG_END_TRY();
}

/* ---------------------------------------------------------------- what gets into the log */

/* All but the primary message and the hint. */
static void
strip(ErrorData *error)
{
	error->detail = NULL;
	error->detail_log = NULL;
	error->context = NULL;
	error->backtrace = NULL;
	error->internalquery = NULL;
	error->hide_stmt = true;
}

static bool
is_from(const ErrorData *error, const char *file)
{
	const char *slash = error->filename != NULL ? strrchr(error->filename, '/') : NULL;

	return error->filename != NULL && strcmp(slash != NULL ? slash + 1 : error->filename, file) == 0;
}

/*
 * While code of a handler's role runs, what is logged may be anything: what the handler raises, its
 * statements with their parameters, their plans.  None of it gets into the server's log, at any level; what
 * remains are the server's own words about locks, and about the end of the process.
 */
static void
filter_handler(ErrorData *error)
{
	if (error->elevel < ERROR && !is_from(error, "proc.c"))
	{
		error->output_to_server = false;
		return;
	}
	strip(error);
	error->hint = NULL;
	/* exit_on_error makes any error of the handler one */
	if (error->elevel <= FATAL && !is_from(error, "proc.c") && !is_from(error, "postgres.c"))
		error->message = psprintf("handler ended its process, code %s", unpack_sql_state(error->sqlerrcode));
}

static void
filter_log(ErrorData *error)
{
	if (outbox_handler_is_entered())
		filter_handler(error);
	if (next_log_hook != NULL && error->output_to_server)
		next_log_hook(error);
}

/* What the task wants to put right; when that fails too, it is not the news. */
static void
recover(OutboxTask *task, OutboxProcess *self)
{
	if (task->recover == NULL)
		return;
	QueryCancelPending = false;
	PG_TRY();
	{
		task->recover(self);
	}
	PG_CATCH();
	{
		FlushErrorState();
		AbortCurrentTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(round_context);
}

static void
add_context(void *argument)
{
	errcontext("%s of database \"%s\"", MyBgworkerEntry->bgw_type, database_name);
}

/* ---------------------------------------------------------------- waiting */

void
outbox_process_wait(OutboxProcess *self, long timeout)
{
	static uint32 wait_event = 0;

	if (wait_event == 0)
		wait_event = outbox_compat_wait_event("OutboxIdle");

	/* so that autovacuum learns of what we wrote; at most once a second by itself */
	pgstat_report_stat(false);
	if (timeout > 0)
	{
		pg_atomic_write_u64(&self->busy_since, 0);
		pgstat_report_activity(STATE_IDLE, NULL);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, timeout, wait_event);
		ResetLatch(MyLatch);
	}
	/* without a pause the latch does not tell, and as long as we were there no server could start */
	else if (!PostmasterIsAlive())
		proc_exit(1);
	see_to_signals();
}

/* Between rounds a query cancel has nothing to cancel and is dropped. */
static void
see_to_signals(void)
{
	HOLD_CANCEL_INTERRUPTS();
	CHECK_FOR_INTERRUPTS();
	QueryCancelPending = false;
	RESUME_CANCEL_INTERRUPTS();

	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

uint64
outbox_process_clock(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (uint64) INSTR_TIME_GET_MILLISEC(now);
}
