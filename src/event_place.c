/*
 * event_place.c - where an open delivery of an event may be.
 *
 * No index leads from an event to its entry in a lane or to what is parked, and one would cost the router.  But the event's
 * row tells: its key, or else its id, gives the lane, its key the gate, and its due time where it lies until then.
 *
 * A lane is counted from the definition, and a change of that begins a new generation of lanes, with numbers of its own.  So
 * whichever version of a definition is read, it is right about the lanes that it names.  Any other lane may hold any event: that
 * is older generations, until the router has ended them, and what a restore that failed in part has left.
 */
#include "outbox.h"

#include "access/stratnum.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "event_log.h"
#include "event_place.h"
#include "open_scan.h"
#include "pattern.h"

/* ---------------------------------------------------------------- the rule */

uint64
outbox_event_place_hash_key(Datum tenant_id, Datum event_key)
{
	text	   *key = DatumGetTextPP(event_key);
	text	   *tenant = tenant_id == (Datum) 0 ? NULL : DatumGetTextPP(tenant_id);

	return outbox_pattern_key_hash(tenant ? VARDATA_ANY(tenant) : NULL, tenant ? VARSIZE_ANY_EXHDR(tenant) : 0,
								   VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
}

uint64
outbox_event_place_hash_id(const pg_uuid_t *id)
{
	return outbox_pattern_key_hash(NULL, 0, (const char *) id->data, UUID_LEN);
}

static const OutboxGeneration *
generation_of(const OutboxGeneration *generations, int n, int32 subscription_id)
{
	for (int i = 0; i < n; i++)
	{
		if (generations[i].subscription_id == subscription_id)
			return &generations[i];
	}
	return NULL;
}

bool
outbox_event_place_may_be_in(const OutboxEventPlace *place, const OutboxGeneration *generations, int n,
							 int32 subscription_id, int32 lane)
{
	const OutboxGeneration *g = generation_of(generations, n, subscription_id);
	bool		by_key = g != NULL && g->ordered && place->event_key != (Datum) 0;

	if (!place->known || g == NULL || lane < g->first_lane || lane >= g->first_lane + g->lanes)
		return true;
	return lane == outbox_event_place_lane(g->first_lane, g->lanes, by_key ? place->hash_of_key : place->hash_of_id);
}

/* ---------------------------------------------------------------- reading */

int
outbox_event_place_generations(Snapshot snapshot, OutboxGeneration **generations)
{
	OutboxScan	scan;
	TupleDesc	descriptor;
	bool		isnull;
	int			capacity = 16;
	int			n = 0;

	*generations = palloc(capacity * sizeof(OutboxGeneration));
	outbox_open_scan_begin(&scan, "subscription", "subscription_pkey", snapshot, 1);
	outbox_open_scan_seek(&scan, 0, BTGreaterStrategyNumber, Int32GetDatum(0));
	descriptor = RelationGetDescr(scan.rel);
	while (outbox_store_next(&scan, true))
	{
		text	   *ordering = DatumGetTextPP(slot_getattr(scan.slot, SPI_fnumber(descriptor, "ordering"), &isnull));

		if (n == capacity)
			*generations = repalloc(*generations, (capacity *= 2) * sizeof(OutboxGeneration));
		(*generations)[n++] = (OutboxGeneration)
		{
			.subscription_id = DatumGetInt32(slot_getattr(scan.slot, 1, &isnull)),
				.first_lane = DatumGetInt32(slot_getattr(scan.slot, SPI_fnumber(descriptor, "first_lane"), &isnull)),
				.lanes = DatumGetInt32(slot_getattr(scan.slot, SPI_fnumber(descriptor, "lanes"), &isnull)),
				.ordered = VARSIZE_ANY_EXHDR(ordering) == strlen("key") && memcmp(VARDATA_ANY(ordering), "key", strlen("key")) == 0
		};
	}
	outbox_store_end_scan(&scan);
	return n;
}

static Datum
copy_text(TupleTableSlot *event, int column)
{
	bool		isnull;
	Datum		value = slot_getattr(event, column + 1, &isnull);

	return isnull ? (Datum) 0 : PointerGetDatum(PG_DETOAST_DATUM_COPY(value));
}

void
outbox_event_place_read(const pg_uuid_t *id, OutboxEventPlace *place)
{
	OutboxScan	scan;
	Datum		due_at;
	bool		isnull;

	*place = (OutboxEventPlace) {.event_id = *id, .due_at = DT_NOBEGIN};
	place->hash_of_id = outbox_event_place_hash_id(id);
	place->known = outbox_event_log_find(id, false, &scan);
	if (!place->known)
		return;
	place->tenant_id = copy_text(scan.slot, EV_TENANT_ID);
	place->event_key = copy_text(scan.slot, EV_EVENT_KEY);
	if (place->event_key != (Datum) 0)
		place->hash_of_key = outbox_event_place_hash_key(place->tenant_id, place->event_key);
	due_at = slot_getattr(scan.slot, EV_DELIVER_AT + 1, &isnull);
	if (!isnull)
		place->due_at = DatumGetTimestampTz(due_at);
	outbox_store_end_scan(&scan);
}

/* ---------------------------------------------------------------- gates */

/* False when the walk ends here. */
static bool
visit_gate(OutboxScan *gates, int32 lane, OutboxGateVisit visit, void *argument)
{
	outbox_store_set_key(gates, 1, BTEqualStrategyNumber, Int32GetDatum(lane));
	outbox_store_rescan(gates);
	return !outbox_store_next(gates, true) || visit(outbox_open_scan_int64(gates, 1), argument);
}

/*
 * A key has one gate in each generation of lanes, and the router moves it on, by the key whether the order of keys is kept there or not.
 * Where an older generation begins and ends is not asked: a gate in each of its lanes is looked for.
 */
void
outbox_event_place_walk_gates(const OutboxEventPlace *place, const OutboxGeneration *generations, int n, Snapshot snapshot,
							  OutboxGateVisit visit, void *argument)
{
	OutboxScan	gates;
	bool		go_on = true;

	Assert(place->known);
	if (place->event_key == (Datum) 0)
		return;
	outbox_open_scan_begin(&gates, "gate", "gate_subscription_id_lane_tenant_id_event_key_key", snapshot, 4);
	outbox_store_set_key(&gates, 2, BTEqualStrategyNumber, place->tenant_id != (Datum) 0 ? place->tenant_id : CStringGetTextDatum(""));
	outbox_store_set_key(&gates, 3, BTEqualStrategyNumber, place->event_key);
	for (int i = 0; i < n && go_on; i++)
	{
		const OutboxGeneration *g = &generations[i];

		outbox_store_set_key(&gates, 0, BTEqualStrategyNumber, Int32GetDatum(g->subscription_id));
		for (int32 lane = 0; lane < g->first_lane && go_on; lane++)
			go_on = visit_gate(&gates, lane, visit, argument);
		if (go_on)
			go_on = visit_gate(&gates, outbox_event_place_lane(g->first_lane, g->lanes, place->hash_of_key), visit, argument);
	}
	outbox_store_end_scan(&gates);
}
