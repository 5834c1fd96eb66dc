/*
 * segment_adopt.c - may a table that is there already become a segment's?
 *
 * A dump of the schema alone carries the tables of segments, but not the rows of outbox.segment: in
 * the copy, the tables of the next days are there, and nobody knows of them.  Such a table is taken as it is
 * when it is exactly what would be made, and has never had a row.
 *
 * Only the extension's owner can have made it: it inherits from the parent, which came with CREATE
 * EXTENSION, and nobody else may make a child of that.  So nothing that was there before is ever taken.
 * While a dump is being restored there are rows, or not yet all indexes; then it is refused.
 */
#include "outbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_am.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "nodes/nodes.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/ruleutils.h"
#include "utils/uuid.h"

#include "extension.h"
#include "segment_adopt.h"
#include "session.h"

static bool
is_plain_and_ours(Relation rel)
{
	return rel->rd_rel->relkind == RELKIND_RELATION && rel->rd_rel->relpersistence == RELPERSISTENCE_PERMANENT &&
		rel->rd_rel->relam == HEAP_TABLE_AM_OID && rel->rd_rel->relowner == outbox_session_owner();
}

static bool
inherits_from_alone(Relation rel, Oid parent)
{
	Relation	catalog = table_open(InheritsRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	int			parents = 0;
	bool		found = false;

	ScanKeyInit(&key, Anum_pg_inherits_inhrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(RelationGetRelid(rel)));
	scan = systable_beginscan(catalog, InheritsRelidSeqnoIndexId, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		parents++;
		found |= ((Form_pg_inherits) GETSTRUCT(tuple))->inhparent == parent;
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return found && parents == 1;
}

static bool
is_same_column(Form_pg_attribute a, Form_pg_attribute b)
{
	return strcmp(NameStr(a->attname), NameStr(b->attname)) == 0 && a->atttypid == b->atttypid &&
		a->atttypmod == b->atttypmod && a->attcollation == b->attcollation && a->attnotnull == b->attnotnull &&
		!a->attisdropped && !b->attisdropped && !a->atthasdef && a->attidentity == '\0' && a->attgenerated == '\0';
}

static bool
has_columns_of(Relation rel, Oid parent)
{
	Relation	parent_rel = table_open(parent, AccessShareLock);
	TupleDesc	ours = RelationGetDescr(rel);
	TupleDesc	theirs = RelationGetDescr(parent_rel);
	bool		same = ours->natts == theirs->natts;

	for (int i = 0; same && i < ours->natts; i++)
		same = is_same_column(TupleDescAttr(ours, i), TupleDescAttr(theirs, i));
	table_close(parent_rel, AccessShareLock);
	return same;
}

/* Is its only check that of the range? */
static bool
has_range(Relation rel, const char *range)
{
	TupleConstr *constr = RelationGetDescr(rel)->constr;

	if (constr == NULL || constr->num_check != 1 || !constr->check[0].ccvalid)
		return false;
	return strcmp(range, deparse_expression(stringToNode(constr->check[0].ccbin),
											deparse_context_for(RelationGetRelationName(rel), RelationGetRelid(rel)),
											false, false)) == 0;
}

static bool
is_index_on(Relation index, Relation rel, const char *const *columns, int n)
{
	bool		same = index->rd_rel->relam == BTREE_AM_OID && index->rd_index->indisvalid && index->rd_index->indimmediate &&
	index->rd_index->indnatts == n && heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL);

	for (int i = 0; same && i < n; i++)
		same = index->rd_index->indkey.values[i] == get_attnum(RelationGetRelid(rel), columns[i]);
	return same;
}

/* The primary key and the further index; others may be there, but no unique ones. */
static bool
has_indexes(Relation rel, const OutboxTableRecipe *recipe)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *cell;
	int			keys = 0;
	bool		has_key = false;
	bool		has_second = recipe->second_index == NULL;
	bool		refuses_rows = false;

	while (keys < lengthof(recipe->key) && recipe->key[keys] != NULL)
		keys++;
	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);

		if (index->rd_index->indisprimary)
			has_key = is_index_on(index, rel, recipe->key, keys);
		else if (index->rd_index->indisunique || index->rd_index->indisexclusion)
			refuses_rows = true;
		else if (recipe->second_index != NULL)
			has_second |= is_index_on(index, rel, &recipe->second_index, 1);
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
	return has_key && has_second && !refuses_rows;
}

/* What is wrong with it, as a sentence; NULL for nothing. */
static const char *
find_fault(Relation rel, const OutboxTableRecipe *recipe, const char *range)
{
	Oid			parent = outbox_extension_relid(recipe->parent);

	if (!is_plain_and_ours(rel))
		return "It is no plain table of the extension's owner.";
	if (!inherits_from_alone(rel, parent))
		return psprintf("It is no child of %s.%s.", OUTBOX_SCHEMA, recipe->parent);
	if (RelationGetNumberOfBlocks(rel) > 0)
		return "It has rows, or has had some.";
	if (!has_columns_of(rel, parent))
		return psprintf("Its columns are not those of %s.%s.", OUTBOX_SCHEMA, recipe->parent);
	if (!has_range(rel, range))
		return psprintf("Its check is not %s.", range);
	if (!has_indexes(rel, recipe))
		return "Its indexes are not those of a segment.";
	if (rel->rd_rel->relhastriggers || rel->rd_rel->relhasrules)
		return "It has triggers or rules.";
	if (!rel->rd_rel->relrowsecurity || rel->rd_rel->relforcerowsecurity)
		return "Its rows are not closed as those of a segment.";
	return NULL;
}

void
outbox_segment_adopt_check(Oid relid, const OutboxTableRecipe *recipe, const char *name, const pg_uuid_t *from, const pg_uuid_t *to)
{
	const char *fault = NULL;
	char	   *range = psprintf("((event_id >= '%s'::uuid) AND (event_id < '%s'::uuid))",
								 DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(from))),
								 DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(to))));
	const char *relname = psprintf("%s_%s", recipe->parent, name);
	Relation	rel;

	if (!ConditionalLockRelationOid(relid, RowExclusiveLock))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not obtain lock on relation \"%s.%s\"", OUTBOX_SCHEMA, relname),
				 errhint("Perhaps a dump is being restored.")));
	rel = try_relation_open(relid, NoLock);
	if (rel != NULL)
	{
		fault = find_fault(rel, recipe, range);
		relation_close(rel, NoLock);
	}
	if (fault != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_TABLE),
				 errmsg("relation \"%s.%s\" already exists, and %s.segment does not tell of it", OUTBOX_SCHEMA, relname, OUTBOX_SCHEMA),
				 errdetail("%s", fault),
				 errhint("It seems to come from a dump that was restored in part. When what is in it is not needed, run: drop table if exists %s.event_log_%s, %s.receipt_log_%s",
						 OUTBOX_SCHEMA, name, OUTBOX_SCHEMA, name)));
}
