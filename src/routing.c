/*
 * routing.c - newly committed events into the lanes of their subscriptions.
 *
 * Ids and commits come in different orders, so "everything above the highest
 * id seen" would lose the events of slow transactions.  A tick compares two
 * snapshots instead: it routes the events that the last tick's snapshot (seen)
 * did not show and its own (target) does, in event_id order.  A transaction
 * that is still running, or prepared, holds nobody up; the tick after its
 * commit finds it by its xid.  (The method is PgQ's.)
 *
 * What keeps it exact:
 * - a chunk's lane entries and the row that says how far the tick has come
 *   commit together;
 * - tick n + 1 stands under a primary key, and so does each lane position, so
 *   that a second router can commit nothing; an advisory lock keeps it away;
 * - a new subscription gets what its seam does not see from a catch-up of its
 *   own, up to a tick's snapshot, and from there on the ticks.
 *
 * Lane entries may be lost with the server (its commits need not be flushed:
 * a worker's commit flushes them): the tick is lost with them and made again.
 */
#include "outbox.h"

#include "access/genam.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "postmaster/interrupt.h"
#include "storage/bufmgr.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "event_id.h"
#include "extension.h"
#include "pattern.h"
#include "routing.h"
#include "segment.h"
#include "settings.h"
#include "shmem.h"
#include "snapshot.h"
#include "store.h"
#include "subscription.h"

#define CHUNK_EVENTS		5000	/* routed in one transaction */
#define COLLECT_EVENTS		100000	/* remembered at once, the oldest first */
#define DELAYED_EVENTS		1000	/* due ones moved in one transaction */
#define KNOWN_TYPES_MAX		10000	/* event types remembered with their subscriptions */
#define LOCK_CLASS_ROUTER	3	/* an advisory lock that no SQL function can name */

/* an event that waits to be routed */
typedef struct Candidate
{
	pg_uuid_t	id;
	ItemPointerData tid;
	int16		segment;
} Candidate;

typedef struct CandidateList
{
	Candidate  *items;			/* room for 2 * COLLECT_EVENTS once it is needed */
	int			count;
	int			room;
	bool		truncated;		/* there are more, all above the last one */
	int			nsegments;
	OutboxSegment *segments;
} CandidateList;

typedef struct LaneEnd
{
	int32		subscription_id;
	int32		lane;
	int64		position;		/* the last one given */
} LaneEnd;

/* which subscriptions an event type goes to; the key is the type */
typedef struct TypeRoute
{
	char		type[OUTBOX_EVENT_TYPE_MAX + 1];
	int			count;
	int		   *subscriptions;	/* indexes into the cache of subscriptions */
} TypeRoute;

/* which events a collection looks for */
typedef struct Range
{
	const OutboxSnapshot *seen; /* not those */
	const OutboxSnapshot *target;	/* but those */
	const pg_uuid_t *through;	/* above this one; NULL: all */
} Range;

/* what one transaction of routing appends */
typedef struct Routing
{
	TimestampTz now;
	OutboxWriter *entries;
	OutboxWriter *delayed;
	OutboxSubscription *subscriptions;
	int			nsubscriptions;
	int			routed;
	/* lanes that got something: hints to set after the commit */
	uint64		hints[OUTBOX_HINT_WORDS];
} Routing;

/* remembered between rounds; thrown away by outbox_routing_reset() */
static MemoryContext router_context = NULL;
static MemoryContext types_context = NULL;
static MemoryContext round_context = NULL;
static bool loaded = false;
static int	incarnation;		/* whose rows are being routed */
static bool incarnation_over;	/* it is an earlier one, whose ticks are being ended */
static int64 last_tick;			/* the newest in the table */
static int	last_chunk;
static bool tick_open;			/* its last chunk is not the final one */
static OutboxSnapshot *seen;	/* everything it sees is routed (but for an open tick) */
static OutboxSnapshot *open_target;
static pg_uuid_t open_through;
static HTAB *lane_ends = NULL;
static HTAB *type_routes = NULL;
static uint64 routes_version = 0;
static bool *joined = NULL;		/* by index of the subscription cache */
static int	unjoined = 0;
static TimestampTz due_cursor = DT_NOBEGIN; /* delayed rows before it are gone */
static TimestampTz next_due = DT_NOBEGIN;	/* no delayed row is due before */

static OutboxStatement select_tick = {
	"select tick, chunk, seen::text, target::text, through from outbox.tick"
	" where incarnation = $1 order by tick desc, chunk desc limit 1",
	1, {INT4OID}
};

static OutboxStatement select_state = {
	"select joined, catch_up_from::text, catch_up_to::text, catch_up_through"
	" from outbox.subscription_state where subscription_id = $1",
	1, {INT4OID}
};

static OutboxStatement update_state = {
	"update outbox.subscription_state set joined = $2, catch_up_from = $3::pg_snapshot,"
	" catch_up_to = $4::pg_snapshot, catch_up_through = $5 where subscription_id = $1",
	5, {INT4OID, BOOLOID, TEXTOID, TEXTOID, UUIDOID}
};

/* the ticks of an incarnation that is over end with the final snapshot */
static OutboxStatement select_open_incarnation = {
	"select i.incarnation from outbox.incarnation i where i.incarnation < $1 and not exists ("
	"select from outbox.tick t where t.incarnation = i.incarnation and t.through is null"
	" and pg_snapshot_xmax(t.target)::text = '9223372036854775807')"
	" order by i.incarnation limit 1",
	1, {INT4OID}
};

static OutboxStatement insert_incarnation = {
	"insert into outbox.incarnation (incarnation, system_identifier, database_oid, activated_at)"
	" values ($1, $2, $3, $4)",
	4, {INT4OID, INT8OID, OIDOID, TIMESTAMPTZOID}
};

static OutboxStatement select_lane_base = {
	"select base from outbox.lane where subscription_id = $1 and lane = $2",
	2, {INT4OID, INT4OID}
};

/* ---------------------------------------------------------------- state */

void
outbox_routing_reset(void)
{
	loaded = false;
	routes_version = 0;
	due_cursor = DT_NOBEGIN;
	next_due = DT_NOBEGIN;
	if (router_context != NULL)
		MemoryContextReset(router_context);
	types_context = NULL;
	round_context = NULL;
	lane_ends = NULL;
	type_routes = NULL;
	joined = NULL;
	seen = NULL;
	open_target = NULL;
}

static void
make_contexts(void)
{
	HASHCTL		ctl = {.keysize = 2 * sizeof(int32), .entrysize = sizeof(LaneEnd)};

	if (router_context == NULL)
		router_context = AllocSetContextCreate(TopMemoryContext, "outbox router", ALLOCSET_DEFAULT_SIZES);
	types_context = AllocSetContextCreate(router_context, "outbox event types", ALLOCSET_DEFAULT_SIZES);
	round_context = AllocSetContextCreate(router_context, "outbox routing round", ALLOCSET_DEFAULT_SIZES);
	ctl.hcxt = router_context;
	lane_ends = hash_create("outbox lane ends", 256, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* A copy that outlives the round; the old one goes. */
static void
remember_snapshot(OutboxSnapshot **place, const OutboxSnapshot *snapshot)
{
	OutboxSnapshot *copy;

	copy = MemoryContextAlloc(router_context, sizeof(OutboxSnapshot));
	*copy = *snapshot;
	copy->xip = MemoryContextAlloc(router_context, Max(1, snapshot->nxip) * sizeof(uint64));
	memcpy(copy->xip, snapshot->xip, snapshot->nxip * sizeof(uint64));
	if (*place != NULL)
	{
		pfree((*place)->xip);
		pfree(*place);
	}
	*place = copy;
}

static OutboxSnapshot *
current_snapshot(void)
{
	Datum		snapshot = DirectFunctionCall1(pg_current_snapshot, (Datum) 0);

	return outbox_snapshot_parse(DatumGetCString(DirectFunctionCall1(pg_snapshot_out, snapshot)));
}

static Datum
snapshot_datum(const OutboxSnapshot *snapshot)
{
	return DirectFunctionCall1(pg_snapshot_in, CStringGetDatum(outbox_snapshot_text(snapshot)));
}

static char *
text_value(uint64 row, int column)
{
	bool		isnull;
	Datum		value = outbox_store_value(row, column, &isnull);

	return isnull ? NULL : TextDatumGetCString(value);
}

/* How far the ticks of this incarnation have come.  In SPI. */
static void
load_ticks(void)
{
	Datum		arg = Int32GetDatum(incarnation);
	bool		isnull;
	Datum		value;

	last_tick = 0;
	last_chunk = 0;
	tick_open = false;
	if (outbox_store_run(&select_tick, &arg, NULL, 1) == 0)
	{
		remember_snapshot(&seen, outbox_snapshot_empty());
		return;
	}
	last_tick = DatumGetInt64(outbox_store_value(0, 1, &isnull));
	last_chunk = DatumGetInt32(outbox_store_value(0, 2, &isnull));
	value = outbox_store_value(0, 5, &isnull);
	tick_open = !isnull;
	if (tick_open)
	{
		open_through = *DatumGetUUIDP(value);
		remember_snapshot(&seen, outbox_snapshot_parse(text_value(0, 3)));
		remember_snapshot(&open_target, outbox_snapshot_parse(text_value(0, 4)));
	}
	else
		remember_snapshot(&seen, outbox_snapshot_parse(text_value(0, 4)));
}

static bool
take_router_lock(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, 1, LOCK_CLASS_ROUTER);
	if (outbox_compat_lock_held(&tag, ExclusiveLock))
		return true;
	return LockAcquire(&tag, ExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL;
}

/* ---------------------------------------------------------------- candidates */

static int
compare_candidates(const void *a, const void *b)
{
	return outbox_event_id_compare(&((const Candidate *) a)->id, &((const Candidate *) b)->id);
}

static void
sort_candidates(CandidateList *list)
{
	qsort(list->items, list->count, sizeof(Candidate), compare_candidates);
	if (list->count > COLLECT_EVENTS)
	{
		list->count = COLLECT_EVENTS;
		list->truncated = true;
	}
}

static void
add_candidate(CandidateList *list, const pg_uuid_t *id, ItemPointer tid, int segment)
{
	if (list->truncated && outbox_event_id_compare(id, &list->items[COLLECT_EVENTS - 1].id) > 0)
		return;
	if (list->count == list->room)
	{
		if (list->room == 2 * COLLECT_EVENTS)
			sort_candidates(list);
		else
		{
			list->room = Min(Max(1024, list->room * 4), 2 * COLLECT_EVENTS);
			list->items = list->items == NULL ?
				palloc(list->room * sizeof(Candidate)) :
				repalloc(list->items, list->room * sizeof(Candidate));
		}
	}
	list->items[list->count].id = *id;
	list->items[list->count].tid = *tid;
	list->items[list->count].segment = segment;
	list->count++;
}

/* Is the row in the slot one of this incarnation, in range? */
static bool
row_in_range(TupleTableSlot *slot, const Range *range, bool old_rows_too, pg_uuid_t *id)
{
	bool		isnull;
	uint64		xid = U64FromFullTransactionId(DatumGetFullTransactionId(slot_getattr(slot, EV_XID + 1, &isnull)));
	int			row_incarnation = DatumGetInt32(slot_getattr(slot, EV_INCARNATION + 1, &isnull));

	*id = *DatumGetUUIDP(slot_getattr(slot, EV_EVENT_ID + 1, &isnull));
	if (range->through != NULL && outbox_event_id_compare(id, range->through) <= 0)
		return false;
	if (row_incarnation != incarnation)
		return old_rows_too && row_incarnation < incarnation;
	return !outbox_snapshot_sees(range->seen, xid) && outbox_snapshot_sees(range->target, xid);
}

/* The rows of one segment that seen does not see: by xid, from its xmax on and those running then. */
static void
collect_by_xid(CandidateList *list, int segment, const Range *range)
{
	OutboxSegment *s = &list->segments[segment];
	OutboxScan	scan;
	pg_uuid_t	id;

	outbox_store_begin_scan(&scan, s->event_log, s->event_log_xid, GetActiveSnapshot(), 1);
	for (int i = -1; i < range->seen->nxip; i++)
	{
		uint64		xid = i < 0 ? range->seen->xmax : range->seen->xip[i];

		outbox_store_set_key(&scan, 0, i < 0 ? BTGreaterEqualStrategyNumber : BTEqualStrategyNumber,
							 FullTransactionIdGetDatum(FullTransactionIdFromU64(xid)));
		outbox_store_rescan(&scan);
		while (outbox_store_next(&scan, true))
		{
			CHECK_FOR_INTERRUPTS();
			if (row_in_range(scan.slot, range, false, &id))
				add_candidate(list, &id, &scan.slot->tts_tid, segment);
		}
	}
	outbox_store_end_scan(&scan);
}

/* The next COLLECT_EVENTS rows of one segment in event_id order, from *from on. */
static void
collect_by_id(CandidateList *list, int segment, const Range *range, const pg_uuid_t *from)
{
	OutboxSegment *s = &list->segments[segment];
	OutboxScan	scan;
	pg_uuid_t	id;

	outbox_store_begin_scan(&scan, s->event_log, s->event_log_pk, GetActiveSnapshot(), 1);
	outbox_store_set_key(&scan, 0, BTGreaterEqualStrategyNumber, UUIDPGetDatum(from));
	outbox_store_rescan(&scan);
	while (!list->truncated && outbox_store_next(&scan, true))
	{
		CHECK_FOR_INTERRUPTS();
		if (!row_in_range(scan.slot, range, true, &id))
			continue;
		if (list->count == COLLECT_EVENTS)
			list->truncated = true;
		else
			add_candidate(list, &id, &scan.slot->tts_tid, segment);
	}
	outbox_store_end_scan(&scan);
}

/*
 * A segment of the future is empty; but the clock of ids knows of no id after a restart, and may have
 * been set back since ids of the future were issued: then the file tells.
 */
static bool
segment_may_hold_rows(const OutboxSegment *segment)
{
	Relation	rel;
	BlockNumber blocks;

	if (outbox_event_id_time_of(&segment->from) <= pg_atomic_read_u64(&outbox_shared->id_time))
		return true;
	rel = table_open(segment->event_log, AccessShareLock);
	blocks = RelationGetNumberOfBlocks(rel);
	table_close(rel, NoLock);
	return blocks > 0;
}

/*
 * The segments are read after the target snapshot was taken: one that a
 * publisher has just made is there when its events are.
 */
static void
collect_range(CandidateList *list, const Range *range)
{
	memset(list, 0, sizeof(*list));
	outbox_segment_refresh();
	list->nsegments = outbox_segment_list(true, &list->segments);
	for (int i = 0; i < list->nsegments; i++)
	{
		if (segment_may_hold_rows(&list->segments[i]))
			collect_by_xid(list, i, range);
	}
	sort_candidates(list);
}

/* For a subscription with start_at: everything in the log from that time on. */
static void
collect_history(CandidateList *list, const Range *range, TimestampTz start_at)
{
	pg_uuid_t	from;

	memset(list, 0, sizeof(*list));
	memset(&from, 0, sizeof(from));
	if (range->through != NULL)
		from = *range->through;
	else if (!TIMESTAMP_IS_NOBEGIN(start_at))
		outbox_event_id_floor(outbox_event_id_time_from(start_at - USECS_PER_HOUR), &from);
	outbox_segment_refresh();
	list->nsegments = outbox_segment_list(false, &list->segments);
	for (int i = 0; i < list->nsegments && !list->truncated; i++)
	{
		if (outbox_event_id_compare(&list->segments[i].to, &from) > 0 && segment_may_hold_rows(&list->segments[i]))
			collect_by_id(list, i, range, &from);
	}
}

/* ---------------------------------------------------------------- matching */

/* Which subscriptions have joined the ticks.  In SPI. */
static void
load_joined(Routing *routing)
{
	joined = MemoryContextAllocZero(types_context, Max(1, routing->nsubscriptions) * sizeof(bool));
	unjoined = 0;
	for (int i = 0; i < routing->nsubscriptions; i++)
	{
		Datum		arg = Int32GetDatum(routing->subscriptions[i].id);
		bool		isnull;

		if (outbox_store_run(&select_state, &arg, NULL, 1) > 0)
			joined[i] = DatumGetBool(outbox_store_value(0, 1, &isnull));
		if (!joined[i])
			unjoined++;
	}
}

/* Start over with the matches when the subscriptions changed, or there are very many types. */
static void
refresh_routes(Routing *routing)
{
	HASHCTL		ctl = {.keysize = OUTBOX_EVENT_TYPE_MAX + 1, .entrysize = sizeof(TypeRoute)};

	if (type_routes != NULL && routes_version == outbox_subscription_version() &&
		hash_get_num_entries(type_routes) < KNOWN_TYPES_MAX)
		return;
	MemoryContextReset(types_context);
	ctl.hcxt = types_context;
	type_routes = hash_create("outbox type routes", 64, &ctl, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	load_joined(routing);
	routes_version = outbox_subscription_version();
}

static bool
subscription_matches(const OutboxSubscription *s, const char *type, int len)
{
	for (int i = 0; i < s->npatterns; i++)
	{
		if (outbox_pattern_matches(s->patterns[i], strlen(s->patterns[i]), type, len))
			return true;
	}
	return false;
}

static TypeRoute *
route_of_type(Routing *routing, const text *type)
{
	char		key[OUTBOX_EVENT_TYPE_MAX + 1] = {0};
	int			len = Min(VARSIZE_ANY_EXHDR(type), OUTBOX_EVENT_TYPE_MAX);
	TypeRoute  *route;
	bool		found;

	memcpy(key, VARDATA_ANY(type), len);
	route = hash_search(type_routes, key, HASH_ENTER, &found);
	if (!found)
	{
		route->count = 0;
		route->subscriptions = MemoryContextAlloc(types_context, Max(1, routing->nsubscriptions) * sizeof(int));
		for (int i = 0; i < routing->nsubscriptions; i++)
		{
			if (subscription_matches(&routing->subscriptions[i], key, len))
				route->subscriptions[route->count++] = i;
		}
	}
	return route;
}

/* Was the event there when the subscription was made?  Its own transaction counts as running. */
static bool
seam_sees(const OutboxSubscription *s, TupleTableSlot *event)
{
	bool		isnull;
	int			row_incarnation = DatumGetInt32(slot_getattr(event, EV_INCARNATION + 1, &isnull));
	uint64		xid;

	if (row_incarnation != s->seam_incarnation)
		return row_incarnation < s->seam_incarnation;
	xid = U64FromFullTransactionId(DatumGetFullTransactionId(slot_getattr(event, EV_XID + 1, &isnull)));
	return xid != s->seam_xid && outbox_snapshot_sees(s->seam, xid);
}

static bool
subscription_wants(const OutboxSubscription *s, TupleTableSlot *event)
{
	bool		isnull;

	if (!seam_sees(s, event))
		return true;
	return s->has_start_at &&
		DatumGetTimestampTz(slot_getattr(event, EV_PUBLISHED_AT + 1, &isnull)) >= s->start_at;
}

/* ---------------------------------------------------------------- lanes */

static int64
end_of(const char *relname, int32 subscription_id, int32 lane)
{
	Oid			relid = outbox_extension_relid(relname);
	OutboxScan	scan;
	int64		position = 0;
	bool		isnull;

	outbox_store_begin_scan(&scan, relid, outbox_store_primary_key(relid), GetActiveSnapshot(), 2);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, Int32GetDatum(subscription_id));
	outbox_store_set_key(&scan, 1, BTEqualStrategyNumber, Int32GetDatum(lane));
	outbox_store_rescan(&scan);
	if (outbox_store_next(&scan, false))
		position = DatumGetInt64(slot_getattr(scan.slot, 3, &isnull));
	outbox_store_end_scan(&scan);
	return position;
}

/* The end of a lane: of its entries, or where they were before they were trimmed, or its base. In SPI. */
static int64
find_lane_end(int32 subscription_id, int32 lane)
{
	Datum		args[2] = {Int32GetDatum(subscription_id), Int32GetDatum(lane)};
	int64		entries = end_of("lane_entry", subscription_id, lane);
	int64		cursor = end_of("lane_cursor", subscription_id, lane);
	int64		base = 0;
	bool		isnull;

	if (outbox_store_run(&select_lane_base, args, NULL, 1) > 0)
		base = DatumGetInt64(outbox_store_value(0, 1, &isnull));
	return Max(base, Max(entries, cursor));
}

static int64
next_position(int32 subscription_id, int32 lane)
{
	int32		key[2] = {subscription_id, lane};
	bool		found;
	LaneEnd    *end = hash_search(lane_ends, key, HASH_FIND, &found);

	if (!found)
	{
		int64		position = find_lane_end(subscription_id, lane);

		end = hash_search(lane_ends, key, HASH_ENTER, &found);
		end->position = position;
	}
	return ++end->position;
}

/* The lane of an event: by its key when the order of keys is kept, else by its id. */
static int32
lane_of(const OutboxSubscription *s, TupleTableSlot *event)
{
	bool		no_key;
	bool		no_tenant;
	bool		isnull;
	Datum		key = slot_getattr(event, EV_EVENT_KEY + 1, &no_key);
	Datum		tenant = slot_getattr(event, EV_TENANT_ID + 1, &no_tenant);
	uint64		hash;

	if (s->ordered && !no_key)
	{
		text	   *k = DatumGetTextPP(key);
		text	   *t = no_tenant ? NULL : DatumGetTextPP(tenant);

		hash = outbox_pattern_key_hash(t ? VARDATA_ANY(t) : NULL, t ? VARSIZE_ANY_EXHDR(t) : 0,
									   VARDATA_ANY(k), VARSIZE_ANY_EXHDR(k));
	}
	else
	{
		pg_uuid_t  *id = DatumGetUUIDP(slot_getattr(event, EV_EVENT_ID + 1, &isnull));

		hash = outbox_pattern_key_hash(NULL, 0, (const char *) id->data, UUID_LEN);
	}
	return s->first_lane + (int32) (hash % (uint64) s->lanes);
}

/* ---------------------------------------------------------------- appending */

static void
begin_routing(Routing *routing)
{
	memset(routing, 0, sizeof(*routing));
	routing->now = outbox_settings_now();
	routing->nsubscriptions = outbox_subscription_all(&routing->subscriptions);
	refresh_routes(routing);
}

static void
append_entry(Routing *routing, const OutboxSubscription *s, TupleTableSlot *event, const pg_uuid_t *id)
{
	int32		lane = lane_of(s, event);
	ItemPointer tid = palloc(sizeof(ItemPointerData));
	Datum		values[5] = {
		Int32GetDatum(s->id), Int32GetDatum(lane), Int64GetDatum(next_position(s->id, lane)), UUIDPGetDatum(id),
		PointerGetDatum(tid)
	};
	bool		nulls[5] = {false};
	uint32		bit = outbox_shmem_hint_bit(s->id, lane);

	if (routing->entries == NULL)
		routing->entries = outbox_store_open_writer(outbox_extension_relid("lane_entry"));
	*tid = event->tts_tid;
	outbox_store_put(routing->entries, values, nulls);
	routing->hints[bit / 64] |= UINT64CONST(1) << (bit % 64);
	routing->routed++;
}

static void
append_delayed(Routing *routing, const OutboxSubscription *s, TimestampTz due_at, const pg_uuid_t *id)
{
	Datum		values[3] = {TimestampTzGetDatum(due_at), UUIDPGetDatum(id), Int32GetDatum(s->id)};
	bool		nulls[3] = {false};

	if (routing->delayed == NULL)
		routing->delayed = outbox_store_open_writer(outbox_extension_relid("delayed"));
	outbox_store_put(routing->delayed, values, nulls);
	routing->routed++;
	due_cursor = Min(due_cursor, due_at);	/* the clock may have been set back */
	next_due = Min(next_due, due_at);
}

static void
route_to(Routing *routing, const OutboxSubscription *s, TupleTableSlot *event, const pg_uuid_t *id)
{
	bool		isnull;
	Datum		deliver_at = slot_getattr(event, EV_DELIVER_AT + 1, &isnull);

	if (!isnull && DatumGetTimestampTz(deliver_at) > routing->now)
		append_delayed(routing, s, DatumGetTimestampTz(deliver_at), id);
	else
		append_entry(routing, s, event, id);
}

/* To all that have joined the ticks, or to the one that catches up. */
static void
route_event(Routing *routing, OutboxSubscription *only, TupleTableSlot *event, const pg_uuid_t *id)
{
	bool		isnull;
	TypeRoute  *route = route_of_type(routing, DatumGetTextPP(slot_getattr(event, EV_EVENT_TYPE + 1, &isnull)));

	for (int i = 0; i < route->count; i++)
	{
		int			index = route->subscriptions[i];
		OutboxSubscription *s = &routing->subscriptions[index];

		if ((only != NULL ? s == only : joined[index]) && subscription_wants(s, event))
			route_to(routing, s, event, id);
	}
}

/* Where a candidate stands now: by its place, or by its id when the table was rewritten meanwhile. */
static bool
fetch_candidate(OutboxSegment *segment, Relation rel, Candidate *candidate, TupleTableSlot *slot)
{
	bool		isnull;
	OutboxScan	scan;
	bool		found;

	if (table_tuple_fetch_row_version(rel, &candidate->tid, GetActiveSnapshot(), slot) &&
		outbox_event_id_compare(DatumGetUUIDP(slot_getattr(slot, EV_EVENT_ID + 1, &isnull)), &candidate->id) == 0)
		return true;
	outbox_store_begin_scan(&scan, segment->event_log, segment->event_log_pk, GetActiveSnapshot(), 1);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, UUIDPGetDatum(&candidate->id));
	outbox_store_rescan(&scan);
	found = outbox_store_next(&scan, true);
	if (found)
		ExecCopySlot(slot, scan.slot);
	outbox_store_end_scan(&scan);
	return found;
}

/* Candidates [from, to), which are sorted, so that segments come one after the other. */
static void
route_candidates(Routing *routing, CandidateList *list, int from, int to, OutboxSubscription *only)
{
	Relation	rel = NULL;
	TupleTableSlot *slot = NULL;
	int			segment = -1;

	for (int i = from; i < to; i++)
	{
		Candidate  *candidate = &list->items[i];

		CHECK_FOR_INTERRUPTS();
		if (candidate->segment != segment)
		{
			if (rel != NULL)
			{
				ExecDropSingleTupleTableSlot(slot);
				table_close(rel, NoLock);
			}
			segment = candidate->segment;
			rel = table_open(list->segments[segment].event_log, AccessShareLock);
			slot = table_slot_create(rel, NULL);
		}
		if (fetch_candidate(&list->segments[segment], rel, candidate, slot))
			route_event(routing, only, slot, &candidate->id);
	}
	if (rel != NULL)
	{
		ExecDropSingleTupleTableSlot(slot);
		table_close(rel, NoLock);
	}
}

/* Write out what was appended: before the commit, and before positions are read back. */
static void
end_routing(Routing *routing)
{
	if (routing->entries != NULL)
		outbox_store_close_writer(routing->entries);
	if (routing->delayed != NULL)
		outbox_store_close_writer(routing->delayed);
}

/* After the commit: tell the workers which lanes to look at. */
static void
announce_routing(Routing *routing)
{
	OutboxDatabase *db = outbox_shmem_my_database();
	bool		any = false;

	if (db == NULL)
		return;
	for (int i = 0; i < OUTBOX_HINT_WORDS; i++)
	{
		for (uint64 word = routing->hints[i]; word != 0; word &= word - 1)
		{
			outbox_shmem_count_work(db, i * 64 + pg_rightmost_one_pos64(word));
			any = true;
		}
	}
	if (any)
		outbox_shmem_wake_workers(MyDatabaseId);
}

static void
begin_transaction(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	/* across SPI and transactions, what a round needs lives in its own context */
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

/* ---------------------------------------------------------------- the tick */

static void
record_chunk(int64 tick, int chunk, const OutboxSnapshot *target, const pg_uuid_t *through, Routing *routing)
{
	OutboxWriter *ticks = outbox_store_open_writer(outbox_extension_relid("tick"));
	Datum		values[8] = {
		Int32GetDatum(incarnation), Int64GetDatum(tick), Int32GetDatum(chunk),
		snapshot_datum(seen), snapshot_datum(target), UUIDPGetDatum(through),
		Int32GetDatum(routing->routed), TimestampTzGetDatum(routing->now)
	};
	bool		nulls[8] = {false};

	nulls[5] = (through == NULL);
	outbox_store_put(ticks, values, nulls);
	outbox_store_close_writer(ticks);
}

/* One transaction of the tick: route a chunk, and write down how far it got. */
static void
route_chunk(CandidateList *list, int from, const OutboxSnapshot *target)
{
	Routing		routing;
	int			to = Min(from + CHUNK_EVENTS, list->count);
	bool		final = (to == list->count && !list->truncated);
	int64		tick = tick_open ? last_tick : last_tick + 1;
	int			chunk = tick_open ? last_chunk + 1 : 0;

	begin_routing(&routing);
	route_candidates(&routing, list, from, to, NULL);
	end_routing(&routing);
	record_chunk(tick, chunk, target, final ? NULL : &list->items[to - 1].id, &routing);
	commit_transaction();

	last_tick = tick;
	last_chunk = chunk;
	tick_open = !final;
	if (final)
		remember_snapshot(&seen, target);
	else
	{
		open_through = list->items[to - 1].id;
		if (open_target != target)
			remember_snapshot(&open_target, target);
	}
	announce_routing(&routing);
}

/* The end of time of an incarnation that is over: sees every transaction it ever had. */
static OutboxSnapshot *
final_snapshot(void)
{
	return outbox_snapshot_parse("9223372036854775807:9223372036854775807:");
}

/*
 * A tick: from its first chunk, or where it was left, to its end or as far as one collection goes.
 * Ends the transaction it is called in.  True when there is more at once.
 */
static bool
run_tick(void)
{
	CandidateList list;
	OutboxSnapshot *target;
	Range		range;
	int			from = 0;

	if (tick_open)
		target = open_target;
	else
		target = incarnation_over ? final_snapshot() : current_snapshot();
	range = (Range) {seen, target, tick_open ? &open_through : NULL};
	collect_range(&list, &range);
	if (list.count == 0 && !tick_open && !incarnation_over)
	{
		/* nothing lies between the two snapshots: start the next time from here */
		commit_transaction();
		remember_snapshot(&seen, target);
		return false;
	}
	do
	{
		if (from > 0)
			begin_transaction();
		route_chunk(&list, from, target);
		if (tick_open)
			target = open_target;
		from += CHUNK_EVENTS;
	} while (from < list.count && !ShutdownRequestPending);
	return true;
}

/* ---------------------------------------------------------------- catching up */

typedef struct CatchUp
{
	bool		joined;
	OutboxSnapshot *from;		/* NULL: from the seam */
	OutboxSnapshot *to;			/* NULL: not begun */
	bool		has_through;
	pg_uuid_t	through;
} CatchUp;

static bool
load_catch_up(int32 subscription_id, CatchUp *state)
{
	Datum		arg = Int32GetDatum(subscription_id);
	bool		isnull;
	Datum		value;
	char	   *text;

	memset(state, 0, sizeof(*state));
	if (outbox_store_run(&select_state, &arg, NULL, 1) == 0)
		return false;
	state->joined = DatumGetBool(outbox_store_value(0, 1, &isnull));
	text = text_value(0, 2);
	state->from = text ? outbox_snapshot_parse(text) : NULL;
	text = text_value(0, 3);
	state->to = text ? outbox_snapshot_parse(text) : NULL;
	value = outbox_store_value(0, 4, &isnull);
	state->has_through = !isnull;
	if (!isnull)
		state->through = *DatumGetUUIDP(value);
	return true;
}

static void
save_catch_up(int32 subscription_id, const CatchUp *state)
{
	Datum		args[5] = {Int32GetDatum(subscription_id), BoolGetDatum(state->joined), 0, 0, UUIDPGetDatum(&state->through)};
	char		nulls[5] = {' ', ' ', 'n', 'n', state->has_through ? ' ' : 'n'};

	if (state->from != NULL)
	{
		args[2] = CStringGetTextDatum(outbox_snapshot_text(state->from));
		nulls[2] = ' ';
	}
	if (state->to != NULL)
	{
		args[3] = CStringGetTextDatum(outbox_snapshot_text(state->to));
		nulls[3] = ' ';
	}
	outbox_store_run(&update_state, args, nulls, 0);
}

/* What to write down after a chunk: further on, joined, or the next stretch. */
static void
advance_catch_up(CatchUp *state, const pg_uuid_t *last, bool final)
{
	if (!final)
	{
		state->has_through = true;
		state->through = *last;
		return;
	}
	state->has_through = false;
	state->joined = outbox_snapshot_equals(state->to, seen);
	state->from = state->joined ? NULL : state->to;
	state->to = NULL;
}

/*
 * What the first stretch of a catch-up may have to deliver: more than the seam does not see, since
 * subscription_wants() has the last word.  The subscriber's own transaction counts as running.
 */
static OutboxSnapshot *
below_seam(const OutboxSubscription *s)
{
	OutboxSnapshot *below;

	if (s->has_start_at || s->seam_incarnation != incarnation)
		return outbox_snapshot_empty();
	below = palloc(sizeof(OutboxSnapshot));
	*below = *s->seam;
	below->xmax = Min(below->xmax, s->seam_xid);
	below->xmin = Min(below->xmin, below->xmax);
	return below;
}

/* One chunk for one subscription that has not joined, and its transaction's commit.  True when it has more to do. */
static bool
catch_up_chunk(Routing *routing, OutboxSubscription *s)
{
	CatchUp		state;
	CandidateList list;
	Range		range;
	int			to;

	if (!load_catch_up(s->id, &state) || state.joined)
	{
		commit_transaction();
		return false;
	}
	if (state.to == NULL)
		state.to = seen;
	range = (Range) {state.from ? state.from : below_seam(s), state.to, state.has_through ? &state.through : NULL};
	if (state.from == NULL && s->has_start_at)
		collect_history(&list, &range, s->start_at);
	else
		collect_range(&list, &range);
	to = Min(CHUNK_EVENTS, list.count);
	route_candidates(routing, &list, 0, to, s);
	end_routing(routing);
	advance_catch_up(&state, to > 0 ? &list.items[to - 1].id : NULL, to == list.count && !list.truncated);
	save_catch_up(s->id, &state);
	commit_transaction();
	announce_routing(routing);
	routes_version = 0;			/* look again who has joined */
	return !state.joined;
}

/*
 * The subscriptions that have not joined the ticks, a chunk each.  Not while a
 * tick is open: they join at a snapshot up to which all is routed.
 */
static bool
run_catch_up(void)
{
	bool		more = false;
	int			i = 0;

	if (tick_open || unjoined == 0)
		return false;
	for (;; i++)
	{
		Routing		routing;

		begin_transaction();
		begin_routing(&routing);
		while (i < routing.nsubscriptions && joined[i])
			i++;
		if (i >= routing.nsubscriptions)
			break;
		more |= catch_up_chunk(&routing, &routing.subscriptions[i]);
	}
	commit_transaction();
	return more;
}

/* ---------------------------------------------------------------- delayed events */

/* A delayed row whose time has come: into its lane, at the end. */
static void
route_due(Routing *routing, int32 subscription_id, const pg_uuid_t *id)
{
	OutboxSegment segment;
	OutboxScan	scan;

	if (!outbox_segment_find(id, false, &segment))
		return;
	outbox_store_begin_scan(&scan, segment.event_log, segment.event_log_pk, GetActiveSnapshot(), 1);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, UUIDPGetDatum(id));
	outbox_store_rescan(&scan);
	if (outbox_store_next(&scan, true))
	{
		for (int i = 0; i < routing->nsubscriptions; i++)
		{
			if (routing->subscriptions[i].id == subscription_id)
				append_entry(routing, &routing->subscriptions[i], scan.slot, id);
		}
	}
	outbox_store_end_scan(&scan);
}

/* Milliseconds until then, at most the poll interval. */
static long
wait_until(TimestampTz due_at)
{
	TimestampTz now = outbox_settings_now();

	if (due_at <= now)
		return 0;
	return Min((long) outbox_poll_interval, (due_at - now) / 1000 + 1);
}

/*
 * Move what is due.  Rows are read from where the last round stopped: what was
 * moved before stays out of the way, also when vacuum cannot remove it.
 * Returns the milliseconds until the next one is due.
 */
static long
run_delayed(void)
{
	Oid			relid;
	OutboxScan	scan;
	Routing		routing;
	TimestampTz reached = due_cursor;
	TimestampTz next = DT_NOEND;
	int			moved = 0;

	if (next_due > outbox_settings_now())
		return wait_until(next_due);
	begin_transaction();
	begin_routing(&routing);
	relid = outbox_extension_relid("delayed");
	outbox_store_begin_scan(&scan, relid, outbox_store_primary_key(relid), GetActiveSnapshot(), 1);
	outbox_store_set_key(&scan, 0, BTGreaterEqualStrategyNumber, TimestampTzGetDatum(due_cursor));
	outbox_store_rescan(&scan);
	while (outbox_store_next(&scan, true))
	{
		bool		isnull;
		TimestampTz due_at = DatumGetTimestampTz(slot_getattr(scan.slot, 1, &isnull));
		pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));

		if (due_at > routing.now || moved >= DELAYED_EVENTS)
		{
			next = due_at;
			break;
		}
		*id = *DatumGetUUIDP(slot_getattr(scan.slot, 2, &isnull));
		route_due(&routing, DatumGetInt32(slot_getattr(scan.slot, 3, &isnull)), id);
		outbox_store_delete(scan.rel, &scan.slot->tts_tid);
		reached = due_at;
		moved++;
	}
	outbox_store_end_scan(&scan);
	end_routing(&routing);
	commit_transaction();
	due_cursor = reached;
	next_due = next;
	announce_routing(&routing);
	return wait_until(next_due);
}

/* ---------------------------------------------------------------- rounds */

/* Is there an incarnation before the current one with events that are not routed? In SPI. */
static int
oldest_open_incarnation(int current)
{
	Datum		arg = Int32GetDatum(current);
	bool		isnull;

	if (outbox_store_run(&select_open_incarnation, &arg, NULL, 1) == 0)
		return current;
	return DatumGetInt32(outbox_store_value(0, 1, &isnull));
}

/*
 * Is it our turn to route in this database?  Loads what is remembered.  Called
 * in a transaction.
 */
static bool
prepare_round(void)
{
	OutboxIncarnation known;
	Routing		routing;

	outbox_extension_incarnation(&known);
	if (known.held || !take_router_lock())
		return false;
	if (!loaded || (incarnation != known.incarnation && !incarnation_over) ||
		(incarnation_over && !tick_open && unjoined == 0))
	{
		incarnation = oldest_open_incarnation(known.incarnation);
		incarnation_over = (incarnation != known.incarnation);
		load_ticks();
		routes_version = 0;
		loaded = true;
	}
	begin_routing(&routing);	/* who has not joined? */
	return true;
}

long
outbox_routing_round(void)
{
	long		wait;

	if (lane_ends == NULL)
		make_contexts();
	MemoryContextReset(round_context);

	begin_transaction();
	if (!prepare_round())
	{
		commit_transaction();
		return outbox_poll_interval;
	}
	/* the tick comes first: what new subscriptions catch up to is then recent */
	wait = run_tick() ? 0 : outbox_poll_interval;
	wait = Min(wait, run_delayed());
	if (run_catch_up())
		wait = 0;
	return wait;
}

/* ---------------------------------------------------------------- activation */

/*
 * Make the cluster at hand the one the log lives in.  The router then ends the
 * ticks of the incarnations before (whose transaction ids mean nothing here), and begins
 * its own.  False when nothing was held.
 */
bool
outbox_routing_activate(void)
{
	OutboxIncarnation known;
	Datum		args[4];

	outbox_extension_incarnation(&known);
	if (!known.held)
		return false;
	args[0] = Int32GetDatum(known.incarnation);
	args[1] = Int64GetDatum((int64) GetSystemIdentifier());
	args[2] = ObjectIdGetDatum(MyDatabaseId);
	args[3] = TimestampTzGetDatum(outbox_settings_now());
	outbox_store_run(&insert_incarnation, args, NULL, 0);
	CacheInvalidateRelcacheByRelid(outbox_extension_relid("incarnation"));
	return true;
}
