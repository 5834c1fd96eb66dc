/*
 * extension.c - is the extension installed in this database, whose is it, and
 * which cluster's transaction ids does its log carry?
 *
 * The catalogs are asked each time, by direct scans: a stale answer after DROP
 * EXTENSION would be worse than the microseconds saved.  Only the incarnation is
 * remembered, since every publish() needs it, and which relations our names are, until one of them changes.
 */
#include "outbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "extension.h"
#include "settings.h"
#include "store.h"

static OutboxIncarnation known_incarnation;
static bool incarnation_valid = false;
static uint64 incarnation_invalidations = 0;
static Oid	incarnation_relid = InvalidOid;

typedef struct KnownRelation
{
	char		name[NAMEDATALEN];
	Oid			relid;
} KnownRelation;

static HTAB *known_relations = NULL;

/* ---------------------------------------------------------------- catalogs */

static void
read_extension(OutboxExtension *extension, Relation catalog, HeapTuple tuple)
{
	Form_pg_extension form = (Form_pg_extension) GETSTRUCT(tuple);
	bool		isnull;
	Datum		version = heap_getattr(tuple, Anum_pg_extension_extversion, RelationGetDescr(catalog), &isnull);

	extension->oid = form->oid;
	extension->schema = form->extnamespace;
	extension->owner = form->extowner;
	if (!isnull)
		text_to_cstring_buffer(DatumGetTextPP(version), extension->version, sizeof(extension->version));
}

bool
outbox_extension_lookup(OutboxExtension *extension)
{
	Relation	catalog = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	memset(extension, 0, sizeof(OutboxExtension));
	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ, CStringGetDatum(OUTBOX_SCHEMA));
	scan = systable_beginscan(catalog, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		read_extension(extension, catalog, tuple);
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return OidIsValid(extension->oid);
}

/* ---------------------------------------------------------------- relations */

static void
forget_incarnation(Oid relid)
{
	if (relid != InvalidOid && relid != incarnation_relid)
		return;
	incarnation_valid = false;
	incarnation_invalidations++;
}

static void
forget_relation(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS all;
	KnownRelation *known;

	forget_incarnation(relid);
	if (known_relations == NULL)
		return;
	hash_seq_init(&all, known_relations);
	while ((known = hash_seq_search(&all)) != NULL)
	{
		if (relid == InvalidOid || relid == known->relid)
			hash_search(known_relations, known->name, HASH_REMOVE, NULL);
	}
}

static void
listen_for_changes(void)
{
	static bool registered = false;

	if (registered)
		return;
	CacheRegisterRelcacheCallback(forget_relation, (Datum) 0);
	registered = true;
}

static Oid
find_relation(const char *relname)
{
	Oid			schema = get_namespace_oid(OUTBOX_SCHEMA, true);
	Oid			relid = OidIsValid(schema) ? get_relname_relid(relname, schema) : InvalidOid;

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s.%s\" does not exist", OUTBOX_SCHEMA, relname),
				 errhint("The extension \"%s\" is not installed in this database, or not completely.", OUTBOX_LIBRARY)));
	return relid;
}

Oid
outbox_extension_relid(const char *relname)
{
	KnownRelation *known;
	Oid			relid;

	listen_for_changes();
	if (known_relations == NULL)
	{
		HASHCTL		control = {.keysize = NAMEDATALEN, .entrysize = sizeof(KnownRelation)};

		known_relations = hash_create("outbox relations", 64, &control, HASH_ELEM | HASH_STRINGS);
	}
	known = hash_search(known_relations, relname, HASH_FIND, NULL);
	if (known != NULL)
		return known->relid;
	relid = find_relation(relname);
	known = hash_search(known_relations, relname, HASH_ENTER, NULL);
	known->relid = relid;
	return relid;
}

/* ---------------------------------------------------------------- versions */

bool
outbox_extension_is_current(const OutboxExtension *extension)
{
	/* a script under way is about to make it so */
	return creating_extension || strcmp(extension->version, OUTBOX_VERSION) == 0;
}

/* Numbers, with dots between them. */
bool
outbox_extension_is_newer(const OutboxExtension *extension)
{
	const char *theirs = extension->version;
	const char *ours = OUTBOX_VERSION;

	while (*theirs != '\0' || *ours != '\0')
	{
		char	   *their_end;
		char	   *our_end;
		long		their_part = strtol(theirs, &their_end, 10);
		long		our_part = strtol(ours, &our_end, 10);

		if (their_part != our_part)
			return their_part > our_part;
		if (their_end == theirs && our_end == ours)
			break;
		theirs = their_end + (*their_end == '.');
		ours = our_end + (*our_end == '.');
	}
	return false;
}

void
outbox_extension_report_version(int elevel, const OutboxExtension *extension)
{
	bool		newer = outbox_extension_is_newer(extension);

	/* newer: the server has not been restarted since, or the package has been taken back to an older one */
	ereport(elevel,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 newer ?
			 errmsg("extension \"%s\" is of version %s, newer than the library of version %s that the server runs",
					OUTBOX_LIBRARY, extension->version, OUTBOX_VERSION) :
			 errmsg("extension \"%s\" is of version %s, older than the library of version %s that the server runs",
					OUTBOX_LIBRARY, extension->version, OUTBOX_VERSION),
			 newer ?
			 errhint("Restart the server, which then loads the newer library; if its package has been replaced by an older one, install it again first.") :
			 errhint("Run ALTER EXTENSION outbox UPDATE in this database.")));
}

/* ---------------------------------------------------------------- pg_upgrade */

#define UPGRADE_MARK "outbox.upgraded"

/* In the postmaster, whose working directory is the data folder. */
void
outbox_extension_mark_upgrade(void)
{
	FILE	   *file = AllocateFile(UPGRADE_MARK, "w");

	if (file == NULL ||
		fprintf(file, UINT64_FORMAT "\n", GetSystemIdentifier()) < 0 ||
		fflush(file) != 0 || pg_fsync(fileno(file)) != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", UPGRADE_MARK)));
	FreeFile(file);
}

static bool
was_upgraded(void)
{
	FILE	   *file = AllocateFile(UPGRADE_MARK, "r");
	char		line[24] = "";

	if (file == NULL)
		return false;
	if (fgets(line, sizeof(line), file) == NULL)
		line[0] = '\0';
	FreeFile(file);
	return strtou64(line, NULL, 10) == GetSystemIdentifier();
}

static OutboxStatement update_system_identifier = {
	"update outbox.incarnation set system_identifier = $2 where incarnation = $1 and system_identifier <> $2",
	2, {INT4OID, INT8OID}
};

void
outbox_extension_settle_upgrade(void)
{
	OutboxIncarnation known;
	Datum		args[2];

	outbox_extension_incarnation(&known);
	if (!known.recorded || known.held)
		return;
	args[0] = Int32GetDatum(known.incarnation);
	args[1] = Int64GetDatum((int64) GetSystemIdentifier());
	if (outbox_store_run(&update_system_identifier, args, NULL, 0) > 0)
		CacheInvalidateRelcacheByRelid(outbox_extension_relid("incarnation"));
}

/* ---------------------------------------------------------------- incarnation */

/*
 * Without a row in outbox.incarnation nothing is ever routed.  When something was, a restore has
 * lost that row, and whose transaction ids these are nobody can say: not this cluster's.
 */
static bool
read_lost(int *incarnation, uint64 *system_identifier, Oid *database)
{
	Oid			tick = outbox_extension_relid("tick");
	OutboxScan	scan;
	bool		isnull;
	bool		found;

	outbox_store_begin_scan(&scan, tick, outbox_store_primary_key(tick), SnapshotSelf, 0);
	outbox_store_rescan(&scan);
	found = outbox_store_next(&scan, false);
	if (found)
	{
		*incarnation = DatumGetInt32(slot_getattr(scan.slot, 1, &isnull));
		*system_identifier = 0;
		*database = InvalidOid;
	}
	outbox_store_end_scan(&scan);
	return found;
}

/*
 * The newest row of outbox.incarnation, whatever the caller's snapshot; false when there is none.
 * The table is only ever appended to, hence a snapshot that locks nothing will do.
 */
static bool
read_newest(int *incarnation, uint64 *system_identifier, Oid *database)
{
	OutboxScan	scan;
	bool		isnull;
	bool		found;

	outbox_store_begin_scan(&scan, incarnation_relid, outbox_store_primary_key(incarnation_relid), SnapshotSelf, 0);
	outbox_store_rescan(&scan);
	found = outbox_store_next(&scan, false);
	if (found)
	{
		*incarnation = DatumGetInt32(slot_getattr(scan.slot, 1, &isnull));
		*system_identifier = (uint64) DatumGetInt64(slot_getattr(scan.slot, 2, &isnull));
		*database = DatumGetObjectId(slot_getattr(scan.slot, 3, &isnull));
	}
	outbox_store_end_scan(&scan);
	return found || read_lost(incarnation, system_identifier, database);
}

static void
check_version(void)
{
	OutboxExtension extension;

	if (outbox_extension_lookup(&extension) && !outbox_extension_is_current(&extension))
		outbox_extension_report_version(ERROR, &extension);
}

static void
load_incarnation(void)
{
	uint64		invalidations;
	uint64		system_identifier;
	Oid			database;
	int			newest;

	incarnation_relid = outbox_extension_relid("incarnation");
	check_version();
	invalidations = incarnation_invalidations;
	known_incarnation.recorded = read_newest(&newest, &system_identifier, &database);
	if (known_incarnation.recorded)
	{
		known_incarnation.held = database != MyDatabaseId ||
			(system_identifier != GetSystemIdentifier() && !was_upgraded());
		known_incarnation.incarnation = newest + (known_incarnation.held ? 1 : 0);
	}
	else
	{
		known_incarnation.held = false;
		known_incarnation.incarnation = 1;
	}
	/* a restore writes the rows by COPY, which tells nobody: until there is one, look each time */
	incarnation_valid = known_incarnation.recorded && invalidations == incarnation_invalidations;
}

void
outbox_extension_incarnation(OutboxIncarnation *incarnation)
{
	if (!incarnation_valid)
		load_incarnation();
	*incarnation = known_incarnation;
}

/*
 * Two that come at once meet on the lock, and the second one finds the row.
 */
void
outbox_extension_record_incarnation(void)
{
	Datum		values[4];
	bool		nulls[4] = {false};
	uint64		system_identifier;
	Oid			database;
	int			newest;
	OutboxWriter *writer;

	incarnation_relid = outbox_extension_relid("incarnation");
	if (read_newest(&newest, &system_identifier, &database))
		return;
	LockRelationOid(incarnation_relid, ShareUpdateExclusiveLock);
	if (read_newest(&newest, &system_identifier, &database))
		return;
	values[0] = Int32GetDatum(1);
	values[1] = Int64GetDatum((int64) GetSystemIdentifier());
	values[2] = ObjectIdGetDatum(MyDatabaseId);
	values[3] = TimestampTzGetDatum(outbox_settings_now());
	writer = outbox_store_open_writer(incarnation_relid);
	outbox_store_put(writer, values, nulls);
	outbox_store_close_writer(writer);
	CacheInvalidateRelcacheByRelid(incarnation_relid);
	CommandCounterIncrement();
}
