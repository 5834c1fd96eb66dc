/*
 * grants.c - give and take the rights that rights.c asks for.
 *
 * A right is two things: a row of outbox.role_grant, which says what for, and ordinary
 * privileges on the schema, functions and views that the role needs for it.  Both are needed.  PostgreSQL
 * dumps the privileges, binds them to the role whatever it is called, and keeps a
 * role from being dropped while it has any; the row is the part that it has no words for.
 *
 * Privileges are granted by the commands' own functions, as the extension's owner.  What an extension's script
 * grants would count as the extension's initial privileges, which no dump carries: hence creating_extension
 * is put aside.
 */
#include "outbox.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "extension.h"
#include "grants.h"
#include "rights.h"
#include "session.h"
#include "settings.h"
#include "store.h"

#define KIND(kind) (1 << (kind))

#define P	KIND(GRANT_PUBLISHER)
#define W	KIND(GRANT_WORKER)
#define O	KIND(GRANT_OPERATOR)
#define M	KIND(GRANT_MONITOR)

/* what goes with which right */
typedef struct GrantedObject
{
	const char *name;			/* in our schema; a function's: all of that name */
	int			kinds;
} GrantedObject;

static const GrantedObject granted_functions[] = {
	{"publish", P},
	{"publish_batch", P},
	{"publish_row", P},
	/* handlers are code of those who publish or work */
	{"current_delivery", P | W},
	{"fail_permanently", P | W},
	{"retry_after", P | W},
	{"envelope", P | W},
	{"consume_once", P | W},
	{"claim", W},
	{"ack", W},
	{"ack_all", W},
	{"ack_one", W},
	{"fail", W},
	{"extend", W},
	{"release", W},
	{"release_all", W},
	{"wait", W},
	{"subscribe", O},
	{"alter_subscription", O},
	{"unsubscribe", O},
	{"pause", O},
	{"resume", O},
	{"matching_subscriptions", O},
	{"define_event_type", O},
	{"drop_event_type", O},
	{"retry", O},
	{"retry_all", O},
	{"discard", O},
	{"replay", O},
	{"drain", O},
	{"maintain", O},
	{"schedule_maintenance", O},
	{"activate", O},
	{"status", O | M},
	{"report", O | M},
	/* what the views call; the first three also those that are granted by hand */
	{"tenant_is_visible", P | W | O | M},
	{"event_is_visible", P | W | O | M},
	{"sees_all_tenants", P | W | O | M},
	{"process_list", O | M},
	{"clock", O | M},
	{"is_held", O | M},
	{"tenant_of", O | M},
	{"may_be_there", O | M},
	{"lane_to_search", O | M},
	{"gates_to_search", O | M},
	{"due_times_to_search", O | M},
	{"apart", O | M},
	{"published_at_of", O | M},
	{"counters", O | M},
	{"open_counts", O | M},
	{"is_open", O | M},
	{"failure_counters", O | M},
	{"unmatched_types", O | M},
	{"lease_events", O | M},
	{"oldest_since", O | M},
};

static const GrantedObject granted_views[] = {
	{"delivery", O | M},
	{"attempt", O | M},
	{"review_required", O | M},
	{"blocked_key", O | M},
	{"subscription_status", O | M},
	{"maintenance_status", O | M},
	{"worker_status", O | M},
	{"operator_log", O | M},
	{"event_type", O | M},
	{"metrics", O | M},
	{"failure_metrics", O | M},
	{"review_metrics", O | M},
	{"server_metrics", O | M},
	{"snapshot_holder", O | M},
	{"unmatched_event_type", O | M},
};

static const char *const kind_names[OUTBOX_GRANT_KINDS] = {
	[GRANT_PUBLISHER] = "publisher",
	[GRANT_WORKER] = "worker",
	[GRANT_OPERATOR] = "operator",
	[GRANT_MONITOR] = "monitor",
};

static OutboxStatement insert_grant = {
	"insert into outbox.role_grant (role_name, kind, scope, granted_at, granted_by)"
	" select $1, $2, scope, $4, $5 from pg_catalog.unnest($3) as scope"
	" on conflict (role_name, kind, scope) do nothing",
	5, {TEXTOID, TEXTOID, TEXTARRAYOID, TIMESTAMPTZOID, TEXTOID}
};

static OutboxStatement delete_grant = {
	"delete from outbox.role_grant where role_name = $1 and kind = $2 and scope = any ($3)",
	3, {TEXTOID, TEXTOID, TEXTARRAYOID}
};

static OutboxStatement insert_bound = {
	"insert into outbox.granted_role (role_id, role_name) values ($1, $2) on conflict (role_id) do nothing",
	2, {OIDOID, TEXTOID}
};

static OutboxStatement select_kinds = {
	"select distinct kind from outbox.role_grant where role_name = $1",
	1, {TEXTOID}
};

static OutboxStatement select_bound = {
	"select role_id, role_name from outbox.granted_role order by role_id"
};

static OutboxStatement any_stale = {
	"select 1 where exists (select from outbox.granted_role b left join pg_catalog.pg_roles a on a.oid = b.role_id"
	" where a.rolname is null or a.rolname::text <> b.role_name)"
	" or exists (select from outbox.role_grant g join pg_catalog.pg_roles a on a.rolname::text = g.role_name"
	" where not exists (select from outbox.granted_role b where b.role_name = g.role_name or b.role_id = a.oid))"
};

/*
 * Roles that are gone take their rights along.  Names of those renamed are put aside first, as two may have
 * changed theirs for each other's; rows that stood under a new name were nobody's.
 */
static OutboxStatement follow_roles[] = {
	{"with gone as (delete from outbox.granted_role b where not exists (select from pg_catalog.pg_roles a where a.oid = b.role_id)"
		" returning b.role_name)"
	" delete from outbox.role_grant g using gone where g.role_name = gone.role_name"},
	{"update outbox.role_grant g set role_name = pg_catalog.chr(10) || b.role_id from outbox.granted_role b"
		" join pg_catalog.pg_roles a on a.oid = b.role_id"
	" where g.role_name = b.role_name and a.rolname::text <> b.role_name"},
	{"update outbox.granted_role b set role_name = pg_catalog.chr(10) || b.role_id from pg_catalog.pg_roles a"
	" where a.oid = b.role_id and a.rolname::text <> b.role_name"},
	{"delete from outbox.role_grant g using pg_catalog.pg_roles a, outbox.granted_role b"
	" where b.role_name = pg_catalog.chr(10) || a.oid and g.role_name = a.rolname::text"},
	{"update outbox.role_grant g set role_name = a.rolname::text from pg_catalog.pg_roles a"
	" where g.role_name = pg_catalog.chr(10) || a.oid"},
	{"update outbox.granted_role b set role_name = a.rolname::text from pg_catalog.pg_roles a"
	" where b.role_name = pg_catalog.chr(10) || a.oid"},
	{"insert into outbox.granted_role (role_id, role_name)"
		" select distinct a.oid, a.rolname::text from outbox.role_grant g join pg_catalog.pg_roles a on a.rolname::text = g.role_name"
	" where not exists (select from outbox.granted_role b where b.role_name = g.role_name or b.role_id = a.oid)"},
};

/* ---------------------------------------------------------------- parse trees */

/* schema, function with its arguments: one for each of the name */
static List *
list_functions(List *functions, const char *name)
{
	CatCList   *found = SearchSysCacheList1(PROCNAMEARGSNSP, CStringGetDatum(name));
	Oid			schema = get_namespace_oid(OUTBOX_SCHEMA, false);

	for (int i = 0; i < found->n_members; i++)
	{
		Form_pg_proc form = (Form_pg_proc) GETSTRUCT(&found->members[i]->tuple);
		ObjectWithArgs *function;

		if (form->pronamespace != schema)
			continue;
		function = makeNode(ObjectWithArgs);
		function->objname = list_make2(makeString(pstrdup(OUTBOX_SCHEMA)), makeString(pstrdup(name)));
		for (int j = 0; j < form->pronargs; j++)
			function->objargs = lappend(function->objargs, makeTypeNameFromOid(form->proargtypes.values[j], -1));
		functions = lappend(functions, function);
	}
	ReleaseSysCacheList(found);
	return functions;
}

static List *
list_views(List *views, const char *name)
{
	if (!OidIsValid(get_relname_relid(name, get_namespace_oid(OUTBOX_SCHEMA, false))))
		return views;
	return lappend(views, makeRangeVar(pstrdup(OUTBOX_SCHEMA), pstrdup(name), -1));
}

static void
change_privilege(bool is_grant, ObjectType type, List *objects, const char *privilege, const char *role_name)
{
	GrantStmt  *stmt = makeNode(GrantStmt);
	AccessPriv *wanted = makeNode(AccessPriv);
	RoleSpec   *role = makeNode(RoleSpec);

	if (objects == NIL)
		return;
	wanted->priv_name = pstrdup(privilege);
	role->roletype = ROLESPEC_CSTRING;
	role->rolename = pstrdup(role_name);
	role->location = -1;
	stmt->is_grant = is_grant;
	stmt->targtype = ACL_TARGET_OBJECT;
	stmt->objtype = type;
	stmt->objects = objects;
	stmt->privileges = list_make1(wanted);
	stmt->grantees = list_make1(role);
	stmt->behavior = DROP_CASCADE;
	ExecuteGrantStmt(stmt);
	CommandCounterIncrement();
}

/* What goes with any of the kinds, and with none of those that stay. */
static void
change_privileges(bool is_grant, int kinds, int staying, const char *role_name)
{
	List	   *functions = NIL;
	List	   *views = NIL;

	for (int i = 0; i < lengthof(granted_functions); i++)
	{
		if ((granted_functions[i].kinds & kinds) && !(granted_functions[i].kinds & staying))
			functions = list_functions(functions, granted_functions[i].name);
	}
	for (int i = 0; i < lengthof(granted_views); i++)
	{
		if ((granted_views[i].kinds & kinds) && !(granted_views[i].kinds & staying))
			views = list_views(views, granted_views[i].name);
	}
	if (staying == 0)
		change_privilege(is_grant, OBJECT_SCHEMA, list_make1(makeString(pstrdup(OUTBOX_SCHEMA))), "usage", role_name);
	change_privilege(is_grant, OBJECT_ROUTINE, functions, "execute", role_name);
	change_privilege(is_grant, OBJECT_TABLE, views, "select", role_name);
}

static void
change_privileges_outside_of_scripts(bool is_grant, int kinds, int staying, const char *role_name)
{
	volatile bool in_script = creating_extension;

	creating_extension = false;
	PG_TRY();
	{
		change_privileges(is_grant, kinds, staying, role_name);
	}
	PG_FINALLY();
	{
		creating_extension = in_script;
	}
	PG_END_TRY();
}

/* ---------------------------------------------------------------- rows */

/* The kinds of rights that a role has, as bits. */
static int
read_kinds(const char *role_name)
{
	Datum		arg = CStringGetTextDatum(role_name);
	int			kinds = 0;

	(void) outbox_store_run(&select_kinds, &arg, NULL, 0);
	for (uint64 row = 0; row < SPI_processed; row++)
	{
		const char *name = outbox_store_text(row, 1);

		for (int kind = 0; kind < OUTBOX_GRANT_KINDS; kind++)
			kinds |= strcmp(name, kind_names[kind]) == 0 ? KIND(kind) : 0;
	}
	return kinds;
}

static Datum
make_scopes(char **scopes, int n)
{
	Datum	   *values = palloc(Max(n, 1) * sizeof(Datum));

	for (int i = 0; i < n; i++)
		values[i] = CStringGetTextDatum(scopes[i]);
	return PointerGetDatum(construct_array(values, n, TEXTOID, -1, false, TYPALIGN_INT));
}

static void
bind_role(Oid role, const char *role_name)
{
	Datum		values[2] = {ObjectIdGetDatum(role), CStringGetTextDatum(role_name)};

	(void) outbox_store_run(&insert_bound, values, NULL, 0);
}

/* One at a time: two who change the privileges of one function would meet in the catalog. */
static bool
lock_grants(bool wait)
{
	Oid			relid = outbox_extension_relid("role_grant");

	if (!wait)
		return ConditionalLockRelationOid(relid, ShareUpdateExclusiveLock);
	LockRelationOid(relid, ShareUpdateExclusiveLock);
	return true;
}

void
outbox_grants_refresh(bool wait)
{
	if (outbox_store_run(&any_stale, NULL, NULL, 1) == 0 || !lock_grants(wait))
		return;
	for (int i = 0; i < lengthof(follow_roles); i++)
		(void) outbox_store_run(&follow_roles[i], NULL, NULL, 0);
	outbox_rights_changed();
}

bool
outbox_grants_give(OutboxGrantKind kind, const char *role_name, char **scopes, int nscopes)
{
	Oid			role = get_role_oid(role_name, false);
	Oid			caller = GetUserId();
	Datum		values[5];
	OutboxSession session;
	bool		changed;

	SPI_connect();
	outbox_session_enter(&session);
	(void) lock_grants(true);
	outbox_grants_refresh(true);
	bind_role(role, role_name);
	values[0] = CStringGetTextDatum(role_name);
	values[1] = CStringGetTextDatum(kind_names[kind]);
	values[2] = make_scopes(scopes, nscopes);
	values[3] = TimestampTzGetDatum(outbox_settings_now());
	values[4] = CStringGetTextDatum(GetUserNameFromId(caller, false));
	changed = outbox_store_run(&insert_grant, values, NULL, 0) > 0;
	change_privileges_outside_of_scripts(true, KIND(kind), 0, role_name);
	outbox_rights_changed();
	outbox_session_leave(&session);
	SPI_finish();
	return changed;
}

/* A role that is gone has no privileges any more, but may have rows. */
bool
outbox_grants_take(OutboxGrantKind kind, const char *role_name, char **scopes, int nscopes)
{
	Datum		values[3];
	OutboxSession session;
	int			staying;
	bool		changed;

	SPI_connect();
	outbox_session_enter(&session);
	(void) lock_grants(true);
	outbox_grants_refresh(true);
	values[0] = CStringGetTextDatum(role_name);
	values[1] = CStringGetTextDatum(kind_names[kind]);
	values[2] = make_scopes(scopes, nscopes);
	changed = outbox_store_run(&delete_grant, values, NULL, 0) > 0;
	staying = read_kinds(role_name);
	if (changed && !(staying & KIND(kind)) && OidIsValid(get_role_oid(role_name, true)))
		change_privileges_outside_of_scripts(false, KIND(kind), staying, role_name);
	outbox_rights_changed();
	outbox_session_leave(&session);
	SPI_finish();
	return changed;
}

void
outbox_grants_reassert(void)
{
	OutboxSession session;
	char	  **names;
	uint64		n;

	SPI_connect();
	outbox_session_enter(&session);
	(void) lock_grants(true);
	outbox_grants_refresh(true);
	n = outbox_store_run(&select_bound, NULL, NULL, 0);
	names = palloc((n + 1) * sizeof(char *));
	for (uint64 i = 0; i < n; i++)
		names[i] = outbox_store_text(i, 2);
	for (uint64 i = 0; i < n; i++)
	{
		int			kinds = read_kinds(names[i]);

		if (kinds != 0)
			change_privileges_outside_of_scripts(true, kinds, 0, names[i]);
	}
	outbox_session_leave(&session);
	SPI_finish();
}
