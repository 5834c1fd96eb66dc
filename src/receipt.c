/*
 * receipt.c - receipts of external workers.
 *
 * A delivery is completed by the row under its unique key, and nothing else.
 * Several sessions may settle the same delivery at the same time, in any order and at any
 * isolation level.  An ordinary insert would wait for the other transaction without
 * a limit, and then raise an error.  So rows are written whether there is a
 * rival or not, the index tells that there may be one, and then it is looked
 * for, by what is true now: a completed rival wins, an open one is waited for
 * with patience after our row is taken back.  Two that are written at the same
 * moment see each other and both give way; waits of random length part them.
 *
 * fail() and release() bar a delivery's completion: a row in the same place
 * that is taken back at once, and that others wait for all the same, since it
 * stands there until the end of its transaction.
 */
#include "outbox.h"

#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "event_id.h"
#include "receipt.h"
#include "segment.h"
#include "store.h"

/* in place of a batch's number: not a receipt, but a bar */
#define BAR		INT64CONST(-1)

/* columns of outbox.receipt_log */
typedef enum ReceiptColumn
{
	RECEIPT_EVENT_ID,
	RECEIPT_BATCH_ID,
	RECEIPT_SUBSCRIPTION_ID,
	RECEIPT_REPLAY_NO,
	RECEIPT_ATTEMPTS,
	RECEIPT_BATCH_INDEX,
	RECEIPT_MESSAGE_ID,
	RECEIPT_COLUMNS
} ReceiptColumn;

typedef enum Rival
{
	RIVAL_NONE,
	RIVAL_OPEN,					/* in a transaction that is not over */
	RIVAL_COMPLETED
} Rival;

/* the receipts of one segment, being written */
typedef struct ReceiptTarget
{
	OutboxSegment segment;
	int32		subscription_id;
	OutboxWriter *writer;
	OutboxPatience *patience;
} ReceiptTarget;

/* a row, as long as it is not flushed */
typedef struct ReceiptRow
{
	Datum		values[RECEIPT_COLUMNS];
	bool		nulls[RECEIPT_COLUMNS];
} ReceiptRow;

static void
open_target(ReceiptTarget *target, const pg_uuid_t *event_id)
{
	if (target->writer != NULL && outbox_event_id_compare(event_id, &target->segment.from) >= 0 &&
		outbox_event_id_compare(event_id, &target->segment.to) < 0)
		return;
	if (target->writer != NULL)
		outbox_store_close_writer(target->writer);
	outbox_segment_find_receipts(event_id, &target->segment);
	target->writer = outbox_store_open_writer(target->segment.receipt_log);
	target->writer->tolerant = true;
}

static void
fill_row(ReceiptRow *row, int32 subscription_id, int64 batch_id, const OutboxReceipt *receipt, Datum message_id)
{
	memset(row->nulls, false, sizeof(row->nulls));
	row->values[RECEIPT_EVENT_ID] = UUIDPGetDatum(&receipt->event_id);
	row->values[RECEIPT_BATCH_ID] = Int64GetDatum(batch_id);
	row->values[RECEIPT_SUBSCRIPTION_ID] = Int32GetDatum(subscription_id);
	row->values[RECEIPT_REPLAY_NO] = Int16GetDatum(receipt->replay_no);
	row->values[RECEIPT_ATTEMPTS] = Int16GetDatum((int16) Min(receipt->attempts, PG_INT16_MAX));
	row->values[RECEIPT_BATCH_INDEX] = Int16GetDatum(0);
	row->values[RECEIPT_MESSAGE_ID] = message_id;
	row->nulls[RECEIPT_MESSAGE_ID] = message_id == (Datum) 0;
}

/* ---------------------------------------------------------------- rivals */

static void
begin_receipt_scan(OutboxScan *scan, const OutboxSegment *segment, Snapshot snapshot,
				   int32 subscription_id, const pg_uuid_t *event_id, int16 replay_no)
{
	outbox_store_begin_scan(scan, segment->receipt_log, segment->receipt_log_pk, snapshot, 3);
	outbox_store_set_key(scan, 0, BTEqualStrategyNumber, UUIDPGetDatum(event_id));
	outbox_store_set_key(scan, 1, BTEqualStrategyNumber, Int32GetDatum(subscription_id));
	outbox_store_set_key(scan, 2, BTEqualStrategyNumber, Int16GetDatum(replay_no));
	outbox_store_rescan(scan);
}

/* Written and taken back by one open transaction: nothing to wait for, unless it is a bar. */
static bool
is_withdrawn(TupleTableSlot *slot)
{
	bool		should_free;
	bool		isnull;
	HeapTupleHeader header = ExecFetchSlotHeapTuple(slot, false, &should_free)->t_data;

	return !(header->t_infomask & (HEAP_XMAX_INVALID | HEAP_XMAX_IS_MULTI)) &&
		!HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask) &&
		TransactionIdEquals(HeapTupleHeaderGetRawXmax(header), HeapTupleHeaderGetRawXmin(header)) &&
		DatumGetInt64(slot_getattr(slot, RECEIPT_BATCH_ID + 1, &isnull)) != BAR;
}

/* Who else stands under the key of this delivery?  own: where our row is, or NULL. */
static Rival
look_for_rival(ReceiptTarget *target, const OutboxReceipt *receipt, const ItemPointerData *own)
{
	SnapshotData dirty;
	OutboxScan	scan;
	Rival		rival = RIVAL_NONE;

	InitDirtySnapshot(dirty);
	begin_receipt_scan(&scan, &target->segment, &dirty, target->subscription_id, &receipt->event_id, receipt->replay_no);
	while (rival != RIVAL_COMPLETED && outbox_store_next(&scan, true))
	{
		if (own != NULL && ItemPointerEquals(&scan.slot->tts_tid, unconstify(ItemPointerData *, own)))
			continue;
		if (!TransactionIdIsValid(dirty.xmin) && !TransactionIdIsValid(dirty.xmax))
			rival = RIVAL_COMPLETED;
		else if (!is_withdrawn(scan.slot))
			rival = RIVAL_OPEN;
	}
	outbox_store_end_scan(&scan);
	return rival;
}

/* A row of this very command is out of its reach. */
static void
withdraw(ReceiptTarget *target, ItemPointer own)
{
	CommandCounterIncrement();
	(void) outbox_store_delete(target->writer->rel, own);
}

/* The index told of a rival to our row at *own.  Is the row ours in the end? */
static bool
contend(ReceiptTarget *target, const OutboxReceipt *receipt, const ReceiptRow *row, ItemPointerData *own)
{
	for (;;)
	{
		Rival		rival = look_for_rival(target, receipt, own);

		if (rival == RIVAL_NONE)
			return true;
		withdraw(target, own);
		while (rival == RIVAL_OPEN)
		{
			outbox_patience_wait(target->patience);
			rival = look_for_rival(target, receipt, NULL);
		}
		if (rival == RIVAL_COMPLETED)
			return false;
		outbox_store_put(target->writer, row->values, row->nulls);
		outbox_store_flush(target->writer);
		*own = target->writer->tids[0];
	}
}

/* ---------------------------------------------------------------- what others call */

/* Receipts [0, count), all of the target's segment and in the writer already. */
static void
flush_receipts(ReceiptTarget *target, OutboxReceipt *receipts, const ReceiptRow *rows, int count)
{
	ItemPointerData tids[OUTBOX_WRITER_SLOTS];
	bool		conflicts[OUTBOX_WRITER_SLOTS];

	if (count == 0)
		return;
	outbox_store_flush(target->writer);
	memcpy(tids, target->writer->tids, count * sizeof(ItemPointerData));
	memcpy(conflicts, target->writer->conflicts, count * sizeof(bool));
	for (int i = 0; i < count; i++)
		receipts[i].fresh = !conflicts[i] || contend(target, &receipts[i], &rows[i], &tids[i]);
}

void
outbox_receipt_write(int32 subscription_id, int64 batch_id, OutboxReceipt *receipts, int count,
					 Datum message_id, OutboxPatience *patience)
{
	ReceiptTarget target = {.subscription_id = subscription_id, .patience = patience};
	ReceiptRow	rows[OUTBOX_WRITER_SLOTS];
	int			start = 0;

	while (start < count)
	{
		int			n = 0;

		open_target(&target, &receipts[start].event_id);
		while (n < OUTBOX_WRITER_SLOTS && start + n < count &&
			   outbox_event_id_compare(&receipts[start + n].event_id, &target.segment.to) < 0)
		{
			fill_row(&rows[n], subscription_id, batch_id, &receipts[start + n], message_id);
			outbox_store_put(target.writer, rows[n].values, rows[n].nulls);
			n++;
		}
		flush_receipts(&target, &receipts[start], rows, n);
		start += n;
	}
	if (target.writer != NULL)
		outbox_store_close_writer(target.writer);
}

bool
outbox_receipt_bar(int32 subscription_id, const pg_uuid_t *event_id, int16 replay_no, OutboxPatience *patience)
{
	ReceiptTarget target = {.subscription_id = subscription_id, .patience = patience};
	OutboxReceipt receipt = {.event_id = *event_id, .replay_no = replay_no};
	ReceiptRow	row;
	ItemPointerData own;
	bool		barred;

	open_target(&target, event_id);
	fill_row(&row, subscription_id, BAR, &receipt, (Datum) 0);
	outbox_store_put(target.writer, row.values, row.nulls);
	outbox_store_flush(target.writer);
	own = target.writer->tids[0];
	barred = !target.writer->conflicts[0] || contend(&target, &receipt, &row, &own);
	if (barred)
		withdraw(&target, &own);
	outbox_store_close_writer(target.writer);
	return barred;
}

bool
outbox_receipt_exists(int32 subscription_id, const pg_uuid_t *event_id, int16 replay_no)
{
	OutboxSegment segment;
	OutboxScan	scan;
	bool		found;

	outbox_segment_find(event_id, &segment);
	begin_receipt_scan(&scan, &segment, SnapshotSelf, subscription_id, event_id, replay_no);
	found = outbox_store_next(&scan, true);
	outbox_store_end_scan(&scan);
	return found;
}
