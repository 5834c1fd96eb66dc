/*
 * api_metrics.c - SQL functions behind outbox.metrics and its neighbours: copies of what is
 * counted in shared memory, and the trigger that counts deliveries by status.
 */
#include "outbox.h"

#include "access/stratnum.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/uuid.h"

#include "counters.h"
#include "event_log.h"
#include "exception_count.h"
#include "open_count.h"
#include "open_event.h"
#include "segment.h"
#include "store.h"
#include "tenant.h"

#define QUANTILES		3
#define COUNTER_COLUMNS (1 + OUTBOX_TOTALS + QUANTILES * OUTBOX_DURATIONS)

PG_FUNCTION_INFO_V1(outbox_counters);
PG_FUNCTION_INFO_V1(outbox_failure_counters);
PG_FUNCTION_INFO_V1(outbox_unmatched_types);
PG_FUNCTION_INFO_V1(outbox_open_counts);
PG_FUNCTION_INFO_V1(outbox_is_open);
PG_FUNCTION_INFO_V1(outbox_count_exceptions);
PG_FUNCTION_INFO_V1(outbox_published_at_of);
PG_FUNCTION_INFO_V1(outbox_oldest_since);

static void
put_quantiles(const uint64 *counts, Datum *values, bool *nulls)
{
	static const double fractions[QUANTILES] = {0.5, 0.95, 0.99};

	for (int i = 0; i < QUANTILES; i++)
	{
		double		us = outbox_histogram_quantile(counts, fractions[i]);

		nulls[i] = us < 0;
		values[i] = Float8GetDatum(us / 1000);
	}
}

/* outbox.counters(): one row a subscription; subscription 0 is the database */
Datum
outbox_counters(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxCounts *counts;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	n = outbox_counters_read(&counts);
	for (int i = 0; i < n; i++)
	{
		Datum		values[COUNTER_COLUMNS];
		bool		nulls[COUNTER_COLUMNS] = {false};
		int			column = 0;

		values[column++] = Int32GetDatum(counts[i].subscription_id);
		for (int total = 0; total < OUTBOX_TOTALS; total++)
			values[column++] = Int64GetDatum((int64) counts[i].totals[total]);
		for (int duration = 0; duration < OUTBOX_DURATIONS; duration++, column += QUANTILES)
			put_quantiles(counts[i].durations[duration], &values[column], &nulls[column]);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* outbox.failure_counters(): one row for each subscription and code */
Datum
outbox_failure_counters(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxCounts *counts;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	n = outbox_counters_read(&counts);
	for (int i = 0; i < n; i++)
	{
		for (int code = 0; code < counts[i].ncodes; code++)
		{
			Datum		values[3] = {
				Int32GetDatum(counts[i].subscription_id),
				CStringGetTextDatum(counts[i].codes[code]),
				Int64GetDatum((int64) counts[i].failures[code])
			};
			bool		nulls[3] = {false};

			tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
		}
	}
	return (Datum) 0;
}

/* outbox.unmatched_types() */
Datum
outbox_unmatched_types(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxUnmatched *types;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	n = outbox_counters_read_unmatched(&types);
	for (int i = 0; i < n; i++)
	{
		Datum		values[3] = {
			CStringGetTextDatum(types[i].event_type),
			Int64GetDatum((int64) types[i].events),
			TimestampTzGetDatum(types[i].last_seen_at)
		};
		bool		nulls[3] = {false};

		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* outbox.open_counts(): one row a subscription */
Datum
outbox_open_counts(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxOpenCount *counts;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	n = outbox_open_count_read(GetActiveSnapshot(), &counts);
	for (int i = 0; i < n; i++)
	{
		const OutboxOpenCount *c = &counts[i];
		Datum		values[6] = {
			Int32GetDatum(c->subscription_id), Int64GetDatum(c->waiting), UUIDPGetDatum(&c->next),
			Int64GetDatum(c->ready), Int64GetDatum(c->blocked), Int64GetDatum(c->leased)
		};
		bool		nulls[6] = {false, false, !c->has_next, false, false, false};

		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* outbox.is_open(uuid); of an event that the session may not see, null */
Datum
outbox_is_open(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *id = PG_GETARG_UUID_P(0);

	if (!outbox_tenant_event_is_visible(id))
		PG_RETURN_NULL();
	if (fcinfo->flinfo->fn_extra == NULL)
		fcinfo->flinfo->fn_extra = outbox_open_event_begin(fcinfo->flinfo->fn_mcxt);
	PG_RETURN_BOOL(outbox_open_event_has(fcinfo->flinfo->fn_extra, id, GetActiveSnapshot()));
}

/* the trigger of outbox.delivery_exception, after each row */
Datum
outbox_count_exceptions(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	HeapTuple	before = NULL;
	HeapTuple	after = NULL;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(trigger->tg_event) || !TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("outbox.count_exceptions() is a trigger function of outbox.delivery_exception")));
	if (TRIGGER_FIRED_BY_INSERT(trigger->tg_event))
		after = trigger->tg_trigtuple;
	else
		before = trigger->tg_trigtuple;
	if (TRIGGER_FIRED_BY_UPDATE(trigger->tg_event))
		after = trigger->tg_newtuple;
	outbox_exception_count_change(trigger->tg_relation, before, after);
	return PointerGetDatum(NULL);
}

/* When an event was published, or null; one probe of its segment. */
Datum
outbox_published_at_of(PG_FUNCTION_ARGS)
{
	Datum		at;

	if (!outbox_event_log_read(PG_GETARG_UUID_P(0), EV_PUBLISHED_AT, false, &at))
		PG_RETURN_NULL();
	PG_RETURN_DATUM(at);
}

/*
 * outbox.oldest_since(xid8): when the oldest event was published that a transaction from this one on
 * has written, or null.  A probe of each segment that is still written to.
 */
Datum
outbox_oldest_since(PG_FUNCTION_ARGS)
{
	OutboxSegment *segments;
	int			n = outbox_segment_list(true, &segments);
	TimestampTz oldest = DT_NOEND;

	for (int i = 0; i < n; i++)
	{
		OutboxScan	scan;
		bool		isnull;

		outbox_store_begin_scan(&scan, segments[i].event_log, segments[i].event_log_xid, GetActiveSnapshot(), 1);
		outbox_store_set_key(&scan, 0, BTGreaterEqualStrategyNumber, PG_GETARG_DATUM(0));
		outbox_store_rescan(&scan);
		if (outbox_store_next(&scan, true))
			oldest = Min(oldest, DatumGetTimestampTz(slot_getattr(scan.slot, EV_PUBLISHED_AT + 1, &isnull)));
		outbox_store_end_scan(&scan);
	}
	if (TIMESTAMP_IS_NOEND(oldest))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(oldest);
}
