/*
 * event_log.c - write events into the log, and look one up.
 *
 * An event is a row in the segment that its id falls into, written in the
 * transaction at hand by direct table access: no plan, no rights needed on
 * the table, nothing that another publisher would wait for.  After the commit
 * the router is woken.
 *
 * The transaction id is taken before the segment is looked up: sealing a
 * segment rests on that order (segment.c).
 */
#include "outbox.h"

#include "access/heapam.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"
#include "utils/xid8.h"

#include "dedup.h"
#include "event_id.h"
#include "event_log.h"
#include "extension.h"
#include "segment.h"
#include "settings.h"
#include "shmem.h"
#include "store.h"
#include "wakeup.h"

/* many events at once: the table that is being written */
typedef struct Target
{
	OutboxSegment segment;
	OutboxWriter *writer;		/* NULL: none yet */
} Target;

/* ---------------------------------------------------------------- ids */

/*
 * The highest number of a table whose primary key is drawn from the same clock, visible or not; as with ids, none that is
 * further ahead than the clock may be.
 */
static void
merge_highest_number(const char *relname)
{
	Oid			relid = outbox_extension_relid(relname);
	OutboxScan	scan;
	bool		isnull;

	outbox_store_begin_scan(&scan, relid, outbox_store_primary_key(relid), SnapshotAny, 1);
	scan.scan->ignore_killed_tuples = false;
	outbox_store_set_key(&scan, 0, BTLessStrategyNumber,
						 Int64GetDatum((int64) outbox_event_id_time_from(outbox_settings_now() + USECS_PER_HOUR)));
	outbox_store_rescan(&scan);
	if (outbox_store_next(&scan, false))
		outbox_shmem_merge_id_time((uint64) Max(DatumGetInt64(slot_getattr(scan.slot, 1, &isnull)), 0));
	outbox_store_end_scan(&scan);
}

/*
 * Before the first id, or number, that a server start gives out for a database, the clock learns of the highest
 * ones that it has: this server's may be behind the one that gave them out.  Whoever comes before that is done, does it too.
 */
static void
merge_highest_id(void)
{
	static bool merged_here = false;
	OutboxDatabase *database;
	pg_uuid_t	highest;

	if (merged_here)
		return;
	database = outbox_shmem_my_database();
	if (database == NULL)
		database = outbox_shmem_ensure_database(MyDatabaseId);
	if (database == NULL || !database->ids_merged)
	{
		if (outbox_segment_highest_id(&highest))
			outbox_shmem_merge_id_time(outbox_event_id_time_of(&highest));
		merge_highest_number("batch");
		merge_highest_number("exception_count");
		if (database != NULL)
			database->ids_merged = true;
	}
	merged_here = true;
}

static uint64
random_bits(void)
{
	static uint64 bits[64];
	static int	left = 0;

	if (left == 0)
	{
		if (!pg_strong_random(bits, sizeof(bits)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
		left = lengthof(bits);
	}
	return bits[--left];
}

/* ---------------------------------------------------------------- one row */

/* The columns that depend on the moment, and on the transaction. */
static void
complete_draft(OutboxDraft *draft, pg_uuid_t *id, TimestampTz now)
{
	OutboxIncarnation incarnation;

	outbox_extension_incarnation(&incarnation);
	draft->values[EV_EVENT_ID] = UUIDPGetDatum(id);
	draft->nulls[EV_EVENT_ID] = false;
	draft->values[EV_PUBLISHED_AT] = TimestampTzGetDatum(now);
	draft->nulls[EV_PUBLISHED_AT] = false;
	if (draft->nulls[EV_OCCURRED_AT])
		draft->values[EV_OCCURRED_AT] = TimestampTzGetDatum(now);
	draft->nulls[EV_OCCURRED_AT] = false;
	draft->values[EV_XID] = FullTransactionIdGetDatum(GetTopFullTransactionId());
	draft->nulls[EV_XID] = false;
	draft->values[EV_INCARNATION] = Int32GetDatum(incarnation.incarnation);
	draft->nulls[EV_INCARNATION] = false;
}

/*
 * True when the event is to be written; false when an earlier one has its dedup key, whose id is then in *id.
 */
static bool
claim_dedup_key(const OutboxDraft *draft, pg_uuid_t *id, TimestampTz now)
{
	OutboxDedupClaim claim;
	bool		first;

	if (draft->nulls[EV_DEDUP_KEY])
		return true;
	claim.tenant_id = draft->nulls[EV_TENANT_ID] ? CStringGetTextDatum("") : draft->values[EV_TENANT_ID];
	claim.event_type = draft->values[EV_EVENT_TYPE];
	claim.dedup_key = draft->values[EV_DEDUP_KEY];
	claim.published_at = now;
	claim.event_id = *id;
	outbox_guard_hash_payload(draft->values[EV_PAYLOAD], &claim.payload_hash);
	first = outbox_dedup_claim(&claim);
	*id = claim.event_id;
	return first;
}

static void
insert_index_entry(Relation rel, HeapTuple tuple, Oid indexid, Datum value, bool unique)
{
	Relation	index = index_open(indexid, RowExclusiveLock);
	bool		isnull = false;

	(void) index_insert(index, &value, &isnull, &tuple->t_self, rel,
						unique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO, false, BuildIndexInfo(index));
	index_close(index, NoLock);
}

/* Has the segment the two indexes that it was made with, and no other? */
static bool
has_plain_indexes(Relation rel, const OutboxSegment *segment)
{
	List	   *indexes = RelationGetIndexList(rel);
	bool		plain = list_length(indexes) == 2 &&
	list_member_oid(indexes, segment->event_log_pk) && list_member_oid(indexes, segment->event_log_xid);

	list_free(indexes);
	return plain;
}

static void
insert_event(OutboxDraft *draft, const pg_uuid_t *id)
{
	OutboxSegment segment;
	Relation	rel = outbox_segment_open_for_write(id, &segment);

	if (has_plain_indexes(rel, &segment))
	{
		HeapTuple	tuple = heap_form_tuple(RelationGetDescr(rel), draft->values, draft->nulls);

		heap_insert(rel, tuple, GetCurrentCommandId(true), 0, NULL);
		insert_index_entry(rel, tuple, segment.event_log_pk, draft->values[EV_EVENT_ID], true);
		insert_index_entry(rel, tuple, segment.event_log_xid, draft->values[EV_XID], false);
		heap_freetuple(tuple);
	}
	else
	{
		OutboxWriter *writer = outbox_store_open_writer(segment.event_log);

		outbox_store_put(writer, draft->values, draft->nulls);
		outbox_store_close_writer(writer);
	}
	table_close(rel, NoLock);
}

/* ---------------------------------------------------------------- many rows */

static void
close_target(Target *target)
{
	if (target->writer != NULL)
		outbox_store_close_writer(target->writer);
	target->writer = NULL;
}

/* The segment of an id; almost always the one at hand. */
static void
aim_at(Target *target, const pg_uuid_t *id)
{
	if (target->writer != NULL && outbox_event_id_compare(id, &target->segment.to) < 0)
		return;
	close_target(target);
	table_close(outbox_segment_open_for_write(id, &target->segment), NoLock);
	target->writer = outbox_store_open_writer(target->segment.event_log);
}

static Datum
copy_value(Datum value, Form_pg_attribute attribute)
{
	if (attribute->attlen == -1)
		return PointerGetDatum(PG_DETOAST_DATUM_COPY(value));
	return datumCopy(value, attribute->attbyval, attribute->attlen);
}

/* ---------------------------------------------------------------- what others call */

int64
outbox_event_log_draw_number(void)
{
	merge_highest_id();
	return (int64) outbox_shmem_next_id_time(1);
}

bool
outbox_event_log_append(OutboxDraft *draft, pg_uuid_t *id)
{
	TimestampTz now;

	merge_highest_id();
	now = outbox_settings_now();
	(void) GetTopFullTransactionId();
	outbox_event_id_make(outbox_shmem_next_id_time(1), random_bits(), id);
	if (!claim_dedup_key(draft, id, now))
		return false;
	complete_draft(draft, id, now);
	insert_event(draft, id);
	outbox_wakeup_router();
	return true;
}

void
outbox_event_log_append_all(int count, OutboxDraft *drafts, pg_uuid_t *ids, int *current)
{
	Target		target = {0};
	OutboxIdTime time;
	TimestampTz now;

	if (count == 0)
		return;
	merge_highest_id();
	now = outbox_settings_now();
	(void) GetTopFullTransactionId();
	time = outbox_shmem_next_id_time(count);
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		*current = i + 1;
		outbox_event_id_make(time + i, random_bits(), &ids[i]);
		if (!claim_dedup_key(&drafts[i], &ids[i], now))
			continue;
		complete_draft(&drafts[i], &ids[i], now);
		aim_at(&target, &ids[i]);
		outbox_store_put(target.writer, drafts[i].values, drafts[i].nulls);
	}
	close_target(&target);
	outbox_wakeup_router();
}

bool
outbox_event_log_find(const pg_uuid_t *id, bool latest, OutboxScan *scan)
{
	OutboxSegment segment;

	outbox_segment_find(id, &segment);
	do
	{
		outbox_store_begin_scan(scan, segment.event_log, segment.event_log_pk,
								latest ? SnapshotSelf : outbox_segment_snapshot(&segment), 1);
		outbox_store_set_key(scan, 0, BTEqualStrategyNumber, UUIDPGetDatum(id));
		outbox_store_rescan(scan);
		if (outbox_store_next(scan, true))
			return true;
		outbox_store_end_scan(scan);
	} while (outbox_segment_turn_to_kept(&segment));
	return false;
}

/* In SQL it would be a probe of every segment, since the planner cannot know that the ids are ranges. */
bool
outbox_event_log_read(const pg_uuid_t *id, int column, bool latest, Datum *value)
{
	OutboxScan	scan;
	bool		isnull;

	if (!outbox_event_log_find(id, latest, &scan))
		return false;
	*value = slot_getattr(scan.slot, column + 1, &isnull);
	if (!isnull)
		*value = copy_value(*value, TupleDescAttr(scan.slot->tts_tupleDescriptor, column));
	outbox_store_end_scan(&scan);
	return !isnull;
}
