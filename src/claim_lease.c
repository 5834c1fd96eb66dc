/*
 * claim_lease.c - the leases of external workers.
 *
 * A claim appends one row, and each call that settles events of it appends
 * another (claim_progress.c): the lease has ended when the union of these is all of its events.
 * So nothing is changed when all goes well, and two that settle at once need not
 * know of each other.
 *
 * Whoever settles has locked the lease's row by its token first; whoever takes an expired
 * lease back locks it against everybody, passing over one that is locked, and changes
 * the token.  Everything here is read by what is committed now, whatever the
 * snapshot and isolation level of the caller, and leaves no predicate locks.
 */
#include "outbox.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "claim_lease.h"
#include "extension.h"
#include "store.h"
#include "wakeup.h"

#define TOKENS_AT_ONCE		16

/* columns of outbox.lease */
typedef enum LeaseColumn
{
	LEASE_ID,
	LEASE_TOKEN,
	LEASE_SUBSCRIPTION_ID,
	LEASE_INCARNATION,
	LEASE_CLAIM_XID,
	LEASE_WORKER,
	LEASE_CLAIMED_AT,
	LEASE_EXPIRES_AT,
	LEASE_EVENTS,
	LEASE_EVENT_IDS,
	LEASE_LANES,
	LEASE_POSITIONS,
	LEASE_REPLAYS,
	LEASE_ATTEMPTS,
	LEASE_GATES,
	LEASE_COLUMNS
} LeaseColumn;

/* ---------------------------------------------------------------- appending */

int64
outbox_claim_lease_draw(void)
{
	return nextval_internal(outbox_extension_relid("lease_lease_id_seq"), false);
}

/* Nobody can guess it: 122 bits are random.  They are drawn for some tokens at once, since most of a draw is its beginning. */
void
outbox_claim_lease_make_token(pg_uuid_t *token)
{
	static pg_uuid_t drawn[TOKENS_AT_ONCE];
	static int	left = 0;

	if (left == 0 && !pg_strong_random(drawn, sizeof(drawn)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values")));
	left = left == 0 ? TOKENS_AT_ONCE : left;
	*token = drawn[--left];
	explicit_bzero(&drawn[left], UUID_LEN);
	token->data[6] = (token->data[6] & 0x0f) | 0x40;
	token->data[8] = (token->data[8] & 0x3f) | 0x80;
}

typedef Datum (*EventField) (const OutboxClaimedEvent *event);

static Datum
field_event_id(const OutboxClaimedEvent *event)
{
	return UUIDPGetDatum(&event->event_id);
}

static Datum
field_lane(const OutboxClaimedEvent *event)
{
	return Int32GetDatum(event->lane);
}

static Datum
field_position(const OutboxClaimedEvent *event)
{
	return Int64GetDatum(event->position);
}

static Datum
field_replay(const OutboxClaimedEvent *event)
{
	return Int16GetDatum(event->replay_no);
}

static Datum
field_attempt(const OutboxClaimedEvent *event)
{
	return Int16GetDatum((int16) event->attempts);
}

static Datum
field_gate(const OutboxClaimedEvent *event)
{
	return Int64GetDatum(event->gate_id);
}

static Datum
make_array(const OutboxClaimLease *lease, EventField field, Oid type, int size, bool by_value, char align)
{
	Datum	   *elements = palloc(lease->count * sizeof(Datum));

	for (int i = 0; i < lease->count; i++)
		elements[i] = field(&lease->events[i]);
	return PointerGetDatum(construct_array(elements, lease->count, type, size, by_value, align));
}

/* The arrays; those that say nothing stay null. */
static void
fill_arrays(const OutboxClaimLease *lease, Datum *values, bool *nulls)
{
	nulls[LEASE_REPLAYS] = nulls[LEASE_ATTEMPTS] = nulls[LEASE_GATES] = true;
	for (int i = 0; i < lease->count; i++)
	{
		nulls[LEASE_REPLAYS] &= lease->events[i].replay_no == 0;
		nulls[LEASE_ATTEMPTS] &= lease->events[i].attempts == 1;
		nulls[LEASE_GATES] &= lease->events[i].gate_id == OUTBOX_FROM_LANE;
	}
	values[LEASE_EVENT_IDS] = make_array(lease, field_event_id, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR);
	values[LEASE_LANES] = make_array(lease, field_lane, INT4OID, 4, true, TYPALIGN_INT);
	values[LEASE_POSITIONS] = make_array(lease, field_position, INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE);
	if (!nulls[LEASE_REPLAYS])
		values[LEASE_REPLAYS] = make_array(lease, field_replay, INT2OID, 2, true, TYPALIGN_SHORT);
	if (!nulls[LEASE_ATTEMPTS])
		values[LEASE_ATTEMPTS] = make_array(lease, field_attempt, INT2OID, 2, true, TYPALIGN_SHORT);
	if (!nulls[LEASE_GATES])
		values[LEASE_GATES] = make_array(lease, field_gate, INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE);
}

static void
append_row(const char *relname, const Datum *values, const bool *nulls)
{
	OutboxWriter *writer = outbox_store_open_writer(outbox_extension_relid(relname));

	outbox_store_put(writer, values, nulls);
	outbox_store_close_writer(writer);
}

void
outbox_claim_lease_append(OutboxClaimLease *lease)
{
	Datum		values[LEASE_COLUMNS] = {0};
	bool		nulls[LEASE_COLUMNS] = {false};

	lease->claim_xid = U64FromFullTransactionId(GetTopFullTransactionId());
	values[LEASE_ID] = Int64GetDatum(lease->lease_id);
	values[LEASE_TOKEN] = UUIDPGetDatum(&lease->token);
	values[LEASE_SUBSCRIPTION_ID] = Int32GetDatum(lease->subscription_id);
	values[LEASE_INCARNATION] = Int32GetDatum(lease->incarnation);
	values[LEASE_CLAIM_XID] = FullTransactionIdGetDatum(FullTransactionIdFromU64(lease->claim_xid));
	values[LEASE_WORKER] = lease->worker;
	nulls[LEASE_WORKER] = lease->worker == (Datum) 0;
	values[LEASE_CLAIMED_AT] = TimestampTzGetDatum(lease->claimed_at);
	values[LEASE_EXPIRES_AT] = TimestampTzGetDatum(lease->expires_at);
	values[LEASE_EVENTS] = Int16GetDatum((int16) lease->count);
	fill_arrays(lease, values, nulls);
	append_row("lease", values, nulls);
	outbox_wakeup_lease(lease->expires_at);
}

void
outbox_claim_lease_hold_lane(int32 subscription_id, int32 lane, int64 lease_id)
{
	Datum		values[3] = {Int32GetDatum(subscription_id), Int32GetDatum(lane), Int64GetDatum(lease_id)};
	bool		nulls[3] = {false};

	append_row("lane_lease", values, nulls);
}

/* ---------------------------------------------------------------- reading */

int64
outbox_claim_lease_of_lane(int32 subscription_id, int32 lane)
{
	OutboxScan	scan;
	int64		lease_id = 0;
	bool		isnull;

	outbox_store_begin_scan(&scan, outbox_extension_relid("lane_lease"), outbox_extension_relid("lane_lease_pkey"),
							SnapshotSelf, 2);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, Int32GetDatum(subscription_id));
	outbox_store_set_key(&scan, 1, BTEqualStrategyNumber, Int32GetDatum(lane));
	outbox_store_rescan(&scan);
	if (outbox_store_next(&scan, false))
		lease_id = DatumGetInt64(slot_getattr(scan.slot, 3, &isnull));
	outbox_store_end_scan(&scan);
	return lease_id;
}

static Datum
lease_value(TupleTableSlot *slot, LeaseColumn column)
{
	bool		isnull;

	return slot_getattr(slot, column + 1, &isnull);
}

/* Everything but the arrays; no copies. */
static void
read_head(TupleTableSlot *slot, OutboxClaimLease *lease)
{
	bool		isnull;

	memset(lease, 0, sizeof(*lease));
	lease->lease_id = DatumGetInt64(lease_value(slot, LEASE_ID));
	lease->token = *DatumGetUUIDP(lease_value(slot, LEASE_TOKEN));
	lease->subscription_id = DatumGetInt32(lease_value(slot, LEASE_SUBSCRIPTION_ID));
	lease->incarnation = DatumGetInt32(lease_value(slot, LEASE_INCARNATION));
	lease->claim_xid = U64FromFullTransactionId(DatumGetFullTransactionId(lease_value(slot, LEASE_CLAIM_XID)));
	lease->worker = slot_getattr(slot, LEASE_WORKER + 1, &isnull);
	lease->worker = isnull ? (Datum) 0 : PointerGetDatum(PG_DETOAST_DATUM_COPY(lease->worker));
	lease->claimed_at = DatumGetTimestampTz(lease_value(slot, LEASE_CLAIMED_AT));
	lease->expires_at = DatumGetTimestampTz(lease_value(slot, LEASE_EXPIRES_AT));
	lease->count = DatumGetInt16(lease_value(slot, LEASE_EVENTS));
}

/*
 * The elements of an array column, NULL when it is null: its types have a fixed width and no nulls, so that they lie side by
 * side.
 */
static const void *
read_array(TupleTableSlot *slot, LeaseColumn column, int count)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, column + 1, &isnull);
	ArrayType  *array;

	if (isnull)
		return NULL;
	array = DatumGetArrayTypePCopy(value);
	if (ARR_HASNULL(array) || ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)) != count)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("a row of outbox.lease does not fit together")));
	return ARR_DATA_PTR(array);
}

static void
read_events(TupleTableSlot *slot, OutboxClaimLease *lease)
{
	int			n = lease->count;
	const pg_uuid_t *ids = read_array(slot, LEASE_EVENT_IDS, n);
	const int32 *lanes = read_array(slot, LEASE_LANES, n);
	const int64 *positions = read_array(slot, LEASE_POSITIONS, n);
	const int16 *replays = read_array(slot, LEASE_REPLAYS, n);
	const int16 *attempts = read_array(slot, LEASE_ATTEMPTS, n);
	const int64 *gates = read_array(slot, LEASE_GATES, n);
	const OutboxClaimedEvent ordinary = {.attempts = 1, .gate_id = OUTBOX_FROM_LANE, .state = CLAIM_HELD};

	lease->events = palloc(Max(n, 1) * sizeof(OutboxClaimedEvent));
	for (int i = 0; i < n; i++)
	{
		lease->events[i] = ordinary;
		lease->events[i].event_id = ids[i];
		lease->events[i].lane = lanes[i];
		lease->events[i].position = positions[i];
	}
	for (int i = 0; replays != NULL && i < n; i++)
		lease->events[i].replay_no = replays[i];
	for (int i = 0; attempts != NULL && i < n; i++)
		lease->events[i].attempts = attempts[i];
	for (int i = 0; gates != NULL && i < n; i++)
		lease->events[i].gate_id = gates[i];
}

static void
read_progress(OutboxClaimLease *lease, Snapshot snapshot)
{
	OutboxClaimState states[OUTBOX_CLAIM_EVENTS_MAX];
	OutboxClaimProgress progress = {.snapshot = snapshot};

	lease->held = outbox_claim_progress_read(&progress, lease->lease_id, states,
											 Min(lease->count, OUTBOX_CLAIM_EVENTS_MAX));
	outbox_claim_progress_end(&progress);
	for (int i = 0; lease->events != NULL && i < lease->count; i++)
		lease->events[i].state = states[i];
}

void
outbox_claim_lease_read_progress(OutboxClaimLease *lease)
{
	read_progress(lease, SnapshotSelf);
}

/* ---------------------------------------------------------------- finding and locking */

typedef enum Found
{
	FOUND_NOTHING,
	FOUND_LOCKED,
	FOUND_BUSY
} Found;

/*
 * Look for a row under a unique key and lock it in its newest version, which is then in the slot.
 * While a row is being replaced its old version is still there, or its new one already: when neither is seen, that was
 * committed in between, and another look finds the new one.  One that is there in no version that is
 * committed is held by the claim that has made it.
 */
static Found
lock_row(OutboxScan *scan, SnapshotData *dirty, Datum key, LockTupleMode mode, TupleTableSlot *slot)
{
	for (int looks = 1;; looks++)
	{
		bool		replaced = looks < 2;
		bool		unborn = false;

		CHECK_FOR_INTERRUPTS();
		outbox_store_set_key(scan, 0, BTEqualStrategyNumber, key);
		outbox_store_rescan(scan);
		while (outbox_store_next(scan, true))
		{
			if (TransactionIdIsValid(dirty->xmin))
			{
				unborn = true;
				continue;
			}
			switch (outbox_store_lock(scan->rel, &scan->slot->tts_tid, mode, slot))
			{
				case ROW_LOCKED:
					return FOUND_LOCKED;
				case ROW_BUSY:
					return FOUND_BUSY;
				case ROW_GONE:
					replaced = true;
					break;
			}
		}
		if (!replaced)
			return unborn ? FOUND_BUSY : FOUND_NOTHING;
		if (looks > 1)
			pg_usleep(100);
	}
}

/* patience NULL: none at all.  The lease with its events, held all of them as far as is known. */
static bool
find_and_lock(const char *index, Datum key, LockTupleMode mode, OutboxPatience *patience, OutboxClaimLease *lease)
{
	SnapshotData dirty;
	OutboxScan	scan;
	TupleTableSlot *slot;
	Found		found;

	InitDirtySnapshot(dirty);
	outbox_store_begin_scan(&scan, outbox_extension_relid("lease"), outbox_extension_relid(index), &dirty, 1);
	slot = table_slot_create(scan.rel, NULL);
	while ((found = lock_row(&scan, &dirty, key, mode, slot)) == FOUND_BUSY && patience != NULL)
		outbox_patience_wait(patience);
	if (found == FOUND_LOCKED)
	{
		read_head(slot, lease);
		read_events(slot, lease);
		lease->held = lease->count;
	}
	ExecDropSingleTupleTableSlot(slot);
	outbox_store_end_scan(&scan);
	return found == FOUND_LOCKED;
}

bool
outbox_claim_lease_lock(const pg_uuid_t *token, LockTupleMode mode, OutboxPatience *patience, OutboxClaimLease *lease)
{
	/* the row that was locked may be another version by now, with another token */
	return find_and_lock("lease_token_key", UUIDPGetDatum(token), mode, patience, lease) &&
		memcmp(&lease->token, token, sizeof(pg_uuid_t)) == 0;
}

/* A version of its row: any will do, and none is uncommitted as a whole. */
static bool
read_version(int64 lease_id, OutboxClaimLease *lease)
{
	SnapshotData dirty;
	OutboxScan	scan;
	bool		found;

	InitDirtySnapshot(dirty);
	outbox_store_begin_scan(&scan, outbox_extension_relid("lease"), outbox_extension_relid("lease_pkey"), &dirty, 1);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, Int64GetDatum(lease_id));
	outbox_store_rescan(&scan);
	found = outbox_store_next(&scan, true);
	if (found)
		read_head(scan.slot, lease);
	outbox_store_end_scan(&scan);
	return found;
}

/* Looked for twice before it is taken for trimmed: see lock_row(). */
bool
outbox_claim_lease_is_open(int64 lease_id, TimestampTz *expires_at)
{
	OutboxClaimLease lease = {0};

	if (!read_version(lease_id, &lease) && !read_version(lease_id, &lease))
		return false;
	read_progress(&lease, SnapshotSelf);
	*expires_at = lease.expires_at;
	return lease.held > 0;
}

/* ---------------------------------------------------------------- changing */

/* Other values in some columns of a row that is locked. */
static void
replace_row(const OutboxClaimLease *lease, LeaseColumn column, Datum value)
{
	OutboxWriter *writer = outbox_store_open_writer(outbox_extension_relid("lease"));
	OutboxScan	scan;
	Datum		values[LEASE_COLUMNS];
	bool		nulls[LEASE_COLUMNS];

	outbox_store_begin_scan(&scan, RelationGetRelid(writer->rel), outbox_extension_relid("lease_pkey"), SnapshotSelf, 1);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, Int64GetDatum(lease->lease_id));
	outbox_store_rescan(&scan);
	if (!outbox_store_next(&scan, true))
		elog(ERROR, "a lease is gone although it is locked");
	slot_getallattrs(scan.slot);
	memcpy(values, scan.slot->tts_values, sizeof(values));
	memcpy(nulls, scan.slot->tts_isnull, sizeof(nulls));
	values[column] = value;
	outbox_store_replace(writer, &scan.slot->tts_tid, values, nulls);
	outbox_store_end_scan(&scan);
	outbox_store_close_writer(writer);
	CommandCounterIncrement();
}

bool
outbox_claim_lease_take_back(int64 lease_id, TimestampTz now, int incarnation, OutboxClaimLease *lease)
{
	pg_uuid_t	token;

	if (!find_and_lock("lease_pkey", Int64GetDatum(lease_id), LockTupleExclusive, NULL, lease) ||
		(lease->expires_at > now && lease->incarnation == incarnation))
		return false;
	read_progress(lease, SnapshotSelf);
	if (lease->held == 0)
		return false;
	outbox_claim_lease_make_token(&token);
	replace_row(lease, LEASE_TOKEN, UUIDPGetDatum(&token));
	return true;
}

void
outbox_claim_lease_extend(OutboxClaimLease *lease, TimestampTz expires_at)
{
	replace_row(lease, LEASE_EXPIRES_AT, TimestampTzGetDatum(expires_at));
	lease->expires_at = expires_at;
	outbox_wakeup_lease(expires_at);
}

/* ---------------------------------------------------------------- walking */

/* The lease has not ended: show it. */
static bool
show_lease(OutboxClaimWalk *walk, TupleTableSlot *slot, int held, const OutboxClaimState *states)
{
	OutboxClaimLease lease;

	read_head(slot, &lease);
	lease.held = held;
	if (walk->whole)
		read_events(slot, &lease);
	for (int i = 0; lease.events != NULL && i < lease.count; i++)
		lease.events[i].state = states[i];
	return walk->visit(&lease, walk->argument);
}

/* columns of the index by which a walk goes */
typedef enum ExpiryColumn
{
	EXPIRY_AT = 1,
	EXPIRY_LEASE_ID,
	EXPIRY_EVENTS
} ExpiryColumn;

/*
 * The lease at hand: false when the walk ends here.  Most have ended, when claims are many: their rows are not read.  The scan
 * of progress keeps what it allocates, so it goes on in the caller's memory, and the rest in `each`.
 */
static bool
visit_lease(OutboxClaimWalk *walk, OutboxScan *leases, OutboxClaimProgress *progress, MemoryContext each)
{
	OutboxClaimState states[OUTBOX_CLAIM_EVENTS_MAX];
	TimestampTz expires_at = DatumGetTimestampTz(outbox_store_entry_value(leases, EXPIRY_AT));
	int64		lease_id = DatumGetInt64(outbox_store_entry_value(leases, EXPIRY_LEASE_ID));
	int			count = DatumGetInt16(outbox_store_entry_value(leases, EXPIRY_EVENTS));
	int			held;
	bool		go_on = true;

	if (expires_at > walk->until)
	{
		walk->at_end = true;
		return false;
	}
	if (expires_at == walk->from && lease_id <= walk->from_id)
		return true;
	held = outbox_claim_progress_read(progress, lease_id, states, Min(count, OUTBOX_CLAIM_EVENTS_MAX));
	if (held > 0)
	{
		MemoryContext caller;

		if (!outbox_store_read_entry(leases))
			return true;
		caller = MemoryContextSwitchTo(each);
		go_on = show_lease(walk, leases->slot, held, states);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(each);
	}
	walk->most--;
	walk->from = expires_at;
	walk->from_id = lease_id;
	return go_on;
}

void
outbox_claim_lease_walk(OutboxClaimWalk *walk)
{
	OutboxScan	leases;
	OutboxClaimProgress progress = {.snapshot = walk->snapshot, .walking = true};
	MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "outbox lease", ALLOCSET_DEFAULT_SIZES);
	bool		go_on = true;

	walk->at_end = false;
	outbox_store_begin_scan(&leases, outbox_extension_relid("lease"), outbox_extension_relid("lease_expires"),
							walk->snapshot, 1);
	outbox_store_want_entries(&leases);
	outbox_store_set_key(&leases, 0, BTGreaterEqualStrategyNumber, TimestampTzGetDatum(walk->from));
	outbox_store_rescan(&leases);
	while (go_on && walk->most > 0)
	{
		CHECK_FOR_INTERRUPTS();
		if (!outbox_store_next_entry(&leases))
		{
			walk->at_end = true;
			break;
		}
		go_on = visit_lease(walk, &leases, &progress, each);
	}
	outbox_claim_progress_end(&progress);
	outbox_store_end_scan(&leases);
	MemoryContextDelete(each);
}
