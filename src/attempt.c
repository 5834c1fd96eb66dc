/*
 * attempt.c - run a batch of a worker's round, and draw the conclusions.
 *
 * A batch that failed is run again in smaller parts, in the same order: first
 * what came before the failed call, then that delivery alone at the front.
 * Only a delivery that fails at the front, with nothing before it in its
 * transaction, has used an attempt.
 */
#include "outbox.h"

#include "pgstat.h"
#include "utils/timestamp.h"

#include "attempt.h"
#include "settings.h"

#define CONFLICT_RETRIES	3	/* of a serialization failure or deadlock, at once and for free */

bool
outbox_attempt_is_conflict(const OutboxBatch *batch)
{
	return strcmp(batch->failure.sqlstate, "40001") == 0 || strcmp(batch->failure.sqlstate, "40P01") == 0;
}

/* In a transaction of its own: the delivery at the front has used an attempt. */
static void
record_failure(OutboxRound *round, OutboxBatch *batch, OutboxDelivery *d)
{
	OutboxEventReader *reader;
	TupleTableSlot *event;

	outbox_round_begin_transaction();
	if (outbox_lease_lock(d->lane))
	{
		if (batch->source == BATCH_STARTED)
			outbox_settle_fail_started(round->subscription, d, &batch->failure, round->self);
		else
		{
			reader = outbox_batch_open_reader(NULL);
			if (outbox_batch_read_event(reader, &d->event_id, NULL, &event))
				outbox_batch_read_key(round->subscription, d->lane->lane, event, d);
			outbox_batch_close_reader(reader);
			if (batch->source == BATCH_FROM_LANES)
				outbox_batch_park_before(batch, d);
			outbox_settle_fail_first(round->subscription, d, &batch->failure, round->self);
		}
	}
	outbox_round_commit_transaction();
	d->lane->touched = true;
	if (!d->lane->held)
		return;
	d->lane->has_gate |= (d->event_key != NULL);
	if (batch->source == BATCH_FROM_LANES)
		d->lane->cursor = Max(d->lane->cursor, d->position);
}

void
outbox_attempt_record_ended(OutboxRound *round, OutboxBatch *batch, OutboxDelivery *d)
{
	OutboxFailure ended = {.sqlstate = "57P01", .code = OUTBOX_CODE_WORKER_DIED};

	batch->failure = ended;
	record_failure(round, batch, d);
}

void
outbox_attempt_put_back(OutboxRound *round, OutboxDelivery *d)
{
	outbox_round_begin_transaction();
	if (outbox_lease_lock(d->lane))
		outbox_settle_put_back(round->subscription, d);
	outbox_round_commit_transaction();
}

/* Was a handler at work ended by SIGTERM, and not because this process was asked to make way, which no handler brings about? */
static bool
was_ended_by_somebody(const OutboxRound *round, const OutboxBatch *batch)
{
	return batch->failed && !batch->barred && batch->count > 0 && batch->stage == STAGE_HANDLER &&
		batch->interruption == INTERRUPTED_SHUTDOWN && !round->self->asked;
}

/*
 * An administrator's SIGTERM uses no attempt.  But when it ends the handler of one event
 * again and again, the handler may be what sends it: then the lanes are worked carefully, and
 * the event pays (see run_started in dispatch.c).  Each event is counted by itself: two that are due take turns.
 */
static void
note_interrupted(OutboxRound *round, OutboxBatch *batch)
{
	if (!was_ended_by_somebody(round, batch))
		return;
	batch->interrupted_times =
		outbox_shmem_count_interruption(round->db, round->subscription->id,
										&batch->deliveries[Max(batch->failed_index, 0)].event_id);
	/* whoever comes in our place begins with the next one, or one that ends all workers would be all they serve */
	pg_atomic_write_u32(&round->db->next_subscription, (uint32) round->subscription->id + 1);
	if (batch->interrupted_times < 2 || batch->source == BATCH_STARTED)
		return;
	outbox_round_begin_transaction();
	for (int i = 0; i < batch->nlanes; i++)
		outbox_lease_mark_careful(round->subscription, batch->lanes[i]);
	outbox_round_commit_transaction();
}

/* Which smaller part of the batch to run next, or whose failure it is. */
static void
handle_failure(OutboxRound *round, OutboxBatch *batch)
{
	OutboxMemo *memo = round->memo;
	bool		alone = batch->count == 1 || (batch->failed_index == 0 && batch->failed_count == 1);

	memo->look_again = true;
	if (batch->interruption == INTERRUPTED_SHUTDOWN)
	{
		note_interrupted(round, batch);
		return;
	}
	if (batch->stage == STAGE_RECEIPTS)
	{
		if (memo->check_receipts)
		{
			memo->not_before = outbox_settings_ticks() + PROBLEM_PAUSE_US;
			ereport(LOG,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("receipts of subscription \"%s\" cannot be written now, code %s",
							round->subscription->name, batch->failure.sqlstate),
					 errhint("Another transaction, perhaps a prepared one, holds them; no attempt is used.")));
		}
		memo->check_receipts = true;
	}
	else if (alone)
	{
		if (outbox_attempt_is_conflict(batch) && memo->conflicts++ < CONFLICT_RETRIES)
			return;
		memo->conflicts = 0;
		record_failure(round, batch, &batch->deliveries[0]);
		memo->batch_limit = Max(1, memo->batch_limit / 2);	/* what is undone with a failure costs */
		memo->single_left = Max(0, memo->single_left - 1);
	}
	else if (batch->failed_index > 0)
	{
		memo->limit_once = batch->failed_index;
		/* a batch handler's call that came too late in its batch is the first one of the next */
		memo->single_after = round->handler.batch && batch->interruption == INTERRUPTED_DEADLINE ? 0 : batch->failed_count;
		memo->front_after = batch->deliveries[batch->failed_index].lane->lane;
	}
	else if (batch->interruption == INTERRUPTED_DEADLINE)
	{
		memo->batch_limit = memo->limit_once = Max(1, batch->failed_count / 2);
		memo->single_after = 0;
	}
	else
		memo->single_left = batch->failed_count;
}

static void
handle_success(OutboxRound *round, OutboxBatch *batch)
{
	OutboxMemo *memo = round->memo;

	if (batch->completed > 0)
	{
		memo->conflicts = 0;
		memo->average_us = memo->average_us == 0 ? batch->average_us : (memo->average_us * 3 + batch->average_us) / 4;
		if (round->guard.failures > 0 || round->guard.level > 0)
		{
			outbox_round_begin_transaction();
			outbox_settle_note_success(round->subscription);
			outbox_round_commit_transaction();
			round->guard.failures = round->guard.level = 0;
		}
	}
	if (batch->source == BATCH_STARTED)
		return;
	memo->check_receipts = false;
	if (memo->limit_once > 0)
	{
		memo->limit_once = 0;
		memo->single_left = memo->single_after;
		memo->front_lane = memo->front_after >= 0 ? memo->front_after : memo->front_lane;
		memo->front_after = -1;
	}
	else if (memo->single_left > 0)
		memo->single_left -= Min(memo->single_left, Max(1, batch->count));
	else
		memo->batch_limit = Min(memo->batch_limit * 2, OUTBOX_BATCH_SIZE_MAX);
}

void
outbox_attempt_run_batch(OutboxRound *round, OutboxBatch *batch)
{
	pgstat_report_activity(STATE_RUNNING, psprintf("subscription %s", round->subscription->name));
	memset(&round->self->event_id, 0, sizeof(pg_uuid_t));
	outbox_round_announce(round);
	pg_atomic_write_u64(&round->self->busy_since, GetCurrentTimestamp());
	outbox_batch_run(batch);
	/* the views take a process that names an event for one that is at it */
	memset(&round->self->event_id, 0, sizeof(pg_uuid_t));
	pg_atomic_write_u64(&round->self->busy_since, 0);
	pg_atomic_write_u32(&round->self->subscription_id, 0);
	MemoryContextSwitchTo(outbox_round_context);
	if (batch->barred)
		outbox_round_note_barred(round);
	else if (batch->failed)
		handle_failure(round, batch);
	else
		handle_success(round, batch);
	round->did_something |= batch->failed || batch->completed > 0 || batch->moved > 0;
}
