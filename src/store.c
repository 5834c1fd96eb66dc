/*
 * store.c - direct table access for the hot path, saved statements for the rest.
 *
 * Rows are inserted as COPY does it: table access method, then the indexes
 * through the executor, so that an index of any kind that an administrator
 * adds is kept up.  No permission is checked here and no trigger fires: these
 * are the extension's own tables, written by the extension alone.
 */
#include "outbox.h"

#include "access/multixact.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "nodes/makefuncs.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "store.h"

/* ---------------------------------------------------------------- opening */

Relation
outbox_store_open(Oid relid, LOCKMODE mode)
{
	Relation	rel = try_table_open(relid, mode);

	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("a table of extension \"%s\" was dropped meanwhile", OUTBOX_LIBRARY),
				 errhint("When the extension has been created again, repeat the transaction.")));
	return rel;
}

/* ---------------------------------------------------------------- inserting */

OutboxWriter *
outbox_store_open_writer(Oid relid)
{
	OutboxWriter *writer = palloc0(sizeof(OutboxWriter));

	writer->rel = outbox_store_open(relid, RowExclusiveLock);
	writer->estate = CreateExecutorState();
	writer->rri = makeNode(ResultRelInfo);
	InitResultRelInfo(writer->rri, writer->rel, 0, NULL, 0);
	ExecOpenIndices(writer->rri, false);
	return writer;
}

/* The slot for the next row, made at its first use. */
static TupleTableSlot *
next_slot(OutboxWriter *writer)
{
	if (writer->slots[writer->nslots] == NULL)
		writer->slots[writer->nslots] = table_slot_create(writer->rel, NULL);
	return writer->slots[writer->nslots++];
}

/*
 * Values are not copied before the flush: they must stay where they are until then.
 */
void
outbox_store_put(OutboxWriter *writer, const Datum *values, const bool *nulls)
{
	TupleTableSlot *slot;
	int			natts = RelationGetDescr(writer->rel)->natts;

	if (writer->nslots == OUTBOX_WRITER_SLOTS)
		outbox_store_flush(writer);
	slot = next_slot(writer);
	ExecClearTuple(slot);
	memcpy(slot->tts_values, values, natts * sizeof(Datum));
	memcpy(slot->tts_isnull, nulls, natts * sizeof(bool));
	ExecStoreVirtualTuple(slot);
}

void
outbox_store_flush(OutboxWriter *writer)
{
	CommandId	cid = GetCurrentCommandId(true);

	if (writer->nslots == 0)
		return;
	if (writer->nslots == 1)
		table_tuple_insert(writer->rel, writer->slots[0], cid, 0, writer->bistate);
	else
	{
		if (writer->bistate == NULL)
			writer->bistate = GetBulkInsertState();
		table_multi_insert(writer->rel, writer->slots, writer->nslots, cid, 0, writer->bistate);
	}
	if (writer->rri->ri_NumIndices > 0)
	{
		for (int i = 0; i < writer->nslots; i++)
		{
			writer->conflicts[i] = false;
			(void) outbox_compat_insert_index_tuples(writer->rri, writer->slots[i], writer->estate, writer->tolerant,
													 writer->tolerant ? &writer->conflicts[i] : NULL, NIL);
			ResetPerTupleExprContext(writer->estate);
		}
	}
	for (int i = 0; i < writer->nslots; i++)
	{
		writer->tids[i] = writer->slots[i]->tts_tid;
		ExecClearTuple(writer->slots[i]);
	}
	writer->nslots = 0;
}

void
outbox_store_replace(OutboxWriter *writer, ItemPointer tid, const Datum *values, const bool *nulls)
{
	ItemPointerData at = *tid;
	OUTBOX_COMPAT_UPDATE_INDEXES which;
	TupleTableSlot *slot;

	outbox_store_flush(writer);
	outbox_store_put(writer, values, nulls);
	slot = writer->slots[--writer->nslots];
	simple_table_tuple_update(writer->rel, &at, slot, GetActiveSnapshot(), &which);
	(void) outbox_compat_update_index_tuples(writer->rri, slot, writer->estate, which);
	ResetPerTupleExprContext(writer->estate);
	ExecClearTuple(slot);
}

void
outbox_store_close_writer(OutboxWriter *writer)
{
	outbox_store_flush(writer);
	for (int i = 0; i < OUTBOX_WRITER_SLOTS && writer->slots[i] != NULL; i++)
		ExecDropSingleTupleTableSlot(writer->slots[i]);
	if (writer->bistate != NULL)
		FreeBulkInsertState(writer->bistate);
	ExecCloseIndices(writer->rri);
	FreeExecutorState(writer->estate);
	table_close(writer->rel, NoLock);
	pfree(writer);
}

/* ---------------------------------------------------------------- deleting */

bool
outbox_store_delete(Relation rel, ItemPointer tid)
{
	TM_FailureData failure;

	return table_tuple_delete(rel, tid, GetCurrentCommandId(true), GetActiveSnapshot(), InvalidSnapshot,
							  true, &failure, false) == TM_Ok;
}

/* ---------------------------------------------------------------- locking */

OutboxRowLock
outbox_store_lock(Relation rel, const ItemPointerData *tid, LockTupleMode mode, TupleTableSlot *slot)
{
	ItemPointerData at = *tid;
	TM_FailureData failure;

	switch (table_tuple_lock(rel, &at, SnapshotSelf, slot, GetCurrentCommandId(true), mode, LockWaitSkip,
							 TUPLE_LOCK_FLAG_FIND_LAST_VERSION, &failure))
	{
		case TM_Ok:
			return ROW_LOCKED;
		case TM_WouldBlock:
			return ROW_BUSY;
		default:
			return ROW_GONE;
	}
}

bool
outbox_store_is_held(TupleTableSlot *slot)
{
	Buffer		buffer = ((BufferHeapTupleTableSlot *) slot)->buffer;
	HeapTupleHeader header = ((BufferHeapTupleTableSlot *) slot)->base.tuple->t_data;
	TransactionId xmax;
	uint16		infomask;

	Assert(TTS_IS_BUFFERTUPLE(slot) && BufferIsValid(buffer));
	/* the two belong together */
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	xmax = HeapTupleHeaderGetRawXmax(header);
	infomask = header->t_infomask;
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	if (infomask & HEAP_XMAX_INVALID)
		return false;
	if (infomask & HEAP_XMAX_IS_MULTI)
		return MultiXactIdIsRunning(xmax, HEAP_XMAX_IS_LOCKED_ONLY(infomask));
	return TransactionIdIsInProgress(xmax);
}

/* ---------------------------------------------------------------- scanning */

Oid
outbox_store_primary_key(Oid relid)
{
	Relation	rel = outbox_store_open(relid, AccessShareLock);
	Oid			index;

	(void) RelationGetIndexList(rel);
	index = rel->rd_pkindex;
	table_close(rel, NoLock);
	if (!OidIsValid(index))
		elog(ERROR, "relation %u has no primary key", relid);
	return index;
}

void
outbox_store_begin_scan(OutboxScan *scan, Oid relid, Oid indexid, Snapshot snapshot, int nkeys)
{
	Assert(nkeys <= lengthof(scan->keys));
	scan->rel = outbox_store_open(relid, AccessShareLock);
	scan->index = index_open(indexid, AccessShareLock);
	scan->scan = outbox_compat_index_beginscan(scan->rel, scan->index, snapshot, nkeys);
	scan->slot = table_slot_create(scan->rel, NULL);
	scan->nkeys = nkeys;
	memset(scan->keys, 0, sizeof(scan->keys));
}

/*
 * The comparison procedure of a btree strategy on a column of the index.  Scans begin often, and most of them on these types:
 * for them nothing is looked up.
 */
static RegProcedure
strategy_procedure(Relation index, int column, int strategy)
{
	static const struct
	{
		Oid			type;
		RegProcedure procedures[BTMaxStrategyNumber];
	}			known[] = {
		{UUIDOID, {F_UUID_LT, F_UUID_LE, F_UUID_EQ, F_UUID_GE, F_UUID_GT}},
		{INT8OID, {F_INT8LT, F_INT8LE, F_INT8EQ, F_INT8GE, F_INT8GT}},
		{INT4OID, {F_INT4LT, F_INT4LE, F_INT4EQ, F_INT4GE, F_INT4GT}}
	};
	Oid			input = index->rd_opcintype[column];

	for (int i = 0; i < lengthof(known); i++)
	{
		if (known[i].type == input)
			return known[i].procedures[strategy - 1];
	}
	return get_opcode(get_opfamily_member(index->rd_opfamily[column], input, input, strategy));
}

void
outbox_store_set_key(OutboxScan *scan, int i, int strategy, Datum value)
{
	ScanKey		key = &scan->keys[i];

	Assert(i < scan->nkeys);
	if (key->sk_attno == 0 || key->sk_strategy != strategy)
	{
		ScanKeyEntryInitialize(key, 0, i + 1, strategy, InvalidOid, scan->index->rd_indcollation[i],
							   strategy_procedure(scan->index, i, strategy), value);
	}
	else
		key->sk_argument = value;
}

void
outbox_store_rescan(OutboxScan *scan)
{
	index_rescan(scan->scan, scan->keys, scan->nkeys, NULL, 0);
}

bool
outbox_store_next(OutboxScan *scan, bool forward)
{
	return index_getnext_slot(scan->scan, forward ? ForwardScanDirection : BackwardScanDirection, scan->slot);
}

void
outbox_store_want_entries(OutboxScan *scan)
{
	scan->scan->xs_want_itup = true;
}

bool
outbox_store_next_entry(OutboxScan *scan)
{
	Assert(scan->scan->xs_want_itup);
	return index_getnext_tid(scan->scan, ForwardScanDirection) != NULL;
}

Datum
outbox_store_entry_value(OutboxScan *scan, int column)
{
	bool		isnull;

	return index_getattr(scan->scan->xs_itup, column, scan->scan->xs_itupdesc, &isnull);
}

bool
outbox_store_read_entry(OutboxScan *scan)
{
	return index_fetch_heap(scan->scan, scan->slot);
}

void
outbox_store_end_scan(OutboxScan *scan)
{
	index_endscan(scan->scan);
	ExecDropSingleTupleTableSlot(scan->slot);
	index_close(scan->index, NoLock);
	table_close(scan->rel, NoLock);
}

/* ---------------------------------------------------------------- statements */

static void
plan_statement(OutboxStatement *statement)
{
	SPIPlanPtr	plan;

	if (statement->plan != NULL)
		return;
	plan = SPI_prepare(statement->sql, statement->nargs, statement->argtypes);
	if (plan == NULL)
		elog(ERROR, "could not prepare a statement: %s", SPI_result_code_string(SPI_result));
	if (SPI_keepplan(plan) != 0)
		elog(ERROR, "could not keep a plan");
	statement->plan = plan;
}

uint64
outbox_store_run(OutboxStatement *statement, const Datum *values, const char *nulls, long limit)
{
	MemoryContext caller = CurrentMemoryContext;
	int			result;

	plan_statement(statement);
	result = SPI_execute_plan(statement->plan, unconstify(Datum *, values), nulls, false, limit);
	if (result < 0)
		elog(ERROR, "could not run a statement: %s", SPI_result_code_string(result));
	MemoryContextSwitchTo(caller);
	return SPI_processed;
}

uint64
outbox_store_run_latest(OutboxStatement *statement, const Datum *values, const char *nulls, long limit)
{
	MemoryContext caller = CurrentMemoryContext;
	Snapshot	snapshot;
	int			result;

	plan_statement(statement);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	result = SPI_execute_snapshot(statement->plan, unconstify(Datum *, values), nulls, snapshot, InvalidSnapshot,
								  true, false, limit);
	UnregisterSnapshot(snapshot);
	if (result < 0)
		elog(ERROR, "could not run a statement: %s", SPI_result_code_string(result));
	MemoryContextSwitchTo(caller);
	return SPI_processed;
}

Datum
outbox_store_value(uint64 row, int column, bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column, isnull);
}

char *
outbox_store_text(uint64 row, int column)
{
	bool		isnull;
	Datum		value = outbox_store_value(row, column, &isnull);

	return isnull ? NULL : TextDatumGetCString(value);
}
