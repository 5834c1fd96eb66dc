/*
 * settle.c - the few deliveries that do not go well.
 *
 * Such a delivery has a row in delivery_exception until it completes.  While
 * it is unfinished, its key has a gate: later events of the key are parked
 * behind it, and run in order when the gate opens.  Whether a gate may open is
 * always derived from the rows of its key ("is there an unfinished one?"),
 * and only by whoever holds the lane's lease, so that no release can be missed.
 */
#include "outbox.h"

#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "alert.h"
#include "counters.h"
#include "extension.h"
#include "settings.h"
#include "settle.h"
#include "store.h"

#define RECOVER_AT_ONCE 100
#define SWEEP_AT_ONCE	100

static OutboxStatement insert_exception = {
	"insert into outbox.delivery_exception (subscription_id, event_id, replay_no, lane, position, status, attempts,"
	" tenant_id, event_key, started_at, worker) values ($1, $2, $3, $4, $5, 'IN_PROGRESS', 1, $6, $7, $8, $9)",
	9, {INT4OID, UUIDOID, INT2OID, INT4OID, INT8OID, TEXTOID, TEXTOID, TIMESTAMPTZOID, TEXTOID}
};

/* the oldest due one, no replay, whose key has no older unfinished one */
static OutboxStatement select_due = {
	"select x.event_id, x.replay_no, x.position, x.attempts, x.attempts_before, x.tenant_id, x.event_key"
	" from outbox.delivery_exception x where x.subscription_id = $1 and x.lane = $2 and x.status = 'RETRY'"
	" and x.replay_no = 0 and x.next_attempt_at <= $3 and (x.event_key is null or case when $4 then not exists ("
	"select from outbox.delivery_exception o where o.subscription_id = x.subscription_id and o.tenant_id = x.tenant_id"
	" and o.event_key = x.event_key and o.position < x.position and o.event_key is not null and o.status <> 'DISCARDED')"
	" else not exists ("
	"select from outbox.delivery_exception o where o.subscription_id = x.subscription_id and o.tenant_id = x.tenant_id"
	" and o.event_key = x.event_key and o.position < x.position and o.event_key is not null"
	" and o.status in ('RETRY', 'IN_PROGRESS')) end)"
	" order by x.next_attempt_at limit 1 for update skip locked",
	4, {INT4OID, INT4OID, TIMESTAMPTZOID, BOOLOID}
};

/* replays have no key */
static OutboxStatement select_due_replay = {
	"select x.event_id, x.replay_no, x.position, x.attempts, x.attempts_before, x.tenant_id, x.event_key"
	" from outbox.delivery_exception x where x.subscription_id = $1 and x.lane = $2 and x.status = 'RETRY'"
	" and x.replay_no > 0 and x.next_attempt_at <= $3 order by x.next_attempt_at limit 1 for update skip locked",
	3, {INT4OID, INT4OID, TIMESTAMPTZOID}
};

static OutboxStatement start_due = {
	"update outbox.delivery_exception set status = 'IN_PROGRESS', attempts = attempts + 1, next_attempt_at = null,"
	" started_at = $4, worker = $5 where subscription_id = $1 and event_id = $2 and replay_no = $3",
	5, {INT4OID, UUIDOID, INT2OID, TIMESTAMPTZOID, TEXTOID}
};

static OutboxStatement delete_exception = {
	"delete from outbox.delivery_exception where subscription_id = $1 and event_id = $2 and replay_no = $3",
	3, {INT4OID, UUIDOID, INT2OID}
};

static OutboxStatement fail_exception = {
	"update outbox.delivery_exception set status = $4, attempts = $5, next_attempt_at = $6, error_code = $7,"
	" error_message = $8, first_failed_at = coalesce(first_failed_at, $9), failed_at = $9, worker = null"
	" where subscription_id = $1 and event_id = $2 and replay_no = $3",
	9, {INT4OID, UUIDOID, INT2OID, TEXTOID, INT4OID, TIMESTAMPTZOID, TEXTOID, TEXTOID, TIMESTAMPTZOID}
};

static OutboxStatement put_back = {
	"update outbox.delivery_exception set status = 'RETRY', attempts = attempts - 1, next_attempt_at = $4, worker = null"
	" where subscription_id = $1 and event_id = $2 and replay_no = $3 and status = 'IN_PROGRESS'",
	4, {INT4OID, UUIDOID, INT2OID, TIMESTAMPTZOID}
};

static OutboxStatement log_attempt = {
	"insert into outbox.attempt_log (subscription_id, event_id, replay_no, attempt, started_at, failed_at, worker,"
	" error_code) values ($1, $2, $3, $4, $5, $6, $7, $8)",
	8, {INT4OID, UUIDOID, INT2OID, INT4OID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID, TEXTOID}
};

static OutboxStatement select_started = {
	"select event_id, replay_no, position, attempts, attempts_before, tenant_id, event_key, started_at"
	" from outbox.delivery_exception where subscription_id = $1 and lane = $2 and status = 'IN_PROGRESS'"
	" for update skip locked",
	2, {INT4OID, INT4OID}
};

static OutboxStatement hold_gate = {
	"insert into outbox.gate (subscription_id, lane, tenant_id, event_key, held_by, through, created_at)"
	" values ($1, $2, $3, $4, $5, $6, $7)"
	" on conflict (subscription_id, lane, tenant_id, event_key) do update set held_by = excluded.held_by"
	" where gate.held_by is null",
	7, {INT4OID, INT4OID, TEXTOID, TEXTOID, UUIDOID, INT8OID, TIMESTAMPTZOID}
};

/*
 * Who holds it now: the oldest unfinished one of the key, or nobody.  on_review is read here:
 * what this process knows of the subscription may be older than the gates that it sees.
 */
static OutboxStatement derive_gate = {
	"update outbox.gate g set held_by = case when exists (select from outbox.subscription s"
	"  where s.subscription_id = $1 and s.on_review = 'block') then (select x.event_id from outbox.delivery_exception x"
	"  where x.subscription_id = g.subscription_id and x.tenant_id = g.tenant_id and x.event_key = g.event_key"
	"  and x.event_key is not null and x.status <> 'DISCARDED' order by x.position limit 1)"
	" else (select x.event_id from outbox.delivery_exception x"
	"  where x.subscription_id = g.subscription_id and x.tenant_id = g.tenant_id and x.event_key = g.event_key"
	"  and x.event_key is not null and x.status in ('RETRY', 'IN_PROGRESS') order by x.position limit 1) end"
	" where g.subscription_id = $1 and g.lane = $2 and g.tenant_id = $3 and g.event_key = $4",
	4, {INT4OID, INT4OID, TEXTOID, TEXTOID}
};

static OutboxStatement select_gate = {
	"select gate_id from outbox.gate where subscription_id = $1 and lane = $2 and tenant_id = $3 and event_key = $4",
	4, {INT4OID, INT4OID, TEXTOID, TEXTOID}
};

static OutboxStatement move_gate = {
	"update outbox.gate set through = $2 where gate_id = $1",
	2, {INT8OID, INT8OID}
};

static OutboxStatement select_parked = {
	"select g.gate_id, p.position, p.event_id, g.tenant_id, g.event_key from outbox.gate g"
	" cross join lateral (select position, event_id from outbox.parked p where p.gate_id = g.gate_id"
	"  and p.position > g.through and p.position <= $3 order by p.position limit 1) p"
	" where g.subscription_id = $1 and g.lane = $2 and g.held_by is null order by p.position limit 1",
	3, {INT4OID, INT4OID, INT8OID}
};

static OutboxStatement select_ended = {
	"select event_id, replay_no, tenant_id, event_key from outbox.delivery_exception"
	" where subscription_id = $1 and lane = $2 and status = 'DISCARDED' and not gate_released"
	" limit 100 for update skip locked",
	2, {INT4OID, INT4OID}
};

static OutboxStatement select_waived = {
	"select g.tenant_id, g.event_key from outbox.gate g where g.subscription_id = $1 and g.lane = $2"
	" and (select x.status from outbox.delivery_exception x where x.subscription_id = g.subscription_id"
	"  and x.event_id = g.held_by and x.replay_no = 0) = 'REVIEW_REQUIRED' limit 100",
	2, {INT4OID, INT4OID}
};

static OutboxStatement mark_released = {
	"update outbox.delivery_exception set gate_released = true"
	" where subscription_id = $1 and event_id = $2 and replay_no = $3",
	3, {INT4OID, UUIDOID, INT2OID}
};

/* true when this failure has raised the guard */
static OutboxStatement note_failure = {
	"update outbox.subscription_state s set failures = s.failures + 1, last_failed = $2,"
	" outage_level = case when (s.outage_until is null or s.outage_until <= $3)"
	"  and (s.outage_level > 0 or s.failures + 1 >= $4)"
	"  then least(s.outage_level + 1, 16) else s.outage_level end,"
	" outage_until = case when (s.outage_until is null or s.outage_until <= $3)"
	"  and (s.outage_level > 0 or s.failures + 1 >= $4)"
	"  then $3 + least($5 * power(2, s.outage_level), $6) * interval '1 microsecond' else s.outage_until end"
	" from (select outage_level from outbox.subscription_state where subscription_id = $1 for update) before"
	" where s.subscription_id = $1 and (s.outage_level > 0 or s.last_failed is distinct from $2)"
	" returning before.outage_level = 0 and s.outage_level > 0",
	6, {INT4OID, UUIDOID, TIMESTAMPTZOID, INT4OID, FLOAT8OID, FLOAT8OID}
};

static OutboxStatement note_success = {
	"update outbox.subscription_state set failures = 0, last_failed = null, outage_level = 0, outage_until = null"
	" where subscription_id = $1 and (failures <> 0 or outage_level <> 0)",
	1, {INT4OID}
};

static OutboxStatement note_problem = {
	"update outbox.subscription_state set stopped_at = case when $3 is not null then coalesce(stopped_at, $2) end,"
	" stopped_code = $3, stopped_reason = $4"
	" where subscription_id = $1 and (stopped_code is distinct from $3 or stopped_reason is distinct from $4)"
	" and stopped_code is distinct from 'incomplete'",	/* that is for a person */
	4, {INT4OID, TIMESTAMPTZOID, TEXTOID, TEXTOID}
};

static OutboxStatement read_guard = {
	"select failures, outage_level, outage_until, stopped_at is not null and stopped_code is distinct from 'incomplete'"
	" from outbox.subscription_state where subscription_id = $1",
	1, {INT4OID}
};

/* ---------------------------------------------------------------- pieces */

static Datum
worker_name(OutboxProcess *self)
{
	return PointerGetDatum(cstring_to_text(psprintf("worker %d", self->number)));
}

static Datum
text_datum(const char *text, char *null)
{
	*null = text == NULL ? 'n' : ' ';
	return text == NULL ? (Datum) 0 : CStringGetTextDatum(text);
}

/* the first seven columns of select_due and select_started */
static void
read_delivery(OutboxLane *lane, uint64 row, OutboxDelivery *d)
{
	bool		isnull;

	memset(d, 0, sizeof(*d));
	d->lane = lane;
	d->event_id = *DatumGetUUIDP(outbox_store_value(row, 1, &isnull));
	d->replay_no = DatumGetInt16(outbox_store_value(row, 2, &isnull));
	d->position = DatumGetInt64(outbox_store_value(row, 3, &isnull));
	d->attempts = DatumGetInt32(outbox_store_value(row, 4, &isnull));
	d->attempts_before = DatumGetInt32(outbox_store_value(row, 5, &isnull));
	d->tenant_id = outbox_store_text(row, 6);
	d->event_key = outbox_store_text(row, 7);
}

/* Later events of the key wait: behind this one, or behind the older one that holds the gate already. */
static void
close_gate(const OutboxSubscription *s, OutboxDelivery *d)
{
	Datum		args[7];

	if (d->event_key == NULL)
		return;
	args[0] = Int32GetDatum(s->id);
	args[1] = Int32GetDatum(d->lane->lane);
	args[2] = CStringGetTextDatum(d->tenant_id);
	args[3] = CStringGetTextDatum(d->event_key);
	args[4] = UUIDPGetDatum(&d->event_id);
	args[5] = Int64GetDatum(d->position);
	args[6] = TimestampTzGetDatum(outbox_settings_now());
	outbox_store_run(&hold_gate, args, NULL, 0);
}

static void
rederive_gate(const OutboxSubscription *s, OutboxLane *lane, const char *tenant_id, const char *event_key)
{
	Datum		args[4];

	if (event_key == NULL)
		return;
	args[0] = Int32GetDatum(s->id);
	args[1] = Int32GetDatum(lane->lane);
	args[2] = CStringGetTextDatum(tenant_id);
	args[3] = CStringGetTextDatum(event_key);
	outbox_store_run(&derive_gate, args, NULL, 0);
}

void
outbox_settle_move_gate(int64 gate_id, int64 position)
{
	Datum		args[2] = {Int64GetDatum(gate_id), Int64GetDatum(position)};

	outbox_store_run(&move_gate, args, NULL, 0);
}

/* The entry is not the lane's, or the gate's, business any more. */
static void
move_past(OutboxDelivery *d)
{
	if (d->gate_id != 0)
		outbox_settle_move_gate(d->gate_id, d->position);
	else
		outbox_lease_move_cursor(d->lane, d->position);
}

/* ---------------------------------------------------------------- starting */

void
outbox_settle_start_first(const OutboxSubscription *s, OutboxDelivery *d, OutboxProcess *self)
{
	Datum		args[9];
	char		nulls[9] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};

	d->attempts = 1;
	d->started_at = outbox_settings_now();
	args[0] = Int32GetDatum(s->id);
	args[1] = UUIDPGetDatum(&d->event_id);
	args[2] = Int16GetDatum(d->replay_no);
	args[3] = Int32GetDatum(d->lane->lane);
	args[4] = Int64GetDatum(d->position);
	args[5] = CStringGetTextDatum(d->tenant_id);
	args[6] = text_datum(d->event_key, &nulls[6]);
	args[7] = TimestampTzGetDatum(d->started_at);
	args[8] = worker_name(self);
	outbox_store_run(&insert_exception, args, nulls, 0);
	move_past(d);
	close_gate(s, d);
}

bool
outbox_settle_start_due(const OutboxSubscription *s, OutboxLane *lane, bool replay, OutboxDelivery *d,
						OutboxProcess *self)
{
	Datum		args[5];

	args[0] = Int32GetDatum(s->id);
	args[1] = Int32GetDatum(lane->lane);
	args[2] = TimestampTzGetDatum(outbox_settings_now());
	args[3] = BoolGetDatum(s->block_on_review);
	if (outbox_store_run(replay ? &select_due_replay : &select_due, args, NULL, 1) == 0)
		return false;
	read_delivery(lane, 0, d);
	d->attempts++;
	d->started_at = outbox_settings_now();
	args[1] = UUIDPGetDatum(&d->event_id);
	args[2] = Int16GetDatum(d->replay_no);
	args[3] = TimestampTzGetDatum(d->started_at);
	args[4] = worker_name(self);
	outbox_store_run(&start_due, args, NULL, 0);
	return true;
}

bool
outbox_settle_start_parked(const OutboxSubscription *s, OutboxLane *lane, OutboxDelivery *d, OutboxProcess *self)
{
	Datum		args[3] = {Int32GetDatum(s->id), Int32GetDatum(lane->lane), Int64GetDatum(lane->careful_through)};
	bool		isnull;

	if (outbox_store_run(&select_parked, args, NULL, 1) == 0)
		return false;
	memset(d, 0, sizeof(*d));
	d->lane = lane;
	d->gate_id = DatumGetInt64(outbox_store_value(0, 1, &isnull));
	d->position = DatumGetInt64(outbox_store_value(0, 2, &isnull));
	d->event_id = *DatumGetUUIDP(outbox_store_value(0, 3, &isnull));
	d->tenant_id = outbox_store_text(0, 4);
	d->event_key = outbox_store_text(0, 5);
	outbox_settle_start_first(s, d, self);
	return true;
}

void
outbox_settle_put_back(const OutboxSubscription *s, OutboxDelivery *d)
{
	Datum		args[4];

	args[0] = Int32GetDatum(s->id);
	args[1] = UUIDPGetDatum(&d->event_id);
	args[2] = Int16GetDatum(d->replay_no);
	args[3] = TimestampTzGetDatum(outbox_settings_now());
	outbox_store_run(&put_back, args, NULL, 0);
}

/* ---------------------------------------------------------------- ending */

void
outbox_settle_complete(const OutboxSubscription *s, OutboxDelivery *d)
{
	Datum		args[3];

	args[0] = Int32GetDatum(s->id);
	args[1] = UUIDPGetDatum(&d->event_id);
	args[2] = Int16GetDatum(d->replay_no);
	outbox_store_run(&delete_exception, args, NULL, 0);
	rederive_gate(s, d->lane, d->tenant_id, d->event_key);
}

static void
record_attempt(const OutboxSubscription *s, OutboxDelivery *d, const OutboxFailure *failure,
			   TimestampTz failed_at, OutboxProcess *self)
{
	Datum		args[8];
	char		nulls[8] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};

	args[0] = Int32GetDatum(s->id);
	args[1] = UUIDPGetDatum(&d->event_id);
	args[2] = Int16GetDatum(d->replay_no);
	args[3] = Int32GetDatum(d->attempts_before + d->attempts);
	args[4] = TimestampTzGetDatum(d->started_at);
	nulls[4] = d->started_at == 0 ? 'n' : ' ';
	args[5] = TimestampTzGetDatum(failed_at);
	args[6] = worker_name(self);
	args[7] = CStringGetTextDatum(failure->code);
	outbox_store_run(&log_attempt, args, nulls, 0);
}

/* The guard counts events that fail one after the other for a reason that may pass. */
static void
guard_failure(const OutboxSubscription *s, OutboxDelivery *d, const OutboxVerdict *verdict)
{
	Datum		args[6];
	bool		isnull;

	if (!verdict->may_pass)
		return;
	args[0] = Int32GetDatum(s->id);
	args[1] = UUIDPGetDatum(&d->event_id);
	args[2] = TimestampTzGetDatum(outbox_settings_now());
	args[3] = Int32GetDatum(verdict->outage ? 1 : OUTBOX_GUARD_FAILURES);
	args[4] = Float8GetDatum((double) s->backoff_base);
	args[5] = Float8GetDatum((double) Min(s->backoff_max, OUTBOX_GUARD_DISTANCE_MAX));
	if (outbox_store_run(&note_failure, args, NULL, 0) > 0 && DatumGetBool(outbox_store_value(0, 1, &isnull)))
		outbox_alert_subscription_stopped(s, OUTBOX_CODE_OUTAGE);
}

void
outbox_settle_fail_started(const OutboxSubscription *s, OutboxDelivery *d, const OutboxFailure *failure,
						   OutboxProcess *self)
{
	OutboxVerdict verdict = outbox_failure_judge(s, failure, d->attempts, pg_prng_double(&pg_global_prng_state));
	TimestampTz now = outbox_settings_now();
	Datum		args[9];
	char		nulls[9] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};

	args[0] = Int32GetDatum(s->id);
	args[1] = UUIDPGetDatum(&d->event_id);
	args[2] = Int16GetDatum(d->replay_no);
	args[3] = CStringGetTextDatum(verdict.review ? "REVIEW_REQUIRED" : "RETRY");
	args[4] = Int32GetDatum(verdict.counted ? d->attempts : d->attempts - 1);
	args[5] = TimestampTzGetDatum(now + verdict.delay);
	nulls[5] = verdict.review ? 'n' : ' ';
	args[6] = CStringGetTextDatum(failure->code);
	args[7] = text_datum(failure->message != NULL ? failure->message :
						 outbox_kept_error_constraint(failure->sqlstate, &failure->constraint), &nulls[7]);
	args[8] = TimestampTzGetDatum(now);
	outbox_store_run(&fail_exception, args, nulls, 0);
	if (verdict.counted)
	{
		record_attempt(s, d, failure, now, self);
		outbox_counters_failed(s->id, failure->code, verdict.review);
	}
	if (verdict.review && !s->block_on_review)
		rederive_gate(s, d->lane, d->tenant_id, d->event_key);
	else
		close_gate(s, d);
	guard_failure(s, d, &verdict);
	if (verdict.review)
		outbox_alert_review_required(s, &d->event_id, d->replay_no, d->attempts_before + d->attempts, failure->code);
}

void
outbox_settle_fail_first(const OutboxSubscription *s, OutboxDelivery *d, const OutboxFailure *failure,
						 OutboxProcess *self)
{
	TimestampTz started_at = d->started_at;

	outbox_settle_start_first(s, d, self);
	d->started_at = started_at;
	outbox_settle_fail_started(s, d, failure, self);
}

void
outbox_settle_park(OutboxDelivery *d)
{
	OutboxWriter *parked = outbox_store_open_writer(outbox_extension_relid("parked"));
	Datum		values[3] = {Int64GetDatum(d->gate_id), Int64GetDatum(d->position), UUIDPGetDatum(&d->event_id)};
	bool		nulls[3] = {false};

	outbox_store_put(parked, values, nulls);
	outbox_store_close_writer(parked);
	outbox_lease_move_cursor(d->lane, d->position);
}

/* ---------------------------------------------------------------- looking after a lane */

int
outbox_settle_recover(const OutboxSubscription *s, OutboxLane *lane, OutboxProcess *self)
{
	Datum		args[2] = {Int32GetDatum(s->id), Int32GetDatum(lane->lane)};
	OutboxFailure died = {.sqlstate = "XX000", .code = OUTBOX_CODE_WORKER_DIED};
	OutboxDelivery *found;
	int			n = (int) outbox_store_run(&select_started, args, NULL, RECOVER_AT_ONCE);

	found = palloc(sizeof(OutboxDelivery) * Max(1, n));
	for (int i = 0; i < n; i++)
	{
		bool		isnull;

		read_delivery(lane, i, &found[i]);
		found[i].started_at = DatumGetTimestampTz(outbox_store_value(i, 8, &isnull));
	}
	for (int i = 0; i < n; i++)
	{
		if (lane->unclean)
			outbox_settle_fail_started(s, &found[i], &died, self);
		else
			outbox_settle_put_back(s, &found[i]);
	}
	return n;
}

/* on_review was changed to 'continue': those that a delivery in review holds may open. */
static int
open_waived(const OutboxSubscription *s, OutboxLane *lane)
{
	Datum		args[2] = {Int32GetDatum(s->id), Int32GetDatum(lane->lane)};
	int			n = (int) outbox_store_run(&select_waived, args, NULL, SWEEP_AT_ONCE);
	char	  **keys = palloc(sizeof(char *) * 2 * Max(1, n));

	for (int i = 0; i < n; i++)
	{
		keys[2 * i] = outbox_store_text(i, 1);
		keys[2 * i + 1] = outbox_store_text(i, 2);
	}
	for (int i = 0; i < n; i++)
		rederive_gate(s, lane, keys[2 * i], keys[2 * i + 1]);
	return n;
}

int
outbox_settle_sweep(const OutboxSubscription *s, OutboxLane *lane)
{
	Datum		args[3] = {Int32GetDatum(s->id), Int32GetDatum(lane->lane)};
	int			n = (int) outbox_store_run(&select_ended, args, NULL, SWEEP_AT_ONCE);
	OutboxDelivery *ended = palloc0(sizeof(OutboxDelivery) * Max(1, n));

	for (int i = 0; i < n; i++)
	{
		bool		isnull;

		ended[i].event_id = *DatumGetUUIDP(outbox_store_value(i, 1, &isnull));
		ended[i].replay_no = DatumGetInt16(outbox_store_value(i, 2, &isnull));
		ended[i].tenant_id = outbox_store_text(i, 3);
		ended[i].event_key = outbox_store_text(i, 4);
	}
	for (int i = 0; i < n; i++)
	{
		rederive_gate(s, lane, ended[i].tenant_id, ended[i].event_key);
		args[1] = UUIDPGetDatum(&ended[i].event_id);
		args[2] = Int16GetDatum(ended[i].replay_no);
		outbox_store_run(&mark_released, args, NULL, 0);
	}
	return s->block_on_review ? n : n + open_waived(s, lane);
}

bool
outbox_settle_find_gate(OutboxLane *lane, const char *tenant_id, const char *event_key, int64 *gate_id)
{
	Datum		args[4];
	bool		isnull;

	args[0] = Int32GetDatum(lane->subscription_id);
	args[1] = Int32GetDatum(lane->lane);
	args[2] = CStringGetTextDatum(tenant_id);
	args[3] = CStringGetTextDatum(event_key);
	if (outbox_store_run(&select_gate, args, NULL, 1) == 0)
		return false;
	*gate_id = DatumGetInt64(outbox_store_value(0, 1, &isnull));
	return true;
}

/* ---------------------------------------------------------------- the subscription's state */

void
outbox_settle_note_success(const OutboxSubscription *s)
{
	Datum		arg = Int32GetDatum(s->id);

	outbox_store_run(&note_success, &arg, NULL, 0);
}

void
outbox_settle_note_problem(const OutboxSubscription *s, const char *code, const char *reason)
{
	Datum		args[4];
	char		nulls[4] = {' ', ' ', ' ', ' '};

	args[0] = Int32GetDatum(s->id);
	args[1] = TimestampTzGetDatum(outbox_settings_now());
	args[2] = text_datum(code, &nulls[2]);
	args[3] = text_datum(reason, &nulls[3]);
	if (outbox_store_run(&note_problem, args, nulls, 0) > 0 && code != NULL)
	{
		outbox_alert_subscription_stopped(s, code);
		ereport(WARNING,
				(errmsg("subscription \"%s\" is stopped: %s", s->name, reason),
				 errhint("It goes on by itself when that is put right.")));
	}
}

void
outbox_settle_read_guard(const OutboxSubscription *s, OutboxGuard *guard)
{
	Datum		arg = Int32GetDatum(s->id);
	bool		isnull;
	Datum		until;

	memset(guard, 0, sizeof(*guard));
	guard->until = DT_NOBEGIN;
	if (outbox_store_run(&read_guard, &arg, NULL, 1) == 0)
		return;
	guard->failures = DatumGetInt32(outbox_store_value(0, 1, &isnull));
	guard->level = DatumGetInt32(outbox_store_value(0, 2, &isnull));
	until = outbox_store_value(0, 3, &isnull);
	if (!isnull)
		guard->until = DatumGetTimestampTz(until);
	guard->stopped = DatumGetBool(outbox_store_value(0, 4, &isnull));
}
