/*
 * planner_statistics.c - the planner's statistics of our tables are not for functions that tell.
 *
 * To guess how many rows a condition leaves, the planner calls its operator with the most common values of a
 * column, other tenants' too, and the operator may be anybody's: CREATE OPERATOR needs no more than a function.  It refrains from
 * that where row-level security is in force or a view is a security barrier; our views are neither (api_tenant.c).
 * So where a setting tells tenants apart it hears that only leakproof functions may be called with them.
 */
#include "outbox.h"

#include "catalog/namespace.h"
#include "nodes/parsenodes.h"
#include "utils/lsyscache.h"
#include "utils/selfuncs.h"
#include "utils/syscache.h"

#include "planner_statistics.h"
#include "settings.h"

static get_relation_stats_hook_type next_hook = NULL;

static bool
is_ours(Oid relid)
{
	Oid			schema = get_namespace_oid(OUTBOX_SCHEMA, true);

	return OidIsValid(schema) && get_rel_namespace(relid) == schema;
}

static bool
find_statistics(PlannerInfo *root, RangeTblEntry *rte, AttrNumber column, VariableStatData *found)
{
	bool		done = next_hook != NULL && next_hook(root, rte, column, found);

	if (rte->rtekind != RTE_RELATION || !outbox_settings_has_tenants() || !is_ours(rte->relid))
		return done;
	if (!done)
	{
		found->statsTuple = SearchSysCache3(STATRELATTINH, ObjectIdGetDatum(rte->relid), Int16GetDatum(column), BoolGetDatum(rte->inh));
		found->freefunc = ReleaseSysCache;
	}
	found->acl_ok = false;
	return true;
}

void
outbox_planner_statistics_install(void)
{
	next_hook = get_relation_stats_hook;
	get_relation_stats_hook = find_statistics;
}
