/*
 * exception.c - deliveries that did not go well, and the gates of their keys,
 * for external workers.
 *
 * Whoever changes the exceptions of a lane whose order is kept has the lane to
 * himself: by the lease that holds it, or, when none does, by the lock on the lane's row.
 * People's calls (retry, discard) come in between, so every row is locked and
 * read again before it is changed.  Whether a gate may open is derived from the
 * rows of its key each time; a row that is being changed by somebody else counts as unfinished.
 */
#include "outbox.h"

#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "exception.h"
#include "exception_count.h"
#include "extension.h"
#include "receipt.h"
#include "settings.h"
#include "store.h"

#define SWEEP_AT_ONCE	100
#define DUE_LOOKS		64		/* at retries that must wait for an older one */

/* columns of outbox.gate */
typedef enum GateColumn
{
	GATE_ID,
	GATE_SUBSCRIPTION_ID,
	GATE_LANE,
	GATE_TENANT_ID,
	GATE_EVENT_KEY,
	GATE_HELD_BY,
	GATE_THROUGH,
	GATE_ALONE_THROUGH,
	GATE_CREATED_AT,
	GATE_NUMBER,
	GATE_COLUMNS
} GateColumn;

/* columns of outbox.subscription that are read here */
#define SUBSCRIPTION_ON_REVIEW "on_review"

/* ---------------------------------------------------------------- rows */

void
outbox_exception_set(OutboxException *x, OutboxExceptionColumn column, Datum value)
{
	x->values[column] = value;
	x->nulls[column] = false;
}

void
outbox_exception_set_null(OutboxException *x, OutboxExceptionColumn column)
{
	x->values[column] = (Datum) 0;
	x->nulls[column] = true;
}

static bool
text_is(Datum value, const char *expected)
{
	text	   *t = DatumGetTextPP(value);

	return VARSIZE_ANY_EXHDR(t) == strlen(expected) && memcmp(VARDATA_ANY(t), expected, strlen(expected)) == 0;
}

bool
outbox_exception_has_status(const OutboxException *x, const char *status)
{
	return text_is(x->values[EX_STATUS], status);
}

OutboxKey
outbox_exception_key(const OutboxException *x)
{
	OutboxKey	key = {
		.subscription_id = DatumGetInt32(x->values[EX_SUBSCRIPTION_ID]),
		.lane = DatumGetInt32(x->values[EX_LANE]),
		.tenant_id = x->values[EX_TENANT_ID],
		.event_key = x->nulls[EX_EVENT_KEY] ? (Datum) 0 : x->values[EX_EVENT_KEY]
	};

	return key;
}

void
outbox_exception_make(OutboxException *x, const OutboxKey *key, const pg_uuid_t *event_id, int16 replay_no,
					  int64 position)
{
	pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));

	*id = *event_id;
	memset(x, 0, sizeof(*x));
	for (int i = 0; i < OUTBOX_EXCEPTION_COLUMNS; i++)
		x->nulls[i] = true;
	ItemPointerSetInvalid(&x->tid);
	outbox_exception_set(x, EX_SUBSCRIPTION_ID, Int32GetDatum(key->subscription_id));
	outbox_exception_set(x, EX_EVENT_ID, UUIDPGetDatum(id));
	outbox_exception_set(x, EX_REPLAY_NO, Int16GetDatum(replay_no));
	outbox_exception_set(x, EX_LANE, Int32GetDatum(key->lane));
	outbox_exception_set(x, EX_POSITION, Int64GetDatum(position));
	outbox_exception_set(x, EX_TENANT_ID, key->tenant_id);
	if (key->event_key != (Datum) 0)
		outbox_exception_set(x, EX_EVENT_KEY, key->event_key);
	outbox_exception_set(x, EX_ATTEMPTS, Int32GetDatum(0));
	outbox_exception_set(x, EX_ATTEMPTS_BEFORE, Int32GetDatum(0));
	outbox_exception_set(x, EX_GATE_RELEASED, BoolGetDatum(false));
	outbox_exception_set(x, EX_ALONE, BoolGetDatum(false));
}

/* A copy of the row in the slot, in the current memory context. */
static void
read_exception(TupleTableSlot *slot, OutboxException *x)
{
	TupleDesc	descriptor = slot->tts_tupleDescriptor;

	if (descriptor->natts != OUTBOX_EXCEPTION_COLUMNS)
		elog(ERROR, "outbox.delivery_exception has other columns than expected");
	slot_getallattrs(slot);
	x->tid = slot->tts_tid;
	x->row = ExecCopySlotHeapTuple(slot);
	for (int i = 0; i < OUTBOX_EXCEPTION_COLUMNS; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(descriptor, i);

		x->nulls[i] = slot->tts_isnull[i];
		x->values[i] = x->nulls[i] ? (Datum) 0 :
			attribute->attlen == -1 ? PointerGetDatum(PG_DETOAST_DATUM_COPY(slot->tts_values[i])) :
			datumCopy(slot->tts_values[i], attribute->attbyval, attribute->attlen);
	}
}

static void
begin_by_event(OutboxScan *scan, Snapshot snapshot, int32 subscription_id, const pg_uuid_t *event_id, int16 replay_no)
{
	outbox_store_begin_scan(scan, outbox_extension_relid("delivery_exception"),
							outbox_extension_relid("delivery_exception_pkey"), snapshot, 3);
	outbox_store_set_key(scan, 0, BTEqualStrategyNumber, Int32GetDatum(subscription_id));
	outbox_store_set_key(scan, 1, BTEqualStrategyNumber, UUIDPGetDatum(event_id));
	outbox_store_set_key(scan, 2, BTEqualStrategyNumber, Int16GetDatum(replay_no));
	outbox_store_rescan(scan);
}

/* One look for the row; sets *again when somebody has it, or is replacing it. */
static bool
try_to_lock(OutboxScan *scan, SnapshotData *dirty, TupleTableSlot *slot, bool *again)
{
	*again = false;
	outbox_store_rescan(scan);
	while (outbox_store_next(scan, true))
	{
		OutboxRowLock lock;

		if (TransactionIdIsValid(dirty->xmin))
		{
			*again = true;
			continue;
		}
		lock = outbox_store_lock(scan->rel, &scan->slot->tts_tid, LockTupleExclusive, slot);
		if (lock == ROW_LOCKED)
			return true;
		*again = true;
	}
	return false;
}

bool
outbox_exception_lock(int32 subscription_id, const pg_uuid_t *event_id, int16 replay_no, OutboxPatience *patience,
					  OutboxException *x)
{
	SnapshotData dirty;
	OutboxScan	scan;
	TupleTableSlot *slot;
	bool		again;
	bool		locked;

	InitDirtySnapshot(dirty);
	begin_by_event(&scan, &dirty, subscription_id, event_id, replay_no);
	slot = table_slot_create(scan.rel, NULL);
	while (!(locked = try_to_lock(&scan, &dirty, slot, &again)) && again)
		outbox_patience_wait(patience);
	if (locked)
		read_exception(slot, x);
	ExecDropSingleTupleTableSlot(slot);
	outbox_store_end_scan(&scan);
	return locked;
}

bool
outbox_exception_exists(int32 subscription_id, const pg_uuid_t *event_id, int16 replay_no)
{
	SnapshotData dirty;
	OutboxScan	scan;
	bool		found;

	InitDirtySnapshot(dirty);
	begin_by_event(&scan, &dirty, subscription_id, event_id, replay_no);
	found = outbox_store_next(&scan, true);
	outbox_store_end_scan(&scan);
	return found;
}

/* No trigger fires for direct access: what the table's trigger counts is counted here. */
void
outbox_exception_write(OutboxException *x)
{
	OutboxWriter *writer = outbox_store_open_writer(outbox_extension_relid("delivery_exception"));
	HeapTuple	before = x->row;

	if (ItemPointerIsValid(&x->tid))
		outbox_store_replace(writer, &x->tid, x->values, x->nulls);
	else
		outbox_store_put(writer, x->values, x->nulls);
	x->row = heap_form_tuple(RelationGetDescr(writer->rel), x->values, x->nulls);
	outbox_exception_count_change(writer->rel, before, x->row);
	outbox_store_close_writer(writer);
	CommandCounterIncrement();
}

void
outbox_exception_delete(OutboxException *x)
{
	Relation	rel = outbox_store_open(outbox_extension_relid("delivery_exception"), RowExclusiveLock);

	CommandCounterIncrement();
	(void) outbox_store_delete(rel, &x->tid);
	outbox_exception_count_change(rel, x->row, NULL);
	table_close(rel, NoLock);
}

void
outbox_exception_log_attempt(const OutboxException *x, TimestampTz failed_at, Datum worker, const char *error_code)
{
	OutboxWriter *writer = outbox_store_open_writer(outbox_extension_relid("attempt_log"));
	Datum		values[9] = {
		Int64GetDatum(nextval_internal(outbox_extension_relid("attempt_log_attempt_id_seq"), false)),
		x->values[EX_SUBSCRIPTION_ID], x->values[EX_EVENT_ID], x->values[EX_REPLAY_NO],
		Int32GetDatum(DatumGetInt32(x->values[EX_ATTEMPTS_BEFORE]) + DatumGetInt32(x->values[EX_ATTEMPTS])),
		x->values[EX_STARTED_AT], TimestampTzGetDatum(failed_at), worker, CStringGetTextDatum(error_code)
	};
	bool		nulls[9] = {false, false, false, false, false, x->nulls[EX_STARTED_AT], false, worker == (Datum) 0, false};

	outbox_store_put(writer, values, nulls);
	outbox_store_close_writer(writer);
}

/* ---------------------------------------------------------------- order of a key */

/* Does a delivery in review hold its key?  Read anew: a definition that is known may be older than the gates. */
static bool
review_blocks(int32 subscription_id)
{
	OutboxScan	scan;
	bool		blocks = true;
	bool		isnull;

	outbox_store_begin_scan(&scan, outbox_extension_relid("subscription"), outbox_extension_relid("subscription_pkey"),
							SnapshotSelf, 1);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, Int32GetDatum(subscription_id));
	outbox_store_rescan(&scan);
	if (outbox_store_next(&scan, true))
	{
		int			column = SPI_fnumber(RelationGetDescr(scan.rel), SUBSCRIPTION_ON_REVIEW);

		blocks = text_is(slot_getattr(scan.slot, column, &isnull), "block");
	}
	outbox_store_end_scan(&scan);
	return blocks;
}

/* The key's deliveries that are not over, in order; those in review too, or none of these. */
static void
begin_by_key(OutboxScan *scan, SnapshotData *dirty, const OutboxKey *key, bool reviews, int nkeys)
{
	InitDirtySnapshot(*dirty);
	outbox_store_begin_scan(scan, outbox_extension_relid("delivery_exception"),
							outbox_extension_relid(reviews ? "delivery_exception_key" : "delivery_exception_key_trying"),
							dirty, nkeys);
	outbox_store_set_key(scan, 0, BTEqualStrategyNumber, Int32GetDatum(key->subscription_id));
	outbox_store_set_key(scan, 1, BTEqualStrategyNumber, key->tenant_id);
	outbox_store_set_key(scan, 2, BTEqualStrategyNumber, key->event_key);
}

/* Does the row in the slot, of the index on keys, hold later events of its key? */
static bool
is_unfinished(TupleTableSlot *slot, bool blocks_on_review)
{
	bool		isnull;
	Datum		status = slot_getattr(slot, EX_STATUS + 1, &isnull);

	return !text_is(status, "DISCARDED") && (blocks_on_review || !text_is(status, "REVIEW_REQUIRED"));
}

/*
 * The first unfinished delivery of the key in a scan by it; false when there is none.  A row that somebody replaces is seen
 * in its old version, or in its new one already: when neither is seen, that was committed in between, and another
 * look finds the new one.  So both looks count.
 */
static bool
find_unfinished(OutboxScan *scan, bool blocks_on_review, pg_uuid_t *event_id, int64 *position)
{
	bool		isnull;

	*position = PG_INT64_MAX;
	for (int looks = 0; looks < 2; looks++)
	{
		bool		found = false;

		outbox_store_rescan(scan);
		while (!found && outbox_store_next(scan, true))
		{
			int64		its = DatumGetInt64(slot_getattr(scan->slot, EX_POSITION + 1, &isnull));

			found = is_unfinished(scan->slot, blocks_on_review);
			if (!found || its >= *position)
				continue;
			*position = its;
			*event_id = *DatumGetUUIDP(slot_getattr(scan->slot, EX_EVENT_ID + 1, &isnull));
		}
	}
	return *position < PG_INT64_MAX;
}

/* The oldest unfinished delivery of the key, if any. */
static bool
find_holder(const OutboxKey *key, bool blocks_on_review, pg_uuid_t *holder, int64 *position)
{
	SnapshotData dirty;
	OutboxScan	scan;
	bool		found;

	begin_by_key(&scan, &dirty, key, blocks_on_review, 3);
	found = find_unfinished(&scan, blocks_on_review, holder, position);
	outbox_store_end_scan(&scan);
	return found;
}

bool
outbox_exception_has_later(const OutboxKey *key, int64 position)
{
	SnapshotData dirty;
	OutboxScan	scan;
	bool		found;
	pg_uuid_t	event_id;

	begin_by_key(&scan, &dirty, key, true, 4);
	outbox_store_set_key(&scan, 3, BTGreaterStrategyNumber, Int64GetDatum(position));
	found = find_unfinished(&scan, true, &event_id, &position);
	outbox_store_end_scan(&scan);
	return found;
}

static void
begin_due(OutboxScan *scan, const OutboxSubscription *s, int32 lane, bool replay, TimestampTz now)
{
	outbox_store_begin_scan(scan, outbox_extension_relid("delivery_exception"),
							outbox_extension_relid(replay ? "delivery_exception_replay_due" :
												   "delivery_exception_live_due"), SnapshotSelf, 3);
	outbox_store_set_key(scan, 0, BTEqualStrategyNumber, Int32GetDatum(s->id));
	outbox_store_set_key(scan, 1, BTEqualStrategyNumber, Int32GetDatum(lane));
	outbox_store_set_key(scan, 2, BTLessEqualStrategyNumber, TimestampTzGetDatum(now));
	outbox_store_rescan(scan);
}

/* May the row be taken: is it in RETRY, and has its key no older unfinished one? */
static bool
has_turn(const OutboxSubscription *s, const OutboxException *x)
{
	OutboxKey	key = outbox_exception_key(x);
	pg_uuid_t	holder;
	int64		position;

	if (!outbox_exception_has_status(x, "RETRY"))
		return false;
	return key.event_key == (Datum) 0 || !find_holder(&key, s->block_on_review, &holder, &position) ||
		position >= DatumGetInt64(x->values[EX_POSITION]);
}

bool
outbox_exception_has_due(const OutboxSubscription *s, int32 lane, bool replay, TimestampTz now, bool *busy)
{
	OutboxScan	scan;
	bool		found = false;

	begin_due(&scan, s, lane, replay, now);
	for (int i = 0; i < DUE_LOOKS && !found && outbox_store_next(&scan, true); i++)
	{
		OutboxException x;

		read_exception(scan.slot, &x);
		found = has_turn(s, &x);
		if (found && busy != NULL && outbox_store_is_held(scan.slot))
		{
			*busy = true;
			found = false;
		}
	}
	outbox_store_end_scan(&scan);
	return found;
}

void
outbox_exception_walk_due(const OutboxSubscription *s, int32 lane, bool replay, TimestampTz now, int most,
						  OutboxDueVisitor take, void *argument)
{
	OutboxScan	scan;
	TupleTableSlot *slot;
	bool		go_on = true;

	begin_due(&scan, s, lane, replay, now);
	slot = table_slot_create(scan.rel, NULL);
	while (go_on && most-- > 0 && outbox_store_next(&scan, true))
	{
		OutboxException x;

		CHECK_FOR_INTERRUPTS();
		if (outbox_store_lock(scan.rel, &scan.slot->tts_tid, LockTupleExclusive, slot) != ROW_LOCKED)
			continue;
		read_exception(slot, &x);
		if (has_turn(s, &x))
			go_on = take(&x, argument);
	}
	ExecDropSingleTupleTableSlot(slot);
	outbox_store_end_scan(&scan);
}

/* ---------------------------------------------------------------- gates */

static void
begin_by_gate_key(OutboxScan *scan, const OutboxKey *key)
{
	outbox_store_begin_scan(scan, outbox_extension_relid("gate"),
							outbox_extension_relid("gate_subscription_id_lane_tenant_id_event_key_key"), SnapshotSelf, 4);
	outbox_store_set_key(scan, 0, BTEqualStrategyNumber, Int32GetDatum(key->subscription_id));
	outbox_store_set_key(scan, 1, BTEqualStrategyNumber, Int32GetDatum(key->lane));
	outbox_store_set_key(scan, 2, BTEqualStrategyNumber, key->tenant_id);
	outbox_store_set_key(scan, 3, BTEqualStrategyNumber, key->event_key);
	outbox_store_rescan(scan);
}

bool
outbox_exception_find_gate(const OutboxKey *key, OutboxKeyGate *gate)
{
	OutboxScan	scan;
	bool		found;
	bool		isnull;
	Datum		holder;

	begin_by_gate_key(&scan, key);
	found = outbox_store_next(&scan, true);
	if (found)
	{
		gate->tid = scan.slot->tts_tid;
		gate->gate_id = DatumGetInt64(slot_getattr(scan.slot, GATE_ID + 1, &isnull));
		gate->through = DatumGetInt64(slot_getattr(scan.slot, GATE_THROUGH + 1, &isnull));
		gate->alone_through = DatumGetInt64(slot_getattr(scan.slot, GATE_ALONE_THROUGH + 1, &isnull));
		holder = slot_getattr(scan.slot, GATE_HELD_BY + 1, &isnull);
		gate->held = !isnull;
		if (gate->held)
			gate->held_by = *DatumGetUUIDP(holder);
	}
	outbox_store_end_scan(&scan);
	return found;
}

/* The column is generated for SQL; written directly it must be the same. */
int64
outbox_exception_first_gate_id(int32 subscription_id)
{
	return (int64) subscription_id << 40;
}

static void
insert_gate(const OutboxKey *key, OutboxKeyGate *gate)
{
	OutboxWriter *writer = outbox_store_open_writer(outbox_extension_relid("gate"));
	Datum		values[GATE_COLUMNS];
	bool		nulls[GATE_COLUMNS] = {false};
	int64		number;

	number = nextval_internal(outbox_extension_relid("gate_number_seq"), false);
	gate->gate_id = outbox_exception_first_gate_id(key->subscription_id) + number;
	values[GATE_ID] = Int64GetDatum(gate->gate_id);
	values[GATE_NUMBER] = Int64GetDatum(number);
	values[GATE_SUBSCRIPTION_ID] = Int32GetDatum(key->subscription_id);
	values[GATE_LANE] = Int32GetDatum(key->lane);
	values[GATE_TENANT_ID] = key->tenant_id;
	values[GATE_EVENT_KEY] = key->event_key;
	values[GATE_HELD_BY] = UUIDPGetDatum(&gate->held_by);
	nulls[GATE_HELD_BY] = !gate->held;
	values[GATE_THROUGH] = Int64GetDatum(gate->through);
	values[GATE_ALONE_THROUGH] = Int64GetDatum(gate->alone_through);
	values[GATE_CREATED_AT] = TimestampTzGetDatum(outbox_settings_now());
	outbox_store_put(writer, values, nulls);
	outbox_store_close_writer(writer);
	CommandCounterIncrement();
}

/* The row at the gate's tid is the newest: nobody else is at the lane. */
void
outbox_exception_write_gate(const OutboxKeyGate *gate)
{
	OutboxWriter *writer = outbox_store_open_writer(outbox_extension_relid("gate"));
	OutboxScan	scan;
	Datum		values[GATE_COLUMNS];
	bool		nulls[GATE_COLUMNS];

	outbox_store_begin_scan(&scan, RelationGetRelid(writer->rel), outbox_extension_relid("gate_pkey"), SnapshotSelf, 1);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, Int64GetDatum(gate->gate_id));
	outbox_store_rescan(&scan);
	if (outbox_store_next(&scan, true))
	{
		slot_getallattrs(scan.slot);
		memcpy(values, scan.slot->tts_values, sizeof(values));
		memcpy(nulls, scan.slot->tts_isnull, sizeof(nulls));
		values[GATE_HELD_BY] = UUIDPGetDatum(&gate->held_by);
		nulls[GATE_HELD_BY] = !gate->held;
		values[GATE_THROUGH] = Int64GetDatum(gate->through);
		values[GATE_ALONE_THROUGH] = Int64GetDatum(gate->alone_through);
		outbox_store_replace(writer, &scan.slot->tts_tid, values, nulls);
	}
	outbox_store_end_scan(&scan);
	outbox_store_close_writer(writer);
	CommandCounterIncrement();
}

bool
outbox_exception_derive_gate(const OutboxKey *key, bool make, bool lower, int64 through, OutboxKeyGate *gate)
{
	OutboxKeyGate known;
	int64		position;
	bool		found;

	if (key->event_key == (Datum) 0)
		return false;
	found = outbox_exception_find_gate(key, &known);
	memset(gate, 0, sizeof(*gate));
	if (found)
		*gate = known;
	gate->held = find_holder(key, review_blocks(key->subscription_id), &gate->held_by, &position);
	gate->was_through = gate->through;
	if (!found)
	{
		if (!gate->held && !make)
			return false;
		gate->through = gate->was_through = through;
		insert_gate(key, gate);
		return true;
	}
	if (lower)
		gate->through = Min(gate->through, through);
	if (gate->held != known.held || gate->through != known.through ||
		(gate->held && memcmp(&gate->held_by, &known.held_by, sizeof(pg_uuid_t)) != 0))
		outbox_exception_write_gate(gate);
	return true;
}

/* Is it told elsewhere what becomes of a live delivery?  By what is committed, or ours: what is open may be rolled back. */
static bool
is_told_elsewhere(int32 subscription_id, const pg_uuid_t *event_id)
{
	OutboxScan	scan;
	bool		found;

	if (outbox_receipt_exists(subscription_id, event_id, 0))
		return true;
	begin_by_event(&scan, SnapshotSelf, subscription_id, event_id, 0);
	found = outbox_store_next(&scan, true);
	outbox_store_end_scan(&scan);
	return found;
}

void
outbox_exception_clear_parked(int32 subscription_id, const OutboxKeyGate *gate)
{
	OutboxScan	scan;
	bool		isnull;

	if (gate->through >= gate->was_through)
		return;
	outbox_store_begin_scan(&scan, outbox_extension_relid("parked"), outbox_extension_relid("parked_pkey"), SnapshotSelf, 2);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, Int64GetDatum(gate->gate_id));
	outbox_store_set_key(&scan, 1, BTGreaterStrategyNumber, Int64GetDatum(gate->through));
	outbox_store_rescan(&scan);
	while (outbox_store_next(&scan, true) && DatumGetInt64(slot_getattr(scan.slot, 2, &isnull)) <= gate->was_through)
	{
		CHECK_FOR_INTERRUPTS();
		if (is_told_elsewhere(subscription_id, DatumGetUUIDP(slot_getattr(scan.slot, 3, &isnull))))
			(void) outbox_store_delete(scan.rel, &scan.slot->tts_tid);
	}
	outbox_store_end_scan(&scan);
}

/* ---------------------------------------------------------------- looking after a lane */

/* Up to SWEEP_AT_ONCE rows of a lane by one of the partial indexes, locked; those that are locked are passed over. */
static int
lock_some(const char *index, int32 subscription_id, int32 lane, OutboxException *found)
{
	OutboxScan	scan;
	TupleTableSlot *slot;
	int			n = 0;

	outbox_store_begin_scan(&scan, outbox_extension_relid("delivery_exception"), outbox_extension_relid(index),
							SnapshotSelf, 2);
	slot = table_slot_create(scan.rel, NULL);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, Int32GetDatum(subscription_id));
	outbox_store_set_key(&scan, 1, BTEqualStrategyNumber, Int32GetDatum(lane));
	outbox_store_rescan(&scan);
	while (n < SWEEP_AT_ONCE && outbox_store_next(&scan, true))
	{
		if (outbox_store_lock(scan.rel, &scan.slot->tts_tid, LockTupleExclusive, slot) == ROW_LOCKED)
			read_exception(slot, &found[n++]);
	}
	ExecDropSingleTupleTableSlot(slot);
	outbox_store_end_scan(&scan);
	return n;
}

void
outbox_exception_sweep(const OutboxSubscription *s, int32 lane)
{
	OutboxException *ended = palloc(SWEEP_AT_ONCE * sizeof(OutboxException));
	int			n = lock_some("delivery_exception_ended", s->id, lane, ended);

	for (int i = 0; i < n; i++)
	{
		OutboxKey	key = outbox_exception_key(&ended[i]);
		OutboxKeyGate gate;

		if (!outbox_exception_has_status(&ended[i], "DISCARDED"))
			continue;
		(void) outbox_exception_derive_gate(&key, false, false, 0, &gate);
		outbox_exception_set(&ended[i], EX_GATE_RELEASED, BoolGetDatum(true));
		outbox_exception_write(&ended[i]);
	}
}

void
outbox_exception_free_started(int32 subscription_id, int32 lane, TimestampTz now)
{
	OutboxException *started = palloc(SWEEP_AT_ONCE * sizeof(OutboxException));
	int			n = lock_some("delivery_exception_started", subscription_id, lane, started);

	for (int i = 0; i < n; i++)
	{
		OutboxException *x = &started[i];

		if (!outbox_exception_has_status(x, "IN_PROGRESS") || !x->nulls[EX_LEASE_ID])
			continue;
		outbox_exception_set(x, EX_STATUS, CStringGetTextDatum("RETRY"));
		outbox_exception_set(x, EX_NEXT_ATTEMPT_AT, TimestampTzGetDatum(now));
		outbox_exception_set_null(x, EX_WORKER);
		outbox_exception_write(x);
	}
}
