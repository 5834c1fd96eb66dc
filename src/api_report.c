/*
 * api_report.c - what outbox.report() asks.
 */
#include "outbox.h"

#include "fmgr.h"
#include "funcapi.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "report.h"
#include "settings.h"

PG_FUNCTION_INFO_V1(outbox_check_report_times);
PG_FUNCTION_INFO_V1(outbox_traffic);

static void
check_report_time(FunctionCallInfo fcinfo, int n, const char *name)
{
	if (!PG_ARGISNULL(n) && (PG_GETARG_TIMESTAMPTZ(n) < OUTBOX_TIME_MIN || PG_GETARG_TIMESTAMPTZ(n) > OUTBOX_TIME_MAX))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is out of range", name),
				 errdetail("It must lie between the years 1970 and 2200.")));
}

Datum
outbox_check_report_times(PG_FUNCTION_ARGS)
{
	TimestampTz to = PG_ARGISNULL(1) ? outbox_settings_now() : PG_GETARG_TIMESTAMPTZ(1);

	check_report_time(fcinfo, 0, "from_time");
	check_report_time(fcinfo, 1, "to_time");
	if (!PG_ARGISNULL(0) && PG_GETARG_TIMESTAMPTZ(0) > to)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 PG_ARGISNULL(1) ? errmsg("from_time must not be in the future") :
				 errmsg("from_time must not be after to_time")));
	PG_RETURN_BOOL(true);
}

/* outbox.traffic(from_time, to_time, longest): a row for each part of the time */
Datum
outbox_traffic(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Interval   *longest = PG_GETARG_INTERVAL_P(2);
	OutboxReportPart parts[OUTBOX_REPORT_PARTS];

	InitMaterializedSRF(fcinfo, 0);
	outbox_report_read(PG_GETARG_TIMESTAMPTZ(0), PG_GETARG_TIMESTAMPTZ(1),
					   longest->time + longest->day * USECS_PER_DAY + longest->month * DAYS_PER_MONTH * USECS_PER_DAY, parts);
	for (int i = 0; i < OUTBOX_REPORT_PARTS; i++)
	{
		bool		none = parts[i].completed == 0;
		Datum		values[6] = {
			Int32GetDatum(i + 1), Int64GetDatum(parts[i].published), Int64GetDatum(parts[i].completed), Int64GetDatum(parts[i].waiting),
			Float8GetDatum(parts[i].p50_ms), Float8GetDatum(parts[i].p95_ms)
		};
		bool		nulls[6] = {false, false, false, false, none, none};

		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}
