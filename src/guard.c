/*
 * guard.c - what may be published: checks and defaults of one event.
 *
 * Everything that publish() can refuse is refused here, before the event has an
 * id or a row, so that a refusal costs the transaction nothing but the error.
 * Messages name the argument or setting, never its value.
 */
#include "outbox.h"

#include "access/detoast.h"
#include "common/cryptohash.h"
#include "common/sha2.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"
#include "utils/timestamp.h"

#include "event_type.h"
#include "guard.h"
#include "pattern.h"
#include "payload.h"
#include "settings.h"

#define NO_CONTEXT	OUTBOX_CONTEXT_FIELDS

/* W3C trace context: version, trace id, parent id, flags */
#define TRACEPARENT_LENGTH	55
#define TRACE_ID_START		3
#define TRACE_ID_LENGTH		32
#define PARENT_ID_START		36
#define PARENT_ID_LENGTH	16

typedef struct TextRule
{
	OutboxEventColumn column;
	int			max_bytes;
	OutboxContextField context; /* the setting that stands in for null, or NO_CONTEXT */
} TextRule;

static const TextRule text_rules[] = {
	{EV_PAYLOAD_VERSION, OUTBOX_CONTEXT_MAX, NO_CONTEXT},
	{EV_AGGREGATE_TYPE, OUTBOX_CONTEXT_MAX, NO_CONTEXT},
	{EV_AGGREGATE_ID, OUTBOX_ID_MAX, NO_CONTEXT},
	{EV_EVENT_KEY, OUTBOX_KEY_MAX, NO_CONTEXT},
	{EV_DEDUP_KEY, OUTBOX_ID_MAX, NO_CONTEXT},
	{EV_TENANT_ID, OUTBOX_CONTEXT_MAX, CTX_TENANT_ID},
	{EV_ACTOR_TYPE, OUTBOX_CONTEXT_MAX, CTX_ACTOR_TYPE},
	{EV_ACTOR_ID, OUTBOX_CONTEXT_MAX, CTX_ACTOR_ID},
	{EV_REQUEST_ID, OUTBOX_CONTEXT_MAX, CTX_REQUEST_ID},
	{EV_TRACE_ID, OUTBOX_CONTEXT_MAX, CTX_TRACE_ID},
	{EV_CORRELATION_ID, OUTBOX_CONTEXT_MAX, CTX_CORRELATION_ID},
	{EV_SOURCE, OUTBOX_CONTEXT_MAX, CTX_SOURCE},
};

static const char *const column_names[OUTBOX_LOG_COLUMNS] = {
	[EV_EVENT_ID] = "event_id",
	[EV_EVENT_TYPE] = "event_type",
	[EV_PAYLOAD_VERSION] = "payload_version",
	[EV_AGGREGATE_TYPE] = "aggregate_type",
	[EV_AGGREGATE_ID] = "aggregate_id",
	[EV_EVENT_KEY] = "event_key",
	[EV_TENANT_ID] = "tenant_id",
	[EV_ACTOR_TYPE] = "actor_type",
	[EV_ACTOR_ID] = "actor_id",
	[EV_REQUEST_ID] = "request_id",
	[EV_TRACE_ID] = "trace_id",
	[EV_CORRELATION_ID] = "correlation_id",
	[EV_CAUSATION_ID] = "causation_id",
	[EV_SOURCE] = "source",
	[EV_OCCURRED_AT] = "occurred_at",
	[EV_PUBLISHED_AT] = "published_at",
	[EV_DELIVER_AT] = "deliver_at",
	[EV_DEDUP_KEY] = "dedup_key",
	[EV_HEADERS] = "headers",
	[EV_PAYLOAD] = "payload",
	[EV_XID] = "xid",
	[EV_INCARNATION] = "incarnation",
};

const char *
outbox_guard_column_name(OutboxEventColumn column)
{
	return column_names[column];
}

/* ---------------------------------------------------------------- text */

static void
set_value(OutboxDraft *draft, OutboxEventColumn column, Datum value)
{
	draft->values[column] = value;
	draft->nulls[column] = false;
}

/* Where a value came from, as messages call it: an argument, or a setting in quotes. */
static const char *
describe(OutboxEventColumn column, bool from_setting)
{
	return from_setting ? psprintf("setting \"outbox.%s\"", column_names[column]) : column_names[column];
}

static int
refusal_code(const TextRule *rule)
{
	return rule->context == NO_CONTEXT ? ERRCODE_INVALID_PARAMETER_VALUE : ERRCODE_OUTBOX_REFUSED;
}

static bool
has_control_character(const char *bytes, int len)
{
	for (int i = 0; i < len; i++)
	{
		if ((unsigned char) bytes[i] < 0x20 || bytes[i] == 0x7f)
			return true;
	}
	return false;
}

static void
check_text(const TextRule *rule, const text *value, bool from_setting)
{
	int			len = VARSIZE_ANY_EXHDR(value);

	if (len == 0)
		ereport(ERROR,
				(errcode(refusal_code(rule)),
				 errmsg("%s must not be empty", describe(rule->column, from_setting)),
				 errhint("Leave it null when there is none.")));
	if (len > rule->max_bytes)
		ereport(ERROR,
				(errcode(refusal_code(rule)),
				 errmsg("%s is too long", describe(rule->column, from_setting)),
				 errdetail("It has %d bytes; at most %d are allowed.", len, rule->max_bytes)));
	if (rule->context != NO_CONTEXT && has_control_character(VARDATA_ANY(value), len))
		ereport(ERROR,
				(errcode(ERRCODE_OUTBOX_REFUSED),
				 errmsg("%s must not contain control characters", describe(rule->column, from_setting))));
}

/* A text column: its value, or the setting's in its place, checked and not toasted. */
static void
check_text_column(OutboxDraft *draft, const TextRule *rule)
{
	bool		from_setting = false;

	if (draft->nulls[rule->column])
	{
		const char *setting = rule->context == NO_CONTEXT ? NULL : outbox_settings_context(rule->context);

		if (setting == NULL)
			return;
		set_value(draft, rule->column, CStringGetTextDatum(setting));
		from_setting = true;
	}
	else
		draft->values[rule->column] = PointerGetDatum(DatumGetTextPP(draft->values[rule->column]));
	check_text(rule, DatumGetTextPP(draft->values[rule->column]), from_setting);
}

/* Is its first word the extension's own? */
static bool
is_reserved(const char *type, int len)
{
	const int	n = strlen(OUTBOX_SCHEMA);

	return len >= n && memcmp(type, OUTBOX_SCHEMA, n) == 0 && (len == n || type[n] == '.');
}

static void
check_event_type(OutboxDraft *draft)
{
	text	   *type;
	const char *reason;

	if (draft->nulls[EV_EVENT_TYPE])
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("event_type must not be null")));
	type = DatumGetTextPP(draft->values[EV_EVENT_TYPE]);
	draft->values[EV_EVENT_TYPE] = PointerGetDatum(type);
	reason = outbox_pattern_check_type(VARDATA_ANY(type), VARSIZE_ANY_EXHDR(type));
	if (reason != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid event_type"),
				 errdetail("%s", reason)));
	if (is_reserved(VARDATA_ANY(type), VARSIZE_ANY_EXHDR(type)))
		ereport(ERROR,
				(errcode(ERRCODE_RESERVED_NAME),
				 errmsg("event types that begin with \"%s\" are reserved", OUTBOX_SCHEMA),
				 errdetail("The extension publishes them itself.")));
}

/* ---------------------------------------------------------------- aggregate and key */

static void
fill_event_key(OutboxDraft *draft)
{
	StringInfoData key;
	text	   *type;
	text	   *id;

	if (draft->nulls[EV_AGGREGATE_ID])
		return;
	if (draft->nulls[EV_AGGREGATE_TYPE])
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("aggregate_id needs an aggregate_type")));
	if (!draft->nulls[EV_EVENT_KEY])
		return;
	type = DatumGetTextPP(draft->values[EV_AGGREGATE_TYPE]);
	id = DatumGetTextPP(draft->values[EV_AGGREGATE_ID]);
	initStringInfo(&key);
	appendBinaryStringInfo(&key, VARDATA_ANY(type), VARSIZE_ANY_EXHDR(type));
	appendStringInfoChar(&key, ':');
	appendBinaryStringInfo(&key, VARDATA_ANY(id), VARSIZE_ANY_EXHDR(id));
	set_value(draft, EV_EVENT_KEY, PointerGetDatum(cstring_to_text_with_len(key.data, key.len)));
}

/* ---------------------------------------------------------------- causation */

static int
hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* 8-4-4-4-12 hexadecimal digits */
static bool
parse_uuid(const char *string, pg_uuid_t *uuid)
{
	if (strlen(string) != 36)
		return false;
	for (int i = 0; i < UUID_LEN; i++)
	{
		int			high;
		int			low;

		if ((i == 4 || i == 6 || i == 8 || i == 10) && *string++ != '-')
			return false;
		high = hex_digit(string[0]);
		low = hex_digit(string[1]);
		if (high < 0 || low < 0)
			return false;
		uuid->data[i] = (unsigned char) (high << 4 | low);
		string += 2;
	}
	return true;
}

static void
fill_causation(OutboxDraft *draft)
{
	const char *setting;
	pg_uuid_t  *uuid;

	if (!draft->nulls[EV_CAUSATION_ID] || (setting = outbox_settings_context(CTX_CAUSATION_ID)) == NULL)
		return;
	uuid = palloc(sizeof(pg_uuid_t));
	if (!parse_uuid(setting, uuid))
		ereport(ERROR,
				(errcode(ERRCODE_OUTBOX_REFUSED),
				 errmsg("setting \"outbox.causation_id\" must be a UUID"),
				 errhint("Set it to the event_id of the event that causes this one, or to an empty string.")));
	set_value(draft, EV_CAUSATION_ID, UUIDPGetDatum(uuid));
}

/* ---------------------------------------------------------------- payload and headers */

static void
check_size(const OutboxDraft *draft, OutboxEventColumn column)
{
	Size		bytes = toast_raw_datum_size(draft->values[column]) - VARHDRSZ;

	if (bytes > outbox_max_payload_bytes)
		ereport(ERROR,
				(errcode(ERRCODE_OUTBOX_REFUSED),
				 errmsg("too many bytes in %s", column_names[column]),
				 errdetail("It has %zu bytes as jsonb; the setting \"outbox.max_payload_bytes\" allows %d.",
						   bytes, outbox_max_payload_bytes),
				 errhint("Keep large data in a table of its own, and publish where to find it.")));
}

static void
check_json(OutboxDraft *draft)
{
	if (draft->nulls[EV_PAYLOAD])
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("payload must not be null"),
				 errhint("Leave the argument out for an empty payload.")));
	check_size(draft, EV_PAYLOAD);
	if (draft->nulls[EV_HEADERS])
		return;
	check_size(draft, EV_HEADERS);
	draft->values[EV_HEADERS] = PointerGetDatum(DatumGetJsonbP(draft->values[EV_HEADERS]));
	if (!JB_ROOT_IS_OBJECT(DatumGetJsonbP(draft->values[EV_HEADERS])))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("headers must be a JSON object")));
}

/* ---------------------------------------------------------------- trace */

static bool
is_lower_hex(const char *bytes, int len)
{
	for (int i = 0; i < len; i++)
	{
		if (!((bytes[i] >= '0' && bytes[i] <= '9') || (bytes[i] >= 'a' && bytes[i] <= 'f')))
			return false;
	}
	return true;
}

static bool
is_all_zero(const char *bytes, int len)
{
	return (int) strspn(bytes, "0") >= len;
}

/* Has it the outline of a traceparent, 2-32-16-2 and maybe more? */
static bool
looks_like_traceparent(const char *value, int len)
{
	return len >= TRACEPARENT_LENGTH && value[2] == '-' && value[35] == '-' && value[52] == '-' &&
		(len == TRACEPARENT_LENGTH || value[TRACEPARENT_LENGTH] == '-');
}

static bool
is_traceparent(const char *value, int len)
{
	return is_lower_hex(value, 2) && strncmp(value, "ff", 2) != 0 &&
		is_lower_hex(value + TRACE_ID_START, TRACE_ID_LENGTH) &&
		!is_all_zero(value + TRACE_ID_START, TRACE_ID_LENGTH) &&
		is_lower_hex(value + PARENT_ID_START, PARENT_ID_LENGTH) &&
		!is_all_zero(value + PARENT_ID_START, PARENT_ID_LENGTH) &&
		is_lower_hex(value + 53, 2) &&
		(len == TRACEPARENT_LENGTH || strncmp(value, "00", 2) != 0);
}

static Datum
make_traceparent_header(const char *traceparent, int len)
{
	JsonbParseState *state = NULL;
	JsonbValue	item;

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	item.type = jbvString;
	item.val.string.val = "traceparent";
	item.val.string.len = strlen("traceparent");
	pushJsonbValue(&state, WJB_KEY, &item);
	item.val.string.val = unconstify(char *, traceparent);
	item.val.string.len = len;
	pushJsonbValue(&state, WJB_VALUE, &item);
	return JsonbPGetDatum(JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL)));
}

/* A whole traceparent goes into the headers, and its trace id into the column. */
static void
split_trace(OutboxDraft *draft)
{
	text	   *trace;
	char	   *value;
	int			len;
	Datum		header;

	if (draft->nulls[EV_TRACE_ID])
		return;
	trace = DatumGetTextPP(draft->values[EV_TRACE_ID]);
	if (!looks_like_traceparent(VARDATA_ANY(trace), VARSIZE_ANY_EXHDR(trace)))
		return;
	value = text_to_cstring(trace);
	len = strlen(value);
	if (!is_traceparent(value, len))
		ereport(ERROR,
				(errcode(ERRCODE_OUTBOX_REFUSED),
				 errmsg("trace_id is a malformed traceparent"),
				 errdetail("A traceparent is version, trace id, parent id and flags, in lower-case hexadecimal digits, joined by dashes.")));
	header = make_traceparent_header(value, len);
	if (!draft->nulls[EV_HEADERS])
		header = DirectFunctionCall2(jsonb_concat, draft->values[EV_HEADERS], header);
	set_value(draft, EV_HEADERS, header);
	set_value(draft, EV_TRACE_ID,
			  PointerGetDatum(cstring_to_text_with_len(value + TRACE_ID_START, TRACE_ID_LENGTH)));
}

/* ---------------------------------------------------------------- times */

static void
check_time(const OutboxDraft *draft, OutboxEventColumn column)
{
	TimestampTz value;

	if (draft->nulls[column])
		return;
	value = DatumGetTimestampTz(draft->values[column]);
	if (value < OUTBOX_TIME_MIN || value > OUTBOX_TIME_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is out of range", column_names[column]),
				 errdetail("It must lie between the years 1970 and 2200.")));
}

/* ---------------------------------------------------------------- what it holds */

/*
 * The statement and the functions around it hold what was refused: the server's log shows only the
 * refusal itself.
 */
#define hide_event_from_log() (errhidestmt(true), errhidecontext(true))

static const OutboxEventColumn looked_at[] = {
	EV_ACTOR_ID, EV_AGGREGATE_ID, EV_EVENT_KEY, EV_DEDUP_KEY, EV_REQUEST_ID, EV_CORRELATION_ID
};

/* the key, or the payload as a whole */
static const char *
describe_key(OutboxEventColumn column, const char *path)
{
	return path[0] == '\0' ? column_names[column] : psprintf("%s key %s", column_names[column], outbox_keypath_quote(path));
}

/* Names the detector and the place, never the value. */
static void
report_sensitive(OutboxDetector detector, const char *place)
{
	ereport(outbox_sensitive_data == SENSITIVE_REJECT ? ERROR : WARNING,
			(errcode(ERRCODE_OUTBOX_REFUSED),
			 errmsg("sensitive data (%s) in %s", outbox_sensitive_name(detector), place),
			 errhint("Keep it out of the event. If it is none, exempt the key: exempt_keys of outbox.define_event_type()."),
			 hide_event_from_log()));
}

/* Who and what the event is about, in plain columns; false when nothing was found. */
static bool
check_columns(const OutboxDraft *draft, const OutboxEventType *type)
{
	for (int i = 0; i < lengthof(looked_at); i++)
	{
		OutboxEventColumn column = looked_at[i];
		uint32		enabled = OUTBOX_DETECT_ALL;
		OutboxDetector found;
		text	   *value;

		if (draft->nulls[column])
			continue;
		value = (text *) DatumGetPointer(draft->values[column]);
		if (type != NULL)
			enabled &= ~type->exempt_columns[column];
		found = outbox_sensitive_check_text(VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value), KEY_COLUMN, enabled);
		if (found == DETECTED_NOTHING)
			continue;
		report_sensitive(found, column_names[column]);
		return true;
	}
	return false;
}

OUTBOX_NORETURN static void
refuse_payload(const OutboxEventType *type, const OutboxFinding *wrong)
{
	const char *place = describe_key(EV_PAYLOAD, wrong->path);
	const char *message = NULL;
	const char *hint = NULL;

	switch (wrong->fault)
	{
		case FAULT_NOT_ALLOWED:
			message = psprintf("%s is not allowed", place);
			hint = "allowed_keys of outbox.define_event_type() lists what is.";
			break;
		case FAULT_OBJECT:
			message = psprintf("%s must not hold an object", place);
			hint = "To allow it, list its keys in allowed_keys, or the path with \".*\".";
			break;
		case FAULT_ARRAY:
			message = psprintf("%s must not hold an array", place);
			hint = "To allow it, list the path with \"[]\" in allowed_keys.";
			break;
		case FAULT_SCALAR:
			message = psprintf("%s must hold an %s", place, outbox_event_type_value_name(wrong->type));
			hint = "allowed_keys of outbox.define_event_type() lists only what is in it.";
			break;
		case FAULT_MISSING:
			message = psprintf("%s is missing", place);
			hint = "required_keys of outbox.define_event_type() lists it; null counts as missing.";
			break;
		case FAULT_TYPE:
			message = psprintf("%s must be of type %s", place, outbox_event_type_value_name(wrong->type));
			break;
		case FAULT_LENGTH:
			message = psprintf("%s must not be longer than %d characters", place, wrong->max_length);
			break;
		default:
			elog(ERROR, "unexpected fault: %d", (int) wrong->fault);
	}
	ereport(ERROR,
			(errcode(ERRCODE_OUTBOX_REFUSED),
			 errmsg("%s", message),
			 errdetail("Event type \"%s\", version \"%s\".", type->event_type, type->payload_version),
			 hint != NULL ? errhint("%s", hint) : 0,
			 hide_event_from_log()));
}

static void
check_type_size(const OutboxDraft *draft, const OutboxEventType *type)
{
	Size		bytes = toast_raw_datum_size(draft->values[EV_PAYLOAD]) - VARHDRSZ;

	if (type->max_payload_bytes > 0 && bytes > type->max_payload_bytes)
		ereport(ERROR,
				(errcode(ERRCODE_OUTBOX_REFUSED),
				 errmsg("too many bytes in payload"),
				 errdetail("It has %zu bytes as jsonb; event type \"%s\", version \"%s\" allows %d.",
						   bytes, type->event_type, type->payload_version, type->max_payload_bytes)));
}

/* The type's definition; NULL when it has none and needs none. */
static const OutboxEventType *
find_type(const OutboxDraft *draft)
{
	text	   *name = (text *) DatumGetPointer(draft->values[EV_EVENT_TYPE]);
	text	   *version = (text *) DatumGetPointer(draft->values[EV_PAYLOAD_VERSION]);
	const OutboxEventType *type;

	switch (outbox_event_type_find(VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name),
								   VARDATA_ANY(version), VARSIZE_ANY_EXHDR(version), &type))
	{
		case TYPE_FOUND:
			break;
		case TYPE_OTHER_VERSION:
			ereport(ERROR,
					(errcode(ERRCODE_OUTBOX_REFUSED),
					 errmsg("event type \"%s\" is not defined in this payload_version", text_to_cstring(name)),
					 errhint("The view outbox.event_type lists its versions; outbox.define_event_type() adds one.")));
			break;
		case TYPE_UNKNOWN:
			if (outbox_require_event_type)
				ereport(ERROR,
						(errcode(ERRCODE_OUTBOX_REFUSED),
						 errmsg("event type \"%s\" is not defined", text_to_cstring(name)),
						 errhint("Define it with outbox.define_event_type(); the setting \"outbox.require_event_type\" demands it.")));
			break;
	}
	return type;
}

/* Each document is read once, and not kept unpacked: the row takes it as it came. */
static bool
check_document(const OutboxDraft *draft, OutboxEventColumn column, const OutboxEventType *type, bool look)
{
	Pointer		given = DatumGetPointer(draft->values[column]);
	Jsonb	   *document = (Jsonb *) PG_DETOAST_DATUM(draft->values[column]);
	OutboxFinding wrong;
	OutboxFinding sensitive;

	outbox_payload_check(document, type, column == EV_HEADERS, look, &wrong, &sensitive);
	if ((Pointer) document != given)
		pfree(document);
	if (wrong.fault != FAULT_NONE)
		refuse_payload(type, &wrong);
	if (sensitive.fault == FAULT_NONE)
		return false;
	report_sensitive(sensitive.detector, describe_key(column, sensitive.path));
	return true;
}

/* One warning an event is enough. */
static void
check_content(const OutboxDraft *draft)
{
	const OutboxEventType *type = find_type(draft);
	bool		look = outbox_sensitive_data != SENSITIVE_OFF;

	if (type != NULL)
		check_type_size(draft, type);
	else if (!look)
		return;
	if (look && check_columns(draft, type))
		look = false;
	if ((type != NULL || look) && check_document(draft, EV_PAYLOAD, type, look))
		look = false;
	if (look && !draft->nulls[EV_HEADERS])
		(void) check_document(draft, EV_HEADERS, type, true);
}

/* ---------------------------------------------------------------- the event */

void
outbox_guard_check(OutboxDraft *draft)
{
	check_event_type(draft);
	if (draft->nulls[EV_PAYLOAD_VERSION])
		set_value(draft, EV_PAYLOAD_VERSION, CStringGetTextDatum("1"));
	for (int i = 0; i < lengthof(text_rules); i++)
		check_text_column(draft, &text_rules[i]);
	fill_event_key(draft);
	fill_causation(draft);
	check_json(draft);
	split_trace(draft);
	check_time(draft, EV_OCCURRED_AT);
	check_time(draft, EV_DELIVER_AT);
	check_content(draft);
}

/* ---------------------------------------------------------------- hash of a payload */

/* a token of the canonical form: its kind, its length, its bytes */
static void
append_token(StringInfo form, char kind, const char *bytes, int len)
{
	appendStringInfoChar(form, kind);
	appendBinaryStringInfo(form, (char *) &len, sizeof(len));
	appendBinaryStringInfo(form, bytes, len);
}

static void
append_scalar(StringInfo form, const JsonbValue *value)
{
	char	   *number;

	switch (value->type)
	{
		case jbvString:
			append_token(form, 's', value->val.string.val, value->val.string.len);
			break;
		case jbvNumeric:
			number = DatumGetCString(DirectFunctionCall1(numeric_out,
														 DirectFunctionCall1(numeric_trim_scale,
																			 NumericGetDatum(value->val.numeric))));
			append_token(form, 'n', number, strlen(number));
			pfree(number);
			break;
		case jbvBool:
			append_token(form, value->val.boolean ? 't' : 'f', "", 0);
			break;
		case jbvNull:
			append_token(form, '0', "", 0);
			break;
		default:
			elog(ERROR, "unexpected jsonb value type: %d", (int) value->type);
	}
}

static void
append_canonical_form(StringInfo form, Jsonb *payload)
{
	JsonbIterator *it = JsonbIteratorInit(&payload->root);
	JsonbIteratorToken token;
	JsonbValue	value;

	while ((token = JsonbIteratorNext(&it, &value, false)) != WJB_DONE)
	{
		switch (token)
		{
			case WJB_BEGIN_ARRAY:
				append_token(form, value.val.array.rawScalar ? '=' : '[', "", 0);
				break;
			case WJB_BEGIN_OBJECT:
				append_token(form, '{', "", 0);
				break;
			case WJB_KEY:
			case WJB_VALUE:
			case WJB_ELEM:
				append_scalar(form, &value);
				break;
			default:
				append_token(form, '.', "", 0);
				break;
		}
	}
}

void
outbox_guard_hash_payload(Datum payload, pg_uuid_t *hash)
{
	StringInfoData form;
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	pg_cryptohash_ctx *context = pg_cryptohash_create(PG_SHA256);

	initStringInfo(&form);
	append_canonical_form(&form, DatumGetJsonbP(payload));
	if (pg_cryptohash_init(context) < 0 ||
		pg_cryptohash_update(context, (uint8 *) form.data, form.len) < 0 ||
		pg_cryptohash_final(context, digest, sizeof(digest)) < 0)
	{
		pg_cryptohash_free(context);
		elog(ERROR, "could not hash a payload");
	}
	pg_cryptohash_free(context);
	memcpy(hash->data, digest, UUID_LEN);
	pfree(form.data);
}
