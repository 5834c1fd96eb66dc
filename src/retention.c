/*
 * retention.c - takes segments that are past their time out of the log; retired.c takes them off the disk.
 *
 * What is still needed is never lost.  An event with an open delivery is moved to
 * event_log_kept, its row unchanged, in the transaction that drops the segment; when
 * there are many of them, the segment stays.  Receipts follow when their own time is up.
 *
 * Whoever makes an event needed again (a replay, a claim, a backfill) has read its row, and
 * so holds a lock on the segment until its transaction ends.  So the segment is locked
 * first, by a lock that is only ever tried for, so that nobody has to wait behind us; and then, with
 * the lock, it is looked at what is needed.  Who comes later finds the row where it has been
 * moved to.  Since looking through a backlog takes time, it is done before the lock, and with
 * it only for what the lanes were given since.
 */
#include "outbox.h"

#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "parser/parse_func.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "event_id.h"
#include "extension.h"
#include "retention.h"
#include "retired.h"
#include "segment.h"
#include "settings.h"
#include "shmem.h"
#include "store.h"
#include "tenant.h"

#define KEPT_MAX		1000	/* events moved out of a segment; with more of them it stays */

typedef struct Expired
{
	pg_uuid_t	from;
	pg_uuid_t	to;
	char	   *name;
	bool		sealed;
	bool		archived;
} Expired;

/* the open deliveries found, and how far the lanes were looked through */
typedef struct Needed
{
	int			count;			/* KEPT_MAX + 1: too many */
	pg_uuid_t	ids[KEPT_MAX + 1];
	Datum		seen[3];		/* int4[], int4[], int8[]: subscription, lane, position */
} Needed;

static OutboxStatement select_expired = {
	"select from_id, to_id, name, sealed, archived_at is not null from outbox.segment"
	" where events_dropped_at is null and to_id <= $1 and from_id > $2 order by from_id limit 1",
	2, {UUIDOID, UUIDOID}
};

static OutboxStatement select_emptied = {
	"select from_id, to_id, name, sealed, archived_at is not null from outbox.segment"
	" where events_dropped_at is not null and to_id <= $1 and from_id > $2 order by from_id limit 1",
	2, {UUIDOID, UUIDOID}
};

/* a backfill that has not passed it, or one that goes through the log anew; or it is not known how far it is */
static OutboxStatement select_backfill = {
	"select s.subscription from outbox.subscription s left join outbox.subscription_state t using (subscription_id)"
	" where t.subscription_id is null"
	" or (select count(*) from outbox.lane l where l.subscription_id = s.subscription_id and l.lane >= s.first_lane) < s.lanes"
	" or not t.joined and (t.catch_up_from is null and s.start_at < $2 or t.catch_up_from::text = '1:1:')"
	" and (t.catch_up_through is null or t.catch_up_through < $1) limit 1",
	2, {UUIDOID, TIMESTAMPTZOID}
};

static OutboxStatement select_ends = {
	"select array_agg(l.subscription_id), array_agg(l.lane),"
	" array_agg(coalesce((select e.position from outbox.lane_entry e where e.subscription_id = l.subscription_id"
	"  and e.lane = l.lane order by e.position desc limit 1), l.base)) from outbox.lane l"
};

/*
 * The events of [$1, $2) that a delivery needs; in one statement, for a delivery that goes from one
 * place to the next meanwhile.  Of the lanes, what lies beyond the positions given too.
 */
static OutboxStatement select_needed = {
	"select x.event_id from outbox.subscription s join outbox.delivery_exception x"
	"  on x.subscription_id = s.subscription_id and x.event_id >= $1 and x.event_id < $2 where x.status <> 'DISCARDED'"
	" union all"
	" select d.event_id from outbox.delayed d where d.event_id >= $1 and d.event_id < $2"
	" union all"
	" select c.event_id from outbox.lease l cross join lateral pg_catalog.unnest(l.event_ids) as c (event_id)"
	"  where l.expires_at >= $7 and c.event_id >= $1 and c.event_id < $2"
	" union all"
	" select p.event_id from outbox.parked p join outbox.gate g on g.gate_id = p.gate_id and p.position > g.through"
	"  where p.event_id >= $1 and p.event_id < $2"
	" union all"
	" select e.event_id from (select l.subscription_id, l.lane, greatest(l.base, seen.position, (select c.position from outbox.lane_cursor c"
	"    where c.subscription_id = l.subscription_id and c.lane = l.lane order by c.position desc limit 1)) as done"
	"   from outbox.lane l left join rows from (pg_catalog.unnest($3), pg_catalog.unnest($4), pg_catalog.unnest($5))"
	"    as seen (subscription_id, lane, position) on seen.subscription_id = l.subscription_id and seen.lane = l.lane offset 0) l"
	"  cross join lateral (select i.event_id from outbox.lane_entry i where i.subscription_id = l.subscription_id and i.lane = l.lane"
	"   and i.position > l.done and i.event_id >= $1 and i.event_id < $2 offset 0) e"
	" limit $6",
	7, {UUIDOID, UUIDOID, INT4ARRAYOID, INT4ARRAYOID, INT8ARRAYOID, INT8OID, TIMESTAMPTZOID}
};

/*
 * The same, of the events given.  Where no index leads to them, every open delivery is held against all of them:
 * "(… in (select …)) is true" looks into a hash table, whereas "= any ($1)" goes through the array each time.
 */
static OutboxStatement select_needed_of = {
	"select x.event_id from outbox.subscription s join outbox.delivery_exception x"
	"  on x.subscription_id = s.subscription_id and x.event_id = any ($1) where x.status <> 'DISCARDED'"
	" union all"
	" select d.event_id from outbox.delayed d where (d.event_id in (select pg_catalog.unnest($1))) is true"
	" union all"
	" select c.event_id from outbox.lease l cross join lateral pg_catalog.unnest(l.event_ids) as c (event_id)"
	"  where l.expires_at >= $2 and (c.event_id in (select pg_catalog.unnest($1))) is true"
	" union all"
	" select p.event_id from outbox.parked p join outbox.gate g on g.gate_id = p.gate_id and p.position > g.through"
	"  where (p.event_id in (select pg_catalog.unnest($1))) is true"
	" union all"
	" select e.event_id from outbox.lane l join outbox.lane_entry e on e.subscription_id = l.subscription_id"
	"  and e.lane = l.lane and e.position > greatest(l.base, (select c.position from outbox.lane_cursor c"
	"   where c.subscription_id = l.subscription_id and c.lane = l.lane order by c.position desc limit 1))"
	"  where (e.event_id in (select pg_catalog.unnest($1))) is true",
	2, {UUIDARRAYOID, TIMESTAMPTZOID}
};

static OutboxStatement mark_archived = {
	"update outbox.segment set archived_at = $2 where from_id = $1 and sealed",
	2, {UUIDOID, TIMESTAMPTZOID}
};

static OutboxStatement mark_dropped = {
	"update outbox.segment set events_dropped_at = $2 where from_id = $1 and sealed and events_dropped_at is null",
	2, {UUIDOID, TIMESTAMPTZOID}
};

static OutboxStatement delete_segment = {
	"delete from outbox.segment where from_id = $1 and events_dropped_at is not null",
	1, {UUIDOID}
};

static OutboxStatement select_kept = {
	"select k.event_id from only outbox.event_log_kept k where k.event_id >= $1 and k.event_id < $2 order by k.event_id",
	2, {UUIDOID, UUIDOID}
};

/* candidates first, by what needs them most often */
static OutboxStatement select_settled = {
	"select k.event_id from only outbox.event_log_kept k where k.event_id > $1 and not exists ("
	" select from outbox.subscription s join outbox.delivery_exception x on x.subscription_id = s.subscription_id"
	"  and x.event_id = k.event_id where x.status <> 'DISCARDED') order by k.event_id limit $2",
	2, {UUIDOID, INT4OID}
};

static OutboxStatement delete_kept = {
	"delete from only outbox.event_log_kept where event_id = any ($1)",
	1, {UUIDARRAYOID}
};

static OutboxStatement delete_kept_receipts = {
	"delete from only outbox.receipt_log_kept where ctid = any (array(select r.ctid from only outbox.receipt_log_kept r"
	" where r.event_id < $1 and not exists (select from only outbox.event_log_kept k where k.event_id = r.event_id)"
	" order by r.event_id limit $2))",
	2, {UUIDOID, INT4OID}
};

/* ---------------------------------------------------------------- segments */

/* The id before which everything is older than so many minutes. */
static void
horizon_id(int minutes, pg_uuid_t *id)
{
	TimestampTz at = outbox_settings_now() - (int64) minutes * USECS_PER_MINUTE;

	outbox_event_id_floor(outbox_event_id_time_from(at), id);
}

/* The next one to look at in this pass. */
static bool
next_segment(OutboxPass *pass, OutboxStatement *statement, int minutes, Expired *segment)
{
	pg_uuid_t	horizon;
	Datum		args[2] = {UUIDPGetDatum(&horizon), UUIDPGetDatum(&pass->after)};
	bool		isnull;

	horizon_id(minutes, &horizon);
	if (outbox_store_run(statement, args, NULL, 1) == 0)
		return false;
	segment->from = *DatumGetUUIDP(outbox_store_value(0, 1, &isnull));
	segment->to = *DatumGetUUIDP(outbox_store_value(0, 2, &isnull));
	segment->name = outbox_store_text(0, 3);
	segment->sealed = DatumGetBool(outbox_store_value(0, 4, &isnull));
	segment->archived = DatumGetBool(outbox_store_value(0, 5, &isnull));
	pass->after = segment->from;
	return true;
}

static Oid
table_of(const char *parent, const Expired *segment)
{
	return outbox_extension_relid(psprintf("%s_%s", parent, segment->name));
}

static bool
has_archive_function(void)
{
	return outbox_archive_function != NULL && outbox_archive_function[0] != '\0';
}

/* ---------------------------------------------------------------- what is needed */

/* How far the lanes go just now. */
static void
look_at_ends(Needed *needed)
{
	bool		isnull;

	(void) outbox_store_run(&select_ends, NULL, NULL, 1);
	for (int i = 0; i < lengthof(needed->seen); i++)
	{
		Datum		array = outbox_store_value(0, i + 1, &isnull);

		needed->seen[i] = isnull ? PointerGetDatum(construct_empty_array(i == 2 ? INT8OID : INT4OID)) :
			PointerGetDatum(PG_DETOAST_DATUM_COPY(array));
	}
}

/* Leases that expire before have ended. Read after the segment is locked: who has just claimed of it has told by then. */
static TimestampTz
swept(void)
{
	OutboxDatabase *db = outbox_shmem_my_database();

	return db == NULL ? DT_NOBEGIN : outbox_shmem_swept(db);
}

static void
look_for_needed(const pg_uuid_t *from, const pg_uuid_t *to, const Datum *seen, Needed *needed)
{
	Datum		empty = PointerGetDatum(construct_empty_array(INT4OID));
	Datum		args[7] = {
		UUIDPGetDatum(from), UUIDPGetDatum(to),
		seen ? seen[0] : empty, seen ? seen[1] : empty,
		seen ? seen[2] : PointerGetDatum(construct_empty_array(INT8OID)),
		Int64GetDatum(KEPT_MAX + 1 - needed->count), TimestampTzGetDatum(swept())
	};
	uint64		n = outbox_store_run(&select_needed, args, NULL, 0);
	bool		isnull;

	for (uint64 i = 0; i < n; i++)
		needed->ids[needed->count++] = *DatumGetUUIDP(outbox_store_value(i, 1, &isnull));
}

static int
compare_ids(const void *a, const void *b)
{
	return outbox_event_id_compare(a, b);
}

/* Each id once: several subscriptions may need it. */
static void
sort_needed(Needed *needed)
{
	int			n = 0;

	qsort(needed->ids, needed->count, sizeof(pg_uuid_t), compare_ids);
	for (int i = 0; i < needed->count; i++)
	{
		if (n == 0 || outbox_event_id_compare(&needed->ids[n - 1], &needed->ids[i]) != 0)
			needed->ids[n++] = needed->ids[i];
	}
	needed->count = n;
}

static bool
is_backfilled(const Expired *segment)
{
	Datum		args[2] = {
		UUIDPGetDatum(&segment->to),
		TimestampTzGetDatum(outbox_event_id_time_to(outbox_event_id_time_of(&segment->to)) + USECS_PER_DAY)
	};

	return outbox_store_run(&select_backfill, args, NULL, 1) > 0;
}

/* ---------------------------------------------------------------- locks */

/* Before the long look: a dump that has it open will have it open for long. */
static bool
may_be_locked(Oid relid)
{
	if (!ConditionalLockRelationOid(relid, AccessExclusiveLock))
		return false;
	UnlockRelationOid(relid, AccessExclusiveLock);
	return true;
}

/* ---------------------------------------------------------------- moving */

/*
 * The rows with these ids, from one table to the other; whatever they hold out of line comes along.  Not copied: a query that
 * has found the table among those of the log before it was retired, and reads it after, must not find them twice.
 */
static int
move_rows(Oid from_relid, Oid to_relid, int count, const pg_uuid_t *ids)
{
	OutboxWriter *writer;
	OutboxScan	scan;
	int			moved = 0;

	if (count == 0)
		return 0;
	writer = outbox_store_open_writer(to_relid);
	outbox_store_begin_scan(&scan, from_relid, outbox_store_primary_key(from_relid), SnapshotSelf, 1);
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, UUIDPGetDatum(&ids[i]));
		outbox_store_rescan(&scan);
		while (outbox_store_next(&scan, true))
		{
			slot_getallattrs(scan.slot);
			outbox_store_put(writer, scan.slot->tts_values, scan.slot->tts_isnull);
			outbox_store_flush(writer);
			if (!outbox_store_delete(scan.rel, &scan.slot->tts_tid))
				elog(ERROR, "an event was changed by somebody else");
			moved++;
		}
	}
	outbox_store_end_scan(&scan);
	outbox_store_close_writer(writer);
	CommandCounterIncrement();
	return moved;
}

/* ---------------------------------------------------------------- events */

/* The first of the reasons to keep a segment as a whole, or NULL; fills in what is needed otherwise. */
static const char *
reason_to_keep(const Expired *segment, Oid event_log, Needed *needed)
{
	needed->count = 0;
	if (!segment->sealed)
		return "not sealed: a transaction that may write to it is open, or its events are not routed yet";
	if (has_archive_function() && !segment->archived)
		return "not archived yet";
	if (is_backfilled(segment))
		return "a subscription reads it from the beginning";
	if (outbox_retired_has_dependent(event_log))
		return OUTBOX_RETIRED_DEPENDENT;
	if (!may_be_locked(event_log))
		return "another session uses it";
	look_at_ends(needed);
	look_for_needed(&segment->from, &segment->to, NULL, needed);
	if (needed->count > KEPT_MAX)
		return "more than 1000 open deliveries";
	return NULL;
}

/* With the lock.  Only now it is certain that nobody makes an event needed while it goes. */
static const char *
reason_to_keep_locked(OutboxPass *pass, const Expired *segment, Oid event_log, Needed *needed)
{
	if (!outbox_maintenance_lock_alone(pass, event_log) || !outbox_segment_lock_changes())
		return "another session uses it";
	if (outbox_retired_has_dependent(event_log))
		return OUTBOX_RETIRED_DEPENDENT;
	if (is_backfilled(segment))
		return "a subscription reads it from the beginning";
	look_for_needed(&segment->from, &segment->to, needed->seen, needed);
	return needed->count > KEPT_MAX ? "more than 1000 open deliveries" : NULL;
}

static bool
drop_events(const Expired *segment, Oid event_log, Needed *needed)
{
	Datum		args[2] = {UUIDPGetDatum(&segment->from), TimestampTzGetDatum(outbox_settings_now())};

	if (outbox_store_run(&mark_dropped, args, NULL, 0) == 0)
		return false;			/* another run was first, or it was opened again */
	sort_needed(needed);
	(void) move_rows(event_log, outbox_extension_relid("event_log_kept"), needed->count, needed->ids);
	outbox_retired_add(event_log, "event_log");
	outbox_segment_announce_change();
	return true;
}

bool
outbox_retention_drop_events(OutboxPass *pass)
{
	Expired		segment;
	Needed	   *needed = palloc(sizeof(Needed));
	const char *why;
	Oid			event_log;

	if (!next_segment(pass, &select_expired, outbox_retention, &segment))
		return false;
	event_log = table_of("event_log", &segment);
	why = reason_to_keep(&segment, event_log, needed);
	if (why == NULL)
		why = reason_to_keep_locked(pass, &segment, event_log, needed);
	if (why != NULL)
		outbox_maintenance_keep(pass, segment.name, why);
	else if (drop_events(&segment, event_log, needed))
		pass->removed++;
	return true;
}

/* ---------------------------------------------------------------- receipts */

static pg_uuid_t *
list_kept_events(const Expired *segment, int *count)
{
	Datum		args[2] = {UUIDPGetDatum(&segment->from), UUIDPGetDatum(&segment->to)};
	uint64		n = outbox_store_run(&select_kept, args, NULL, 0);
	pg_uuid_t  *ids = palloc(Max(n, 1) * sizeof(pg_uuid_t));
	bool		isnull;

	for (uint64 i = 0; i < n; i++)
		ids[i] = *DatumGetUUIDP(outbox_store_value(i, 1, &isnull));
	*count = (int) n;
	return ids;
}

bool
outbox_retention_drop_receipts(OutboxPass *pass)
{
	Expired		segment;
	pg_uuid_t  *ids;
	Datum		from;
	Oid			receipt_log;
	int			count;

	if (!next_segment(pass, &select_emptied, outbox_settings_receipt_retention(), &segment))
		return false;
	receipt_log = table_of("receipt_log", &segment);
	if (!outbox_maintenance_lock_alone(pass, receipt_log) || !outbox_segment_lock_changes())
	{
		outbox_maintenance_keep(pass, segment.name, "another session uses it");
		return true;
	}
	if (outbox_retired_has_dependent(receipt_log))
	{
		outbox_maintenance_keep(pass, segment.name, OUTBOX_RETIRED_DEPENDENT);
		return true;
	}
	from = UUIDPGetDatum(&segment.from);
	if (outbox_store_run(&delete_segment, &from, NULL, 0) == 0)
		return true;			/* another run was first, or it was opened again */
	ids = list_kept_events(&segment, &count);
	(void) move_rows(receipt_log, outbox_extension_relid("receipt_log_kept"), count, ids);
	outbox_retired_add(receipt_log, "receipt_log");
	outbox_segment_announce_change();
	pass->removed++;
	return true;
}

/* ---------------------------------------------------------------- what was kept */

static Datum
ids_datum(int count, const pg_uuid_t *ids)
{
	Datum	   *values = palloc(Max(count, 1) * sizeof(Datum));

	for (int i = 0; i < count; i++)
		values[i] = UUIDPGetDatum(&ids[i]);
	return PointerGetDatum(construct_array(values, count, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR));
}

/* Leaves only those that no delivery needs. */
static int
leave_settled(int count, pg_uuid_t *ids)
{
	Datum		args[2] = {ids_datum(count, ids), TimestampTzGetDatum(swept())};
	uint64		n = outbox_store_run(&select_needed_of, args, NULL, 0);
	pg_uuid_t  *needed = palloc(Max(n, 1) * sizeof(pg_uuid_t));
	bool		isnull;
	int			left = 0;

	for (uint64 i = 0; i < n; i++)
		needed[i] = *DatumGetUUIDP(outbox_store_value(i, 1, &isnull));
	qsort(needed, n, sizeof(pg_uuid_t), compare_ids);
	for (int i = 0; i < count; i++)
	{
		if (bsearch(&ids[i], needed, n, sizeof(pg_uuid_t), compare_ids) == NULL)
			ids[left++] = ids[i];
	}
	return left;
}

/* Candidates after the last ones, of which those that seem settled are looked at again under the lock. */
static bool
trim_kept_events(OutboxPass *pass)
{
	Datum		args[2] = {UUIDPGetDatum(&pass->after), Int32GetDatum(KEPT_MAX)};
	Oid			relid = outbox_extension_relid("event_log_kept");
	uint64		n = outbox_store_run(&select_settled, args, NULL, 0);
	pg_uuid_t  *ids = palloc(Max(n, 1) * sizeof(pg_uuid_t));
	bool		isnull;
	int			count;
	Datum		settled;

	for (uint64 i = 0; i < n; i++)
		ids[i] = *DatumGetUUIDP(outbox_store_value(i, 1, &isnull));
	if (n > 0)
		pass->after = ids[n - 1];
	count = n > 0 ? leave_settled((int) n, ids) : 0;
	if (count > 0 && !outbox_maintenance_lock_alone(pass, relid))
	{
		pass->kept += count;
		if (pass->kept_why.len == 0)
			appendStringInfoString(&pass->kept_why, "another session uses event_log_kept");
		count = 0;
	}
	if (count > 0)
		count = leave_settled(count, ids);
	if (count > 0)
	{
		settled = ids_datum(count, ids);
		pass->removed += outbox_store_run(&delete_kept, &settled, NULL, 0);
	}
	return n == KEPT_MAX;
}

static bool
trim_kept_receipts(OutboxPass *pass)
{
	pg_uuid_t	horizon;
	Datum		args[2] = {UUIDPGetDatum(&horizon), Int32GetDatum(KEPT_MAX)};
	uint64		n;

	horizon_id(outbox_settings_receipt_retention(), &horizon);
	n = outbox_store_run(&delete_kept_receipts, args, NULL, 0);
	pass->removed += n;
	return n == KEPT_MAX;
}

bool
outbox_retention_trim_kept(OutboxPass *pass)
{
	if (pass->reached > 0)
		return trim_kept_receipts(pass);
	if (!trim_kept_events(pass))
		pass->reached = 1;
	return true;
}

/* ---------------------------------------------------------------- archive */

/* The function that the setting names, with just these arguments. */
static Oid
find_archive_function(Oid *owner)
{
	static const Oid arguments[3] = {TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID};
	List	   *name = outbox_compat_qualified_names(outbox_archive_function);
	Oid			function = InvalidOid;
	HeapTuple	tuple;
	Form_pg_proc form;

	if (list_length(name) == 2)
		function = LookupFuncName(name, 3, arguments, true);
	tuple = OidIsValid(function) ? SearchSysCache1(PROCOID, ObjectIdGetDatum(function)) : NULL;
	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function \"%s\" of \"outbox.archive_function\" does not exist", outbox_archive_function),
				 errhint("It is named with its schema, and takes (segment text, from_time timestamptz, to_time timestamptz).")));
	form = (Form_pg_proc) GETSTRUCT(tuple);
	if (form->prokind != PROKIND_FUNCTION || form->proretset)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" of \"outbox.archive_function\" is not a function that returns one value", outbox_archive_function)));
	*owner = form->proowner;
	ReleaseSysCache(tuple);
	return function;
}

/* As its owner, whoever calls us: the code is the owner's. */
static void
call_archive_function(const Expired *segment)
{
	Oid			owner;
	Oid			function = find_archive_function(&owner);
	char	   *table = psprintf("%s.event_log_%s", OUTBOX_SCHEMA, segment->name);
	FmgrInfo	flinfo;

	LOCAL_FCINFO(fcinfo, 3);
	Oid			userid;
	int			sec_context;

	fmgr_info(function, &flinfo);
	InitFunctionCallInfoData(*fcinfo, &flinfo, 3, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = CStringGetTextDatum(table);
	fcinfo->args[1].value = TimestampTzGetDatum(outbox_event_id_time_to(outbox_event_id_time_of(&segment->from)));
	fcinfo->args[2].value = TimestampTzGetDatum(outbox_event_id_time_to(outbox_event_id_time_of(&segment->to)));
	for (int i = 0; i < 3; i++)
		fcinfo->args[i].isnull = false;
	GetUserIdAndSecContext(&userid, &sec_context);
	SetUserIdAndSecContext(owner, sec_context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
	/* it must not take a part of the events for all of them */
	if (!outbox_tenant_sees_all())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\" may not see the events of all tenants here", GetUserNameFromId(owner, false)),
				 errdetail("It owns the function of \"outbox.archive_function\".")));
	PushActiveSnapshot(GetLatestSnapshot());
	(void) FunctionCallInvoke(fcinfo);	/* the result, void or not, tells nothing */
	PopActiveSnapshot();
	SetUserIdAndSecContext(userid, sec_context);
	CommandCounterIncrement();
}

bool
outbox_retention_archive(OutboxPass *pass)
{
	Expired		segment;
	Datum		args[2];

	if (!has_archive_function() || !next_segment(pass, &select_expired, outbox_retention, &segment))
		return false;
	if (segment.archived || !segment.sealed)
		return true;
	if (!pass->may_archive)
	{
		pass->archive_due = true;
		outbox_maintenance_keep(pass, segment.name, "waits for its process");
		return true;
	}
	call_archive_function(&segment);
	args[0] = UUIDPGetDatum(&segment.from);
	args[1] = TimestampTzGetDatum(outbox_settings_now());
	(void) outbox_store_run(&mark_archived, args, NULL, 0);
	pass->removed++;
	return true;
}
