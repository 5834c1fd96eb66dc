/*
 * repair.c - a subscription whose rows are not all there, as after a restore that failed in part.
 *
 * How far it was nobody can say then.  So it goes through the log anew, from where the
 * subscription begins, and passes over what any table still knows of: a receipt, a failed
 * delivery, an entry of a lane, one that is parked, delayed or leased.  Nothing is lost by
 * that, and nothing is there twice.  Whether those tables are whole nobody can say either, so the
 * subscription is paused, and says why, until a person resumes it.
 */
#include "outbox.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "alert.h"
#include "event_id.h"
#include "repair.h"
#include "settings.h"
#include "shmem.h"
#include "store.h"

static OutboxStatement select_rows = {
	"select (select t.joined from outbox.subscription_state t where t.subscription_id = $1),"
	" (select count(*) from outbox.lane l where l.subscription_id = $1 and l.lane >= $2 and l.lane < $2 + $3)",
	3, {INT4OID, INT4OID, INT4OID}
};

/* the same of many, in their order */
static OutboxStatement select_rows_of_all = {
	"select t.joined, (select count(*) from outbox.lane l where l.subscription_id = s.id"
	" and l.lane >= s.first_lane and l.lane < s.first_lane + s.lanes)"
	" from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3))"
	" with ordinality as s (id, first_lane, lanes, n)"
	" left join outbox.subscription_state t on t.subscription_id = s.id order by s.n",
	3, {INT4ARRAYOID, INT4ARRAYOID, INT4ARRAYOID}
};

static OutboxStatement lock_subscription = {
	"select 1 from outbox.subscription where subscription_id = $1 for no key update skip locked",
	1, {INT4OID}
};

/* the lanes of a generation have their base in common */
static OutboxStatement insert_lanes = {
	"insert into outbox.lane (subscription_id, lane, base)"
	" select $1, n, coalesce("
	"  (select min(l.base) from outbox.lane l where l.subscription_id = $1 and l.lane >= $2),"
	"  (select min(e.position) - 1 from outbox.lane_entry e where e.subscription_id = $1 and e.lane >= $2),"
	"  (select max(c.position) from outbox.lane_cursor c where c.subscription_id = $1), 0)"
	" from pg_catalog.generate_series($2, $2 + $3 - 1) as n on conflict (subscription_id, lane) do nothing",
	3, {INT4OID, INT4OID, INT4OID}
};

/* what comes next is behind what has failed or is parked, also when the entries are gone */
static OutboxStatement insert_cursors = {
	"insert into outbox.lane_cursor (subscription_id, lane, position)"
	" select $1, known.lane, max(known.position) from ("
	"  select g.lane, g.through from outbox.gate g where g.subscription_id = $1"
	"  union all select g.lane, p.position from outbox.gate g join outbox.parked p on p.gate_id = g.gate_id where g.subscription_id = $1"
	"  union all select x.lane, x.position from outbox.delivery_exception x where x.subscription_id = $1) known (lane, position)"
	" where known.lane >= $2 group by known.lane having max(known.position) > greatest("
	"  (select max(l.base) from outbox.lane l where l.subscription_id = $1 and l.lane = known.lane),"
	"  (select max(e.position) from outbox.lane_entry e where e.subscription_id = $1 and e.lane = known.lane),"
	"  (select max(c.position) from outbox.lane_cursor c where c.subscription_id = $1 and c.lane = known.lane))",
	2, {INT4OID, INT4OID}
};

static OutboxStatement insert_state = {
	"insert into outbox.subscription_state (subscription_id, joined, catch_up_from, stopped_at, stopped_code, stopped_reason)"
	" values ($1, false, $2::pg_snapshot, $3, $4, $5)"
	" on conflict (subscription_id) do update set joined = false, catch_up_from = excluded.catch_up_from, catch_up_to = null,"
	" catch_up_through = null, stopped_at = excluded.stopped_at, stopped_code = excluded.stopped_code,"
	" stopped_reason = excluded.stopped_reason",
	5, {INT4OID, TEXTOID, TIMESTAMPTZOID, TEXTOID, TEXTOID}
};

static OutboxStatement pause_subscription = {
	"update outbox.subscription set paused = true where subscription_id = $1",
	1, {INT4OID}
};

/*
 * Of the events $2, from the first $4 to the last $5, and perhaps of others between these.  As in select_needed_of (retention.c),
 * what no index leads to is looked up in a hash table of the events.
 */
static OutboxStatement select_known = {
	"select r.event_id from outbox.receipt_log r"
	"  where r.event_id >= $4 and r.event_id <= $5 and r.subscription_id = $1 and r.replay_no = 0"
	" union all"
	" select x.event_id from outbox.delivery_exception x"
	"  where x.subscription_id = $1 and x.event_id >= $4 and x.event_id <= $5 and x.replay_no = 0"
	" union all"
	" select d.event_id from outbox.delayed d where d.subscription_id = $1 and (d.event_id in (select pg_catalog.unnest($2))) is true"
	" union all"
	" select c.event_id from outbox.lease l cross join lateral pg_catalog.unnest(l.event_ids) as c (event_id)"
	"  where l.subscription_id = $1 and l.expires_at >= $3 and (c.event_id in (select pg_catalog.unnest($2))) is true"
	" union all"
	" select p.event_id from outbox.parked p join outbox.gate g on g.gate_id = p.gate_id and p.position > g.through"
	"  where g.subscription_id = $1 and p.event_id >= $4 and p.event_id <= $5"
	" union all"
	" select e.event_id from outbox.lane l join outbox.lane_entry e on e.subscription_id = l.subscription_id"
	"  and e.lane = l.lane and e.position > greatest(l.base, (select c.position from outbox.lane_cursor c"
	"   where c.subscription_id = l.subscription_id and c.lane = l.lane order by c.position desc limit 1))"
	"  where l.subscription_id = $1 and (e.event_id in (select pg_catalog.unnest($2))) is true",
	5, {INT4OID, UUIDARRAYOID, TIMESTAMPTZOID, UUIDOID, UUIDOID}
};

/* The columns of a row. */
static bool
read_whole(const OutboxSubscription *s, uint64 row, bool *joined)
{
	bool		no_state;
	bool		isnull;

	*joined = DatumGetBool(outbox_store_value(row, 1, &no_state)) && !no_state;
	return !no_state && DatumGetInt64(outbox_store_value(row, 2, &isnull)) == s->lanes;
}

bool
outbox_repair_is_whole(const OutboxSubscription *s, bool *joined)
{
	Datum		args[3] = {Int32GetDatum(s->id), Int32GetDatum(s->first_lane), Int32GetDatum(s->lanes)};

	(void) outbox_store_run_latest(&select_rows, args, NULL, 1);
	return read_whole(s, 0, joined);
}

static Datum
integers(const Datum *values, int n)
{
	return PointerGetDatum(construct_array((Datum *) values, n, INT4OID, sizeof(int32), true, TYPALIGN_INT));
}

void
outbox_repair_look_at_all(const OutboxSubscription *all, int n, bool *whole, bool *joined)
{
	Datum	   *ids = palloc(Max(1, n) * sizeof(Datum));
	Datum	   *first_lanes = palloc(Max(1, n) * sizeof(Datum));
	Datum	   *lanes = palloc(Max(1, n) * sizeof(Datum));
	Datum		args[3];

	for (int i = 0; i < n; i++)
	{
		ids[i] = Int32GetDatum(all[i].id);
		first_lanes[i] = Int32GetDatum(all[i].first_lane);
		lanes[i] = Int32GetDatum(all[i].lanes);
	}
	args[0] = integers(ids, n);
	args[1] = integers(first_lanes, n);
	args[2] = integers(lanes, n);
	(void) outbox_store_run_latest(&select_rows_of_all, args, NULL, 0);
	for (int i = 0; i < n; i++)
		whole[i] = read_whole(&all[i], i, &joined[i]);
}

void
outbox_repair_subscription(const OutboxSubscription *s)
{
	Datum		args[5] = {Int32GetDatum(s->id), Int32GetDatum(s->first_lane), Int32GetDatum(s->lanes)};
	bool		joined;

	/* it may have been dropped, or restored, since it was read */
	if (outbox_store_run(&lock_subscription, args, NULL, 1) == 0 || outbox_repair_is_whole(s, &joined))
		return;
	(void) outbox_store_run(&insert_lanes, args, NULL, 0);
	(void) outbox_store_run(&insert_cursors, args, NULL, 0);
	args[1] = CStringGetTextDatum(outbox_snapshot_text(outbox_snapshot_empty()));
	args[2] = TimestampTzGetDatum(outbox_settings_now());
	args[3] = CStringGetTextDatum(OUTBOX_CODE_INCOMPLETE);
	args[4] = CStringGetTextDatum("rows of it were missing, as after a restore that failed in part, and were made anew");
	(void) outbox_store_run(&insert_state, args, NULL, 0);
	(void) outbox_store_run(&pause_subscription, args, NULL, 0);
	outbox_alert_subscription_stopped(s, OUTBOX_CODE_INCOMPLETE);
	outbox_subscription_changed();
	ereport(LOG,
			(errmsg("rows of subscription \"%s\" were missing: they were made anew, and it is paused", s->name),
			 errhint("When the restore is complete: outbox.resume() delivers what has no receipt.")));
}

bool
outbox_repair_begins_at(const OutboxSnapshot *catch_up_from)
{
	return catch_up_from != NULL && outbox_snapshot_equals(catch_up_from, outbox_snapshot_empty());
}

static int
compare_ids(const void *a, const void *b)
{
	return outbox_event_id_compare(a, b);
}

int
outbox_repair_leave_unknown(const OutboxSubscription *s, OutboxCandidate *items, int n)
{
	OutboxDatabase *db = outbox_shmem_my_database();
	Datum	   *ids = palloc(Max(n, 1) * sizeof(Datum));
	Datum		args[5] = {Int32GetDatum(s->id), 0, TimestampTzGetDatum(db == NULL ? DT_NOBEGIN : outbox_shmem_swept(db))};
	pg_uuid_t  *known;
	uint64		nknown;
	bool		isnull;
	int			left = 0;

	if (n == 0)
		return 0;
	for (int i = 0; i < n; i++)
	{
		ids[i] = UUIDPGetDatum(&items[i].id);
		Assert(i == 0 || compare_ids(&items[i - 1].id, &items[i].id) <= 0);
	}
	args[3] = ids[0];
	args[4] = ids[n - 1];
	args[1] = PointerGetDatum(construct_array(ids, n, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR));
	nknown = outbox_store_run(&select_known, args, NULL, 0);
	known = palloc(Max(nknown, 1) * sizeof(pg_uuid_t));
	for (uint64 i = 0; i < nknown; i++)
		known[i] = *DatumGetUUIDP(outbox_store_value(i, 1, &isnull));
	qsort(known, nknown, sizeof(pg_uuid_t), compare_ids);
	for (int i = 0; i < n; i++)
	{
		if (bsearch(&items[i].id, known, nknown, sizeof(pg_uuid_t), compare_ids) == NULL)
			items[left++] = items[i];
	}
	return left;
}
