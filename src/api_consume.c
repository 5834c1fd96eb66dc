/*
 * api_consume.c - outbox.consume_once(): the receiver's side of messages that come from elsewhere.
 *
 * A row for each message, by the session's tenant, the receiver's name and the message's id, in the transaction that
 * holds what the message makes: both are there after the commit, or neither.  Receivers are common to all roles.
 */
#include "outbox.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "first_row.h"
#include "operator.h"
#include "settings.h"
#include "tenant.h"

#define RECEIVER_MAX	200		/* bytes */

PG_FUNCTION_INFO_V1(outbox_consume_once);

static Datum
get_text(FunctionCallInfo fcinfo, int n, const char *name, int most)
{
	text	   *value = DatumGetTextPP(outbox_operator_get_required(fcinfo, n, name));
	int			len = VARSIZE_ANY_EXHDR(value);

	if (len == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be empty", name)));
	if (len > most)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is too long", name),
				 errdetail("It has %d bytes; at most %d are allowed.", len, most)));
	return PointerGetDatum(value);
}

Datum
outbox_consume_once(PG_FUNCTION_ARGS)
{
	Datum		values[4];
	OutboxFirstRow consumed;
	bool		first;

	PreventCommandDuringRecovery("outbox.consume_once()");
	PreventCommandIfReadOnly("outbox.consume_once()");
	PreventCommandIfParallelMode("outbox.consume_once()");
	values[1] = get_text(fcinfo, 0, "receiver", RECEIVER_MAX);
	values[2] = get_text(fcinfo, 1, "message_id", OUTBOX_ID_MAX);
	values[0] = outbox_tenant_of_messages(GetUserId());
	values[3] = TimestampTzGetDatum(outbox_settings_now());

	outbox_first_row_open(&consumed, "consumed");
	first = outbox_first_row_insert(&consumed, values);
	outbox_first_row_close(&consumed);
	PG_RETURN_BOOL(first);
}
