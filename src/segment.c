/*
 * segment.c - the segments of the log and of the receipts: finding, making
 * and sealing them.
 *
 * outbox.segment is read whole into a cache of this backend, and again after
 * its relcache entry is invalidated: whoever changes the table sends that
 * message.  All changes happen under ShareUpdateExclusiveLock on outbox.event_log, which
 * ordinary publishers never take.
 *
 * A segment is sealed in two steps, since a publisher may hold on to what it has looked
 * up before: first it is marked as closing (past_xid), and a publisher that
 * finds it so takes the mark away; when every transaction that had begun
 * before the mark could be seen is over and routed, it is sealed.
 */
#include "outbox.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_index.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "event_id.h"
#include "extension.h"
#include "segment.h"
#include "segment_make.h"
#include "segment_worker.h"
#include "settings.h"
#include "store.h"

/* in place of a segment's name: the tables of what was kept of dropped ones */
#define KEPT			"kept"

/* a range that ended less than this ago may be written to: the clock of ids may step back within it */
#define GRACE_PERIOD	(2 * USECS_PER_HOUR)

/* columns of outbox.segment */
typedef enum SegmentColumn
{
	SEG_FROM_ID,
	SEG_TO_ID,
	SEG_NAME,
	SEG_PAST_XID,
	SEG_SEALED,
	SEG_CREATED_AT,
	SEG_ARCHIVED_AT,
	SEG_EVENTS_DROPPED_AT,
	SEGMENT_COLUMNS
} SegmentColumn;

typedef struct SegmentEntry
{
	OutboxSegment segment;		/* its relations are known once resolved */
	char		name[NAMEDATALEN];
	uint64		past_xid;		/* 0: not closing */
	bool		resolved;
} SegmentEntry;

typedef struct SegmentCache
{
	MemoryContext context;
	int			count;
	int			last;			/* the entry found last */
	SegmentEntry *entries;		/* by range */
} SegmentCache;

static SegmentCache cache;
static bool cache_valid = false;
static Oid	cache_relid = InvalidOid;
static uint64 cache_changes = 0;	/* counts what was invalidated */

static SegmentEntry *look_up(const pg_uuid_t *id);
static void provide(const pg_uuid_t *id);
static bool resolve(SegmentEntry *entry);

/* ---------------------------------------------------------------- cache */

static void
forget_segments(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == cache_relid)
	{
		cache_valid = false;
		cache_changes++;
		return;
	}
	for (int i = 0; i < cache.count; i++)
	{
		SegmentEntry *entry = &cache.entries[i];

		if (entry->resolved && (relid == entry->segment.event_log || relid == entry->segment.receipt_log))
		{
			entry->resolved = false;
			cache_changes++;
		}
	}
}

static void
read_entry(SegmentEntry *entry, TupleTableSlot *slot)
{
	bool		isnull;
	Datum		past_xid;

	slot_getallattrs(slot);
	memset(entry, 0, sizeof(SegmentEntry));
	entry->segment.from = *DatumGetUUIDP(slot->tts_values[SEG_FROM_ID]);
	entry->segment.to = *DatumGetUUIDP(slot->tts_values[SEG_TO_ID]);
	text_to_cstring_buffer(DatumGetTextPP(slot->tts_values[SEG_NAME]), entry->name, NAMEDATALEN);
	past_xid = slot_getattr(slot, SEG_PAST_XID + 1, &isnull);
	if (!isnull)
		entry->past_xid = U64FromFullTransactionId(DatumGetFullTransactionId(past_xid));
	entry->segment.sealed = DatumGetBool(slot->tts_values[SEG_SEALED]);
	entry->segment.kept = !slot->tts_isnull[SEG_EVENTS_DROPPED_AT];
}

/* The rows that the snapshot sees, into the current memory context. */
static void
read_segments(SegmentCache *new_cache, Snapshot snapshot)
{
	OutboxScan	scan;
	int			room = 64;

	new_cache->entries = palloc(room * sizeof(SegmentEntry));
	outbox_store_begin_scan(&scan, cache_relid, outbox_store_primary_key(cache_relid), snapshot, 0);
	outbox_store_rescan(&scan);
	while (outbox_store_next(&scan, true))
	{
		SegmentEntry entry;

		read_entry(&entry, scan.slot);
		/* without an MVCC snapshot, a row that is being replaced may show twice */
		if (new_cache->count > 0 &&
			outbox_event_id_compare(&entry.segment.from, &new_cache->entries[new_cache->count - 1].segment.from) == 0)
			new_cache->count--;
		if (new_cache->count == room)
		{
			room *= 2;
			new_cache->entries = repalloc(new_cache->entries, room * sizeof(SegmentEntry));
		}
		new_cache->entries[new_cache->count++] = entry;
	}
	outbox_store_end_scan(&scan);
}

/*
 * A SERIALIZABLE transaction must not leave predicate locks here, on which publishers would meet,
 * and reads with a snapshot that makes none.  That may miss a row that is being replaced just now,
 * which the lock in outbox_segment_provide() makes up for.
 */
static void
load_cache(void)
{
	static bool registered = false;
	MemoryContext caller = CurrentMemoryContext;
	SegmentCache new_cache = {0};
	uint64		changes;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(forget_segments, (Datum) 0);
		registered = true;
	}
	cache_relid = outbox_extension_relid("segment");
	new_cache.context = AllocSetContextCreate(caller, "outbox segments", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(new_cache.context);
	AcceptInvalidationMessages();
	changes = cache_changes;
	if (IsolationIsSerializable())
		read_segments(&new_cache, SnapshotSelf);
	else
	{
		Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());

		read_segments(&new_cache, snapshot);
		UnregisterSnapshot(snapshot);
	}
	MemoryContextSwitchTo(caller);

	MemoryContextSetParent(new_cache.context, CacheMemoryContext);
	if (cache.context != NULL)
		MemoryContextDelete(cache.context);
	cache = new_cache;
	cache_valid = (changes == cache_changes);
}

static bool
in_range(const SegmentEntry *entry, const pg_uuid_t *id)
{
	return outbox_event_id_compare(id, &entry->segment.from) >= 0 &&
		outbox_event_id_compare(id, &entry->segment.to) < 0;
}

/* The entry that holds an id, as far as the cache knows. */
static SegmentEntry *
look_up(const pg_uuid_t *id)
{
	int			low = 0;
	int			high = cache.count;

	if (cache.last < cache.count && in_range(&cache.entries[cache.last], id))
		return &cache.entries[cache.last];
	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (outbox_event_id_compare(&cache.entries[middle].segment.to, id) <= 0)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == cache.count || !in_range(&cache.entries[low], id))
		return NULL;
	cache.last = low;
	return &cache.entries[low];
}

/* ---------------------------------------------------------------- relations of a segment */

static Oid
find_table(const char *parent, const char *name)
{
	char		relname[NAMEDATALEN];

	snprintf(relname, sizeof(relname), "%s_%s", parent, name);
	return get_relname_relid(relname, get_namespace_oid(OUTBOX_SCHEMA, false));
}

/* Is it an index on just this column, of all rows? */
static bool
is_index_on(Relation index, int column)
{
	return index->rd_rel->relam == BTREE_AM_OID && index->rd_index->indisvalid &&
		index->rd_index->indnkeyatts == 1 && index->rd_index->indkey.values[0] == column + 1 &&
		heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL);
}

/* The primary key of a table, and its index on `column`; whatever they are called. */
static bool
find_indexes(Oid relid, Oid *primary_key, int column, Oid *on_column)
{
	Relation	rel = try_table_open(relid, AccessShareLock);
	List	   *indexes;
	ListCell   *cell;

	*primary_key = *on_column = InvalidOid;
	if (rel == NULL)
		return false;
	indexes = RelationGetIndexList(rel);
	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);

		if (index->rd_index->indisprimary)
			*primary_key = lfirst_oid(cell);
		else if (is_index_on(index, column))
			*on_column = lfirst_oid(cell);
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
	table_close(rel, AccessShareLock);
	return OidIsValid(*primary_key);
}

static void
report_damage(const SegmentEntry *entry)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_TABLE),
			 errmsg("segment \"%s\" of the event log is not complete", entry->name),
			 errdetail("The tables %s.event_log_%s and %s.receipt_log_%s, their primary keys and the index on xid belong together.",
					   OUTBOX_SCHEMA, entry->name, OUTBOX_SCHEMA, entry->name),
			 errhint("A dump that is being restored brings them at its end: then wait for it. When they were dropped on purpose, "
					 "drop what is left of them and delete the row of %s.segment: their events are lost.", OUTBOX_SCHEMA)));
}

/* False when the cache has changed meanwhile, and the entry with it. */
static bool
resolve(SegmentEntry *entry)
{
	uint64		changes = cache_changes;
	OutboxSegment segment = entry->segment;
	Oid			none;
	bool		complete;

	segment.event_log = find_table("event_log", segment.kept ? KEPT : entry->name);
	segment.receipt_log = find_table("receipt_log", entry->name);
	complete = OidIsValid(segment.event_log) && OidIsValid(segment.receipt_log) &&
		find_indexes(segment.event_log, &segment.event_log_pk, EV_XID, &segment.event_log_xid) &&
		find_indexes(segment.receipt_log, &segment.receipt_log_pk, -1, &none) &&
		(OidIsValid(segment.event_log_xid) || segment.kept);
	if (changes != cache_changes)
		return false;
	if (!complete)
		report_damage(entry);
	entry->segment = segment;
	entry->resolved = true;
	return true;
}

/* ---------------------------------------------------------------- finding */

/*
 * The entry of an id, with its relations; NULL when there is none in the table.
 */
static SegmentEntry *
find_entry(const pg_uuid_t *id)
{
	for (;;)
	{
		SegmentEntry *entry = NULL;

		CHECK_FOR_INTERRUPTS();
		if (cache_valid)
			entry = look_up(id);
		if (entry == NULL)
		{
			load_cache();
			entry = look_up(id);
		}
		if (entry == NULL)
			return NULL;
		if (entry->resolved || resolve(entry))
			return entry;
	}
}

/* May a publisher write to it? */
static bool
is_open(const SegmentEntry *entry)
{
	return entry != NULL && entry->past_xid == 0 && !entry->segment.sealed && !entry->segment.kept;
}

/* The id's segment is gone: what is left of it, and of its neighbours up to those that are there. */
static void
describe_kept(const pg_uuid_t *id, OutboxSegment *segment)
{
	Oid			none;

	memset(segment, 0, sizeof(*segment));
	memset(&segment->to, 0xff, sizeof(segment->to));
	segment->sealed = segment->kept = true;
	for (int i = 0; i < cache.count; i++)
	{
		OutboxSegment *other = &cache.entries[i].segment;

		if (outbox_event_id_compare(&other->to, id) <= 0)
			segment->from = other->to;
		else if (outbox_event_id_compare(&other->from, id) > 0)
		{
			segment->to = other->from;
			break;
		}
	}
	segment->event_log = outbox_extension_relid("event_log_" KEPT);
	segment->receipt_log = outbox_extension_relid("receipt_log_" KEPT);
	(void) find_indexes(segment->event_log, &segment->event_log_pk, -1, &none);
	(void) find_indexes(segment->receipt_log, &segment->receipt_log_pk, -1, &none);
}

/*
 * With the locks, retention cannot drop the tables any more; what it did before is seen then.
 */
static void
find_and_lock(const pg_uuid_t *id, OutboxSegment *segment, LOCKMODE events, LOCKMODE receipts)
{
	uint64		changes;

	do
	{
		SegmentEntry *entry = find_entry(id);

		changes = cache_changes;
		if (entry != NULL)
			*segment = entry->segment;
		else
			describe_kept(id, segment);
		if (events != NoLock)
			LockRelationOid(segment->event_log, events);
		LockRelationOid(segment->receipt_log, receipts);
	} while (changes != cache_changes);
}

void
outbox_segment_find(const pg_uuid_t *id, OutboxSegment *segment)
{
	find_and_lock(id, segment, AccessShareLock, AccessShareLock);
}

void
outbox_segment_find_receipts(const pg_uuid_t *id, OutboxSegment *segment)
{
	find_and_lock(id, segment, NoLock, RowExclusiveLock);
}

bool
outbox_segment_hold(const OutboxSegment *segment)
{
	OutboxSegment now;

	outbox_segment_find(&segment->from, &now);
	return now.event_log == segment->event_log;
}

bool
outbox_segment_turn_to_kept(OutboxSegment *segment)
{
	Oid			none;

	if (segment->kept)
		return false;
	segment->kept = true;
	segment->event_log = outbox_extension_relid("event_log_" KEPT);
	LockRelationOid(segment->event_log, AccessShareLock);
	(void) find_indexes(segment->event_log, &segment->event_log_pk, -1, &none);
	return true;
}

Snapshot
outbox_segment_snapshot(const OutboxSegment *segment)
{
	return segment->kept ? SnapshotSelf : GetActiveSnapshot();
}

/* For a publisher: made when it is missing. */
static void
find_or_make(const pg_uuid_t *id, OutboxSegment *segment)
{
	SegmentEntry *entry;

	while (entry = find_entry(id), !is_open(entry))
		provide(id);
	*segment = entry->segment;
}

/*
 * A look-up made before the lock may be out of date, and is repeated after it.
 */
Relation
outbox_segment_open_for_write(const pg_uuid_t *id, OutboxSegment *segment)
{
	for (;;)
	{
		Relation	rel;
		uint64		changes;
		Oid			relid;

		find_or_make(id, segment);
		changes = cache_changes;
		relid = segment->event_log;
		rel = try_table_open(relid, RowExclusiveLock);
		if (rel != NULL && changes == cache_changes)
			return rel;
		find_or_make(id, segment);
		if (rel != NULL && segment->event_log == relid)
			return rel;
		if (rel != NULL)
			table_close(rel, RowExclusiveLock);
	}
}

static bool
is_past(const SegmentEntry *entry, TimestampTz now)
{
	return outbox_event_id_time_to(outbox_event_id_time_of(&entry->segment.to)) < now - GRACE_PERIOD;
}

int
outbox_segment_list(bool unsealed_only, OutboxSegment **segments)
{
	TimestampTz now = outbox_settings_now();
	int			count;

retry:
	CHECK_FOR_INTERRUPTS();
	AcceptInvalidationMessages();
	if (!cache_valid)
		load_cache();
	*segments = palloc(Max(cache.count, 1) * sizeof(OutboxSegment));
	count = 0;
	for (int i = 0; i < cache.count; i++)
	{
		SegmentEntry *entry = &cache.entries[i];

		if (entry->segment.kept || (unsealed_only && entry->segment.sealed && is_past(entry, now)))
			continue;
		if (!entry->resolved && !resolve(entry))
			goto retry;
		(*segments)[count++] = entry->segment;
	}
	return count;
}

/*
 * A transaction's rows are visible a moment before its invalidations are sent, and
 * then a segment that it made is not in the cache yet.
 */
void
outbox_segment_refresh(void)
{
	OutboxScan	scan;

	AcceptInvalidationMessages();
	if (!cache_valid)
		load_cache();
	outbox_store_begin_scan(&scan, cache_relid, outbox_store_primary_key(cache_relid), GetActiveSnapshot(), 0);
	outbox_store_rescan(&scan);
	while (cache_valid && outbox_store_next(&scan, true))
	{
		SegmentEntry row;
		SegmentEntry *known;

		read_entry(&row, scan.slot);
		known = look_up(&row.segment.from);
		if (known == NULL || known->segment.sealed != row.segment.sealed || known->segment.kept != row.segment.kept)
			cache_valid = false;
	}
	outbox_store_end_scan(&scan);
}

/*
 * Ids that the clock will not go on from anyhow, more than an hour ahead
 * of the wall clock, are passed over.
 */
bool
outbox_segment_highest_id(pg_uuid_t *id)
{
	OutboxSegment *segments;
	int			count = outbox_segment_list(false, &segments);
	bool		found = false;
	pg_uuid_t	bound;

	outbox_event_id_floor(outbox_event_id_time_from(outbox_settings_now() + USECS_PER_HOUR), &bound);
	while (--count >= 0 && !found)
	{
		OutboxScan	scan;
		bool		isnull;

		if (outbox_event_id_compare(&segments[count].from, &bound) >= 0 || !outbox_segment_hold(&segments[count]))
			continue;
		outbox_store_begin_scan(&scan, segments[count].event_log, segments[count].event_log_pk, SnapshotAny, 1);
		scan.scan->ignore_killed_tuples = false;
		outbox_store_set_key(&scan, 0, BTLessStrategyNumber, UUIDPGetDatum(&bound));
		outbox_store_rescan(&scan);
		found = outbox_store_next(&scan, false);
		if (found)
			*id = *DatumGetUUIDP(slot_getattr(scan.slot, EV_EVENT_ID + 1, &isnull));
		outbox_store_end_scan(&scan);
	}
	pfree(segments);
	return found;
}

/* ---------------------------------------------------------------- making */

/* From and to of the segment that a time belongs to: the interval it lies in, cut where others begin or end. */
static void
choose_range(OutboxIdTime time, OutboxIdTime *from, OutboxIdTime *to)
{
	const OutboxIdTime interval = (OutboxIdTime) outbox_segment_interval * 60 * 1000 * 4096;

	*from = time / interval * interval;
	*to = *from + interval;
	for (int i = 0; i < cache.count; i++)
	{
		OutboxIdTime other_from = outbox_event_id_time_of(&cache.entries[i].segment.from);
		OutboxIdTime other_to = outbox_event_id_time_of(&cache.entries[i].segment.to);

		if (other_to <= time)
			*from = Max(*from, other_to);
		if (other_from > time)
			*to = Min(*to, other_from);
	}
}

/* YYYYMMDD, and _HHMI when the range does not begin at midnight; UTC. */
static void
choose_name(OutboxIdTime from, char *name)
{
	struct pg_tm tm;
	fsec_t		fsec;

	if (timestamp2tm(outbox_event_id_time_to(from), NULL, &tm, &fsec, NULL, NULL) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
				 errmsg("timestamp out of range")));
	if (tm.tm_hour == 0 && tm.tm_min == 0)
		snprintf(name, NAMEDATALEN, "%04d%02d%02d", tm.tm_year, tm.tm_mon, tm.tm_mday);
	else
		snprintf(name, NAMEDATALEN, "%04d%02d%02d_%02d%02d", tm.tm_year, tm.tm_mon, tm.tm_mday, tm.tm_hour, tm.tm_min);
}

bool
outbox_segment_lock_changes(void)
{
	return ConditionalLockRelationOid(outbox_extension_relid("event_log"), ShareUpdateExclusiveLock);
}

void
outbox_segment_announce_change(void)
{
	cache_relid = outbox_extension_relid("segment");
	CacheInvalidateRelcacheByRelid(cache_relid);
	CommandCounterIncrement();
}

static void
insert_segment_row(const char *name, const pg_uuid_t *from, const pg_uuid_t *to)
{
	OutboxWriter *writer = outbox_store_open_writer(cache_relid);
	Datum		values[SEGMENT_COLUMNS] = {0};
	bool		nulls[SEGMENT_COLUMNS] = {false};

	values[SEG_FROM_ID] = UUIDPGetDatum(from);
	values[SEG_TO_ID] = UUIDPGetDatum(to);
	values[SEG_NAME] = CStringGetTextDatum(name);
	nulls[SEG_PAST_XID] = nulls[SEG_ARCHIVED_AT] = nulls[SEG_EVENTS_DROPPED_AT] = true;
	values[SEG_SEALED] = BoolGetDatum(false);
	values[SEG_CREATED_AT] = TimestampTzGetDatum(outbox_settings_now());
	outbox_store_put(writer, values, nulls);
	outbox_store_close_writer(writer);
	outbox_segment_announce_change();
}

/* The segment of a time, which is not there; under the lock, with a fresh cache. */
static void
make_segment(OutboxIdTime time)
{
	OutboxIdTime from_time;
	OutboxIdTime to_time;
	pg_uuid_t	from;
	pg_uuid_t	to;
	char		name[NAMEDATALEN];

	choose_range(time, &from_time, &to_time);
	choose_name(from_time, name);
	outbox_event_id_floor(from_time, &from);
	outbox_event_id_floor(to_time, &to);
	outbox_extension_record_incarnation();
	outbox_segment_make_tables(name, &from, &to, false);
	insert_segment_row(name, &from, &to);
	ereport(DEBUG1, (errmsg_internal("made segment \"%s\" of the event log", name)));
}

/* The first time from now on that has no segment; false when there is none before `until`. */
static bool
find_gap(OutboxIdTime now, OutboxIdTime until, OutboxIdTime *gap)
{
	*gap = now;
	while (*gap < until)
	{
		pg_uuid_t	id;
		SegmentEntry *entry;

		outbox_event_id_floor(*gap, &id);
		entry = look_up(&id);
		if (entry == NULL)
			return true;
		*gap = outbox_event_id_time_of(&entry->segment.to);
	}
	return false;
}

/*
 * Not before the database is in use, nor while it is held: a dump that is being restored brings its
 * segments along, which ours would collide with.
 */
bool
outbox_segment_make_ahead(int days)
{
	OutboxIncarnation incarnation;
	TimestampTz now = outbox_settings_now();
	OutboxIdTime from = outbox_event_id_time_from(now);
	OutboxIdTime until = outbox_event_id_time_from(now + days * USECS_PER_DAY);
	OutboxIdTime gap;

	AcceptInvalidationMessages();
	outbox_extension_incarnation(&incarnation);
	if (!incarnation.recorded || incarnation.held)
		return false;
	if (!cache_valid)
		load_cache();
	if (!find_gap(from, until, &gap))
		return false;
	if (!ConditionalLockRelationOid(outbox_extension_relid("event_log"), ShareUpdateExclusiveLock) ||
		!ConditionalLockRelationOid(outbox_extension_relid("receipt_log"), ShareUpdateExclusiveLock))
		return false;
	load_cache();
	if (!find_gap(from, until, &gap))
		return false;
	make_segment(gap);
	return true;
}

/* Under the lock: nobody else changes the row.  What is not sealed any more has its events, and is to be archived again. */
static void
change_segment_row(const pg_uuid_t *from, uint64 past_xid, bool sealed)
{
	OutboxScan	scan;
	Datum		values[SEGMENT_COLUMNS];
	bool		nulls[SEGMENT_COLUMNS];
	OutboxWriter *writer;

	outbox_store_begin_scan(&scan, cache_relid, outbox_store_primary_key(cache_relid), SnapshotSelf, 1);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, UUIDPGetDatum(from));
	outbox_store_rescan(&scan);
	if (!outbox_store_next(&scan, true))
		elog(ERROR, "a segment of the event log is not there any more");
	slot_getallattrs(scan.slot);
	memcpy(values, scan.slot->tts_values, sizeof(values));
	memcpy(nulls, scan.slot->tts_isnull, sizeof(nulls));
	values[SEG_PAST_XID] = FullTransactionIdGetDatum(FullTransactionIdFromU64(past_xid));
	nulls[SEG_PAST_XID] = (past_xid == 0);
	values[SEG_SEALED] = BoolGetDatum(sealed);
	if (!sealed)
		nulls[SEG_ARCHIVED_AT] = nulls[SEG_EVENTS_DROPPED_AT] = true;
	if (!outbox_store_delete(scan.rel, &scan.slot->tts_tid))
		elog(ERROR, "a segment of the event log was changed by somebody else");
	writer = outbox_store_open_writer(cache_relid);
	outbox_store_put(writer, values, nulls);
	outbox_store_close_writer(writer);
	outbox_store_end_scan(&scan);
	outbox_segment_announce_change();
}

static void
adopt(const char *parent, const char *name)
{
	Oid			relid = find_table(parent, name);

	if (OidIsValid(relid))
		outbox_segment_make_dependent(relid, parent);
}

void
outbox_segment_adopt_all(void)
{
	AcceptInvalidationMessages();
	if (!cache_valid)
		load_cache();
	for (int i = 0; i < cache.count; i++)
	{
		adopt("event_log", cache.entries[i].name);
		adopt("receipt_log", cache.entries[i].name);
	}
}

/* ---------------------------------------------------------------- what a publisher needs */

/* One that was taken to be past, before the clock went back; retention may have dropped its events since. */
static void
open_again(const SegmentEntry *past)
{
	SegmentEntry entry = *past;

	if (entry.segment.kept)
		outbox_segment_make_tables(entry.name, &entry.segment.from, &entry.segment.to, true);
	change_segment_row(&entry.segment.from, 0, false);
}

/*
 * In this transaction: make the segment of an id when it is missing, or open it again.  False when the lock was not to be had.
 */
bool
outbox_segment_provide(const pg_uuid_t *id, bool wait)
{
	Oid			event_log = outbox_extension_relid("event_log");
	SegmentEntry *entry;

	if (wait)
		LockRelationOid(event_log, ShareUpdateExclusiveLock);
	else if (!ConditionalLockRelationOid(event_log, ShareUpdateExclusiveLock) ||
			 !ConditionalLockRelationOid(outbox_extension_relid("receipt_log"), ShareUpdateExclusiveLock))
		return false;
	load_cache();
	entry = look_up(id);
	if (entry == NULL)
		make_segment(outbox_event_id_time_of(id));
	else if (!is_open(entry))
		open_again(entry);
	return true;
}

/*
 * Preferably in a transaction of its own, so that nobody has to wait for the end of this one; but
 * in this one when no process can be had for it, or none would see our tables yet.
 */
static void
provide(const pg_uuid_t *id)
{
	if (outbox_segment_worker_provide(id))
	{
		load_cache();
		if (is_open(look_up(id)))
			return;
	}
	(void) outbox_segment_provide(id, true);
}

/* ---------------------------------------------------------------- sealing */

/* The ranges that begin here are past and not sealed, with this mark; palloc'd. */
static int
list_past(uint64 past_xid, pg_uuid_t **from)
{
	TimestampTz now = outbox_settings_now();
	int			n = 0;

	*from = palloc(Max(1, cache.count) * sizeof(pg_uuid_t));
	for (int i = 0; i < cache.count; i++)
	{
		SegmentEntry *entry = &cache.entries[i];

		if (!entry->segment.sealed && entry->past_xid == past_xid && is_past(entry, now))
			(*from)[n++] = entry->segment.from;
	}
	return n;
}

/* The oldest past one that is not sealed, or NULL. */
static SegmentEntry *
oldest_past(void)
{
	int			i;

	for (i = 0; i < cache.count && cache.entries[i].segment.sealed; i++)
		;
	return i < cache.count && is_past(&cache.entries[i], outbox_settings_now()) ? &cache.entries[i] : NULL;
}

static void
change_rows(int n, const pg_uuid_t *from, uint64 past_xid, bool sealed)
{
	for (int i = 0; i < n; i++)
		change_segment_row(&from[i], past_xid, sealed);
}

/*
 * One step for those that need one.  The mark names the transaction that made it.
 * Only once that is committed, here seen by a later call, does everyone that
 * looks up the segment see it; whoever has not, has begun before `confirmed`.
 */
bool
outbox_segment_seal(uint64 horizon_xid)
{
	static uint64 confirmed_mark = 0;
	static uint64 confirmed = 0;
	SegmentEntry *entry;
	uint64		mark;
	pg_uuid_t  *from;
	int			n;

	AcceptInvalidationMessages();
	if (!cache_valid)
		load_cache();
	if (oldest_past() == NULL || !outbox_segment_lock_changes())
		return false;
	load_cache();
	entry = oldest_past();
	if (entry == NULL)
		return false;
	mark = entry->past_xid;
	n = list_past(0, &from);
	if (n > 0)
	{
		change_rows(n, from, U64FromFullTransactionId(GetTopFullTransactionId()), false);
		return true;
	}
	if (mark == U64FromFullTransactionId(GetTopFullTransactionIdIfAny()))
		return true;
	if (mark != confirmed_mark)
	{
		confirmed_mark = mark;
		confirmed = U64FromFullTransactionId(ReadNextFullTransactionId());
		return false;
	}
	if (horizon_xid < confirmed)
		return false;
	n = list_past(mark, &from);
	change_rows(n, from, mark, true);
	return true;
}
