/*
 * api_publish.c - outbox.publish() and outbox.publish_batch(): read the
 * arguments, have them checked (guard.c), have them written (event_log.c).
 */
#include "outbox.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"
#include "utils/tuplestore.h"

#include "admission.h"
#include "event_log.h"
#include "guard.h"

PG_FUNCTION_INFO_V1(outbox_publish);
PG_FUNCTION_INFO_V1(outbox_publish_batch);

/* the arguments of publish(), in order; the names that publish_batch() knows */
static const OutboxEventColumn arguments[] = {
	EV_EVENT_TYPE, EV_PAYLOAD, EV_AGGREGATE_TYPE, EV_AGGREGATE_ID, EV_EVENT_KEY, EV_TENANT_ID,
	EV_ACTOR_TYPE, EV_ACTOR_ID, EV_REQUEST_ID, EV_TRACE_ID, EV_CORRELATION_ID, EV_CAUSATION_ID,
	EV_SOURCE, EV_PAYLOAD_VERSION, EV_HEADERS, EV_OCCURRED_AT, EV_DELIVER_AT, EV_DEDUP_KEY
};

/* publish_batch(): the events of one call, and where its errors happened */
typedef struct Batch
{
	int			count;
	int			room;
	OutboxDraft *drafts;
	pg_uuid_t  *ids;
	int			current;		/* number of the event at hand, from 1; 0: none */
	const char *name;			/* of the value that is being read, or NULL */
} Batch;

static void read_batch(Batch *batch, Jsonb *events);
static void check_batch(Batch *batch);

/* ---------------------------------------------------------------- publish */

static void
refuse_without_write(const char *function)
{
	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
}

static void
clear_draft(OutboxDraft *draft)
{
	memset(draft->values, 0, sizeof(draft->values));
	memset(draft->nulls, true, sizeof(draft->nulls));
}

Datum
outbox_publish(PG_FUNCTION_ARGS)
{
	OutboxDraft draft;
	pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));

	refuse_without_write("outbox.publish()");
	clear_draft(&draft);
	for (int i = 0; i < lengthof(arguments); i++)
	{
		draft.values[arguments[i]] = PG_GETARG_DATUM(i);
		draft.nulls[arguments[i]] = PG_ARGISNULL(i);
	}
	outbox_admission_check(GetUserId(), &draft);
	(void) outbox_event_log_append(&draft, id);
	PG_RETURN_UUID_P(id);
}

/* ---------------------------------------------------------------- publish_batch */

static void
name_event(void *arg)
{
	Batch	   *batch = arg;

	if (batch->name != NULL)
		errcontext("%s of event %d of outbox.publish_batch()", batch->name, batch->current);
	else if (batch->current > 0)
		errcontext("event %d of outbox.publish_batch()", batch->current);
}

Datum
outbox_publish_batch(PG_FUNCTION_ARGS)
{
	Batch		batch = {0};
	ErrorContextCallback context;
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	refuse_without_write("outbox.publish_batch()");
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("events must not be null")));
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);

	context.callback = name_event;
	context.arg = &batch;
	context.previous = error_context_stack;
	error_context_stack = &context;
	read_batch(&batch, PG_GETARG_JSONB_P(0));
	check_batch(&batch);
	outbox_event_log_append_all(batch.count, batch.drafts, batch.ids, &batch.current);
	error_context_stack = context.previous;

	for (int i = 0; i < batch.count; i++)
	{
		Datum		value = UUIDPGetDatum(&batch.ids[i]);
		bool		isnull = false;

		tuplestore_putvalues(result->setResult, result->setDesc, &value, &isnull);
	}
	return (Datum) 0;
}

/* ---------------------------------------------------------------- reading a batch */

static OutboxEventColumn
find_argument(const JsonbValue *name)
{
	for (int i = 0; i < lengthof(arguments); i++)
	{
		const char *known = outbox_guard_column_name(arguments[i]);

		if ((int) strlen(known) == name->val.string.len &&
			memcmp(known, name->val.string.val, name->val.string.len) == 0)
			return arguments[i];
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("unknown name \"%s\" in an event", pnstrdup(name->val.string.val, name->val.string.len)),
			 errhint("The names are those of the arguments of outbox.publish().")));
	pg_unreachable();
}

static void
refuse_json_type(OutboxEventColumn column, const char *expected)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s must be %s", outbox_guard_column_name(column), expected)));
}

/* A JSON string, or a number in its place. */
static Datum
read_text_value(OutboxEventColumn column, const JsonbValue *value)
{
	if (value->type == jbvNumeric)
		return CStringGetTextDatum(DatumGetCString(DirectFunctionCall1(numeric_out,
																	   NumericGetDatum(value->val.numeric))));
	if (value->type != jbvString)
		refuse_json_type(column, "a string");
	return PointerGetDatum(cstring_to_text_with_len(value->val.string.val, value->val.string.len));
}

static Datum
read_value(OutboxEventColumn column, JsonbValue *value)
{
	char	   *string;

	switch (column)
	{
		case EV_PAYLOAD:
		case EV_HEADERS:
			return JsonbPGetDatum(JsonbValueToJsonb(value));
		case EV_CAUSATION_ID:
			if (value->type != jbvString)
				refuse_json_type(column, "a string that holds a UUID");
			string = pnstrdup(value->val.string.val, value->val.string.len);
			return DirectFunctionCall1(uuid_in, CStringGetDatum(string));
		case EV_OCCURRED_AT:
		case EV_DELIVER_AT:
			if (value->type != jbvString)
				refuse_json_type(column, "a string that holds a timestamp");
			string = pnstrdup(value->val.string.val, value->val.string.len);
			return DirectFunctionCall3(timestamptz_in, CStringGetDatum(string),
									   ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1));
		default:
			return read_text_value(column, value);
	}
}

/* The pairs of one object; the iterator stands behind its beginning. */
static void
read_event(Batch *batch, OutboxDraft *draft, JsonbIterator **it)
{
	static const char empty_object[] = "{}";
	JsonbIteratorToken token;
	JsonbValue	value;
	OutboxEventColumn column = EV_PAYLOAD;
	bool		has_payload = false;

	clear_draft(draft);
	while ((token = JsonbIteratorNext(it, &value, true)) != WJB_END_OBJECT)
	{
		if (token == WJB_KEY)
		{
			column = find_argument(&value);
			has_payload |= (column == EV_PAYLOAD);
		}
		else if (value.type != jbvNull)
		{
			batch->name = outbox_guard_column_name(column);
			draft->values[column] = read_value(column, &value);
			draft->nulls[column] = false;
			batch->name = NULL;
		}
	}
	if (!has_payload)
	{
		draft->values[EV_PAYLOAD] = DirectFunctionCall1(jsonb_in, CStringGetDatum(empty_object));
		draft->nulls[EV_PAYLOAD] = false;
	}
}

static void
read_batch(Batch *batch, Jsonb *events)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;

	if (!JB_ROOT_IS_ARRAY(events) || JB_ROOT_IS_SCALAR(events))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("events must be a JSON array of objects")));
	batch->room = Max(JB_ROOT_COUNT(events), 1);
	batch->drafts = palloc_extended(batch->room * sizeof(OutboxDraft), MCXT_ALLOC_HUGE);
	batch->ids = palloc_extended(batch->room * sizeof(pg_uuid_t), MCXT_ALLOC_HUGE);
	it = JsonbIteratorInit(&events->root);
	(void) JsonbIteratorNext(&it, &value, false);
	while ((token = JsonbIteratorNext(&it, &value, false)) != WJB_END_ARRAY)
	{
		batch->current = batch->count + 1;
		if (token != WJB_BEGIN_OBJECT)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("events must be a JSON array of objects")));
		read_event(batch, &batch->drafts[batch->count++], &it);
	}
}

static void
check_batch(Batch *batch)
{
	for (int i = 0; i < batch->count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		batch->current = i + 1;
		outbox_admission_check(GetUserId(), &batch->drafts[i]);
	}
}
