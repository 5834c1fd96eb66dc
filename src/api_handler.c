/*
 * api_handler.c - what a handler may say and ask: entry points.
 *
 * To fail for good, or to be tried again later, is an error like any other,
 * so that the handler's effects are rolled back; what was asked for counts
 * only when that very error leaves the handler.
 */
#include "outbox.h"

#include "access/htup_details.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "backoff.h"
#include "failure.h"
#include "handler.h"
#include "pattern.h"

PG_FUNCTION_INFO_V1(outbox_current_delivery);
PG_FUNCTION_INFO_V1(outbox_fail_permanently);
PG_FUNCTION_INFO_V1(outbox_retry_after);

static void
check_in_handler(const char *function)
{
	if (outbox_handler_current.subscription == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("outbox.%s() can only be called by a handler", function),
				 errhint("External workers use outbox.fail() and outbox.release().")));
}

static void
take_code(text *code)
{
	const char *reason = outbox_pattern_check_error_code(VARDATA_ANY(code), VARSIZE_ANY_EXHDR(code));

	if (reason != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid error code"),
				 errdetail("%s", reason),
				 errhint(OUTBOX_CODE_HINT)));
	text_to_cstring_buffer(code, outbox_handler_request.code, sizeof(outbox_handler_request.code));
}

Datum
outbox_current_delivery(PG_FUNCTION_ARGS)
{
	TupleDesc	descriptor;
	Datum		values[5];
	bool		nulls[5] = {false};

	if (outbox_handler_current.subscription == NULL)
		PG_RETURN_NULL();
	if (get_call_result_type(fcinfo, NULL, &descriptor) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	values[0] = CStringGetTextDatum(outbox_handler_current.subscription);
	values[1] = UUIDPGetDatum(&outbox_handler_current.event_id);
	values[2] = Int32GetDatum(outbox_handler_current.attempt);
	values[3] = Int32GetDatum(outbox_handler_current.max_attempts);
	values[4] = Int32GetDatum(outbox_handler_current.replay_no);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(descriptor), values, nulls)));
}

Datum
outbox_fail_permanently(PG_FUNCTION_ARGS)
{
	check_in_handler("fail_permanently");
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" must not be null", "error_code")));
	memset(&outbox_handler_request, 0, sizeof(outbox_handler_request));
	take_code(PG_GETARG_TEXT_PP(0));
	outbox_handler_request.sqlerrcode = ERRCODE_OUTBOX_FAIL_PERMANENTLY;
	ereport(ERROR,
			(errcode(ERRCODE_OUTBOX_FAIL_PERMANENTLY),
			 errmsg("handler gave the event up: %s", outbox_handler_request.code)));
	PG_RETURN_BOOL(false);
}

Datum
outbox_retry_after(PG_FUNCTION_ARGS)
{
	Interval   *delay;

	check_in_handler("retry_after");
	if (PG_ARGISNULL(0) || PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" must not be null", PG_ARGISNULL(0) ? "delay" : "count_attempt")));
	memset(&outbox_handler_request, 0, sizeof(outbox_handler_request));
	delay = PG_GETARG_INTERVAL_P(0);
	outbox_handler_request.delay = outbox_backoff_interval_us(delay);
	if (outbox_handler_request.delay < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" must not be negative", "delay")));
	if (outbox_handler_request.delay > OUTBOX_RETRY_AFTER_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" must not be longer than 30 days", "delay")));
	if (!PG_ARGISNULL(1))
		take_code(PG_GETARG_TEXT_PP(1));
	outbox_handler_request.count_attempt = PG_GETARG_BOOL(2);
	outbox_handler_request.sqlerrcode = ERRCODE_OUTBOX_RETRY_AFTER;
	ereport(ERROR,
			(errcode(ERRCODE_OUTBOX_RETRY_AFTER),
			 errmsg("handler asks to be called again later")));
	PG_RETURN_BOOL(false);
}
