/*
 * batch.c - a batch of deliveries in one transaction.
 *
 * In this order: lock the lanes by their tokens (the fence), read what is to
 * be done, write receipts for it, become the handler's role, call the handler
 * event by event, write down how far the lanes have come, commit.  Either all
 * of it is there afterwards or nothing.
 *
 * The batch is optimistic: no subtransactions.  When a call fails, all is
 * rolled back, and the caller runs it again in smaller parts (see attempt.c).
 * It spans all lanes at hand, and takes no more than lane_limit of each: so far,
 * and no further, a lane is worked carefully after this process has died.
 *
 * It ends early by time (outbox.batch_time is also how long the first event's
 * row locks are held), and by the subtransactions its handlers have used (over
 * 64 of them slow down every backend of the server).  Calls after the first
 * run under a deadline that lies within deadlock_timeout: an application that
 * waits for the batch's row locks is let go before its deadlock detector runs.
 */
#include "outbox.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "storage/bufmgr.h"
#include "storage/itemptr.h"
#include "storage/proc.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "assembly.h"
#include "batch.h"
#include "counters.h"
#include "event_id.h"
#include "event_log.h"
#include "extension.h"
#include "segment.h"
#include "session.h"
#include "settings.h"
#include "store.h"

#define CHUNK			OUTBOX_WRITER_SLOTS /* receipts written at once, ahead of the calls */
#define SUBXIDS_MAX		48		/* of PGPROC_MAX_CACHED_SUBXIDS */
#define BATCH_BYTES_MAX	(8 * 1024 * 1024)	/* of events */
#define BATCH_BLOCK_BYTES	(1024 * 1024)

static MemoryContext batch_context = NULL;
static MemoryContext call_context = NULL;

/* one open batch */
typedef struct Run
{
	OutboxBatch *batch;
	uint64		batch_id;
	TimestampTz started_at;
	instr_time	started;
	uint64		subscriptions;	/* outbox_subscription_version() */
	OutboxEventReader *reader;
	OutboxWriter *receipts;		/* of the segment below */
	pg_uuid_t	receipts_from;
	pg_uuid_t	receipts_to;
	Oid			receipts_pk;
	int			ran;			/* deliveries [0, ran) are done */
	Size		bytes;			/* of the events handed over */
	int32	   *processing_us;
	/* the chunk at hand: deliveries [chunk_start, chunk_start + chunk_count) */
	int			chunk_start;
	int			chunk_count;
	TupleTableSlot *slots[CHUNK];	/* NULL: nothing to run */
	TupleTableSlot *spare[CHUNK];	/* slots made so far */
	ItemPointerData tids[CHUNK];	/* of their receipts */
	int			running;		/* in the handler, for failed_index and failed_count */
	int			running_count;
	int			own_level;		/* of settings, see session.h */
} Run;

/* ---------------------------------------------------------------- reading events */

struct OutboxEventReader
{
	Snapshot	snapshot;
	bool		open;
	BlockNumber nblocks;		/* known to be there */
	OutboxSegment segment;
	OutboxScan	scan;
};

OutboxEventReader *
outbox_batch_open_reader(Snapshot snapshot)
{
	OutboxEventReader *reader = palloc0(sizeof(OutboxEventReader));

	reader->snapshot = snapshot;
	return reader;
}

static Snapshot
reader_snapshot(OutboxEventReader *reader)
{
	return reader->snapshot != NULL ? reader->snapshot : GetActiveSnapshot();
}

static void
reader_open(OutboxEventReader *reader)
{
	outbox_store_begin_scan(&reader->scan, reader->segment.event_log, reader->segment.event_log_pk,
							reader->segment.kept ? SnapshotSelf : reader_snapshot(reader), 1);
	reader->nblocks = 0;
	reader->open = true;
}

static void
reader_move_to(OutboxEventReader *reader, const pg_uuid_t *id)
{
	if (reader->open && outbox_event_id_compare(id, &reader->segment.from) >= 0 &&
		outbox_event_id_compare(id, &reader->segment.to) < 0)
		return;
	outbox_batch_close_reader(reader);
	outbox_segment_find(id, &reader->segment);
	reader_open(reader);
}

/* Not in its segment: with what was kept of it, for this event alone. */
static bool
reader_turn_to_kept(OutboxEventReader *reader)
{
	if (!outbox_segment_turn_to_kept(&reader->segment))
		return false;
	outbox_batch_close_reader(reader);
	reader_open(reader);
	reader->segment.to = reader->segment.from;
	return true;
}

/*
 * Is it where it was?  The log is never updated, but its table may be rewritten, or restored from a dump.  Fetched as the scan of
 * an index does, which keeps the block of the event before.
 */
static bool
read_at(OutboxEventReader *reader, const pg_uuid_t *id, const ItemPointerData *tid)
{
	ItemPointerData at = *tid;
	bool		call_again = false;
	bool		isnull;

	if (ItemPointerGetBlockNumber(&at) >= reader->nblocks)
		reader->nblocks = RelationGetNumberOfBlocks(reader->scan.rel);
	return ItemPointerGetBlockNumber(&at) < reader->nblocks &&
		table_index_fetch_tuple(reader->scan.scan->xs_heapfetch, &at, reader_snapshot(reader), reader->scan.slot,
								&call_again, NULL) &&
		outbox_event_id_compare(DatumGetUUIDP(slot_getattr(reader->scan.slot, EV_EVENT_ID + 1, &isnull)), id) == 0;
}

bool
outbox_batch_read_event(OutboxEventReader *reader, const pg_uuid_t *id, const ItemPointerData *tid,
						TupleTableSlot **slot)
{
	reader_move_to(reader, id);
	if (tid != NULL && ItemPointerIsValid(tid) && read_at(reader, id, tid))
	{
		*slot = reader->scan.slot;
		return true;
	}
	do
	{
		outbox_store_set_key(&reader->scan, 0, BTEqualStrategyNumber, UUIDPGetDatum(id));
		outbox_store_rescan(&reader->scan);
		*slot = reader->scan.slot;
		if (outbox_store_next(&reader->scan, true))
			return true;
	} while (reader_turn_to_kept(reader));
	return false;
}

void
outbox_batch_close_reader(OutboxEventReader *reader)
{
	if (reader->open)
		outbox_store_end_scan(&reader->scan);
	reader->open = false;
}

void
outbox_batch_read_key(const OutboxSubscription *s, int32 lane, TupleTableSlot *event, OutboxDelivery *d)
{
	bool		isnull;
	Datum		value = slot_getattr(event, EV_TENANT_ID + 1, &isnull);

	d->tenant_id = isnull ? pstrdup("") : TextDatumGetCString(value);
	value = slot_getattr(event, EV_EVENT_KEY + 1, &isnull);
	d->event_key = isnull || !outbox_subscription_orders(s, lane) ? NULL : TextDatumGetCString(value);
}

/* ---------------------------------------------------------------- receipts */

/* Also one of this batch, when the same event stands in it twice. */
static bool
receipt_exists(Run *run, OutboxDelivery *d)
{
	OutboxScan	scan;
	bool		found;

	outbox_store_begin_scan(&scan, RelationGetRelid(run->receipts->rel), run->receipts_pk, SnapshotSelf, 3);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, UUIDPGetDatum(&d->event_id));
	outbox_store_set_key(&scan, 1, BTEqualStrategyNumber, Int32GetDatum(run->batch->subscription->id));
	outbox_store_set_key(&scan, 2, BTEqualStrategyNumber, Int16GetDatum(d->replay_no));
	outbox_store_rescan(&scan);
	found = outbox_store_next(&scan, true);
	outbox_store_end_scan(&scan);
	return found;
}

static bool
fits_receipts(Run *run, const pg_uuid_t *id)
{
	return run->receipts != NULL && outbox_event_id_compare(id, &run->receipts_from) >= 0 &&
		outbox_event_id_compare(id, &run->receipts_to) < 0;
}

/* The writer of the segment that an event's receipt belongs to. Flushes the one before. */
static void
open_receipts(Run *run, const pg_uuid_t *id)
{
	OutboxSegment segment;

	if (fits_receipts(run, id))
		return;
	if (run->receipts != NULL)
		outbox_store_close_writer(run->receipts);
	outbox_segment_find(id, &segment);
	run->receipts = outbox_store_open_writer(segment.receipt_log);
	run->receipts_from = segment.from;
	run->receipts_to = segment.to;
	run->receipts_pk = segment.receipt_log_pk;
}

static void
put_receipt(Run *run, OutboxDelivery *d, int index)
{
	Datum		values[7] = {
		UUIDPGetDatum(&d->event_id), Int64GetDatum((int64) run->batch_id),
		Int32GetDatum(run->batch->subscription->id), Int16GetDatum(d->replay_no),
		Int16GetDatum((int16) Min(d->attempts_before + Max(d->attempts, 1), PG_INT16_MAX)),
		Int16GetDatum((int16) index), (Datum) 0
	};
	bool		nulls[7] = {false, false, false, false, false, false, true};

	outbox_store_put(run->receipts, values, nulls);
}

/* Which of the writer's rows became whose receipt: the chunk is flushed whenever the segment changes. */
static void
flush_receipts(Run *run, const int *owners, int count)
{
	if (count == 0)
		return;
	outbox_store_flush(run->receipts);
	for (int i = 0; i < count; i++)
		run->tids[owners[i]] = run->receipts->tids[i];
}

/*
 * The next chunk: read the events, write their receipts.  A slot that stays NULL has nothing to run:
 * the event is gone, or was completed before.  Ends where another segment begins, so that the receipts of
 * a chunk lie in one table.
 */
static void
prepare_chunk(Run *run, int start)
{
	OutboxBatch *batch = run->batch;
	int			owners[CHUNK];
	int			pending = 0;
	bool		written = false;

	run->chunk_start = start;
	run->chunk_count = Min(CHUNK, batch->count - start);
	for (int i = 0; i < run->chunk_count; i++)
	{
		OutboxDelivery *d = &batch->deliveries[start + i];
		TupleTableSlot *event;

		run->slots[i] = NULL;
		if (!outbox_batch_read_event(run->reader, &d->event_id, &d->tid, &event))
			continue;
		if (written && !fits_receipts(run, &d->event_id))
		{
			run->chunk_count = i;
			break;
		}
		open_receipts(run, &d->event_id);
		if (batch->check_receipts && receipt_exists(run, d))
			continue;
		if (run->spare[i] == NULL)
			run->spare[i] = MakeSingleTupleTableSlot(event->tts_tupleDescriptor, event->tts_ops);
		run->slots[i] = ExecCopySlot(run->spare[i], event);
		put_receipt(run, d, start + i);
		written = true;
		owners[pending++] = i;
		if (batch->check_receipts)
		{
			/* the next one must see it */
			flush_receipts(run, owners, pending);
			pending = 0;
		}
	}
	flush_receipts(run, owners, pending);
}

/* The same among calls: as the handler's role, which changes nothing here, but with our own lock timeout. */
static void
prepare_next_chunk(Run *run, int start)
{
	int			level = outbox_session_begin_own();
	MemoryContext caller = MemoryContextSwitchTo(batch_context);

	run->batch->stage = STAGE_RECEIPTS;
	prepare_chunk(run, start);
	MemoryContextSwitchTo(caller);
	outbox_session_end_own(level);
}

/* Receipts of the chunk from delivery number `from` on: those that will not run now. */
static void
withdraw_receipts(Run *run, int from)
{
	/* they may be of this very command */
	CommandCounterIncrement();
	for (int i = from - run->chunk_start; i < run->chunk_count; i++)
	{
		if (run->slots[i] != NULL)
			(void) outbox_store_delete(run->receipts->rel, &run->tids[i]);
	}
}

/* ---------------------------------------------------------------- calls */

static int64
elapsed_us(Run *run)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, run->started);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

/* When the calls after the first must be over: before those who wait for us look for a deadlock. */
static int64
deadline_us(void)
{
	return (int64) DeadlockTimeout * 1000 * 3 / 4;
}

static void
announce_delivery(Run *run, OutboxDelivery *d)
{
	outbox_handler_current.subscription = run->batch->subscription->name;
	outbox_handler_current.event_id = d->event_id;
	outbox_handler_current.attempt = d->attempts_before + Max(d->attempts, 1);
	outbox_handler_current.max_attempts = d->attempts_before + run->batch->subscription->max_attempts;
	outbox_handler_current.replay_no = d->replay_no;
	run->batch->self->replay_no = d->replay_no;
	run->batch->self->event_id = d->event_id;
	pg_atomic_write_u32(&run->batch->self->lane, d->lane->lane);
}

/* Where a setting tells the tenant, each call is made for one: the event's, or none's. */
static const char *
read_tenant(TupleTableSlot *event)
{
	bool		isnull;
	Datum		tenant;

	if (!outbox_settings_has_tenants())
		return NULL;
	tenant = slot_getattr(event, EV_TENANT_ID + 1, &isnull);
	return isnull ? "" : TextDatumGetCString(tenant);
}

static void
call_one(Run *run, int index)
{
	OutboxBatch *batch = run->batch;
	TupleTableSlot *event = run->slots[index - run->chunk_start];
	int64		limit = batch->subscription->handler_timeout;
	OutboxInterruption kind = INTERRUPTED_TIME_LIMIT;
	int64		before = elapsed_us(run);
	Datum		argument;
	MemoryContext caller = MemoryContextSwitchTo(call_context);

	if (index > 0 && deadline_us() - before < limit)
	{
		limit = Max(deadline_us() - before, 1);
		kind = INTERRUPTED_DEADLINE;
	}
	run->running = index;
	run->running_count = 1;
	announce_delivery(run, &batch->deliveries[index]);
	outbox_handler_set_context(event);
	outbox_handler_set_tenant(read_tenant(event));
	argument = outbox_handler_event(event);
	run->bytes += VARSIZE(DatumGetPointer(argument));
	outbox_handler_call(batch->handler, argument, limit, kind);
	run->processing_us[index] = (int32) Min(elapsed_us(run) - before, PG_INT32_MAX);
	MemoryContextSwitchTo(caller);
	MemoryContextReset(call_context);
}

/* Should the batch end before this delivery? */
static bool
batch_is_full(Run *run, int index)
{
	if (index == 0)
		return false;
	return MyProc->subxidStatus.overflowed || MyProc->subxidStatus.count >= SUBXIDS_MAX ||
		run->bytes >= BATCH_BYTES_MAX || elapsed_us(run) >= (int64) outbox_batch_time * 1000;
}

/* Event by event; receipts a chunk ahead. */
static void
call_each(Run *run)
{
	OutboxBatch *batch = run->batch;

	for (int i = 0; i < batch->count; i++)
	{
		if (i == run->chunk_start + run->chunk_count)
			prepare_next_chunk(run, i);
		batch->stage = STAGE_HANDLER;
		if (run->slots[i - run->chunk_start] != NULL)
		{
			if (batch_is_full(run, i))
			{
				withdraw_receipts(run, i);
				return;
			}
			call_one(run, i);
			batch->completed++;
		}
		run->ran = i + 1;
	}
}

/* Is the event of another tenant than those before it? */
static bool
changes_tenant(TupleTableSlot *event, const char *tenant)
{
	return tenant != NULL && strcmp(read_tenant(event), tenant) != 0;
}

/*
 * The events of the next call, from run->ran on: as many as there are, as fit, and as are of one tenant where a setting tells it.
 * In the call's memory context.
 */
static int
collect_events(Run *run, Datum *events, TupleTableSlot **last)
{
	OutboxBatch *batch = run->batch;
	const char *tenant = NULL;
	int			start = run->ran;
	int			n = 0;

	while (run->ran < batch->count && run->ran - start < batch->lane_limit &&
		   (run->ran == start || !batch_is_full(run, run->ran)))
	{
		TupleTableSlot *slot;

		if (run->ran == run->chunk_start + run->chunk_count)
			prepare_next_chunk(run, run->ran);
		slot = run->slots[run->ran - run->chunk_start];
		if (slot != NULL && n > 0 && changes_tenant(slot, tenant))
			break;
		run->ran++;
		if (slot == NULL)
			continue;
		*last = slot;
		if (n == 0)
			tenant = read_tenant(slot);
		events[n] = outbox_handler_event(slot);
		run->bytes += VARSIZE(DatumGetPointer(events[n++]));
	}
	return n;
}

/* A call with the next events.  Those after the batch's first one must be over within the deadline. */
static void
call_some(Run *run)
{
	OutboxBatch *batch = run->batch;
	int			start = run->ran;
	int64		limit = batch->subscription->handler_timeout;
	OutboxInterruption kind = INTERRUPTED_TIME_LIMIT;
	MemoryContext caller = MemoryContextSwitchTo(call_context);
	Datum	   *events = palloc(Min(batch->count, batch->lane_limit) * sizeof(Datum));
	TupleTableSlot *last = NULL;
	int			n = collect_events(run, events, &last);
	int64		before = elapsed_us(run);

	if (n > 0)
	{
		if ((n > 1 || batch->completed > 0) && deadline_us() - before < limit)
		{
			limit = Max(deadline_us() - before, 1);
			kind = INTERRUPTED_DEADLINE;
		}
		batch->stage = STAGE_HANDLER;
		run->running = start;
		run->running_count = run->ran - start;
		announce_delivery(run, &batch->deliveries[start]);
		outbox_handler_set_context(n == 1 ? last : NULL);
		outbox_handler_set_tenant(read_tenant(last));
		outbox_handler_call(batch->handler, outbox_handler_event_array(events, n), limit, kind);
		for (int i = start; i < run->ran; i++)
			run->processing_us[i] = (int32) Min((elapsed_us(run) - before) / n, PG_INT32_MAX);
		batch->completed += n;
	}
	MemoryContextSwitchTo(caller);
	MemoryContextReset(call_context);
}

/* Some at a time: outbox.event[]. */
static void
call_arrays(Run *run)
{
	OutboxBatch *batch = run->batch;

	do
		call_some(run);
	while (run->ran < batch->count && !batch_is_full(run, run->ran));
	withdraw_receipts(run, run->ran);
}

/* ---------------------------------------------------------------- progress */

static void
write_batch_row(Run *run)
{
	OutboxBatch *batch = run->batch;
	OutboxWriter *writer;
	Datum	   *times = palloc(run->ran * sizeof(Datum));
	const pg_uuid_t *first = &batch->deliveries[0].event_id;
	const pg_uuid_t *last = first;
	int64		total = 0;
	Datum		values[11];
	bool		nulls[11] = {false};

	if (batch->completed == 0)
		return;
	for (int i = 0; i < run->ran; i++)
	{
		const pg_uuid_t *id = &batch->deliveries[i].event_id;

		times[i] = Int32GetDatum(run->processing_us[i]);
		total += run->processing_us[i];
		if (outbox_event_id_compare(id, first) < 0)
			first = id;
		if (outbox_event_id_compare(id, last) > 0)
			last = id;
	}
	batch->average_us = (double) total / batch->completed;
	values[0] = Int64GetDatum((int64) run->batch_id);
	values[1] = Int32GetDatum(batch->subscription->id);
	values[2] = TimestampTzGetDatum(run->started_at);
	values[3] = TimestampTzGetDatum(Max(outbox_settings_now(), run->started_at));
	values[4] = Int32GetDatum(batch->completed);
	values[5] = PointerGetDatum(construct_array(times, run->ran, INT4OID, sizeof(int32), true, TYPALIGN_INT));
	values[6] = PointerGetDatum(cstring_to_text(psprintf("worker %d", batch->self->number)));
	values[7] = UUIDPGetDatum(first);
	values[8] = UUIDPGetDatum(last);
	nulls[9] = nulls[10] = true;	/* no lease */
	writer = outbox_store_open_writer(outbox_extension_relid("batch"));
	outbox_store_put(writer, values, nulls);
	outbox_store_close_writer(writer);
}

/* How far the lanes have come: each up to its first delivery that did not run. */
static void
find_progress(Run *run)
{
	OutboxBatch *batch = run->batch;

	for (int i = 0; i < batch->nlanes; i++)
	{
		batch->lanes[i]->reached = batch->lanes[i]->cursor;
		batch->lanes[i]->stopped_before = PG_INT64_MAX;
	}
	for (int i = 0; i < batch->nparked; i++)
		batch->parked[i].lane->reached = Max(batch->parked[i].lane->reached, batch->parked[i].position);
	for (int i = 0; i < batch->count; i++)
	{
		OutboxDelivery *d = &batch->deliveries[i];

		if (i < run->ran)
			d->lane->reached = Max(d->lane->reached, d->position);
		else
			d->lane->stopped_before = Min(d->lane->stopped_before, d->position);
	}
}

static void
park_up_to(OutboxBatch *batch, OutboxLane *lane, int64 progress, OutboxWriter **parked)
{
	for (int i = 0; i < batch->nparked; i++)
	{
		OutboxDelivery *d = &batch->parked[i];
		Datum		values[3] = {Int64GetDatum(d->gate_id), Int64GetDatum(d->position), UUIDPGetDatum(&d->event_id)};
		bool		nulls[3] = {false};

		if (d->lane != lane || d->position > progress)
			continue;
		if (*parked == NULL)
			*parked = outbox_store_open_writer(outbox_extension_relid("parked"));
		outbox_store_put(*parked, values, nulls);
	}
}

void
outbox_batch_park_before(OutboxBatch *batch, const OutboxDelivery *d)
{
	OutboxWriter *parked = NULL;

	park_up_to(batch, d->lane, d->position, &parked);
	if (parked != NULL)
		outbox_store_close_writer(parked);
}

/* Append cursors and parked entries; progress[i] is lane i's new cursor. */
static void
write_progress(Run *run, int64 *progress)
{
	OutboxBatch *batch = run->batch;
	OutboxWriter *parked = NULL;

	find_progress(run);
	for (int i = 0; i < batch->nlanes; i++)
	{
		progress[i] = Min(batch->lanes[i]->reached, batch->lanes[i]->stopped_before - 1);
		if (progress[i] == batch->lanes[i]->cursor)
			continue;
		park_up_to(batch, batch->lanes[i], progress[i], &parked);
		batch->moved++;
	}
	outbox_lease_move_cursors(batch->nlanes, batch->lanes, progress);
	if (parked != NULL)
		outbox_store_close_writer(parked);
}

/* The gate was moved past all of the batch before it began.  As ourselves: the handler's role is in force. */
static void
move_gate_back(Run *run)
{
	OutboxDelivery *last = &run->batch->deliveries[run->ran - 1];
	OutboxSession session;

	SPI_connect();
	outbox_session_enter(&session);
	outbox_settle_move_gate(last->gate_id, last->position);
	outbox_session_leave(&session);
	SPI_finish();
}

/*
 * Has a handler of this batch removed its own subscription?  Others wait for us to do that.  Looked for only when a
 * definition has changed since the batch began.
 */
static bool
subscription_is_gone(Run *run)
{
	Oid			relid;
	OutboxScan	scan;
	bool		found;

	CommandCounterIncrement();
	if (run->subscriptions != 0 && outbox_subscription_version() == run->subscriptions)
		return false;
	relid = outbox_extension_relid("subscription");
	PushActiveSnapshot(GetLatestSnapshot());
	outbox_store_begin_scan(&scan, relid, outbox_store_primary_key(relid), GetActiveSnapshot(), 1);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, Int32GetDatum(run->batch->subscription->id));
	outbox_store_rescan(&scan);
	found = outbox_store_next(&scan, true);
	outbox_store_end_scan(&scan);
	PopActiveSnapshot();
	return !found;
}

/* What stands for the batch's progress, once the handlers have run. */
static void
write_where_we_are(Run *run, int64 *progress)
{
	OutboxBatch *batch = run->batch;

	if (batch->source == BATCH_FROM_GATE && run->ran < batch->count)
		move_gate_back(run);
	if (batch->source == BATCH_FROM_LANES && !(batch->count > 0 && subscription_is_gone(run)))
		write_progress(run, progress);
}

/* ---------------------------------------------------------------- the transaction */

static void
close_run(Run *run)
{
	outbox_batch_close_reader(run->reader);
	if (run->receipts != NULL)
		outbox_store_close_writer(run->receipts);
	for (int i = 0; i < CHUNK; i++)
	{
		if (run->spare[i] != NULL)
			ExecDropSingleTupleTableSlot(run->spare[i]);
	}
}

static void
begin_run(Run *run)
{
	outbox_session_for_handlers(run->batch->handler->search_path);
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	run->own_level = outbox_session_begin_own();
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	MemoryContextSwitchTo(batch_context);
	run->started_at = outbox_settings_now();
	INSTR_TIME_SET_CURRENT(run->started);
	run->batch_id = outbox_event_log_draw_number();
	run->subscriptions = outbox_subscription_version();
	run->reader = outbox_batch_open_reader(NULL);
}

static void
call_handlers(Run *run)
{
	OutboxBatch *batch = run->batch;

	run->processing_us = palloc0(batch->count * sizeof(int32));
	batch->stage = STAGE_RECEIPTS;
	prepare_chunk(run, 0);
	SPI_finish();
	MemoryContextSwitchTo(batch_context);
	CommandCounterIncrement();
	outbox_session_end_own(run->own_level);
	outbox_handler_enter(batch->handler);
	if (batch->handler->batch)
		call_arrays(run);
	else
		call_each(run);
	run->running = -1;
	outbox_handler_finish();
}

/* For outbox.metrics, once it is committed: the time of its publishing stands in an event's id. */
static void
count_completed(Run *run)
{
	OutboxBatch *batch = run->batch;
	TimestampTz done_at = outbox_settings_now();
	TimestampTz start_at = run->started_at;

	for (int i = 0; i < run->ran; i++)
	{
		TimestampTz published_at = outbox_event_id_time_to(outbox_event_id_time_of(&batch->deliveries[i].event_id));

		if (batch->completed == run->ran || run->processing_us[i] > 0)
			outbox_counters_completed(batch->subscription->id, run->processing_us[i],
									  start_at - published_at, done_at - published_at);
		start_at += run->processing_us[i];
	}
}

static void
run_transaction(Run *run)
{
	OutboxBatch *batch = run->batch;
	int64	   *progress = palloc0(Max(1, batch->nlanes) * sizeof(int64));

	begin_run(run);
	outbox_assembly_read(batch, run->reader);
	if (batch->count > 0)
		call_handlers(run);
	else
		SPI_finish();
	MemoryContextSwitchTo(batch_context);
	batch->stage = STAGE_COMMIT;
	if (batch->count > 0)
		write_batch_row(run);
	write_where_we_are(run, progress);
	close_run(run);
	PopActiveSnapshot();
	CommitTransactionCommand();
	count_completed(run);
	for (int i = 0; batch->source == BATCH_FROM_LANES && i < batch->nlanes; i++)
		batch->lanes[i]->cursor = Max(batch->lanes[i]->cursor, progress[i]);
}

/* ---------------------------------------------------------------- failure */

static void
describe_failure(OutboxBatch *batch, const ErrorData *error)
{
	OutboxFailure *failure = &batch->failure;

	memset(failure, 0, sizeof(*failure));
	strlcpy(failure->sqlstate, unpack_sql_state(error->sqlerrcode), sizeof(failure->sqlstate));
	strlcpy(failure->code, failure->sqlstate, sizeof(failure->code));
	if (error->message != NULL)
		failure->message = outbox_kept_error_message(error->message, strlen(error->message));
	outbox_kept_error_take_constraint(error, &failure->constraint);
	batch->interruption = outbox_handler_interruption();
	if (batch->interruption == INTERRUPTED_TIME_LIMIT)
		strlcpy(failure->code, OUTBOX_CODE_HANDLER_TIMEOUT, sizeof(failure->code));
	else if (error->sqlerrcode == outbox_handler_request.sqlerrcode)
	{
		failure->asked = error->sqlerrcode == ERRCODE_OUTBOX_RETRY_AFTER ?
			ASKED_RETRY_AFTER : ASKED_FAIL_PERMANENTLY;
		failure->delay = outbox_handler_request.delay;
		failure->count_attempt = outbox_handler_request.count_attempt;
		if (outbox_handler_request.code[0] != '\0')
			strlcpy(failure->code, outbox_handler_request.code, sizeof(failure->code));
	}
}

/* Ours alone?  Then it is raised. */
static bool
is_own_error(const OutboxBatch *batch, const ErrorData *error)
{
	if (batch->stage == STAGE_RECEIPTS)
		return error->sqlerrcode != ERRCODE_UNIQUE_VIOLATION && error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE;
	return batch->stage == STAGE_ASSEMBLY || batch->count == 0;
}

/* Its texts may be too large to be copied; the code is not. */
static ErrorData *
copy_error(void)
{
	ErrorData  *volatile error = NULL;
	int			code = geterrcode();

	PG_TRY();
	{
		error = CopyErrorData();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(batch_context);
		error = palloc0(sizeof(ErrorData));
		error->elevel = ERROR;
		error->sqlerrcode = code;
		error->assoc_context = batch_context;
	}
	PG_END_TRY();
	return error;
}

static void
take_failure(OutboxBatch *batch, Run *run)
{
	ErrorData  *error;

	outbox_handler_running = false;
	MemoryContextSwitchTo(batch_context);
	error = copy_error();
	FlushErrorState();
	batch->failed = true;
	batch->failed_index = batch->stage == STAGE_HANDLER ? run->running : (batch->count == 1 ? 0 : -1);
	batch->failed_count = batch->stage == STAGE_HANDLER && run->running >= 0 ? run->running_count : batch->count;
	describe_failure(batch, error);
	AbortCurrentTransaction();
	MemoryContextSwitchTo(batch_context);
	outbox_handler_clean();
	if (is_own_error(batch, error) && batch->interruption != INTERRUPTED_SHUTDOWN)
		ReThrowError(error);
}

void
outbox_batch_run(OutboxBatch *batch)
{
	Run		   *run;
	OutboxDelivery started = {0};

	Assert(batch->limit > 0 && batch->lane_limit > 0);
	if (batch->source == BATCH_STARTED)
		started = batch->deliveries[0];
	if (batch_context == NULL)
	{
		/* the first block is kept: an ordinary batch or call asks the system for nothing */
		batch_context = AllocSetContextCreate(TopMemoryContext, "outbox batch",
											  0, BATCH_BLOCK_BYTES, 8 * BATCH_BLOCK_BYTES);
		call_context = AllocSetContextCreate(TopMemoryContext, "outbox handler call",
											 0, BATCH_BLOCK_BYTES, 8 * BATCH_BLOCK_BYTES);
	}
	MemoryContextReset(batch_context);
	MemoryContextReset(call_context);
	MemoryContextSwitchTo(batch_context);
	run = palloc0(sizeof(Run));
	run->batch = batch;
	run->running = -1;
	batch->deliveries = palloc(batch->limit * sizeof(OutboxDelivery));
	batch->deliveries[0] = started;
	batch->count = batch->nparked = batch->completed = batch->moved = 0;
	batch->failed = batch->barred = false;
	batch->stage = STAGE_ASSEMBLY;
	batch->interruption = INTERRUPTED_NOT;
	batch->interrupted_times = 0;

	PG_TRY();
	{
		run_transaction(run);
	}
	PG_CATCH();
	{
		take_failure(batch, run);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(batch_context);
	if (!batch->failed)
		outbox_handler_clean();
}
