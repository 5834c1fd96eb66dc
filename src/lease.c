/*
 * lease.c - the right to work on a lane, and what there is to do in it.
 *
 * The lease is the lane's row: its token, which a takeover changes.  Every
 * transaction that works the lane locks that row by the token first (FOR KEY
 * SHARE); a takeover locks it FOR UPDATE and passes over a row that is locked.
 * So whoever is in the middle of a batch cannot be overtaken, and an old token
 * finds nothing.  No safety rests on clocks or on the liveness seen here: that
 * only decides whether a takeover is tried.
 *
 * A lease is committed before work begins.  When a holder died without giving
 * it back, one of the next entries may be what killed it: the lane is marked to be
 * worked carefully as far as a batch could have reached.
 */
#include "outbox.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "counters.h"
#include "extension.h"
#include "lease.h"
#include "settings.h"
#include "store.h"

static HTAB *known_lanes = NULL;
static bool holds_any = false;	/* maybe */
static bool holds_outdated = false; /* maybe */

/*
 * Probes, each as a scalar subquery: what an EXISTS looks for may be read whole, and kept, to ask it for several lanes.
 * Null is false.
 */
static OutboxStatement look_at_lanes = {
	"select l.lane, l.holder, l.base, l.careful_through,"
	" (select e.position from outbox.lane_entry e where e.subscription_id = l.subscription_id and e.lane = l.lane"
	"  order by e.position desc limit 1),"
	" (select c.position from outbox.lane_cursor c where c.subscription_id = l.subscription_id and c.lane = l.lane"
	"  order by c.position desc limit 1),"
	" (select x.next_attempt_at from outbox.delivery_exception x where x.subscription_id = l.subscription_id"
	"  and x.lane = l.lane and x.status = 'RETRY' and x.replay_no = 0 order by x.next_attempt_at limit 1),"
	" (select true from outbox.delivery_exception x where x.subscription_id = l.subscription_id"
	"  and x.lane = l.lane and x.status = 'IN_PROGRESS' limit 1),"
	" (select true from outbox.delivery_exception x where x.subscription_id = l.subscription_id"
	"  and x.lane = l.lane and x.status = 'DISCARDED' and not x.gate_released limit 1)"
	" or ($3 and (select true from outbox.gate g where g.subscription_id = l.subscription_id and g.lane = l.lane"
	"  and (select x.status from outbox.delivery_exception x where x.subscription_id = g.subscription_id"
	"   and x.event_id = g.held_by and x.replay_no = 0) = 'REVIEW_REQUIRED' limit 1)),"
	" (select true from outbox.gate g where g.subscription_id = l.subscription_id and g.lane = l.lane"
	"  and g.held_by is null limit 1),"
	" (select true from outbox.gate g where g.subscription_id = l.subscription_id and g.lane = l.lane limit 1),"
	" (select x.next_attempt_at from outbox.delivery_exception x where x.subscription_id = l.subscription_id"
	"  and x.lane = l.lane and x.status = 'RETRY' and x.replay_no > 0 order by x.next_attempt_at limit 1)"
	" from outbox.lane l where l.subscription_id = $1 and (l.lane = any ($2) or $2 is null)"
	/* of the oldest generation: those of one have their base in common */
	" and l.base = (select min(o.base) from outbox.lane o where o.subscription_id = $1)"
	" order by l.lane",
	3, {INT4OID, INT4ARRAYOID, BOOLOID}
};

static OutboxStatement lock_for_takeover = {
	"select holder, careful_through, base,"
	" (select e.position from outbox.lane_entry e where e.subscription_id = $1 and e.lane = $2"
	"  order by e.position desc limit 1)"
	" from outbox.lane where subscription_id = $1 and lane = $2 for update skip locked",
	2, {INT4OID, INT4OID}
};

/* read after the row is locked: the holder before may have advanced it until then */
static OutboxStatement select_cursor = {
	"select (select c.position from outbox.lane_cursor c where c.subscription_id = $1 and c.lane = $2"
	"  order by c.position desc limit 1),"
	" exists (select from outbox.gate g where g.subscription_id = $1 and g.lane = $2)",
	2, {INT4OID, INT4OID}
};

static OutboxStatement take_lane = {
	"update outbox.lane set token = gen_random_uuid(), holder = $3, worker = $4, taken_at = $5, expires_at = $6,"
	" careful_through = $7 where subscription_id = $1 and lane = $2 returning token",
	7, {INT4OID, INT4OID, INT8OID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID}
};

static OutboxStatement lock_by_token = {
	"select 1 from outbox.lane where token = $1 for key share skip locked",
	1, {UUIDOID}
};

static OutboxStatement mark_careful = {
	"update outbox.lane set careful_through = $2 where token = $1",
	2, {UUIDOID, INT8OID}
};

static OutboxStatement select_next_entry = {
	"select e.position, e.event_id from outbox.lane_entry e where e.subscription_id = $1 and e.lane = $2"
	" and e.position > $3 order by e.position limit 1",
	3, {INT4OID, INT4OID, INT8OID}
};

/* never waits: whoever has the rows of several lanes, in whichever order, must not wait for us in turn */
static OutboxStatement give_back_lane = {
	"update outbox.lane set token = null, holder = null, worker = null, taken_at = null, expires_at = null"
	" where token = $1 and (select true from outbox.lane where token = $1 for update skip locked)",
	1, {UUIDOID}
};

static OutboxStatement select_by_token = {
	"select 1 from outbox.lane where token = $1",
	1, {UUIDOID}
};

/* reads all lanes: for whoever leaves */
static OutboxStatement select_of_process = {
	"select token from outbox.lane where holder = $1",
	1, {INT8OID}
};

/* ---------------------------------------------------------------- known lanes */

OutboxLane *
outbox_lease_lane(int32 subscription_id, int32 lane)
{
	int32		key[2] = {subscription_id, lane};
	bool		found;
	OutboxLane *known;

	if (known_lanes == NULL)
	{
		HASHCTL		ctl = {.keysize = sizeof(key), .entrysize = sizeof(OutboxLane), .hcxt = TopMemoryContext};

		known_lanes = hash_create("outbox lanes", 256, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	known = hash_search(known_lanes, key, HASH_ENTER, &found);
	if (!found)
	{
		memset(known, 0, sizeof(*known));
		known->subscription_id = subscription_id;
		known->lane = lane;
	}
	return known;
}

bool
outbox_lease_has_news(OutboxDatabase *db, OutboxLane *lane)
{
	return outbox_shmem_work_count(db, outbox_shmem_hint_bit(lane->subscription_id, lane->lane)) != lane->work_count;
}

void
outbox_lease_forget(bool all_given_back)
{
	if (known_lanes != NULL)
		hash_destroy(known_lanes);
	known_lanes = NULL;
	holds_any = !all_given_back;
}

/* ---------------------------------------------------------------- looking */

static int64
int64_value(uint64 row, int column, int64 when_null)
{
	bool		isnull;
	Datum		value = outbox_store_value(row, column, &isnull);

	return isnull ? when_null : DatumGetInt64(value);
}

static bool
bool_value(uint64 row, int column)
{
	bool		isnull;
	Datum		value = outbox_store_value(row, column, &isnull);

	return !isnull && DatumGetBool(value);
}

static OutboxLane *
read_lane(const OutboxSubscription *subscription, uint64 row)
{
	bool		isnull;
	OutboxLane *lane = outbox_lease_lane(subscription->id, DatumGetInt32(outbox_store_value(row, 1, &isnull)));
	int64		base = int64_value(row, 3, 0);
	Datum		due;

	lane->holder = int64_value(row, 2, 0);
	lane->end = int64_value(row, 5, base);
	if (!lane->held)
	{
		lane->careful_through = int64_value(row, 4, 0);
		lane->cursor = int64_value(row, 6, base);
	}
	due = outbox_store_value(row, 7, &isnull);
	lane->has_due = !isnull;
	lane->due = isnull ? 0 : DatumGetTimestampTz(due);
	due = outbox_store_value(row, 12, &isnull);
	lane->has_replay = !isnull;
	lane->replay_due = isnull ? 0 : DatumGetTimestampTz(due);
	lane->has_started = bool_value(row, 8);
	lane->has_ended = bool_value(row, 9);
	lane->has_open_gate = bool_value(row, 10);
	lane->has_gate = bool_value(row, 11);
	lane->touched = false;
	lane->outdated = lane->lane < subscription->first_lane;
	holds_outdated |= lane->outdated && lane->held;
	return lane;
}

/* Remember the counts before reading: what is counted after that is news again. */
static void
remember_counts(const OutboxSubscription *subscription, OutboxDatabase *db, int nlanes, const int32 *lanes)
{
	int			n = nlanes < 0 ? subscription->first_lane + subscription->lanes : nlanes;

	for (int i = 0; i < n; i++)
	{
		OutboxLane *lane = outbox_lease_lane(subscription->id, nlanes < 0 ? i : lanes[i]);

		lane->work_count = outbox_shmem_work_count(db, outbox_shmem_hint_bit(subscription->id, lane->lane));
	}
}

int
outbox_lease_look(const OutboxSubscription *subscription, OutboxDatabase *db,
				  int nlanes, const int32 *lanes, OutboxLane ***found)
{
	Datum		args[3] = {Int32GetDatum(subscription->id), 0, BoolGetDatum(!subscription->block_on_review)};
	char		nulls[3] = {' ', nlanes < 0 ? 'n' : ' ', ' '};
	uint64		n;

	remember_counts(subscription, db, nlanes, lanes);
	if (nlanes >= 0)
	{
		Datum	   *numbers = palloc(Max(1, nlanes) * sizeof(Datum));

		for (int i = 0; i < nlanes; i++)
			numbers[i] = Int32GetDatum(lanes[i]);
		args[1] = PointerGetDatum(construct_array(numbers, nlanes, INT4OID, sizeof(int32), true, TYPALIGN_INT));
	}
	n = outbox_store_run(&look_at_lanes, args, nulls, 0);
	*found = palloc(Max(1, n) * sizeof(OutboxLane *));
	for (uint64 i = 0; i < n; i++)
		(*found)[i] = read_lane(subscription, i);
	return (int) n;
}

/* Those of a routing generation before move on with its end, and do not put it off. */
bool
outbox_lease_has_due_replay(const OutboxLane *lane, TimestampTz now)
{
	return lane->has_replay && lane->replay_due <= now && !lane->outdated;
}

bool
outbox_lease_has_work(const OutboxLane *lane, TimestampTz now)
{
	return lane->end > lane->cursor || (lane->has_due && lane->due <= now) ||
		outbox_lease_has_due_replay(lane, now) || lane->has_ended || lane->has_open_gate || (lane->has_started && !lane->held);
}

/* ---------------------------------------------------------------- leasing */

/* May the lease of this holder be taken?  Says whether the holder left without giving it back. */
static bool
may_take(int64 holder, OutboxProcess *self, bool *unclean)
{
	OutboxProcess *process;

	*unclean = false;
	if (holder == 0 || holder == self->process_id)
		return true;
	process = outbox_shmem_find_process(holder);
	if (process == NULL)
	{
		*unclean = true;
		return true;
	}
	/* alive, but not at this lane, or it would hold the row's lock */
	return pg_atomic_read_u64(&process->busy_since) != 0;
}

/* How far a batch of the holder before may have reached: it takes no more than batch_size of one lane. */
static int64
careful_reach(const OutboxSubscription *subscription, int64 cursor, int64 end, int64 known)
{
	int64		reach = Min(end, cursor + subscription->batch_size);

	/* or what is parked, all of which lies behind the cursor */
	return Max(known, Max(cursor, reach));
}

bool
outbox_lease_acquire(const OutboxSubscription *subscription, OutboxLane *lane, OutboxProcess *self)
{
	Datum		args[7] = {Int32GetDatum(subscription->id), Int32GetDatum(lane->lane)};
	char		nulls[7] = {' ', ' ', ' ', ' ', ' ', ' ', ' '};
	char		name[32];
	TimestampTz now = outbox_settings_now();
	int64		base;
	bool		unclean;
	bool		isnull;

	/* by the last look first: a row that we lock in vain is one that its holder finds locked */
	if (!may_take(lane->holder, self, &unclean) ||
		outbox_store_run(&lock_for_takeover, args, NULL, 1) == 0 ||
		!may_take(int64_value(0, 1, 0), self, &unclean))
		return false;
	lane->careful_through = int64_value(0, 2, 0);
	base = int64_value(0, 3, 0);
	lane->end = int64_value(0, 4, base);
	outbox_store_run(&select_cursor, args, NULL, 1);
	lane->cursor = int64_value(0, 1, base);
	lane->has_gate = bool_value(0, 2);
	if (unclean)
		lane->careful_through = careful_reach(subscription, lane->cursor, lane->end, lane->careful_through);

	snprintf(name, sizeof(name), "worker %d", self->number);
	args[2] = Int64GetDatum(self->process_id);
	args[3] = PointerGetDatum(cstring_to_text(name));
	args[4] = TimestampTzGetDatum(now);
	args[5] = TimestampTzGetDatum(now + subscription->lease_duration);
	args[6] = Int64GetDatum(lane->careful_through);
	nulls[6] = lane->careful_through == 0 ? 'n' : ' ';
	if (outbox_store_run(&take_lane, args, nulls, 1) != 1)
		return false;
	lane->token = *DatumGetUUIDP(outbox_store_value(0, 1, &isnull));
	lane->held = holds_any = true;
	holds_outdated |= lane->outdated;
	lane->unclean = unclean;
	if (unclean)
		outbox_counters_add(subscription->id, TOTAL_RECOVERED, 1);
	lane->last_used = outbox_settings_ticks();
	return true;
}

bool
outbox_lease_lock(OutboxLane *lane)
{
	Datum		token = UUIDPGetDatum(&lane->token);

	if (lane->held && outbox_store_run(&lock_by_token, &token, NULL, 1) > 0)
		return true;
	lane->held = false;
	return false;
}

void
outbox_lease_mark_careful(const OutboxSubscription *subscription, OutboxLane *lane)
{
	Datum		args[2] = {
		UUIDPGetDatum(&lane->token),
		Int64GetDatum(careful_reach(subscription, lane->cursor, lane->end, lane->careful_through))
	};

	if (lane->held)
		outbox_store_run(&mark_careful, args, NULL, 0);
}

bool
outbox_lease_next_entry(OutboxLane *lane, int64 *position, pg_uuid_t *event_id)
{
	Datum		args[3] = {
		Int32GetDatum(lane->subscription_id), Int32GetDatum(lane->lane), Int64GetDatum(lane->cursor)
	};
	bool		isnull;

	if (outbox_store_run(&select_next_entry, args, NULL, 1) == 0)
		return false;
	*position = DatumGetInt64(outbox_store_value(0, 1, &isnull));
	*event_id = *DatumGetUUIDP(outbox_store_value(0, 2, &isnull));
	return true;
}

/* Those that have not moved are left out. */
void
outbox_lease_move_cursors(int nlanes, OutboxLane **lanes, const int64 *positions)
{
	OutboxWriter *cursors = NULL;
	bool		nulls[3] = {false};

	for (int i = 0; i < nlanes; i++)
	{
		Datum		values[3] = {
			Int32GetDatum(lanes[i]->subscription_id), Int32GetDatum(lanes[i]->lane), Int64GetDatum(positions[i])
		};

		if (positions[i] == lanes[i]->cursor)
			continue;
		if (cursors == NULL)
			cursors = outbox_store_open_writer(outbox_extension_relid("lane_cursor"));
		outbox_store_put(cursors, values, nulls);
	}
	if (cursors != NULL)
		outbox_store_close_writer(cursors);
}

void
outbox_lease_move_cursor(OutboxLane *lane, int64 position)
{
	outbox_lease_move_cursors(1, &lane, &position);
}

/* Remains held when somebody has the row locked just now: then it is tried again. */
static void
give_back(OutboxLane *lane)
{
	Datum		token = UUIDPGetDatum(&lane->token);

	lane->held = outbox_store_run(&give_back_lane, &token, NULL, 0) == 0 &&
		outbox_store_run(&select_by_token, &token, NULL, 1) > 0;
}

void
outbox_lease_give_back_unused(int64 unused_since)
{
	HASH_SEQ_STATUS all;
	OutboxLane *lane;

	if (known_lanes == NULL)
		return;
	hash_seq_init(&all, known_lanes);
	while ((lane = hash_seq_search(&all)) != NULL)
	{
		if (lane->held && lane->last_used <= unused_since)
			give_back(lane);
	}
}

/* What is held is asked of the table: a lease that was locked for a moment when we wanted it is ours, and not known as held. */
bool
outbox_lease_give_back_all(OutboxProcess *self)
{
	Datum		holder = Int64GetDatum(self->process_id);
	pg_uuid_t  *tokens;
	int			n;

	if (!holds_any)
		return true;
	n = (int) outbox_store_run(&select_of_process, &holder, NULL, 0);
	tokens = palloc(sizeof(pg_uuid_t) * Max(1, n));
	for (int i = 0; i < n; i++)
	{
		bool		isnull;

		tokens[i] = *DatumGetUUIDP(outbox_store_value(i, 1, &isnull));
	}
	for (int i = 0; i < n; i++)
	{
		Datum		token = UUIDPGetDatum(&tokens[i]);

		outbox_store_run(&give_back_lane, &token, NULL, 0);
	}
	return outbox_store_run(&select_of_process, &holder, NULL, 1) == 0;
}

bool
outbox_lease_has_outdated(void)
{
	return holds_outdated;
}

void
outbox_lease_give_back_outdated(TimestampTz now)
{
	HASH_SEQ_STATUS all;
	OutboxLane *lane;

	holds_outdated = false;
	if (known_lanes == NULL)
		return;
	hash_seq_init(&all, known_lanes);
	while ((lane = hash_seq_search(&all)) != NULL)
	{
		if (!lane->held || !lane->outdated)
			continue;
		if (!outbox_lease_has_work(lane, now))
			give_back(lane);
		holds_outdated |= lane->held;
	}
}
