/*
 * api_people.c - retry(), discard(), drain(), activate(), and what the views ask.
 *
 * A person's call changes the row of the delivery and nothing else: whoever
 * works the lane finds it by an index and opens the key.  So a person's open
 * transaction keeps no lane waiting, and no release can be missed.
 */
#include "outbox.h"

#include "access/stratnum.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "extension.h"
#include "grants.h"
#include "operator.h"
#include "procedure.h"
#include "rights.h"
#include "routing.h"
#include "run_as.h"
#include "segment.h"
#include "session.h"
#include "settings.h"
#include "store.h"
#include "wakeup.h"

#define DRAIN_STEP_MS	20		/* the longest time between two looks */

PG_FUNCTION_INFO_V1(outbox_retry);
PG_FUNCTION_INFO_V1(outbox_discard);
PG_FUNCTION_INFO_V1(outbox_drain);
PG_FUNCTION_INFO_V1(outbox_activate);
PG_FUNCTION_INFO_V1(outbox_clock);
PG_FUNCTION_INFO_V1(outbox_is_held);

/* what one call of drain() waits for; survives the transactions in between */
typedef struct Drain
{
	MemoryContext context;
	Datum		subscriptions;	/* text[], or 0 for all */
	Datum		committed;		/* pg_snapshot: all that was committed before the call */
	TimestampTz called_at;		/* by the extension's clock */
	TimestampTz deadline;		/* by the wall clock */
	bool		routed;			/* then: */
	Datum		ends[3];		/* int[], int[], bigint[]: how far each lane has to come */
} Drain;

static OutboxStatement update_to_retry = {
	"update outbox.delivery_exception"
	" set status = 'RETRY', attempts_before = attempts_before + attempts, attempts = 0, next_attempt_at = $3"
	" where subscription_id = $1 and event_id = $2 and status = 'REVIEW_REQUIRED'",
	3, {INT4OID, UUIDOID, TIMESTAMPTZOID}
};

static OutboxStatement update_to_discarded = {
	"update outbox.delivery_exception x"
	" set status = 'DISCARDED', next_attempt_at = null, gate_released = false"
	" where x.subscription_id = $1 and x.event_id = $2 and (x.status = 'REVIEW_REQUIRED' or x.status = 'RETRY'"
	" and not exists (select from outbox.delivery_exception o where o.subscription_id = $1 and o.event_id = $2"
	" and o.status = 'REVIEW_REQUIRED'))",
	2, {INT4OID, UUIDOID}
};

static OutboxStatement select_unknown = {
	"select given.name from pg_catalog.unnest($1) as given (name)"
	" where not exists (select from outbox.subscription s where s.subscription = given.name)",
	1, {TEXTARRAYOID}
};

/*
 * One row of text for each thing that is not routed yet: $1 the snapshot, $2
 * the time of the call, $3 the subscriptions, $4 the incarnation.
 */
static OutboxStatement select_unrouted = {
	"with last as materialized (select t.target, t.through from outbox.tick t where t.incarnation = $4"
	" order by t.tick desc, t.chunk desc limit 1),"
	" chosen as materialized (select s.subscription_id, s.subscription from outbox.subscription s"
	" where $3 is null or s.subscription = any ($3))"
	" select 'events that are not routed yet'"
	" where exists (select from last where through is not null)"
	" or exists (select from outbox.event_log e where e.incarnation = $4"
	" and e.xid >= coalesce((select pg_catalog.pg_snapshot_xmin(target) from last), '0'::pg_catalog.xid8)"
	" and e.xid < pg_catalog.pg_snapshot_xmax($1)"
	" and pg_catalog.pg_visible_in_snapshot(e.xid, $1)"
	" and not pg_catalog.pg_visible_in_snapshot(e.xid,"
	" coalesce((select target from last), '1:1:'::pg_catalog.pg_snapshot)))"
	" union all"
	" select pg_catalog.format('%s: has not caught up with the log', c.subscription)"
	" from chosen c join outbox.subscription_state t using (subscription_id) where not t.joined"
	" union all"
	" select pg_catalog.format('%s: %s due', c.subscription, count(*))"
	" from outbox.delayed d join chosen c using (subscription_id) where d.due_at <= $2 group by c.subscription",
	4, {PG_SNAPSHOTOID, TIMESTAMPTZOID, TEXTARRAYOID, INT4OID}
};

static OutboxStatement select_ends = {
	"select pg_catalog.array_agg(l.subscription_id), pg_catalog.array_agg(l.lane),"
	" pg_catalog.array_agg(greatest(l.base, entries.position, cursors.position))"
	" from outbox.lane l join outbox.subscription s using (subscription_id)"
	" cross join lateral (select max(e.position) as position from outbox.lane_entry e"
	" where e.subscription_id = l.subscription_id and e.lane = l.lane) entries"
	" cross join lateral (select max(c.position) as position from outbox.lane_cursor c"
	" where c.subscription_id = l.subscription_id and c.lane = l.lane) cursors"
	" where ($1 is null or s.subscription = any ($1)) and s.handler is not null and not s.paused",
	1, {TEXTARRAYOID}
};

/*
 * One row of text for each subscription that has not settled what lies at or
 * below the ends, $1 to $3.  What waits for a person counts as settled.
 */
static OutboxStatement select_unsettled = {
	"select pg_catalog.format('%s: %s waiting, %s to be retried, %s in progress, %s ready after their key was opened%s',"
	" s.subscription, sum(waiting.n), sum(retry.n), sum(in_progress.n), sum(ready.n),"
	" ' (stopped: ' || max(t.stopped_reason) || ')')"
	" from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3))"
	" as due (subscription_id, lane, position)"
	" join outbox.subscription s on s.subscription_id = due.subscription_id and s.handler is not null and not s.paused"
	" join outbox.lane l on l.subscription_id = due.subscription_id and l.lane = due.lane"
	" left join outbox.subscription_state t on t.subscription_id = due.subscription_id"
	" cross join lateral (select greatest(due.position - coalesce(max(c.position), l.base), 0) as n"
	" from outbox.lane_cursor c where c.subscription_id = due.subscription_id and c.lane = due.lane) waiting"
	" cross join lateral (select count(*) as n from outbox.delivery_exception x"
	" where x.subscription_id = due.subscription_id and x.lane = due.lane"
	" and x.status = 'RETRY' and x.position <= due.position) retry"
	" cross join lateral (select count(*) as n from outbox.delivery_exception x"
	" where x.subscription_id = due.subscription_id and x.lane = due.lane"
	" and x.status = 'IN_PROGRESS' and x.position <= due.position) in_progress"
	" cross join lateral (select coalesce(sum((select count(*) from outbox.parked p where p.gate_id = g.gate_id"
	" and p.position > g.through and p.position <= due.position)), 0)::bigint as n from outbox.gate g"
	" where g.subscription_id = due.subscription_id and g.lane = due.lane"
	" and (g.held_by is null or (select x.status = 'DISCARDED' or x.status = 'REVIEW_REQUIRED' and s.on_review = 'continue'"
	" from outbox.delivery_exception x where x.subscription_id = g.subscription_id and x.event_id = g.held_by"
	" and x.replay_no = 0))) ready"
	" group by s.subscription"
	" having sum(waiting.n) + sum(retry.n) + sum(in_progress.n) + sum(ready.n) > 0"
	" order by s.subscription",
	3, {INT4ARRAYOID, INT4ARRAYOID, INT8ARRAYOID}
};

/* ---------------------------------------------------------------- retry and discard */

/* Run one of the two updates and record it; true when a delivery was changed. */
static bool
change_delivery(FunctionCallInfo fcinfo, OutboxStatement *update, const char *action, const char *reason)
{
	Oid			caller = GetUserId();
	char	   *subscription = outbox_operator_get_subscription(fcinfo, 0);
	Datum		event_id = outbox_operator_get_required(fcinfo, 1, "event_id");
	Datum		values[3] = {0, event_id, TimestampTzGetDatum(outbox_settings_now())};
	OutboxSession session;
	bool		changed;

	outbox_rights_require_operator(caller);
	SPI_connect();
	outbox_session_enter(&session);
	values[0] = Int32GetDatum(outbox_operator_find_subscription(subscription));
	changed = outbox_store_run(update, values, NULL, 0) > 0;
	if (changed)
	{
		outbox_operator_record(caller, action, subscription, DatumGetUUIDP(event_id), reason);
		outbox_wakeup_workers();
	}
	outbox_session_leave(&session);
	SPI_finish();
	return changed;
}

Datum
outbox_retry(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(change_delivery(fcinfo, &update_to_retry, "retry", NULL));
}

Datum
outbox_discard(PG_FUNCTION_ARGS)
{
	char	   *reason = TextDatumGetCString(outbox_operator_get_required(fcinfo, 2, "reason"));

	if (strspn(reason, " \t\r\n") == strlen(reason))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("reason must not be empty"),
				 errhint("Say why the event may be given up; outbox.operator_log keeps it.")));
	PG_RETURN_BOOL(change_delivery(fcinfo, &update_to_discarded, "discard", reason));
}

/* ---------------------------------------------------------------- drain */

static void
check_subscriptions(Datum subscriptions)
{
	bool		isnull;
	Datum		name;

	if (array_contains_nulls(DatumGetArrayTypeP(subscriptions)))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("subscriptions must not contain nulls")));
	if (outbox_store_run(&select_unknown, &subscriptions, NULL, 1) == 0)
		return;
	name = outbox_store_value(0, 1, &isnull);
	outbox_operator_report_unknown(TextDatumGetCString(name));
}

static void
keep_datum(Drain *drain, Datum *place, Datum value)
{
	MemoryContext caller = MemoryContextSwitchTo(drain->context);

	*place = PointerGetDatum(PG_DETOAST_DATUM_COPY(value));
	MemoryContextSwitchTo(caller);
}

static void
begin_drain(FunctionCallInfo fcinfo, Drain *drain)
{
	OutboxSession session;

	memset(drain, 0, sizeof(*drain));
	drain->context = AllocSetContextCreate(PortalContext, "outbox drain", ALLOCSET_SMALL_SIZES);
	drain->deadline = GetCurrentTimestamp() + outbox_procedure_get_timeout(fcinfo, 1);
	drain->called_at = outbox_settings_now();
	if (!PG_ARGISNULL(0))
		keep_datum(drain, &drain->subscriptions, PG_GETARG_DATUM(0));
	PushActiveSnapshot(GetLatestSnapshot());
	keep_datum(drain, &drain->committed, OidFunctionCall0(F_PG_CURRENT_SNAPSHOT));
	PopActiveSnapshot();

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	outbox_session_enter(&session);
	if (!PG_ARGISNULL(0))
		check_subscriptions(drain->subscriptions);
	outbox_session_leave(&session);
	/* what follows must see at least what the snapshot above sees */
	SPI_commit();
	SPI_finish();
}

/* SPI's rows of text as one string, in the drain's context; NULL when there are none. */
static char *
collect_reasons(Drain *drain)
{
	StringInfoData reasons;

	if (SPI_processed == 0)
		return NULL;
	initStringInfo(&reasons);
	for (uint64 row = 0; row < SPI_processed; row++)
		appendStringInfo(&reasons, "%s%s", row > 0 ? "; " : "",
						 SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, 1));
	return MemoryContextStrdup(drain->context, reasons.data);
}

static char *
look_at_routing(Drain *drain)
{
	OutboxIncarnation incarnation;
	Datum		values[4] = {drain->committed, TimestampTzGetDatum(drain->called_at), drain->subscriptions};
	char	   *reasons;
	bool		isnull;

	outbox_procedure_refuse_held(&incarnation);
	values[3] = Int32GetDatum(incarnation.incarnation);
	(void) outbox_store_run(&select_unrouted, values, drain->subscriptions == 0 ? "  n " : NULL, 0);
	reasons = collect_reasons(drain);
	if (reasons != NULL)
		return reasons;

	drain->routed = true;
	(void) outbox_store_run(&select_ends, &drain->subscriptions, drain->subscriptions == 0 ? "n" : NULL, 0);
	for (int i = 0; i < lengthof(drain->ends); i++)
	{
		Datum		ends = outbox_store_value(0, i + 1, &isnull);

		if (!isnull)
			keep_datum(drain, &drain->ends[i], ends);
	}
	return NULL;
}

static char *
look_at_deliveries(Drain *drain)
{
	if (drain->ends[0] == 0)
		return NULL;
	(void) outbox_store_run(&select_unsettled, drain->ends, NULL, 0);
	return collect_reasons(drain);
}

/* What is left to do, or NULL; in a transaction of its own. */
static char *
look_at_work(Drain *drain)
{
	OutboxSession session;
	char	   *reasons = NULL;

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	outbox_session_enter(&session);
	if (!drain->routed)
		reasons = look_at_routing(drain);
	if (drain->routed)
		reasons = look_at_deliveries(drain);
	outbox_session_leave(&session);
	SPI_commit();
	SPI_finish();
	return reasons;
}

static void
check_deadline(Drain *drain, const char *reasons)
{
	if (GetCurrentTimestamp() >= drain->deadline)
		ereport(ERROR,
				(errcode(ERRCODE_OUTBOX_DRAIN_TIMEOUT),
				 errmsg("timeout before everything was settled"),
				 errdetail("%s.", reasons),
				 outbox_dispatch ?
				 errhint("The view outbox.subscription_status shows where the deliveries are.") :
				 errhint("\"outbox.dispatch\" is off.")));
}

/* In a transaction that has done nothing yet: no snapshot is held meanwhile. */
static void
wait_a_moment(long ms)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

Datum
outbox_drain(PG_FUNCTION_ARGS)
{
	Drain		drain;
	long		step = 1;

	outbox_rights_require_operator(GetUserId());
	outbox_procedure_require_autocommit(fcinfo, "outbox.drain()");
	begin_drain(fcinfo, &drain);
	for (;;)
	{
		char	   *reasons = look_at_work(&drain);

		if (reasons == NULL)
			break;
		check_deadline(&drain, reasons);
		pfree(reasons);
		wait_a_moment(step);
		step = Min(step * 2, DRAIN_STEP_MS);
	}
	MemoryContextDelete(drain.context);
	PG_RETURN_VOID();
}

/* ---------------------------------------------------------------- activate */

Datum
outbox_activate(PG_FUNCTION_ARGS)
{
	Oid			caller = GetUserId();
	OutboxSession session;
	bool		changed;

	outbox_rights_require_operator(caller);
	SPI_connect();
	outbox_session_enter(&session);
	outbox_grants_refresh(true);
	outbox_run_as_refresh();
	changed = outbox_routing_activate();
	if (changed)
	{
		outbox_operator_record(caller, "activate", NULL, NULL, NULL);
		outbox_wakeup_router();
		outbox_wakeup_workers();
	}
	outbox_session_leave(&session);
	SPI_finish();
	PG_RETURN_BOOL(changed);
}

/* ---------------------------------------------------------------- for the views */

Datum
outbox_clock(PG_FUNCTION_ARGS)
{
	PG_RETURN_TIMESTAMPTZ(outbox_settings_now());
}

Datum
outbox_is_held(PG_FUNCTION_ARGS)
{
	OutboxIncarnation incarnation;

	outbox_extension_incarnation(&incarnation);
	PG_RETURN_BOOL(incarnation.held);
}
