/*
 * api_tenant.c - what the views ask about tenants.
 *
 * Each view asks of each row whether it is for this session.  That question must come before any other one: a function in
 * somebody's WHERE could tell what it was called with.  Security barriers would see to it, but a view that is one cannot
 * be joined by an index, and a log is large.  PostgreSQL asks what is cheapest first; so these
 * functions say that they cost nothing, which nobody else can say: COST must be above 0, and only superusers name
 * support functions.  It holds where the row and what is asked about it are of one table.  So a view shows columns of a
 * joined table only where that table is asked as well, where it is read in a lateral subquery with LIMIT or an aggregate, or
 * in an expression with columns of the table that is asked, which cannot be computed before that one has been.
 * Definitions (of subscriptions, of event types) are no tenant's: their columns are not kept apart.
 */
#include "outbox.h"

#include "fmgr.h"
#include "nodes/supportnodes.h"
#include "utils/builtins.h"
#include "utils/uuid.h"

#include "settings.h"
#include "tenant.h"

PG_FUNCTION_INFO_V1(outbox_tenant_support);
PG_FUNCTION_INFO_V1(outbox_tenant_is_visible_sql);
PG_FUNCTION_INFO_V1(outbox_event_is_visible);
PG_FUNCTION_INFO_V1(outbox_sees_all_tenants);
PG_FUNCTION_INFO_V1(outbox_require_all_tenants);
PG_FUNCTION_INFO_V1(outbox_tenant_of);

Datum
outbox_tenant_support(PG_FUNCTION_ARGS)
{
	Node	   *request = (Node *) PG_GETARG_POINTER(0);
	SupportRequestCost *cost;

	if (!IsA(request, SupportRequestCost))
		PG_RETURN_POINTER(NULL);
	cost = (SupportRequestCost *) request;
	cost->startup = 0;
	cost->per_tuple = 0;
	PG_RETURN_POINTER(cost);
}

Datum
outbox_tenant_is_visible_sql(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(outbox_tenant_is_visible(PG_ARGISNULL(0) ? 0 : PG_GETARG_DATUM(0)));
}

Datum
outbox_event_is_visible(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(PG_ARGISNULL(0) ? outbox_tenant_sees_all() : outbox_tenant_event_is_visible(PG_GETARG_UUID_P(0)));
}

Datum
outbox_sees_all_tenants(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(outbox_tenant_sees_all());
}

/* Pages of text have no rows to leave out: half of one would say that nothing is stuck. */
Datum
outbox_require_all_tenants(PG_FUNCTION_ARGS)
{
	if (!outbox_tenant_sees_all())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("%s tells of all tenants, and this session is of one", text_to_cstring(PG_GETARG_TEXT_PP(0))),
				 errdetail("The setting \"%s\" names a tenant.", outbox_tenant_setting),
				 errhint("Monitors, operators and the extension's owner call it where the setting is empty. The views outbox.delivery and outbox.review_required show a tenant its own deliveries.")));
	PG_RETURN_BOOL(true);
}

/* Without asking whose it is; NULL when the session may not see it. */
Datum
outbox_tenant_of(PG_FUNCTION_ARGS)
{
	Datum		tenant = outbox_tenant_find(PG_GETARG_UUID_P(0));

	if (DatumGetPointer(tenant) == NULL || !outbox_tenant_is_visible(tenant))
		PG_RETURN_NULL();
	PG_RETURN_DATUM(tenant);
}
