/*
 * dedup.c - one event for one dedup key, within the window.
 *
 * Who has the key is the same at every isolation level (first_row.c): a repeated publish is no
 * serialization failure, and publishers of different keys never meet.
 *
 * An event whose key is older than the window is as good as forgotten: its row is
 * replaced.
 */
#include "outbox.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "dedup.h"
#include "first_row.h"
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

static Datum
first_value(OutboxFirstRow *table, DedupColumn column)
{
	bool		isnull;

	return slot_getattr(table->first, column + 1, &isnull);
}

/* Is the row that has the key too old to count? */
static bool
is_outdated(OutboxFirstRow *table, TimestampTz now)
{
	TimestampTz published_at = DatumGetTimestampTz(first_value(table, DEDUP_PUBLISHED_AT));

	return published_at < now - (int64) outbox_dedup_window * USECS_PER_MINUTE;
}

static void
check_same_payload(OutboxFirstRow *table, const OutboxDedupClaim *claim)
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

/* True when the key is ours: nobody had it, or the event of whoever had it is as good as forgotten. */
static bool
claim_key(OutboxFirstRow *table, OutboxDedupClaim *claim)
{
	Datum		values[] = {
		[DEDUP_TENANT_ID] = claim->tenant_id,
		[DEDUP_EVENT_TYPE] = claim->event_type,
		[DEDUP_KEY] = claim->dedup_key,
		[DEDUP_EVENT_ID] = UUIDPGetDatum(&claim->event_id),
		[DEDUP_PAYLOAD_HASH] = UUIDPGetDatum(&claim->payload_hash),
		[DEDUP_PUBLISHED_AT] = TimestampTzGetDatum(claim->published_at),
	};

	while (!outbox_first_row_insert(table, values))
	{
		if (!is_outdated(table, claim->published_at))
		{
			check_same_payload(table, claim);
			claim->event_id = *DatumGetUUIDP(first_value(table, DEDUP_EVENT_ID));
			return false;
		}
		(void) outbox_store_delete(table->rel, &table->first_tid);
	}
	return true;
}

bool
outbox_dedup_claim(OutboxDedupClaim *claim)
{
	OutboxFirstRow table;
	bool		first;

	outbox_first_row_open(&table, "dedup");
	first = claim_key(&table, claim);
	outbox_first_row_close(&table);
	return first;
}
