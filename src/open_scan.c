/*
 * open_scan.c - index scans of what is open: the lanes with their ends, and what is parked with its gates.
 *
 * By direct index access, for those that look at many lanes or gates with the same few scans.
 */
#include "outbox.h"

#include "access/stratnum.h"

#include "extension.h"
#include "open_scan.h"

void
outbox_open_scan_begin(OutboxScan *scan, const char *relname, const char *index, Snapshot snapshot, int nkeys)
{
	outbox_store_begin_scan(scan, outbox_extension_relid(relname), outbox_extension_relid(index), snapshot, nkeys);
}

void
outbox_open_scan_seek(OutboxScan *scan, int i, int strategy, Datum value)
{
	outbox_store_set_key(scan, i, strategy, value);
	if (i == scan->nkeys - 1)
		outbox_store_rescan(scan);
}

int64
outbox_open_scan_int64(OutboxScan *scan, int column)
{
	bool		isnull;

	return DatumGetInt64(slot_getattr(scan->slot, column, &isnull));
}

/* ---------------------------------------------------------------- lanes */

void
outbox_open_scan_begin_lanes(OutboxLaneScans *scans, Snapshot snapshot)
{
	outbox_open_scan_begin(&scans->lanes, "lane", "lane_pkey", snapshot, 1);
	outbox_open_scan_begin(&scans->cursors, "lane_cursor", "lane_cursor_pkey", snapshot, 2);
	outbox_open_scan_begin(&scans->ends, "lane_entry", "lane_entry_pkey", snapshot, 2);
	outbox_open_scan_begin(&scans->entries, "lane_entry", "lane_entry_pkey", snapshot, 3);
}

void
outbox_open_scan_end_lanes(OutboxLaneScans *scans)
{
	outbox_store_end_scan(&scans->entries);
	outbox_store_end_scan(&scans->ends);
	outbox_store_end_scan(&scans->cursors);
	outbox_store_end_scan(&scans->lanes);
}

/* The last position of a lane, or `otherwise`. */
int64
outbox_open_scan_last_position(OutboxScan *scan, Datum subscription_id, Datum lane, int64 otherwise)
{
	outbox_open_scan_seek(scan, 0, BTEqualStrategyNumber, subscription_id);
	outbox_open_scan_seek(scan, 1, BTEqualStrategyNumber, lane);
	return outbox_store_next(scan, false) ? outbox_open_scan_int64(scan, 3) : otherwise;
}

/* ---------------------------------------------------------------- what is parked */

void
outbox_open_scan_begin_parked(OutboxParkedScans *scans, Snapshot snapshot)
{
	outbox_open_scan_begin(&scans->parked, "parked", "parked_pkey", snapshot, 1);
	outbox_open_scan_begin(&scans->behind, "parked", "parked_pkey", snapshot, 2);
	outbox_open_scan_begin(&scans->gates, "gate", "gate_pkey", snapshot, 1);
}

void
outbox_open_scan_end_parked(OutboxParkedScans *scans)
{
	outbox_store_end_scan(&scans->gates);
	outbox_store_end_scan(&scans->behind);
	outbox_store_end_scan(&scans->parked);
}

void
outbox_open_scan_gate(OutboxParkedScans *scans, int64 gate_id, OutboxScannedGate *gate)
{
	*gate = (OutboxScannedGate) {.gate_id = gate_id};
	outbox_open_scan_seek(&scans->gates, 0, BTEqualStrategyNumber, Int64GetDatum(gate_id));
	gate->found = outbox_store_next(&scans->gates, true);
	if (!gate->found)
		return;
	(void) slot_getattr(scans->gates.slot, 6, &gate->open); /* held_by is null */
	gate->through = outbox_open_scan_int64(&scans->gates, 7);
}
