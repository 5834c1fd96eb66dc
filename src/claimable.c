/*
 * claimable.c - is there something to claim, and in which lanes?
 *
 * What a claim looks at before it takes anything, and what outbox.wait() waits for: entries beyond a lane's
 * cursor, retries that are due, keys that are open again, and whether a lease holds the lane.
 */
#include "outbox.h"

#include "access/tableam.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "claim_lease.h"
#include "claimable.h"
#include "exception.h"
#include "extension.h"
#include "outage.h"
#include "passage.h"
#include "settle.h"

/* ---------------------------------------------------------------- the subscription */

bool
outbox_claimable_has_row(const char *relname, const char *index, int32 subscription_id, int32 lane)
{
	OutboxScan	scan;
	bool		found;

	outbox_store_begin_scan(&scan, outbox_extension_relid(relname), outbox_extension_relid(index), SnapshotSelf,
							lane < 0 ? 1 : 2);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, Int32GetDatum(subscription_id));
	if (lane >= 0)
		outbox_store_set_key(&scan, 1, BTEqualStrategyNumber, Int32GetDatum(lane));
	outbox_store_rescan(&scan);
	found = outbox_store_next(&scan, true);
	outbox_store_end_scan(&scan);
	return found;
}

/* The lanes of the oldest generation: those of one have their base in common. */
static void
read_lanes(OutboxClaimView *view)
{
	OutboxScan	scan;
	bool		isnull;
	int64		oldest = PG_INT64_MAX;
	int			room = view->s->lanes;

	view->lanes = palloc(room * sizeof(OutboxClaimLane));
	outbox_store_begin_scan(&scan, outbox_extension_relid("lane"), outbox_extension_relid("lane_pkey"), SnapshotSelf, 1);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, Int32GetDatum(view->s->id));
	outbox_store_rescan(&scan);
	while (outbox_store_next(&scan, true))
	{
		OutboxClaimLane lane = {.tid = scan.slot->tts_tid};

		lane.lane = DatumGetInt32(slot_getattr(scan.slot, 2, &isnull));
		lane.base = DatumGetInt64(slot_getattr(scan.slot, 3, &isnull));
		if (lane.base > oldest)
			continue;
		if (lane.base < oldest)
			view->nlanes = 0;
		oldest = lane.base;
		if (view->nlanes == room)
			view->lanes = repalloc(view->lanes, (room *= 2) * sizeof(OutboxClaimLane));
		view->lanes[view->nlanes++] = lane;
	}
	outbox_store_end_scan(&scan);
}

void
outbox_claimable_view(OutboxClaimView *view, const OutboxSubscription *s, TimestampTz now)
{
	memset(view, 0, sizeof(*view));
	view->s = s;
	view->now = now;
	read_lanes(view);
	view->any_retry = outbox_claimable_has_row("delivery_exception", "delivery_exception_live_due", s->id, -1);
	view->any_replay = outbox_claimable_has_row("delivery_exception", "delivery_exception_replay_due", s->id, -1);
	view->any_ended = outbox_claimable_has_row("delivery_exception", "delivery_exception_ended", s->id, -1);
	view->any_open_gate = outbox_claimable_has_row("gate", "gate_open", s->id, -1);
}

/* ---------------------------------------------------------------- a lane */

static void
begin_lane(OutboxScan *scan, Snapshot snapshot, const OutboxClaimView *view, const OutboxClaimLane *lane,
		   const char *relname, const char *index, int nkeys)
{
	outbox_store_begin_scan(scan, outbox_extension_relid(relname), outbox_extension_relid(index), snapshot, nkeys);
	outbox_store_set_key(scan, 0, BTEqualStrategyNumber, Int32GetDatum(view->s->id));
	outbox_store_set_key(scan, 1, BTEqualStrategyNumber, Int32GetDatum(lane->lane));
}

void
outbox_claimable_begin_lane(OutboxScan *scan, const OutboxClaimView *view, const OutboxClaimLane *lane,
							const char *relname, const char *index, int nkeys)
{
	begin_lane(scan, SnapshotSelf, view, lane, relname, index, nkeys);
}

int64
outbox_claimable_cursor(const OutboxClaimView *view, const OutboxClaimLane *lane)
{
	OutboxScan	scan;
	bool		isnull;
	int64		position = lane->base;

	outbox_claimable_begin_lane(&scan, view, lane, "lane_cursor", "lane_cursor_pkey", 2);
	outbox_store_rescan(&scan);
	if (outbox_store_next(&scan, false))
		position = DatumGetInt64(slot_getattr(scan.slot, 3, &isnull));
	outbox_store_end_scan(&scan);
	return position;
}

static void
seek_entries(const OutboxClaimView *view, OutboxClaimLane *lane)
{
	if (!lane->open)
	{
		InitDirtySnapshot(lane->dirty);
		begin_lane(&lane->entries, &lane->dirty, view, lane, "lane_entry", "lane_entry_pkey", 3);
		lane->open = true;
	}
	outbox_store_set_key(&lane->entries, 2, BTGreaterStrategyNumber, Int64GetDatum(lane->cursor));
	outbox_store_rescan(&lane->entries);
	lane->entries_from = lane->cursor;
	lane->at_hand = outbox_claimable_next_entry(lane);
}

bool
outbox_claimable_first_entry(const OutboxClaimView *view, OutboxClaimLane *lane)
{
	if (!lane->open || !lane->at_hand || lane->entries_from != lane->cursor)
		seek_entries(view, lane);
	return lane->at_hand;
}

bool
outbox_claimable_next_entry(OutboxClaimLane *lane)
{
	lane->at_hand = false;
	return outbox_store_next(&lane->entries, true) && !TransactionIdIsValid(lane->dirty.xmin);
}

void
outbox_claimable_close_entries(OutboxClaimLane *lane)
{
	if (lane->open)
		outbox_store_end_scan(&lane->entries);
	lane->open = lane->at_hand = false;
}

/* Other than at open gates.  busy: see outbox_exception_has_due(). */
static bool
has_direct_work(const OutboxClaimView *view, OutboxClaimLane *lane, bool *busy)
{
	lane->cursor = lane->reached = outbox_claimable_cursor(view, lane);
	return outbox_claimable_first_entry(view, lane) ||
		(view->any_retry && outbox_exception_has_due(view->s, lane->lane, false, view->now, busy)) ||
		(view->any_replay && outbox_exception_has_due(view->s, lane->lane, true, view->now, busy)) ||
		(view->any_ended && outbox_claimable_has_row("delivery_exception", "delivery_exception_ended", view->s->id, lane->lane));
}

bool
outbox_claimable_has_work(const OutboxClaimView *view, OutboxClaimLane *lane)
{
	return has_direct_work(view, lane, NULL) ||
		(view->any_open_gate && outbox_claimable_has_row("gate", "gate_open", view->s->id, lane->lane));
}

bool
outbox_claimable_is_free(const OutboxClaimView *view, const OutboxClaimLane *lane, int64 *newest, TimestampTz *expires_at)
{
	*newest = 0;
	if (!outbox_subscription_orders(view->s, lane->lane))
		return true;
	*newest = outbox_claim_lease_of_lane(view->s->id, lane->lane);
	return *newest == 0 || !outbox_claim_lease_is_open(*newest, expires_at);
}

/* ---------------------------------------------------------------- what wait() asks */

static bool
is_parked_beyond(int64 gate_id, int64 through)
{
	OutboxScan	scan;
	bool		found;

	outbox_store_begin_scan(&scan, outbox_extension_relid("parked"), outbox_extension_relid("parked_pkey"), SnapshotSelf, 2);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, Int64GetDatum(gate_id));
	outbox_store_set_key(&scan, 1, BTGreaterStrategyNumber, Int64GetDatum(through));
	outbox_store_rescan(&scan);
	found = outbox_store_next(&scan, true);
	outbox_store_end_scan(&scan);
	return found;
}

/* Behind an open gate?  One with nothing left may be there for a while, and is no work. */
static bool
has_parked(const OutboxClaimView *view, const OutboxClaimLane *lane)
{
	OutboxScan	scan;
	bool		isnull;
	bool		found = false;

	outbox_claimable_begin_lane(&scan, view, lane, "gate", "gate_open", 2);
	outbox_store_rescan(&scan);
	while (!found && outbox_store_next(&scan, true))
		found = is_parked_beyond(DatumGetInt64(slot_getattr(scan.slot, 1, &isnull)),
								 DatumGetInt64(slot_getattr(scan.slot, 7, &isnull)));
	outbox_store_end_scan(&scan);
	return found;
}

/* When the first of the lane's retries is due, if that is before *next_due. */
static void
note_due(const OutboxClaimView *view, const OutboxClaimLane *lane, const char *index, TimestampTz *next_due)
{
	OutboxScan	scan;
	bool		isnull;

	outbox_claimable_begin_lane(&scan, view, lane, "delivery_exception", index, 3);
	outbox_store_set_key(&scan, 2, BTGreaterStrategyNumber, TimestampTzGetDatum(view->now));
	outbox_store_rescan(&scan);
	if (outbox_store_next(&scan, true))
		*next_due = Min(*next_due, DatumGetTimestampTz(slot_getattr(scan.slot, EX_NEXT_ATTEMPT_AT + 1, &isnull)));
	outbox_store_end_scan(&scan);
}

/* A claim passes over a lane whose row is locked: by another one that is open, say. */
static bool
is_held(const OutboxClaimLane *lane)
{
	Relation	rel = outbox_store_open(outbox_extension_relid("lane"), AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	ItemPointerData tid = lane->tid;
	bool		held = table_tuple_fetch_row_version(rel, &tid, SnapshotSelf, slot) && outbox_store_is_held(slot);

	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, NoLock);
	return held;
}

/* Is there something in the lane, or when may there be? */
static bool
look_at_lane(const OutboxClaimView *view, OutboxClaimLane *lane, OutboxClaimLook *look)
{
	int64		newest;
	TimestampTz expires_at;
	bool		work;

	if (!outbox_claimable_is_free(view, lane, &newest, &expires_at))
	{
		if (expires_at <= view->now)
			look->expired = true;
		else
			look->next_due = Min(look->next_due, expires_at);
		return false;
	}
	work = has_direct_work(view, lane, &look->busy);
	outbox_claimable_close_entries(lane);
	if (work || (view->any_open_gate && has_parked(view, lane)))
	{
		if (!is_held(lane))
			return true;
		look->busy = true;
	}
	if (view->any_retry)
		note_due(view, lane, "delivery_exception_live_due", &look->next_due);
	if (view->any_replay)
		note_due(view, lane, "delivery_exception_replay_due", &look->next_due);
	return false;
}

bool
outbox_claimable_look(const OutboxSubscription *subscription, TimestampTz now, OutboxClaimLook *look)
{
	OutboxClaimView view;
	OutboxOutage outage;

	if (subscription->paused)
		return false;
	outbox_outage_read(subscription, &outage);
	if (outbox_outage_holds(&outage, now))
	{
		look->next_due = Min(look->next_due, outage.until);
		return false;
	}
	if (outage.busy)
	{
		look->busy = true;
		return false;
	}
	outbox_claimable_view(&view, subscription, now);
	for (int i = 0; i < view.nlanes; i++)
	{
		if (!look_at_lane(&view, &view.lanes[i], look))
			continue;
		if (outbox_passage_is_open(subscription->id))
			return true;
		/* somebody wants all lanes: a claim finds it closed */
		look->busy = true;
		return false;
	}
	return false;
}
