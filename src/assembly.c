/*
 * assembly.c - what a batch is to run: the next entries of lanes, the next parked
 * events of an open gate, or one delivery whose start is on record.
 *
 * The first part of a batch's transaction (see batch.c).  The passage is entered, and each lane is locked by its token
 * before anything of it is read: one that is not ours any more gives nothing.
 */
#include "outbox.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "lib/binaryheap.h"
#include "storage/itemptr.h"
#include "utils/snapmgr.h"

#include "assembly.h"
#include "event_id.h"
#include "extension.h"
#include "passage.h"
#include "store.h"

#define REMOVE_AT_ONCE	1000	/* parked events that have run */

static OutboxStatement select_open_gate = {
	"select gate_id, through from outbox.gate where subscription_id = $1 and lane = $2 and held_by is null"
	" order by gate_id limit 1",
	2, {INT4OID, INT4OID}
};

static OutboxStatement delete_parked = {
	"delete from outbox.parked where ctid = any (array(select p.ctid from outbox.parked p where p.gate_id = $1 limit $2))",
	2, {INT8OID, INT4OID}
};

static OutboxStatement delete_gate = {
	"delete from outbox.gate where gate_id = $1",
	1, {INT8OID}
};

/* ---------------------------------------------------------------- lanes */

/* Behind its key's gate?  Then it is parked rather than run. */
static bool
waits_at_gate(OutboxBatch *batch, OutboxEventReader *events, OutboxDelivery *d)
{
	TupleTableSlot *event;

	if (!d->lane->has_gate || !outbox_subscription_orders(batch->subscription, d->lane->lane))
		return false;
	if (!outbox_batch_read_event(events, &d->event_id, &d->tid, &event))
		return false;
	outbox_batch_read_key(batch->subscription, d->lane->lane, event, d);
	return d->event_key != NULL &&
		outbox_settle_find_gate(d->lane, d->tenant_id, d->event_key, &d->gate_id);
}

/* a lane that is being read, and its next entry */
typedef struct LaneReader
{
	OutboxLane *lane;
	OutboxScan	scan;
	int			left;			/* entries that may be taken from it */
	OutboxDelivery next;
} LaneReader;

/* False when the lane has no more, or gave what it may. */
static bool
advance_lane(LaneReader *reader)
{
	OutboxDelivery *d = &reader->next;
	bool		isnull;

	if (reader->left-- == 0 || !outbox_store_next(&reader->scan, true))
		return false;
	memset(d, 0, sizeof(*d));
	d->lane = reader->lane;
	d->position = DatumGetInt64(slot_getattr(reader->scan.slot, 3, &isnull));
	d->event_id = *DatumGetUUIDP(slot_getattr(reader->scan.slot, 4, &isnull));
	d->tid = *(ItemPointer) DatumGetPointer(slot_getattr(reader->scan.slot, 5, &isnull));
	return true;
}

static void
open_lane(LaneReader *reader, OutboxLane *lane, int limit, Oid relid, Oid index)
{
	reader->lane = lane;
	reader->left = limit;
	outbox_store_begin_scan(&reader->scan, relid, index, GetActiveSnapshot(), 3);
	outbox_store_set_key(&reader->scan, 0, BTEqualStrategyNumber, Int32GetDatum(lane->subscription_id));
	outbox_store_set_key(&reader->scan, 1, BTEqualStrategyNumber, Int32GetDatum(lane->lane));
	outbox_store_set_key(&reader->scan, 2, BTGreaterStrategyNumber, Int64GetDatum(lane->cursor));
	outbox_store_rescan(&reader->scan);
}

/* The smaller id comes first; a binaryheap has its largest on top. */
static int
compare_readers(Datum a, Datum b, void *arg)
{
	return outbox_event_id_compare(&((LaneReader *) DatumGetPointer(b))->next.event_id,
								   &((LaneReader *) DatumGetPointer(a))->next.event_id);
}

static void
take_delivery(OutboxBatch *batch, OutboxEventReader *events, const OutboxDelivery *next)
{
	OutboxDelivery *d = &batch->deliveries[batch->count];

	*d = *next;
	if (waits_at_gate(batch, events, d))
		batch->parked[batch->nparked++] = *d;
	else
		batch->count++;
}

/*
 * The next entries of the lanes, each in its own order and all of them in that of event ids, so
 * that their events and receipts lie side by side.  The very first is lanes[0]'s.
 */
static void
merge_lanes(OutboxBatch *batch, OutboxEventReader *events, LaneReader *readers, int n)
{
	binaryheap *heads = binaryheap_allocate(Max(1, n), compare_readers, NULL);

	for (int i = 0; i < n; i++)
	{
		if (!advance_lane(&readers[i]))
			continue;
		if (i == 0)
		{
			take_delivery(batch, events, &readers[i].next);
			if (!advance_lane(&readers[i]))
				continue;
		}
		binaryheap_add_unordered(heads, PointerGetDatum(&readers[i]));
	}
	binaryheap_build(heads);
	while (!binaryheap_empty(heads) && batch->count + batch->nparked < batch->limit)
	{
		LaneReader *reader = (LaneReader *) DatumGetPointer(binaryheap_first(heads));

		take_delivery(batch, events, &reader->next);
		if (advance_lane(reader))
			binaryheap_replace_first(heads, PointerGetDatum(reader));
		else
			(void) binaryheap_remove_first(heads);
	}
	binaryheap_free(heads);
}

static void
assemble_from_lanes(OutboxBatch *batch, OutboxEventReader *events)
{
	Oid			relid = outbox_extension_relid("lane_entry");
	Oid			index = outbox_store_primary_key(relid);
	LaneReader *readers = palloc(Max(1, batch->nlanes) * sizeof(LaneReader));
	int			n = 0;

	batch->parked = palloc(batch->limit * sizeof(OutboxDelivery));
	/* no more lanes than events, or each would be locked for nothing */
	for (int i = 0; i < batch->nlanes && n < batch->limit; i++)
	{
		if (outbox_lease_lock(batch->lanes[i]))
			open_lane(&readers[n++], batch->lanes[i], batch->lane_limit, relid, index);
	}
	merge_lanes(batch, events, readers, n);
	for (int i = 0; i < n; i++)
		outbox_store_end_scan(&readers[i].scan);
}

/* ---------------------------------------------------------------- gates */

/*
 * All that was parked has run: later events of the key need not be parked any more.  When the rows are many, then upkeep
 * removes the others: the lane is locked.
 */
static void
remove_gate(int64 gate_id)
{
	Datum		args[2] = {Int64GetDatum(gate_id), Int32GetDatum(REMOVE_AT_ONCE)};

	outbox_store_run(&delete_parked, args, NULL, 0);
	outbox_store_run(&delete_gate, args, NULL, 0);
}

static void
read_parked(OutboxBatch *batch, int64 gate_id, int64 through)
{
	Oid			relid = outbox_extension_relid("parked");
	OutboxScan	scan;
	bool		isnull;

	outbox_store_begin_scan(&scan, relid, outbox_store_primary_key(relid), GetActiveSnapshot(), 2);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, Int64GetDatum(gate_id));
	outbox_store_set_key(&scan, 1, BTGreaterStrategyNumber, Int64GetDatum(through));
	outbox_store_rescan(&scan);
	while (batch->count < batch->limit && outbox_store_next(&scan, true))
	{
		OutboxDelivery *d = &batch->deliveries[batch->count++];

		memset(d, 0, sizeof(*d));
		d->lane = batch->lanes[0];
		d->gate_id = gate_id;
		d->position = DatumGetInt64(slot_getattr(scan.slot, 2, &isnull));
		d->event_id = *DatumGetUUIDP(slot_getattr(scan.slot, 3, &isnull));
	}
	outbox_store_end_scan(&scan);
}

static void
assemble_from_gate(OutboxBatch *batch)
{
	OutboxLane *lane = batch->lanes[0];
	Datum		args[2] = {Int32GetDatum(lane->subscription_id), Int32GetDatum(lane->lane)};
	int64		gate_id;
	bool		isnull;

	if (!outbox_lease_lock(lane) || outbox_store_run(&select_open_gate, args, NULL, 1) == 0)
		return;
	gate_id = DatumGetInt64(outbox_store_value(0, 1, &isnull));
	read_parked(batch, gate_id, DatumGetInt64(outbox_store_value(0, 2, &isnull)));
	batch->moved = 1;
	if (batch->count == 0)
		remove_gate(gate_id);
	else
		outbox_settle_move_gate(gate_id, batch->deliveries[batch->count - 1].position);
}

/* ---------------------------------------------------------------- either */

static void
assemble_started(OutboxBatch *batch)
{
	if (!outbox_lease_lock(batch->lanes[0]))
		return;
	outbox_settle_complete(batch->subscription, &batch->deliveries[0]);
	batch->count = 1;
}

void
outbox_assembly_read(OutboxBatch *batch, OutboxEventReader *events)
{
	batch->barred = !outbox_passage_enter_as_handler(batch->subscription);
	if (batch->barred)
		return;
	switch (batch->source)
	{
		case BATCH_FROM_LANES:
			assemble_from_lanes(batch, events);
			break;
		case BATCH_FROM_GATE:
			assemble_from_gate(batch);
			break;
		case BATCH_STARTED:
			assemble_started(batch);
			break;
	}
}
