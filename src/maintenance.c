/*
 * maintenance.c - what upkeep does to rows, a bounded number at a time.
 *
 * Rows that nobody reads any more go: lane entries and cursors behind the lanes'
 * cursors, ticks before the last, entries of subscriptions that are gone; and what is
 * older than its window: keys of deduplication, batches, failed attempts, discarded
 * deliveries; leases of external workers that have ended.  A routing generation that is drained is ended here too.  upkeep.c says when.
 */
#include "outbox.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "claim_lease.h"
#include "counters.h"
#include "event_id.h"
#include "exception_count.h"
#include "extension.h"
#include "grants.h"
#include "maintenance.h"
#include "pattern.h"
#include "routing.h"
#include "segment.h"
#include "settings.h"
#include "shmem.h"
#include "store.h"
#include "subscription.h"
#include "wakeup.h"

#define TRIM_ROWS			2000	/* in one transaction: routing waits for it */
#define MOVE_REPLAYS		10000	/* to the next generation of lanes, in one transaction */
#define MOVE_ROWS			1000	/* the same, of others and of gates: routing waits for it */
#define TRIM_GATES			200 /* parked events are looked at gate by gate */
#define BLOCKS				1000	/* read in one transaction */
#define PATIENCE_MS			1000	/* for a lock, where there is time */
#define LOOK_AGAIN_MS		10
#define KEPT_WHY_MAX		4000	/* bytes of text */

static OutboxStatement select_horizon = {
	"select pg_snapshot_xmin(t.target)::text from outbox.tick t"
	" where t.incarnation = $1 and t.through is null order by t.tick desc, t.chunk desc limit 1",
	1, {INT4OID}
};

static OutboxStatement any_unjoined = {
	"select 1 from outbox.subscription s left join outbox.subscription_state t using (subscription_id)"
	" where t.joined is distinct from true limit 1"
};

/* routing generations, the oldest first: their lanes have the base in common */
static OutboxStatement select_generations = {
	"select l.base, min(l.lane), count(*)::integer from outbox.lane l where l.subscription_id = $1"
	" group by l.base order by l.base limit 2",
	1, {INT4OID}
};

/* has all that it was given been worked, and does nobody lease it? */
static OutboxStatement is_drained = {
	"select bool_and(l.token is null and not exists ("
	" select from outbox.lane_entry e where e.subscription_id = l.subscription_id and e.lane = l.lane"
	" and e.position > coalesce((select c.position from outbox.lane_cursor c where c.subscription_id = l.subscription_id"
	"  and c.lane = l.lane order by c.position desc limit 1), l.base)))"
	" from outbox.lane l where l.subscription_id = $1 and l.lane >= $2 and l.lane < $3",
	3, {INT4OID, INT4OID, INT4OID}
};

static OutboxStatement select_newest_lease = {
	"select l.lease_id from outbox.lease l order by l.lease_id desc limit 1"
};

static OutboxStatement any_newer_lease = {
	"select 1 from outbox.lease l where l.lease_id > $1 and l.subscription_id = $2 limit 1",
	2, {INT8OID, INT4OID}
};

static OutboxStatement lock_old_lanes = {
	"select 1 from outbox.lane where subscription_id = $1 and lane >= $2 and lane < $3 for update skip locked",
	3, {INT4OID, INT4OID, INT4OID}
};

/*
 * Replays that wait are many, perhaps, and have no key that says where they belong: some of them to any lane
 * of the next generation.
 */
static OutboxStatement move_replays = {
	"update outbox.delivery_exception set lane = $4 + (lane - $2) % $5 where ctid = any (array("
	" select x.ctid from outbox.delivery_exception x where x.subscription_id = $1 and x.lane >= $2 and x.lane < $3"
	" and x.status = 'RETRY' and x.replay_no > 0 limit $6 for update skip locked))",
	6, {INT4OID, INT4OID, INT4OID, INT4OID, INT4OID, INT4OID}
};

static OutboxStatement select_moving = {
	"select event_id, replay_no, tenant_id, event_key from outbox.delivery_exception"
	" where subscription_id = $1 and lane >= $2 and lane < $3 and (event_id, replay_no) > ($4, $5)"
	" order by event_id, replay_no limit $6",
	6, {INT4OID, INT4OID, INT4OID, UUIDOID, INT2OID, INT4OID}
};

/* nothing when a person has it */
static OutboxStatement move_exception = {
	"update outbox.delivery_exception set lane = $4 where ctid = (select x.ctid from outbox.delivery_exception x"
	" where x.subscription_id = $1 and x.event_id = $2 and x.replay_no = $3 for update skip locked)",
	4, {INT4OID, UUIDOID, INT2OID, INT4OID}
};

static OutboxStatement select_moving_gates = {
	"select gate_id, tenant_id, event_key from outbox.gate"
	" where subscription_id = $1 and lane >= $2 and lane < $3 limit $4",
	4, {INT4OID, INT4OID, INT4OID, INT4OID}
};

/* made for a delivery that has moved already, when on_review became 'block' meanwhile: nothing is parked behind it */
static OutboxStatement delete_twin = {
	"delete from outbox.gate where subscription_id = $1 and lane = $2 and tenant_id = $3 and event_key = $4"
	" returning held_by",
	4, {INT4OID, INT4OID, TEXTOID, TEXTOID}
};

static OutboxStatement move_gate = {
	"update outbox.gate set lane = $2, held_by = coalesce($3, held_by) where gate_id = $1",
	3, {INT8OID, INT4OID, UUIDOID}
};

static OutboxStatement delete_old_lanes = {
	"delete from outbox.lane where subscription_id = $1 and lane >= $2 and lane < $3",
	3, {INT4OID, INT4OID, INT4OID}
};

/*
 * $4: up to where it was trimmed before, so that what vacuum cannot remove yet is not passed over again.  Returns how many
 * are gone, the last of them, and up to where they all may go.
 */
static OutboxStatement trim_entries = {
	"with newest as materialized (select c.position from outbox.lane_cursor c where c.subscription_id = $1 and c.lane = $2"
	"  order by c.position desc limit 1),"
	" gone as (delete from outbox.lane_entry where ctid = any (array(select e.ctid from outbox.lane_entry e"
	" where e.subscription_id = $1 and e.lane = $2 and e.position > $4 and e.position <= (select position from newest)"
	" order by e.position limit $3)) returning position)"
	" select count(*), max(position), (select position from newest) from gone",
	4, {INT4OID, INT4OID, INT4OID, INT8OID}
};

/* all but the last one */
static OutboxStatement trim_cursors = {
	"with newest as materialized (select c.position from outbox.lane_cursor c where c.subscription_id = $1 and c.lane = $2"
	"  order by c.position desc limit 1),"
	" gone as (delete from outbox.lane_cursor where ctid = any (array(select o.ctid from outbox.lane_cursor o"
	" where o.subscription_id = $1 and o.lane = $2 and o.position > $4 and o.position < (select position from newest)"
	" order by o.position limit $3)) returning position)"
	" select count(*), max(position), (select position - 1 from newest) from gone",
	4, {INT4OID, INT4OID, INT4OID, INT8OID}
};

/* all but the last one of a lane */
static OutboxStatement trim_lane_leases = {
	"with newest as materialized (select c.lease_id from outbox.lane_lease c where c.subscription_id = $1 and c.lane = $2"
	"  order by c.lease_id desc limit 1),"
	" gone as (delete from outbox.lane_lease where ctid = any (array(select o.ctid from outbox.lane_lease o"
	" where o.subscription_id = $1 and o.lane = $2 and o.lease_id > $4 and o.lease_id < (select lease_id from newest)"
	" order by o.lease_id limit $3)) returning lease_id)"
	" select count(*), max(lease_id), (select lease_id - 1 from newest) from gone",
	4, {INT4OID, INT4OID, INT4OID, INT8OID}
};

/* leases that ended some time ago: all of those that expired before $1 have ended */
static OutboxStatement trim_leases = {
	"with gone as (delete from outbox.lease where ctid = any (array(select l.ctid from outbox.lease l"
	" where l.expires_at < $1 and l.expires_at >= $2 order by l.expires_at limit $3)) returning lease_id, expires_at),"
	" progress as (delete from outbox.lease_progress where ctid = any (array(select p.at from gone cross join lateral"
	"  (select i.ctid as at from outbox.lease_progress i where i.lease_id = gone.lease_id offset 0) p)))"
	" select count(*), max(expires_at) from gone",
	3, {TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID}
};

/* the next gate id that has parked rows, and whether there is such a gate (asked so that not all gates are read for it) */
static OutboxStatement select_parked_gate = {
	"select p.gate_id, (select true from outbox.gate g where g.gate_id = p.gate_id) from outbox.parked p"
	" where p.gate_id > $1 order by p.gate_id limit 1",
	1, {INT8OID}
};

/* $3: as in trim_entries */
static OutboxStatement trim_parked = {
	"with gone as (delete from outbox.parked where ctid = any (array(select p.ctid from outbox.parked p"
	" where p.gate_id = $1 and p.position > $3 order by p.position limit $2)) returning position)"
	" select count(*), max(position) from gone",
	3, {INT8OID, INT4OID, INT8OID}
};

static OutboxStatement trim_ticks = {
	"delete from outbox.tick where ctid = any (array(select o.ctid from outbox.tick o where o.incarnation = $1"
	" and o.tick < (select t.tick from outbox.tick t where t.incarnation = $1 order by t.tick desc limit 1) - 100"
	" order by o.tick limit $2))",
	2, {INT4OID, INT4OID}
};

/* entries that the router appended while the subscription was being dropped: of ids between two that there are */
static OutboxStatement trim_orphans = {
	"delete from outbox.lane_entry where ctid = any (array(select e.ctid from outbox.lane_entry e"
	" where e.subscription_id > $2 and e.subscription_id < $3"
	" and (select true from outbox.subscription s where s.subscription_id = e.subscription_id) is null limit $1))",
	3, {INT4OID, INT4OID, INT4OID}
};

static OutboxStatement trim_dedup = {
	"delete from outbox.dedup where ctid = any (array(select d.ctid from outbox.dedup d"
	" where d.ctid >= $1 and d.ctid < $2 and d.published_at < $3 for update skip locked))",
	3, {TIDOID, TIDOID, TIMESTAMPTZOID}
};

static OutboxStatement trim_consumed = {
	"delete from outbox.consumed where ctid = any (array(select c.ctid from outbox.consumed c"
	" where c.ctid >= $1 and c.ctid < $2 and c.consumed_at < $3 for update skip locked))",
	3, {TIDOID, TIDOID, TIMESTAMPTZOID}
};

static OutboxStatement select_oldest_segment = {
	"select min_id.from_id from (select (select s.from_id from outbox.segment s order by s.from_id limit 1)) min_id (from_id)"
};

/* those of receipts that were kept stay, and of leases that are still there; they are passed over */
static OutboxStatement trim_batches = {
	"with old as (select b.ctid as at, b.batch_id, b.lease_id from outbox.batch b where b.batch_id < $1 and b.batch_id > $2"
	" order by b.batch_id limit $3),"
	" gone as (delete from outbox.batch where ctid = any (array(select old.at from old where ("
	"  select true from outbox.receipt_log_kept k where k.batch_id = old.batch_id limit 1) is null"
	"  and (select true from outbox.lease l where l.lease_id = old.lease_id) is null)) returning 1)"
	" select (select count(*) from gone), (select count(*) from old), (select max(batch_id) from old)",
	3, {INT8OID, INT8OID, INT4OID}
};

static OutboxStatement trim_attempts = {
	"with old as (select a.ctid as at, a.attempt_id, a.subscription_id, a.event_id, a.replay_no from outbox.attempt_log a"
	" where a.attempt_id > $2 and a.failed_at < $1 order by a.attempt_id limit $3),"
	" gone as (delete from outbox.attempt_log where ctid = any (array(select old.at from old where ("
	"  select true from outbox.delivery_exception x where x.subscription_id = old.subscription_id"
	"  and x.event_id = old.event_id and x.replay_no = old.replay_no and x.status <> 'DISCARDED') is null)) returning 1)"
	" select (select count(*) from gone), (select count(*) from old), (select max(attempt_id) from old)",
	3, {TIMESTAMPTZOID, INT8OID, INT4OID}
};

/* a worker has seen them, and let the key go on */
static OutboxStatement trim_discarded = {
	"delete from outbox.delivery_exception where ctid = any (array(select x.ctid from outbox.delivery_exception x"
	" where x.subscription_id in (select s.subscription_id from outbox.subscription s) and x.event_id < $2"
	" and x.status = 'DISCARDED' and x.gate_released and coalesce(x.failed_at, '-infinity') < $1"
	" limit $3 for update skip locked))",
	3, {TIMESTAMPTZOID, UUIDOID, INT4OID}
};

static OutboxStatement count_overdue = {
	"select count(*) from outbox.delivery_exception x"
	" where x.subscription_id in (select s.subscription_id from outbox.subscription s)"
	" and x.event_id < $2 and x.status = 'REVIEW_REQUIRED' and x.failed_at < $1",
	2, {TIMESTAMPTZOID, UUIDOID}
};

/* ---------------------------------------------------------------- what retention shares */

bool
outbox_maintenance_lock_alone(const OutboxPass *pass, Oid relid)
{
	TimestampTz give_up_at = GetCurrentTimestamp() + PATIENCE_MS * INT64CONST(1000);

	while (!ConditionalLockRelationOid(relid, AccessExclusiveLock))
	{
		if (!pass->patient || GetCurrentTimestamp() >= give_up_at)
			return false;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, LOOK_AGAIN_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return true;
}

void
outbox_maintenance_keep(OutboxPass *pass, const char *name, const char *why)
{
	pass->kept++;
	if (pass->kept_why.len < KEPT_WHY_MAX)
		appendStringInfo(&pass->kept_why, "%s%s: %s", pass->kept_why.len > 0 ? "; " : "", name, why);
}

/* ---------------------------------------------------------------- sealing */

/* In the router, what it remembers is newer than the last tick when there was nothing to route since. */
bool
outbox_maintenance_seal(int incarnation)
{
	Datum		arg = Int32GetDatum(incarnation);
	uint64		horizon = outbox_routing_horizon();
	bool		isnull;

	if (outbox_store_run(&any_unjoined, NULL, NULL, 1) > 0)
		return false;
	if (outbox_store_run(&select_horizon, &arg, NULL, 1) > 0)
		horizon = Max(horizon, strtou64(TextDatumGetCString(outbox_store_value(0, 1, &isnull)), NULL, 10));
	return outbox_segment_seal(horizon);
}

/* ---------------------------------------------------------------- generations of lanes */

/* a routing generation: some lanes with numbers in a row */
typedef struct Generation
{
	int32		first_lane;
	int32		lanes;
} Generation;

static int32
lane_of_hash(const Generation *g, uint64 hash)
{
	return g->first_lane + (int32) (hash % (uint64) g->lanes);
}

/* tenant_id is '' for none, as in the tables */
static int32
lane_of_key(const Generation *g, const char *tenant_id, const char *event_key)
{
	return lane_of_hash(g, outbox_pattern_key_hash(tenant_id[0] != '\0' ? tenant_id : NULL, strlen(tenant_id),
												   event_key, strlen(event_key)));
}

static int32
lane_of_event(const Generation *g, const pg_uuid_t *event_id)
{
	return lane_of_hash(g, outbox_pattern_key_hash(NULL, 0, (const char *) event_id->data, UUID_LEN));
}

/* where the moving of a generation is: behind this row */
typedef struct MovePlace
{
	int32		subscription_id;
	int32		first_lane;
	pg_uuid_t	event_id;		/* all zeros: at the beginning */
	int16		replay_no;
} MovePlace;

/* Moves these rows of SPI_tuptable, and goes to the last one; returns how many nobody had locked. */
static uint64
move_rows(uint64 n, const Generation *next, MovePlace *place)
{
	SPITupleTable *rows = SPI_tuptable;
	Datum		args[4] = {Int32GetDatum(place->subscription_id), UUIDPGetDatum(&place->event_id)};
	uint64		moved = 0;

	for (uint64 i = 0; i < n; i++)
	{
		bool		isnull;
		char	   *key;

		SPI_tuptable = rows;
		place->event_id = *DatumGetUUIDP(outbox_store_value(i, 1, &isnull));
		place->replay_no = DatumGetInt16(outbox_store_value(i, 2, &isnull));
		args[2] = Int16GetDatum(place->replay_no);
		key = outbox_store_text(i, 4);
		args[3] = Int32GetDatum(key != NULL ? lane_of_key(next, outbox_store_text(i, 3), key) :
								lane_of_event(next, &place->event_id));
		moved += outbox_store_run(&move_exception, args, NULL, 0);
	}
	SPI_freetuptable(rows);
	return moved;
}

/*
 * What has not gone well moves to the lanes where its key's next events are, some of it in each step; there it waits for
 * the others.  True when there is nothing left, as seen from the beginning by one step: between two of them the lanes
 * are not locked.
 */
static bool
move_exceptions(const OutboxSubscription *s, const Generation *old, const Generation *next, bool *more)
{
	static MovePlace place = {0};
	Datum		args[6] = {Int32GetDatum(s->id), Int32GetDatum(old->first_lane), Int32GetDatum(old->first_lane + old->lanes)};
	MovePlace	beginning = {.subscription_id = s->id, .first_lane = old->first_lane};
	bool		whole;
	uint64		n;
	uint64		moved;

	if (place.subscription_id != s->id || place.first_lane != old->first_lane)
		place = beginning;
	whole = memcmp(&place.event_id, &beginning.event_id, sizeof(pg_uuid_t)) == 0;
	args[3] = UUIDPGetDatum(&place.event_id);
	args[4] = Int16GetDatum(place.replay_no);
	args[5] = Int32GetDatum(MOVE_ROWS);
	n = outbox_store_run(&select_moving, args, NULL, 0);
	moved = move_rows(n, next, &place);
	if (n < MOVE_ROWS)
		place = beginning;
	*more |= n == MOVE_ROWS || !whole;
	return whole && n < MOVE_ROWS && moved == n;
}

/* When no delivery is left behind: whoever settles one looks for the gate in its lane.  True when there is none left. */
static bool
move_gates(const OutboxSubscription *s, const Generation *old, const Generation *next, bool *more)
{
	Datum		args[4] = {
		Int32GetDatum(s->id), Int32GetDatum(old->first_lane), Int32GetDatum(old->first_lane + old->lanes),
		Int32GetDatum(MOVE_ROWS)
	};
	uint64		n = outbox_store_run(&select_moving_gates, args, NULL, 0);
	SPITupleTable *rows = SPI_tuptable;

	for (uint64 i = 0; i < n; i++)
	{
		Datum		twin[4] = {Int32GetDatum(s->id)};
		char		nulls[3] = {' ', ' ', 'n'};
		bool		isnull;

		SPI_tuptable = rows;
		args[0] = outbox_store_value(i, 1, &isnull);
		args[1] = twin[1] = Int32GetDatum(lane_of_key(next, outbox_store_text(i, 2), outbox_store_text(i, 3)));
		twin[2] = outbox_store_value(i, 2, &isnull);
		twin[3] = outbox_store_value(i, 3, &isnull);
		if (outbox_store_run(&delete_twin, twin, NULL, 0) > 0)
		{
			args[2] = outbox_store_value(0, 1, &isnull);
			nulls[2] = isnull ? 'n' : ' ';
		}
		outbox_store_run(&move_gate, args, nulls, 0);
	}
	*more |= n == MOVE_ROWS;
	return n < MOVE_ROWS;
}

/* an external worker's lease of events in the lanes of a generation */
typedef struct LeasedLanes
{
	int32		subscription_id;
	int32		first_lane;
	int32		end_lane;
	int64		lease_id;		/* 0: none, */
	int64		through;		/* up to this one */
} LeasedLanes;

static bool
find_leased(const OutboxClaimLease *lease, void *argument)
{
	LeasedLanes *leased = argument;

	if (lease->subscription_id != leased->subscription_id)
		return true;
	for (int i = 0; i < lease->count && leased->lease_id == 0; i++)
	{
		const OutboxClaimedEvent *event = &lease->events[i];

		if (event->state == CLAIM_HELD && event->lane >= leased->first_lane && event->lane < leased->end_lane)
			leased->lease_id = lease->lease_id;
	}
	return leased->lease_id == 0;
}

static int64
newest_lease(void)
{
	bool		isnull;

	return outbox_store_run(&select_newest_lease, NULL, NULL, 1) == 0 ? 0 :
		DatumGetInt64(outbox_store_value(0, 1, &isnull));
}

/* Of these lanes, and all that is new since is of other subscriptions. */
static bool
is_known_unleased(const LeasedLanes *lanes, const LeasedLanes *known)
{
	Datum		args[2] = {Int64GetDatum(known->through), Int32GetDatum(lanes->subscription_id)};

	return known->subscription_id == lanes->subscription_id && known->first_lane == lanes->first_lane &&
		known->lease_id == 0 && outbox_store_run(&any_newer_lease, args, NULL, 1) == 0;
}

/*
 * Does an external worker hold events of these lanes, which are locked?  Reads all leases from where those before have
 * ended, up to the first one, and remembers what it found: whether that one has ended, or those that are new, is
 * enough to ask next time.  (Numbers are drawn while the lanes are locked.)
 */
static bool
is_leased(const OutboxSubscription *s, const Generation *old, LeasedLanes *known)
{
	OutboxDatabase *db = outbox_shmem_my_database();
	LeasedLanes leased = {
		.subscription_id = s->id, .first_lane = old->first_lane, .end_lane = old->first_lane + old->lanes
	};
	OutboxClaimWalk walk = {
		.from = db == NULL ? DT_NOBEGIN : outbox_shmem_swept(db), .until = DT_NOEND, .snapshot = SnapshotSelf,
		.most = INT_MAX, .whole = true, .visit = find_leased, .argument = &leased
	};

	leased.through = newest_lease();
	if (!is_known_unleased(&leased, known))
		outbox_claim_lease_walk(&walk);
	*known = leased;
	return leased.lease_id != 0;
}

static void
read_generation(uint64 row, Generation *generation)
{
	bool		isnull;

	generation->first_lane = DatumGetInt32(outbox_store_value(row, 2, &isnull));
	generation->lanes = DatumGetInt32(outbox_store_value(row, 3, &isnull));
}

/*
 * A change of `lanes` begins a new generation; only the oldest one is worked.  When it is
 * drained it ends here, in the router, and not before this process appends to a later one.
 * False when there is still more than one; *more when it can be gone on with at once.
 */
static bool
end_generation(const OutboxSubscription *s, bool *more)
{
	static LeasedLanes known = {0};
	Datum		args[6] = {Int32GetDatum(s->id)};
	Generation	old;
	Generation	next;
	TimestampTz expires_at;
	bool		isnull;

	if (s->first_lane == 0 || outbox_store_run(&select_generations, args, NULL, 2) < 2)
		return true;
	read_generation(0, &old);
	read_generation(1, &next);
	if (old.first_lane + old.lanes > s->first_lane)
		return false;
	args[1] = Int32GetDatum(old.first_lane);
	args[2] = Int32GetDatum(old.first_lane + old.lanes);
	outbox_store_run(&is_drained, args, NULL, 1);
	if (!DatumGetBool(outbox_store_value(0, 1, &isnull)) ||
		(known.subscription_id == s->id && known.first_lane == old.first_lane && known.lease_id != 0 &&
		 outbox_claim_lease_is_open(known.lease_id, &expires_at)) ||
		outbox_store_run(&lock_old_lanes, args, NULL, 0) != (uint64) old.lanes || is_leased(s, &old, &known))
		return false;
	args[3] = Int32GetDatum(next.first_lane);
	args[4] = Int32GetDatum(next.lanes);
	args[5] = Int32GetDatum(MOVE_REPLAYS);
	if (outbox_store_run(&move_replays, args, NULL, 0) == MOVE_REPLAYS)
		*more = true;
	else if (move_exceptions(s, &old, &next, more) && move_gates(s, &old, &next, more))
	{
		outbox_store_run(&delete_old_lanes, args, NULL, 0);
		outbox_wakeup_workers();
	}
	return false;
}

/* Those that wait for it wait for us: looked at in each step, until there is none.  True when there is more to do at once. */
bool
outbox_maintenance_end_generations(OutboxSubscription *subscriptions, int n)
{
	static uint64 settled = 0;
	uint64		version = outbox_subscription_version();
	bool		all = true;
	bool		more = false;

	if (settled == version)
		return false;
	for (int i = 0; i < n; i++)
		all &= end_generation(&subscriptions[i], &more);
	if (all)
		settled = version;
	return more;
}

/* ---------------------------------------------------------------- trimming */

/* up to where a lane's tables were trimmed; a row deleted by a transaction that was rolled back waits for a restart */
typedef struct TrimmedLane
{
	int32		subscription_id;
	int32		lane;
	int64		entries;
	int64		cursors;
	int64		leases;
} TrimmedLane;

static TrimmedLane *
trimmed_lane(int32 subscription_id, int32 lane)
{
	static HTAB *lanes = NULL;
	int32		key[2] = {subscription_id, lane};
	TrimmedLane *trimmed;
	bool		found;

	if (lanes == NULL)
	{
		HASHCTL		ctl = {.keysize = sizeof(key), .entrysize = sizeof(TrimmedLane), .hcxt = TopMemoryContext};

		lanes = hash_create("outbox trimmed lanes", 256, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	trimmed = hash_search(lanes, key, HASH_ENTER, &found);
	if (!found)
		trimmed->entries = trimmed->cursors = trimmed->leases = 0;
	return trimmed;
}

static int64
count_value(uint64 row, int column)
{
	bool		isnull;
	Datum		value = outbox_store_value(row, column, &isnull);

	return isnull ? 0 : DatumGetInt64(value);
}

static bool
trim_table(OutboxPass *pass, OutboxStatement *statement, const OutboxSubscription *s, int32 lane, int64 *reached)
{
	Datum		args[4] = {Int32GetDatum(s->id), Int32GetDatum(lane), Int32GetDatum(TRIM_ROWS), Int64GetDatum(*reached)};
	int64		rows;

	outbox_store_run(statement, args, NULL, 0);
	rows = count_value(0, 1);
	*reached = Max(*reached, count_value(0, rows == TRIM_ROWS ? 2 : 3));
	pass->removed += rows;
	return rows == TRIM_ROWS;
}

/* Behind the cursor nobody looks any more.  True when there is more of it. */
static bool
trim_lanes_of(OutboxPass *pass, const OutboxSubscription *s)
{
	bool		more = false;

	for (int lane = 0; lane < s->first_lane + s->lanes && !more; lane++)
	{
		TrimmedLane *trimmed = trimmed_lane(s->id, lane);

		more = trim_table(pass, &trim_entries, s, lane, &trimmed->entries);
		more |= trim_table(pass, &trim_cursors, s, lane, &trimmed->cursors);
		more |= trim_table(pass, &trim_lane_leases, s, lane, &trimmed->leases);
	}
	return more;
}

/* what is counted of subscriptions that are gone */
static void
trim_counters(OutboxPass *pass)
{
	int32	   *ids = palloc(sizeof(int32) * Max(1, pass->nsubscriptions));

	for (int i = 0; i < pass->nsubscriptions; i++)
		ids[i] = pass->subscriptions[i].id;
	outbox_counters_keep_only(pass->nsubscriptions, ids);
}

/* Leases that have ended, an hour after they expired at the earliest. */
bool
outbox_maintenance_trim_leases(OutboxPass *pass)
{
	static TimestampTz reached = DT_NOBEGIN;
	OutboxDatabase *db = outbox_shmem_my_database();
	TimestampTz before = outbox_settings_now() - OUTBOX_CLAIM_KEPT;
	Datum		args[3];
	bool		isnull;
	int64		rows;
	Datum		last;

	if (db == NULL)
		return false;
	before = Min(before, outbox_shmem_swept(db));
	reached = Min(reached, before);
	args[0] = TimestampTzGetDatum(before);
	args[1] = TimestampTzGetDatum(reached);
	args[2] = Int32GetDatum(TRIM_ROWS);
	outbox_store_run(&trim_leases, args, NULL, 0);
	rows = DatumGetInt64(outbox_store_value(0, 1, &isnull));
	last = outbox_store_value(0, 2, &isnull);
	pass->removed += rows;
	if (rows == TRIM_ROWS && !isnull)
		reached = DatumGetTimestampTz(last);
	return rows == TRIM_ROWS;
}

/*
 * Parked events whose gate is gone: whoever removes it leaves them to us, as there may be a million.  The keys that are
 * blocked may be many, too: each round of the router looks at some, and the next one goes on there.
 */
bool
outbox_maintenance_trim_parked(OutboxPass *pass)
{
	static int64 gate = 0;
	static int64 position = 0;
	int64		removed = pass->removed;
	bool		isnull;

	for (int i = 0; i < TRIM_GATES; i++)
	{
		Datum		args[3] = {Int64GetDatum(gate), Int32GetDatum(TRIM_ROWS), Int64GetDatum(position)};
		int64		next;

		if (outbox_store_run(&select_parked_gate, args, NULL, 1) == 0)
		{
			gate = position = 0;
			return false;
		}
		next = DatumGetInt64(outbox_store_value(0, 1, &isnull));
		if (!DatumGetBool(outbox_store_value(0, 2, &isnull)))
		{
			Datum		last;

			args[0] = Int64GetDatum(next);
			outbox_store_run(&trim_parked, args, NULL, 0);
			last = outbox_store_value(0, 2, &isnull);
			pass->removed += count_value(0, 1);
			if (count_value(0, 1) == TRIM_ROWS)
			{
				position = DatumGetInt64(last);
				return true;
			}
		}
		gate = next;
		position = 0;
	}
	return pass->patient || pass->removed > removed;
}

/* A subscription a step. */
bool
outbox_maintenance_trim_lanes(OutboxPass *pass)
{
	if (pass->reached < pass->nsubscriptions && !trim_lanes_of(pass, &pass->subscriptions[pass->reached]))
		pass->reached++;
	return pass->reached < pass->nsubscriptions;
}

static int
compare_ids(const void *a, const void *b)
{
	int32		first = *(const int32 *) a;
	int32		second = *(const int32 *) b;

	return (first > second) - (first < second);
}

/* The ids of all subscriptions in their order, between two that are none. */
static int32 *
sort_ids(const OutboxPass *pass)
{
	int32	   *ids = palloc((pass->nsubscriptions + 2) * sizeof(int32));

	ids[0] = PG_INT32_MIN;
	for (int i = 0; i < pass->nsubscriptions; i++)
		ids[i + 1] = pass->subscriptions[i].id;
	ids[pass->nsubscriptions + 1] = PG_INT32_MAX;
	qsort(ids, pass->nsubscriptions + 2, sizeof(int32), compare_ids);
	return ids;
}

/*
 * Entries of subscriptions that are gone.  The router appends none once it knows of that, as this process does by now: while
 * the subscriptions are those of the last time, when there were none left, there is nothing to look for.
 */
static bool
trim_orphans_between(OutboxPass *pass)
{
	static uint64 trimmed_for = 0;
	uint64		version = outbox_subscription_version();
	int32	   *ids;
	uint64		rows = 0;

	if (trimmed_for == version)
		return false;
	ids = sort_ids(pass);
	for (int i = 0; i <= pass->nsubscriptions && rows < TRIM_ROWS; i++)
	{
		Datum		args[3] = {Int32GetDatum(TRIM_ROWS), Int32GetDatum(ids[i]), Int32GetDatum(ids[i + 1])};

		if (ids[i] + INT64CONST(1) < ids[i + 1])
			rows += outbox_store_run(&trim_orphans, args, NULL, 0);
	}
	pass->removed += rows;
	if (rows == 0)
		trimmed_for = version;
	return rows > 0;
}

bool
outbox_maintenance_trim_ticks(OutboxPass *pass)
{
	Datum		args[2] = {Int32GetDatum(pass->incarnation), Int32GetDatum(TRIM_ROWS)};
	uint64		ticks = outbox_store_run(&trim_ticks, args, NULL, 0);
	bool		more = trim_orphans_between(pass);

	trim_counters(pass);
	more |= outbox_exception_count_fold();
	pass->removed += ticks;
	return more || ticks == TRIM_ROWS;
}

/* ---------------------------------------------------------------- windows */

static Datum
days_ago(int minutes)
{
	return TimestampTzGetDatum(outbox_settings_now() - (int64) minutes * USECS_PER_MINUTE);
}

/*
 * There is no index by time, which each insert would have to keep up: the table is read in
 * its own order, a piece a step.
 */
static bool
trim_by_blocks(OutboxPass *pass, const char *table, OutboxStatement *statement, int minutes)
{
	Relation	rel = outbox_store_open(outbox_extension_relid(table), RowExclusiveLock);
	BlockNumber nblocks = RelationGetNumberOfBlocks(rel);
	BlockNumber from = (BlockNumber) Min(pass->reached, nblocks);
	BlockNumber to = Min(from + BLOCKS, nblocks);
	ItemPointerData bounds[2];
	Datum		args[3] = {PointerGetDatum(&bounds[0]), PointerGetDatum(&bounds[1]), days_ago(minutes)};

	ItemPointerSet(&bounds[0], from, 0);
	ItemPointerSet(&bounds[1], to, 0);
	if (from < to)
		pass->removed += outbox_store_run(statement, args, NULL, 0);
	table_close(rel, NoLock);
	pass->reached = to < nblocks ? to : 0;
	return to < nblocks;
}

bool
outbox_maintenance_trim_dedup(OutboxPass *pass)
{
	return trim_by_blocks(pass, "dedup", &trim_dedup, outbox_dedup_window);
}

bool
outbox_maintenance_trim_consumed(OutboxPass *pass)
{
	return trim_by_blocks(pass, "consumed", &trim_consumed, outbox_settings_receipt_retention());
}

/* A batch's id is the time it began at: no older than what it has receipts of. */
bool
outbox_maintenance_trim_batches(OutboxPass *pass)
{
	TimestampTz until = outbox_settings_now() - outbox_settings_receipt_retention() * USECS_PER_MINUTE;
	Datum		args[3] = {0, Int64GetDatum(pass->reached), Int32GetDatum(TRIM_ROWS)};
	OutboxIdTime horizon = outbox_event_id_time_from(until);
	bool		isnull;
	Datum		oldest;

	(void) outbox_store_run(&select_oldest_segment, NULL, NULL, 1);
	oldest = outbox_store_value(0, 1, &isnull);
	if (!isnull)
		horizon = Min(horizon, outbox_event_id_time_of(DatumGetUUIDP(oldest)));
	args[0] = Int64GetDatum((int64) horizon);
	(void) outbox_store_run(&trim_batches, args, NULL, 0);
	pass->removed += count_value(0, 1);
	pass->reached = count_value(0, 3);
	return count_value(0, 2) == TRIM_ROWS;
}

/* Those of a delivery that is still open stay, and are passed over. */
bool
outbox_maintenance_trim_attempts(OutboxPass *pass)
{
	Datum		args[3] = {days_ago(outbox_review_retention), Int64GetDatum(pass->reached), Int32GetDatum(TRIM_ROWS)};

	(void) outbox_store_run(&trim_attempts, args, NULL, 0);
	pass->removed += count_value(0, 1);
	pass->reached = count_value(0, 3);
	return count_value(0, 2) == TRIM_ROWS;
}

bool
outbox_maintenance_trim_discarded(OutboxPass *pass)
{
	Datum		args[3] = {days_ago(outbox_review_retention), 0, Int32GetDatum(TRIM_ROWS)};
	pg_uuid_t	before;
	uint64		rows;

	outbox_event_id_floor(outbox_event_id_time_from(DatumGetTimestampTz(args[0])), &before);
	args[1] = UUIDPGetDatum(&before);
	rows = outbox_store_run(&trim_discarded, args, NULL, 0);
	pass->removed += rows;
	return rows == TRIM_ROWS;
}

/* Nothing is removed: deliveries that have waited for a person too long are told of. */
bool
outbox_maintenance_count_reviews(OutboxPass *pass)
{
	pg_uuid_t	before;
	Datum		args[2] = {days_ago(outbox_review_retention), UUIDPGetDatum(&before)};

	outbox_event_id_floor(outbox_event_id_time_from(DatumGetTimestampTz(args[0])), &before);
	(void) outbox_store_run(&count_overdue, args, NULL, 1);
	pass->kept = count_value(0, 1);
	if (pass->kept > 0)
		appendStringInfo(&pass->kept_why, INT64_FORMAT " deliveries have required a review for longer than outbox.review_retention", pass->kept);
	return false;
}
