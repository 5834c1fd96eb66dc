/*
 * retired.c - tables that have been taken out of the log, on their way off the disk.
 *
 * When a file of gigabytes goes, the file system is busy for a moment, and a publisher's commit waits for the
 * disk with it.  So retention does not drop a table, but retires it: it is nobody's child any more, has another name,
 * and its indexes are not used.  From the end of that transaction on nobody finds it, and it is itself all there is to know of
 * it, its name and its form: after a crash, on a server that was a standby, or restored from a dump that was made meanwhile.
 *
 * Then it is shortened, a few MB in a transaction, under a lock that is only tried for, with rests in between; the last
 * step drops it.  Rows go first, then what they hold out of line, then the indexes, so that whoever reads it between two steps (a dump,
 * which reads every table) reads whole rows.
 */
#include "outbox.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_type.h"
#include "catalog/storage.h"
#include "commands/tablecmds.h"
#include "executor/spi.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "storage/bufmgr.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "maintenance.h"
#include "retired.h"
#include "segment.h"
#include "segment_make.h"
#include "store.h"

/* and then the oid that the table had when it was retired */
#define PREFIX			"retired_"
#define PREFIX_END		"retired`"

#define STEP_BLOCKS		2048	/* given back at once: 16 MB */
#define NOTABLE_BLOCKS	128		/* from here on others may notice it */
#define PARTS_MAX		64

/* a table, what it holds out of line, their indexes; in the order in which they go */
typedef enum PartKind
{
	ROWS = 1,
	OUT_OF_LINE,
	INDEX,
	INDEX_OUT_OF_LINE			/* small; goes with the table: pg_upgrade and VACUUM FULL want it valid */
} PartKind;

typedef struct Part
{
	Oid			relid;
	PartKind	kind;
} Part;

/*
 * What a person has made of the table, a view perhaps: it depends on the table, its row type or a constraint, and does not go
 * with the table by itself.
 */
static OutboxStatement select_dependent = {
	"with part (class, id) as (select 'pg_catalog.pg_class'::pg_catalog.regclass::oid, $1"
	" union all select 'pg_catalog.pg_class'::pg_catalog.regclass, indexrelid from pg_catalog.pg_index where indrelid = $1"
	" union all select 'pg_catalog.pg_constraint'::pg_catalog.regclass, oid from pg_catalog.pg_constraint where conrelid = $1"
	" union all select 'pg_catalog.pg_type'::pg_catalog.regclass, pg_catalog.unnest(array[t.oid, t.typarray])"
	"  from pg_catalog.pg_class c join pg_catalog.pg_type t on t.oid = c.reltype where c.oid = $1)"
	" select 1 from part join pg_catalog.pg_depend d on d.refclassid = part.class and d.refobjid = part.id and d.deptype = 'n'"
	" where not exists (select from pg_catalog.pg_depend o where o.classid = d.classid and o.objid = d.objid"
	"  and o.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass and o.refobjid = $1 and o.deptype <> 'n') limit 1",
	1, {OIDOID}
};

static OutboxStatement select_indexes = {
	"select indexrelid from pg_catalog.pg_index where indrelid = $1",
	1, {OIDOID}
};

/*
 * Ours alone, by their name and by what only we give a table: that it goes with its parent; or, when it came by a dump or
 * pg_upgrade, which do not carry that, a segment's check, columns and closed rows.  Another's of such a name stays, and so
 * does one that a person has made an extension's.
 */
static OutboxStatement select_retired = {
	"select c.oid from pg_catalog.pg_namespace n join pg_catalog.pg_class c on c.relnamespace = n.oid"
	" where n.nspname = 'outbox' and c.relname >= '" PREFIX "' and c.relname < '" PREFIX_END "' and c.relname ~ '^" PREFIX "[0-9]+$'"
	" and c.relkind = 'r' and c.relpersistence = 'p' and c.oid > $1"
	" and not exists (select from pg_catalog.pg_depend d where d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass"
	"  and d.objid = c.oid and d.deptype = 'e')"
	" and exists (select from pg_catalog.pg_class p where p.relnamespace = n.oid and p.relname in ('event_log', 'receipt_log') and ("
	"  exists (select from pg_catalog.pg_depend d where d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass and d.objid = c.oid"
	"   and d.objsubid = 0 and d.refclassid = d.classid and d.refobjid = p.oid and d.deptype = 'a')"
	"  or c.relrowsecurity and exists (select from pg_catalog.pg_constraint k where k.conrelid = c.oid and k.contype = 'c'"
	"   and k.conname ~ ('^' || p.relname || '_.+_range$'))"
	"  and not exists (select from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped"
	"   and not exists (select from pg_catalog.pg_attribute b where b.attrelid = p.oid and b.attname = a.attname"
	"    and b.atttypid = a.atttypid))))"
	" order by c.oid limit 1",
	1, {OIDOID}
};

/* with their kinds */
static OutboxStatement select_parts = {
	"select oid, 1 as kind from pg_catalog.pg_class where oid = $1"
	" union all select reltoastrelid, 2 from pg_catalog.pg_class where oid = $1 and reltoastrelid <> 0"
	" union all select indexrelid, 3 from pg_catalog.pg_index where indrelid = $1"
	" union all select i.indexrelid, 4 from pg_catalog.pg_class c join pg_catalog.pg_index i"
	"  on i.indrelid = c.reltoastrelid where c.oid = $1 order by kind",
	1, {OIDOID}
};

/* ---------------------------------------------------------------- retiring */

bool
outbox_retired_has_dependent(Oid relid)
{
	Datum		arg = ObjectIdGetDatum(relid);

	return outbox_store_run(&select_dependent, &arg, NULL, 1) > 0;
}

static void
leave_parent(Oid relid, const char *parent)
{
	AlterTableCmd *leave = makeNode(AlterTableCmd);

	leave->subtype = AT_DropInherit;
	leave->def = (Node *) makeRangeVar(OUTBOX_SCHEMA, pstrdup(parent), -1);
	AlterTableInternal(relid, list_make1(leave), false);
	CommandCounterIncrement();
}

/* As one whose making was not finished: it is neither read nor vacuumed nor dumped. */
static void
disable_index(Oid index)
{
	Relation	catalog = table_open(IndexRelationId, RowExclusiveLock);
	HeapTuple	tuple = SearchSysCacheCopy1(INDEXRELID, ObjectIdGetDatum(index));
	Form_pg_index form;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", index);
	form = (Form_pg_index) GETSTRUCT(tuple);
	if (form->indisready)
	{
		form->indisvalid = form->indisready = form->indisclustered = form->indisreplident = false;
		CatalogTupleUpdate(catalog, &tuple->t_self, tuple);
		CommandCounterIncrement();
	}
	table_close(catalog, RowExclusiveLock);
}

/* Its own name is free again, should the clock go back to its time.  One from a dump may have the number already. */
static void
rename_relation(Oid relid, bool is_index)
{
	char		name[NAMEDATALEN];
	uint64		number = relid;

	do
		snprintf(name, sizeof(name), PREFIX UINT64_FORMAT, number++);
	while (OidIsValid(get_relname_relid(name, get_rel_namespace(relid))));
	RenameRelationInternal(relid, name, true, is_index);
	CommandCounterIncrement();
}

void
outbox_retired_add(Oid relid, const char *parent)
{
	Datum		arg = ObjectIdGetDatum(relid);
	uint64		n;
	SPITupleTable *indexes;
	bool		isnull;

	leave_parent(relid, parent);
	n = outbox_store_run(&select_indexes, &arg, NULL, 0);
	indexes = SPI_tuptable;
	for (uint64 i = 0; i < n; i++)
	{
		Oid			index;

		SPI_tuptable = indexes;
		index = DatumGetObjectId(outbox_store_value(i, 1, &isnull));
		disable_index(index);
		rename_relation(index, true);
	}
	rename_relation(relid, false);
}

/* ---------------------------------------------------------------- shrinking */

/* The next one to look at in this pass, or InvalidOid. */
static Oid
next_retired(OutboxPass *pass)
{
	Datum		after = ObjectIdGetDatum((Oid) pass->reached);
	bool		isnull;

	if (outbox_store_run(&select_retired, &after, NULL, 1) == 0)
		return InvalidOid;
	return DatumGetObjectId(outbox_store_value(0, 1, &isnull));
}

static int
list_parts(Oid relid, Part *parts)
{
	Datum		arg = ObjectIdGetDatum(relid);
	uint64		n = outbox_store_run(&select_parts, &arg, NULL, PARTS_MAX);
	bool		isnull;

	for (uint64 i = 0; i < n; i++)
	{
		parts[i].relid = DatumGetObjectId(outbox_store_value(i, 1, &isnull));
		parts[i].kind = (PartKind) DatumGetInt32(outbox_store_value(i, 2, &isnull));
	}
	return (int) n;
}

static bool
lock_parts(OutboxPass *pass, const Part *parts, int n)
{
	for (int i = 0; i < n; i++)
	{
		if (!outbox_maintenance_lock_alone(pass, parts[i].relid))
			return false;
	}
	return true;
}

/* How much of it goes in steps. */
static BlockNumber
count_blocks(const Part *part)
{
	Relation	rel;
	BlockNumber blocks;

	if (part->kind == INDEX_OUT_OF_LINE)
		return 0;
	rel = relation_open(part->relid, NoLock);
	blocks = RelationGetNumberOfBlocks(rel);
	relation_close(rel, NoLock);
	return blocks;
}

/*
 * The last blocks of what is there.  This is not undone when the transaction fails, and need not be: nobody is to
 * see them again.
 */
static void
shorten(const Part *parts, int n, BlockNumber blocks)
{
	for (int i = 0; i < n && blocks > 0; i++)
	{
		BlockNumber there = count_blocks(&parts[i]);
		BlockNumber off = Min(there, blocks);
		Relation	rel;

		if (off == 0)
			continue;
		/* should somebody have made it anew */
		if (parts[i].kind == INDEX)
			disable_index(parts[i].relid);
		rel = relation_open(parts[i].relid, NoLock);
		RelationTruncate(rel, there - off);
		relation_close(rel, NoLock);
		blocks -= off;
	}
}

static void
drop_table(Oid relid)
{
	ObjectAddress address;

	ObjectAddressSet(address, RelationRelationId, relid);
	performDeletion(&address, DROP_RESTRICT, 0);
}

bool
outbox_retired_shrink(OutboxPass *pass)
{
	Oid			relid = next_retired(pass);
	Part		parts[PARTS_MAX];
	uint64		blocks = 0;
	int			n;

	if (!OidIsValid(relid))
		return false;
	n = list_parts(relid, parts);
	if (!lock_parts(pass, parts, n))
	{
		pass->reached = relid;
		outbox_maintenance_keep(pass, get_rel_name(relid), "another session uses it");
		return true;
	}
	if (outbox_retired_has_dependent(relid))
	{
		pass->reached = relid;
		outbox_maintenance_keep(pass, get_rel_name(relid), OUTBOX_RETIRED_DEPENDENT);
		return true;
	}
	for (int i = 0; i < n; i++)
		blocks += count_blocks(&parts[i]);
	pass->rest = blocks >= NOTABLE_BLOCKS;
	if (blocks > STEP_BLOCKS)
	{
		/* a dump does not have that it goes with the extension */
		outbox_segment_make_dependent(relid, "event_log");
		shorten(parts, n, STEP_BLOCKS);
	}
	else
	{
		drop_table(relid);
		pass->removed++;
	}
	return true;
}
