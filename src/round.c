/*
 * round.c - what the parts of a worker's round share.
 *
 * A round takes several transactions; what it needs lives in a memory context of its own.  What it
 * learns of a subscription is remembered for as long as the process lives.
 */
#include "outbox.h"

#include <math.h>

#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "passage.h"
#include "round.h"
#include "settings.h"
#include "transaction.h"

#define FIRST_BATCH			32	/* events; doubles while all goes well */
#define RECHECK_MS			20	/* when there is work, but not for us just now */
#define BARRED_US			(50 * 1000) /* before the lanes that somebody wants are looked at again */

MemoryContext outbox_round_context = NULL;

static HTAB *memos = NULL;

OutboxMemo *
outbox_round_memo(int32 subscription_id)
{
	bool		found;
	OutboxMemo *memo;

	if (memos == NULL)
	{
		HASHCTL		ctl = {.keysize = sizeof(int32), .entrysize = sizeof(OutboxMemo), .hcxt = TopMemoryContext};

		memos = hash_create("outbox subscriptions at work", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	memo = hash_search(memos, &subscription_id, HASH_ENTER, &found);
	if (!found)
	{
		memset(memo, 0, sizeof(*memo));
		memo->subscription_id = subscription_id;
		memo->next_full_look = 0;
		memo->not_before = 0;
		memo->next_due = DT_NOEND;
		memo->batch_limit = FIRST_BATCH;
		memo->front_after = -1;
	}
	return memo;
}

/* Somebody wants its lanes. */
void
outbox_round_leave_alone(OutboxMemo *memo)
{
	memo->look_again = true;
	memo->not_before = Max(memo->not_before, outbox_settings_ticks() + BARRED_US);
}

void
outbox_round_begin_transaction(void)
{
	outbox_transaction_begin(outbox_round_context);
}

void
outbox_round_commit_transaction(void)
{
	outbox_transaction_commit(outbox_round_context);
}

void
outbox_round_announce(OutboxRound *round)
{
	pg_atomic_write_u32(&round->self->call_us, (uint32) Min(ceil(round->memo->average_us), PG_INT32_MAX));
	pg_atomic_write_u32(&round->self->subscription_id, round->subscription->id);
}

void
outbox_round_note_barred(OutboxRound *round)
{
	round->barred = true;
	outbox_round_leave_alone(round->memo);
}

bool
outbox_round_enter(OutboxRound *round)
{
	if (!outbox_passage_enter_as_handler(round->subscription))
		outbox_round_note_barred(round);
	return !round->barred;
}

long
outbox_round_sleep_time(OutboxRound *round)
{
	HASH_SEQ_STATUS all;
	OutboxMemo *memo;
	int64		next = round->ticks + (int64) outbox_poll_interval * 1000;

	if (memos == NULL)
		return outbox_poll_interval;
	hash_seq_init(&all, memos);
	while ((memo = hash_seq_search(&all)) != NULL)
	{
		/* what waits in one that is paused, or gone, is not due */
		if (memo->listed_at != round->ticks)
			continue;
		if (memo->next_due != DT_NOEND)
			next = Min(next, Max(round->ticks + (memo->next_due - round->now), memo->not_before));
		if (memo->look_again && memo->not_before > round->ticks)
			next = Min(next, memo->not_before);
	}
	if (next <= round->ticks || round->recheck)
		return Min(outbox_poll_interval, RECHECK_MS);
	return Min((long) outbox_poll_interval, (next - round->ticks) / 1000 + 1);
}
