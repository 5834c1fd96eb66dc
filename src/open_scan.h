/* open_scan.h - index scans of what is open: the lanes with their ends, and what is parked with its gates. */
#ifndef OUTBOX_OPEN_SCAN_H
#define OUTBOX_OPEN_SCAN_H

#include "outbox.h"

#include "store.h"

/* outbox_store_begin_scan() by names */
extern void outbox_open_scan_begin(OutboxScan *scan, const char *relname, const char *index, Snapshot snapshot, int nkeys);

/* set key i; with the last one the scan begins anew */
extern void outbox_open_scan_seek(OutboxScan *scan, int i, int strategy, Datum value);

/* a bigint column, from 1, of the row at hand */
extern int64 outbox_open_scan_int64(OutboxScan *scan, int column);

typedef struct OutboxLaneScans
{
	OutboxScan	lanes;
	OutboxScan	cursors;
	OutboxScan	ends;			/* of the entries */
	OutboxScan	entries;
} OutboxLaneScans;

extern void outbox_open_scan_begin_lanes(OutboxLaneScans *scans, Snapshot snapshot);
extern void outbox_open_scan_end_lanes(OutboxLaneScans *scans);

/* the last position of a lane, or `otherwise` */
extern int64 outbox_open_scan_last_position(OutboxScan *scan, Datum subscription_id, Datum lane, int64 otherwise);

typedef struct OutboxParkedScans
{
	OutboxScan	parked;			/* from a gate on */
	OutboxScan	behind;			/* of one gate, behind a position */
	OutboxScan	gates;
} OutboxParkedScans;

/* a gate, and how far it is done */
typedef struct OutboxScannedGate
{
	int64		gate_id;
	bool		found;			/* else it is gone, and upkeep has not removed what was parked behind it */
	bool		open;
	int64		through;
} OutboxScannedGate;

extern void outbox_open_scan_begin_parked(OutboxParkedScans *scans, Snapshot snapshot);
extern void outbox_open_scan_end_parked(OutboxParkedScans *scans);
extern void outbox_open_scan_gate(OutboxParkedScans *scans, int64 gate_id, OutboxScannedGate *gate);

#endif							/* OUTBOX_OPEN_SCAN_H */
