/*
 * open_count.c - how much of each subscription is open, without reading it.
 *
 * Monitoring asks every few seconds, most of all when something is wrong: a million keys may be blocked then, and each has
 * a gate.  So the lanes are asked for their ends, and of what is parked only the first rows are looked at, by subscription:
 * the gates that nothing waits behind are not.  By direct index access: there is no plan that could be a bad one.
 */
#include "outbox.h"

#include "access/stratnum.h"
#include "miscadmin.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "claim_lease.h"
#include "event_id.h"
#include "exception.h"
#include "open_count.h"
#include "open_scan.h"
#include "shmem.h"

#define LOOKS_AT_GATES	2000	/* of a subscription, with what is parked behind them */

typedef struct Counts
{
	int			n;
	int			capacity;
	OutboxOpenCount *counts;
} Counts;

/* ---------------------------------------------------------------- lanes */

static void
count_lane(OutboxLaneScans *scans, OutboxOpenCount *count)
{
	bool		isnull;
	Datum		id = Int32GetDatum(count->subscription_id);
	Datum		lane = slot_getattr(scans->lanes.slot, 2, &isnull);
	int64		done = outbox_open_scan_last_position(&scans->cursors, id, lane, outbox_open_scan_int64(&scans->lanes, 3));
	int64		end = outbox_open_scan_last_position(&scans->ends, id, lane, 0);
	pg_uuid_t  *next;

	if (end <= done)
		return;
	count->waiting += end - done;
	outbox_open_scan_seek(&scans->entries, 0, BTEqualStrategyNumber, id);
	outbox_open_scan_seek(&scans->entries, 1, BTEqualStrategyNumber, lane);
	outbox_open_scan_seek(&scans->entries, 2, BTGreaterStrategyNumber, Int64GetDatum(done));
	if (!outbox_store_next(&scans->entries, true))
		return;
	next = DatumGetUUIDP(slot_getattr(scans->entries.slot, 4, &isnull));
	if (!count->has_next || outbox_event_id_compare(next, &count->next) < 0)
		count->next = *next;
	count->has_next = true;
}

static void
count_lanes(OutboxLaneScans *scans, OutboxOpenCount *count)
{
	outbox_open_scan_seek(&scans->lanes, 0, BTEqualStrategyNumber, Int32GetDatum(count->subscription_id));
	while (outbox_store_next(&scans->lanes, true))
		count_lane(scans, count);
}

/* ---------------------------------------------------------------- what is parked */

/* Up to `most` of its events behind `through`, which is behind its first row. */
static int64
count_behind(OutboxParkedScans *scans, const OutboxScannedGate *gate, int64 most)
{
	int64		n = 0;

	outbox_open_scan_seek(&scans->behind, 0, BTEqualStrategyNumber, Int64GetDatum(gate->gate_id));
	outbox_open_scan_seek(&scans->behind, 1, BTGreaterStrategyNumber, Int64GetDatum(gate->through));
	while (n < most && outbox_store_next(&scans->behind, true))
		n++;
	return n;
}

/*
 * Up to `most` events that wait behind the gate whose first row is at hand; then the next gate's first row is, if there is
 * *more.  Most gates have one or two rows, so they are read one after the other: a descent for each would read whole pages.
 */
static int64
count_gate(OutboxParkedScans *scans, const OutboxScannedGate *gate, int64 most, bool *more)
{
	OutboxScan *parked = &scans->parked;
	int64		n = 0;

	if (gate->found && outbox_open_scan_int64(parked, 2) > gate->through)
	{
		do
			n++;
		while ((*more = outbox_store_next(parked, true)) && n < most && outbox_open_scan_int64(parked, 1) == gate->gate_id);
		return n;
	}
	if (gate->found)
		n = count_behind(scans, gate, most);
	outbox_open_scan_seek(parked, 0, BTGreaterEqualStrategyNumber, Int64GetDatum(gate->gate_id + 1));
	*more = outbox_store_next(parked, true);
	return n;
}

static void
count_parked(OutboxParkedScans *scans, OutboxOpenCount *count)
{
	int64		end = outbox_exception_first_gate_id(count->subscription_id + 1);
	int64		left = OUTBOX_OPEN_COUNT_PARKED;
	bool		more;

	outbox_open_scan_seek(&scans->parked, 0, BTGreaterEqualStrategyNumber, Int64GetDatum(outbox_exception_first_gate_id(count->subscription_id)));
	more = outbox_store_next(&scans->parked, true);
	for (int looks = 0; more && looks < LOOKS_AT_GATES && left > 0; looks++)
	{
		int64		gate_id = outbox_open_scan_int64(&scans->parked, 1);
		OutboxScannedGate gate;
		int64		n;

		CHECK_FOR_INTERRUPTS();
		if (gate_id >= end)
			return;
		outbox_open_scan_gate(scans, gate_id, &gate);
		n = count_gate(scans, &gate, left, &more);
		left -= n;
		if (gate.open)
			count->ready += n;
		else
			count->blocked += n;
	}
}

/* ---------------------------------------------------------------- leases */

static bool
count_lease(const OutboxClaimLease *lease, void *argument)
{
	Counts	   *all = argument;

	for (int c = 0; c < all->n; c++)
	{
		if (all->counts[c].subscription_id != lease->subscription_id)
			continue;
		for (int i = 0; i < lease->count; i++)
			all->counts[c].leased += lease->events[i].state == CLAIM_HELD && lease->events[i].gate_id != OUTBOX_FROM_EXCEPTION;
		break;
	}
	return true;
}

static void
count_leases(Counts *all, Snapshot snapshot)
{
	OutboxDatabase *db = outbox_shmem_my_database();
	OutboxClaimWalk walk = {
		.from = db == NULL ? DT_NOBEGIN : outbox_shmem_swept(db), .until = DT_NOEND, .snapshot = snapshot,
		.most = INT_MAX, .whole = true, .visit = count_lease, .argument = all
	};

	outbox_claim_lease_walk(&walk);
}

/* ---------------------------------------------------------------- all of it */

static void
list_subscriptions(Counts *all, Snapshot snapshot)
{
	OutboxScan	scan;
	bool		isnull;

	outbox_open_scan_begin(&scan, "subscription", "subscription_pkey", snapshot, 1);
	outbox_open_scan_seek(&scan, 0, BTGreaterStrategyNumber, Int32GetDatum(0));
	while (outbox_store_next(&scan, true))
	{
		if (all->n == all->capacity)
		{
			all->capacity = Max(16, all->capacity * 2);
			all->counts = all->counts == NULL ? palloc(all->capacity * sizeof(OutboxOpenCount)) :
				repalloc(all->counts, all->capacity * sizeof(OutboxOpenCount));
		}
		all->counts[all->n++] = (OutboxOpenCount)
		{
			.subscription_id = DatumGetInt32(slot_getattr(scan.slot, 1, &isnull))
		};
	}
	outbox_store_end_scan(&scan);
}

int
outbox_open_count_read(Snapshot snapshot, OutboxOpenCount **counts)
{
	Counts		all = {0};
	OutboxLaneScans lanes;
	OutboxParkedScans parked;

	list_subscriptions(&all, snapshot);
	outbox_open_scan_begin_lanes(&lanes, snapshot);
	outbox_open_scan_begin_parked(&parked, snapshot);
	for (int i = 0; i < all.n; i++)
	{
		count_lanes(&lanes, &all.counts[i]);
		count_parked(&parked, &all.counts[i]);
	}
	outbox_open_scan_end_parked(&parked);
	outbox_open_scan_end_lanes(&lanes);
	count_leases(&all, snapshot);
	*counts = all.counts;
	return all.n;
}
