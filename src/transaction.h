/* transaction.h - a transaction of one of our processes. */
#ifndef OUTBOX_TRANSACTION_H
#define OUTBOX_TRANSACTION_H

#include "outbox.h"

#include "utils/palloc.h"

/*
 * With a snapshot and SPI.  Before and after both, memory is taken from the context, in which lives what is
 * needed across SPI and transactions.
 */
extern void outbox_transaction_begin(MemoryContext context);
extern void outbox_transaction_commit(MemoryContext context);

#endif							/* OUTBOX_TRANSACTION_H */
