/*
 * claim_count.c - what external workers settle, counted once it is committed.
 *
 * An application settles in its own transaction, which may well roll back, and so may a claim that takes an
 * expired lease back: what is to be counted waits for the commit.  What a prepared transaction settles is not
 * counted: it commits elsewhere.
 */
#include "outbox.h"

#include "claim_count.h"
#include "counters.h"
#include "event_id.h"
#include "on_commit.h"

typedef enum Kind
{
	COMPLETED,
	FAILED,
	RECOVERED					/* a lease that expired */
} Kind;

typedef struct Counted
{
	OutboxOnCommit item;
	int32		subscription_id;
	Kind		kind;
	/* failed */
	char		code[OUTBOX_ERROR_CODE_MAX + 1];
	bool		review;
	/* completed */
	TimestampTz claimed_at;
	TimestampTz completed_at;
	int			count;
	TimestampTz published_at[FLEXIBLE_ARRAY_MEMBER];
} Counted;

static void
count(const Counted *c)
{
	switch (c->kind)
	{
		case COMPLETED:
			for (int i = 0; i < c->count; i++)
				outbox_counters_completed(c->subscription_id, c->completed_at - c->claimed_at,
										  c->claimed_at - c->published_at[i], c->completed_at - c->published_at[i]);
			break;
		case FAILED:
			outbox_counters_failed(c->subscription_id, c->code, c->review);
			break;
		case RECOVERED:
			outbox_counters_add(c->subscription_id, TOTAL_RECOVERED, 1);
			break;
	}
}

static void
count_committed(OutboxOnCommit *item, bool prepared)
{
	if (!prepared)
		count((Counted *) item);
}

/* One more, with room for so many times. */
static Counted *
put(int32 subscription_id, Kind kind, int times)
{
	Counted    *c = outbox_on_commit_put(offsetof(Counted, published_at) + times * sizeof(TimestampTz), count_committed);

	c->subscription_id = subscription_id;
	c->kind = kind;
	return c;
}

void
outbox_claim_count_completed(int32 subscription_id, TimestampTz claimed_at, TimestampTz completed_at,
							 const OutboxReceipt *receipts, int count)
{
	Counted    *c = put(subscription_id, COMPLETED, count);

	c->claimed_at = claimed_at;
	c->completed_at = completed_at;
	for (int i = 0; i < count; i++)
	{
		if (receipts[i].fresh)
			c->published_at[c->count++] = outbox_event_id_time_to(outbox_event_id_time_of(&receipts[i].event_id));
	}
}

void
outbox_claim_count_failed(int32 subscription_id, const char *code, bool review)
{
	Counted    *c = put(subscription_id, FAILED, 0);

	strlcpy(c->code, code, sizeof(c->code));
	c->review = review;
}

void
outbox_claim_count_recovered(int32 subscription_id)
{
	(void) put(subscription_id, RECOVERED, 0);
}
