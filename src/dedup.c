/*
 * dedup.c - one event for one dedup key, within the window.
 *
 * Insert first, as INSERT ... ON CONFLICT does it: a speculative row that is
 * taken back when another one turns out to have the key.  Who has the key is read
 * by what is true now and not by the caller's snapshot, so the answer is the
 * same at every isolation level: a repeated publish is no serialization
 * failure, and publishers of different keys never meet.
 *
 * An event whose key is older than the window is as good as forgotten: its row is
 * replaced.
 */
#include "outbox.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "dedup.h"
#include "extension.h"
#include "settings.h"
#include "store.h"

/* columns of outbox.dedup */
typedef enum DedupColumn
{
	DEDUP_TENANT_ID,
	DEDUP_EVENT_TYPE,
	DEDUP_KEY,
	DEDUP_EVENT_ID,
	DEDUP_PAYLOAD_HASH,
	DEDUP_PUBLISHED_AT
} DedupColumn;

typedef struct DedupTable
{
	Relation	rel;
	ResultRelInfo *rri;
	EState	   *estate;
	TupleTableSlot *row;		/* ours */
	TupleTableSlot *first;		/* the one that has the key */
} DedupTable;

static void
open_table(DedupTable *table)
{
	table->rel = table_open(outbox_extension_relid("dedup"), RowExclusiveLock);
	table->estate = CreateExecutorState();
	table->rri = makeNode(ResultRelInfo);
	InitResultRelInfo(table->rri, table->rel, 0, NULL, 0);
	ExecOpenIndices(table->rri, true);
	table->row = table_slot_create(table->rel, NULL);
	table->first = table_slot_create(table->rel, NULL);
}

static void
close_table(DedupTable *table)
{
	ExecDropSingleTupleTableSlot(table->row);
	ExecDropSingleTupleTableSlot(table->first);
	ExecCloseIndices(table->rri);
	FreeExecutorState(table->estate);
	table_close(table->rel, NoLock);
}

static void
fill_row(TupleTableSlot *row, OutboxDedupClaim *claim)
{
	ExecClearTuple(row);
	memset(row->tts_isnull, false, row->tts_tupleDescriptor->natts * sizeof(bool));
	row->tts_values[DEDUP_TENANT_ID] = claim->tenant_id;
	row->tts_values[DEDUP_EVENT_TYPE] = claim->event_type;
	row->tts_values[DEDUP_KEY] = claim->dedup_key;
	row->tts_values[DEDUP_EVENT_ID] = UUIDPGetDatum(&claim->event_id);
	row->tts_values[DEDUP_PAYLOAD_HASH] = UUIDPGetDatum(&claim->payload_hash);
	row->tts_values[DEDUP_PUBLISHED_AT] = TimestampTzGetDatum(claim->published_at);
	ExecStoreVirtualTuple(row);
}

/* False when another row has taken the key at the same moment; ours is gone then. */
static bool
insert_speculatively(DedupTable *table)
{
	uint32		token = SpeculativeInsertionLockAcquire(GetCurrentTransactionId());
	bool		conflict = false;

	table_tuple_insert_speculative(table->rel, table->row, GetCurrentCommandId(true), 0, NULL, token);
	(void) outbox_compat_insert_index_tuples(table->rri, table->row, table->estate, true, &conflict, NIL);
	table_tuple_complete_speculative(table->rel, table->row, token, !conflict);
	SpeculativeInsertionLockRelease(GetCurrentTransactionId());
	return !conflict;
}

static Datum
first_value(DedupTable *table, DedupColumn column)
{
	bool		isnull;

	return slot_getattr(table->first, column + 1, &isnull);
}

/* Is the row that has the key too old to count? */
static bool
is_outdated(DedupTable *table, TimestampTz now)
{
	TimestampTz published_at = DatumGetTimestampTz(first_value(table, DEDUP_PUBLISHED_AT));

	return published_at < now - (int64) outbox_dedup_window * USECS_PER_MINUTE;
}

static void
check_same_payload(DedupTable *table, const OutboxDedupClaim *claim)
{
	pg_uuid_t  *hash = DatumGetUUIDP(first_value(table, DEDUP_PAYLOAD_HASH));

	if (memcmp(hash->data, claim->payload_hash.data, UUID_LEN) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNIQUE_VIOLATION),
				 errmsg("another payload was published under this dedup_key"),
				 errdetail("The event with the id %s has the key.",
						   DatumGetCString(DirectFunctionCall1(uuid_out, first_value(table, DEDUP_EVENT_ID)))),
				 errhint("Take a new dedup_key for what is another event.")));
}

/*
 * Each turn ends in one of three ways: the key is ours, it is another's, or the other row went
 * away in between.  The check waits for open transactions.
 */
static bool
claim_key(DedupTable *table, OutboxDedupClaim *claim)
{
	for (;;)
	{
		ItemPointerData conflict;

		CHECK_FOR_INTERRUPTS();
		ResetPerTupleExprContext(table->estate);
		fill_row(table->row, claim);
		if (outbox_compat_check_index_constraints(table->rri, table->row, table->estate, &conflict))
		{
			if (insert_speculatively(table))
				return true;
			continue;
		}
		if (!table_tuple_fetch_row_version(table->rel, &conflict, SnapshotAny, table->first))
			continue;
		if (!is_outdated(table, claim->published_at))
		{
			check_same_payload(table, claim);
			claim->event_id = *DatumGetUUIDP(first_value(table, DEDUP_EVENT_ID));
			return false;
		}
		(void) outbox_store_delete(table->rel, &conflict);
	}
}

bool
outbox_dedup_claim(OutboxDedupClaim *claim)
{
	DedupTable	table;
	bool		first;

	open_table(&table);
	first = claim_key(&table, claim);
	close_table(&table);
	return first;
}
