/*
 * open_count.c - how much of each subscription is open, without reading it; and whether an event is.
 *
 * Monitoring asks every few seconds, most of all when something is wrong: a million keys may be blocked then, and each has
 * a gate.  So the lanes are asked for their ends, and of what is parked only the first rows are looked at, by subscription:
 * the gates that nothing waits behind are not.  By direct index access: there is no plan that could be a bad one.
 */
#include "outbox.h"

#include "access/stratnum.h"
#include "miscadmin.h"
#include "utils/hsearch.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "claim_lease.h"
#include "event_id.h"
#include "exception.h"
#include "extension.h"
#include "open_count.h"
#include "shmem.h"
#include "store.h"

#define LOOKS_AT_GATES	2000	/* of a subscription, with what is parked behind them */
#define SEARCHES		2		/* of all that is open for one event, before the rest is looked up in a table of it */

typedef struct Counts
{
	int			n;
	int			capacity;
	OutboxOpenCount *counts;
} Counts;

static void
begin_scan(OutboxScan *scan, const char *relname, const char *index, Snapshot snapshot, int nkeys)
{
	outbox_store_begin_scan(scan, outbox_extension_relid(relname), outbox_extension_relid(index), snapshot, nkeys);
}

static void
seek(OutboxScan *scan, int i, int strategy, Datum value)
{
	outbox_store_set_key(scan, i, strategy, value);
	if (i == scan->nkeys - 1)
		outbox_store_rescan(scan);
}

static int64
read_int64(OutboxScan *scan, int column)
{
	bool		isnull;

	return DatumGetInt64(slot_getattr(scan->slot, column, &isnull));
}

/* ---------------------------------------------------------------- lanes */

typedef struct LaneScans
{
	OutboxScan	lanes;
	OutboxScan	cursors;
	OutboxScan	ends;			/* of the entries */
	OutboxScan	entries;
} LaneScans;

static void
begin_lanes(LaneScans *scans, Snapshot snapshot)
{
	begin_scan(&scans->lanes, "lane", "lane_pkey", snapshot, 1);
	begin_scan(&scans->cursors, "lane_cursor", "lane_cursor_pkey", snapshot, 2);
	begin_scan(&scans->ends, "lane_entry", "lane_entry_pkey", snapshot, 2);
	begin_scan(&scans->entries, "lane_entry", "lane_entry_pkey", snapshot, 3);
}

static void
end_lanes(LaneScans *scans)
{
	outbox_store_end_scan(&scans->entries);
	outbox_store_end_scan(&scans->ends);
	outbox_store_end_scan(&scans->cursors);
	outbox_store_end_scan(&scans->lanes);
}

/* The last position of a lane, or `otherwise`. */
static int64
last_position(OutboxScan *scan, Datum subscription_id, Datum lane, int64 otherwise)
{
	seek(scan, 0, BTEqualStrategyNumber, subscription_id);
	seek(scan, 1, BTEqualStrategyNumber, lane);
	return outbox_store_next(scan, false) ? read_int64(scan, 3) : otherwise;
}

static void
count_lane(LaneScans *scans, OutboxOpenCount *count)
{
	bool		isnull;
	Datum		id = Int32GetDatum(count->subscription_id);
	Datum		lane = slot_getattr(scans->lanes.slot, 2, &isnull);
	int64		done = last_position(&scans->cursors, id, lane, read_int64(&scans->lanes, 3));
	int64		end = last_position(&scans->ends, id, lane, 0);
	pg_uuid_t  *next;

	if (end <= done)
		return;
	count->waiting += end - done;
	seek(&scans->entries, 0, BTEqualStrategyNumber, id);
	seek(&scans->entries, 1, BTEqualStrategyNumber, lane);
	seek(&scans->entries, 2, BTGreaterStrategyNumber, Int64GetDatum(done));
	if (!outbox_store_next(&scans->entries, true))
		return;
	next = DatumGetUUIDP(slot_getattr(scans->entries.slot, 4, &isnull));
	if (!count->has_next || outbox_event_id_compare(next, &count->next) < 0)
		count->next = *next;
	count->has_next = true;
}

static void
count_lanes(LaneScans *scans, OutboxOpenCount *count)
{
	seek(&scans->lanes, 0, BTEqualStrategyNumber, Int32GetDatum(count->subscription_id));
	while (outbox_store_next(&scans->lanes, true))
		count_lane(scans, count);
}

/* ---------------------------------------------------------------- what is parked */

typedef struct ParkedScans
{
	OutboxScan	parked;			/* from a gate on */
	OutboxScan	behind;			/* of one gate, behind a position */
	OutboxScan	gates;
} ParkedScans;

static void
begin_parked(ParkedScans *scans, Snapshot snapshot)
{
	begin_scan(&scans->parked, "parked", "parked_pkey", snapshot, 1);
	begin_scan(&scans->behind, "parked", "parked_pkey", snapshot, 2);
	begin_scan(&scans->gates, "gate", "gate_pkey", snapshot, 1);
}

static void
end_parked(ParkedScans *scans)
{
	outbox_store_end_scan(&scans->gates);
	outbox_store_end_scan(&scans->behind);
	outbox_store_end_scan(&scans->parked);
}

/* a gate, and how far it is done */
typedef struct Gate
{
	int64		gate_id;
	bool		found;			/* else it is gone, and upkeep has not removed what was parked behind it */
	bool		open;
	int64		through;
} Gate;

static void
read_gate(ParkedScans *scans, int64 gate_id, Gate *gate)
{
	*gate = (Gate) {.gate_id = gate_id};
	seek(&scans->gates, 0, BTEqualStrategyNumber, Int64GetDatum(gate_id));
	gate->found = outbox_store_next(&scans->gates, true);
	if (!gate->found)
		return;
	(void) slot_getattr(scans->gates.slot, 6, &gate->open); /* held_by is null */
	gate->through = read_int64(&scans->gates, 7);
}

/* Up to `most` of its events behind `through`, which is behind its first row. */
static int64
count_behind(ParkedScans *scans, const Gate *gate, int64 most)
{
	int64		n = 0;

	seek(&scans->behind, 0, BTEqualStrategyNumber, Int64GetDatum(gate->gate_id));
	seek(&scans->behind, 1, BTGreaterStrategyNumber, Int64GetDatum(gate->through));
	while (n < most && outbox_store_next(&scans->behind, true))
		n++;
	return n;
}

/*
 * Up to `most` events that wait behind the gate whose first row is at hand; then the next gate's first row is, if there is
 * *more.  Most gates have one or two rows, so they are read one after the other: a descent for each would read whole pages.
 */
static int64
count_gate(ParkedScans *scans, const Gate *gate, int64 most, bool *more)
{
	OutboxScan *parked = &scans->parked;
	int64		n = 0;

	if (gate->found && read_int64(parked, 2) > gate->through)
	{
		do
			n++;
		while ((*more = outbox_store_next(parked, true)) && n < most && read_int64(parked, 1) == gate->gate_id);
		return n;
	}
	if (gate->found)
		n = count_behind(scans, gate, most);
	seek(parked, 0, BTGreaterEqualStrategyNumber, Int64GetDatum(gate->gate_id + 1));
	*more = outbox_store_next(parked, true);
	return n;
}

static void
count_parked(ParkedScans *scans, OutboxOpenCount *count)
{
	int64		end = outbox_exception_first_gate_id(count->subscription_id + 1);
	int64		left = OUTBOX_OPEN_COUNT_PARKED;
	bool		more;

	seek(&scans->parked, 0, BTGreaterEqualStrategyNumber, Int64GetDatum(outbox_exception_first_gate_id(count->subscription_id)));
	more = outbox_store_next(&scans->parked, true);
	for (int looks = 0; more && looks < LOOKS_AT_GATES && left > 0; looks++)
	{
		int64		gate_id = read_int64(&scans->parked, 1);
		Gate		gate;
		int64		n;

		CHECK_FOR_INTERRUPTS();
		if (gate_id >= end)
			return;
		read_gate(scans, gate_id, &gate);
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

	begin_scan(&scan, "subscription", "subscription_pkey", snapshot, 1);
	seek(&scan, 0, BTGreaterStrategyNumber, Int32GetDatum(0));
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
	LaneScans	lanes;
	ParkedScans parked;

	list_subscriptions(&all, snapshot);
	begin_lanes(&lanes, snapshot);
	begin_parked(&parked, snapshot);
	for (int i = 0; i < all.n; i++)
	{
		count_lanes(&lanes, &all.counts[i]);
		count_parked(&parked, &all.counts[i]);
	}
	end_parked(&parked);
	end_lanes(&lanes);
	count_leases(&all, snapshot);
	*counts = all.counts;
	return all.n;
}

/* ---------------------------------------------------------------- which events are open */

/* one search: for an event, or to put all of them into a table */
typedef struct Search
{
	Snapshot	snapshot;
	const pg_uuid_t *id;
	HTAB	   *table;			/* or NULL */
	bool		found;
} Search;

/* false when there is no need to go on */
static bool
meet(Search *search, const pg_uuid_t *id)
{
	if (search->table != NULL)
		(void) hash_search(search->table, id, HASH_ENTER, NULL);
	else
		search->found = memcmp(id, search->id, sizeof(pg_uuid_t)) == 0;
	return !search->found;
}

static bool
meet_row(Search *search, OutboxScan *scan, int column)
{
	bool		isnull;

	CHECK_FOR_INTERRUPTS();
	return meet(search, DatumGetUUIDP(slot_getattr(scan->slot, column, &isnull)));
}

/* Every row that the index has; its first column is a number. */
static void
search_index(Search *search, const char *relname, const char *index, int column)
{
	OutboxScan	scan;

	if (search->found)
		return;
	begin_scan(&scan, relname, index, search->snapshot, 1);
	seek(&scan, 0, BTGreaterEqualStrategyNumber, Int32GetDatum(0));
	while (outbox_store_next(&scan, true) && meet_row(search, &scan, column))
		;
	outbox_store_end_scan(&scan);
}

static void
search_delayed(Search *search)
{
	OutboxScan	scan;

	if (search->found)
		return;
	begin_scan(&scan, "delayed", "delayed_pkey", search->snapshot, 1);
	seek(&scan, 0, BTGreaterEqualStrategyNumber, TimestampTzGetDatum(DT_NOBEGIN));
	while (outbox_store_next(&scan, true) && meet_row(search, &scan, 2))
		;
	outbox_store_end_scan(&scan);
}

static bool
search_lease(const OutboxClaimLease *lease, void *argument)
{
	Search	   *search = argument;

	for (int i = 0; i < lease->count; i++)
	{
		if (lease->events[i].state == CLAIM_HELD && !meet(search, &lease->events[i].event_id))
			return false;
	}
	return true;
}

static void
search_leases(Search *search)
{
	OutboxDatabase *db = outbox_shmem_my_database();
	OutboxClaimWalk walk = {
		.from = db == NULL ? DT_NOBEGIN : outbox_shmem_swept(db), .until = DT_NOEND, .snapshot = search->snapshot,
		.most = INT_MAX, .whole = true, .visit = search_lease, .argument = search
	};

	if (!search->found)
		outbox_claim_lease_walk(&walk);
}

/* The entries behind each lane's cursor. */
static void
search_lanes(Search *search)
{
	LaneScans	scans;
	bool		isnull;

	if (search->found)
		return;
	begin_lanes(&scans, search->snapshot);
	seek(&scans.lanes, 0, BTGreaterEqualStrategyNumber, Int32GetDatum(0));
	while (!search->found && outbox_store_next(&scans.lanes, true))
	{
		Datum		id = slot_getattr(scans.lanes.slot, 1, &isnull);
		Datum		lane = slot_getattr(scans.lanes.slot, 2, &isnull);
		int64		done = last_position(&scans.cursors, id, lane, read_int64(&scans.lanes, 3));

		seek(&scans.entries, 0, BTEqualStrategyNumber, id);
		seek(&scans.entries, 1, BTEqualStrategyNumber, lane);
		seek(&scans.entries, 2, BTGreaterStrategyNumber, Int64GetDatum(done));
		while (outbox_store_next(&scans.entries, true) && meet_row(search, &scans.entries, 4))
			;
	}
	end_lanes(&scans);
}

static void
search_parked(Search *search)
{
	ParkedScans scans;
	Gate		gate = {0};

	if (search->found)
		return;
	begin_parked(&scans, search->snapshot);
	seek(&scans.parked, 0, BTGreaterEqualStrategyNumber, Int64GetDatum(0));
	while (!search->found && outbox_store_next(&scans.parked, true))
	{
		int64		gate_id = read_int64(&scans.parked, 1);

		if (gate_id != gate.gate_id)
			read_gate(&scans, gate_id, &gate);
		if (gate.found && read_int64(&scans.parked, 2) > gate.through)
			(void) meet_row(search, &scans.parked, 3);
	}
	end_parked(&scans);
}

static void
search_all(Search *search)
{
	search_index(search, "delivery_exception", "delivery_exception_live_due", 2);
	search_index(search, "delivery_exception", "delivery_exception_replay_due", 2);
	search_index(search, "delivery_exception", "delivery_exception_started", 2);
	search_delayed(search);
	search_parked(search);
	search_leases(search);
	search_lanes(search);
}

/* what a query has asked, and all that was open then once it has asked often */
struct OutboxOpenEvents
{
	MemoryContext context;
	TransactionId xmin;			/* of the snapshot that it is of */
	TransactionId xmax;
	CommandId	curcid;
	uint64		completed;
	int			searches;
	HTAB	   *table;
};

OutboxOpenEvents *
outbox_open_events_begin(MemoryContext context)
{
	OutboxOpenEvents *events = MemoryContextAllocZero(context, sizeof(OutboxOpenEvents));

	events->context = context;
	return events;
}

/* An expression may outlive its query. */
static void
forget_other_moment(OutboxOpenEvents *events, Snapshot snapshot)
{
	if (events->xmin == snapshot->xmin && events->xmax == snapshot->xmax && events->curcid == snapshot->curcid &&
		events->completed == snapshot->snapXactCompletionCount)
		return;
	if (events->table != NULL)
		hash_destroy(events->table);
	events->table = NULL;
	events->searches = 0;
	events->xmin = snapshot->xmin;
	events->xmax = snapshot->xmax;
	events->curcid = snapshot->curcid;
	events->completed = snapshot->snapXactCompletionCount;
}

static void
fill_table(OutboxOpenEvents *events, Search *search)
{
	HASHCTL		ctl = {.keysize = sizeof(pg_uuid_t), .entrysize = sizeof(pg_uuid_t), .hcxt = events->context};

	search->table = hash_create("outbox open events", 1024, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	search_all(search);
	events->table = search->table;
}

bool
outbox_open_events_has(OutboxOpenEvents *events, const pg_uuid_t *id, Snapshot snapshot)
{
	Search		search = {.snapshot = snapshot, .id = id};

	forget_other_moment(events, snapshot);
	if (events->table == NULL && events->searches++ < SEARCHES)
	{
		search_all(&search);
		return search.found;
	}
	if (events->table == NULL)
		fill_table(events, &search);
	return hash_search(events->table, id, HASH_FIND, NULL) != NULL;
}
