/*
 * claim.c - what an external worker gets.
 *
 * A claim goes round the lanes, on from where the one before came to, and takes from each that
 * is free: retries that are due, parked events of open gates, and the next entries.
 * It locks the lane's row, which it never changes, until its transaction ends, and
 * passes over one that is locked.  What it took is in the lease, and the lane's cursor has gone past it:
 * all of that is appended in the claim's own transaction, and rolls back with it.
 *
 * Where the order of keys is kept, the newest lease of a lane holds it until that lease has ended; so whoever
 * has the lane's lock and finds it free has all keys of the lane to himself.
 *
 * An event whose lease expired is handed out alone, so that the guilty one stands alone next time.
 */
#include "outbox.h"

#include "access/detoast.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "common/pg_prng.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "batch.h"
#include "claim.h"
#include "claim_lease.h"
#include "claim_settle.h"
#include "claimable.h"
#include "event_id.h"
#include "exception.h"
#include "extension.h"
#include "outage.h"
#include "passage.h"
#include "receipt.h"
#include "settings.h"
#include "shmem.h"
#include "store.h"

#define CLAIM_BYTES_MAX		(8 * 1024 * 1024)	/* of payloads and headers */
#define ENTRIES_AT_ONCE		1000	/* looked at in a lane, parked ones too */
#define GATES_AT_ONCE		50	/* open ones, of a lane */
#define DUE_LOOKS			64	/* at retries that cannot be taken, in a lane */
#define SWEEP_AT_ONCE		6	/* events of expired leases that a claim takes back */
#define SWEEP_LOOKS			32	/* at leases, ended ones too, for that */
#define SWEEP_FIRST			2	/* of these, from the beginning */
#define SWEEP_FIRST_LOOKS	8

typedef enum Admission
{
	ADMISSION_NOT_ASKED,
	ADMITTED,
	REFUSED
} Admission;

typedef struct Claim
{
	const OutboxSubscription *s;
	int			most;
	Size		bytes;
	TimestampTz now;
	bool		closed;			/* no further event fits */
	bool		inside;			/* the passage to the lanes */
	Admission	admission;
	OutboxOutage outage;
	OutboxClaimLease lease;
	OutboxException *due;		/* those of the lease's events that have a row: [ndue]; NULL: none */
	int			ndue;
	OutboxClaimView view;
	OutboxClaimLane *at;		/* the lane at hand */
	int			quota;			/* events that may be in the lease before other work has its turn */
	OutboxEventReader *reader;
	Datum		subscription;	/* its name, for the rows */
	Tuplestorestate *rows;
	TupleDesc	descriptor;
} Claim;

/* ---------------------------------------------------------------- taking a lane */

/* Asked once there is something to hand out, under a lane's lock, which whoever changes the definition takes too. */
static bool
is_admitted(Claim *claim)
{
	if (claim->admission == ADMISSION_NOT_ASKED)
	{
		claim->admission = outbox_subscription_holds(claim->s, SnapshotSelf) &&
			(claim->outage.level == 0 || outbox_outage_may_probe(claim->s, claim->now)) ? ADMITTED : REFUSED;
	}
	return claim->admission == ADMITTED;
}

/* A handler's worker held the lane when it died: its lease goes, and what it had started is due again. */
static void
clear_holder(Claim *claim, Relation lanes, TupleTableSlot *slot)
{
	static const int lease_columns[] = {3, 4, 5, 6, 7, 8};	/* token, holder, ..., careful_through */
	OutboxWriter *writer = outbox_store_open_writer(RelationGetRelid(lanes));
	Datum		values[9];
	bool		nulls[9];

	slot_getallattrs(slot);
	memcpy(values, slot->tts_values, sizeof(values));
	memcpy(nulls, slot->tts_isnull, sizeof(nulls));
	for (int i = 0; i < lengthof(lease_columns); i++)
		nulls[lease_columns[i]] = true;
	outbox_store_replace(writer, &slot->tts_tid, values, nulls);
	outbox_store_close_writer(writer);
	CommandCounterIncrement();
	outbox_exception_free_started(claim->s->id, claim->at->lane, claim->now);
}

/* Lock the lane's row, unless somebody has it. */
static bool
lock_lane(Claim *claim)
{
	Relation	rel = outbox_store_open(outbox_extension_relid("lane"), RowShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	bool		isnull;

	claim->at->locked = outbox_store_lock(rel, &claim->at->tid, LockTupleExclusive, slot) == ROW_LOCKED &&
		DatumGetInt32(slot_getattr(slot, 1, &isnull)) == claim->s->id &&
		DatumGetInt32(slot_getattr(slot, 2, &isnull)) == claim->at->lane;
	if (claim->at->locked)
	{
		Datum		holder = slot_getattr(slot, 5, &isnull);

		if (!isnull && outbox_shmem_find_process(DatumGetInt64(holder)) != NULL)
			claim->at->locked = false;
		else if (!isnull)
			clear_holder(claim, rel, slot);
	}
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, NoLock);
	return claim->at->locked;
}

/* Asked once there may be something to take: somebody else may want the lanes. */
static bool
may_enter(Claim *claim)
{
	if (!claim->inside)
	{
		claim->inside = outbox_passage_enter(claim->s->id);
		if (!claim->inside)
			claim->admission = REFUSED;
	}
	return claim->inside;
}

/* The lane at hand is ours for this transaction, and free. */
static bool
take_lane(Claim *claim)
{
	const OutboxClaimView *view = &claim->view;
	TimestampTz expires_at;
	int64		newest;
	int64		before;

	if (!outbox_claimable_has_work(view, claim->at) || !outbox_claimable_is_free(view, claim->at, &before, &expires_at) ||
		!may_enter(claim) || !lock_lane(claim) || !is_admitted(claim))
		return false;
	if (outbox_subscription_orders(claim->s, claim->at->lane) &&
		outbox_claim_lease_of_lane(claim->s->id, claim->at->lane) != before &&
		!outbox_claimable_is_free(view, claim->at, &newest, &expires_at))
		return false;
	claim->at->cursor = claim->at->reached = outbox_claimable_cursor(view, claim->at);
	return true;
}

/* ---------------------------------------------------------------- taking events */

static Size
event_size(TupleTableSlot *event)
{
	Size		size = 0;
	bool		isnull;
	Datum		value = slot_getattr(event, EV_PAYLOAD + 1, &isnull);

	if (!isnull)
		size += toast_raw_datum_size(value);
	value = slot_getattr(event, EV_HEADERS + 1, &isnull);
	if (!isnull)
		size += toast_raw_datum_size(value);
	return size;
}

/* Its row, for the caller. */
static void
emit(Claim *claim, TupleTableSlot *event, const OutboxClaimedEvent *taken, int attempts_before)
{
	Datum		values[OUTBOX_CLAIMED_COLUMNS];
	bool		nulls[OUTBOX_CLAIMED_COLUMNS] = {false};
	Datum	   *more = values + OUTBOX_EVENT_COLUMNS;

	slot_getsomeattrs(event, OUTBOX_EVENT_COLUMNS);
	memcpy(values, event->tts_values, OUTBOX_EVENT_COLUMNS * sizeof(Datum));
	memcpy(nulls, event->tts_isnull, OUTBOX_EVENT_COLUMNS * sizeof(bool));
	more[0] = claim->subscription;
	more[1] = Int32GetDatum(taken->attempts);
	more[2] = Int32GetDatum(attempts_before + claim->s->max_attempts);
	more[3] = Int32GetDatum(taken->replay_no);
	more[4] = UUIDPGetDatum(&claim->lease.token);
	more[5] = TimestampTzGetDatum(claim->lease.expires_at);
	tuplestore_putvalues(claim->rows, claim->descriptor, values, nulls);
}

typedef enum Taking
{
	TAKEN,
	NOT_THERE,					/* the event is gone from the log */
	NO_ROOM
} Taking;

/* One more event into the lease. */
static Taking
take_event(Claim *claim, const OutboxClaimedEvent *taken, const ItemPointerData *tid, int attempts_before)
{
	TupleTableSlot *event;
	Size		size;

	if (claim->closed || claim->lease.count >= claim->most)
		return NO_ROOM;
	if (!outbox_batch_read_event(claim->reader, &taken->event_id, tid, &event))
		return NOT_THERE;
	size = event_size(event);
	if (claim->lease.count > 0 && claim->bytes + size > CLAIM_BYTES_MAX)
	{
		claim->closed = true;
		return NO_ROOM;
	}
	claim->bytes += size;
	claim->lease.events[claim->lease.count++] = *taken;
	claim->at->taken++;
	emit(claim, event, taken, attempts_before);
	return TAKEN;
}

static bool
has_room(const Claim *claim)
{
	return !claim->closed && claim->lease.count < claim->quota;
}

/* ---------------------------------------------------------------- retries that are due */

/* The live delivery of an event, or a replay of it, may be in the lease already: calls name events only. */
static bool
is_in_lease(const Claim *claim, const pg_uuid_t *event_id)
{
	for (int i = 0; i < claim->lease.count; i++)
	{
		if (memcmp(&claim->lease.events[i].event_id, event_id, sizeof(pg_uuid_t)) == 0)
			return true;
	}
	return false;
}

static void
drop_exception(OutboxException *x)
{
	OutboxKey	key = outbox_exception_key(x);
	OutboxKeyGate gate;

	outbox_exception_delete(x);
	(void) outbox_exception_derive_gate(&key, false, false, 0, &gate);
}

static bool
visit_due(OutboxException *x, void *argument)
{
	Claim	   *claim = argument;
	bool		alone = DatumGetBool(x->values[EX_ALONE]);
	int			attempts_before = DatumGetInt32(x->values[EX_ATTEMPTS_BEFORE]);
	OutboxClaimedEvent taken = {
		.event_id = *DatumGetUUIDP(x->values[EX_EVENT_ID]), .replay_no = DatumGetInt16(x->values[EX_REPLAY_NO]),
		.lane = claim->at->lane, .position = DatumGetInt64(x->values[EX_POSITION]),
		.attempts = attempts_before + DatumGetInt32(x->values[EX_ATTEMPTS]) + 1, .gate_id = OUTBOX_FROM_EXCEPTION
	};

	if (!has_room(claim))
		return false;
	if ((alone && claim->lease.count > 0) || is_in_lease(claim, &taken.event_id))
		return true;
	if (outbox_receipt_exists(claim->s->id, &taken.event_id, taken.replay_no))
	{
		drop_exception(x);
		return true;
	}
	switch (take_event(claim, &taken, NULL, attempts_before))
	{
		case TAKEN:
			if (claim->due == NULL)
				claim->due = palloc(claim->most * sizeof(OutboxException));
			claim->due[claim->ndue++] = *x;
			claim->closed |= alone;
			break;
		case NOT_THERE:
			drop_exception(x);
			break;
		case NO_ROOM:
			break;
	}
	return has_room(claim);
}

static void
take_due(Claim *claim, bool replays)
{
	if ((replays ? claim->view.any_replay : claim->view.any_retry) && has_room(claim))
		outbox_exception_walk_due(claim->s, claim->at->lane, replays, claim->now,
								  claim->quota - claim->lease.count + DUE_LOOKS, visit_due, claim);
}

/* ---------------------------------------------------------------- parked events of open gates */

static int
list_open_gates(Claim *claim, OutboxKeyGate *gates)
{
	OutboxScan	scan;
	bool		isnull;
	int			n = 0;

	outbox_claimable_begin_lane(&scan, &claim->view, claim->at, "gate", "gate_open", 2);
	outbox_store_rescan(&scan);
	while (n < GATES_AT_ONCE && outbox_store_next(&scan, true))
	{
		OutboxKeyGate *gate = &gates[n++];

		memset(gate, 0, sizeof(*gate));
		gate->gate_id = DatumGetInt64(slot_getattr(scan.slot, 1, &isnull));
		gate->through = DatumGetInt64(slot_getattr(scan.slot, 7, &isnull));
		gate->alone_through = DatumGetInt64(slot_getattr(scan.slot, 8, &isnull));
		gate->tid = scan.slot->tts_tid;
	}
	outbox_store_end_scan(&scan);
	return n;
}

/* One parked event.  False when the gate must not be passed any further. */
static bool
take_parked(Claim *claim, OutboxKeyGate *gate, int64 position, const pg_uuid_t *event_id)
{
	bool		alone = position <= gate->alone_through;
	OutboxClaimedEvent taken = {
		.event_id = *event_id, .lane = claim->at->lane, .position = position, .attempts = 1, .gate_id = gate->gate_id
	};

	/* settled meanwhile, or with a row of its own */
	if (outbox_receipt_exists(claim->s->id, event_id, 0) || outbox_exception_exists(claim->s->id, event_id, 0))
	{
		gate->through = position;
		return true;
	}
	if (!has_room(claim) || (alone && claim->lease.count > 0))
		return false;
	if (take_event(claim, &taken, NULL, 0) == NO_ROOM)
		return false;
	gate->through = position;
	claim->closed |= alone && claim->lease.count > 0;
	return true;
}

/* may_remove: nothing of it is in the lease at hand */
static void
take_from_gate(Claim *claim, OutboxKeyGate *gate, bool may_remove)
{
	int64		through = gate->through;
	OutboxScan	scan;
	bool		isnull;
	int			most = ENTRIES_AT_ONCE;
	bool		any = false;

	outbox_store_begin_scan(&scan, outbox_extension_relid("parked"), outbox_extension_relid("parked_pkey"), SnapshotSelf, 2);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, Int64GetDatum(gate->gate_id));
	outbox_store_set_key(&scan, 1, BTGreaterStrategyNumber, Int64GetDatum(gate->through));
	outbox_store_rescan(&scan);
	while (most-- > 0 && outbox_store_next(&scan, true))
	{
		any = true;
		if (!take_parked(claim, gate, DatumGetInt64(slot_getattr(scan.slot, 2, &isnull)),
						 DatumGetUUIDP(slot_getattr(scan.slot, 3, &isnull))))
			break;
	}
	outbox_store_end_scan(&scan);
	if (gate->through != through)
		outbox_exception_write_gate(gate);
	else if (!any && may_remove)
	{
		/* all that was parked is settled: later events of the key need not be parked any more; upkeep removes the rows */
		Relation	gates = outbox_store_open(outbox_extension_relid("gate"), RowExclusiveLock);

		(void) outbox_store_delete(gates, &gate->tid);
		table_close(gates, NoLock);
	}
}

static void
take_gates(Claim *claim, bool first_time)
{
	OutboxKeyGate *gates;
	int			n;

	if (!claim->view.any_open_gate)
		return;
	gates = palloc(GATES_AT_ONCE * sizeof(OutboxKeyGate));
	n = list_open_gates(claim, gates);
	for (int i = 0; i < n && has_room(claim); i++)
		take_from_gate(claim, &gates[i], first_time);
	pfree(gates);
}

/* ---------------------------------------------------------------- entries of the lane */

/* Behind its key's gate?  Then it is parked rather than handed out. */
static bool
park_at_gate(Claim *claim, const OutboxClaimedEvent *entry, const ItemPointerData *tid)
{
	TupleTableSlot *event;
	OutboxDelivery d = {0};
	OutboxKey	key = {.subscription_id = claim->s->id, .lane = claim->at->lane};
	OutboxKeyGate gate;
	OutboxWriter *writer;
	Datum		values[3];
	bool		nulls[3] = {false};

	if (!outbox_batch_read_event(claim->reader, &entry->event_id, tid, &event))
		return false;
	outbox_batch_read_key(claim->s, claim->at->lane, event, &d);
	if (d.event_key == NULL)
		return false;
	key.tenant_id = CStringGetTextDatum(d.tenant_id);
	key.event_key = CStringGetTextDatum(d.event_key);
	if (!outbox_exception_find_gate(&key, &gate))
		return false;
	values[0] = Int64GetDatum(gate.gate_id);
	values[1] = Int64GetDatum(entry->position);
	values[2] = UUIDPGetDatum(&entry->event_id);
	writer = outbox_store_open_writer(outbox_extension_relid("parked"));
	outbox_store_put(writer, values, nulls);
	outbox_store_close_writer(writer);
	return true;
}

/*
 * The positions of a lane have no gaps.  A scan may see one when entries have been committed meanwhile, some of them in a
 * part of the index that it has left: then it begins again, once, and what it finds first is what is there.
 */
static bool
next_entry(Claim *claim)
{
	OutboxClaimLane *lane = claim->at;
	bool		isnull;

	if (!lane->at_hand && !outbox_claimable_next_entry(lane))
		return false;
	if (DatumGetInt64(slot_getattr(lane->entries.slot, 3, &isnull)) == lane->reached + 1)
		return true;
	lane->at_hand = false;
	lane->cursor = lane->reached;
	return outbox_claimable_first_entry(&claim->view, lane);
}

static void
take_entries(Claim *claim)
{
	OutboxClaimLane *lane = claim->at;
	bool		isnull;
	int			most = ENTRIES_AT_ONCE;
	bool		gated;

	if (!has_room(claim))
		return;
	/* now that the lane is ours: whoever had it before may have left a gate */
	gated = outbox_subscription_orders(claim->s, lane->lane) &&
		outbox_claimable_has_row("gate", OUTBOX_GATE_KEY_INDEX, claim->s->id, lane->lane);
	lane->cursor = lane->reached;
	if (!outbox_claimable_first_entry(&claim->view, lane))
		return;
	while (most-- > 0 && has_room(claim) && next_entry(claim))
	{
		TupleTableSlot *slot = lane->entries.slot;
		OutboxClaimedEvent entry = {
			.event_id = *DatumGetUUIDP(slot_getattr(slot, 4, &isnull)), .lane = lane->lane,
			.position = DatumGetInt64(slot_getattr(slot, 3, &isnull)), .attempts = 1, .gate_id = OUTBOX_FROM_LANE
		};
		ItemPointer tid = (ItemPointer) DatumGetPointer(slot_getattr(slot, 5, &isnull));

		CHECK_FOR_INTERRUPTS();
		lane->at_hand = false;
		if (!(gated && park_at_gate(claim, &entry, tid)) && take_event(claim, &entry, tid, 0) == NO_ROOM)
			break;
		lane->reached = entry.position;
	}
}

/* ---------------------------------------------------------------- the claim */

/* How many events before the next kind of work has its turn: most of the room; of a single place, most of the times. */
static int
share(const Claim *claim)
{
	int			room = claim->most - claim->lease.count;

	if (room == 1)
		return claim->lease.count + (pg_prng_double(&pg_global_prng_state) < 0.75 ? 1 : 0);
	return claim->lease.count + room - room / 4;
}

/* Retries first, then open gates, entries, replays, none of which keeps the next from its turn for ever. */
static void
work_lane(Claim *claim)
{
	int64		cursor = claim->at->cursor;

	if (claim->view.any_ended)
	{
		outbox_exception_sweep(claim->s, claim->at->lane);
		claim->view.any_open_gate = outbox_claimable_has_row("gate", "gate_open", claim->s->id, -1);
	}
	claim->quota = share(claim);
	take_due(claim, false);
	claim->quota = share(claim);
	take_gates(claim, true);
	claim->quota = claim->view.any_replay ? share(claim) : claim->most;
	take_entries(claim);
	claim->quota = claim->most;
	take_due(claim, true);
	take_entries(claim);
	take_due(claim, false);
	take_gates(claim, false);
	claim->at->cursor = cursor;
}

static void
start_due(Claim *claim)
{
	for (int i = 0; i < claim->ndue; i++)
	{
		OutboxException *x = &claim->due[i];

		outbox_exception_set(x, EX_STATUS, CStringGetTextDatum("IN_PROGRESS"));
		outbox_exception_set(x, EX_ATTEMPTS, Int32GetDatum(DatumGetInt32(x->values[EX_ATTEMPTS]) + 1));
		outbox_exception_set_null(x, EX_NEXT_ATTEMPT_AT);
		outbox_exception_set(x, EX_STARTED_AT, TimestampTzGetDatum(claim->now));
		outbox_exception_set(x, EX_LEASE_ID, Int64GetDatum(claim->lease.lease_id));
		if (claim->lease.worker != (Datum) 0)
			outbox_exception_set(x, EX_WORKER, claim->lease.worker);
		else
			outbox_exception_set_null(x, EX_WORKER);
		outbox_exception_write(x);
	}
}

static void
move_cursors(Claim *claim)
{
	OutboxWriter *writer = NULL;
	bool		nulls[3] = {false};

	for (int i = 0; i < claim->view.nlanes; i++)
	{
		Datum		values[3] = {
			Int32GetDatum(claim->s->id), Int32GetDatum(claim->view.lanes[i].lane), Int64GetDatum(claim->view.lanes[i].reached)
		};

		if (!claim->view.lanes[i].locked || claim->view.lanes[i].reached == claim->view.lanes[i].cursor)
			continue;
		if (writer == NULL)
			writer = outbox_store_open_writer(outbox_extension_relid("lane_cursor"));
		outbox_store_put(writer, values, nulls);
	}
	if (writer != NULL)
		outbox_store_close_writer(writer);
}

/* Everything that was taken, on record.  The lease's number is drawn here, with all its lanes locked. */
static void
write_claim(Claim *claim)
{
	move_cursors(claim);
	if (claim->lease.count == 0)
		return;
	claim->lease.lease_id = outbox_claim_lease_draw();
	start_due(claim);
	for (int i = 0; i < claim->view.nlanes; i++)
	{
		if (claim->view.lanes[i].taken > 0 && outbox_subscription_orders(claim->s, claim->view.lanes[i].lane))
			outbox_claim_lease_hold_lane(claim->s->id, claim->view.lanes[i].lane, claim->lease.lease_id);
	}
	outbox_claim_lease_append(&claim->lease);
}

/*
 * Some from the beginning, where the oldest are, and the others from where the last claim came to, whoever's: those that
 * cannot be taken back hide none.
 */
static void
take_back_expired(void)
{
	static OutboxSweepPlace place = {0};
	OutboxDatabase *db = outbox_shmem_my_database();
	int			most = SWEEP_AT_ONCE;
	int			looks = SWEEP_LOOKS;

	if (db != NULL)
		outbox_shmem_get_sweep_place(db, &place);
	if (place.under_way)
	{
		OutboxSweepPlace beginning = {0};

		(void) outbox_claim_settle_sweep(db, SWEEP_FIRST, SWEEP_FIRST_LOOKS, &beginning);
		most -= SWEEP_FIRST;
		looks -= SWEEP_FIRST_LOOKS;
	}
	(void) outbox_claim_settle_sweep(db, most, looks, &place);
	if (db != NULL)
		outbox_shmem_set_sweep_place(db, &place);
}

static void
begin_claim(Claim *claim, int64 duration, Datum worker)
{
	OutboxIncarnation incarnation;

	outbox_extension_incarnation(&incarnation);
	claim->lease.subscription_id = claim->s->id;
	claim->lease.incarnation = incarnation.incarnation;
	claim->lease.worker = worker;
	claim->lease.claimed_at = claim->now;
	claim->lease.expires_at = claim->now + duration;
	claim->lease.events = palloc(claim->most * sizeof(OutboxClaimedEvent));
	outbox_claim_lease_make_token(&claim->lease.token);
	claim->subscription = CStringGetTextDatum(claim->s->name);
	claim->reader = outbox_batch_open_reader(SnapshotSelf);
}

/*
 * Lanes in turn advance together, so that what a claim reads is near to what the one before has read.  Every round begins
 * one lane further: what comes alone comes only from the first lane that has anything, so each one has to be the first
 * now and then, also when a claim goes through all of them, or through a quarter.  A session that claims from several
 * subscriptions begins anywhere: a turn that they shared could pass over the same lanes each time.
 */
static void
go_round(Claim *claim)
{
	static int32 subscription_id = 0;
	static uint32 turn;
	static int	passed;			/* lanes, in this round */
	OutboxClaimView *view = &claim->view;

	if (subscription_id != claim->s->id)
	{
		subscription_id = claim->s->id;
		turn = pg_prng_uint32(&pg_global_prng_state);
		passed = 0;
	}
	for (int i = 0; i < view->nlanes && !claim->closed && claim->lease.count < claim->most && claim->admission != REFUSED; i++)
	{
		claim->at = &view->lanes[turn++ % view->nlanes];
		passed++;
		if (take_lane(claim))
			work_lane(claim);
		outbox_claimable_close_entries(claim->at);
	}
	if (passed >= view->nlanes)
	{
		turn++;
		passed = 0;
	}
}

void
outbox_claim_run(const OutboxSubscription *s, int most, int64 duration, Datum worker,
				 Tuplestorestate *rows, TupleDesc descriptor)
{
	Claim		claim = {.s = s, .most = most, .rows = rows, .descriptor = descriptor};

	take_back_expired();
	claim.now = outbox_settings_now();	/* what was just taken back is due */
	outbox_outage_read(s, &claim.outage);
	if (claim.outage.level > 0)
	{
		if (outbox_outage_holds(&claim.outage, claim.now))
			return;
		claim.most = 1;
	}
	begin_claim(&claim, duration, worker);
	outbox_claimable_view(&claim.view, s, claim.now);
	go_round(&claim);
	write_claim(&claim);
	outbox_batch_close_reader(claim.reader);
	CommandCounterIncrement();
}
