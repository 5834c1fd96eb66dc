/*
 * placement.c - which subscriptions an event goes to, and where in their lanes.
 *
 * The router is the only one that gives positions, so that they are dense: backlog is a
 * subtraction.  It remembers the ends of the lanes, and which subscriptions a type
 * matches, between its transactions; after an error all of that is read again.
 */
#include "outbox.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "counters.h"
#include "event_place.h"
#include "exception_count.h"
#include "extension.h"
#include "pattern.h"
#include "placement.h"
#include "repair.h"
#include "settings.h"
#include "snapshot.h"
#include "waiters.h"

#define KNOWN_TYPES_MAX		10000	/* event types remembered with their subscriptions */
#define PENDING_MAX			8192	/* entries sorted by their lanes before they are written */

typedef struct LaneEnd
{
	int32		subscription_id;
	int32		lane;
	int64		position;		/* the last one given */
} LaneEnd;

/* an entry of a lane that is not written yet */
typedef struct OutboxPlacedEntry
{
	int32		subscription_id;
	int32		lane;
	int64		position;
	pg_uuid_t	event_id;
	ItemPointerData tid;
} OutboxPlacedEntry;

/* which subscriptions an event type goes to; the key is the type */
typedef struct TypeRoute
{
	char		type[OUTBOX_EVENT_TYPE_MAX + 1];
	int			count;
	int		   *subscriptions;	/* indexes into the cache of subscriptions */
	int			unmatched;		/* events of the transaction at hand that nobody subscribes to */
} TypeRoute;

static MemoryContext placement_context = NULL;
static MemoryContext types_context = NULL;
static HTAB *lane_ends = NULL;
static HTAB *type_routes = NULL;
static uint64 routes_version = 0;
static bool *joined = NULL;		/* by index of the subscription cache */
static bool *whole = NULL;		/* the same: are its rows all there? */
static int	unjoined = 0;
static int	incomplete = 0;

static OutboxStatement select_lane_base = {
	"select base from outbox.lane where subscription_id = $1 and lane = $2",
	2, {INT4OID, INT4OID}
};

/* ---------------------------------------------------------------- matching */

void
outbox_placement_reset(void)
{
	if (placement_context != NULL)
		MemoryContextReset(placement_context);
	types_context = NULL;
	lane_ends = NULL;
	type_routes = NULL;
	joined = NULL;
	whole = NULL;
	routes_version = 0;
}

bool
outbox_placement_has_joined(int index)
{
	return joined[index];
}

bool
outbox_placement_is_whole(int index)
{
	return whole[index];
}

int
outbox_placement_unjoined(void)
{
	return unjoined;
}

int
outbox_placement_incomplete(void)
{
	return incomplete;
}

/* What types it is for does not change by that. */
void
outbox_placement_note_joined(int index)
{
	Assert(!joined[index]);
	joined[index] = true;
	unjoined--;
}

void
outbox_placement_forget_joined(void)
{
	routes_version = 0;
}

/* Which subscriptions have joined the ticks; not one whose rows are not all there.  In SPI. */
static void
load_joined(OutboxPlacement *placement)
{
	joined = MemoryContextAllocZero(types_context, Max(1, placement->nsubscriptions) * sizeof(bool));
	whole = MemoryContextAllocZero(types_context, Max(1, placement->nsubscriptions) * sizeof(bool));
	unjoined = 0;
	incomplete = 0;
	outbox_repair_look_at_all(placement->subscriptions, placement->nsubscriptions, whole, joined);
	for (int i = 0; i < placement->nsubscriptions; i++)
	{
		joined[i] &= whole[i];
		unjoined += !joined[i];
		incomplete += !whole[i];
	}
}

/* Start over with the matches when the subscriptions changed, or there are very many types. */
static void
refresh_routes(OutboxPlacement *placement)
{
	HASHCTL		ctl = {.keysize = OUTBOX_EVENT_TYPE_MAX + 1, .entrysize = sizeof(TypeRoute)};

	if (type_routes != NULL && routes_version == outbox_subscription_version() &&
		hash_get_num_entries(type_routes) < KNOWN_TYPES_MAX)
		return;
	MemoryContextReset(types_context);
	ctl.hcxt = types_context;
	type_routes = hash_create("outbox type routes", 64, &ctl, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	load_joined(placement);
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
route_of_type(OutboxPlacement *placement, const text *type)
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
		route->unmatched = 0;
		route->subscriptions = MemoryContextAlloc(types_context, Max(1, placement->nsubscriptions) * sizeof(int));
		for (int i = 0; i < placement->nsubscriptions; i++)
		{
			if (subscription_matches(&placement->subscriptions[i], key, len))
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

static void
make_contexts(void)
{
	HASHCTL		ctl = {.keysize = 2 * sizeof(int32), .entrysize = sizeof(LaneEnd)};

	if (placement_context == NULL)
		placement_context = AllocSetContextCreate(TopMemoryContext, "outbox placement", ALLOCSET_DEFAULT_SIZES);
	types_context = AllocSetContextCreate(placement_context, "outbox event types", ALLOCSET_DEFAULT_SIZES);
	ctl.hcxt = placement_context;
	lane_ends = hash_create("outbox lane ends", 256, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
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
		hash = outbox_event_place_hash_key(no_tenant ? (Datum) 0 : tenant, key);
	else
		hash = outbox_event_place_hash_id(DatumGetUUIDP(slot_getattr(event, EV_EVENT_ID + 1, &isnull)));
	return outbox_event_place_lane(s->first_lane, s->lanes, hash);
}

/* ---------------------------------------------------------------- appending */

void
outbox_placement_begin(OutboxPlacement *placement)
{
	if (lane_ends == NULL)
		make_contexts();
	memset(placement, 0, sizeof(*placement));
	placement->now = outbox_settings_now();
	placement->earliest_due = DT_NOEND;
	placement->nsubscriptions = outbox_subscription_all(&placement->subscriptions);
	placement->placed = palloc0(Max(1, placement->nsubscriptions) * sizeof(int));
	refresh_routes(placement);
}

static int
compare_pending(const void *a, const void *b)
{
	const OutboxPlacedEntry *x = a;
	const OutboxPlacedEntry *y = b;

	if (x->subscription_id != y->subscription_id)
		return x->subscription_id < y->subscription_id ? -1 : 1;
	if (x->lane != y->lane)
		return x->lane < y->lane ? -1 : 1;
	return x->position < y->position ? -1 : 1;
}

/* Those of one lane next to each other, as they will be read: in the table, and in the index while it is written. */
static void
write_pending(OutboxPlacement *placement)
{
	if (placement->entries == NULL)
		placement->entries = outbox_store_open_writer(outbox_extension_relid("lane_entry"));
	qsort(placement->pending, placement->npending, sizeof(OutboxPlacedEntry), compare_pending);
	for (int i = 0; i < placement->npending; i++)
	{
		OutboxPlacedEntry *entry = &placement->pending[i];
		Datum		values[5] = {
			Int32GetDatum(entry->subscription_id), Int32GetDatum(entry->lane), Int64GetDatum(entry->position),
			UUIDPGetDatum(&entry->event_id), PointerGetDatum(&entry->tid)
		};
		bool		nulls[5] = {false};

		outbox_store_put(placement->entries, values, nulls);
	}
	outbox_store_flush(placement->entries);
	placement->npending = 0;
}

/* Room for one more. */
static void
make_room(OutboxPlacement *placement)
{
	if (placement->npending < placement->pending_size)
		return;
	if (placement->npending == PENDING_MAX)
	{
		write_pending(placement);
		return;
	}
	placement->pending_size = Max(64, placement->pending_size * 2);
	placement->pending = placement->pending == NULL ? palloc(placement->pending_size * sizeof(OutboxPlacedEntry)) :
		repalloc(placement->pending, placement->pending_size * sizeof(OutboxPlacedEntry));
}

void
outbox_placement_put_entry(OutboxPlacement *placement, const OutboxSubscription *s, TupleTableSlot *event, const pg_uuid_t *id)
{
	int32		lane = lane_of(s, event);
	uint32		bit = outbox_shmem_hint_bit(s->id, lane);

	make_room(placement);
	placement->pending[placement->npending++] = (OutboxPlacedEntry)
	{
		.subscription_id = s->id, .lane = lane, .position = next_position(s->id, lane), .event_id = *id,
			.tid = event->tts_tid
	};
	placement->hints[bit / 64] |= UINT64CONST(1) << (bit % 64);
	placement->placed[s - placement->subscriptions]++;
	placement->routed++;
}

static void
append_delayed(OutboxPlacement *placement, const OutboxSubscription *s, TimestampTz due_at, const pg_uuid_t *id)
{
	Datum		values[3] = {TimestampTzGetDatum(due_at), UUIDPGetDatum(id), Int32GetDatum(s->id)};
	bool		nulls[3] = {false};

	if (placement->delayed == NULL)
		placement->delayed = outbox_store_open_writer(outbox_extension_relid("delayed"));
	outbox_store_put(placement->delayed, values, nulls);
	outbox_placement_count_delayed(placement, s - placement->subscriptions, 1);
	placement->routed++;
	placement->earliest_due = Min(placement->earliest_due, due_at);
}

static void
put_for(OutboxPlacement *placement, const OutboxSubscription *s, TupleTableSlot *event, const pg_uuid_t *id)
{
	bool		isnull;
	Datum		deliver_at = slot_getattr(event, EV_DELIVER_AT + 1, &isnull);

	if (!isnull && DatumGetTimestampTz(deliver_at) > placement->now)
		append_delayed(placement, s, DatumGetTimestampTz(deliver_at), id);
	else
		outbox_placement_put_entry(placement, s, event, id);
}

/* Lives until the announcement, which is after the commit. */
static void
note_unmatched(OutboxPlacement *placement, TypeRoute *route)
{
	MemoryContext old;

	if (route->unmatched++ > 0)
		return;
	old = MemoryContextSwitchTo(types_context);
	placement->unmatched = lappend(placement->unmatched, route);
	MemoryContextSwitchTo(old);
}

/* To all that have joined the ticks, or to the one that catches up. */
void
outbox_placement_put(OutboxPlacement *placement, OutboxSubscription *only, TupleTableSlot *event, const pg_uuid_t *id)
{
	bool		isnull;
	TypeRoute  *route = route_of_type(placement, DatumGetTextPP(slot_getattr(event, EV_EVENT_TYPE + 1, &isnull)));

	if (route->count == 0 && only == NULL)
		note_unmatched(placement, route);
	for (int i = 0; i < route->count; i++)
	{
		int			index = route->subscriptions[i];
		OutboxSubscription *s = &placement->subscriptions[index];

		if ((only != NULL ? s == only : joined[index]) && subscription_wants(s, event))
			put_for(placement, s, event, id);
	}
}

void
outbox_placement_count_delayed(OutboxPlacement *placement, int index, int n)
{
	if (placement->delayed_changes == NULL)
		placement->delayed_changes = palloc0(sizeof(int) * placement->nsubscriptions);
	placement->delayed_changes[index] += n;
}

/* Write out what was appended: before the commit, and before positions are read back. */
void
outbox_placement_end(OutboxPlacement *placement)
{
	if (placement->npending > 0)
		write_pending(placement);
	if (placement->entries != NULL)
		outbox_store_close_writer(placement->entries);
	if (placement->delayed != NULL)
		outbox_store_close_writer(placement->delayed);
	for (int i = 0; placement->delayed_changes != NULL && i < placement->nsubscriptions; i++)
		if (placement->delayed_changes[i] != 0)
			outbox_exception_count_delayed(placement->subscriptions[i].id, placement->delayed_changes[i]);
	placement->delayed_changes = NULL;
}

/* What has become of the events, for outbox.metrics. */
static void
count_routed(OutboxPlacement *placement)
{
	ListCell   *cell;

	if (placement->routed > 0)
		outbox_counters_add(0, TOTAL_ROUTED, placement->routed);
	foreach(cell, placement->unmatched)
	{
		TypeRoute  *route = lfirst(cell);

		outbox_counters_unmatched(route->type, route->unmatched, placement->now);
		route->unmatched = 0;
	}
	list_free(placement->unmatched);
	placement->unmatched = NIL;
}

/* The subscriptions are still those of outbox_placement_begin(): they are read again only when asked for. */
static void
wake_waiters(OutboxPlacement *placement)
{
	for (int i = 0; i < placement->nsubscriptions; i++)
	{
		if (placement->placed[i] > 0)
			outbox_waiters_wake(placement->subscriptions[i].id, placement->placed[i]);
	}
}

/* After the commit: tell workers which lanes to look at, and those who wait to claim. */
void
outbox_placement_announce(OutboxPlacement *placement)
{
	OutboxDatabase *db = outbox_shmem_my_database();
	bool		any = false;

	wake_waiters(placement);
	count_routed(placement);
	if (db == NULL)
		return;
	for (int i = 0; i < OUTBOX_HINT_WORDS; i++)
	{
		for (uint64 word = placement->hints[i]; word != 0; word &= word - 1)
		{
			outbox_shmem_count_work(db, i * 64 + pg_rightmost_one_pos64(word));
			any = true;
		}
	}
	if (any)
		outbox_shmem_wake_workers(MyDatabaseId);
}
