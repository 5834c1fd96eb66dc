/*
 * api_event_type.c - outbox.define_event_type() and outbox.drop_event_type().
 *
 * One statement finds out whether anything changes and changes it, so that migrations may repeat
 * a definition, and two who define the same type at once come one after the other.
 */
#include "outbox.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "event_type.h"
#include "operator.h"
#include "rights.h"
#include "session.h"
#include "settings.h"
#include "store.h"

PG_FUNCTION_INFO_V1(outbox_define_event_type);
PG_FUNCTION_INFO_V1(outbox_drop_event_type);

static OutboxStatement put_definition = {
	"insert into outbox.event_type_definition as d (event_type, payload_version, allowed_keys, required_keys, key_types,"
	" importance, max_payload_bytes, exempt_keys, description, defined_at, defined_by)"
	" values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
	" on conflict (event_type, payload_version) do update set allowed_keys = excluded.allowed_keys,"
	" required_keys = excluded.required_keys, key_types = excluded.key_types, importance = excluded.importance,"
	" max_payload_bytes = excluded.max_payload_bytes, exempt_keys = excluded.exempt_keys,"
	" description = excluded.description, defined_at = excluded.defined_at, defined_by = excluded.defined_by"
	" where (d.allowed_keys, d.required_keys, d.key_types, d.importance, d.max_payload_bytes, d.exempt_keys,"
	" d.description) is distinct from (excluded.allowed_keys, excluded.required_keys, excluded.key_types,"
	" excluded.importance, excluded.max_payload_bytes, excluded.exempt_keys, excluded.description)",
	11, {TEXTOID, TEXTOID, TEXTARRAYOID, TEXTARRAYOID, JSONBOID, TEXTOID, INT4OID, TEXTARRAYOID, TEXTOID,
	TIMESTAMPTZOID, TEXTOID}
};

static OutboxStatement delete_definition = {
	"delete from outbox.event_type_definition where event_type = $1 and payload_version = $2",
	2, {TEXTOID, TEXTOID}
};

static void
refuse_without_write(const char *function)
{
	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
}

/* Tell the sessions that publish, and put it on record. */
static void
announce_change(Oid caller, const char *action, Datum type, Datum version)
{
	outbox_event_type_changed();
	outbox_operator_record(caller, action, NULL, NULL,
						   psprintf("%s version %s", TextDatumGetCString(type), TextDatumGetCString(version)));
}

Datum
outbox_define_event_type(PG_FUNCTION_ARGS)
{
	Oid			caller = GetUserId();
	OutboxTypeDefinition definition;
	OutboxSession session;
	Datum		values[OUTBOX_TYPE_COLUMNS + 2];
	char		nulls[OUTBOX_TYPE_COLUMNS + 2];
	bool		changed;

	refuse_without_write("outbox.define_event_type()");
	outbox_rights_require_operator(caller);
	for (int i = 0; i < OUTBOX_TYPE_COLUMNS; i++)
	{
		definition.values[i] = PG_GETARG_DATUM(i);
		definition.nulls[i] = PG_ARGISNULL(i);
	}
	outbox_event_type_check(&definition);
	for (int i = 0; i < OUTBOX_TYPE_COLUMNS; i++)
	{
		values[i] = definition.values[i];
		nulls[i] = definition.nulls[i] ? 'n' : ' ';
	}
	values[OUTBOX_TYPE_COLUMNS] = TimestampTzGetDatum(outbox_settings_now());
	values[OUTBOX_TYPE_COLUMNS + 1] = CStringGetTextDatum(GetUserNameFromId(caller, false));
	nulls[OUTBOX_TYPE_COLUMNS] = nulls[OUTBOX_TYPE_COLUMNS + 1] = ' ';

	SPI_connect();
	outbox_session_enter(&session);
	changed = outbox_store_run(&put_definition, values, nulls, 0) > 0;
	if (changed)
		announce_change(caller, "define_event_type", values[ET_EVENT_TYPE], values[ET_PAYLOAD_VERSION]);
	outbox_session_leave(&session);
	SPI_finish();
	PG_RETURN_BOOL(changed);
}

Datum
outbox_drop_event_type(PG_FUNCTION_ARGS)
{
	Oid			caller = GetUserId();
	Datum		values[2];
	OutboxSession session;
	bool		found;

	refuse_without_write("outbox.drop_event_type()");
	outbox_rights_require_operator(caller);
	values[0] = outbox_operator_get_required(fcinfo, 0, "event_type");
	values[1] = outbox_operator_get_required(fcinfo, 1, "payload_version");

	SPI_connect();
	outbox_session_enter(&session);
	found = outbox_store_run(&delete_definition, values, NULL, 0) > 0;
	if (found)
		announce_change(caller, "drop_event_type", values[0], values[1]);
	outbox_session_leave(&session);
	SPI_finish();
	PG_RETURN_BOOL(found);
}
