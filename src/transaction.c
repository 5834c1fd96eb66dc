/*
 * transaction.c - a transaction of one of our processes, which make their rounds in several.
 */
#include "outbox.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "utils/snapmgr.h"

#include "transaction.h"

void
outbox_transaction_begin(MemoryContext context)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	MemoryContextSwitchTo(context);
}

void
outbox_transaction_commit(MemoryContext context)
{
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
}
