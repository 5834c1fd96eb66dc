/*
 * utility_hook.c - clears the way for statements that need a database, or the
 * extension in it, for themselves.
 *
 * DROP DATABASE, RENAME, SET TABLESPACE and CREATE DATABASE ... TEMPLATE fail as long
 * as anybody is connected to the database; DROP EXTENSION and its like would
 * meet our processes' locks.  So the database is barred, its processes are stopped,
 * and PostgreSQL does the rest.  The end of the transaction, whichever it is, lifts
 * the bar and tells the launcher, which finds out what has become of the database.
 * One statement is refused: renaming the schema.
 *
 * A statement that its caller is not allowed to run stops nothing.  Whether it
 * may run otherwise is left to PostgreSQL, with its own messages.
 */
#include "outbox.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "extension.h"
#include "lock_out.h"
#include "shmem.h"
#include "slots.h"
#include "utility_hook.h"

/* more than TERM_GRACE_SECONDS, after which a process is ended the hard way */
#define STOP_TIMEOUT_MS 10000

#define LOCK_OUT_TIMEOUT_MS 10000

static ProcessUtility_hook_type previous_hook = NULL;

/* what the end of this transaction lifts */
static List *barred = NIL;
static bool announce_at_end = false;
static bool callback_registered = false;

static void process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree, ProcessUtilityContext context,
							ParamListInfo params, QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc);
static void check_version(Node *statement);
static void clear_the_way(Node *statement, ProcessUtilityContext context);
static void clear_for_drop_database(const char *name);
static void clear_for_alter_database(AlterDatabaseStmt *statement);
static void clear_for_rename(RenameStmt *statement);
static void refuse_our_schema(const char *name);
static void clear_for_create_database(CreatedbStmt *statement);
static void clear_for_drop(DropStmt *statement);
static void clear_for_drop_owned(DropOwnedStmt *statement);
static void clear_for_alter_extension(AlterExtensionStmt *statement);
static void clear_owned_database(const char *name);
static void clear_for_end(OutboxExtension *extension);
static void refuse_own_process(void);
static void clear_database(Oid database);
static void register_callback(void);
static void lift_bars(XactEvent event, void *argument);
static bool names_ours(List *names);
static bool is_template(Oid database);
static bool may_create_databases(void);

void
outbox_utility_hook_install(void)
{
	previous_hook = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}

static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree, ProcessUtilityContext context,
				ParamListInfo params, QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	clear_the_way(pstmt->utilityStmt, context);
	if (previous_hook)
		previous_hook(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	check_version(pstmt->utilityStmt);
}

/* The files on disk may be newer than the library that the server has loaded: refused before any harm is done. */
static void
check_version(Node *statement)
{
	OutboxExtension extension;
	const char *name;

	if (IsA(statement, CreateExtensionStmt))
		name = ((CreateExtensionStmt *) statement)->extname;
	else if (IsA(statement, AlterExtensionStmt))
		name = ((AlterExtensionStmt *) statement)->extname;
	else
		return;
	if (strcmp(name, OUTBOX_LIBRARY) != 0)
		return;
	CommandCounterIncrement();
	if (outbox_extension_lookup(&extension) && outbox_extension_is_newer(&extension))
		outbox_extension_report_version(ERROR, &extension);
}

/* Everything else costs a switch. */
static void
clear_the_way(Node *statement, ProcessUtilityContext context)
{
	bool		alone = (context == PROCESS_UTILITY_TOPLEVEL && !IsTransactionBlock());

	switch (nodeTag(statement))
	{
			/* these do not run in a transaction block: there, leave them to their error */
		case T_DropdbStmt:
			if (alone)
				clear_for_drop_database(((DropdbStmt *) statement)->dbname);
			break;
		case T_CreatedbStmt:
			if (alone)
				clear_for_create_database((CreatedbStmt *) statement);
			break;
		case T_AlterDatabaseStmt:
			clear_for_alter_database((AlterDatabaseStmt *) statement);
			break;
		case T_RenameStmt:
			clear_for_rename((RenameStmt *) statement);
			break;
		case T_DropStmt:
			clear_for_drop((DropStmt *) statement);
			break;
		case T_DropOwnedStmt:
			clear_for_drop_owned((DropOwnedStmt *) statement);
			break;
		case T_AlterExtensionStmt:
			clear_for_alter_extension((AlterExtensionStmt *) statement);
			break;
		default:
			break;
	}
}

/* ---------------------------------------------------------------- databases */

static void
clear_for_drop_database(const char *name)
{
	clear_owned_database(name);
}

static void
clear_for_rename(RenameStmt *statement)
{
	if (statement->renameType == OBJECT_DATABASE)
		clear_owned_database(statement->subname);
	else if (statement->renameType == OBJECT_SCHEMA)
		refuse_our_schema(statement->subname);
}

/* PostgreSQL keeps an extension from changing its schema, but not the schema its name. */
static void
refuse_our_schema(const char *name)
{
	OutboxExtension extension;

	if (strcmp(name, OUTBOX_SCHEMA) == 0 && outbox_extension_lookup(&extension))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("schema \"%s\" cannot be renamed", OUTBOX_SCHEMA),
				 errdetail("The extension finds its tables and functions by that name.")));
}

/* ALLOW_CONNECTIONS and IS_TEMPLATE decide whether a database is served. */
static void
clear_for_alter_database(AlterDatabaseStmt *statement)
{
	ListCell   *cell;

	foreach(cell, statement->options)
	{
		if (strcmp(((DefElem *) lfirst(cell))->defname, "tablespace") == 0)
			clear_owned_database(statement->dbname);
	}
	register_callback();
	announce_at_end = true;
}

/* The new database may have the extension, from its template. */
static void
clear_for_create_database(CreatedbStmt *statement)
{
	const char *template = "template1";
	Oid			source;
	ListCell   *cell;

	foreach(cell, statement->options)
	{
		DefElem    *option = (DefElem *) lfirst(cell);

		if (strcmp(option->defname, "template") == 0 && option->arg != NULL)
			template = defGetString(option);
	}
	register_callback();
	announce_at_end = true;

	/* templates are not served; anything else may be copied by its owner only */
	source = get_database_oid(template, true);
	if (OidIsValid(source) && !is_template(source) && may_create_databases() &&
		outbox_compat_owns_database(source, GetUserId()))
		clear_database(source);
}

static bool
is_template(Oid database)
{
	HeapTuple	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	bool		result = false;

	if (HeapTupleIsValid(tuple))
	{
		result = ((Form_pg_database) GETSTRUCT(tuple))->datistemplate;
		ReleaseSysCache(tuple);
	}
	return result;
}

static void
clear_owned_database(const char *name)
{
	Oid			database = get_database_oid(name, true);

	if (OidIsValid(database) && database != MyDatabaseId &&
		outbox_compat_owns_database(database, GetUserId()))
		clear_database(database);
}

static bool
may_create_databases(void)
{
	HeapTuple	tuple;
	bool		may = superuser();

	if (may)
		return true;
	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(GetUserId()));
	if (HeapTupleIsValid(tuple))
	{
		may = ((Form_pg_authid) GETSTRUCT(tuple))->rolcreatedb;
		ReleaseSysCache(tuple);
	}
	return may;
}

/* ---------------------------------------------------------------- the extension */

static void
clear_for_drop(DropStmt *statement)
{
	OutboxExtension extension;

	if (statement->removeType != OBJECT_EXTENSION && statement->removeType != OBJECT_SCHEMA)
		return;
	if (!names_ours(statement->objects) || !outbox_extension_lookup(&extension))
		return;
	if (statement->removeType == OBJECT_EXTENSION
		? outbox_compat_owns_extension(extension.oid, GetUserId())
		: statement->behavior == DROP_CASCADE && outbox_compat_owns_schema(extension.schema, GetUserId()))
		clear_for_end(&extension);
}

/* The extension's owner is the owner of its schema, or a superuser. */
static void
clear_for_drop_owned(DropOwnedStmt *statement)
{
	OutboxExtension extension;
	ListCell   *cell;

	if (!outbox_extension_lookup(&extension))
		return;
	foreach(cell, statement->roles)
	{
		Oid			role = get_rolespec_oid(lfirst_node(RoleSpec, cell), true);

		if (role == extension.owner && has_privs_of_role(GetUserId(), role))
			clear_for_end(&extension);
	}
}

/* An update changes the tables under the processes. */
static void
clear_for_alter_extension(AlterExtensionStmt *statement)
{
	OutboxExtension extension;

	if (strcmp(statement->extname, OUTBOX_LIBRARY) == 0 && outbox_extension_lookup(&extension) &&
		outbox_compat_owns_extension(extension.oid, GetUserId()))
	{
		refuse_own_process();
		clear_database(MyDatabaseId);
	}
}

/* Extension and schema have the same name. */
static bool
names_ours(List *names)
{
	ListCell   *cell;

	foreach(cell, names)
	{
		if (strcmp(strVal(lfirst(cell)), OUTBOX_SCHEMA) == 0)
			return true;
	}
	return false;
}

/*
 * A handler, or an archive function, would pull the tables from under the transaction that called it, and each attempt
 * would stop all other processes first.
 */
static void
refuse_own_process(void)
{
	if (outbox_slots_is_attached())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("extension \"%s\" cannot be dropped or altered in one of its own processes", OUTBOX_LIBRARY),
				 errhint("Handlers and archive functions run in them. Use a session of your own.")));
}

/* Neither our processes nor the extension's users must meet the DROP half-way. */
static void
clear_for_end(OutboxExtension *extension)
{
	refuse_own_process();
	clear_database(MyDatabaseId);
	outbox_lock_out_users(extension->schema, LOCK_OUT_TIMEOUT_MS);
}

/* ---------------------------------------------------------------- bars */

static void
clear_database(Oid database)
{
	MemoryContext caller;

	if (!list_member_oid(barred, database))
	{
		register_callback();
		caller = MemoryContextSwitchTo(TopMemoryContext);
		barred = lappend_oid(barred, database);
		MemoryContextSwitchTo(caller);
		if (!outbox_slots_bar(database))
			barred = list_delete_last(barred);
	}
	(void) outbox_slots_stop_database(database, STOP_TIMEOUT_MS);
}

static void
register_callback(void)
{
	if (!callback_registered)
		RegisterXactCallback(lift_bars, NULL);
	callback_registered = true;
}

/* PREPARE too: the processes see by the extension's lock that they must wait on. */
static void
lift_bars(XactEvent event, void *argument)
{
	ListCell   *cell;

	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	if (barred == NIL && !announce_at_end)
		return;
	foreach(cell, barred)
		outbox_slots_unbar(lfirst_oid(cell));
	if (announce_at_end)
		outbox_shmem_announce_database(InvalidOid, false);
	list_free(barred);
	barred = NIL;
	announce_at_end = false;
}
