/*
 * operator.c - what the calls of people have in common.
 *
 * Every change made by hand leaves a row in outbox.operator_entry, written in
 * the transaction of the change: there is no change without its record, and no
 * record of one that was rolled back.
 */
#include "outbox.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "operator.h"
#include "pattern.h"
#include "settings.h"
#include "store.h"

static OutboxStatement select_id = {
	"select subscription_id from outbox.subscription where subscription = $1",
	1, {TEXTOID}
};

static OutboxStatement insert_entry = {
	"insert into outbox.operator_entry (at, role_name, action, subscription, event_id, reason)"
	" values ($1, $2, $3, $4, $5, $6)",
	6, {TIMESTAMPTZOID, TEXTOID, TEXTOID, TEXTOID, UUIDOID, TEXTOID}
};

Datum
outbox_operator_get_required(FunctionCallInfo fcinfo, int n, const char *name)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name)));
	return PG_GETARG_DATUM(n);
}

char *
outbox_operator_get_subscription(FunctionCallInfo fcinfo)
{
	char	   *name = TextDatumGetCString(outbox_operator_get_required(fcinfo, 0, "subscription"));
	const char *reason = outbox_pattern_check_name(name, strlen(name));

	if (reason != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid subscription name"),
				 errdetail("%s", reason)));
	return name;
}

void
outbox_operator_report_unknown(const char *subscription)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("subscription \"%s\" does not exist", subscription),
			 errhint("The view outbox.subscription_status lists them.")));
}

int32
outbox_operator_find_subscription(const char *subscription)
{
	Datum		arg = CStringGetTextDatum(subscription);
	bool		isnull;

	if (outbox_store_run(&select_id, &arg, NULL, 1) == 0)
		outbox_operator_report_unknown(subscription);
	return DatumGetInt32(outbox_store_value(0, 1, &isnull));
}

void
outbox_operator_record(Oid role, const char *action, const char *subscription,
					   const pg_uuid_t *event_id, const char *reason)
{
	Datum		values[6] = {
		TimestampTzGetDatum(outbox_settings_now()),
		CStringGetTextDatum(GetUserNameFromId(role, false)),
		CStringGetTextDatum(action),
	};
	char		nulls[7] = "      ";

	if (subscription != NULL)
		values[3] = CStringGetTextDatum(subscription);
	else
		nulls[3] = 'n';
	if (event_id != NULL)
		values[4] = UUIDPGetDatum(event_id);
	else
		nulls[4] = 'n';
	if (reason != NULL)
		values[5] = CStringGetTextDatum(reason);
	else
		nulls[5] = 'n';
	(void) outbox_store_run(&insert_entry, values, nulls, 0);
}
