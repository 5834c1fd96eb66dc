/*
 * first_row.c - be the first with a key, or learn who was.
 *
 * Insert first, as INSERT ... ON CONFLICT does it: a speculative row that is
 * taken back when another one turns out to have the key.  Who has the key is read
 * by what is true now and not by the caller's snapshot, so the answer is the
 * same at every isolation level: to come second is no serialization
 * failure, and those with different keys never meet.
 */
#include "outbox.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "extension.h"
#include "first_row.h"
#include "store.h"

void
outbox_first_row_open(OutboxFirstRow *table, const char *relname)
{
	table->rel = outbox_store_open(outbox_extension_relid(relname), RowExclusiveLock);
	table->estate = CreateExecutorState();
	table->rri = makeNode(ResultRelInfo);
	InitResultRelInfo(table->rri, table->rel, 0, NULL, 0);
	ExecOpenIndices(table->rri, true);
	table->row = table_slot_create(table->rel, NULL);
	table->first = table_slot_create(table->rel, NULL);
	ItemPointerSetInvalid(&table->first_tid);
}

void
outbox_first_row_close(OutboxFirstRow *table)
{
	ExecDropSingleTupleTableSlot(table->row);
	ExecDropSingleTupleTableSlot(table->first);
	ExecCloseIndices(table->rri);
	FreeExecutorState(table->estate);
	table_close(table->rel, NoLock);
}

static void
fill_row(TupleTableSlot *row, const Datum *values)
{
	int			n = row->tts_tupleDescriptor->natts;

	ExecClearTuple(row);
	memcpy(row->tts_values, values, n * sizeof(Datum));
	memset(row->tts_isnull, false, n * sizeof(bool));
	ExecStoreVirtualTuple(row);
}

/* False when another row has taken the key at the same moment; ours is gone then. */
static bool
insert_speculatively(OutboxFirstRow *table)
{
	uint32		token = SpeculativeInsertionLockAcquire(GetCurrentTransactionId());
	bool		conflict = false;

	table_tuple_insert_speculative(table->rel, table->row, GetCurrentCommandId(true), 0, NULL, token);
	(void) outbox_compat_insert_index_tuples(table->rri, table->row, table->estate, true, &conflict, NIL);
	table_tuple_complete_speculative(table->rel, table->row, token, !conflict);
	SpeculativeInsertionLockRelease(GetCurrentTransactionId());
	return !conflict;
}

/*
 * Each turn ends in one of three ways: the key is ours, it is another's, or the other row went
 * away in between.  The check waits for open transactions.
 */
bool
outbox_first_row_insert(OutboxFirstRow *table, const Datum *values)
{
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		ResetPerTupleExprContext(table->estate);
		fill_row(table->row, values);
		if (outbox_compat_check_index_constraints(table->rri, table->row, table->estate, &table->first_tid))
		{
			if (insert_speculatively(table))
				return true;
		}
		else if (table_tuple_fetch_row_version(table->rel, &table->first_tid, SnapshotAny, table->first))
			return false;
	}
}
