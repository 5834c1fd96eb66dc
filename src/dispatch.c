/*
 * dispatch.c - what a worker does next.
 *
 * A round serves one subscription: the one whose turn it is among those that have
 * work, so that none waits for more than a round of each other one.  It leases lanes,
 * and then runs, each for at most about outbox.batch_time: retries that are
 * due, open gates, entries that must be worked carefully, one batch from the lanes, and
 * replays, which make way for anything else.
 */
#include "outbox.h"

#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "attempt.h"
#include "batch.h"
#include "dispatch.h"
#include "extension.h"
#include "handler.h"
#include "lease.h"
#include "round.h"
#include "settings.h"
#include "settle.h"
#include "subscription.h"
#include "turn.h"

#define GATE_BATCH			32	/* parked events */
#define CAREFUL_BATCH		4	/* after a holder died */
#define SMALL_BATCH			100 /* who asks for batches up to this gets no larger transactions than that */
#define BATCHES_AT_ONCE		4	/* others share a commit, while outbox.batch_time lasts */
#define KEEP_LEASES_US		(5 * USECS_PER_SEC) /* unused, before they are given back */
#define INTERRUPTED_FOR_FREE 3	/* the same event's handler ended by SIGTERM so often uses an attempt */

/* ---------------------------------------------------------------- leasing lanes */

/* Lanes with work that are not ours: our share of them, more when nobody else takes them. */
static void
lease_lanes(OutboxRound *round)
{
	int			share = Max(1, round->nlanes / Max(1, outbox_workers));
	int			taken = 0;
	int			wanted = 0;
	bool		any_unclean = false;

	for (int i = 0; i < round->nlanes; i++)
		wanted += !round->lanes[i]->held;
	if (wanted == 0)
		return;
	outbox_round_begin_transaction();
	if (!outbox_round_enter(round))
	{
		outbox_round_commit_transaction();
		return;
	}
	/* free ones and those of the dead first, then those whose holder is busy elsewhere */
	for (int pass = 0; pass < 2 && taken < share; pass++)
	{
		for (int i = 0; i < round->nlanes && taken < share; i++)
		{
			OutboxLane *lane = round->lanes[i];

			if (lane->held || outbox_turn_is_free(round, lane) != (pass == 0))
				continue;
			if (pass == 1 && taken + round->nheld > 0)
				break;
			if (!outbox_lease_acquire(round->subscription, lane, round->self))
			{
				round->memo->look_again = true; /* locked for a moment */
				continue;
			}
			taken++;
			any_unclean |= lane->unclean;
			if (outbox_settle_recover(round->subscription, lane, round->self) > 0)
				lane->touched = lane->has_gate = round->did_something = true;	/* look when it is due */
		}
	}
	outbox_round_commit_transaction();
	if (any_unclean)
		round->memo->batch_limit = CAREFUL_BATCH;
}

static void
list_held(OutboxRound *round)
{
	round->held = palloc(Max(1, round->nlanes) * sizeof(OutboxLane *));
	round->nheld = 0;
	for (int i = 0; i < round->nlanes; i++)
	{
		if (round->lanes[i]->held)
		{
			round->lanes[i]->last_used = round->ticks;
			round->held[round->nheld++] = round->lanes[i];
		}
	}
}

/* ---------------------------------------------------------------- single deliveries */

/* Each part of a round has a time of its own, or the first one would leave none to the others. */
static void
begin_part(OutboxRound *round)
{
	round->part_ticks = outbox_settings_ticks();
}

static bool
time_is_up(OutboxRound *round)
{
	return ShutdownRequestPending || round->barred ||
		outbox_settings_ticks() - round->part_ticks >= (int64) outbox_batch_time * 1000 ||
		round->memo->not_before > round->ticks;
}

/* A delivery whose start is on record: run it to an end. */
static void
run_started(OutboxRound *round, OutboxDelivery *d)
{
	OutboxBatch batch = {
		.subscription = round->subscription, .handler = &round->handler, .self = round->self,
		.source = BATCH_STARTED, .nlanes = 1, .lanes = &d->lane, .limit = 1, .lane_limit = 1
	};

	round->memo->conflicts = 0;
	d->lane->touched = true;
	do
	{
		batch.deliveries = d;
		batch.check_receipts = round->memo->check_receipts;
		outbox_attempt_run_batch(round, &batch);
	} while (batch.failed && d->lane->held && !ShutdownRequestPending &&
			 ((batch.stage == STAGE_RECEIPTS && !time_is_up(round)) ||
			  (outbox_attempt_is_conflict(&batch) && round->memo->conflicts > 0)));
	if (batch.interrupted_times >= INTERRUPTED_FOR_FREE)
		outbox_attempt_record_ended(round, &batch, d);
	else if (batch.barred ||
			 (batch.failed && (batch.interruption == INTERRUPTED_SHUTDOWN || batch.stage == STAGE_RECEIPTS ||
							   (outbox_attempt_is_conflict(&batch) && round->memo->conflicts > 0))))
		outbox_attempt_put_back(round, d);
}

/* Run one that is due in the lane, of the live ones or of the replays; false when there is none. */
static bool
run_one_due(OutboxRound *round, OutboxLane *lane, bool replay)
{
	OutboxDelivery d;
	bool		started;

	outbox_round_begin_transaction();
	started = outbox_round_enter(round) && outbox_lease_lock(lane) &&
		outbox_settle_start_due(round->subscription, lane, replay, &d, round->self);
	outbox_round_commit_transaction();
	if (!started)
		return false;
	run_started(round, &d);
	round->did_something = true;
	return true;
}

/* Retries that are due, one after the other. */
static void
run_due(OutboxRound *round, int most)
{
	begin_part(round);
	for (int i = 0; i < round->nheld && most > 0; i++)
	{
		OutboxLane *lane = round->held[i];

		while (lane->has_due && lane->due <= round->now && most > 0 && !time_is_up(round) &&
			   run_one_due(round, lane, false))
			most--;
	}
}

/* Do live deliveries wait in the lanes at hand? */
static bool
has_live_backlog(OutboxRound *round)
{
	for (int i = 0; i < round->nheld; i++)
	{
		OutboxLane *lane = round->held[i];

		if (lane->held && lane->end > lane->cursor)
			return true;
	}
	return false;
}

/*
 * Replays that are due, from all lanes in turn: with nothing else to do, until there is something;
 * beside a live backlog, for a quarter of the time; in any case one.
 */
static void
run_replays(OutboxRound *round, int most)
{
	int64		until;
	bool		backlog = has_live_backlog(round);
	bool		any = true;

	begin_part(round);
	until = round->part_ticks + (int64) outbox_batch_time * 1000 / 4;
	while (any && most > 0 && !round->barred)
	{
		any = false;
		for (int i = 0; i < round->nheld && most > 0; i++)
		{
			OutboxLane *lane = round->held[i];

			if (!lane->held || !outbox_lease_has_due_replay(lane, round->now))
				continue;
			if (!run_one_due(round, lane, true))
			{
				lane->has_replay = false;
				lane->touched = true;
				continue;
			}
			any = true;
			most--;
			if (time_is_up(round) || (backlog ? outbox_settings_ticks() >= until : outbox_turn_has_news(round, round->subscription)))
				return;
		}
	}
}

/*
 * One entry of a lane whose holder died: park it behind its gate, or put its start on record.
 * In a transaction; false when there is nothing to run.
 */
static bool
start_or_park(OutboxRound *round, OutboxDelivery *d)
{
	if (d->event_key != NULL &&
		outbox_settle_find_gate(d->lane, d->tenant_id, d->event_key, &d->gate_id))
	{
		outbox_settle_park(d);
		return false;
	}
	outbox_settle_start_first(round->subscription, d, round->self);
	return true;
}

static bool
start_next_entry(OutboxRound *round, OutboxLane *lane, OutboxDelivery *d)
{
	OutboxEventReader *reader = outbox_batch_open_reader(NULL);
	TupleTableSlot *event;
	bool		found = false;

	if (outbox_round_enter(round) && outbox_lease_lock(lane) && outbox_lease_next_entry(lane, &d->position, &d->event_id))
	{
		d->lane = lane;
		found = outbox_batch_read_event(reader, &d->event_id, NULL, &event);
		if (found)
		{
			outbox_batch_read_key(round->subscription, lane->lane, event, d);
			found = start_or_park(round, d);
		}
		else
			outbox_lease_move_cursor(lane, d->position);
	}
	outbox_batch_close_reader(reader);
	return found;
}

/* Entries that may be what killed the holder before: each with its start on record. */
static void
run_carefully(OutboxRound *round, int most)
{
	begin_part(round);
	for (int i = 0; i < round->nheld; i++)
	{
		OutboxLane *lane = round->held[i];

		while (lane->held && lane->cursor < lane->careful_through && most-- > 0 && !time_is_up(round))
		{
			OutboxDelivery d = {0};
			bool		started;

			outbox_round_begin_transaction();
			started = start_next_entry(round, lane, &d);
			outbox_round_commit_transaction();
			if (d.position == 0)
				break;
			lane->cursor = Max(lane->cursor, d.position);
			round->did_something = true;
			if (!started)
				continue;
			lane->has_gate |= (d.event_key != NULL);
			run_started(round, &d);
		}
	}
}

/* ---------------------------------------------------------------- batches */

/*
 * A commit costs as much as many calls, so one does for several batches.  What bounds them all is
 * outbox.batch_time and the deadline, and for each lane batch_size (see batch.c).
 */
static int
largest_batch(const OutboxSubscription *s)
{
	return s->batch_size <= SMALL_BATCH ? s->batch_size : Min(s->batch_size * BATCHES_AT_ONCE, OUTBOX_BATCH_SIZE_MAX);
}

static int
batch_limit(OutboxRound *round)
{
	OutboxMemo *memo = round->memo;
	int			limit = Min(memo->batch_limit, largest_batch(round->subscription));

	if (memo->average_us > 0)
		limit = (int) Min(limit, Max(1, outbox_batch_time * 1000.0 / memo->average_us));
	if (memo->limit_once > 0)
		limit = Min(limit, memo->limit_once);
	if (memo->single_left > 0 || round->guard.level > 0)
		limit = 1;
	return Max(1, limit);
}

/* The lanes that may be worked in batches, the front one first. */
static int
order_lanes(OutboxRound *round, OutboxLane **lanes)
{
	int			n = 0;

	for (int pass = 0; pass < 2; pass++)
	{
		for (int i = 0; i < round->nheld; i++)
		{
			OutboxLane *lane = round->held[i];

			if (lane->held && lane->cursor >= lane->careful_through && lane->end > lane->cursor &&
				(lane->lane >= round->memo->front_lane) == (pass == 0))
				lanes[n++] = lane;
		}
	}
	return n;
}

static void
run_lanes(OutboxRound *round)
{
	OutboxBatch batch = {
		.subscription = round->subscription, .handler = &round->handler, .self = round->self,
		.source = BATCH_FROM_LANES, .limit = batch_limit(round), .lane_limit = round->subscription->batch_size,
		.check_receipts = round->memo->check_receipts
	};

	bool		limited = round->memo->limit_once > 0;

	batch.lanes = palloc(Max(1, round->nheld) * sizeof(OutboxLane *));
	batch.nlanes = order_lanes(round, batch.lanes);
	if (batch.nlanes == 0 || round->barred)
		return;
	outbox_attempt_run_batch(round, &batch);
	/* the next batch begins where this one ended */
	if (!batch.failed && !batch.barred && !limited && round->memo->single_left == 0 && batch.count > 0)
		round->memo->front_lane = batch.deliveries[batch.count - 1].lane->lane;
}

/* Parked events that may be what killed the holder before: each with its start on record.  Returns how many. */
static int
run_parked_carefully(OutboxRound *round, OutboxLane *lane, int most)
{
	int			count = 0;

	while (lane->held && count < most && !time_is_up(round))
	{
		OutboxDelivery d;
		bool		started;

		outbox_round_begin_transaction();
		started = outbox_round_enter(round) && outbox_lease_lock(lane) &&
			outbox_settle_start_parked(round->subscription, lane, &d, round->self);
		outbox_round_commit_transaction();
		if (!started)
			break;
		round->did_something = true;
		run_started(round, &d);
		count++;
	}
	return count;
}

static void
run_gates(OutboxRound *round, int most)
{
	begin_part(round);
	for (int i = 0; i < round->nheld && most > 0 && !time_is_up(round); i++)
	{
		OutboxLane *lane = round->held[i];
		OutboxBatch batch = {
			.subscription = round->subscription, .handler = &round->handler, .self = round->self,
			.source = BATCH_FROM_GATE, .nlanes = 1, .lanes = &lane, .check_receipts = round->memo->check_receipts
		};

		if (!lane->held || !lane->has_open_gate)
			continue;
		if (lane->careful_through > 0)
			most -= run_parked_carefully(round, lane, most);
		if (!lane->held || most <= 0 || time_is_up(round))
			continue;
		batch.limit = batch.lane_limit = Min(Min(most, GATE_BATCH), batch_limit(round));
		outbox_attempt_run_batch(round, &batch);
		most -= batch.count;
	}
}

static void
sweep_lanes(OutboxRound *round)
{
	for (int i = 0; i < round->nheld; i++)
	{
		OutboxLane *lane = round->held[i];

		if (!lane->has_ended || round->barred)
			continue;
		outbox_round_begin_transaction();
		if (outbox_round_enter(round) && outbox_lease_lock(lane) && outbox_settle_sweep(round->subscription, lane) > 0)
			round->did_something = true;
		outbox_round_commit_transaction();
	}
}

/* ---------------------------------------------------------------- rounds */

/* The outage guard lets one delivery through at a time. */
static void
probe(OutboxRound *round)
{
	run_due(round, 1);
	if (!round->did_something)
		run_carefully(round, 1);
	if (!round->did_something)
		run_gates(round, 1);
	if (!round->did_something)
		run_lanes(round);
	if (!round->did_something)
		run_replays(round, 1);
}

static void
serve(OutboxRound *round)
{
	list_held(round);
	lease_lanes(round);
	list_held(round);
	sweep_lanes(round);
	if (round->guard.level > 0)
		probe(round);
	else
	{
		run_due(round, INT_MAX);
		run_gates(round, INT_MAX);
		run_carefully(round, INT_MAX);
		run_lanes(round);
		run_replays(round, INT_MAX);
	}
	for (int i = 0; i < round->nheld; i++)
	{
		OutboxLane *lane = round->held[i];

		lane->touched |= lane->has_due || lane->has_replay || lane->has_ended || lane->has_gate || lane->has_started;
		if (!lane->held)
			round->memo->look_again = true; /* lost, or its row was locked for a moment */
	}
	if (round->did_something)
		round->memo->look_again = true;
}

/* The next generation of lanes begins when the one before is worked and nobody leases it. */
static void
give_back_outdated(OutboxRound *round)
{
	if (!outbox_lease_has_outdated())
		return;
	outbox_round_begin_transaction();
	outbox_lease_give_back_outdated(round->now);
	outbox_round_commit_transaction();
}

static void
give_back_unused(OutboxRound *round)
{
	static int64 next = 0;

	if (round->ticks < next)
		return;
	outbox_round_begin_transaction();
	outbox_lease_give_back_unused(round->ticks - KEEP_LEASES_US);
	outbox_round_commit_transaction();
	next = round->ticks + KEEP_LEASES_US;
}

long
outbox_dispatch_round(OutboxProcess *self)
{
	OutboxRound round = {.self = self, .db = outbox_shmem_my_database(), .now = outbox_settings_now(), .ticks = outbox_settings_ticks()};
	OutboxIncarnation known;
	OutboxTurn	turn = TURN_NONE;

	if (round.db == NULL)
		return outbox_poll_interval;
	if (outbox_round_context == NULL)
	{
		outbox_round_context = AllocSetContextCreate(TopMemoryContext, "outbox dispatch round", ALLOCSET_DEFAULT_SIZES);
		outbox_handler_init();
	}
	MemoryContextReset(outbox_round_context);
	MemoryContextSwitchTo(outbox_round_context);

	if (self->role == InvalidOid)
		outbox_turn_note_served((int32) pg_atomic_read_u32(&round.db->next_subscription) - 1);
	outbox_round_begin_transaction();
	outbox_extension_incarnation(&known);
	if (known.recorded && !known.held)
		turn = outbox_turn_choose(&round);
	outbox_round_commit_transaction();
	if (turn != TURN_OURS)
		pg_atomic_write_u32(&self->subscription_id, 0);
	if (turn == TURN_OTHER_ROLE)
	{
		/* whoever comes in our place begins with the one that waits */
		pg_atomic_write_u32(&round.db->next_subscription, (uint32) round.subscription->id);
		return -1;
	}
	if (turn == TURN_NONE)
	{
		give_back_outdated(&round);
		give_back_unused(&round);
		return outbox_round_sleep_time(&round);
	}
	outbox_turn_note_served(round.subscription->id);
	serve(&round);
	give_back_outdated(&round);
	return round.did_something ? 0 : outbox_round_sleep_time(&round);
}

bool
outbox_dispatch_give_back(OutboxProcess *self)
{
	bool		done;

	if (outbox_round_context == NULL)
		return true;
	MemoryContextSwitchTo(outbox_round_context);
	outbox_round_begin_transaction();
	done = outbox_lease_give_back_all(self);
	outbox_round_commit_transaction();
	outbox_lease_forget(done);
	return done;
}
