/* first_row.h - be the first with a key, or learn who was: of a table whose only unique index is its primary key. */
#ifndef OUTBOX_FIRST_ROW_H
#define OUTBOX_FIRST_ROW_H

#include "outbox.h"

#include "executor/tuptable.h"
#include "nodes/execnodes.h"
#include "storage/itemptr.h"
#include "utils/relcache.h"

typedef struct OutboxFirstRow
{
	Relation	rel;
	ResultRelInfo *rri;
	EState	   *estate;
	TupleTableSlot *row;		/* ours */
	TupleTableSlot *first;		/* the one that has the key */
	ItemPointerData first_tid;
} OutboxFirstRow;

extern void outbox_first_row_open(OutboxFirstRow *table, const char *relname);

/*
 * Insert a row without nulls, in the transaction at hand.  False when another row has its key, also one that the caller's snapshot does
 * not see: that one is then in `first`.  Waits for an open transaction that has the key.
 */
extern bool outbox_first_row_insert(OutboxFirstRow *table, const Datum *values);

extern void outbox_first_row_close(OutboxFirstRow *table);	/* keeps the lock */

#endif							/* OUTBOX_FIRST_ROW_H */
