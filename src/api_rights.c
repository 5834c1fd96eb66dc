/*
 * api_rights.c - grant_publisher(), grant_worker(), grant_operator(), grant_monitor() and their revokes.
 */
#include "outbox.h"

#include "executor/spi.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "definition.h"
#include "grants.h"
#include "operator.h"
#include "rights.h"
#include "session.h"

PG_FUNCTION_INFO_V1(outbox_grant_publisher);
PG_FUNCTION_INFO_V1(outbox_grant_worker);
PG_FUNCTION_INFO_V1(outbox_grant_operator);
PG_FUNCTION_INFO_V1(outbox_grant_monitor);
PG_FUNCTION_INFO_V1(outbox_revoke_publisher);
PG_FUNCTION_INFO_V1(outbox_revoke_worker);
PG_FUNCTION_INFO_V1(outbox_revoke_operator);
PG_FUNCTION_INFO_V1(outbox_revoke_monitor);
PG_FUNCTION_INFO_V1(outbox_reassert_grants);

/* one call */
typedef struct Change
{
	OutboxGrantKind kind;
	bool		is_grant;
	const char *action;			/* its name, for the operator log */
	char	  **scopes;
	int			nscopes;
	const char *subscription;	/* or NULL */
} Change;

static char *no_scope[] = {""};

/* A right to a subscription that is still to be made would be one to whatever somebody makes of that name. */
static void
check_subscription(const char *name)
{
	OutboxSession session;

	SPI_connect();
	outbox_session_enter(&session);
	(void) outbox_operator_find_subscription(name);
	outbox_session_leave(&session);
	SPI_finish();
}

static void
record(const Change *change, const char *role_name)
{
	OutboxSession session;
	StringInfoData reason;
	Oid			caller = GetUserId();

	initStringInfo(&reason);
	appendStringInfoString(&reason, role_name);
	for (int i = 0; change->kind == GRANT_PUBLISHER && i < change->nscopes; i++)
		appendStringInfo(&reason, "%s %s", i == 0 ? ":" : ",", change->scopes[i]);
	SPI_connect();
	outbox_session_enter(&session);
	outbox_operator_record(caller, change->action, change->subscription, NULL, reason.data);
	outbox_session_leave(&session);
	SPI_finish();
}

static Datum
make_change(FunctionCallInfo fcinfo, Change *change)
{
	char	   *role_name = TextDatumGetCString(outbox_operator_get_required(fcinfo, 0, "role_name"));
	bool		changed;

	outbox_rights_require_owner(GetUserId());
	if (change->kind == GRANT_PUBLISHER)
	{
		Datum		patterns = outbox_operator_get_required(fcinfo, 1, "event_types");

		change->scopes = outbox_definition_read_patterns(patterns, &change->nscopes);
	}
	else
	{
		change->scopes = no_scope;
		change->nscopes = 1;
	}
	if (change->kind == GRANT_WORKER)
	{
		char	   *name = outbox_operator_get_subscription(fcinfo, 1);

		if (change->is_grant)
			check_subscription(name);
		change->subscription = name;
		change->scopes = palloc(sizeof(char *));
		change->scopes[0] = name;
	}
	if (change->is_grant)
		changed = outbox_grants_give(change->kind, role_name, change->scopes, change->nscopes);
	else
		changed = outbox_grants_take(change->kind, role_name, change->scopes, change->nscopes);
	if (changed)
		record(change, role_name);
	PG_RETURN_BOOL(changed);
}

Datum
outbox_grant_publisher(PG_FUNCTION_ARGS)
{
	Change		change = {GRANT_PUBLISHER, true, "grant_publisher"};

	return make_change(fcinfo, &change);
}

Datum
outbox_grant_worker(PG_FUNCTION_ARGS)
{
	Change		change = {GRANT_WORKER, true, "grant_worker"};

	return make_change(fcinfo, &change);
}

Datum
outbox_grant_operator(PG_FUNCTION_ARGS)
{
	Change		change = {GRANT_OPERATOR, true, "grant_operator"};

	return make_change(fcinfo, &change);
}

Datum
outbox_grant_monitor(PG_FUNCTION_ARGS)
{
	Change		change = {GRANT_MONITOR, true, "grant_monitor"};

	return make_change(fcinfo, &change);
}

Datum
outbox_revoke_publisher(PG_FUNCTION_ARGS)
{
	Change		change = {GRANT_PUBLISHER, false, "revoke_publisher"};

	return make_change(fcinfo, &change);
}

Datum
outbox_revoke_worker(PG_FUNCTION_ARGS)
{
	Change		change = {GRANT_WORKER, false, "revoke_worker"};

	return make_change(fcinfo, &change);
}

Datum
outbox_revoke_operator(PG_FUNCTION_ARGS)
{
	Change		change = {GRANT_OPERATOR, false, "revoke_operator"};

	return make_change(fcinfo, &change);
}

Datum
outbox_revoke_monitor(PG_FUNCTION_ARGS)
{
	Change		change = {GRANT_MONITOR, false, "revoke_monitor"};

	return make_change(fcinfo, &change);
}

/* outbox.reassert_grants(): called at the end of an upgrade script. */
Datum
outbox_reassert_grants(PG_FUNCTION_ARGS)
{
	outbox_rights_require_owner(GetUserId());
	outbox_grants_reassert();
	PG_RETURN_BOOL(true);
}
