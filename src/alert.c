/*
 * alert.c - the extension's own events: outbox.review_required and
 * outbox.subscription_stopped; and the log line of a delivery that needs review.
 *
 * The line names what a person searches for: subscription, event, request and trace id, attempt, code; never the
 * payload, the key or the handler's message.  It is written once that is committed.  A flood of them is cut: the view outbox.review_required has all.
 *
 * The alerts are events like any other, written in the transaction that makes the
 * thing true, so that no alert is lost and none is false.  Nothing is written
 * unless a subscription asks for it by name ("outbox.#"), and none about the delivery of such
 * an event, so that alerts cannot beget alerts.  They carry codes and ids, no payload.
 */
#include "outbox.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"

#include "alert.h"
#include "event_log.h"
#include "on_commit.h"
#include "pattern.h"
#include "settings.h"
#include "store.h"

#define REVIEW_REQUIRED			"outbox.review_required"
#define SUBSCRIPTION_STOPPED	"outbox.subscription_stopped"

/* what the alert takes from the event that it is about; no row when that is one of our own */
static OutboxStatement select_review = {
	"select e.tenant_id, e.request_id, e.trace_id, e.correlation_id,"
	" pg_catalog.jsonb_build_object('subscription', $2, 'eventId', $1, 'eventType', e.event_type,"
	" 'replayNo', $3, 'attempts', $4, 'errorCode', $5)"
	" from outbox.event_log e where e.event_id = $1 and e.event_type not like 'outbox.%'",
	5, {UUIDOID, TEXTOID, INT4OID, INT4OID, TEXTOID}
};

static OutboxStatement select_stopped = {
	"select pg_catalog.jsonb_build_object('subscription', $1, 'errorCode', $2)",
	2, {TEXTOID, TEXTOID}
};

static OutboxStatement select_context = {
	"select e.request_id, e.trace_id from outbox.event_log e where e.event_id = $1",
	1, {UUIDOID}
};

/* ---------------------------------------------------------------- log lines */

#define LINES_A_MINUTE	60

static int64 minute_began = 0;	/* outbox_settings_ticks(); 0: never */
static int	lines_written = 0;
static int64 lines_left_out = 0;

/* The session of a client may settle, too: its statement, which may hold anything, is no part of the line. */
#define log_line(...) ereport(LOG, (__VA_ARGS__, errhidestmt(true), errhidecontext(true)))

static bool
may_write_line(void)
{
	int64		now = outbox_settings_ticks();

	if (minute_began == 0 || now - minute_began >= USECS_PER_MINUTE)
	{
		if (lines_left_out > 0)
			log_line(errmsg(INT64_FORMAT " more deliveries needed review", lines_left_out),
					 errhint("The view outbox.review_required lists them."));
		minute_began = now;
		lines_written = 0;
		lines_left_out = 0;
	}
	return lines_written < LINES_A_MINUTE;
}

/* a line that waits for the commit */
typedef struct Line
{
	OutboxOnCommit item;
	char text[	FLEXIBLE_ARRAY_MEMBER]; /* empty: left out already */
} Line;

/* Whether a prepared transaction commits is not seen here, so it is said before. */
static void
write_line(OutboxOnCommit *item, bool prepared)
{
	const char *text = ((Line *) item)->text;

	if (text[0] != '\0' && may_write_line())
	{
		lines_written++;
		log_line(errmsg_internal("delivery needs review%s: %s", prepared ? " once its prepared transaction commits" : "", text));
	}
	else if (lines_left_out++ == 0)
		log_line(errmsg("deliveries need review faster than they are logged"),
				 errhint("The view outbox.review_required lists them."));
}

static const char *
context_value(uint64 found, int column)
{
	const char *value = found > 0 ? outbox_store_text(0, column) : NULL;

	return value != NULL ? value : "-";
}

static const char *
describe_review(const OutboxSubscription *s, const pg_uuid_t *event_id, int attempts, const char *code)
{
	Datum		arg = UUIDPGetDatum(event_id);
	uint64		found = outbox_store_run(&select_context, &arg, NULL, 1);

	return psprintf("subscription \"%s\", event %s, request %s, trace %s, attempt %d, code %s",
					s->name, DatumGetCString(DirectFunctionCall1(uuid_out, arg)),
					context_value(found, 1), context_value(found, 2), attempts, code);
}

static void
log_review(const OutboxSubscription *s, const pg_uuid_t *event_id, int attempts, const char *code)
{
	const char *text = may_write_line() ? describe_review(s, event_id, attempts, code) : "";
	Size		size = strlen(text) + 1;
	Line	   *line = outbox_on_commit_put(offsetof(Line, text) + size, write_line);

	memcpy(line->text, text, size);
}

/* ---------------------------------------------------------------- events */

static bool
is_wanted(const char *event_type)
{
	OutboxSubscription *subscriptions;
	int			n = outbox_subscription_all(&subscriptions);

	for (int i = 0; i < n; i++)
		for (int j = 0; j < subscriptions[i].npatterns; j++)
		{
			const char *pattern = subscriptions[i].patterns[j];

			if (outbox_pattern_matches(pattern, strlen(pattern), event_type, strlen(event_type)))
				return true;
		}
	return false;
}

/* What both kinds have; the rest is null. */
static void
begin_draft(OutboxDraft *draft, const char *event_type, const OutboxSubscription *s, Datum payload)
{
	memset(draft->values, 0, sizeof(draft->values));
	memset(draft->nulls, true, sizeof(draft->nulls));
	draft->values[EV_EVENT_TYPE] = CStringGetTextDatum(event_type);
	draft->values[EV_PAYLOAD_VERSION] = CStringGetTextDatum("1");
	draft->values[EV_AGGREGATE_TYPE] = CStringGetTextDatum("subscription");
	draft->values[EV_AGGREGATE_ID] = CStringGetTextDatum(s->name);
	draft->values[EV_SOURCE] = CStringGetTextDatum(OUTBOX_SCHEMA);
	draft->values[EV_PAYLOAD] = payload;
	draft->nulls[EV_EVENT_TYPE] = draft->nulls[EV_PAYLOAD_VERSION] = false;
	draft->nulls[EV_AGGREGATE_TYPE] = draft->nulls[EV_AGGREGATE_ID] = false;
	draft->nulls[EV_SOURCE] = draft->nulls[EV_PAYLOAD] = false;
}

void
outbox_alert_review_required(const OutboxSubscription *s, const pg_uuid_t *event_id, int replay_no,
							 int attempts, const char *code)
{
	static const OutboxEventColumn context[] = {EV_TENANT_ID, EV_REQUEST_ID, EV_TRACE_ID, EV_CORRELATION_ID};
	OutboxDraft draft;
	pg_uuid_t	id;
	bool		isnull;
	Datum		args[5];

	log_review(s, event_id, attempts, code);
	if (!is_wanted(REVIEW_REQUIRED))
		return;
	args[0] = UUIDPGetDatum(event_id);
	args[1] = CStringGetTextDatum(s->name);
	args[2] = Int32GetDatum(replay_no);
	args[3] = Int32GetDatum(attempts);
	args[4] = CStringGetTextDatum(code);
	if (outbox_store_run(&select_review, args, NULL, 1) == 0)
		return;
	begin_draft(&draft, REVIEW_REQUIRED, s, outbox_store_value(0, 5, &isnull));
	for (int i = 0; i < lengthof(context); i++)
		draft.values[context[i]] = outbox_store_value(0, i + 1, &draft.nulls[context[i]]);
	draft.values[EV_CAUSATION_ID] = UUIDPGetDatum(event_id);
	draft.nulls[EV_CAUSATION_ID] = false;
	(void) outbox_event_log_append(&draft, &id);
}

void
outbox_alert_subscription_stopped(const OutboxSubscription *s, const char *code)
{
	OutboxDraft draft;
	pg_uuid_t	id;
	bool		isnull;
	Datum		args[2] = {CStringGetTextDatum(s->name), CStringGetTextDatum(code)};

	if (!is_wanted(SUBSCRIPTION_STOPPED))
		return;
	(void) outbox_store_run(&select_stopped, args, NULL, 1);
	begin_draft(&draft, SUBSCRIPTION_STOPPED, s, outbox_store_value(0, 1, &isnull));
	(void) outbox_event_log_append(&draft, &id);
}
