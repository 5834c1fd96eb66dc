/*
 * session.c - our own SQL under our own settings.
 *
 * Two cases.  In a client's session, API functions that run SQL do it as the
 * extension's owner, with the settings that the SQL depends on put aside for
 * the time.  Our processes pin theirs once: the value is given with the source
 * "override" and becomes the reset value too, so neither the database's nor the role's
 * settings, a reload, nor RESET ALL bring another one back.
 */
#include "outbox.h"

#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/trigger.h"
#include "jit/jit.h"
#include "miscadmin.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "postmaster/bgworker.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/plancache.h"
#include "utils/rls.h"
#include "utils/syscache.h"

#include "session.h"

#define OWN_LOCK_TIMEOUT "5s"

typedef struct Setting
{
	const char *name;
	const char *value;
} Setting;

/*
 * Our tables are read through their indexes whatever the statistics say: they
 * may be empty when planned and hold millions an hour later.  With sequential and bitmap
 * scans (which read all before the first row) priced out, a plan made at any
 * time is right at all times, so it is made once, as a generic one.  Nor is a part of an order, by an index of all, better
 * than the whole of it by the index that has just what is looked for.  jit must be
 * off then: it would take the price of a scan that is not to be avoided as real.
 */
static const Setting plan_settings[] = {
	{"enable_seqscan", "off"},
	{"enable_bitmapscan", "off"},
	{"enable_indexscan", "on"},
	{"enable_indexonlyscan", "on"},
	{"enable_nestloop", "on"},
	{"enable_incremental_sort", "off"},
	{"plan_cache_mode", "force_generic_plan"},
};

/* What our processes find whatever the database and its roles are set to. */
static const Setting process_settings[] = {
	{"search_path", "pg_catalog, pg_temp"},
	{"default_transaction_isolation", "read committed"},
	{"default_transaction_read_only", "off"},
	{"default_transaction_deferrable", "off"},
	{"statement_timeout", "0"},
	{"lock_timeout", OWN_LOCK_TIMEOUT}, /* of our own statements; they never mean to wait */
	{"idle_in_transaction_session_timeout", "0"},
	{"idle_session_timeout", "0"},
#ifdef OUTBOX_HAS_TRANSACTION_TIMEOUT
	{"transaction_timeout", "0"},
#endif
	{"session_replication_role", "origin"},
	{"row_security", "off"},
	{"exit_on_error", "off"},
	{"client_min_messages", "warning"},
	{"DateStyle", "ISO, MDY"},
	{"IntervalStyle", "postgres"},
	{"bytea_output", "hex"},
	{"extra_float_digits", "1"},
	{"array_nulls", "on"},
	{"transform_null_equals", "off"},
	{"standard_conforming_strings", "on"},
	{"quote_all_identifiers", "off"},
	{"default_tablespace", ""},
	{"default_table_access_method", "heap"},
	{"max_parallel_workers_per_gather", "0"},
	{"max_parallel_maintenance_workers", "0"},
	{OUTBOX_COMPAT_FORCE_PARALLEL, "off"},
	{"jit", "off"},
	/* of modules that may be loaded: they would write our parameters, and those of handlers, into the log */
	{"auto_explain.log_min_duration", "-1"},
	{"pgaudit.log_parameter", "off"},
};

/* what stood there before: handlers find these */
static char *default_plan_settings[lengthof(plan_settings)];
static char *default_search_path = NULL;

static void pin(const char *name, const char *value);
static void put_aside(const char *name, const char *value);
static void put_aside_plan_settings(void);

void
outbox_session_enter(OutboxSession *session)
{
	Oid			owner = outbox_session_owner();

	session->guc_level = NewGUCNestLevel();

	/* what is right already is left alone: this may be called for each event */
	if (strcmp(namespace_search_path, "pg_catalog, pg_temp") != 0)
		put_aside("search_path", "pg_catalog, pg_temp");
	/* a policy must never hide a row from us silently: off makes that an error */
	if (row_security)
		put_aside("row_security", "off");
	/* under "replica" the trigger that counts exceptions would not fire */
	if (SessionReplicationRole != SESSION_REPLICATION_ROLE_ORIGIN)
		put_aside("session_replication_role", "origin");
	/* segments are made where the database's tables are, not where the publisher's are */
	if (default_tablespace != NULL && default_tablespace[0] != '\0')
		put_aside("default_tablespace", "");
	if (strcmp(default_table_access_method, "heap") != 0)
		put_aside("default_table_access_method", "heap");
	if (max_parallel_workers_per_gather != 0)
		put_aside("max_parallel_workers_per_gather", "0");
	if (max_parallel_maintenance_workers != 0)
		put_aside("max_parallel_maintenance_workers", "0");
	if (jit_enabled)
		put_aside("jit", "off");
	put_aside_plan_settings();

	GetUserIdAndSecContext(&session->userid, &session->sec_context);
	SetUserIdAndSecContext(owner, session->sec_context | SECURITY_LOCAL_USERID_CHANGE);
}

void
outbox_session_leave(OutboxSession *session)
{
	SetUserIdAndSecContext(session->userid, session->sec_context);
	AtEOXact_GUC(true, session->guc_level);
}

void
outbox_session_pin(bool synchronous_commit)
{
	for (int i = 0; i < lengthof(plan_settings); i++)
	{
		default_plan_settings[i] = MemoryContextStrdup(TopMemoryContext,
													   GetConfigOption(plan_settings[i].name, false, false));
		pin(plan_settings[i].name, plan_settings[i].value);
	}
	pin("role", "none");
	for (int i = 0; i < lengthof(process_settings); i++)
		pin(process_settings[i].name, process_settings[i].value);
	pin("synchronous_commit", synchronous_commit ? "on" : "off");
	pin("application_name", MyBgworkerEntry->bgw_name);
}

/* Pinned values are the ones that RESET goes back to. */
void
outbox_session_repin(void)
{
	ResetAllOptions();
}

/*
 * Outside of a transaction nothing is put on a stack, and calls of handlers find none: with
 * something on it, PostgreSQL 15 goes through all its settings at the end of each nest level.
 */
void
outbox_session_for_handlers(const char *search_path)
{
	Assert(!IsTransactionState());
	for (int i = 0; i < lengthof(plan_settings); i++)
		SetConfigOption(plan_settings[i].name, default_plan_settings[i], PGC_SUSET, PGC_S_SESSION);
	SetConfigOption("search_path", search_path, PGC_SUSET, PGC_S_SESSION);
	SetConfigOption("row_security", "on", PGC_SUSET, PGC_S_SESSION);
	SetConfigOption("lock_timeout", "0", PGC_SUSET, PGC_S_SESSION);
}

int
outbox_session_begin_own(void)
{
	int			level = NewGUCNestLevel();

	put_aside_plan_settings();
	put_aside("search_path", "pg_catalog, pg_temp");
	put_aside("row_security", "off");
	put_aside("lock_timeout", OWN_LOCK_TIMEOUT);
	return level;
}

void
outbox_session_end_own(int level)
{
	AtEOXact_GUC(true, level);
}

void
outbox_session_remember_search_path(void)
{
	default_search_path = MemoryContextStrdup(TopMemoryContext, GetConfigOption("search_path", false, false));
}

const char *
outbox_session_default_search_path(void)
{
	return default_search_path;
}

static void
pin(const char *name, const char *value)
{
	SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE);
}

Oid
outbox_session_owner(void)
{
	Oid			schema = get_namespace_oid(OUTBOX_SCHEMA, true);
	Oid			relid = OidIsValid(schema) ? get_relname_relid("event_log", schema) : InvalidOid;
	HeapTuple	tuple = OidIsValid(relid) ? SearchSysCache1(RELOID, ObjectIdGetDatum(relid)) : NULL;
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"%s\" is not installed in this database", OUTBOX_LIBRARY),
				 errhint("Run CREATE EXTENSION outbox.")));
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return owner;
}

/* Until the GUC nest level ends.  Our right to set it does not depend on the caller's. */
static void
put_aside(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

static void
put_aside_plan_settings(void)
{
	if (enable_seqscan)
		put_aside("enable_seqscan", "off");
	if (enable_bitmapscan)
		put_aside("enable_bitmapscan", "off");
	if (!enable_indexscan)
		put_aside("enable_indexscan", "on");
	if (!enable_indexonlyscan)
		put_aside("enable_indexonlyscan", "on");
	if (!enable_nestloop)
		put_aside("enable_nestloop", "on");
	if (enable_incremental_sort)
		put_aside("enable_incremental_sort", "off");
	if (plan_cache_mode != PLAN_CACHE_MODE_FORCE_GENERIC_PLAN)
		put_aside("plan_cache_mode", "force_generic_plan");
}
