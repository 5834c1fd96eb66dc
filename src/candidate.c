/*
 * candidate.c - find the events between two snapshots.
 *
 * By xid: what the earlier snapshot does not see was written by transactions from its xmax on,
 * or by those that were running then; both are ranges of the index on xid, so that a tick
 * costs what is new, whatever lies in the log.  A long stop may leave very many: the
 * oldest are remembered, and the rest is found the next time.
 */
#include "outbox.h"

#include "access/tableam.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "candidate.h"
#include "event_id.h"
#include "shmem.h"
#include "store.h"

static int
compare_candidates(const void *a, const void *b)
{
	return outbox_event_id_compare(&((const OutboxCandidate *) a)->id, &((const OutboxCandidate *) b)->id);
}

static void
sort_candidates(OutboxCandidateList *list)
{
	qsort(list->items, list->count, sizeof(OutboxCandidate), compare_candidates);
	if (list->count > OUTBOX_CANDIDATES_MAX)
	{
		list->count = OUTBOX_CANDIDATES_MAX;
		list->truncated = true;
	}
}

static void
add_candidate(OutboxCandidateList *list, const pg_uuid_t *id, ItemPointer tid, int segment)
{
	if (list->truncated && outbox_event_id_compare(id, &list->items[OUTBOX_CANDIDATES_MAX - 1].id) > 0)
		return;
	if (list->count == list->room)
	{
		if (list->room == 2 * OUTBOX_CANDIDATES_MAX)
			sort_candidates(list);
		else
		{
			list->room = Min(Max(1024, list->room * 4), 2 * OUTBOX_CANDIDATES_MAX);
			list->items = list->items == NULL ?
				palloc(list->room * sizeof(OutboxCandidate)) :
				repalloc(list->items, list->room * sizeof(OutboxCandidate));
		}
	}
	list->items[list->count].id = *id;
	list->items[list->count].tid = *tid;
	list->items[list->count].segment = segment;
	list->count++;
}

/* Is the row in the slot one of the range?  Of an earlier incarnation only if asked for. */
static bool
row_in_range(TupleTableSlot *slot, const OutboxCandidateRange *range, bool old_rows_too, pg_uuid_t *id)
{
	bool		isnull;
	uint64		xid = U64FromFullTransactionId(DatumGetFullTransactionId(slot_getattr(slot, EV_XID + 1, &isnull)));
	int			row_incarnation = DatumGetInt32(slot_getattr(slot, EV_INCARNATION + 1, &isnull));

	*id = *DatumGetUUIDP(slot_getattr(slot, EV_EVENT_ID + 1, &isnull));
	if (range->through != NULL && outbox_event_id_compare(id, range->through) <= 0)
		return false;
	if (row_incarnation != range->incarnation)
		return old_rows_too && row_incarnation < range->incarnation;
	return !outbox_snapshot_sees(range->seen, xid) && outbox_snapshot_sees(range->target, xid);
}

/* The rows of one segment that seen does not see: by xid, from its xmax on and those running then. */
static void
collect_by_xid(OutboxCandidateList *list, int segment, const OutboxCandidateRange *range)
{
	OutboxSegment *s = &list->segments[segment];
	OutboxScan	scan;
	pg_uuid_t	id;

	outbox_store_begin_scan(&scan, s->event_log, s->event_log_xid, GetActiveSnapshot(), 1);
	for (int i = -1; i < range->seen->nxip; i++)
	{
		uint64		xid = i < 0 ? range->seen->xmax : range->seen->xip[i];

		outbox_store_set_key(&scan, 0, i < 0 ? BTGreaterEqualStrategyNumber : BTEqualStrategyNumber,
							 FullTransactionIdGetDatum(FullTransactionIdFromU64(xid)));
		outbox_store_rescan(&scan);
		while (outbox_store_next(&scan, true))
		{
			CHECK_FOR_INTERRUPTS();
			if (row_in_range(scan.slot, range, false, &id))
				add_candidate(list, &id, &scan.slot->tts_tid, segment);
		}
	}
	outbox_store_end_scan(&scan);
}

/* The next OUTBOX_CANDIDATES_MAX rows of one segment in event_id order, from *from on. */
static void
collect_by_id(OutboxCandidateList *list, int segment, const OutboxCandidateRange *range, const pg_uuid_t *from)
{
	OutboxSegment *s = &list->segments[segment];
	OutboxScan	scan;
	pg_uuid_t	id;

	outbox_store_begin_scan(&scan, s->event_log, s->event_log_pk, GetActiveSnapshot(), 1);
	outbox_store_set_key(&scan, 0, BTGreaterEqualStrategyNumber, UUIDPGetDatum(from));
	outbox_store_rescan(&scan);
	while (!list->truncated && outbox_store_next(&scan, true))
	{
		CHECK_FOR_INTERRUPTS();
		if (!row_in_range(scan.slot, range, true, &id))
			continue;
		if (list->count == OUTBOX_CANDIDATES_MAX)
			list->truncated = true;
		else
			add_candidate(list, &id, &scan.slot->tts_tid, segment);
	}
	outbox_store_end_scan(&scan);
}

/*
 * Ids are issued up to the clock of event ids, which starts at zero with the server: rows beyond all that it has
 * shown since are from before, when it was ahead, and whether a segment has such does not change.
 */
static bool
has_old_rows(Oid event_log)
{
	static HTAB *known = NULL;
	Relation	rel;
	bool		found;
	struct
	{
		Oid			event_log;
		bool		has_rows;
	}		   *entry;

	if (known == NULL)
	{
		HASHCTL		ctl = {.keysize = sizeof(Oid), .entrysize = sizeof(*entry), .hcxt = TopMemoryContext};

		known = hash_create("outbox segments beyond the clock", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	entry = hash_search(known, &event_log, HASH_FIND, &found);
	if (!found)
	{
		rel = outbox_store_open(event_log, AccessShareLock);
		entry = hash_search(known, &event_log, HASH_ENTER, &found);
		entry->has_rows = RelationGetNumberOfBlocks(rel) > 0;
		table_close(rel, NoLock);
	}
	return entry->has_rows;
}

static bool
segment_may_hold_rows(const OutboxSegment *segment)
{
	return outbox_event_id_time_of(&segment->from) <= outbox_shmem_highest_id_time() ||
		has_old_rows(segment->event_log);
}

/*
 * The segments are read after the target snapshot was taken: one that a
 * publisher has just made is there when its events are.
 */
void
outbox_candidate_collect(OutboxCandidateList *list, const OutboxCandidateRange *range)
{
	memset(list, 0, sizeof(*list));
	outbox_segment_refresh();
	list->nsegments = outbox_segment_list(true, &list->segments);
	for (int i = 0; i < list->nsegments; i++)
	{
		if (segment_may_hold_rows(&list->segments[i]))
			collect_by_xid(list, i, range);
	}
	sort_candidates(list);
}

/* For a subscription with start_at: everything in the log from that time on. */
void
outbox_candidate_collect_history(OutboxCandidateList *list, const OutboxCandidateRange *range, TimestampTz start_at)
{
	pg_uuid_t	from;

	memset(list, 0, sizeof(*list));
	memset(&from, 0, sizeof(from));
	if (range->through != NULL)
		from = *range->through;
	else if (!TIMESTAMP_IS_NOBEGIN(start_at))
		outbox_event_id_floor(outbox_event_id_time_from(start_at - USECS_PER_HOUR), &from);
	outbox_segment_refresh();
	list->nsegments = outbox_segment_list(false, &list->segments);
	for (int i = 0; i < list->nsegments && !list->truncated; i++)
	{
		if (outbox_event_id_compare(&list->segments[i].to, &from) > 0 && outbox_segment_hold(&list->segments[i]) &&
			segment_may_hold_rows(&list->segments[i]))
			collect_by_id(list, i, range, &from);
	}
}

/* Where a candidate stands now: by its place, or by its id when the table was rewritten meanwhile. */
bool
outbox_candidate_fetch(const OutboxSegment *segment, Relation rel, const OutboxCandidate *candidate,
					   TupleTableSlot *slot)
{
	ItemPointerData tid = candidate->tid;
	bool		isnull;
	OutboxScan	scan;
	bool		found;

	if (table_tuple_fetch_row_version(rel, &tid, GetActiveSnapshot(), slot) &&
		outbox_event_id_compare(DatumGetUUIDP(slot_getattr(slot, EV_EVENT_ID + 1, &isnull)), &candidate->id) == 0)
		return true;
	outbox_store_begin_scan(&scan, segment->event_log, segment->event_log_pk, GetActiveSnapshot(), 1);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, UUIDPGetDatum(&candidate->id));
	outbox_store_rescan(&scan);
	found = outbox_store_next(&scan, true);
	if (found)
		ExecCopySlot(slot, scan.slot);
	outbox_store_end_scan(&scan);
	return found;
}
