/*
 * turn.c - which subscription a worker serves next.
 *
 * The one whose turn it is among those that have work, so that none waits for more than a
 * round of each other one.  A process serves one role only, and the last worker that is free is kept from
 * a subscription that holds up all the others.
 */
#include "outbox.h"

#include "miscadmin.h"
#include "utils/inval.h"
#include "utils/timestamp.h"

#include "handler.h"
#include "lease.h"
#include "passage.h"
#include "settings.h"
#include "settle.h"
#include "subscription.h"
#include "turn.h"

#define FULL_LOOK_US		(5 * USECS_PER_SEC) /* all lanes, in case a hint was missed */
#define ROLE_TURN_US		USECS_PER_SEC	/* a process serves its role at least so long */

static int32 last_served = 0;
static int64 role_since = 0;	/* outbox_settings_ticks() */

static bool
is_dispatchable(const OutboxSubscription *s)
{
	return s->handler != NULL && s->run_as != NULL && !s->paused;
}

bool
outbox_turn_has_news(OutboxRound *round, const OutboxSubscription *s)
{
	for (int i = 0; i < s->first_lane + s->lanes; i++)
	{
		if (outbox_lease_has_news(round->db, outbox_lease_lane(s->id, i)))
			return true;
	}
	return false;
}

/* Is there a reason to look at the subscription's lanes? */
static bool
has_reason(OutboxRound *round, OutboxSubscription *s, OutboxMemo *memo)
{
	if (memo->not_before > round->ticks)
		return false;
	return memo->look_again || memo->next_full_look <= round->ticks || memo->next_due <= round->now ||
		outbox_turn_has_news(round, s);
}

static int64
long_time_us(void)
{
	return 2 * (int64) outbox_batch_time * 1000;
}

/* Has a process been in a batch for long, as in a call that waits? */
static bool
is_in_long_call(OutboxProcess *process)
{
	uint64		since = pg_atomic_read_u64(&process->busy_since);

	return since != 0 && GetCurrentTimestamp() - (TimestampTz) since > long_time_us();
}

/* Is a process held up in this subscription, or may it be, for all that is known of its calls? */
static bool
is_held_up(OutboxRound *round, OutboxProcess *process, OutboxSubscription *s)
{
	uint32		call_us = pg_atomic_read_u32(&process->call_us);

	if (pg_atomic_read_u32(&process->subscription_id) != (uint32) s->id)
		return false;
	if (call_us > long_time_us() || is_in_long_call(process))
		return true;
	round->recheck |= (call_us == 0);
	return call_us == 0;
}

/*
 * Is this the last worker that is not held up in a long call, with the others held up
 * in this very subscription?  Then it is kept for the others.
 */
static bool
would_take_last_worker(OutboxRound *round, OutboxSubscription *s, int dispatchable)
{
	int			others = 0;
	int			in_it = 0;

	if (dispatchable < 2)
		return false;
	for (int i = 0; i < outbox_shared->max_processes; i++)
	{
		OutboxProcess *process = &outbox_shared->processes[i];

		if (process == round->self || process->kind != PROCESS_WORKER ||
			process->database != MyDatabaseId || process->pid == 0)
			continue;
		others++;
		in_it += is_held_up(round, process, s);
	}
	return others > 0 && in_it == others;
}

/*
 * Does another worker that is alive serve this role?  With a number up to `most`.  Not one that is in a long call: the role's
 * other subscriptions would wait for that call.
 */
static bool
role_is_served(OutboxRound *round, Oid role, int most)
{
	for (int i = 0; i < outbox_shared->max_processes; i++)
	{
		OutboxProcess *process = &outbox_shared->processes[i];

		if (process != round->self && process->kind == PROCESS_WORKER && process->pid != 0 &&
			process->database == MyDatabaseId && process->role == role && process->number <= most && !is_in_long_call(process))
			return true;
	}
	return false;
}

/* A lease of ours may be lost on us: somebody had the lane's row locked for a moment. */
bool
outbox_turn_is_free(OutboxRound *round, const OutboxLane *lane)
{
	return lane->holder == 0 || lane->holder == round->self->process_id ||
		outbox_shmem_find_process(lane->holder) == NULL;
}

/* Not ours, and its holder is there to see to it? */
static bool
is_within_reach(OutboxRound *round, const OutboxLane *lane)
{
	OutboxProcess *holder;

	if (lane->held || outbox_turn_is_free(round, lane))
		return true;
	holder = outbox_shmem_find_process(lane->holder);
	return holder == NULL || pg_atomic_read_u64(&holder->busy_since) != 0;
}

/* A lane of ours with a batch's worth of entries and nothing special: no need to look again yet. */
static bool
knows_enough(OutboxRound *round, const OutboxLane *lane)
{
	return lane->held && !lane->touched &&
		lane->end - lane->cursor >= Min(round->memo->batch_limit, round->subscription->batch_size);
}

static int
compare_lanes(const void *a, const void *b)
{
	return (*(OutboxLane *const *) a)->lane - (*(OutboxLane *const *) b)->lane;
}

static void
add_lane(OutboxRound *round, OutboxLane *lane)
{
	if (is_within_reach(round, lane) && outbox_lease_has_work(lane, round->now))
		round->lanes[round->nlanes++] = lane;
}

/* Remember when the first of what waits in a lane is due. */
static void
note_due(OutboxRound *round, const OutboxLane *lane)
{
	OutboxMemo *memo = round->memo;

	if (!is_within_reach(round, lane))
		return;
	if (lane->has_due)
		memo->next_due = Min(memo->next_due, lane->due);
	if (lane->has_replay && !lane->outdated)
		memo->next_due = Min(memo->next_due, lane->replay_due);
}

/* Look at all lanes. */
static void
look_at_all(OutboxRound *round)
{
	OutboxMemo *memo = round->memo;
	OutboxLane **found;
	int			n;

	memo->next_full_look = round->ticks + FULL_LOOK_US;
	memo->next_due = DT_NOEND;
	n = outbox_lease_look(round->subscription, round->db, -1, NULL, &found);
	for (int i = 0; i < n; i++)
		add_lane(round, found[i]);
	for (int i = 0; i < n; i++)
		note_due(round, found[i]);
}

/* Look at the lanes where something may have changed. */
static void
look_at_news(OutboxRound *round)
{
	OutboxSubscription *s = round->subscription;
	OutboxMemo *memo = round->memo;
	int32	   *numbers = palloc((s->first_lane + s->lanes) * sizeof(int32));
	OutboxLane **found;
	int			n = 0;

	for (int i = 0; i < s->first_lane + s->lanes; i++)
	{
		OutboxLane *lane = outbox_lease_lane(s->id, i);

		if (knows_enough(round, lane))
			add_lane(round, lane);
		else if (outbox_lease_has_news(round->db, lane) ||
				 (memo->look_again && (lane->touched || outbox_lease_has_work(lane, round->now))))
			numbers[n++] = i;
	}
	if (n == 0)
		return;
	n = outbox_lease_look(s, round->db, n, numbers, &found);
	for (int i = 0; i < n; i++)
	{
		add_lane(round, found[i]);
		note_due(round, found[i]);
	}
	qsort(round->lanes, round->nlanes, sizeof(OutboxLane *), compare_lanes);
}

/* Find the lanes with work: all of them, when it is time for that or a retry is due.  In SPI. */
static void
look(OutboxRound *round)
{
	OutboxSubscription *s = round->subscription;
	OutboxMemo *memo = round->memo;

	round->lanes = palloc((s->first_lane + s->lanes) * sizeof(OutboxLane *));
	round->nlanes = 0;
	if (memo->next_full_look <= round->ticks || memo->next_due <= round->now)
		look_at_all(round);
	else
		look_at_news(round);
	memo->look_again = false;
}

/*
 * Can it run?  Otherwise it says why, and is tried again later, by this process too, also when nothing waits any more: another one
 * may have found that it can, and delivered all, before what we had seen until then was written down.  In SPI.
 */
static bool
resolve_handler(OutboxRound *round)
{
	OutboxProblem problem;

	round->memo->cannot_run = !outbox_handler_resolve(round->subscription, &round->handler, &problem);
	if (!round->memo->cannot_run)
	{
		if (round->guard.stopped)
			outbox_settle_note_problem(round->subscription, NULL, NULL);
		return true;
	}
	outbox_settle_note_problem(round->subscription, problem.code, problem.reason);
	round->memo->not_before = round->ticks + PROBLEM_PAUSE_US;
	round->memo->look_again = true;
	return false;
}

/*
 * A process serves one role.  Another role's turn comes in another process: that one is
 * there, or this one makes room for it: once its own role has had its time, or at once when
 * that one is served by a process of a lower number too.
 */
static OutboxTurn
check_role(OutboxRound *round)
{
	if (round->self->role == InvalidOid)
	{
		if (round->unserved_first && role_is_served(round, round->handler.role, INT_MAX))
		{
			round->memo->look_again = true;
			return TURN_NONE;
		}
		outbox_handler_adopt_role(round->handler.role);
		round->self->role = round->handler.role;
		role_since = round->ticks;
	}
	if (round->self->role == round->handler.role)
		return TURN_OURS;
	round->memo->look_again = true;
	if (role_is_served(round, round->handler.role, INT_MAX) ||
		(round->ticks - role_since < ROLE_TURN_US && !role_is_served(round, round->self->role, round->self->number)))
		return TURN_NONE;
	return TURN_OTHER_ROLE;
}

/* May we go there?  Of two workers that ask at once, the second one sees the first. */
static bool
is_admitted(OutboxRound *round, OutboxSubscription *s, int dispatchable)
{
	bool		admitted;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	admitted = !would_take_last_worker(round, s, dispatchable);
	if (admitted)
		outbox_round_announce(round);
	else
		pg_atomic_write_u32(&round->self->subscription_id, 0);
	LWLockRelease(outbox_shared->lock);
	return admitted;
}

static OutboxTurn
consider(OutboxRound *round, OutboxSubscription *s, int dispatchable)
{
	round->subscription = s;
	round->memo = outbox_round_memo(s->id);
	/* the news of it may have been looked at before the definition was seen */
	if (round->memo->block_on_review != s->block_on_review || round->memo->first_lane != s->first_lane)
		round->memo->next_full_look = 0;
	round->memo->block_on_review = s->block_on_review;
	round->memo->first_lane = s->first_lane;
	if (!has_reason(round, s, round->memo))
		return TURN_NONE;
	if (!outbox_passage_is_open(s->id))
	{
		outbox_round_leave_alone(round->memo);
		return TURN_NONE;
	}
	if (!is_admitted(round, s, dispatchable))
		return TURN_NONE;
	/* what a handler calls, and an alert, may read all subscriptions anew while the round goes on */
	round->subscription = s = outbox_subscription_copy(s);
	look(round);
	if (round->nlanes == 0 && !round->memo->cannot_run)
		return TURN_NONE;
	outbox_settle_read_guard(s, &round->guard);
	/* a time further off than any distance comes from a clock that was set back */
	if (round->guard.level > 0 && round->guard.until > round->now &&
		round->guard.until <= round->now + OUTBOX_GUARD_DISTANCE_MAX)
	{
		round->memo->not_before = round->ticks + Min(round->guard.until - round->now, PROBLEM_PAUSE_US);
		round->memo->look_again = true;
		return TURN_NONE;
	}
	if (!resolve_handler(round) || round->nlanes == 0)
		return TURN_NONE;
	return check_role(round);
}

OutboxTurn
outbox_turn_choose(OutboxRound *round)
{
	OutboxSubscription *all;
	int			n;
	int			dispatchable = 0;
	int			first = 0;

	/* after our snapshot was taken: what was published after a pause() is not delivered by a definition from before it */
	AcceptInvalidationMessages();
	n = outbox_subscription_all(&all);

	for (int i = 0; i < n; i++)
	{
		if (is_dispatchable(&all[i]))
		{
			dispatchable++;
			outbox_round_memo(all[i].id)->listed_at = round->ticks;
		}
		if (all[i].id <= last_served)
			first = i + 1;
	}
	for (int pass = round->self->role == InvalidOid ? 0 : 1; pass < 2; pass++)
	{
		round->unserved_first = pass == 0;
		for (int i = 0; i < n; i++)
		{
			OutboxSubscription *s = &all[(first + i) % n];
			OutboxTurn	its;

			if (!is_dispatchable(s))
				continue;
			its = consider(round, s, dispatchable);
			if (its != TURN_NONE)
				return its;
			/* it may have made an alert: see above */
			n = outbox_subscription_all(&all);
		}
	}
	return TURN_NONE;
}

void
outbox_turn_note_served(int32 subscription_id)
{
	last_served = subscription_id;
}
