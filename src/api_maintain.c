/*
 * api_maintain.c - outbox.maintain(), and handing it to pg_cron.
 *
 * pg_cron's functions are called as the caller, whose job it becomes.  Its command looks first whether
 * there is a procedure to call, so that the job does nothing, rather than fail, once the extension is dropped.
 */
#include "outbox.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "operator.h"
#include "rights.h"
#include "store.h"
#include "upkeep.h"

/* outbox.schedule_maintenance() runs it every five minutes */
#define BUDGET_US		(240 * USECS_PER_SEC)

#define JOB_NAME		"outbox maintenance"
#define JOB_COMMAND		"do 'begin if pg_catalog.to_regprocedure(''outbox.maintain()'') is not null then call outbox.maintain(); end if; end'"

PG_FUNCTION_INFO_V1(outbox_maintain);
PG_FUNCTION_INFO_V1(outbox_schedule_maintenance);

static OutboxStatement schedule_job = {
	"select cron.schedule($1, $2, $3)",
	3, {TEXTOID, TEXTOID, TEXTOID}
};

static void
check_not_atomic(FunctionCallInfo fcinfo)
{
	if (fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		castNode(CallContext, fcinfo->context)->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("outbox.maintain() cannot run inside a transaction block"),
				 errhint("Call it with autocommit on: it commits what it has done as it goes.")));
	if (IsSubTransaction())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("outbox.maintain() cannot run inside a subtransaction"),
				 errhint("A block that catches errors is one.")));
}

/* Within statement_timeout with room to spare: an end in time is no error. */
static int64
budget(void)
{
	int64		limit = (int64) StatementTimeout * 1000 * 6 / 10;

	return limit > 0 ? Min(limit, BUDGET_US) : BUDGET_US;
}

static void
report_end(OutboxUpkeepEnd end)
{
	switch (end)
	{
		case UPKEEP_DONE:
			break;
		case UPKEEP_MORE:
			ereport(NOTICE, (errmsg("the time for this run of outbox.maintain() is up, the next one goes on")));
			break;
		case UPKEEP_BUSY:
			ereport(NOTICE, (errmsg("another run of outbox.maintain() is under way")));
			break;
		case UPKEEP_HELD:
			ereport(NOTICE, (errmsg("nothing is removed from this database until outbox.activate()")));
			break;
	}
}

/* The caller's transaction is left first: its snapshot must not be ours. */
Datum
outbox_maintain(PG_FUNCTION_ARGS)
{
	PreventCommandDuringRecovery("outbox.maintain()");
	check_not_atomic(fcinfo);
	outbox_rights_require_operator(GetUserId());
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	SPI_commit();
	SPI_finish();
	report_end(outbox_upkeep_run(true, budget()));
	PG_RETURN_VOID();
}

/* ---------------------------------------------------------------- pg_cron */

/* pg_cron lives in one database of the server, which its setting names. */
static void
report_no_cron(const char *schedule)
{
	const char *home = GetConfigOption("cron.database_name", true, false);
	char	   *database = get_database_name(MyDatabaseId);

	if (home == NULL || strcmp(home, database) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("extension \"pg_cron\" is not installed"),
				 home == NULL ?
				 errdetail("\"shared_preload_libraries\" does not have pg_cron.") :
				 errdetail("This is the database of \"cron.database_name\", but CREATE EXTENSION pg_cron has not been run."),
				 errhint("It is not needed: with \"outbox.dispatch\" on, the router does this by itself. Any other scheduler can run CALL outbox.maintain().")));
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("pg_cron lives in database \"%s\", and cannot be reached from here", home),
			 errhint("Run there: select cron.schedule_in_database(%s, %s, %s, %s)",
					 quote_literal_cstr(psprintf("%s in %s", JOB_NAME, database)), quote_literal_cstr(schedule),
					 quote_literal_cstr(JOB_COMMAND), quote_literal_cstr(database))));
}

static void
check_cron(const char *schedule)
{
	Oid			schema;

	if (!OidIsValid(get_extension_oid("pg_cron", true)))
		report_no_cron(schedule);
	schema = get_namespace_oid("cron", false);
	if (!outbox_compat_may_use_schema(schema, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for pg_cron"),
				 errhint("GRANT USAGE ON SCHEMA cron TO %s, or let a role that has it schedule the job.",
						 quote_identifier(GetUserNameFromId(GetUserId(), false)))));
}

/* A job of that name is replaced. */
Datum
outbox_schedule_maintenance(PG_FUNCTION_ARGS)
{
	char	   *schedule = TextDatumGetCString(outbox_operator_get_required(fcinfo, 0, "schedule"));
	Datum		args[3] = {CStringGetTextDatum(JOB_NAME), CStringGetTextDatum(schedule), CStringGetTextDatum(JOB_COMMAND)};
	bool		isnull;
	int64		job;

	outbox_rights_require_operator(GetUserId());
	check_cron(schedule);
	SPI_connect();
	(void) outbox_store_run(&schedule_job, args, NULL, 1);
	job = DatumGetInt64(outbox_store_value(0, 1, &isnull));
	SPI_finish();
	PG_RETURN_INT64(job);
}
