/*
 * api_publish.c - outbox.publish() and outbox.publish_batch().
 *
 * An event is a row in the segment that its id falls into, written in the
 * caller's transaction by direct table access: no plan, no rights needed on
 * the table, nothing that another publisher would wait for.  After the commit
 * the router is woken.
 *
 * The transaction id is taken before the segment is looked up: sealing a
 * segment rests on that order (segment.c).
 */
#include "outbox.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/xid8.h"

#include "dedup.h"
#include "event_id.h"
#include "extension.h"
#include "guard.h"
#include "segment.h"
#include "settings.h"
#include "shmem.h"
#include "store.h"
#include "wakeup.h"

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

/* publish_batch(): the table that is being written */
typedef struct BatchTarget
{
	OutboxSegment segment;
	OutboxWriter *writer;		/* NULL: none yet */
} BatchTarget;

static void read_batch(Batch *batch, Jsonb *events);
static void check_batch(Batch *batch);
static void insert_batch(Batch *batch);

/* ---------------------------------------------------------------- ids */

/*
 * Before the first id that a server start gives out for a database, the clock learns of the highest
 * one in its log.  Whoever comes before that is done, does it too.
 */
static void
merge_highest_id(void)
{
	static bool merged_here = false;
	OutboxDatabase *database;
	pg_uuid_t	highest;

	if (merged_here)
		return;
	database = outbox_shmem_my_database();
	if (database == NULL)
		database = outbox_shmem_ensure_database(MyDatabaseId);
	if (database == NULL || !database->ids_merged)
	{
		if (outbox_segment_highest_id(&highest))
			outbox_shmem_merge_id_time(outbox_event_id_time_of(&highest));
		if (database != NULL)
			database->ids_merged = true;
	}
	merged_here = true;
}

static uint64
random_bits(void)
{
	static uint64 bits[64];
	static int	left = 0;

	if (left == 0)
	{
		if (!pg_strong_random(bits, sizeof(bits)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
		left = lengthof(bits);
	}
	return bits[--left];
}

/* ---------------------------------------------------------------- one row */

/* The columns that depend on the moment, and on the transaction. */
static void
complete_draft(OutboxDraft *draft, pg_uuid_t *id, TimestampTz now)
{
	OutboxIncarnation incarnation;

	outbox_extension_incarnation(&incarnation);
	draft->values[EV_EVENT_ID] = UUIDPGetDatum(id);
	draft->nulls[EV_EVENT_ID] = false;
	draft->values[EV_PUBLISHED_AT] = TimestampTzGetDatum(now);
	draft->nulls[EV_PUBLISHED_AT] = false;
	if (draft->nulls[EV_OCCURRED_AT])
		draft->values[EV_OCCURRED_AT] = TimestampTzGetDatum(now);
	draft->nulls[EV_OCCURRED_AT] = false;
	draft->values[EV_XID] = FullTransactionIdGetDatum(GetTopFullTransactionId());
	draft->nulls[EV_XID] = false;
	draft->values[EV_INCARNATION] = Int32GetDatum(incarnation.incarnation);
	draft->nulls[EV_INCARNATION] = false;
}

/*
 * True when the event is to be written; false when an earlier one has its dedup key, whose id is then in *id.
 */
static bool
claim_dedup_key(const OutboxDraft *draft, pg_uuid_t *id, TimestampTz now)
{
	OutboxDedupClaim claim;
	bool		first;

	if (draft->nulls[EV_DEDUP_KEY])
		return true;
	claim.tenant_id = draft->nulls[EV_TENANT_ID] ? CStringGetTextDatum("") : draft->values[EV_TENANT_ID];
	claim.event_type = draft->values[EV_EVENT_TYPE];
	claim.dedup_key = draft->values[EV_DEDUP_KEY];
	claim.published_at = now;
	claim.event_id = *id;
	outbox_guard_hash_payload(draft->values[EV_PAYLOAD], &claim.payload_hash);
	first = outbox_dedup_claim(&claim);
	*id = claim.event_id;
	return first;
}

static void
insert_index_entry(Relation rel, HeapTuple tuple, Oid indexid, Datum value, bool unique)
{
	Relation	index = index_open(indexid, RowExclusiveLock);
	bool		isnull = false;

	(void) index_insert(index, &value, &isnull, &tuple->t_self, rel,
						unique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO, false, BuildIndexInfo(index));
	index_close(index, NoLock);
}

/* Has the segment the two indexes that it was made with, and no other? */
static bool
has_plain_indexes(Relation rel, const OutboxSegment *segment)
{
	List	   *indexes = RelationGetIndexList(rel);
	bool		plain = list_length(indexes) == 2 &&
	list_member_oid(indexes, segment->event_log_pk) && list_member_oid(indexes, segment->event_log_xid);

	list_free(indexes);
	return plain;
}

static void
insert_event(OutboxDraft *draft, const pg_uuid_t *id)
{
	OutboxSegment segment;
	Relation	rel = outbox_segment_open_for_write(id, &segment);

	if (has_plain_indexes(rel, &segment))
	{
		HeapTuple	tuple = heap_form_tuple(RelationGetDescr(rel), draft->values, draft->nulls);

		heap_insert(rel, tuple, GetCurrentCommandId(true), 0, NULL);
		insert_index_entry(rel, tuple, segment.event_log_pk, draft->values[EV_EVENT_ID], true);
		insert_index_entry(rel, tuple, segment.event_log_xid, draft->values[EV_XID], false);
		heap_freetuple(tuple);
	}
	else
	{
		OutboxWriter *writer = outbox_store_open_writer(segment.event_log);

		outbox_store_put(writer, draft->values, draft->nulls);
		outbox_store_close_writer(writer);
	}
	table_close(rel, NoLock);
}

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
	TimestampTz now;
	pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));

	refuse_without_write("outbox.publish()");
	clear_draft(&draft);
	for (int i = 0; i < lengthof(arguments); i++)
	{
		draft.values[arguments[i]] = PG_GETARG_DATUM(i);
		draft.nulls[arguments[i]] = PG_ARGISNULL(i);
	}
	outbox_guard_check(&draft);

	merge_highest_id();
	now = outbox_settings_now();
	(void) GetTopFullTransactionId();
	outbox_event_id_make(outbox_shmem_next_id_time(1), random_bits(), id);
	if (!claim_dedup_key(&draft, id, now))
		PG_RETURN_UUID_P(id);
	complete_draft(&draft, id, now);
	insert_event(&draft, id);
	outbox_wakeup_router();
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
	insert_batch(&batch);
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
		outbox_guard_check(&batch->drafts[i]);
	}
}

/* ---------------------------------------------------------------- writing a batch */

static void
close_target(BatchTarget *target)
{
	if (target->writer != NULL)
		outbox_store_close_writer(target->writer);
	target->writer = NULL;
}

/* The segment of an id; almost always the one at hand. */
static void
aim_at(BatchTarget *target, const pg_uuid_t *id)
{
	if (target->writer != NULL && outbox_event_id_compare(id, &target->segment.to) < 0)
		return;
	close_target(target);
	table_close(outbox_segment_open_for_write(id, &target->segment), NoLock);
	target->writer = outbox_store_open_writer(target->segment.event_log);
}

static void
insert_batch(Batch *batch)
{
	BatchTarget target = {0};
	OutboxIdTime time;
	TimestampTz now;

	if (batch->count == 0)
		return;
	merge_highest_id();
	now = outbox_settings_now();
	(void) GetTopFullTransactionId();
	time = outbox_shmem_next_id_time(batch->count);
	for (int i = 0; i < batch->count; i++)
	{
		OutboxDraft *draft = &batch->drafts[i];
		pg_uuid_t  *id = &batch->ids[i];

		CHECK_FOR_INTERRUPTS();
		batch->current = i + 1;
		outbox_event_id_make(time + i, random_bits(), id);
		if (!claim_dedup_key(draft, id, now))
			continue;
		complete_draft(draft, id, now);
		aim_at(&target, id);
		outbox_store_put(target.writer, draft->values, draft->nulls);
	}
	close_target(&target);
	outbox_wakeup_router();
}
