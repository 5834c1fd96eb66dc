/*
 * dispatch.c - what a worker does next.
 *
 * A round serves one subscription: the one whose turn it is among those that have
 * work, so that none waits for more than a round of each other one.  It leases lanes,
 * and then runs, each for at most about outbox.batch_time: retries that are
 * due, open gates, entries that must be worked carefully, one batch from the lanes, and
 * replays, which make way for anything else.
 *
 * A batch that failed is run again in smaller parts, in the same order: first
 * what came before the failed call, then that delivery alone at the front.
 * Only a delivery that fails at the front, with nothing before it in its
 * transaction, has used an attempt.
 */
#include "outbox.h"

#include <math.h>

#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "batch.h"
#include "dispatch.h"
#include "extension.h"
#include "handler.h"
#include "lease.h"
#include "settings.h"
#include "settle.h"
#include "subscription.h"

#define FIRST_BATCH			32	/* events; doubles while all goes well */
#define GATE_BATCH			32	/* parked events: all of them run, whatever time and subtransactions they take */
#define CAREFUL_BATCH		4	/* after a holder died */
#define SMALL_BATCH			100 /* who asks for batches up to this gets no larger transactions than that */
#define BATCHES_AT_ONCE		4	/* others share a commit, while outbox.batch_time lasts */
#define FULL_LOOK_US		(5 * USECS_PER_SEC) /* all lanes, in case a hint was missed */
#define KEEP_LEASES_US		(5 * USECS_PER_SEC) /* unused, before they are given back */
#define PROBLEM_PAUSE_US	USECS_PER_SEC	/* before a stopped subscription is tried again */
#define ROLE_TURN_US		USECS_PER_SEC	/* a process serves its role at least so long */
#define RECHECK_MS			20	/* when there is work, but not for us just now */
#define INTERRUPTED_FOR_FREE 3	/* the same event's handler ended by SIGTERM so often in a row uses an attempt */
#define CONFLICT_RETRIES	3	/* of a serialization failure or deadlock, at once and for free */

/* what this process remembers of a subscription */
typedef struct Memo
{
	int32		subscription_id;	/* the key */
	int64		next_full_look; /* outbox_settings_ticks() */
	TimestampTz next_due;		/* the first retry known, or DT_NOEND */
	int64		not_before;		/* outbox_settings_ticks(): stopped, or the outage guard's distance */
	bool		look_again;		/* there was more when the last round ended */
	bool		check_receipts;
	int			batch_limit;	/* events of a transaction; grows while all goes well */
	int			limit_once;		/* 0: none; the part of a failed batch that went well */
	int			single_left;	/* deliveries to run one by one after a failed batch */
	int			single_after;	/* the same after limit_once: those of the failed call */
	int32		front_lane;		/* the lane to read first */
	int32		front_after;	/* and after limit_once: that of the failed delivery, or -1 */
	int			conflicts;		/* of the delivery at the front */
	bool		block_on_review;	/* these two as they were at the last look */
	int32		first_lane;
	double		average_us;		/* of a handler call, 0: not known */
} Memo;

/* a round at hand */
typedef struct Round
{
	OutboxProcess *self;
	OutboxDatabase *db;
	OutboxSubscription *subscription;
	Memo	   *memo;
	OutboxHandler handler;
	OutboxGuard guard;
	TimestampTz now;
	int64		ticks;			/* outbox_settings_ticks() */
	int64		part_ticks;		/* the same at the beginning of the part of the round at hand */
	int			nlanes;
	OutboxLane **lanes;			/* with work */
	int			nheld;
	OutboxLane **held;			/* of these, ours */
	bool		did_something;
	bool		recheck;		/* kept out of a subscription, perhaps for a moment only */
	bool		unserved_first; /* no role yet: first those that no other process serves */
} Round;

static HTAB *memos = NULL;
static MemoryContext round_context = NULL;
static int32 last_served = 0;
static int64 role_since = 0;	/* outbox_settings_ticks() */

/* ---------------------------------------------------------------- small things */

static Memo *
memo_of(int32 subscription_id)
{
	bool		found;
	Memo	   *memo;

	if (memos == NULL)
	{
		HASHCTL		ctl = {.keysize = sizeof(int32), .entrysize = sizeof(Memo), .hcxt = TopMemoryContext};

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

static void
begin_transaction(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	MemoryContextSwitchTo(round_context);
}

static void
commit_transaction(void)
{
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(round_context);
}

/* ---------------------------------------------------------------- whose turn */

static bool
is_dispatchable(const OutboxSubscription *s)
{
	return s->handler != NULL && s->run_as != NULL && !s->paused;
}

/* Has something happened in any of its lanes since the last look? */
static bool
has_news(Round *round, const OutboxSubscription *s)
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
has_reason(Round *round, OutboxSubscription *s, Memo *memo)
{
	if (memo->not_before > round->ticks)
		return false;
	return memo->look_again || memo->next_full_look <= round->ticks || memo->next_due <= round->now ||
		has_news(round, s);
}

/* Is a process held up in this subscription, or may it be, for all that is known of its calls? */
static bool
is_held_up(Round *round, OutboxProcess *process, OutboxSubscription *s)
{
	int64		long_time = 2 * (int64) outbox_batch_time * 1000;
	uint64		since = pg_atomic_read_u64(&process->busy_since);
	uint32		call_us = pg_atomic_read_u32(&process->call_us);

	if (pg_atomic_read_u32(&process->subscription_id) != (uint32) s->id)
		return false;
	if (call_us > long_time || (since != 0 && GetCurrentTimestamp() - (TimestampTz) since > long_time))
		return true;
	round->recheck |= (call_us == 0);
	return call_us == 0;
}

/*
 * Is this the last worker that is not held up in a long call, with the others held up
 * in this very subscription?  Then it is kept for the others.
 */
static bool
would_take_last_worker(Round *round, OutboxSubscription *s, int dispatchable)
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

/* Does another worker that is alive serve this role?  With a number up to `most`. */
static bool
role_is_served(Round *round, Oid role, int most)
{
	for (int i = 0; i < outbox_shared->max_processes; i++)
	{
		OutboxProcess *process = &outbox_shared->processes[i];

		if (process != round->self && process->kind == PROCESS_WORKER && process->pid != 0 &&
			process->database == MyDatabaseId && process->role == role && process->number <= most)
			return true;
	}
	return false;
}

/* Held by nobody else?  A lease of ours may be lost on us: somebody had the lane's row locked for a moment. */
static bool
is_free(Round *round, const OutboxLane *lane)
{
	return lane->holder == 0 || lane->holder == round->self->process_id ||
		outbox_shmem_find_process(lane->holder) == NULL;
}

/* Not ours, and its holder is there to see to it? */
static bool
is_within_reach(Round *round, const OutboxLane *lane)
{
	OutboxProcess *holder;

	if (lane->held || is_free(round, lane))
		return true;
	holder = outbox_shmem_find_process(lane->holder);
	return holder == NULL || pg_atomic_read_u64(&holder->busy_since) != 0;
}

/* A lane of ours with a batch's worth of entries and nothing special: no need to look again yet. */
static bool
knows_enough(Round *round, const OutboxLane *lane)
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
add_lane(Round *round, OutboxLane *lane)
{
	if (is_within_reach(round, lane) && outbox_lease_has_work(lane, round->now))
		round->lanes[round->nlanes++] = lane;
}

/* Remember when the first of what waits in a lane is due. */
static void
note_due(Round *round, const OutboxLane *lane)
{
	Memo	   *memo = round->memo;

	if (!is_within_reach(round, lane))
		return;
	if (lane->has_due)
		memo->next_due = Min(memo->next_due, lane->due);
	if (lane->has_replay && !lane->outdated)
		memo->next_due = Min(memo->next_due, lane->replay_due);
}

/* Look at all lanes. */
static void
look_at_all(Round *round)
{
	Memo	   *memo = round->memo;
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
look_at_news(Round *round)
{
	OutboxSubscription *s = round->subscription;
	Memo	   *memo = round->memo;
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
look(Round *round)
{
	OutboxSubscription *s = round->subscription;
	Memo	   *memo = round->memo;

	round->lanes = palloc((s->first_lane + s->lanes) * sizeof(OutboxLane *));
	round->nlanes = 0;
	if (memo->next_full_look <= round->ticks || memo->next_due <= round->now)
		look_at_all(round);
	else
		look_at_news(round);
	memo->look_again = false;
}

/* Can it run?  Otherwise it says why, and is tried again later.  In SPI. */
static bool
resolve_handler(Round *round)
{
	OutboxProblem problem;

	if (outbox_handler_resolve(round->subscription, &round->handler, &problem))
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

typedef enum Turn
{
	TURN_NONE,
	TURN_OURS,
	TURN_OTHER_ROLE
} Turn;

/*
 * A process serves one role.  Another role's turn comes in another process: that one is
 * there, or this one makes room for it: once its own role has had its time, or at once when
 * that one is served by a process of a lower number too.
 */
static Turn
check_role(Round *round)
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

/* Say where we are, or are about to be. */
static void
announce(Round *round)
{
	pg_atomic_write_u32(&round->self->call_us, (uint32) Min(ceil(round->memo->average_us), PG_INT32_MAX));
	pg_atomic_write_u32(&round->self->subscription_id, round->subscription->id);
}

/* May we go there?  Of two workers that ask at once, the second one sees the first. */
static bool
is_admitted(Round *round, OutboxSubscription *s, int dispatchable)
{
	bool		admitted;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	admitted = !would_take_last_worker(round, s, dispatchable);
	if (admitted)
		announce(round);
	else
		pg_atomic_write_u32(&round->self->subscription_id, 0);
	LWLockRelease(outbox_shared->lock);
	return admitted;
}

static Turn
consider(Round *round, OutboxSubscription *s, int dispatchable)
{
	round->subscription = s;
	round->memo = memo_of(s->id);
	/* the news of it may have been looked at before the definition was seen */
	if (round->memo->block_on_review != s->block_on_review || round->memo->first_lane != s->first_lane)
		round->memo->next_full_look = 0;
	round->memo->block_on_review = s->block_on_review;
	round->memo->first_lane = s->first_lane;
	if (!has_reason(round, s, round->memo) || !is_admitted(round, s, dispatchable))
		return TURN_NONE;
	look(round);
	if (round->nlanes == 0)
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
	if (!resolve_handler(round))
		return TURN_NONE;
	return check_role(round);
}

/* The next subscription with work, after the one served last.  In SPI. */
static Turn
choose(Round *round)
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
		dispatchable += is_dispatchable(&all[i]);
		if (all[i].id <= last_served)
			first = i + 1;
	}
	for (int pass = round->self->role == InvalidOid ? 0 : 1; pass < 2; pass++)
	{
		round->unserved_first = pass == 0;
		for (int i = 0; i < n; i++)
		{
			OutboxSubscription *s = &all[(first + i) % n];
			Turn		its;

			if (!is_dispatchable(s))
				continue;
			its = consider(round, s, dispatchable);
			if (its != TURN_NONE)
				return its;
		}
	}
	return TURN_NONE;
}

/* Milliseconds until something known is due. */
static long
time_to_sleep(Round *round)
{
	HASH_SEQ_STATUS all;
	Memo	   *memo;
	int64		next = round->ticks + (int64) outbox_poll_interval * 1000;

	if (memos == NULL)
		return outbox_poll_interval;
	hash_seq_init(&all, memos);
	while ((memo = hash_seq_search(&all)) != NULL)
	{
		if (memo->next_due != DT_NOEND)
			next = Min(next, Max(round->ticks + (memo->next_due - round->now), memo->not_before));
		if (memo->look_again && memo->not_before > round->ticks)
			next = Min(next, memo->not_before);
	}
	if (next <= round->ticks || round->recheck)
		return Min(outbox_poll_interval, RECHECK_MS);
	return Min((long) outbox_poll_interval, (next - round->ticks) / 1000 + 1);
}

/* ---------------------------------------------------------------- leasing lanes */

/* Lanes with work that are not ours: our share of them, more when nobody else takes them. */
static void
lease_lanes(Round *round)
{
	int			share = Max(1, round->nlanes / Max(1, outbox_workers));
	int			taken = 0;
	int			wanted = 0;
	bool		any_unclean = false;

	for (int i = 0; i < round->nlanes; i++)
		wanted += !round->lanes[i]->held;
	if (wanted == 0)
		return;
	begin_transaction();
	/* free ones and those of the dead first, then those whose holder is busy elsewhere */
	for (int pass = 0; pass < 2 && taken < share; pass++)
	{
		for (int i = 0; i < round->nlanes && taken < share; i++)
		{
			OutboxLane *lane = round->lanes[i];

			if (lane->held || is_free(round, lane) != (pass == 0))
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
	commit_transaction();
	if (any_unclean)
		round->memo->batch_limit = CAREFUL_BATCH;
}

static void
list_held(Round *round)
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

/* ---------------------------------------------------------------- failures */

static bool
is_conflict(const OutboxBatch *batch)
{
	return strcmp(batch->failure.sqlstate, "40001") == 0 || strcmp(batch->failure.sqlstate, "40P01") == 0;
}

/* In a transaction of its own: the delivery at the front has used an attempt. */
static void
record_failure(Round *round, OutboxBatch *batch, OutboxDelivery *d)
{
	OutboxEventReader *reader;
	TupleTableSlot *event;

	begin_transaction();
	if (outbox_lease_lock(d->lane))
	{
		if (batch->source == BATCH_STARTED)
			outbox_settle_fail_started(round->subscription, d, &batch->failure, round->self);
		else
		{
			reader = outbox_batch_open_reader(NULL);
			if (outbox_batch_read_event(reader, &d->event_id, NULL, &event))
				outbox_batch_read_key(round->subscription, event, d);
			outbox_batch_close_reader(reader);
			if (batch->source == BATCH_FROM_LANES)
				outbox_batch_park_before(batch, d);
			outbox_settle_fail_first(round->subscription, d, &batch->failure, round->self);
		}
	}
	commit_transaction();
	d->lane->touched = true;
	if (!d->lane->held)
		return;
	d->lane->has_gate |= (d->event_key != NULL);
	if (batch->source == BATCH_FROM_LANES)
		d->lane->cursor = Max(d->lane->cursor, d->position);
}

/* Ended by SIGTERM once too often. */
static void
record_ended(Round *round, OutboxBatch *batch, OutboxDelivery *d)
{
	OutboxFailure ended = {.sqlstate = "57P01", .code = OUTBOX_CODE_WORKER_DIED};

	batch->failure = ended;
	record_failure(round, batch, d);
}

/* Not run to the end because the worker must stop: as if it had not been started. */
static void
put_back(Round *round, OutboxDelivery *d)
{
	begin_transaction();
	if (outbox_lease_lock(d->lane))
		outbox_settle_put_back(round->subscription, d);
	commit_transaction();
}

/*
 * An administrator's SIGTERM uses no attempt.  But when it ends the handler of one event
 * again and again, the handler may be what sends it: then the lanes are worked carefully, and
 * the event pays (see run_started).
 */
static void
note_interrupted(Round *round, OutboxBatch *batch)
{
	OutboxDatabase *db = round->db;
	pg_uuid_t  *event;

	if (batch->count == 0 || batch->stage != STAGE_HANDLER)
		return;
	event = &batch->deliveries[Max(batch->failed_index, 0)].event_id;
	if (memcmp(&db->interrupted_event, event, sizeof(pg_uuid_t)) != 0)
		db->interrupted_times = 0;
	db->interrupted_event = *event;
	db->interrupted_times++;
	if (db->interrupted_times < 2 || batch->source == BATCH_STARTED)
		return;
	begin_transaction();
	for (int i = 0; i < batch->nlanes; i++)
		outbox_lease_mark_careful(round->subscription, batch->lanes[i]);
	commit_transaction();
}

/* Which smaller part of the batch to run next, or whose failure it is. */
static void
handle_failure(Round *round, OutboxBatch *batch)
{
	Memo	   *memo = round->memo;
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
		if (is_conflict(batch) && memo->conflicts++ < CONFLICT_RETRIES)
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
handle_success(Round *round, OutboxBatch *batch)
{
	Memo	   *memo = round->memo;

	if (batch->completed > 0)
	{
		memo->conflicts = 0;
		memo->average_us = memo->average_us == 0 ? batch->average_us : (memo->average_us * 3 + batch->average_us) / 4;
		if (round->guard.failures > 0 || round->guard.level > 0)
		{
			begin_transaction();
			outbox_settle_note_success(round->subscription);
			commit_transaction();
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

static void
run_batch(Round *round, OutboxBatch *batch)
{
	pgstat_report_activity(STATE_RUNNING, psprintf("subscription %s", round->subscription->name));
	memset(&round->self->event_id, 0, sizeof(pg_uuid_t));
	announce(round);
	pg_atomic_write_u64(&round->self->busy_since, GetCurrentTimestamp());
	outbox_batch_run(batch);
	/* the views take a process that names an event for one that is at it */
	memset(&round->self->event_id, 0, sizeof(pg_uuid_t));
	pg_atomic_write_u64(&round->self->busy_since, 0);
	pg_atomic_write_u32(&round->self->subscription_id, 0);
	MemoryContextSwitchTo(round_context);
	if (batch->failed)
		handle_failure(round, batch);
	else
		handle_success(round, batch);
	round->did_something |= batch->failed || batch->completed > 0 || batch->moved > 0;
}

/* ---------------------------------------------------------------- single deliveries */

/* Each part of a round has a time of its own, or the first one would leave none to the others. */
static void
begin_part(Round *round)
{
	round->part_ticks = outbox_settings_ticks();
}

static bool
time_is_up(Round *round)
{
	return ShutdownRequestPending ||
		outbox_settings_ticks() - round->part_ticks >= (int64) outbox_batch_time * 1000 ||
		round->memo->not_before > round->ticks;
}

/* A delivery whose start is on record: run it to an end. */
static void
run_started(Round *round, OutboxDelivery *d)
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
		run_batch(round, &batch);
	} while (batch.failed && d->lane->held && !ShutdownRequestPending &&
			 ((batch.stage == STAGE_RECEIPTS && !time_is_up(round)) ||
			  (is_conflict(&batch) && round->memo->conflicts > 0)));
	if (batch.failed && batch.interruption == INTERRUPTED_SHUTDOWN &&
		round->db->interrupted_times >= INTERRUPTED_FOR_FREE)
		record_ended(round, &batch, d);
	else if (batch.failed && (batch.interruption == INTERRUPTED_SHUTDOWN || batch.stage == STAGE_RECEIPTS ||
							  (is_conflict(&batch) && round->memo->conflicts > 0)))
		put_back(round, d);
}

/* Run one that is due in the lane, of the live ones or of the replays; false when there is none. */
static bool
run_one_due(Round *round, OutboxLane *lane, bool replay)
{
	OutboxDelivery d;
	bool		started;

	begin_transaction();
	started = outbox_lease_lock(lane) &&
		outbox_settle_start_due(round->subscription, lane, replay, &d, round->self);
	commit_transaction();
	if (!started)
		return false;
	run_started(round, &d);
	round->did_something = true;
	return true;
}

/* Retries that are due, one after the other. */
static void
run_due(Round *round, int most)
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
has_live_backlog(Round *round)
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
run_replays(Round *round, int most)
{
	int64		until;
	bool		backlog = has_live_backlog(round);
	bool		any = true;

	begin_part(round);
	until = round->part_ticks + (int64) outbox_batch_time * 1000 / 4;
	while (any && most > 0)
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
			if (time_is_up(round) || (backlog ? outbox_settings_ticks() >= until : has_news(round, round->subscription)))
				return;
		}
	}
}

/*
 * One entry of a lane whose holder died: park it behind its gate, or put its start on record.
 * In a transaction; false when there is nothing to run.
 */
static bool
start_or_park(Round *round, OutboxDelivery *d)
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
start_next_entry(Round *round, OutboxLane *lane, OutboxDelivery *d)
{
	OutboxEventReader *reader = outbox_batch_open_reader(NULL);
	TupleTableSlot *event;
	bool		found = false;

	if (outbox_lease_lock(lane) && outbox_lease_next_entry(lane, &d->position, &d->event_id))
	{
		d->lane = lane;
		found = outbox_batch_read_event(reader, &d->event_id, NULL, &event);
		if (found)
		{
			outbox_batch_read_key(round->subscription, event, d);
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
run_carefully(Round *round, int most)
{
	begin_part(round);
	for (int i = 0; i < round->nheld; i++)
	{
		OutboxLane *lane = round->held[i];

		while (lane->held && lane->cursor < lane->careful_through && most-- > 0 && !time_is_up(round))
		{
			OutboxDelivery d = {0};
			bool		started;

			begin_transaction();
			started = start_next_entry(round, lane, &d);
			commit_transaction();
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
batch_limit(Round *round)
{
	Memo	   *memo = round->memo;
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
order_lanes(Round *round, OutboxLane **lanes)
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
run_lanes(Round *round)
{
	OutboxBatch batch = {
		.subscription = round->subscription, .handler = &round->handler, .self = round->self,
		.source = BATCH_FROM_LANES, .limit = batch_limit(round), .lane_limit = round->subscription->batch_size,
		.check_receipts = round->memo->check_receipts
	};

	bool		limited = round->memo->limit_once > 0;

	batch.lanes = palloc(Max(1, round->nheld) * sizeof(OutboxLane *));
	batch.nlanes = order_lanes(round, batch.lanes);
	if (batch.nlanes == 0)
		return;
	run_batch(round, &batch);
	/* the next batch begins where this one ended */
	if (!batch.failed && !limited && round->memo->single_left == 0 && batch.count > 0)
		round->memo->front_lane = batch.deliveries[batch.count - 1].lane->lane;
}

/* Parked events that may be what killed the holder before: each with its start on record.  Returns how many. */
static int
run_parked_carefully(Round *round, OutboxLane *lane, int most)
{
	int			count = 0;

	while (lane->held && count < most && !time_is_up(round))
	{
		OutboxDelivery d;
		bool		started;

		begin_transaction();
		started = outbox_lease_lock(lane) &&
			outbox_settle_start_parked(round->subscription, lane, &d, round->self);
		commit_transaction();
		if (!started)
			break;
		round->did_something = true;
		run_started(round, &d);
		count++;
	}
	return count;
}

static void
run_gates(Round *round, int most)
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
		run_batch(round, &batch);
		most -= batch.count;
	}
}

static void
sweep_lanes(Round *round)
{
	for (int i = 0; i < round->nheld; i++)
	{
		OutboxLane *lane = round->held[i];

		if (!lane->has_ended)
			continue;
		begin_transaction();
		if (outbox_lease_lock(lane) && outbox_settle_sweep(round->subscription, lane) > 0)
			round->did_something = true;
		commit_transaction();
	}
}

/* ---------------------------------------------------------------- rounds */

/* The outage guard lets one delivery through at a time. */
static void
probe(Round *round)
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
serve(Round *round)
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
give_back_outdated(Round *round)
{
	if (!outbox_lease_has_outdated())
		return;
	begin_transaction();
	outbox_lease_give_back_outdated(round->now);
	commit_transaction();
}

static void
give_back_unused(Round *round)
{
	static int64 next = 0;

	if (round->ticks < next)
		return;
	begin_transaction();
	(void) outbox_lease_give_back(round->ticks - KEEP_LEASES_US);
	commit_transaction();
	next = round->ticks + KEEP_LEASES_US;
}

long
outbox_dispatch_round(OutboxProcess *self)
{
	Round		round = {.self = self, .db = outbox_shmem_my_database(), .now = outbox_settings_now(), .ticks = outbox_settings_ticks()};
	OutboxIncarnation known;
	Turn		turn = TURN_NONE;

	if (round.db == NULL)
		return outbox_poll_interval;
	if (round_context == NULL)
	{
		round_context = AllocSetContextCreate(TopMemoryContext, "outbox dispatch round", ALLOCSET_DEFAULT_SIZES);
		outbox_handler_init();
	}
	MemoryContextReset(round_context);
	MemoryContextSwitchTo(round_context);

	if (self->role == InvalidOid)
		last_served = (int32) pg_atomic_read_u32(&round.db->next_subscription) - 1;
	begin_transaction();
	outbox_extension_incarnation(&known);
	if (known.recorded && !known.held)
		turn = choose(&round);
	commit_transaction();
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
		return time_to_sleep(&round);
	}
	last_served = round.subscription->id;
	serve(&round);
	give_back_outdated(&round);
	return round.did_something ? 0 : time_to_sleep(&round);
}

void
outbox_dispatch_give_back(OutboxProcess *self)
{
	if (round_context == NULL)
		return;
	MemoryContextSwitchTo(round_context);
	begin_transaction();
	(void) outbox_lease_give_back(PG_INT64_MAX);
	commit_transaction();
	outbox_lease_forget();
}
