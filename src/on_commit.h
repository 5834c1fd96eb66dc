/* on_commit.h - what is done once the transaction at hand is committed, and not when it is rolled back. */
#ifndef OUTBOX_ON_COMMIT_H
#define OUTBOX_ON_COMMIT_H

#include "outbox.h"

/* the beginning of a struct of the caller's */
typedef struct OutboxOnCommit
{
	struct OutboxOnCommit *next;
	SubTransactionId subtransaction;
	void		(*run) (struct OutboxOnCommit *self, bool prepared);
} OutboxOnCommit;

/*
 * One more, of this size, filled with zeros; it lives as long as the transaction.  run() is called in the order of these calls,
 * in the (sub)transaction's turn to commit for good: when others see it.  It may write to the log and to shared memory, and
 * read no table.  prepared: the transaction is only prepared; how it ends is not seen here.
 */
extern void *outbox_on_commit_put(Size size, void (*run) (OutboxOnCommit *self, bool prepared));

#endif							/* OUTBOX_ON_COMMIT_H */
