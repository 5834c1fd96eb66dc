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

#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "candidate.h"
#include "event_log.h"
#include "exception_count.h"
#include "extension.h"
#include "placement.h"
#include "repair.h"
#include "routing.h"
#include "segment.h"
#include "settings.h"
#include "shmem.h"
#include "snapshot.h"
#include "store.h"
#include "subscription.h"
#include "transaction.h"
#include "wakeup.h"

#define CHUNK_EVENTS		5000	/* routed in one transaction */
#define DELAYED_EVENTS		1000	/* due ones moved in one transaction */
#define CATCH_UP_US			(100 * 1000)	/* for new subscriptions, between two ticks */
#define LOCK_CLASS_ROUTER	3	/* an advisory lock that no SQL function can name */

/* remembered between rounds; thrown away by outbox_routing_reset() */
static MemoryContext router_context = NULL;
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

static OutboxStatement free_lanes = {
	"update outbox.lane set token = null, holder = null, worker = null, taken_at = null, expires_at = null"
	" where token is not null"
};

static OutboxStatement put_back_started = {
	"update outbox.delivery_exception set status = 'RETRY', attempts = attempts - 1, next_attempt_at = $1, worker = null,"
	" lease_id = null where status = 'IN_PROGRESS'",
	1, {TIMESTAMPTZOID}
};

/* their tokens mean nothing here: what they hold is taken back */
static OutboxStatement expire_leases = {
	"update outbox.lease set expires_at = $1 where expires_at > $1",
	1, {TIMESTAMPTZOID}
};

/*
 * Rows may have come without their sequences, as logical replication brings them.  A number that is given out again would be
 * taken for the one before: a lease for one that has ended, a subscription for one that has receipts.  What is left of
 * subscriptions that are gone stands in all batches, which are only read when that has been seen to be so.
 */
static OutboxStatement number_behind_what_is_there = {
	"select pg_catalog.setval(n.sequence, n.used) from (values"
	" ('outbox.subscription_subscription_id_seq'::pg_catalog.regclass, greatest((select max(subscription_id) from outbox.subscription),"
	"  case when (select max(subscription_id) from outbox.subscription)"
	"   <= pg_catalog.pg_sequence_last_value('outbox.subscription_subscription_id_seq') then null"
	"  else (select max(subscription_id) from outbox.batch) end)),"
	" ('outbox.lease_lease_id_seq', greatest((select max(lease_id) from outbox.lease), (select max(lease_id) from outbox.batch),"
	"  (select max(lease_id) from outbox.lease_progress), (select max(lease_id) from outbox.lane_lease))),"
	" ('outbox.gate_number_seq', (select max(number) from outbox.gate)),"
	" ('outbox.attempt_log_attempt_id_seq', (select max(attempt_id) from outbox.attempt_log)),"
	" ('outbox.operator_entry_entry_id_seq', (select max(entry_id) from outbox.operator_entry))) n (sequence, used)"
	" where n.used > coalesce(pg_catalog.pg_sequence_last_value(n.sequence), 0)"
};

/* a restore may have lost it; what was not routed then is */
static OutboxStatement insert_lost_incarnation = {
	"insert into outbox.incarnation (incarnation, system_identifier, database_oid, activated_at)"
	" values ($1 - 1, 0, 0, $2) on conflict (incarnation) do nothing",
	2, {INT4OID, TIMESTAMPTZOID}
};

static OutboxStatement insert_incarnation = {
	"insert into outbox.incarnation (incarnation, system_identifier, database_oid, activated_at)"
	" values ($1, $2, $3, $4)",
	4, {INT4OID, INT8OID, OIDOID, TIMESTAMPTZOID}
};

/* ---------------------------------------------------------------- state */

void
outbox_routing_reset(void)
{
	MemoryContextSwitchTo(TopMemoryContext);	/* the current one may be about to go */
	loaded = false;
	outbox_placement_reset();
	due_cursor = DT_NOBEGIN;
	next_due = DT_NOBEGIN;
	if (router_context != NULL)
		MemoryContextReset(router_context);
	round_context = NULL;
	seen = NULL;
	open_target = NULL;
}

static void
make_contexts(void)
{
	if (router_context == NULL)
		router_context = AllocSetContextCreate(TopMemoryContext, "outbox router", ALLOCSET_DEFAULT_SIZES);
	round_context = AllocSetContextCreate(router_context, "outbox routing round", ALLOCSET_DEFAULT_SIZES);
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
		remember_snapshot(&seen, outbox_snapshot_parse(outbox_store_text(0, 3)));
		remember_snapshot(&open_target, outbox_snapshot_parse(outbox_store_text(0, 4)));
	}
	else
		remember_snapshot(&seen, outbox_snapshot_parse(outbox_store_text(0, 4)));
}

static void
set_router_tag(LOCKTAG *tag)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, 0, 1, LOCK_CLASS_ROUTER);
}

bool
outbox_routing_has_lock(void)
{
	LOCKTAG		tag;

	set_router_tag(&tag);
	return outbox_compat_lock_held(&tag, ExclusiveLock);
}

bool
outbox_routing_is_ours(void)
{
	LOCKTAG		tag;

	set_router_tag(&tag);
	return outbox_routing_has_lock() || LockAcquire(&tag, ExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL;
}

/* ---------------------------------------------------------------- transactions */

/* Candidates [from, to), which are sorted, so that segments come one after the other. */
static void
route_candidates(OutboxPlacement *placement, OutboxCandidateList *list, int from, int to, OutboxSubscription *only)
{
	Relation	rel = NULL;
	TupleTableSlot *slot = NULL;
	int			segment = -1;

	for (int i = from; i < to; i++)
	{
		OutboxCandidate *candidate = &list->items[i];

		CHECK_FOR_INTERRUPTS();
		if (candidate->segment != segment)
		{
			if (rel != NULL)
			{
				ExecDropSingleTupleTableSlot(slot);
				table_close(rel, NoLock);
			}
			segment = candidate->segment;
			rel = outbox_store_open(list->segments[segment].event_log, AccessShareLock);
			slot = table_slot_create(rel, NULL);
		}
		if (outbox_candidate_fetch(&list->segments[segment], rel, candidate, slot))
			outbox_placement_put(placement, only, slot, &candidate->id);
	}
	if (rel != NULL)
	{
		ExecDropSingleTupleTableSlot(slot);
		table_close(rel, NoLock);
	}
}

static void
begin_transaction(void)
{
	outbox_transaction_begin(round_context);
}

static void
commit_transaction(void)
{
	outbox_transaction_commit(round_context);
}

/* What was put aside until it is due: the clock may have been set back, so it may come before what was due last. */
static void
note_delayed(OutboxPlacement *placement)
{
	due_cursor = Min(due_cursor, placement->earliest_due);
	next_due = Min(next_due, placement->earliest_due);
}

/* ---------------------------------------------------------------- the tick */

static void
record_chunk(int64 tick, int chunk, const OutboxSnapshot *target, const pg_uuid_t *through, OutboxPlacement *placement)
{
	OutboxWriter *ticks = outbox_store_open_writer(outbox_extension_relid("tick"));
	Datum		values[8] = {
		Int32GetDatum(incarnation), Int64GetDatum(tick), Int32GetDatum(chunk),
		snapshot_datum(seen), snapshot_datum(target), UUIDPGetDatum(through),
		Int32GetDatum(placement->routed), TimestampTzGetDatum(placement->now)
	};
	bool		nulls[8] = {false};

	nulls[5] = (through == NULL);
	outbox_store_put(ticks, values, nulls);
	outbox_store_close_writer(ticks);
}

/* One transaction of the tick: route a chunk, and write down how far it got. */
static void
route_chunk(OutboxCandidateList *list, int from, const OutboxSnapshot *target)
{
	OutboxPlacement placement;
	int			to = Min(from + CHUNK_EVENTS, list->count);
	bool		final = (to == list->count && !list->truncated);
	int64		tick = tick_open ? last_tick : last_tick + 1;
	int			chunk = tick_open ? last_chunk + 1 : 0;

	outbox_placement_begin(&placement);
	route_candidates(&placement, list, from, to, NULL);
	outbox_placement_end(&placement);
	record_chunk(tick, chunk, target, final ? NULL : &list->items[to - 1].id, &placement);
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
	note_delayed(&placement);
	outbox_placement_announce(&placement);
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
	OutboxCandidateList list;
	OutboxSnapshot *target;
	OutboxCandidateRange range;
	int			from = 0;

	if (tick_open)
		target = open_target;
	else
		target = incarnation_over ? final_snapshot() : current_snapshot();
	if (incarnation_over && !tick_open && outbox_snapshot_equals(seen, target))
	{
		/* its last tick is there: only those that catch up are waited for */
		commit_transaction();
		return false;
	}
	range = (OutboxCandidateRange) {incarnation, seen, target, tick_open ? &open_through : NULL};
	outbox_candidate_collect(&list, &range);
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
	text = outbox_store_text(0, 2);
	state->from = text ? outbox_snapshot_parse(text) : NULL;
	text = outbox_store_text(0, 3);
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
advance_catch_up(CatchUp *state, const pg_uuid_t *last, bool final, bool history)
{
	if (!final && last != NULL)
	{
		state->has_through = true;
		state->through = *last;
		return;
	}
	state->has_through = false;
	/* the history ends at the seam, never where the ticks are */
	state->joined = !history && outbox_snapshot_equals(state->to, seen);
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
	/* those beyond are not looked for twice: they are sorted */
	while (below->nxip > 0 && below->xip[below->nxip - 1] >= below->xmax)
		below->nxip--;
	return below;
}

/* One chunk for one subscription that has not joined, and its transaction's commit.  True when it has more to do. */
static bool
catch_up_chunk(OutboxPlacement *placement, int index)
{
	OutboxSubscription *s = &placement->subscriptions[index];
	CatchUp		state;
	OutboxCandidateList list;
	OutboxCandidateRange range;
	int			to;
	pg_uuid_t	last;
	bool		anew;
	bool		history;

	if (!load_catch_up(s->id, &state) || state.joined)
	{
		commit_transaction();
		return false;
	}
	/* what the seam sees comes first, whole; then, as without start_at, what it does not see */
	anew = outbox_repair_begins_at(state.from);
	history = state.from == NULL && s->has_start_at && s->seam_incarnation == incarnation;
	if (history && !outbox_snapshot_covers(seen, s->seam))
	{
		/* the ticks are not that far: the next one is */
		commit_transaction();
		return false;
	}
	if (state.to == NULL)
		state.to = history ? outbox_snapshot_without(s->seam, s->seam_xid) : seen;
	range = (OutboxCandidateRange) {incarnation, state.from ? state.from : below_seam(s), state.to, state.has_through ? &state.through : NULL};
	if (anew || (state.from == NULL && s->has_start_at))
		outbox_candidate_collect_history(&list, &range, s->has_start_at ? s->start_at : DT_NOBEGIN);
	else
		outbox_candidate_collect(&list, &range);
	to = Min(CHUNK_EVENTS, list.count);
	if (to > 0)
		last = list.items[to - 1].id;
	route_candidates(placement, &list, 0, anew ? outbox_repair_leave_unknown(s, list.items, to) : to, s);
	outbox_placement_end(placement);
	advance_catch_up(&state, to > 0 ? &last : NULL, to == list.count && !list.truncated, history);
	save_catch_up(s->id, &state);
	commit_transaction();
	note_delayed(placement);
	outbox_placement_announce(placement);
	if (state.joined)
		outbox_placement_note_joined(index);
	return !state.joined;
}

/* The one whose turn it is, after the last one that had it; -1: none. */
static int
next_to_catch_up(OutboxPlacement *placement, int32 last)
{
	int			first = -1;

	for (int i = 0; i < placement->nsubscriptions; i++)
	{
		if (outbox_placement_has_joined(i) || !outbox_placement_is_whole(i))
			continue;
		if (placement->subscriptions[i].id > last)
			return i;
		if (first < 0)
			first = i;
	}
	return first;
}

/*
 * The subscriptions that have not joined the ticks, a chunk each, for a while: those that have joined wait for their
 * events meanwhile.  Not while a tick is open: they join at a snapshot up to which all is routed.
 */
static bool
run_catch_up(void)
{
	static int32 last = 0;
	int64		until = outbox_settings_ticks() + CATCH_UP_US;
	bool		more = false;

	if (tick_open)
		return false;
	for (int left = outbox_placement_unjoined() - outbox_placement_incomplete(); left > 0; left--)
	{
		OutboxPlacement placement;
		int			index;

		begin_transaction();
		outbox_placement_begin(&placement);
		index = next_to_catch_up(&placement, last);
		if (index < 0)
		{
			commit_transaction();
			break;
		}
		last = placement.subscriptions[index].id;
		more |= catch_up_chunk(&placement, index);
		if (left > 1 && (ShutdownRequestPending || outbox_settings_ticks() >= until))
			return true;
	}
	return more;
}

/* ---------------------------------------------------------------- delayed events */

/* A delayed row whose time has come: into its lane, at the end. */
static void
route_due(OutboxPlacement *placement, int32 subscription_id, const pg_uuid_t *id)
{
	OutboxScan	scan;

	for (int i = 0; i < placement->nsubscriptions; i++)
	{
		if (placement->subscriptions[i].id == subscription_id)
			outbox_placement_count_delayed(placement, i, -1);
	}
	if (!outbox_event_log_find(id, false, &scan))
		return;
	for (int i = 0; i < placement->nsubscriptions; i++)
	{
		if (placement->subscriptions[i].id == subscription_id)
			outbox_placement_put_entry(placement, &placement->subscriptions[i], scan.slot, id);
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
	OutboxPlacement placement;
	TimestampTz reached = due_cursor;
	TimestampTz next = DT_NOEND;
	int			moved = 0;

	if (next_due > outbox_settings_now())
		return wait_until(next_due);
	begin_transaction();
	outbox_placement_begin(&placement);
	relid = outbox_extension_relid("delayed");
	outbox_store_begin_scan(&scan, relid, outbox_store_primary_key(relid), GetActiveSnapshot(), 1);
	outbox_store_set_key(&scan, 0, BTGreaterEqualStrategyNumber, TimestampTzGetDatum(due_cursor));
	outbox_store_rescan(&scan);
	while (outbox_store_next(&scan, true))
	{
		bool		isnull;
		TimestampTz due_at = DatumGetTimestampTz(slot_getattr(scan.slot, 1, &isnull));
		pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));

		if (due_at > placement.now || moved >= DELAYED_EVENTS)
		{
			next = due_at;
			break;
		}
		*id = *DatumGetUUIDP(slot_getattr(scan.slot, 2, &isnull));
		route_due(&placement, DatumGetInt32(slot_getattr(scan.slot, 3, &isnull)), id);
		outbox_store_delete(scan.rel, &scan.slot->tts_tid);
		reached = due_at;
		moved++;
	}
	outbox_store_end_scan(&scan);
	outbox_placement_end(&placement);
	commit_transaction();
	due_cursor = reached;
	next_due = next;
	outbox_placement_announce(&placement);
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
	OutboxPlacement placement;

	outbox_extension_incarnation(&known);
	if (known.held || !known.recorded || !outbox_routing_is_ours())
		return false;
	if (!loaded || (incarnation != known.incarnation && !incarnation_over) ||
		(incarnation_over && !tick_open && outbox_placement_unjoined() == 0))
	{
		incarnation = oldest_open_incarnation(known.incarnation);
		incarnation_over = (incarnation != known.incarnation);
		load_ticks();
		outbox_placement_forget_joined();
		loaded = true;
	}
	outbox_placement_begin(&placement); /* who has not joined? */
	for (int i = 0; outbox_placement_incomplete() > 0 && i < placement.nsubscriptions; i++)
	{
		if (!outbox_placement_is_whole(i))
			outbox_repair_subscription(&placement.subscriptions[i]);
	}
	return true;
}

long
outbox_routing_round(void)
{
	long		wait;

	if (round_context == NULL)
		make_contexts();
	MemoryContextReset(round_context);

	begin_transaction();
	if (!prepare_round())
	{
		commit_transaction();
		outbox_routing_reset(); /* what is known now may be different when its turn comes */
		return outbox_poll_interval;
	}
	/* the tick comes first: what new subscriptions catch up to is then recent */
	wait = run_tick() ? 0 : outbox_poll_interval;
	wait = Min(wait, run_delayed());
	if (run_catch_up())
		wait = 0;
	return wait;
}

/*
 * A snapshot may have been compared, and found to hold nothing new, without a tick that says so.
 */
uint64
outbox_routing_horizon(void)
{
	if (!loaded || incarnation_over || tick_open || seen == NULL)
		return 0;
	return seen->xmin;
}

/* ---------------------------------------------------------------- activation */

/* Before anything is delivered here. */
static void
repair_subscriptions(void)
{
	OutboxSubscription *subscriptions;
	int			n = outbox_subscription_all(&subscriptions);
	bool		joined;

	for (int i = 0; i < n; i++)
	{
		if (!outbox_repair_is_whole(&subscriptions[i], &joined))
			outbox_repair_subscription(&subscriptions[i]);
	}
}

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
	/* of two at once the second one finds that it is done */
	LockRelationOid(outbox_extension_relid("incarnation"), ShareUpdateExclusiveLock);
	outbox_extension_incarnation(&known);
	if (!known.held)
		return false;
	args[0] = Int32GetDatum(known.incarnation);
	args[1] = TimestampTzGetDatum(outbox_settings_now());
	outbox_store_run(&insert_lost_incarnation, args, NULL, 0);
	args[1] = Int64GetDatum((int64) GetSystemIdentifier());
	args[2] = ObjectIdGetDatum(MyDatabaseId);
	args[3] = TimestampTzGetDatum(outbox_settings_now());
	outbox_store_run(&insert_incarnation, args, NULL, 0);
	outbox_store_run(&number_behind_what_is_there, NULL, NULL, 0);
	/* leases and starts on record are those of processes of the database that was copied */
	outbox_store_run(&free_lanes, NULL, NULL, 0);
	outbox_store_run(&put_back_started, &args[3], NULL, 0);
	outbox_exception_count_recount();
	outbox_store_run(&expire_leases, &args[3], NULL, 0);
	outbox_wakeup_lease(DT_NOBEGIN);	/* also those that had expired before they came here */
	outbox_segment_adopt_all();
	repair_subscriptions();
	CacheInvalidateRelcacheByRelid(outbox_extension_relid("incarnation"));
	CacheInvalidateRelcacheByRelid(outbox_extension_relid("segment"));
	outbox_subscription_changed();
	outbox_wakeup_router();
	outbox_wakeup_workers();
	return true;
}
