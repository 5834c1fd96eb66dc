/*
 * api_claim.c - outbox.claim() and the calls that settle what it handed out,
 * for workers outside of the server.
 *
 * Arguments are checked here; then one call down.  None of it runs SQL: a
 * call costs the same whatever the caller's settings, and is right in whatever transaction it stands.
 */
#include "outbox.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "backoff.h"
#include "claim.h"
#include "claim_lease.h"
#include "claim_settle.h"
#include "extension.h"
#include "operator.h"
#include "pattern.h"
#include "rights.h"
#include "settings.h"
#include "tenant.h"

#define DELAY_MAX		(INT64CONST(30) * USECS_PER_DAY)
#define CODE_NOT_GIVEN	"failed"

PG_FUNCTION_INFO_V1(outbox_claim);
PG_FUNCTION_INFO_V1(outbox_ack);
PG_FUNCTION_INFO_V1(outbox_ack_all);
PG_FUNCTION_INFO_V1(outbox_ack_one);
PG_FUNCTION_INFO_V1(outbox_fail);
PG_FUNCTION_INFO_V1(outbox_extend);
PG_FUNCTION_INFO_V1(outbox_release);
PG_FUNCTION_INFO_V1(outbox_release_all);
PG_FUNCTION_INFO_V1(outbox_lease_events);

/* ---------------------------------------------------------------- arguments */

static void
check_can_write(const char *function)
{
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
	PreventCommandDuringRecovery(function);
}

OUTBOX_NORETURN static void
report_out_of_range(const char *name, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s is out of range", name),
			 errhint("%s", hint)));
}

/* A lease's length in us; `standard` when the argument is null. */
static int64
get_duration(FunctionCallInfo fcinfo, int n, int64 standard)
{
	int64		duration;

	if (PG_ARGISNULL(n))
		return standard;
	duration = outbox_backoff_interval_us(PG_GETARG_INTERVAL_P(n));
	if (duration <= 0 || duration > OUTBOX_CLAIM_DURATION_MAX)
		report_out_of_range("lease_duration", "It must be more than 0 and at most 1 day.");
	return duration;
}

/* A delay in us, cut to 30 days. */
static int64
get_delay(FunctionCallInfo fcinfo, int n, const char *name)
{
	int64		delay = outbox_backoff_interval_us(PG_GETARG_INTERVAL_P(n));

	if (delay < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be negative", name)));
	if (delay == OUTBOX_BACKOFF_INTERVAL_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be finite", name)));
	return Min(delay, DELAY_MAX);
}

static const pg_uuid_t *
get_uuid(FunctionCallInfo fcinfo, int n, const char *name)
{
	return DatumGetUUIDP(outbox_operator_get_required(fcinfo, n, name));
}

/* A short text, or 0 for null. */
static Datum
get_short_text(FunctionCallInfo fcinfo, int n, const char *name, int most)
{
	text	   *value;

	if (PG_ARGISNULL(n))
		return (Datum) 0;
	value = PG_GETARG_TEXT_PP(n);
	if (VARSIZE_ANY_EXHDR(value) > most)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is too long", name),
				 errhint("It may have at most %d bytes.", most)));
	return PointerGetDatum(value);
}

/* ---------------------------------------------------------------- claim */

static int
get_max_events(FunctionCallInfo fcinfo)
{
	int			most = DatumGetInt32(outbox_operator_get_required(fcinfo, 1, "max_events"));

	if (most <= 0 || most > OUTBOX_CLAIM_EVENTS_MAX)
		report_out_of_range("max_events", "It must be between 1 and 1000.");
	return most;
}

static void
check_claimable(const OutboxSubscription *s)
{
	OutboxIncarnation incarnation;

	if (s->handler != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" has a handler", s->name),
				 errhint("Its events are delivered by the server; only subscriptions without a handler can be claimed from.")));
	outbox_extension_incarnation(&incarnation);
	if (incarnation.held)
		ereport(ERROR,
				(errcode(ERRCODE_OUTBOX_HELD),
				 errmsg("routing and delivery are held in this database"),
				 errdetail("It was restored or copied from another server."),
				 errhint("Call outbox.activate() when this database shall deliver events.")));
}

/* What the token's lease still holds is completed; returns how many. */
static int
acknowledge_all(const pg_uuid_t *token)
{
	OutboxClaimSettle settle;

	outbox_claim_settle_open(&settle, token, false, GetUserId());
	outbox_claim_settle_mark_all(&settle);
	return outbox_claim_settle_complete(&settle, (Datum) 0);
}

Datum
outbox_claim(PG_FUNCTION_ARGS)
{
	char	   *name = outbox_operator_get_subscription(fcinfo, 0);
	int			most = get_max_events(fcinfo);
	Datum		worker = get_short_text(fcinfo, 3, "worker", OUTBOX_CONTEXT_MAX);
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxSubscription *s;
	int64		duration;

	check_can_write("outbox.claim()");
	duration = get_duration(fcinfo, 2, 0);
	s = outbox_subscription_find(0, name);
	if (s == NULL)
		outbox_operator_report_unknown(name);
	outbox_rights_require_worker(GetUserId(), s->id, s->name);
	check_claimable(s);
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	if (result->setDesc->natts != OUTBOX_CLAIMED_COLUMNS)
		elog(ERROR, "outbox.claimed_event has other columns than expected");
	if (!PG_ARGISNULL(4))
		(void) acknowledge_all(PG_GETARG_UUID_P(4));
	if (!s->paused)
		outbox_claim_run(s, most, duration > 0 ? duration : s->lease_duration, worker, result->setResult, result->setDesc);
	return (Datum) 0;
}

/* ---------------------------------------------------------------- completing */

/* Mark the ids of an array argument; those that are not held any more raise OB001 unless they may be. */
static void
mark_array(FunctionCallInfo fcinfo, OutboxClaimSettle *settle, ArrayType *ids, bool returned_too)
{
	Datum	   *elements;
	int			n;

	deconstruct_array(ids, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR, &elements, NULL, &n);
	for (int i = 0; i < n; i++)
	{
		pg_uuid_t  *id = DatumGetUUIDP(elements[i]);

		if (outbox_claim_settle_mark(settle, id) == CLAIM_RETURNED && !returned_too)
			outbox_claim_settle_report_not_held(id, CLAIM_RETURNED);
	}
}

static ArrayType *
get_event_ids(FunctionCallInfo fcinfo)
{
	ArrayType  *ids = DatumGetArrayTypeP(outbox_operator_get_required(fcinfo, 1, "event_ids"));

	if (array_contains_nulls(ids))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("event_ids must not contain nulls")));
	return ids;
}

Datum
outbox_ack(PG_FUNCTION_ARGS)
{
	const pg_uuid_t *token = get_uuid(fcinfo, 0, "lease_token");
	ArrayType  *ids = get_event_ids(fcinfo);
	OutboxClaimSettle settle;

	check_can_write("outbox.ack()");
	outbox_claim_settle_open(&settle, token, false, GetUserId());
	mark_array(fcinfo, &settle, ids, false);
	PG_RETURN_INT32(outbox_claim_settle_complete(&settle, (Datum) 0));
}

Datum
outbox_ack_all(PG_FUNCTION_ARGS)
{
	const pg_uuid_t *token = get_uuid(fcinfo, 0, "lease_token");

	check_can_write("outbox.ack_all()");
	PG_RETURN_INT32(acknowledge_all(token));
}

Datum
outbox_ack_one(PG_FUNCTION_ARGS)
{
	const pg_uuid_t *token = get_uuid(fcinfo, 0, "lease_token");
	const pg_uuid_t *event_id = get_uuid(fcinfo, 1, "event_id");
	Datum		message_id = get_short_text(fcinfo, 2, "message_id", OUTBOX_ID_MAX);
	OutboxClaimSettle settle;

	check_can_write("outbox.ack_one()");
	outbox_claim_settle_open(&settle, token, false, GetUserId());
	if (outbox_claim_settle_mark(&settle, event_id) == CLAIM_RETURNED)
		outbox_claim_settle_report_not_held(event_id, CLAIM_RETURNED);
	PG_RETURN_BOOL(outbox_claim_settle_complete(&settle, message_id) > 0);
}

/* ---------------------------------------------------------------- failing */

static void
take_code(FunctionCallInfo fcinfo, OutboxFailure *failure)
{
	text	   *code;
	const char *reason;

	if (PG_ARGISNULL(2))
	{
		strlcpy(failure->code, CODE_NOT_GIVEN, sizeof(failure->code));
		return;
	}
	code = PG_GETARG_TEXT_PP(2);
	reason = outbox_pattern_check_error_code(VARDATA_ANY(code), VARSIZE_ANY_EXHDR(code));
	if (reason != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid error code"),
				 errdetail("%s", reason),
				 errhint(OUTBOX_CODE_HINT)));
	text_to_cstring_buffer(code, failure->code, sizeof(failure->code));
	if (outbox_pattern_is_sqlstate(failure->code, strlen(failure->code)))	/* then rules for its class apply too */
		strlcpy(failure->sqlstate, failure->code, sizeof(failure->sqlstate));
}

static void
get_failure(FunctionCallInfo fcinfo, OutboxFailure *failure)
{
	bool		permanent = DatumGetBool(outbox_operator_get_required(fcinfo, 3, "permanent"));

	memset(failure, 0, sizeof(*failure));
	take_code(fcinfo, failure);
	if (permanent && !PG_ARGISNULL(4))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("retry_after is given for a failure that is permanent")));
	if (permanent)
		failure->asked = ASKED_FAIL_PERMANENTLY;
	if (!PG_ARGISNULL(4))
	{
		failure->asked = ASKED_RETRY_AFTER;
		failure->count_attempt = true;
		failure->delay = get_delay(fcinfo, 4, "retry_after");
	}
	if (!PG_ARGISNULL(5))
	{
		text	   *message = PG_GETARG_TEXT_PP(5);

		failure->message = outbox_kept_error_message(VARDATA_ANY(message), VARSIZE_ANY_EXHDR(message));
	}
}

Datum
outbox_fail(PG_FUNCTION_ARGS)
{
	const pg_uuid_t *token = get_uuid(fcinfo, 0, "lease_token");
	const pg_uuid_t *event_id = get_uuid(fcinfo, 1, "event_id");
	OutboxFailure failure;
	OutboxClaimSettle settle;

	check_can_write("outbox.fail()");
	get_failure(fcinfo, &failure);
	outbox_claim_settle_open(&settle, token, true, GetUserId());
	(void) outbox_claim_settle_mark(&settle, event_id);
	PG_RETURN_TEXT_P(cstring_to_text(outbox_claim_settle_fail(&settle, &failure)));
}

/* ---------------------------------------------------------------- keeping and giving back */

Datum
outbox_extend(PG_FUNCTION_ARGS)
{
	const pg_uuid_t *token = get_uuid(fcinfo, 0, "lease_token");
	OutboxClaimSettle settle;
	int64		duration;

	check_can_write("outbox.extend()");
	duration = get_duration(fcinfo, 1, 0);
	outbox_claim_settle_open(&settle, token, true, GetUserId());
	if (settle.lease.held == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OUTBOX_LEASE_LOST),
				 errmsg("the lease has ended"),
				 errdetail("All of its events are settled.")));
	if (duration == 0)
		duration = settle.subscription->lease_duration;
	if (settle.now + duration > settle.lease.expires_at)
		outbox_claim_lease_extend(&settle.lease, settle.now + duration);
	PG_RETURN_TIMESTAMPTZ(settle.lease.expires_at);
}

Datum
outbox_release(PG_FUNCTION_ARGS)
{
	const pg_uuid_t *token = get_uuid(fcinfo, 0, "lease_token");
	ArrayType  *ids = get_event_ids(fcinfo);
	int64		delay = PG_ARGISNULL(2) ? 0 : get_delay(fcinfo, 2, "delay");
	OutboxClaimSettle settle;

	check_can_write("outbox.release()");
	outbox_claim_settle_open(&settle, token, true, GetUserId());
	mark_array(fcinfo, &settle, ids, true);
	PG_RETURN_INT32(outbox_claim_settle_release(&settle, delay));
}

Datum
outbox_release_all(PG_FUNCTION_ARGS)
{
	const pg_uuid_t *token = get_uuid(fcinfo, 0, "lease_token");
	OutboxClaimSettle settle;

	check_can_write("outbox.release_all()");
	outbox_claim_settle_open(&settle, token, true, GetUserId());
	outbox_claim_settle_mark_all(&settle);
	PG_RETURN_INT32(outbox_claim_settle_release(&settle, 0));
}

/* ---------------------------------------------------------------- for the views */

static bool
list_events(const OutboxClaimLease *lease, void *argument)
{
	ReturnSetInfo *result = argument;

	for (int i = 0; i < lease->count; i++)
	{
		const OutboxClaimedEvent *event = &lease->events[i];
		Datum		values[10] = {
			Int64GetDatum(lease->lease_id), Int32GetDatum(lease->subscription_id), UUIDPGetDatum(&event->event_id),
			Int32GetDatum(event->replay_no), Int32GetDatum(event->lane), Int64GetDatum(event->position),
			Int32GetDatum(event->attempts), BoolGetDatum(event->gate_id == OUTBOX_FROM_EXCEPTION),
			lease->worker, TimestampTzGetDatum(lease->expires_at)
		};
		bool		nulls[10] = {false, false, false, false, false, false, false, false, lease->worker == (Datum) 0, false};

		if (event->state == CLAIM_HELD && outbox_tenant_event_is_visible(&event->event_id))
			tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return true;
}

/*
 * outbox.lease_events(): what external workers are at.  Begins where all leases before have ended.
 */
Datum
outbox_lease_events(PG_FUNCTION_ARGS)
{
	OutboxDatabase *db = outbox_shmem_my_database();
	OutboxClaimWalk walk = {
		.from = db == NULL ? DT_NOBEGIN : outbox_shmem_swept(db), .until = DT_NOEND, .snapshot = GetActiveSnapshot(),
		.most = INT_MAX, .whole = true, .visit = list_events
	};

	InitMaterializedSRF(fcinfo, 0);
	walk.argument = fcinfo->resultinfo;
	outbox_claim_lease_walk(&walk);
	return (Datum) 0;
}
