/*
 * report.c - what was published and completed in a time, read where it can lie and nowhere else.
 *
 * Event ids and batch ids carry a time, which is up to an hour ahead of the clock that published_at and completed_at
 * are of.  So events of a time lie in a range of ids, with a margin, and so do batches: one is at most as old, when it
 * completes, as the longest call of a handler.  The times themselves decide; only a clock that was
 * set while a batch ran, by more than the margin, hides that batch.
 *
 * What a batch has completed may be of any age.  It tells between which ids; these ranges, those that meet
 * taken together, are read from the receipts, and whatever else lies in them is passed over.
 */
#include "outbox.h"

#include "catalog/pg_operator_d.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplesort.h"
#include "utils/uuid.h"

#include "batch.h"
#include "event_id.h"
#include "extension.h"
#include "report.h"
#include "segment.h"
#include "store.h"

#define PARTS			OUTBOX_REPORT_PARTS
#define SORT_KB			256		/* memory for the delays of each part */
#define STEPS			10		/* from one event to the next one looked for, before it is sought by the index */
#define GAP				(UINT64CONST(10000) * 4096) /* between two ranges of ids that are read as one: 10 s */

/* columns of outbox.batch, from 1 */
#define BATCH_ID			1
#define BATCH_COMPLETED_AT	4
#define BATCH_FIRST_EVENT	8
#define BATCH_LAST_EVENT	9

/* columns of outbox.receipt_log, from 1 */
#define RECEIPT_EVENT_ID	1
#define RECEIPT_BATCH_ID	2

/* a batch of the time */
typedef struct Completed
{
	int64		batch_id;
	TimestampTz at;
} Completed;

/* from the first to the last of some events */
typedef struct Range
{
	pg_uuid_t	first;
	pg_uuid_t	last;
} Range;

typedef struct Report
{
	TimestampTz from;
	TimestampTz to;
	OutboxReportPart *parts;
	int64		change[PARTS + 1];	/* in what waits, at the begin of each part */
	Tuplesortstate *delays[PARTS];
	int64		ndelays[PARTS];

	int64		nbatches;
	int64		room;
	Completed  *batches;		/* by batch_id */
	Range	   *ranges;
	int64		nranges;
	int64		last_batch;		/* the one found last */

	OutboxScan	events_scan;
	OutboxScan *events;			/* of the segment whose receipts are read, or NULL: goes along with them */
	bool		at_event;		/* is it at a row? */
	OutboxEventReader *reader;	/* for those that are not there */
	pg_uuid_t	event_id;		/* the event looked up last, and when it was published */
	TimestampTz published_at;
} Report;

/* a look at each row of a range */
typedef void (*Visit) (Report *report, TupleTableSlot *slot);

/* ---------------------------------------------------------------- parts */

/* From 0; -1: before all of them; PARTS: after. */
static int
part_of(const Report *report, TimestampTz at)
{
	if (at < report->from)
		return -1;
	if (at >= report->to)
		return PARTS;
	return (int) ((at - report->from) * PARTS / (report->to - report->from));
}

static void
add_delivery(Report *report, TimestampTz published_at, TimestampTz completed_at)
{
	int			part = part_of(report, completed_at);
	int			published = part_of(report, published_at);

	if (report->delays[part] == NULL)
		report->delays[part] = tuplesort_begin_datum(FLOAT8OID, Float8LessOperator, InvalidOid, false, SORT_KB, NULL, TUPLESORT_RANDOMACCESS);
	tuplesort_putdatum(report->delays[part], Float8GetDatum((completed_at - published_at) / 1000.0), false);
	report->ndelays[part]++;
	report->parts[part].completed++;
	/* the clock may have been set back in between */
	if (published < part)
	{
		report->change[published + 1]++;
		report->change[part + 1]--;
	}
}

/* The percentile at `fraction` of n sorted values lies between two of them. */
static double
percentile(Tuplesortstate *sort, int64 n, double fraction)
{
	double		at = fraction * (n - 1);
	int64		below = (int64) at;
	bool		isnull;
	Datum		value;
	double		low;

	tuplesort_rescan(sort);
	if (!tuplesort_skiptuples(sort, below, true) || !outbox_compat_tuplesort_getdatum(sort, &value, &isnull))
		elog(ERROR, "could not read back what was sorted");
	low = DatumGetFloat8(value);
	if (below == n - 1)
		return low;
	if (!outbox_compat_tuplesort_getdatum(sort, &value, &isnull))
		elog(ERROR, "could not read back what was sorted");
	return low + (DatumGetFloat8(value) - low) * (at - below);
}

static void
finish_parts(Report *report)
{
	int64		waiting = 0;

	for (int i = 0; i < PARTS; i++)
	{
		OutboxReportPart *part = &report->parts[i];

		waiting += report->change[i];
		part->waiting = waiting;
		if (report->delays[i] == NULL)
			continue;
		tuplesort_performsort(report->delays[i]);
		part->p50_ms = percentile(report->delays[i], report->ndelays[i], 0.5);
		part->p95_ms = percentile(report->delays[i], report->ndelays[i], 0.95);
		tuplesort_end(report->delays[i]);
	}
}

/* ---------------------------------------------------------------- ranges of ids */

static void
visit_table(Report *report, Oid relid, Oid primary_key, Snapshot snapshot, const Range *range, Visit visit)
{
	OutboxScan	scan;
	bool		isnull;

	outbox_store_begin_scan(&scan, relid, primary_key, snapshot, 1);
	outbox_store_set_key(&scan, 0, BTGreaterEqualStrategyNumber, UUIDPGetDatum(&range->first));
	outbox_store_rescan(&scan);
	while (outbox_store_next(&scan, true))
	{
		CHECK_FOR_INTERRUPTS();
		/* in both tables the first column is the event's id */
		if (outbox_event_id_compare(DatumGetUUIDP(slot_getattr(scan.slot, 1, &isnull)), &range->last) > 0)
			break;
		visit(report, scan.slot);
	}
	outbox_store_end_scan(&scan);
}

/* Receipts are about to be read: the events beside them, unless these are gone; NULL: it is events that are. */
static void
begin_events(Report *report, const OutboxSegment *segment)
{
	if (segment == NULL || segment->kept)
		return;
	report->events = &report->events_scan;
	report->at_event = false;
	outbox_store_begin_scan(report->events, segment->event_log, segment->event_log_pk, GetActiveSnapshot(), 1);
}

static void
end_events(Report *report)
{
	if (report->events != NULL)
		outbox_store_end_scan(report->events);
	report->events = NULL;
}

/*
 * The events, or the receipts, of a range: segment by segment, and then what was kept of those that are gone.  That by what
 * is committed: it may have been moved there since the snapshot, but not since the segments were looked at, and so locked.
 */
static void
visit_range(Report *report, const char *parent, const Range *range, Visit visit)
{
	bool		events = strcmp(parent, "event_log") == 0;
	Oid			kept = outbox_extension_relid(psprintf("%s_kept", parent));
	OutboxSegment segment;
	Range		rest = *range;

	for (;;)
	{
		Oid			relid;

		outbox_segment_find(&rest.first, &segment);
		relid = events ? segment.event_log : segment.receipt_log;
		begin_events(report, events ? NULL : &segment);
		if (relid != kept)
			visit_table(report, relid, events ? segment.event_log_pk : segment.receipt_log_pk, GetActiveSnapshot(), &rest, visit);
		end_events(report);
		if (outbox_event_id_compare(&segment.to, &range->last) > 0)
			break;
		rest.first = segment.to;
	}
	visit_table(report, kept, outbox_store_primary_key(kept), SnapshotSelf, range, visit);
}

/* ---------------------------------------------------------------- published */

static void
visit_event(Report *report, TupleTableSlot *slot)
{
	bool		isnull;
	int			part = part_of(report, DatumGetTimestampTz(slot_getattr(slot, EV_PUBLISHED_AT + 1, &isnull)));

	if (part >= 0 && part < PARTS)
		report->parts[part].published++;
}

static void
read_published(Report *report)
{
	Range		range;

	outbox_event_id_floor(outbox_event_id_time_from(report->from - USECS_PER_HOUR), &range.first);
	outbox_event_id_floor(outbox_event_id_time_from(report->to + 2 * USECS_PER_HOUR), &range.last);
	visit_range(report, "event_log", &range, visit_event);
}

/* ---------------------------------------------------------------- completed */

static void
add_batch(Report *report, TupleTableSlot *slot)
{
	bool		isnull;
	Completed	batch;
	Range	   *range;

	batch.at = DatumGetTimestampTz(slot_getattr(slot, BATCH_COMPLETED_AT, &isnull));
	if (batch.at < report->from || batch.at >= report->to)
		return;
	if (report->nbatches == report->room)
	{
		report->room *= 2;
		report->batches = repalloc_huge(report->batches, report->room * sizeof(Completed));
		report->ranges = repalloc_huge(report->ranges, report->room * sizeof(Range));
	}
	batch.batch_id = DatumGetInt64(slot_getattr(slot, BATCH_ID, &isnull));
	range = &report->ranges[report->nbatches];
	range->first = *DatumGetUUIDP(slot_getattr(slot, BATCH_FIRST_EVENT, &isnull));
	range->last = *DatumGetUUIDP(slot_getattr(slot, BATCH_LAST_EVENT, &isnull));
	report->batches[report->nbatches++] = batch;
}

static void
read_batches(Report *report, int64 longest)
{
	Oid			relid = outbox_extension_relid("batch");
	OutboxIdTime end = outbox_event_id_time_from(report->to + 2 * USECS_PER_HOUR);
	OutboxScan	scan;
	bool		isnull;

	report->room = 1024;
	report->batches = palloc(report->room * sizeof(Completed));
	report->ranges = palloc(report->room * sizeof(Range));
	outbox_store_begin_scan(&scan, relid, outbox_store_primary_key(relid), GetActiveSnapshot(), 1);
	outbox_store_set_key(&scan, 0, BTGreaterEqualStrategyNumber,
						 Int64GetDatum((int64) outbox_event_id_time_from(report->from - USECS_PER_HOUR - longest)));
	outbox_store_rescan(&scan);
	while (outbox_store_next(&scan, true) && DatumGetInt64(slot_getattr(scan.slot, BATCH_ID, &isnull)) < (int64) end)
	{
		CHECK_FOR_INTERRUPTS();
		add_batch(report, scan.slot);
	}
	outbox_store_end_scan(&scan);
}

static int
compare_ranges(const void *a, const void *b)
{
	return outbox_event_id_compare(&((const Range *) a)->first, &((const Range *) b)->first);
}

/* Does one begin where another one ends, or soon after? */
static bool
meet(const Range *earlier, const Range *later)
{
	return outbox_event_id_time_of(&later->first) <= outbox_event_id_time_of(&earlier->last) + GAP;
}

/* Those that meet become one. */
static void
join_ranges(Report *report)
{
	Range	   *ranges = report->ranges;
	int64		n = 0;

	qsort(ranges, report->nbatches, sizeof(Range), compare_ranges);
	for (int64 i = 0; i < report->nbatches; i++)
	{
		if (n == 0 || !meet(&ranges[n - 1], &ranges[i]))
			ranges[n++] = ranges[i];
		else if (outbox_event_id_compare(&ranges[i].last, &ranges[n - 1].last) > 0)
			ranges[n - 1].last = ranges[i].last;
	}
	report->nranges = n;
}

/* When a batch of the time completed; false for one that is not of the time. */
static bool
find_batch(Report *report, int64 batch_id, TimestampTz *completed_at)
{
	int64		low = 0;
	int64		high = report->nbatches;

	if (report->batches[report->last_batch].batch_id != batch_id)
	{
		while (low < high)
		{
			int64		middle = (low + high) / 2;

			if (report->batches[middle].batch_id < batch_id)
				low = middle + 1;
			else
				high = middle;
		}
		if (low == report->nbatches || report->batches[low].batch_id != batch_id)
			return false;
		report->last_batch = low;
	}
	*completed_at = report->batches[report->last_batch].at;
	return true;
}

/* How the event at hand compares with the one looked for: below 0 when it comes before. */
static int
step_event(Report *report, const pg_uuid_t *id)
{
	bool		isnull;

	if (!outbox_store_next(report->events, true))
		return 1;
	return outbox_event_id_compare(DatumGetUUIDP(slot_getattr(report->events->slot, EV_EVENT_ID + 1, &isnull)), id);
}

/* Receipts come in the order of events: the next one is near, mostly. */
static bool
go_to_event(Report *report, const pg_uuid_t *id)
{
	int			order = -1;

	if (report->events == NULL)
		return false;
	for (int i = 0; report->at_event && order < 0 && i < STEPS; i++)
		order = step_event(report, id);
	if (order < 0)
	{
		outbox_store_set_key(report->events, 0, BTGreaterEqualStrategyNumber, UUIDPGetDatum(id));
		outbox_store_rescan(report->events);
		order = step_event(report, id);
	}
	/* past it, another one may be next */
	report->at_event = order == 0;
	return order == 0;
}

/* Receipts of an event lie side by side.  Of one that is gone, its id tells the time. */
static TimestampTz
find_published_at(Report *report, const pg_uuid_t *id)
{
	TupleTableSlot *slot;
	bool		isnull;
	bool		found = true;

	if (outbox_event_id_compare(id, &report->event_id) == 0)
		return report->published_at;
	report->event_id = *id;
	if (go_to_event(report, id))
		slot = report->events->slot;
	else
		found = outbox_batch_read_event(report->reader, id, NULL, &slot);
	report->published_at = found ? DatumGetTimestampTz(slot_getattr(slot, EV_PUBLISHED_AT + 1, &isnull)) :
		outbox_event_id_time_to(outbox_event_id_time_of(id));
	return report->published_at;
}

static void
visit_receipt(Report *report, TupleTableSlot *slot)
{
	bool		isnull;
	TimestampTz completed_at;

	if (find_batch(report, DatumGetInt64(slot_getattr(slot, RECEIPT_BATCH_ID, &isnull)), &completed_at))
		add_delivery(report, find_published_at(report, DatumGetUUIDP(slot_getattr(slot, RECEIPT_EVENT_ID, &isnull))), completed_at);
}

static void
read_completed(Report *report, int64 longest)
{
	read_batches(report, longest);
	join_ranges(report);
	report->reader = outbox_batch_open_reader(NULL);
	for (int64 i = 0; i < report->nranges; i++)
		visit_range(report, "receipt_log", &report->ranges[i], visit_receipt);
	outbox_batch_close_reader(report->reader);
}

void
outbox_report_read(TimestampTz from, TimestampTz to, int64 longest, OutboxReportPart *parts)
{
	Report	   *report = palloc0(sizeof(Report));

	report->from = from;
	report->to = to;
	report->parts = parts;
	memset(parts, 0, PARTS * sizeof(OutboxReportPart));
	outbox_segment_refresh();
	read_published(report);
	read_completed(report, longest);
	finish_parts(report);
}
