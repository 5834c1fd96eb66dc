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
	"insert into outbox.operator_entry (at, role_name, session_role, action, subscription, event_id, events, reason, detail)"
	" values ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
	9, {TIMESTAMPTZOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, UUIDOID, INT8OID, TEXTOID, TEXTOID}
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
outbox_operator_get_subscription(FunctionCallInfo fcinfo, int n)
{
	char	   *name = TextDatumGetCString(outbox_operator_get_required(fcinfo, n, "subscription"));
	const char *reason = outbox_pattern_check_name(name, strlen(name));

	if (reason != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid subscription name"),
				 errdetail("%s", reason)));
	return name;
}

ArrayType  *
outbox_operator_check_list(Datum value, const char *name)
{
	ArrayType  *list = DatumGetArrayTypeP(value);

	if (ARR_NDIM(list) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be a plain list", name),
				 errdetail("It is an array of %d dimensions.", ARR_NDIM(list))));
	if (array_contains_nulls(list))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not contain nulls", name)));
	return list;
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

/* Text or null, and its mark. */
static Datum
text_or_null(const char *text, char *null)
{
	*null = text == NULL ? 'n' : ' ';
	return text == NULL ? (Datum) 0 : CStringGetTextDatum(text);
}

/* The role that acts, and the one that logged in when that is another. */
static void
write_entry(Oid role, const char *action, const char *subscription, const pg_uuid_t *event_id,
			const int64 *events, const char *reason, const char *detail)
{
	Oid			session_role = GetSessionUserId();
	Datum		values[9];
	char		nulls[9];

	memset(nulls, ' ', sizeof(nulls));
	values[0] = TimestampTzGetDatum(outbox_settings_now());
	values[1] = CStringGetTextDatum(GetUserNameFromId(role, false));
	values[2] = text_or_null(session_role == role ? NULL : GetUserNameFromId(session_role, true), &nulls[2]);
	values[3] = CStringGetTextDatum(action);
	values[4] = text_or_null(subscription, &nulls[4]);
	values[5] = event_id == NULL ? (Datum) 0 : UUIDPGetDatum(event_id);
	nulls[5] = event_id == NULL ? 'n' : ' ';
	values[6] = events == NULL ? (Datum) 0 : Int64GetDatum(*events);
	nulls[6] = events == NULL ? 'n' : ' ';
	values[7] = text_or_null(reason, &nulls[7]);
	values[8] = text_or_null(detail, &nulls[8]);
	(void) outbox_store_run(&insert_entry, values, nulls, 0);
}

void
outbox_operator_record(Oid role, const char *action, const char *subscription,
					   const pg_uuid_t *event_id, const char *reason)
{
	write_entry(role, action, subscription, event_id, NULL, reason, NULL);
}

void
outbox_operator_record_many(Oid role, const char *action, const char *subscription, int64 events, const char *detail)
{
	write_entry(role, action, subscription, NULL, &events, NULL, detail);
}
