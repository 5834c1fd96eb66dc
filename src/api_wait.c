/*
 * api_wait.c - outbox.wait(): until there is something to claim.
 *
 * The session looks in short transactions of its own, and sleeps in between in one that has
 * done nothing: no snapshot, no xmin, no lock.  It is woken by whoever puts something into
 * reach (waiters.c), and at the time when something it knows of is due.  Otherwise it compares
 * counts in shared memory once a poll interval, and looks at the tables again only when these
 * have changed, or every few seconds, for what nobody announces: a transaction that was prepared elsewhere.
 * What an open transaction has locked is not there yet, and its end is not announced: that is looked at more
 * often, at growing distances, so that neither the session nor a client that claims in vain goes round without a pause.
 */
#include "outbox.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "claimable.h"
#include "extension.h"
#include "operator.h"
#include "procedure.h"
#include "rights.h"
#include "session.h"
#include "settings.h"
#include "subscription.h"
#include "waiters.h"

#define NAMES_MAX		1000
#define FULL_LOOK_US	(5 * USECS_PER_SEC) /* in case something was not announced */
#define FIRST_STEP_US	1000	/* until what is locked is looked at again */

PG_FUNCTION_INFO_V1(outbox_wait);

/* one call; survives the transactions in between */
typedef struct Wait
{
	MemoryContext context;
	Oid			role;
	int			count;
	char	  **names;
	int32	   *ids;
	int64		deadline;		/* these are outbox_settings_ticks() */
	int64		poll_at;		/* when news for which another one was woken is looked at */
	int64		full_look_at;
	int64		step;			/* since there is something that is locked: from one look to the next */
	TimestampTz next_due;		/* by the extension's clock */
} Wait;

/* ---------------------------------------------------------------- arguments */

static void
read_names(Wait *wait, ArrayType *names)
{
	Datum	   *elements;

	if (array_contains_nulls(names))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("subscriptions must not contain nulls")));
	deconstruct_array(names, TEXTOID, -1, false, TYPALIGN_INT, &elements, NULL, &wait->count);
	if (wait->count < 1 || wait->count > NAMES_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("number of subscriptions is out of range"),
				 errhint("Name between 1 and %d subscriptions to wait for.", NAMES_MAX)));
	wait->names = palloc(wait->count * sizeof(char *));
	for (int i = 0; i < wait->count; i++)
		wait->names[i] = TextDatumGetCString(elements[i]);
	wait->ids = palloc(wait->count * sizeof(int32));
}

static void
read_arguments(Wait *wait, FunctionCallInfo fcinfo)
{
	MemoryContext caller;

	memset(wait, 0, sizeof(*wait));
	wait->context = AllocSetContextCreate(PortalContext, "outbox wait", ALLOCSET_SMALL_SIZES);
	wait->role = GetUserId();
	caller = MemoryContextSwitchTo(wait->context);
	read_names(wait, DatumGetArrayTypeP(outbox_operator_get_required(fcinfo, 0, "subscriptions")));
	wait->deadline = outbox_settings_ticks() + outbox_procedure_get_timeout(fcinfo, 1);
	MemoryContextSwitchTo(caller);
}

/* ---------------------------------------------------------------- looking */

static const OutboxSubscription *
find_subscription(const OutboxSubscription *all, int n, const char *name)
{
	for (int i = 0; i < n; i++)
	{
		if (strcmp(all[i].name, name) == 0)
			return &all[i];
	}
	outbox_operator_report_unknown(name);
}

/* May the caller wait for it, and is there a claim to wait for? */
static const OutboxSubscription *
check_subscription(const Wait *wait, const OutboxSubscription *all, int n, const char *name)
{
	const OutboxSubscription *s = find_subscription(all, n, name);

	outbox_rights_require_worker(wait->role, s->id, s->name);
	if (s->handler != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" has a handler", s->name),
				 errdetail("Its events are delivered by the server itself; there is nothing to claim.")));
	return s;
}

/* The transaction that CALL was given, which may have a snapshot, and an isolation level that keeps it. */
static void
end_first_transaction(void)
{
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	SPI_commit();
	SPI_finish();
}

static void
begin_own_transaction(OutboxSession *session)
{
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	/* whatever the session's default is: we want what is there now, and wait for no safe snapshot */
	Assert(!FirstSnapshotSet);
	XactIsoLevel = XACT_READ_COMMITTED;
	outbox_session_enter(session);
	/* what is out of line, as the progress of a large lease, is not read without one */
	PushActiveSnapshot(GetTransactionSnapshot());
}

static void
end_own_transaction(OutboxSession *session)
{
	PopActiveSnapshot();
	outbox_session_leave(session);
	SPI_commit();
	SPI_finish();
}

/* Check everything, and find out whom to wait for. */
static void
resolve(Wait *wait)
{
	OutboxSession session;
	OutboxSubscription *all;
	int			n;

	begin_own_transaction(&session);
	n = outbox_subscription_all(&all);
	for (int i = 0; i < wait->count; i++)
		wait->ids[i] = check_subscription(wait, all, n, wait->names[i])->id;
	end_own_transaction(&session);
}

/*
 * There is an expired lease, which a claim takes back unless somebody has it locked: say so, but to this session
 * no more than once a poll interval, so that it does not claim in vain without a pause.
 */
static bool
may_hope(Wait *wait)
{
	static int64 hoped_at = 0;
	int64		ticks = outbox_settings_ticks();
	int64		rested_at = hoped_at + (int64) outbox_poll_interval * 1000;

	if (ticks < rested_at && hoped_at != 0)
	{
		wait->full_look_at = Min(wait->full_look_at, rested_at);
		return false;
	}
	hoped_at = ticks;
	return true;
}

static void
plan_next_look(Wait *wait, const OutboxClaimLook *reasons)
{
	int64		ticks = outbox_settings_ticks();
	int64		interval = (int64) outbox_poll_interval * 1000;

	wait->next_due = reasons->next_due;
	wait->poll_at = ticks + interval;
	wait->step = reasons->busy ? Min(Max(2 * wait->step, FIRST_STEP_US), interval) : 0;
	wait->full_look_at = ticks + (reasons->busy ? wait->step : Max(FULL_LOOK_US, interval));
}

static bool
look(Wait *wait)
{
	OutboxSession session;
	OutboxIncarnation incarnation;
	OutboxSubscription *all;
	int			n;
	TimestampTz now = outbox_settings_now();
	OutboxClaimLook reasons = {.next_due = DT_NOEND};
	bool		ready = false;

	outbox_waiters_begin_look();
	begin_own_transaction(&session);
	outbox_procedure_refuse_held(&incarnation);
	n = outbox_subscription_all(&all);
	for (int i = 0; i < wait->count && !ready; i++)
		ready = outbox_claimable_look(check_subscription(wait, all, n, wait->names[i]), now, &reasons);
	end_own_transaction(&session);

	plan_next_look(wait, &reasons);
	return ready || (reasons.expired && may_hope(wait));
}

/* ---------------------------------------------------------------- sleeping */

static bool
has_reason(Wait *wait, int64 ticks)
{
	return outbox_waiters_are_chosen() ||
		(ticks >= wait->poll_at && outbox_waiters_have_news()) ||
		ticks >= wait->full_look_at ||
		wait->next_due <= outbox_settings_now() ||
		outbox_subscription_version() == 0;
}

/* Milliseconds until there may be a reason. */
static long
time_to_sleep(Wait *wait, int64 ticks)
{
	int64		us = Min((int64) outbox_poll_interval * 1000, wait->deadline - ticks);

	us = Min(us, wait->full_look_at - ticks);
	if (wait->next_due != DT_NOEND)
		us = Min(us, wait->next_due - outbox_settings_now());
	return (long) Max(us / 1000 + 1, 1);
}

/*
 * Nobody waits any more when the client is gone, which the server, with client_connection_check_interval at 0, would
 * only notice when it sends the answer; a pool, or max_connections, would miss this connection until then.
 */
static void
check_client(void)
{
	if (MyProcPort != NULL && WaitEventSetCanReportClosed() && !pq_check_connection())
	{
		ClientConnectionLost = true;
		InterruptPending = true;
	}
	CHECK_FOR_INTERRUPTS();
}

/* False when the time is over. */
static bool
sleep_until_reason(Wait *wait)
{
	static uint32 wait_event = 0;

	if (wait_event == 0)
		wait_event = outbox_compat_wait_event("OutboxWait");
	for (;;)
	{
		int64		ticks = outbox_settings_ticks();

		if (ticks >= wait->deadline)
			return false;
		AcceptInvalidationMessages();
		if (has_reason(wait, ticks))
			return true;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, time_to_sleep(wait, ticks), wait_event);
		ResetLatch(MyLatch);
		check_client();
	}
}

static bool
wait_until_ready(Wait *wait)
{
	volatile bool ready = false;

	outbox_waiters_enter(wait->count, wait->ids);
	PG_TRY();
	{
		while (!(ready = look(wait)) && sleep_until_reason(wait))
			 /* look again */ ;
	}
	PG_FINALLY();
	{
		outbox_waiters_leave(ready);
	}
	PG_END_TRY();
	return ready;
}

/* ---------------------------------------------------------------- the entry */

static Datum
make_result(FunctionCallInfo fcinfo, bool ready)
{
	TupleDesc	descriptor;
	Datum		value = BoolGetDatum(ready);
	bool		isnull = false;

	if (get_call_result_type(fcinfo, NULL, &descriptor) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(descriptor), &value, &isnull));
}

Datum
outbox_wait(PG_FUNCTION_ARGS)
{
	Wait		wait;
	bool		ready;

	outbox_procedure_require_autocommit(fcinfo, "outbox.wait()");
	PreventCommandDuringRecovery("outbox.wait()");
	read_arguments(&wait, fcinfo);
	end_first_transaction();
	resolve(&wait);
	ready = wait_until_ready(&wait);
	MemoryContextDelete(wait.context);
	PG_RETURN_DATUM(make_result(fcinfo, ready));
}
