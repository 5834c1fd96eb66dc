/*
 * claim_progress.c - what has been settled of the leases of external workers.
 *
 * Each call that settles something appends a row.  When it has written receipts, that is the batch which these have anyway; what
 * failed or went back, and what turned out to be completed already, stands in lease_progress.  So the acknowledgement of one event
 * is two rows; and that nothing of a lease has gone back is mostly known without a look (shmem.h), or a probe of an index that is
 * all but empty.
 */
#include "outbox.h"

#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "utils/array.h"
#include "utils/snapmgr.h"

#include "claim_progress.h"
#include "event_log.h"
#include "extension.h"
#include "shmem.h"

#define STEPS_TO_LEASE	8		/* before its rows are looked for */

/* where it stands: table, index that begins with the lease, and columns, from 1 */
typedef struct Source
{
	const char *table;
	const char *index;
	int			lease_id;
	int			settled;
	int			completed;		/* 0: all are */
} Source;

static const Source sources[OUTBOX_CLAIM_PROGRESS_SOURCES] = {
	{"batch", "batch_lease", 10, 11, 0},
	{"lease_progress", "lease_progress_pkey", 1, 4, 3}
};

/* ---------------------------------------------------------------- appending */

Datum
outbox_claim_progress_indexes(const int *settled, int n)
{
	Datum	   *indexes = palloc(n * sizeof(Datum));

	for (int i = 0; i < n; i++)
		indexes[i] = Int16GetDatum((int16) settled[i]);
	return PointerGetDatum(construct_array(indexes, n, INT2OID, 2, true, TYPALIGN_SHORT));
}

void
outbox_claim_progress_append(int64 lease_id, OutboxClaimState state, const int *settled, int n)
{
	OutboxWriter *writer;
	OutboxDatabase *db = outbox_shmem_my_database();
	int64		number;
	Datum		values[4];
	bool		nulls[4] = {false};

	if (n == 0)
		return;
	if (state == CLAIM_RETURNED && db != NULL)
		outbox_shmem_note_returned(db, lease_id);
	number = outbox_event_log_draw_number();
	values[0] = Int64GetDatum(lease_id);
	values[1] = Int64GetDatum(state == CLAIM_RETURNED ? -number : number);
	values[2] = BoolGetDatum(state == CLAIM_COMPLETED);
	values[3] = outbox_claim_progress_indexes(settled, n);
	writer = outbox_store_open_writer(outbox_extension_relid("lease_progress"));
	outbox_store_put(writer, values, nulls);
	outbox_store_close_writer(writer);
}

/* ---------------------------------------------------------------- reading */

/* Marks in states[count] what the row at hand says; returns how many of them are new. */
static int
apply_row(const Source *source, TupleTableSlot *slot, OutboxClaimState *states, int count)
{
	bool		isnull;
	bool		completed = source->completed == 0 || DatumGetBool(slot_getattr(slot, source->completed, &isnull));
	Datum		value = slot_getattr(slot, source->settled, &isnull);
	ArrayType  *settled = DatumGetArrayTypeP(value);
	int16	   *indexes = (int16 *) ARR_DATA_PTR(settled);
	int			n = ArrayGetNItems(ARR_NDIM(settled), ARR_DIMS(settled));
	int			fresh = 0;

	for (int i = 0; i < n; i++)
	{
		if (indexes[i] < 0 || indexes[i] >= count)
			continue;
		fresh += states[indexes[i]] == CLAIM_HELD;
		/* whatever else is said of it: completed is completed */
		if (completed || states[indexes[i]] == CLAIM_HELD)
			states[indexes[i]] = completed ? CLAIM_COMPLETED : CLAIM_RETURNED;
	}
	if ((Pointer) settled != DatumGetPointer(value))
		pfree(settled);
	return fresh;
}

static int64
lease_of_row(const Source *source, const OutboxScan *scan)
{
	bool		isnull;

	return DatumGetInt64(slot_getattr(scan->slot, source->lease_id, &isnull));
}

/*
 * To the first row of this lease or, on a walk, of one behind it.  Leases end about in the order in which they were made, so the next
 * one's rows are mostly the next ones: to step there is much cheaper than to look for them.  Where rows are few, most leases lie
 * between two of them.  What is appended behind the reader's back he may miss, and a lease then seems to be held for a moment longer.
 */
static void
go_to_lease(const OutboxClaimProgress *progress, const Source *source, OutboxClaimProgressRows *rows, int64 lease_id)
{
	int			steps = 0;

	while (progress->walking && rows->begun && lease_id >= rows->from)
	{
		if (!rows->at_row || lease_of_row(source, &rows->scan) >= lease_id)
			return;
		if (steps++ == STEPS_TO_LEASE)
			break;
		rows->from = lease_of_row(source, &rows->scan) + 1;
		rows->at_row = outbox_store_next(&rows->scan, true);
	}
	if (!rows->begun)
		outbox_store_begin_scan(&rows->scan, outbox_extension_relid(source->table), outbox_extension_relid(source->index),
								progress->snapshot, 1);
	rows->begun = true;
	outbox_store_set_key(&rows->scan, 0, progress->walking ? BTGreaterEqualStrategyNumber : BTEqualStrategyNumber,
						 Int64GetDatum(lease_id));
	outbox_store_rescan(&rows->scan);
	rows->at_row = outbox_store_next(&rows->scan, true);
	rows->from = lease_id;
}

int
outbox_claim_progress_read(OutboxClaimProgress *progress, int64 lease_id, OutboxClaimState *states, int count)
{
	int			held = count;

	for (int i = 0; i < count; i++)
		states[i] = CLAIM_HELD;
	for (int i = 0; i < OUTBOX_CLAIM_PROGRESS_SOURCES; i++)
	{
		OutboxClaimProgressRows *rows = &progress->rows[i];

		go_to_lease(progress, &sources[i], rows, lease_id);
		while (rows->at_row && lease_of_row(&sources[i], &rows->scan) == lease_id)
		{
			held -= apply_row(&sources[i], rows->scan.slot, states, count);
			rows->from = lease_id + 1;
			rows->at_row = outbox_store_next(&rows->scan, true);
		}
	}
	return held;
}

void
outbox_claim_progress_end(OutboxClaimProgress *progress)
{
	for (int i = 0; i < OUTBOX_CLAIM_PROGRESS_SOURCES; i++)
	{
		if (progress->rows[i].begun)
			outbox_store_end_scan(&progress->rows[i].scan);
	}
}

bool
outbox_claim_progress_has_returned(int64 lease_id, uint64 claim_xid, OutboxScan *scan)
{
	OutboxDatabase *db = outbox_shmem_my_database();

	if (db != NULL && outbox_shmem_nothing_returned(db, lease_id, claim_xid))
		return false;
	if (scan->rel == NULL)
	{
		outbox_store_begin_scan(scan, outbox_extension_relid("lease_progress"),
								outbox_extension_relid("lease_progress_pkey"), SnapshotSelf, 2);
		outbox_store_set_key(scan, 0, BTEqualStrategyNumber, Int64GetDatum(lease_id));
		outbox_store_set_key(scan, 1, BTLessStrategyNumber, Int64GetDatum(0));
	}
	outbox_store_rescan(scan);
	return outbox_store_next(scan, true);
}
