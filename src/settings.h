/* settings.h - the extension's settings (outbox.*), as C variables. */
#ifndef OUTBOX_SETTINGS_H
#define OUTBOX_SETTINGS_H

#include "outbox.h"

/* what publish() takes when the argument is NULL; see outbox_settings_context() */
typedef enum OutboxContextField
{
	CTX_TENANT_ID,
	CTX_ACTOR_TYPE,
	CTX_ACTOR_ID,
	CTX_REQUEST_ID,
	CTX_TRACE_ID,
	CTX_CORRELATION_ID,
	CTX_CAUSATION_ID,
	CTX_SOURCE,
	OUTBOX_CONTEXT_FIELDS
} OutboxContextField;

extern PGDLLIMPORT bool outbox_dispatch;	/* outbox.dispatch */
extern PGDLLIMPORT int outbox_workers;	/* outbox.workers, per database */
extern PGDLLIMPORT int outbox_poll_interval;	/* ms */
extern PGDLLIMPORT int outbox_batch_time;	/* ms */
extern PGDLLIMPORT int outbox_max_payload_bytes;	/* bytes */
extern PGDLLIMPORT int outbox_segment_interval; /* minutes, 60 .. 43200 */
extern PGDLLIMPORT int outbox_dedup_window; /* minutes */
extern PGDLLIMPORT int outbox_retention;	/* minutes */
extern PGDLLIMPORT int outbox_receipt_retention;	/* minutes; what counts is outbox_settings_receipt_retention() */
extern PGDLLIMPORT int outbox_review_retention; /* minutes */
extern PGDLLIMPORT char *outbox_archive_function;	/* "schema.function", or "" */
extern PGDLLIMPORT int outbox_keep_error_message;	/* OutboxKeepMessage */
extern PGDLLIMPORT bool outbox_require_event_type;	/* outbox.require_event_type */
extern PGDLLIMPORT int outbox_sensitive_data;	/* OutboxSensitiveData */
extern PGDLLIMPORT char *outbox_tenant_setting; /* name of the setting that tells a session's tenant; empty: none does */
extern PGDLLIMPORT int outbox_test_clock_offset;	/* s; for tests: added to the wall clock */
extern PGDLLIMPORT int outbox_test_start_timeout;	/* ms; for tests: until a registered process is given up */

typedef enum OutboxKeepMessage
{
	KEEP_MESSAGE_NONE,
	KEEP_MESSAGE_PRIMARY
} OutboxKeepMessage;

typedef enum OutboxSensitiveData
{
	SENSITIVE_OFF,
	SENSITIVE_WARN,
	SENSITIVE_REJECT
} OutboxSensitiveData;

extern void outbox_settings_define(void);

/* Of both the longer one, in minutes. */
static inline int
outbox_settings_receipt_retention(void)
{
	return Max(outbox_retention, outbox_receipt_retention);
}

/*
 * The value of a context setting, or NULL when empty.  While a handler runs
 * (outbox_settings_handler_context set; it may give NULL), a field that the handler has not set itself is the event's.
 */
extern const char *outbox_settings_context(OutboxContextField field);
extern PGDLLIMPORT const char *(*outbox_settings_handler_context) (OutboxContextField field);

/* Does a setting tell which tenant a session is of? */
extern bool outbox_settings_has_tenants(void);

/* The tenant that this session is of, by outbox.tenant_setting; NULL: of none.  Valid until the setting changes. */
extern const char *outbox_settings_tenant(void);

/* The wall clock of the extension: GetCurrentTimestamp() plus the test clock's offset. */
extern TimestampTz outbox_settings_now(void);

/* A clock that is never set, in microseconds: for pauses of our own, which no change of the wall clock may stretch. */
extern int64 outbox_settings_ticks(void);

#endif							/* OUTBOX_SETTINGS_H */
