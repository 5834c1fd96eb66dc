/*
 * claim_count.c - what external workers complete, counted once it is committed.
 *
 * An application settles in its own transaction, which may well roll back: what is to be counted waits for
 * the commit, and goes with the (sub)transaction that is rolled back.  What a prepared transaction completes
 * is not counted: it commits elsewhere.
 */
#include "outbox.h"

#include "access/xact.h"
#include "utils/memutils.h"

#include "claim_count.h"
#include "counters.h"
#include "event_id.h"

typedef struct Completed
{
	struct Completed *next;		/* of an earlier call */
	SubTransactionId subtransaction;
	int32		subscription_id;
	TimestampTz claimed_at;
	TimestampTz completed_at;
	int			count;
	TimestampTz published_at[FLEXIBLE_ARRAY_MEMBER];
} Completed;

static Completed *waiting = NULL;	/* in the top transaction's memory */

static void
count_all(void)
{
	for (Completed *c = waiting; c != NULL; c = c->next)
	{
		for (int i = 0; i < c->count; i++)
			outbox_counters_completed(c->subscription_id, c->completed_at - c->claimed_at,
									  c->claimed_at - c->published_at[i], c->completed_at - c->published_at[i]);
	}
}

static void
end_transaction(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT)
		count_all();
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
		waiting = NULL;
}

/* Those within the one that is rolled back have higher numbers. */
static void
end_subtransaction(SubXactEvent event, SubTransactionId mine, SubTransactionId parent, void *arg)
{
	while (event == SUBXACT_EVENT_ABORT_SUB && waiting != NULL && waiting->subtransaction >= mine)
		waiting = waiting->next;
}

void
outbox_claim_count_completed(int32 subscription_id, TimestampTz claimed_at, TimestampTz completed_at,
							 const OutboxReceipt *receipts, int count)
{
	static bool registered = false;
	Completed  *c;

	if (!registered)
	{
		RegisterXactCallback(end_transaction, NULL);
		RegisterSubXactCallback(end_subtransaction, NULL);
		registered = true;
	}
	c = MemoryContextAlloc(TopTransactionContext, offsetof(Completed, published_at) + count * sizeof(TimestampTz));
	c->next = waiting;
	c->subtransaction = GetCurrentSubTransactionId();
	c->subscription_id = subscription_id;
	c->claimed_at = claimed_at;
	c->completed_at = completed_at;
	c->count = 0;
	for (int i = 0; i < count; i++)
	{
		if (receipts[i].fresh)
			c->published_at[c->count++] = outbox_event_id_time_to(outbox_event_id_time_of(&receipts[i].event_id));
	}
	waiting = c;
}
