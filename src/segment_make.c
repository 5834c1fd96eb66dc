/*
 * segment_make.c - the tables of a new segment.
 *
 * Parse trees are handed to the commands' own functions: no text is put together,
 * and event triggers and utility hooks, which could stop a publisher or do
 * something else under the owner's name, are not reached.
 *
 * Segments are no members of the extension: they hold data that a dump must
 * carry.  An automatic dependency on their parent lets DROP EXTENSION take them along.
 */
#include "outbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/reloptions.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/heap.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_depend.h"
#include "catalog/toasting.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "commands/tablecmds.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/uuid.h"

#include "extension.h"
#include "segment_adopt.h"
#include "segment_make.h"
#include "session.h"

static const OutboxTableRecipe event_log_recipe = {"event_log", {"event_id"}, "xid"};
static const OutboxTableRecipe receipt_log_recipe = {"receipt_log", {"event_id", "subscription_id", "replay_no"}, NULL};

/* ---------------------------------------------------------------- parse trees */

static Node *
make_string_constant(const char *value)
{
	A_Const    *constant = makeNode(A_Const);

	constant->val.sval.type = T_String;
	constant->val.sval.sval = pstrdup(value);
	constant->location = -1;
	return (Node *) constant;
}

/* event_id <operator> '<id>'::uuid */
static Node *
make_comparison(const char *operator, const pg_uuid_t *id)
{
	ColumnRef  *column = makeNode(ColumnRef);
	TypeCast   *bound = makeNode(TypeCast);

	column->fields = list_make1(makeString(pstrdup("event_id")));
	column->location = -1;
	bound->arg = make_string_constant(DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(id))));
	bound->typeName = makeTypeNameFromNameList(list_make2(makeString(pstrdup("pg_catalog")),
														  makeString(pstrdup("uuid"))));
	bound->location = -1;
	return (Node *) makeA_Expr(AEXPR_OP,
							   list_make2(makeString(pstrdup("pg_catalog")), makeString(pstrdup(operator))),
							   (Node *) column, (Node *) bound, -1);
}

static Constraint *
make_range_check(const char *relname, const pg_uuid_t *from, const pg_uuid_t *to)
{
	Constraint *check = makeNode(Constraint);

	check->contype = CONSTR_CHECK;
	check->conname = psprintf("%s_range", relname);
	check->location = -1;
	check->raw_expr = (Node *) makeBoolExpr(AND_EXPR, list_make2(make_comparison(">=", from),
																 make_comparison("<", to)), -1);
	check->initially_valid = true;
	outbox_compat_enforce(check);
	return check;
}

static IndexElem *
make_index_column(const char *name)
{
	IndexElem  *column = makeNode(IndexElem);

	column->name = pstrdup(name);
	column->ordering = SORTBY_DEFAULT;
	column->nulls_ordering = SORTBY_NULLS_DEFAULT;
	return column;
}

static void
make_index(Oid relid, const char *relname, char *name, List *columns, bool primary)
{
	IndexStmt  *stmt = makeNode(IndexStmt);

	stmt->idxname = name;
	stmt->relation = makeRangeVar(OUTBOX_SCHEMA, pstrdup(relname), -1);
	stmt->accessMethod = "btree";
	stmt->indexParams = columns;
	stmt->unique = primary;
	stmt->primary = primary;
	stmt->isconstraint = primary;
	stmt->transformed = true;
	(void) outbox_compat_define_index(relid, stmt);
	CommandCounterIncrement();
}

/* ---------------------------------------------------------------- rights */

static RoleSpec *
make_role(Oid role)
{
	RoleSpec   *spec = makeNode(RoleSpec);

	spec->location = -1;
	if (role == ACL_ID_PUBLIC)
		spec->roletype = ROLESPEC_PUBLIC;
	else
	{
		spec->roletype = ROLESPEC_CSTRING;
		spec->rolename = GetUserNameFromId(role, false);
	}
	return spec;
}

/* Everybody but the owner who was given something, by default privileges. */
static List *
list_grantees(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	List	   *grantees = NIL;
	bool		isnull;
	Datum		value;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	value = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_relacl, &isnull);
	if (!isnull)
	{
		Acl		   *acl = DatumGetAclPCopy(value);
		Oid			owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;

		for (int i = 0; i < ACL_NUM(acl); i++)
		{
			if (ACL_DAT(acl)[i].ai_grantee != owner)
				grantees = lappend(grantees, make_role(ACL_DAT(acl)[i].ai_grantee));
		}
	}
	ReleaseSysCache(tuple);
	return grantees;
}

static void
revoke_default_privileges(Oid relid, const char *relname)
{
	GrantStmt  *stmt;
	List	   *grantees = list_grantees(relid);

	if (grantees == NIL)
		return;
	stmt = makeNode(GrantStmt);
	stmt->is_grant = false;
	stmt->targtype = ACL_TARGET_OBJECT;
	stmt->objtype = OBJECT_TABLE;
	stmt->objects = list_make1(makeRangeVar(OUTBOX_SCHEMA, pstrdup(relname), -1));
	stmt->grantees = grantees;
	stmt->behavior = DROP_CASCADE;
	ExecuteGrantStmt(stmt);
	CommandCounterIncrement();
}

/* Nobody but the owner sees a row here, whatever is granted: the views know whose rows are whose. */
static void
close_by_row_security(Oid relid)
{
	AlterTableCmd *command = makeNode(AlterTableCmd);

	command->subtype = AT_EnableRowSecurity;
	AlterTableInternal(relid, list_make1(command), false);
	CommandCounterIncrement();
}

/* ---------------------------------------------------------------- tables */

/* What CREATE TABLE does, for a child of the parent with one check constraint. */
static Oid
make_table(const char *parent, const char *relname, const pg_uuid_t *from, const pg_uuid_t *to)
{
	CreateStmt *stmt = makeNode(CreateStmt);
	Oid			relid;

	stmt->relation = makeRangeVar(OUTBOX_SCHEMA, pstrdup(relname), -1);
	stmt->inhRelations = list_make1(makeRangeVar(OUTBOX_SCHEMA, pstrdup(parent), -1));
	stmt->constraints = list_make1(make_range_check(relname, from, to));
	stmt->oncommit = ONCOMMIT_NOOP;
	stmt->accessMethod = "heap";
	relid = DefineRelation(stmt, RELKIND_RELATION, GetUserId(), NULL, "").objectId;
	CommandCounterIncrement();
	NewRelationCreateToastTable(relid, (Datum) 0);
	CommandCounterIncrement();
	return relid;
}

static void
depend_on_parent(Oid relid, const char *parent)
{
	ObjectAddress child_address;
	ObjectAddress parent_address;

	ObjectAddressSet(child_address, RelationRelationId, relid);
	ObjectAddressSet(parent_address, RelationRelationId, outbox_extension_relid(parent));
	recordDependencyOn(&child_address, &parent_address, DEPENDENCY_AUTO);
}

/* Is there an automatic dependency of the one on the other? */
static bool
depends_on(Oid relid, Oid parent)
{
	Relation	catalog = table_open(DependRelationId, AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	ScanKeyInit(&keys[0], Anum_pg_depend_classid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(RelationRelationId));
	ScanKeyInit(&keys[1], Anum_pg_depend_objid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(catalog, DependDependerIndexId, true, NULL, 2, keys);
	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(tuple);

		found = form->objsubid == 0 && form->refclassid == RelationRelationId && form->refobjid == parent &&
			form->deptype == DEPENDENCY_AUTO;
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return found;
}

void
outbox_segment_make_dependent(Oid relid, const char *parent)
{
	if (!depends_on(relid, outbox_extension_relid(parent)))
		depend_on_parent(relid, parent);
}

static Oid
make_by_recipe(const OutboxTableRecipe *recipe, const char *relname, const pg_uuid_t *from, const pg_uuid_t *to)
{
	Oid			relid = make_table(recipe->parent, relname, from, to);
	List	   *key = NIL;

	for (int i = 0; i < lengthof(recipe->key) && recipe->key[i] != NULL; i++)
		key = lappend(key, make_index_column(recipe->key[i]));
	make_index(relid, relname, psprintf("%s_pkey", relname), key, true);
	if (recipe->second_index != NULL)
		make_index(relid, relname, psprintf("%s_%s", relname, recipe->second_index),
				   list_make1(make_index_column(recipe->second_index)), false);
	close_by_row_security(relid);
	return relid;
}

/* A table that a restore has brought is taken when it is what would be made. */
static void
follow_recipe(const OutboxTableRecipe *recipe, const char *name, const pg_uuid_t *from, const pg_uuid_t *to)
{
	char	   *relname = psprintf("%s_%s", recipe->parent, name);
	Oid			relid = get_relname_relid(relname, get_namespace_oid(OUTBOX_SCHEMA, false));

	if (OidIsValid(relid))
		outbox_segment_adopt_check(relid, recipe, name, from, to);
	else
		relid = make_by_recipe(recipe, relname, from, to);
	outbox_segment_make_dependent(relid, recipe->parent);
	revoke_default_privileges(relid, relname);
}

/*
 * An extension script that publishes would make our segments its members, hence creating_extension
 * is put aside.
 */
void
outbox_segment_make_tables(const char *name, const pg_uuid_t *from, const pg_uuid_t *to, bool has_receipts)
{
	volatile bool in_script = creating_extension;
	OutboxSession session;

	outbox_session_enter(&session);
	creating_extension = false;
	PG_TRY();
	{
		follow_recipe(&event_log_recipe, name, from, to);
		if (!has_receipts)
			follow_recipe(&receipt_log_recipe, name, from, to);
	}
	PG_FINALLY();
	{
		creating_extension = in_script;
	}
	PG_END_TRY();
	outbox_session_leave(&session);
}
