/*
 * open_event.c - is an event open: pending, delayed, parked, leased, started or to be tried again?
 *
 * It is looked for where it can be (event_place.c).  A query that asks of many events has all that is open read into a table once.
 */
#include "outbox.h"

#include "access/stratnum.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "claim_lease.h"
#include "event_place.h"
#include "open_event.h"
#include "open_scan.h"
#include "shmem.h"

#define SEARCHES	20			/* for one event each, before the rest is looked up in a table of all that is open */

/* one search: for an event, or to put all of them into a table */
typedef struct Search
{
	Snapshot	snapshot;
	const pg_uuid_t *id;
	HTAB	   *table;			/* or NULL */
	bool		found;
	OutboxEventPlace place;		/* where the event can be; not known: anywhere */
	OutboxGeneration *generations;
	int			ngenerations;
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
	outbox_open_scan_begin(&scan, relname, index, search->snapshot, 1);
	outbox_open_scan_seek(&scan, 0, BTGreaterEqualStrategyNumber, Int32GetDatum(0));
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
	outbox_open_scan_begin(&scan, "delayed", "delayed_pkey", search->snapshot, 1);
	outbox_open_scan_seek(&scan, 0, BTGreaterEqualStrategyNumber, TimestampTzGetDatum(DT_NOBEGIN));
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

/* The entries behind each lane's cursor, where the event can be in it. */
static void
search_lanes(Search *search)
{
	OutboxLaneScans scans;
	bool		isnull;

	if (search->found)
		return;
	outbox_open_scan_begin_lanes(&scans, search->snapshot);
	outbox_open_scan_seek(&scans.lanes, 0, BTGreaterEqualStrategyNumber, Int32GetDatum(0));
	while (!search->found && outbox_store_next(&scans.lanes, true))
	{
		Datum		id = slot_getattr(scans.lanes.slot, 1, &isnull);
		Datum		lane = slot_getattr(scans.lanes.slot, 2, &isnull);
		int64		done;

		if (!outbox_event_place_may_be_in(&search->place, search->generations, search->ngenerations, DatumGetInt32(id), DatumGetInt32(lane)))
			continue;
		done = outbox_open_scan_last_position(&scans.cursors, id, lane, outbox_open_scan_int64(&scans.lanes, 3));
		outbox_open_scan_seek(&scans.entries, 0, BTEqualStrategyNumber, id);
		outbox_open_scan_seek(&scans.entries, 1, BTEqualStrategyNumber, lane);
		outbox_open_scan_seek(&scans.entries, 2, BTGreaterStrategyNumber, Int64GetDatum(done));
		while (outbox_store_next(&scans.entries, true) && meet_row(search, &scans.entries, 4))
			;
	}
	outbox_open_scan_end_lanes(&scans);
}

static void
search_parked(Search *search)
{
	OutboxParkedScans scans;
	OutboxScannedGate gate = {0};

	if (search->found)
		return;
	outbox_open_scan_begin_parked(&scans, search->snapshot);
	outbox_open_scan_seek(&scans.parked, 0, BTGreaterEqualStrategyNumber, Int64GetDatum(0));
	while (!search->found && outbox_store_next(&scans.parked, true))
	{
		int64		gate_id = outbox_open_scan_int64(&scans.parked, 1);

		if (gate_id != gate.gate_id)
			outbox_open_scan_gate(&scans, gate_id, &gate);
		if (gate.found && outbox_open_scan_int64(&scans.parked, 2) > gate.through)
			(void) meet_row(search, &scans.parked, 3);
	}
	outbox_open_scan_end_parked(&scans);
}

/* what the visit of a gate needs */
typedef struct GateSearch
{
	Search	   *search;
	OutboxParkedScans scans;
} GateSearch;

static bool
search_gate(int64 gate_id, void *argument)
{
	GateSearch *gates = argument;
	OutboxScan *behind = &gates->scans.behind;
	OutboxScannedGate gate;

	outbox_open_scan_gate(&gates->scans, gate_id, &gate);
	if (!gate.found)
		return true;
	outbox_open_scan_seek(behind, 0, BTEqualStrategyNumber, Int64GetDatum(gate_id));
	outbox_open_scan_seek(behind, 1, BTGreaterStrategyNumber, Int64GetDatum(gate.through));
	while (outbox_store_next(behind, true) && meet_row(gates->search, behind, 3))
		;
	return !gates->search->found;
}

static void
search_gates(Search *search)
{
	GateSearch	gates = {.search = search};

	if (search->found || search->place.event_key == (Datum) 0)
		return;
	outbox_open_scan_begin_parked(&gates.scans, search->snapshot);
	outbox_event_place_walk_gates(&search->place, search->generations, search->ngenerations, search->snapshot, search_gate, &gates);
	outbox_open_scan_end_parked(&gates.scans);
}

static void
search_due_time(Search *search)
{
	OutboxScan	scan;

	if (search->found || TIMESTAMP_IS_NOBEGIN(search->place.due_at))
		return;
	outbox_open_scan_begin(&scan, "delayed", "delayed_pkey", search->snapshot, 2);
	outbox_open_scan_seek(&scan, 0, BTEqualStrategyNumber, TimestampTzGetDatum(search->place.due_at));
	outbox_open_scan_seek(&scan, 1, BTEqualStrategyNumber, UUIDPGetDatum(search->id));
	search->found = outbox_store_next(&scan, true);
	outbox_store_end_scan(&scan);
}

static bool
is_status(Datum status, const char *expected)
{
	text	   *t = DatumGetTextPP(status);

	return VARSIZE_ANY_EXHDR(t) == strlen(expected) && memcmp(VARDATA_ANY(t), expected, strlen(expected)) == 0;
}

static void
search_exceptions(Search *search)
{
	OutboxScan	scan;

	outbox_open_scan_begin(&scan, "delivery_exception", "delivery_exception_event", search->snapshot, 1);
	outbox_open_scan_seek(&scan, 0, BTEqualStrategyNumber, UUIDPGetDatum(search->id));
	while (!search->found && outbox_store_next(&scan, true))
	{
		bool		isnull;
		Datum		status = slot_getattr(scan.slot, SPI_fnumber(RelationGetDescr(scan.rel), "status"), &isnull);

		search->found = is_status(status, "RETRY") || is_status(status, "IN_PROGRESS");
	}
	outbox_store_end_scan(&scan);
}

/* An event whose row is there: where it can be. */
static void
search_places(Search *search)
{
	search_exceptions(search);
	search_due_time(search);
	search_gates(search);
	search_lanes(search);
	search_leases(search);
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

static bool
search_for_one(Search *search)
{
	outbox_event_place_read(search->id, &search->place);
	search->ngenerations = outbox_event_place_generations(search->snapshot, &search->generations);
	if (search->place.known)
		search_places(search);
	else
		search_all(search);
	return search->found;
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
outbox_open_event_begin(MemoryContext context)
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
outbox_open_event_has(OutboxOpenEvents *events, const pg_uuid_t *id, Snapshot snapshot)
{
	Search		search = {.snapshot = snapshot, .id = id};

	forget_other_moment(events, snapshot);
	if (events->table == NULL && events->searches++ < SEARCHES)
		return search_for_one(&search);
	if (events->table == NULL)
		fill_table(events, &search);
	return hash_search(events->table, id, HASH_FIND, NULL) != NULL;
}
