/*
 * api_replay.c - retry_all() and replay(): many deliveries at once, spread over time.
 *
 * Both only write rows of delivery_exception that workers and claims find when
 * they are due.  Rows come due one after the other, PACE_PER_SECOND of them a second,
 * so that neither the handlers nor what stands behind them meets all in one moment.  Each call is one
 * transaction, the caller's, with bounded memory however many there are.
 *
 * A replay stands outside of the key's live order: its row has no key and no
 * position, and its lane follows from the event's id.
 */
#include "outbox.h"

#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "batch.h"
#include "event_id.h"
#include "extension.h"
#include "operator.h"
#include "pattern.h"
#include "rights.h"
#include "segment.h"
#include "session.h"
#include "settings.h"
#include "store.h"
#include "wakeup.h"

#define PACE_PER_SECOND		400
#define PACE_US				(USECS_PER_SEC / PACE_PER_SECOND)
#define CHUNK				500 /* rows written by one statement */

PG_FUNCTION_INFO_V1(outbox_retry_all);
PG_FUNCTION_INFO_V1(outbox_replay_range);
PG_FUNCTION_INFO_V1(outbox_replay_ids);

/* one replay() at work */
typedef struct Replay
{
	const char *name;
	int32		subscription_id;
	int			npatterns;
	char	  **patterns;
	int32		first_lane;
	int32		lanes;
	TimestampTz now;
	int64		count;

	OutboxScan	exceptions;
	bool		receipts_open;
	OutboxSegment segment;		/* of the receipts that are open */
	OutboxScan	receipts;

	/* rows not written yet */
	MemoryContext chunk_context;
	int			chunk_count;
	Datum		ids[CHUNK];
	Datum		replay_nos[CHUNK];
	Datum		lane_numbers[CHUNK];
	Datum		due[CHUNK];
	Datum		tenants[CHUNK];
} Replay;

/*
 * The next ones in review, $5 at most and past the last one at hand, come due from $6 on.  By event
 * id, so that of one key the earlier one comes first; rows that somebody else has locked are left to them.
 */
static OutboxStatement retry_next = {
	"with chosen as materialized ("
	" select x.ctid as at, x.event_id, x.replay_no from outbox.delivery_exception x"
	" where x.subscription_id = $1 and x.status = 'REVIEW_REQUIRED' and (x.event_id, x.replay_no) > ($2, $3)"
	" and ($4 is null or x.error_code = $4)"
	" order by x.event_id, x.replay_no limit $5 for update skip locked),"
	" numbered as ("
	" select c.at, row_number() over (order by c.event_id, c.replay_no) - 1 as n from chosen c),"
	" changed as ("
	" update outbox.delivery_exception x set status = 'RETRY', attempts_before = x.attempts_before + x.attempts,"
	" attempts = 0, next_attempt_at = $6 + n.n * $7 * interval '1 microsecond'"
	" from numbered n where x.ctid = n.at"
	" returning x.event_id, x.replay_no)"
	" select count(*) over (), c.event_id, c.replay_no from changed c order by c.event_id desc, c.replay_no desc limit 1",
	7, {INT4OID, UUIDOID, INT2OID, TEXTOID, INT8OID, TIMESTAMPTZOID, INT8OID}
};

/* locked as for any change by hand: replay numbers are given, and lanes stay, until the end of the transaction */
static OutboxStatement lock_subscription = {
	"select subscription_id, event_types, first_lane, lanes from outbox.subscription where subscription = $1"
	" for no key update",
	1, {TEXTOID}
};

static OutboxStatement insert_replays = {
	"insert into outbox.delivery_exception (subscription_id, event_id, replay_no, lane, position, status, attempts,"
	" next_attempt_at, tenant_id)"
	" select $1, r.event_id, r.replay_no, r.lane, 0, 'RETRY', 0, r.due, r.tenant_id"
	" from rows from (pg_catalog.unnest($2), pg_catalog.unnest($3), pg_catalog.unnest($4), pg_catalog.unnest($5),"
	" pg_catalog.unnest($6)) as r (event_id, replay_no, lane, due, tenant_id)",
	6, {INT4OID, UUIDARRAYOID, INT2ARRAYOID, INT4ARRAYOID, TIMESTAMPTZARRAYOID, TEXTARRAYOID}
};

/* ---------------------------------------------------------------- retry_all */

static int64
get_max_events(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(2))
		return PG_INT32_MAX;
	if (PG_GETARG_INT32(2) <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_events must be positive")));
	return PG_GETARG_INT32(2);
}

/* In statements of CHUNK rows.  Returns how many. */
static int64
retry_in_review(int32 subscription_id, Datum error_code, bool any_code, int64 most)
{
	TimestampTz now = outbox_settings_now();
	pg_uuid_t	last = {{0}};
	Datum		values[7] = {Int32GetDatum(subscription_id), UUIDPGetDatum(&last), Int16GetDatum(-1), error_code};
	const char *nulls = any_code ? "   n   " : NULL;
	int64		count = 0;
	bool		isnull;

	values[6] = Int64GetDatum(PACE_US);
	while (count < most)
	{
		CHECK_FOR_INTERRUPTS();
		values[4] = Int64GetDatum(Min(CHUNK, most - count));
		values[5] = TimestampTzGetDatum(now + count * PACE_US);
		if (outbox_store_run(&retry_next, values, nulls, 0) == 0)
			break;
		count += DatumGetInt64(outbox_store_value(0, 1, &isnull));
		last = *DatumGetUUIDP(outbox_store_value(0, 2, &isnull));
		values[2] = outbox_store_value(0, 3, &isnull);
		SPI_freetuptable(SPI_tuptable);
	}
	return count;
}

Datum
outbox_retry_all(PG_FUNCTION_ARGS)
{
	Oid			caller = GetUserId();
	char	   *subscription = outbox_operator_get_subscription(fcinfo, 0);
	bool		any_code = PG_ARGISNULL(1);
	int64		most = get_max_events(fcinfo);
	Datum		error_code = any_code ? (Datum) 0 : PG_GETARG_DATUM(1);
	OutboxSession session;
	int64		count;

	outbox_rights_require_operator(caller);
	SPI_connect();
	outbox_session_enter(&session);
	count = retry_in_review(outbox_operator_find_subscription(subscription), error_code, any_code, most);
	if (count > 0)
	{
		outbox_operator_record_many(caller, "retry_all", subscription, count,
									any_code ? NULL : psprintf("error_code %s", TextDatumGetCString(error_code)));
		outbox_wakeup_workers();
	}
	outbox_session_leave(&session);
	SPI_finish();
	PG_RETURN_INT32((int32) count);
}

/* ---------------------------------------------------------------- replay: rows */

static Datum
make_array(Datum *elements, int count, Oid type, int length, bool by_value, char align)
{
	return PointerGetDatum(construct_array(elements, count, type, length, by_value, align));
}

static void
write_chunk(Replay *replay)
{
	MemoryContext caller = MemoryContextSwitchTo(replay->chunk_context);
	int			n = replay->chunk_count;
	Datum		values[6] = {
		Int32GetDatum(replay->subscription_id),
		make_array(replay->ids, n, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR),
		make_array(replay->replay_nos, n, INT2OID, sizeof(int16), true, TYPALIGN_SHORT),
		make_array(replay->lane_numbers, n, INT4OID, sizeof(int32), true, TYPALIGN_INT),
		make_array(replay->due, n, TIMESTAMPTZOID, sizeof(TimestampTz), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE),
		make_array(replay->tenants, n, TEXTOID, -1, false, TYPALIGN_INT)
	};

	if (n > 0)
		(void) outbox_store_run(&insert_replays, values, NULL, 0);
	replay->chunk_count = 0;
	MemoryContextSwitchTo(caller);
	MemoryContextReset(replay->chunk_context);
}

/* The last number in use, among rows with the equality keys that the scan has. */
static int
last_replay_no(OutboxScan *scan, int column)
{
	bool		isnull;

	outbox_store_rescan(scan);
	return outbox_store_next(scan, false) ? DatumGetInt16(slot_getattr(scan->slot, column, &isnull)) : 0;
}

static void
close_receipts(Replay *replay)
{
	if (replay->receipts_open)
		outbox_store_end_scan(&replay->receipts);
	replay->receipts_open = false;
}

static void
open_receipts(Replay *replay, const pg_uuid_t *id)
{
	if (replay->receipts_open && outbox_event_id_compare(id, &replay->segment.from) >= 0 &&
		outbox_event_id_compare(id, &replay->segment.to) < 0)
		return;
	close_receipts(replay);
	outbox_segment_find(id, &replay->segment);
	outbox_store_begin_scan(&replay->receipts, replay->segment.receipt_log, replay->segment.receipt_log_pk, SnapshotSelf, 2);
	outbox_store_set_key(&replay->receipts, 1, BTEqualStrategyNumber, Int32GetDatum(replay->subscription_id));
	replay->receipts_open = true;
}

/*
 * One more than any delivery of the event has, or has had.  The unfinished ones are looked at first:
 * one that completes meanwhile has its receipt by then.
 */
static int16
next_replay_no(Replay *replay, pg_uuid_t *id)
{
	int			last;

	outbox_store_set_key(&replay->exceptions, 1, BTEqualStrategyNumber, UUIDPGetDatum(id));
	last = last_replay_no(&replay->exceptions, 3);
	open_receipts(replay, id);
	outbox_store_set_key(&replay->receipts, 0, BTEqualStrategyNumber, UUIDPGetDatum(id));
	last = Max(last, last_replay_no(&replay->receipts, 4));
	if (last >= PG_INT16_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("event %s has been replayed too often",
						DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(id))))));
	return (int16) (last + 1);
}

/* A delayed event stays delayed. */
static TimestampTz
due_time(Replay *replay, TupleTableSlot *event)
{
	TimestampTz paced = replay->now + replay->count * PACE_US;
	bool		isnull;
	Datum		deliver_at = slot_getattr(event, EV_DELIVER_AT + 1, &isnull);

	return isnull ? paced : Max(paced, DatumGetTimestampTz(deliver_at));
}

static void
put_event(Replay *replay, TupleTableSlot *event)
{
	bool		isnull;
	int			n = replay->chunk_count;
	pg_uuid_t	id = *DatumGetUUIDP(slot_getattr(event, EV_EVENT_ID + 1, &isnull));
	uint64		hash = outbox_pattern_key_hash(NULL, 0, (const char *) id.data, UUID_LEN);
	Datum		tenant = slot_getattr(event, EV_TENANT_ID + 1, &isnull);
	MemoryContext caller;

	replay->replay_nos[n] = Int16GetDatum(next_replay_no(replay, &id));
	replay->lane_numbers[n] = Int32GetDatum(replay->first_lane + (int32) (hash % (uint64) replay->lanes));
	replay->due[n] = TimestampTzGetDatum(due_time(replay, event));
	caller = MemoryContextSwitchTo(replay->chunk_context);
	replay->ids[n] = datumCopy(UUIDPGetDatum(&id), false, UUID_LEN);
	replay->tenants[n] = isnull ? CStringGetTextDatum("") : PointerGetDatum(PG_DETOAST_DATUM_COPY(tenant));
	MemoryContextSwitchTo(caller);
	replay->count++;
	if (++replay->chunk_count == CHUNK)
		write_chunk(replay);
}

static bool
is_wanted_type(Replay *replay, TupleTableSlot *event)
{
	bool		isnull;
	text	   *type = DatumGetTextPP(slot_getattr(event, EV_EVENT_TYPE + 1, &isnull));

	for (int i = 0; i < replay->npatterns; i++)
	{
		if (outbox_pattern_matches(replay->patterns[i], strlen(replay->patterns[i]),
								   VARDATA_ANY(type), VARSIZE_ANY_EXHDR(type)))
			return true;
	}
	return false;
}

/* ---------------------------------------------------------------- replay: begin and end */

static void
begin_replay(Replay *replay, const char *name)
{
	Datum		arg = CStringGetTextDatum(name);
	Oid			exceptions = outbox_extension_relid("delivery_exception");
	Datum	   *patterns;
	bool		isnull;

	memset(replay, 0, sizeof(*replay));
	replay->name = name;
	replay->now = outbox_settings_now();
	if (outbox_store_run(&lock_subscription, &arg, NULL, 1) == 0)
		outbox_operator_report_unknown(name);
	replay->subscription_id = DatumGetInt32(outbox_store_value(0, 1, &isnull));
	deconstruct_array(DatumGetArrayTypeP(outbox_store_value(0, 2, &isnull)), TEXTOID, -1, false, TYPALIGN_INT,
					  &patterns, NULL, &replay->npatterns);
	replay->patterns = palloc(replay->npatterns * sizeof(char *));
	for (int i = 0; i < replay->npatterns; i++)
		replay->patterns[i] = TextDatumGetCString(patterns[i]);
	replay->first_lane = DatumGetInt32(outbox_store_value(0, 3, &isnull));
	replay->lanes = DatumGetInt32(outbox_store_value(0, 4, &isnull));
	replay->chunk_context = AllocSetContextCreate(CurrentMemoryContext, "outbox replay", ALLOCSET_DEFAULT_SIZES);
	/* not the caller's snapshot: numbers that others have given meanwhile count */
	outbox_store_begin_scan(&replay->exceptions, exceptions, outbox_store_primary_key(exceptions), SnapshotSelf, 2);
	outbox_store_set_key(&replay->exceptions, 0, BTEqualStrategyNumber, Int32GetDatum(replay->subscription_id));
}

static void
end_replay(Replay *replay, Oid caller, const char *detail)
{
	write_chunk(replay);
	close_receipts(replay);
	outbox_store_end_scan(&replay->exceptions);
	if (replay->count == 0)
		return;
	outbox_operator_record_many(caller, "replay", replay->name, replay->count, detail);
	outbox_wakeup_workers();
}

/* ---------------------------------------------------------------- replay by time */

static void
get_range(FunctionCallInfo fcinfo, TimestampTz *from, TimestampTz *to)
{
	*from = DatumGetTimestampTz(outbox_operator_get_required(fcinfo, 1, "from_time"));
	*to = PG_ARGISNULL(2) ? outbox_settings_now() : PG_GETARG_TIMESTAMPTZ(2);
	if (*from > *to)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 PG_ARGISNULL(2) ? errmsg("from_time must not be in the future") :
				 errmsg("from_time must not be after to_time")));
}

/* Ids may run up to an hour ahead of published_at: which ids to look at for a range of it. */
static void
find_id_bounds(TimestampTz from, TimestampTz to, pg_uuid_t *first, pg_uuid_t *end)
{
	memset(first, 0, sizeof(*first));
	memset(end, 0xff, sizeof(*end));
	if (!TIMESTAMP_IS_NOBEGIN(from))
		outbox_event_id_floor(outbox_event_id_time_from(from - USECS_PER_HOUR), first);
	if (!TIMESTAMP_IS_NOEND(to))
		outbox_event_id_floor(outbox_event_id_time_from(to + 2 * USECS_PER_HOUR), end);
}

static void
replay_segment(Replay *replay, const OutboxSegment *segment, const pg_uuid_t *first, TimestampTz from, TimestampTz to)
{
	OutboxScan	scan;
	bool		isnull;

	/* removed a moment ago, with all its events */
	if (!outbox_segment_hold(segment))
		return;
	outbox_store_begin_scan(&scan, segment->event_log, segment->event_log_pk, GetActiveSnapshot(), 1);
	outbox_store_set_key(&scan, 0, BTGreaterEqualStrategyNumber, UUIDPGetDatum(first));
	outbox_store_rescan(&scan);
	while (outbox_store_next(&scan, true))
	{
		TimestampTz published_at = DatumGetTimestampTz(slot_getattr(scan.slot, EV_PUBLISHED_AT + 1, &isnull));

		CHECK_FOR_INTERRUPTS();
		if (published_at >= from && (published_at < to || TIMESTAMP_IS_NOEND(to)) && is_wanted_type(replay, scan.slot))
			put_event(replay, scan.slot);
	}
	outbox_store_end_scan(&scan);
}

static void
replay_range(Replay *replay, TimestampTz from, TimestampTz to)
{
	pg_uuid_t	first;
	pg_uuid_t	end;
	OutboxSegment *segments;
	int			n;

	find_id_bounds(from, to, &first, &end);
	outbox_segment_refresh();
	n = outbox_segment_list(false, &segments);
	for (int i = 0; i < n; i++)
	{
		if (outbox_event_id_compare(&segments[i].to, &first) > 0 && outbox_event_id_compare(&segments[i].from, &end) < 0)
			replay_segment(replay, &segments[i], &first, from, to);
	}
}

static char *
describe_range(TimestampTz from, TimestampTz to)
{
	char	   *first = pstrdup(timestamptz_to_str(from));

	return psprintf("published_at from %s to before %s", first, timestamptz_to_str(to));
}

Datum
outbox_replay_range(PG_FUNCTION_ARGS)
{
	Oid			caller = GetUserId();
	char	   *name = outbox_operator_get_subscription(fcinfo, 0);
	Replay	   *replay = palloc(sizeof(Replay));
	TimestampTz from;
	TimestampTz to;
	OutboxSession session;

	get_range(fcinfo, &from, &to);
	outbox_rights_require_operator(caller);
	SPI_connect();
	outbox_session_enter(&session);
	begin_replay(replay, name);
	replay_range(replay, from, to);
	end_replay(replay, caller, describe_range(from, to));
	outbox_session_leave(&session);
	SPI_finish();
	PG_RETURN_INT64(replay->count);
}

/* ---------------------------------------------------------------- replay by ids */

static int
get_ids(FunctionCallInfo fcinfo, pg_uuid_t **ids)
{
	ArrayType  *array = DatumGetArrayTypeP(outbox_operator_get_required(fcinfo, 1, "event_ids"));
	Datum	   *elements;
	int			n;

	if (array_contains_nulls(array))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("event_ids must not contain nulls")));
	deconstruct_array(array, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR, &elements, NULL, &n);
	*ids = palloc(Max(1, n) * sizeof(pg_uuid_t));
	for (int i = 0; i < n; i++)
		(*ids)[i] = *DatumGetUUIDP(elements[i]);
	return n;
}

/* All of them are in the log, and of a type that the subscription receives; else the first one that is not is named. */
static void
check_events(Replay *replay, OutboxEventReader *reader, const pg_uuid_t *ids, int n)
{
	for (int i = 0; i < n; i++)
	{
		TupleTableSlot *event;
		bool		found = outbox_batch_read_event(reader, &ids[i], NULL, &event);
		char	   *id;

		CHECK_FOR_INTERRUPTS();
		if (found && is_wanted_type(replay, event))
			continue;
		id = DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&ids[i])));
		if (!found)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("event %s is not in the log", id),
					 errhint("It was never committed, or retention has removed it; nothing was replayed.")));
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("subscription \"%s\" does not receive the type of event %s", replay->name, id),
				 errhint("Its event_types do not match; nothing was replayed.")));
	}
}

static int
compare_ids(const void *a, const void *b)
{
	return outbox_event_id_compare(a, b);
}

/* In the order of event ids, each once. */
static void
replay_ids(Replay *replay, pg_uuid_t *ids, int n)
{
	OutboxEventReader *reader = outbox_batch_open_reader(NULL);
	TupleTableSlot *event;

	check_events(replay, reader, ids, n);
	qsort(ids, n, sizeof(pg_uuid_t), compare_ids);
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (i > 0 && outbox_event_id_compare(&ids[i], &ids[i - 1]) == 0)
			continue;
		if (outbox_batch_read_event(reader, &ids[i], NULL, &event))
			put_event(replay, event);
	}
	outbox_batch_close_reader(reader);
}

Datum
outbox_replay_ids(PG_FUNCTION_ARGS)
{
	Oid			caller = GetUserId();
	char	   *name = outbox_operator_get_subscription(fcinfo, 0);
	Replay	   *replay = palloc(sizeof(Replay));
	pg_uuid_t  *ids;
	int			n = get_ids(fcinfo, &ids);
	OutboxSession session;

	outbox_rights_require_operator(caller);
	SPI_connect();
	outbox_session_enter(&session);
	begin_replay(replay, name);
	replay_ids(replay, ids, n);
	end_replay(replay, caller, psprintf("%d ids", n));
	outbox_session_leave(&session);
	SPI_finish();
	PG_RETURN_INT64(replay->count);
}
