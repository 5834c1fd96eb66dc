/*
 * procedure.c - what the procedures that wait have in common: drain() and wait().
 *
 * They look in short transactions of their own and hold nothing in between, which only
 * a CALL at top level can do.
 */
#include "outbox.h"

#include "access/xact.h"
#include "nodes/parsenodes.h"
#include "utils/timestamp.h"

#include "backoff.h"
#include "operator.h"
#include "procedure.h"

void
outbox_procedure_require_autocommit(FunctionCallInfo fcinfo, const char *procedure)
{
	if (fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		castNode(CallContext, fcinfo->context)->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a transaction block", procedure),
				 errhint("Call it with autocommit on: it waits for what other transactions do.")));
	if (IsSubTransaction())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a subtransaction", procedure),
				 errhint("A block that catches errors is one.")));
}

int64
outbox_procedure_get_timeout(FunctionCallInfo fcinfo, int n)
{
	int64		timeout = outbox_backoff_interval_us(DatumGetIntervalP(outbox_operator_get_required(fcinfo, n, "timeout")));

	if (timeout < 0 || timeout > USECS_PER_DAY)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("timeout is out of range"),
				 errhint("It must be between 0 and 1 day.")));
	return timeout;
}

void
outbox_procedure_refuse_held(OutboxIncarnation *incarnation)
{
	outbox_extension_incarnation(incarnation);
	if (incarnation->held)
		ereport(ERROR,
				(errcode(ERRCODE_OUTBOX_HELD),
				 errmsg("routing and delivery are held in this database"),
				 errdetail("It was restored or copied from another server."),
				 errhint("Call outbox.activate() when this database shall deliver events.")));
}
