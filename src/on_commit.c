/*
 * on_commit.c - what is done once the transaction at hand is committed, and not when it is rolled back.
 *
 * An application settles in its own transaction, which may well roll back: what is counted and what is logged waits for
 * the commit, and goes with the (sub)transaction that is rolled back.  A prepared transaction commits elsewhere.
 */
#include "outbox.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "on_commit.h"

static OutboxOnCommit *waiting = NULL;	/* the newest first; in the top transaction's memory */

/* An error here would come from an ended transaction, which ends the server: it is swallowed. */
static void
run_one(OutboxOnCommit *item, bool prepared)
{
	MemoryContext caller = CurrentMemoryContext;
	uint32		held = InterruptHoldoffCount;

	PG_TRY();
	{
		item->run(item, prepared);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		FlushErrorState();
		InterruptHoldoffCount = held;
	}
	PG_END_TRY();
}

static void
run_all(bool prepared)
{
	OutboxOnCommit *oldest = NULL;

	while (waiting != NULL)
	{
		OutboxOnCommit *item = waiting;

		waiting = item->next;
		item->next = oldest;
		oldest = item;
	}
	for (OutboxOnCommit *item = oldest; item != NULL; item = item->next)
		run_one(item, prepared);
}

static void
end_transaction(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_PREPARE)
		run_all(event == XACT_EVENT_PREPARE);
	else if (event == XACT_EVENT_ABORT)
		waiting = NULL;
}

/* Those within the one that is rolled back have higher numbers. */
static void
end_subtransaction(SubXactEvent event, SubTransactionId mine, SubTransactionId parent, void *arg)
{
	while (event == SUBXACT_EVENT_ABORT_SUB && waiting != NULL && waiting->subtransaction >= mine)
		waiting = waiting->next;
}

void *
outbox_on_commit_put(Size size, void (*run) (OutboxOnCommit *self, bool prepared))
{
	static bool registered = false;
	OutboxOnCommit *item;

	Assert(size >= sizeof(OutboxOnCommit));
	if (!registered)
	{
		RegisterXactCallback(end_transaction, NULL);
		RegisterSubXactCallback(end_subtransaction, NULL);
		registered = true;
	}
	item = MemoryContextAllocZero(TopTransactionContext, size);
	item->next = waiting;
	item->subtransaction = GetCurrentSubTransactionId();
	item->run = run;
	waiting = item;
	return item;
}
