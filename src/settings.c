/*
 * settings.c - the extension's settings, and its clock.
 *
 * Three kinds: what an administrator sets for the server or a database, the context
 * that a connection layer sets for a transaction (outbox.tenant_id, ...), and a hidden one that
 * moves the clock in tests.
 *
 * The context has a second source: while a handler runs, a field that the
 * handler has not set itself is the event's.  Whether it has is kept in the
 * "extra" of the setting, which follows the value through every kind of
 * rollback.
 */
#include "outbox.h"

#include <limits.h>

#include "utils/guc.h"
#include "portability/instr_time.h"
#include "utils/timestamp.h"

#include "settings.h"

bool		outbox_dispatch = true;
int			outbox_workers = 2;
int			outbox_poll_interval = 1000;
int			outbox_batch_time = 200;
int			outbox_max_payload_bytes = 256 * 1024;
int			outbox_segment_interval = MINS_PER_HOUR * HOURS_PER_DAY;
int			outbox_dedup_window = 7 * MINS_PER_HOUR * HOURS_PER_DAY;
int			outbox_retention = 30 * MINS_PER_HOUR * HOURS_PER_DAY;
int			outbox_receipt_retention = 30 * MINS_PER_HOUR * HOURS_PER_DAY;
int			outbox_review_retention = 180 * MINS_PER_HOUR * HOURS_PER_DAY;
char	   *outbox_archive_function = NULL;
int			outbox_keep_error_message = KEEP_MESSAGE_NONE;
bool		outbox_require_event_type = false;
int			outbox_sensitive_data = SENSITIVE_REJECT;
char	   *outbox_tenant_setting = NULL;
int			outbox_test_clock_offset = 0;
int			outbox_test_start_timeout = 60000;

const char *(*outbox_settings_handler_context) (OutboxContextField field) = NULL;

static const struct config_enum_entry keep_message_options[] = {
	{"none", KEEP_MESSAGE_NONE, false},
	{"primary", KEEP_MESSAGE_PRIMARY, false},
	{NULL, 0, false}
};

static const struct config_enum_entry sensitive_data_options[] = {
	{"reject", SENSITIVE_REJECT, false},
	{"warn", SENSITIVE_WARN, false},
	{"off", SENSITIVE_OFF, false},
	{NULL, 0, false}
};

/* ---------------------------------------------------------------- context */

/* what a setting of the context carries beside its value */
typedef struct ContextMark
{
	bool		by_handler;
} ContextMark;

static char *context_values[OUTBOX_CONTEXT_FIELDS];
static const ContextMark *context_marks[OUTBOX_CONTEXT_FIELDS];

static bool
check_context(char **newval, void **extra, GucSource source)
{
	ContextMark *mark;

	if (outbox_settings_handler_context == NULL)
		return true;
	mark = outbox_compat_guc_malloc(sizeof(ContextMark));
	if (mark == NULL)
		return false;
	mark->by_handler = true;
	*extra = mark;
	return true;
}

/* The value in force, never NULL. */
static const char *
current_context(OutboxContextField field)
{
	bool		by_handler = context_marks[field] != NULL && context_marks[field]->by_handler;
	const char *value = context_values[field];

	if (outbox_settings_handler_context != NULL && !by_handler)
		value = outbox_settings_handler_context(field);
	return value != NULL ? value : "";
}

const char *
outbox_settings_context(OutboxContextField field)
{
	const char *value = current_context(field);

	return value[0] != '\0' ? value : NULL;
}

/* hooks are not told which setting calls them: a pair for each */
#define CONTEXT_HOOKS(name, field) \
	static void assign_##name(const char *newval, void *extra) { context_marks[field] = extra; } \
	static const char *show_##name(void) { return current_context(field); }

CONTEXT_HOOKS(tenant_id, CTX_TENANT_ID)
CONTEXT_HOOKS(actor_type, CTX_ACTOR_TYPE)
CONTEXT_HOOKS(actor_id, CTX_ACTOR_ID)
CONTEXT_HOOKS(request_id, CTX_REQUEST_ID)
CONTEXT_HOOKS(trace_id, CTX_TRACE_ID)
CONTEXT_HOOKS(correlation_id, CTX_CORRELATION_ID)
CONTEXT_HOOKS(causation_id, CTX_CAUSATION_ID)
CONTEXT_HOOKS(source, CTX_SOURCE)

#define DEFINE_CONTEXT(name, field, description) \
	DefineCustomStringVariable("outbox." #name, description, \
							   "Taken by outbox.publish() when the argument is null; empty means none.", \
							   &context_values[field], "", PGC_USERSET, 0, \
							   check_context, assign_##name, show_##name)

static void
define_context_settings(void)
{
	DEFINE_CONTEXT(tenant_id, CTX_TENANT_ID, "Tenant of the events that are published.");
	DEFINE_CONTEXT(actor_type, CTX_ACTOR_TYPE, "Kind of actor that causes the events that are published.");
	DEFINE_CONTEXT(actor_id, CTX_ACTOR_ID, "Actor that causes the events that are published.");
	DEFINE_CONTEXT(request_id, CTX_REQUEST_ID, "Request that causes the events that are published.");
	DEFINE_CONTEXT(trace_id, CTX_TRACE_ID, "Trace of the events that are published: an id, or a W3C traceparent.");
	DEFINE_CONTEXT(correlation_id, CTX_CORRELATION_ID, "What ties the events that are published together.");
	DEFINE_CONTEXT(causation_id, CTX_CAUSATION_ID, "Id of the event that causes those that are published.");
	DEFINE_CONTEXT(source, CTX_SOURCE, "Application that publishes the events.");
}

/* ---------------------------------------------------------------- tenants */

/* Words of letters, digits, "_" and "$", joined by dots, two or more, as PostgreSQL takes names of custom settings. */
static bool
is_custom_name(const char *name)
{
	bool		begins = true;
	bool		custom = false;

	for (const char *c = name; *c != '\0'; c++)
	{
		bool		letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || *c == '_';

		if (*c == '.' && !begins)
			begins = custom = true;
		else if (letter || (!begins && ((*c >= '0' && *c <= '9') || *c == '$')))
			begins = false;
		else
			return false;
	}
	return custom && !begins;
}

/* As an application may choose one; of ours only the tenant's own. */
static bool
check_tenant_setting(char **newval, void **extra, GucSource source)
{
	const char *name = *newval;

	if (name[0] == '\0' || strcmp(name, "outbox.tenant_id") == 0)
		return true;
	if (!is_custom_name(name))
	{
		GUC_check_errdetail("It must be the name of a setting in two or more parts, such as app.tenant_id, or empty.");
		return false;
	}
	if (pg_strncasecmp(name, "outbox.", strlen("outbox.")) == 0)
	{
		GUC_check_errdetail("Of the settings of outbox only outbox.tenant_id can name the tenant.");
		return false;
	}
	return true;
}

bool
outbox_settings_has_tenants(void)
{
	return outbox_tenant_setting != NULL && outbox_tenant_setting[0] != '\0';
}

const char *
outbox_settings_tenant(void)
{
	const char *value;

	if (!outbox_settings_has_tenants())
		return NULL;
	value = GetConfigOption(outbox_tenant_setting, true, false);
	return value != NULL && value[0] != '\0' ? value : NULL;
}

static void
define_tenant_setting(void)
{
	DefineCustomStringVariable("outbox.tenant_setting",
							   "Name of the setting that tells which tenant a session is of.",
							   "Like app.tenant_id. Where it has a value, events are published for that tenant, and views show its rows, only. "
							   "Empty: tenants are what publishers say.",
							   &outbox_tenant_setting, "", PGC_SUSET, 0, check_tenant_setting, NULL, NULL);
}

/* ---------------------------------------------------------------- the others */

static void
define_dispatch_settings(void)
{
	DefineCustomBoolVariable("outbox.dispatch",
							 "Deliver events to subscriptions.",
							 "When off, events are kept and wait.",
							 &outbox_dispatch, true, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.workers",
							"Number of dispatch workers for each database that has the extension.",
							"Each takes one of max_worker_processes, as does the router of each database.",
							&outbox_workers, 2, 0, 64, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.poll_interval",
							"Longest time between two looks for work that nobody announced.",
							NULL,
							&outbox_poll_interval, 1000, 10, 60000, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.batch_time",
							"Time after which a batch of deliveries is committed.",
							"Row locks that handlers take are held about this long.",
							&outbox_batch_time, 200, 1, 10000, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomEnumVariable("outbox.keep_error_message",
							 "What is kept of the message of a failed delivery.",
							 "Messages may hold personal data: \"none\" keeps the error code only, \"primary\" the primary message too.",
							 &outbox_keep_error_message, KEEP_MESSAGE_NONE, keep_message_options,
							 PGC_SUSET, 0, NULL, NULL, NULL);
}

/* How long what is kept; each in minutes. */
static void
define_retention_settings(void)
{
	const int	most = 36500 * MINS_PER_HOUR * HOURS_PER_DAY;

	DefineCustomIntVariable("outbox.retention",
							"Time for which events are kept.",
							"Events that a delivery still needs are kept longer. 0: until the segment (a day) that they are in is past.",
							&outbox_retention, 30 * MINS_PER_HOUR * HOURS_PER_DAY,
							0, most, PGC_SIGHUP, GUC_UNIT_MIN, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.receipt_retention",
							"Time for which receipts are kept.",
							"Never less than \"outbox.retention\".",
							&outbox_receipt_retention, 30 * MINS_PER_HOUR * HOURS_PER_DAY,
							0, most, PGC_SIGHUP, GUC_UNIT_MIN, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.review_retention",
							"Time for which the records of failed attempts and of discarded deliveries are kept.",
							"A delivery that waits for a person longer than this is reported, and never removed.",
							&outbox_review_retention, 180 * MINS_PER_HOUR * HOURS_PER_DAY,
							0, most, PGC_SIGHUP, GUC_UNIT_MIN, NULL, NULL, NULL);
	DefineCustomStringVariable("outbox.archive_function",
							   "Function that is given each segment of the event log before it is dropped.",
							   "schema.function(segment text, from_time timestamptz, to_time timestamptz); run as its owner; empty means none.",
							   &outbox_archive_function, "",
							   PGC_SIGHUP, 0, NULL, NULL, NULL);
}

static void
define_log_settings(void)
{
	DefineCustomIntVariable("outbox.max_payload_bytes",
							"Largest payload of an event, and largest headers, as jsonb.",
							NULL,
							&outbox_max_payload_bytes, 256 * 1024, 1, 64 * 1024 * 1024,
							PGC_SUSET, GUC_UNIT_BYTE, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.segment_interval",
							"Time that one segment of the event log covers.",
							"Holds for segments made from now on.",
							&outbox_segment_interval, MINS_PER_HOUR * HOURS_PER_DAY,
							MINS_PER_HOUR, 30 * MINS_PER_HOUR * HOURS_PER_DAY,
							PGC_SIGHUP, GUC_UNIT_MIN, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.dedup_window",
							"Time for which a dedup_key keeps a second event from being made.",
							NULL,
							&outbox_dedup_window, 7 * MINS_PER_HOUR * HOURS_PER_DAY,
							1, 3650 * MINS_PER_HOUR * HOURS_PER_DAY,
							PGC_SIGHUP, GUC_UNIT_MIN, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.test_clock_offset",
							"Moves the extension's clock, for tests.",
							NULL,
							&outbox_test_clock_offset, 0, INT_MIN, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_S | GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.test_start_timeout",
							"How long a process that was registered may take to start, for tests.",
							NULL,
							&outbox_test_start_timeout, 60000, 100, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS | GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
}

static void
define_guard_settings(void)
{
	DefineCustomBoolVariable("outbox.require_event_type",
							 "Refuse events whose type is not defined.",
							 "See outbox.define_event_type().",
							 &outbox_require_event_type, false, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("outbox.sensitive_data",
							 "What is done with an event that seems to hold sensitive data.",
							 "\"reject\" refuses it, \"warn\" raises a warning, \"off\" does not look.",
							 &outbox_sensitive_data, SENSITIVE_REJECT, sensitive_data_options,
							 PGC_SUSET, 0, NULL, NULL, NULL);
}

void
outbox_settings_define(void)
{
	define_dispatch_settings();
	define_guard_settings();
	define_log_settings();
	define_retention_settings();
	define_context_settings();
	define_tenant_setting();
	MarkGUCPrefixReserved(OUTBOX_LIBRARY);
}

TimestampTz
outbox_settings_now(void)
{
	return GetCurrentTimestamp() + (int64) outbox_test_clock_offset * USECS_PER_SEC;
}

int64
outbox_settings_ticks(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}
