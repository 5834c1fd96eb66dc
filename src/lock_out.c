/*
 * lock_out.c - before the extension is dropped: wait for its users without deadlock.
 *
 * DROP EXTENSION locks one relation after the other, in an order of its own.  A
 * publisher that holds one of them and waits for another makes that a deadlock, and
 * one of the two an error.  So all are locked beforehand, by a rule under
 * which nobody waits while holding: wait for one, try the rest; when one of them
 * is not to be had, let go of all, and wait for that one.
 */
#include "outbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_class.h"
#include "nodes/pg_list.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "lock_out.h"

static List *list_relations(Oid schema);
static Oid	lock_all(List *relations, Oid first);
static void unlock_until(List *relations, Oid end, Oid first);

void
outbox_lock_out_users(Oid schema, int timeout_ms)
{
	TimestampTz started = GetCurrentTimestamp();
	List	   *relations = list_relations(schema);
	Oid			first = InvalidOid;
	Oid			taken;

	while (OidIsValid(taken = lock_all(relations, first)))
	{
		unlock_until(relations, taken, first);
		if (TimestampDifferenceExceeds(started, GetCurrentTimestamp(), timeout_ms))
			break;
		first = taken;
	}
	list_free(relations);
}

/* Tables, views and sequences; an index is used by those who have locked its table. */
static List *
list_relations(Oid schema)
{
	Relation	catalog = table_open(RelationRelationId, AccessShareLock);
	List	   *relations = NIL;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_class_relnamespace, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(schema));
	scan = systable_beginscan(catalog, InvalidOid, false, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if (form->relkind == RELKIND_RELATION || form->relkind == RELKIND_VIEW || form->relkind == RELKIND_SEQUENCE)
			relations = lappend_oid(relations, form->oid);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return relations;
}

/* Wait for the first, try the rest; the one that was taken, or InvalidOid when all are ours. */
static Oid
lock_all(List *relations, Oid first)
{
	ListCell   *cell;

	if (OidIsValid(first))
		LockRelationOid(first, AccessExclusiveLock);
	foreach(cell, relations)
	{
		Oid			relation = lfirst_oid(cell);

		if (relation != first && !ConditionalLockRelationOid(relation, AccessExclusiveLock))
			return relation;
	}
	return InvalidOid;
}

static void
unlock_until(List *relations, Oid end, Oid first)
{
	ListCell   *cell;

	foreach(cell, relations)
	{
		Oid			relation = lfirst_oid(cell);

		if (relation == end)
			break;
		if (relation != first)
			UnlockRelationOid(relation, AccessExclusiveLock);
	}
	if (OidIsValid(first))
		UnlockRelationOid(first, AccessExclusiveLock);
}
