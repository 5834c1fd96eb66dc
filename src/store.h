/*
 * store.h - direct table access and saved SQL statements.
 *
 * Direct access is for the hot path: no permission check, no plan.  Everything
 * else goes through saved plans with constant text.
 */
#ifndef OUTBOX_STORE_H
#define OUTBOX_STORE_H

#include "outbox.h"

#include "access/heapam.h"
#include "access/relscan.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "nodes/execnodes.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

/* a table of ours, whose OID may be that of an extension which another transaction has dropped while the lock was waited for */
extern Relation outbox_store_open(Oid relid, LOCKMODE mode);

#define OUTBOX_WRITER_SLOTS 64

/*
 * Inserts rows into one table and its indexes.  Rows are buffered up to
 * OUTBOX_WRITER_SLOTS and written with one multi-insert; flush before anything
 * must see them.  Lives in the memory context it was opened in.
 */
typedef struct OutboxWriter
{
	Relation	rel;
	ResultRelInfo *rri;
	EState	   *estate;
	BulkInsertState bistate;
	int			nslots;
	TupleTableSlot *slots[OUTBOX_WRITER_SLOTS];
	ItemPointerData tids[OUTBOX_WRITER_SLOTS];	/* of the rows of the last flush */
	bool		tolerant;		/* rows that may be there already are written too, and told in: */
	bool		conflicts[OUTBOX_WRITER_SLOTS];
} OutboxWriter;

extern OutboxWriter *outbox_store_open_writer(Oid relid);
extern void outbox_store_put(OutboxWriter *writer, const Datum *values, const bool *nulls);
extern void outbox_store_flush(OutboxWriter *writer);

/* a row in place of the one at tid, which this transaction has locked; at once */
extern void outbox_store_replace(OutboxWriter *writer, ItemPointer tid, const Datum *values, const bool *nulls);
extern void outbox_store_close_writer(OutboxWriter *writer);	/* flushes; keeps the lock */

/*
 * A scan of one index of a table, in index order.  nkeys equality keys on the
 * leading columns, then optionally a bound on the next one.
 */
typedef struct OutboxScan
{
	Relation	rel;
	Relation	index;
	IndexScanDesc scan;
	TupleTableSlot *slot;
	int			nkeys;
	ScanKeyData keys[4];
} OutboxScan;

extern void outbox_store_begin_scan(OutboxScan *scan, Oid relid, Oid indexid, Snapshot snapshot, int nkeys);

/* key number i (0 ..) on index column i + 1: strategy is BTEqualStrategyNumber etc., type by the column's */
extern void outbox_store_set_key(OutboxScan *scan, int i, int strategy, Datum value);
extern void outbox_store_rescan(OutboxScan *scan);
extern bool outbox_store_next(OutboxScan *scan, bool forward);	/* the row is in scan->slot */
extern void outbox_store_end_scan(OutboxScan *scan);

/*
 * The same by entries of the index, without their rows: to be said before the first rescan.  An entry's row may be one that the
 * snapshot does not see; then outbox_store_read_entry() is false.
 */
extern void outbox_store_want_entries(OutboxScan *scan);
extern bool outbox_store_next_entry(OutboxScan *scan);	/* forward */
extern Datum outbox_store_entry_value(OutboxScan *scan, int column);	/* index column, from 1, not null */
extern bool outbox_store_read_entry(OutboxScan *scan);	/* the row is in scan->slot */

/* delete a row that this session found; false when somebody else was first */
extern bool outbox_store_delete(Relation rel, ItemPointer tid);

typedef enum OutboxRowLock
{
	ROW_LOCKED,
	ROW_BUSY,					/* somebody else has it */
	ROW_GONE
} OutboxRowLock;

/*
 * Lock a row that was found at tid, in its newest version, which is then in the slot; whatever
 * the snapshot and the isolation level.  Never waits.
 */
extern OutboxRowLock outbox_store_lock(Relation rel, const ItemPointerData *tid, LockTupleMode mode, TupleTableSlot *slot);

/* Has a transaction that is still open locked the row in the slot, or replaced it?  As a scan returned it; locks nothing. */
extern bool outbox_store_is_held(TupleTableSlot *slot);

/* the primary key's index */
extern Oid	outbox_store_primary_key(Oid relid);

/*
 * A statement with constant text, planned once a session.  Returns SPI's
 * result code; rows are in SPI_tuptable.  The caller is connected to SPI and,
 * unless it is one of our processes, within outbox_session_enter().
 */
typedef struct OutboxStatement
{
	const char *sql;
	int			nargs;
	Oid			argtypes[24];
	SPIPlanPtr	plan;
} OutboxStatement;

extern uint64 outbox_store_run(OutboxStatement *statement, const Datum *values, const char *nulls, long limit);

/* the same for a query, by what is committed now, whatever the transaction's snapshot */
extern uint64 outbox_store_run_latest(OutboxStatement *statement, const Datum *values, const char *nulls, long limit);

/* column `column` (1 ..) of row `row` of SPI_tuptable */
extern Datum outbox_store_value(uint64 row, int column, bool *isnull);
extern char *outbox_store_text(uint64 row, int column); /* NULL for null; palloc'd */

#endif							/* OUTBOX_STORE_H */
