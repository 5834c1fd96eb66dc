/*
 * api_admin.c - subscribe(), alter_subscription(), unsubscribe(), pause(),
 * resume(), matching_subscriptions().
 *
 * Entry points: the arguments are checked as the caller, then a few statements
 * run as the extension's owner.  Locks are taken in one order, the
 * subscription's row, the passage to its lanes, these by number, the rest; the subscription's row is
 * locked FOR NO KEY UPDATE, so that a worker in the middle of a batch can still
 * write rows that refer to it.
 */
#include "outbox.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "definition.h"
#include "exception_count.h"
#include "extension.h"
#include "operator.h"
#include "passage.h"
#include "pattern.h"
#include "repair.h"
#include "rights.h"
#include "run_as.h"
#include "session.h"
#include "settings.h"
#include "store.h"
#include "subscription.h"
#include "wakeup.h"

/*
 * A new routing generation begins this far above the highest position of the
 * old one: the router may still append to the old lanes until it sees the change.
 */
#define GENERATION_GAP 1000000

#define DEFINITION_COLUMNS \
	"event_types, handler, ordering, lanes, max_attempts, backoff_base, backoff_factor, backoff_max," \
	" lease_duration, handler_timeout, batch_size, start_at, on_review, permanent_errors, transient_errors, run_as"
#define DEFINITION_TYPES \
	TEXTARRAYOID, TEXTOID, TEXTOID, INT4OID, INT4OID, INTERVALOID, FLOAT8OID, INTERVALOID, \
	INTERVALOID, INTERVALOID, INT4OID, TIMESTAMPTZOID, TEXTOID, TEXTARRAYOID, TEXTARRAYOID, TEXTOID

/* a row of outbox.subscription */
typedef struct Subscription
{
	int32		id;
	bool		paused;
	Oid			role;			/* of run_as; InvalidOid: gone, though another one may have its name */
	OutboxDefinition definition;
} Subscription;

PG_FUNCTION_INFO_V1(outbox_subscribe);
PG_FUNCTION_INFO_V1(outbox_alter_subscription);
PG_FUNCTION_INFO_V1(outbox_unsubscribe);
PG_FUNCTION_INFO_V1(outbox_pause);
PG_FUNCTION_INFO_V1(outbox_resume);
PG_FUNCTION_INFO_V1(outbox_matching_subscriptions);

static OutboxStatement select_subscription = {
	"select subscription_id, paused, " DEFINITION_COLUMNS
	" from outbox.subscription where subscription = $1",
	1, {TEXTOID}
};

static OutboxStatement lock_subscription = {
	"select subscription_id, paused, " DEFINITION_COLUMNS
	" from outbox.subscription where subscription = $1 for no key update",
	1, {TEXTOID}
};

static OutboxStatement insert_subscription = {
	"insert into outbox.subscription (" DEFINITION_COLUMNS ", subscription, seam, seam_xid, created_at, created_by,"
	" seam_incarnation)"
	" values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)"
	" on conflict (subscription) do nothing returning subscription_id",
	22, {DEFINITION_TYPES, TEXTOID, PG_SNAPSHOTOID, XID8OID, TIMESTAMPTZOID, TEXTOID, INT4OID}
};

static OutboxStatement update_subscription = {
	"update outbox.subscription set (" DEFINITION_COLUMNS ")"
	" = ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)"
	" where subscription_id = $17",
	17, {DEFINITION_TYPES, INT4OID}
};

static OutboxStatement update_paused = {
	"update outbox.subscription set paused = $2 where subscription_id = $1",
	2, {INT4OID, BOOLOID}
};

/* a person has looked at what was made anew */
static OutboxStatement clear_incomplete = {
	"update outbox.subscription_state set stopped_at = null, stopped_code = null, stopped_reason = null"
	" where subscription_id = $1 and stopped_code = '" OUTBOX_CODE_INCOMPLETE "'",
	1, {INT4OID}
};

static OutboxStatement update_first_lane = {
	"update outbox.subscription set first_lane = $2, ordered_from = case when $3 then $2 else ordered_from end"
	" where subscription_id = $1",
	3, {INT4OID, INT4OID, BOOLOID}
};

static OutboxStatement insert_state = {
	"insert into outbox.subscription_state (subscription_id) values ($1)",
	1, {INT4OID}
};

static OutboxStatement insert_lanes = {
	"insert into outbox.lane (subscription_id, lane, base)"
	" select $1, n, $4 from pg_catalog.generate_series($2, $2 + $3 - 1) as n",
	4, {INT4OID, INT4OID, INT4OID, INT8OID}
};

static OutboxStatement lock_lanes = {
	"select lane from outbox.lane where subscription_id = $1 order by lane for update",
	1, {INT4OID}
};

/* keys with an event in review wait again: each behind the oldest one */
static OutboxStatement hold_gates = {
	"insert into outbox.gate (subscription_id, lane, tenant_id, event_key, held_by, through, created_at)"
	" select distinct on (x.tenant_id, x.event_key) x.subscription_id, x.lane, x.tenant_id, x.event_key, x.event_id,"
	" x.position, $2 from outbox.delivery_exception x"
	" where x.subscription_id = $1 and x.event_key is not null and x.status = 'REVIEW_REQUIRED'"
	" order by x.tenant_id, x.event_key, x.position"
	" on conflict (subscription_id, lane, tenant_id, event_key) do update set held_by = excluded.held_by"
	" where gate.held_by is null",
	2, {INT4OID, TIMESTAMPTZOID}
};

/* the number after the last lane, and the highest position that any lane has seen */
static OutboxStatement select_lane_ends = {
	"select max(l.lane) + 1, max(greatest(l.base, entries.position, cursors.position))"
	" from outbox.lane l"
	" cross join lateral (select max(e.position) as position from outbox.lane_entry e"
	" where e.subscription_id = l.subscription_id and e.lane = l.lane) entries"
	" cross join lateral (select max(c.position) as position from outbox.lane_cursor c"
	" where c.subscription_id = l.subscription_id and c.lane = l.lane) cursors"
	" where l.subscription_id = $1",
	1, {INT4OID}
};

static OutboxStatement select_unfinished = {
	"select backlog + delayed + retry + in_progress + blocked + review_required,"
	" pg_catalog.concat_ws(', ', case when backlog > 0 then backlog || ' waiting' end,"
	" case when delayed > 0 then delayed || ' delayed' end, case when retry > 0 then retry || ' to be retried' end,"
	" case when in_progress > 0 then in_progress || ' in progress' end, case when blocked > 0 then blocked || ' blocked' end,"
	" case when review_required > 0 then review_required || ' to be reviewed' end)"
	" from outbox.subscription_status where subscription = $1",
	1, {TEXTOID}
};

static OutboxStatement count_leased = {
	"select count(*) from outbox.lease_events() h where h.subscription_id = $1",
	1, {INT4OID}
};

/* of handlers: nobody else's work, once the lanes are locked */
static OutboxStatement free_lanes = {
	"update outbox.lane set token = null, holder = null, worker = null, taken_at = null, expires_at = null,"
	" careful_through = null where subscription_id = $1 and token is not null",
	1, {INT4OID}
};

static OutboxStatement put_back_started = {
	"update outbox.delivery_exception set status = 'RETRY', attempts = attempts - 1, next_attempt_at = $2, worker = null"
	" where subscription_id = $1 and status = 'IN_PROGRESS'",
	2, {INT4OID, TIMESTAMPTZOID}
};

/* on_review became 'continue', and no worker of ours looks after the gates */
static OutboxStatement open_gates = {
	"update outbox.gate g set held_by = (select x.event_id from outbox.delivery_exception x"
	" where x.subscription_id = g.subscription_id and x.tenant_id = g.tenant_id and x.event_key = g.event_key"
	" and x.event_key is not null and x.status in ('RETRY', 'IN_PROGRESS') order by x.position limit 1)"
	" where g.subscription_id = $1 and (select x.status from outbox.delivery_exception x"
	"  where x.subscription_id = g.subscription_id and x.event_id = g.held_by and x.replay_no = 0) = 'REVIEW_REQUIRED'",
	1, {INT4OID}
};

static OutboxStatement deletions[] = {
	{"delete from outbox.parked where gate_id in (select gate_id from outbox.gate where subscription_id = $1)", 1, {INT4OID}},
	{"delete from outbox.gate where subscription_id = $1", 1, {INT4OID}},
	{"delete from outbox.delivery_exception where subscription_id = $1", 1, {INT4OID}},
	{"delete from outbox.delayed where subscription_id = $1", 1, {INT4OID}},
	{"delete from outbox.lane_entry where subscription_id = $1", 1, {INT4OID}},
	{"delete from outbox.lane_cursor where subscription_id = $1", 1, {INT4OID}},
	{"delete from outbox.exception_count where subscription_id = $1", 1, {INT4OID}},
	{"delete from outbox.lane_lease where subscription_id = $1", 1, {INT4OID}},
	{"delete from outbox.role_grant g using outbox.subscription s"
	" where s.subscription_id = $1 and g.kind = 'worker' and g.scope = s.subscription", 1, {INT4OID}},
	{"delete from outbox.lane where subscription_id = $1", 1, {INT4OID}},
	{"delete from outbox.run_as_role where subscription_id = $1", 1, {INT4OID}},
	{"delete from outbox.run_as_gone where subscription_id = $1", 1, {INT4OID}},
	{"delete from outbox.subscription_state where subscription_id = $1", 1, {INT4OID}},
	{"delete from outbox.subscription where subscription_id = $1", 1, {INT4OID}},
};

static OutboxStatement select_patterns = {
	"select subscription, event_types from outbox.subscription order by subscription",
};

/* ---------------------------------------------------------------- rows */

/* Whom run_as means, under the name that the role has now. */
static void
read_role(Subscription *subscription)
{
	Datum	   *name = &subscription->definition.values[DEF_RUN_AS];
	Oid			bound = outbox_run_as_read(subscription->id);

	if (outbox_run_as_find(bound, TextDatumGetCString(*name), &subscription->role) == RUN_AS_KNOWN)
		*name = CStringGetTextDatum(GetUserNameFromId(subscription->role, false));
}

/* False when there is none.  Values point into SPI's result. */
static bool
read_subscription(OutboxStatement *statement, const char *name, Subscription *subscription)
{
	Datum		arg = CStringGetTextDatum(name);
	bool		isnull;

	if (outbox_store_run(statement, &arg, NULL, 1) == 0)
		return false;
	subscription->id = DatumGetInt32(outbox_store_value(0, 1, &isnull));
	subscription->paused = DatumGetBool(outbox_store_value(0, 2, &isnull));
	for (int i = 0; i < OUTBOX_DEFINITION_COLUMNS; i++)
		subscription->definition.values[i] = outbox_store_value(0, i + 3, &subscription->definition.nulls[i]);
	read_role(subscription);
	return true;
}

/* The definition as the first parameters of a statement. */
static void
put_definition(const OutboxDefinition *definition, Datum *values, char *nulls)
{
	for (int i = 0; i < OUTBOX_DEFINITION_COLUMNS; i++)
	{
		values[i] = definition->values[i];
		nulls[i] = definition->nulls[i] ? 'n' : ' ';
	}
}

static void
make_lanes(int32 id, int first_lane, int lanes, int64 base)
{
	Datum		values[4] = {Int32GetDatum(id), Int32GetDatum(first_lane), Int32GetDatum(lanes), Int64GetDatum(base)};

	(void) outbox_store_run(&insert_lanes, values, NULL, 0);
}

static void
announce_change(void)
{
	outbox_subscription_changed();
	outbox_wakeup_router();
	outbox_wakeup_workers();
}

/*
 * Who may run a handler as the subscription's role may also change or remove
 * the subscription; when the role is gone, only superusers may.
 */
static void
check_owner(const char *name, const Subscription *subscription, Oid caller)
{
	char	   *role_name = TextDatumGetCString(subscription->definition.values[DEF_RUN_AS]);
	bool		gone = !OidIsValid(subscription->role);
	const char *verb = subscription->definition.nulls[DEF_HANDLER] ? "belongs to" : "runs as";

	if (gone ? superuser_arg(caller) : outbox_compat_may_become(caller, subscription->role))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for subscription \"%s\"", name),
			 gone ? errdetail("It %s role \"%s\", which was dropped.", verb, role_name) :
			 errdetail("It %s role \"%s\".", verb, role_name),
			 gone ? errhint("A superuser gives it another role: outbox.alter_subscription(%s, run_as => '...').",
							quote_literal_cstr(name)) :
			 errhint("Members of that role may change or remove it.")));
}

/* ---------------------------------------------------------------- subscribe */

static void
get_new_definition(FunctionCallInfo fcinfo, OutboxDefinition *definition, Oid caller)
{
	for (int i = 0; i < OUTBOX_DEFINITION_COLUMNS; i++)
	{
		if (PG_ARGISNULL(i + 1))
			outbox_definition_reset(definition, i, caller);
		else
		{
			definition->values[i] = PG_GETARG_DATUM(i + 1);
			definition->nulls[i] = false;
		}
	}
}

/*
 * What is visible now belongs to the past of the subscription.  Not the
 * transaction's snapshot: in REPEATABLE READ it is older than what has been
 * committed, and routed, meanwhile.
 */
static Datum
take_seam(void)
{
	Datum		seam;

	PushActiveSnapshot(GetLatestSnapshot());
	seam = OidFunctionCall0(F_PG_CURRENT_SNAPSHOT);
	PopActiveSnapshot();
	return seam;
}

/* False when another transaction has just committed one of that name. */
static bool
insert_new(const char *name, const OutboxDefinition *definition, Oid caller)
{
	Datum		values[22];
	char		nulls[23] = "                      ";
	OutboxIncarnation incarnation;
	Datum		id;
	bool		isnull;

	outbox_extension_record_incarnation();
	outbox_extension_incarnation(&incarnation);

	put_definition(definition, values, nulls);
	values[16] = CStringGetTextDatum(name);
	values[18] = FullTransactionIdGetDatum(GetTopFullTransactionId());
	values[17] = take_seam();
	values[19] = TimestampTzGetDatum(outbox_settings_now());
	values[20] = CStringGetTextDatum(GetUserNameFromId(caller, false));
	values[21] = Int32GetDatum(incarnation.incarnation);
	if (outbox_store_run(&insert_subscription, values, nulls, 0) == 0)
		return false;

	id = outbox_store_value(0, 1, &isnull);
	(void) outbox_store_run(&insert_state, &id, NULL, 0);
	make_lanes(DatumGetInt32(id), 0, DatumGetInt32(definition->values[DEF_LANES]), 0);
	outbox_run_as_bind(DatumGetInt32(id), get_role_oid(TextDatumGetCString(definition->values[DEF_RUN_AS]), false));
	outbox_operator_record(caller, "subscribe", name, NULL, NULL);
	announce_change();
	return true;
}

static bool
differs_in(const OutboxDefinition *a, const OutboxDefinition *b, int column)
{
	OutboxDefinition mixed = *a;
	StringInfoData differing;

	mixed.values[column] = b->values[column];
	mixed.nulls[column] = b->nulls[column];
	initStringInfo(&differing);
	return !outbox_definition_equals(a, &mixed, &differing);
}

/* Names another role than before by the same name: that of one that was dropped. */
static bool
names_new_role(const Subscription *existing, const OutboxDefinition *given)
{
	return !OidIsValid(existing->role) && given->values[DEF_RUN_AS] != existing->definition.values[DEF_RUN_AS] &&
		!differs_in(&existing->definition, given, DEF_RUN_AS);
}

/* As outbox_definition_equals(), by the roles themselves. */
static bool
is_same(const Subscription *existing, const OutboxDefinition *given, StringInfo differing)
{
	(void) outbox_definition_equals(&existing->definition, given, differing);
	if (names_new_role(existing, given))
		appendStringInfo(differing, "%srun_as", differing->len > 0 ? ", " : "");
	return differing->len == 0;
}

static void
check_same_definition(const char *name, const Subscription *existing, const OutboxDefinition *given)
{
	StringInfoData differing;

	initStringInfo(&differing);
	if (!is_same(existing, given, &differing))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("subscription \"%s\" already exists with another definition", name),
				 errdetail("It differs in: %s.", differing.data),
				 errhint("Change it with outbox.alter_subscription().")));
}

Datum
outbox_subscribe(PG_FUNCTION_ARGS)
{
	Oid			caller = GetUserId();
	char	   *name = outbox_operator_get_subscription(fcinfo, 0);
	OutboxDefinition definition;
	Subscription existing;
	OutboxSession session;
	bool		made = false;

	outbox_rights_require_operator(caller);
	get_new_definition(fcinfo, &definition, caller);
	outbox_definition_check(&definition, caller, true, true);

	SPI_connect();
	outbox_session_enter(&session);
	/* an insert that finds one waits for who is making or removing it: then look again */
	while (!made)
	{
		CHECK_FOR_INTERRUPTS();
		if (read_subscription(&select_subscription, name, &existing))
		{
			check_same_definition(name, &existing, &definition);
			break;
		}
		made = insert_new(name, &definition, caller);
	}
	outbox_definition_warn(&definition);
	outbox_session_leave(&session);
	SPI_finish();
	PG_RETURN_BOOL(made);
}

/* ---------------------------------------------------------------- alter_subscription */

/* alter_subscription() has the arguments of subscribe() but for start_at, then the list of resets */
#define ALTER_RESET_ARGUMENT	OUTBOX_DEFINITION_COLUMNS

static int
alter_argument(int column)
{
	return column < DEF_START_AT ? column + 1 : column;
}

static bool
is_given(FunctionCallInfo fcinfo, int column)
{
	return column != DEF_START_AT && !PG_ARGISNULL(alter_argument(column));
}

static int
check_reset(FunctionCallInfo fcinfo, const char *name)
{
	int			column = outbox_definition_find(name);

	if (column < 0 || column == DEF_EVENT_TYPES || column == DEF_START_AT)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" cannot be reset", name),
				 errhint("It must be the name of an argument that has a default and can be altered.")));
	if (is_given(fcinfo, column))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is both given and reset", name)));
	return column;
}

static void
apply_resets(FunctionCallInfo fcinfo, OutboxDefinition *definition, Oid caller)
{
	Datum	   *names;
	int			count;

	if (PG_ARGISNULL(ALTER_RESET_ARGUMENT))
		return;
	deconstruct_array(outbox_operator_check_list(PG_GETARG_DATUM(ALTER_RESET_ARGUMENT), "reset"), TEXTOID, -1, false,
					  TYPALIGN_INT, &names, NULL, &count);
	for (int i = 0; i < count; i++)
		outbox_definition_reset(definition, check_reset(fcinfo, TextDatumGetCString(names[i])), caller);
}

/* The definition as it shall be. */
static void
get_altered_definition(FunctionCallInfo fcinfo, const OutboxDefinition *old, OutboxDefinition *definition, Oid caller)
{
	*definition = *old;
	for (int i = 0; i < OUTBOX_DEFINITION_COLUMNS; i++)
	{
		if (is_given(fcinfo, i))
		{
			definition->values[i] = PG_GETARG_DATUM(alter_argument(i));
			definition->nulls[i] = false;
		}
	}
	apply_resets(fcinfo, definition, caller);
}

/*
 * Where keys go changes with the lanes and the ordering: new events go to new
 * lanes, which are worked when the old ones are drained.  In lanes that were filled without order a key is in
 * several: it has none there, when the order of keys begins.
 */
static void
begin_generation(int32 id, int lanes, bool order_begins)
{
	Datum		values[3] = {Int32GetDatum(id), 0, BoolGetDatum(order_begins)};
	bool		isnull;
	int64		highest;

	(void) outbox_store_run(&select_lane_ends, values, NULL, 1);
	values[1] = outbox_store_value(0, 1, &isnull);
	highest = DatumGetInt64(outbox_store_value(0, 2, &isnull));
	make_lanes(id, DatumGetInt32(values[1]), lanes, highest + GENERATION_GAP);
	(void) outbox_store_run(&update_first_lane, values, NULL, 0);
}

/* None is worked, and no claim is open, from now on until the end of the transaction. */
static void
lock_all_lanes(int32 id)
{
	Datum		value = Int32GetDatum(id);

	outbox_passage_close(id);
	(void) outbox_store_run(&lock_lanes, &value, NULL, 0);
}

/* on_review became 'block': what is in review holds its key from now on, as if it had failed just now. */
static void
close_gates(int32 id)
{
	Datum		values[2] = {Int32GetDatum(id), TimestampTzGetDatum(outbox_settings_now())};

	lock_all_lanes(id);
	(void) outbox_store_run(&hold_gates, values, NULL, 0);
}

/*
 * Between a handler and external workers the lanes change hands: none may be at work then.  Locked, no batch and no
 * claim is open; a worker that still thinks it holds a lane finds its token gone.
 */
static void
hand_over_lanes(int32 id)
{
	Datum		values[2] = {Int32GetDatum(id), TimestampTzGetDatum(outbox_settings_now())};
	bool		isnull;

	lock_all_lanes(id);
	(void) outbox_store_run_latest(&count_leased, values, NULL, 1);
	if (DatumGetInt64(outbox_store_value(0, 1, &isnull)) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("external workers hold events of the subscription"),
				 errhint("Pause it with outbox.pause(), let them settle what they hold or wait for their leases to expire, then try again.")));
	(void) outbox_store_run(&free_lanes, values, NULL, 0);
	(void) outbox_store_run(&put_back_started, values, NULL, 0);
}

static void
open_waived_gates(int32 id)
{
	Datum		value = Int32GetDatum(id);

	lock_all_lanes(id);
	(void) outbox_store_run(&open_gates, &value, NULL, 0);
}

static void
update_definition(int32 id, const OutboxDefinition *old, const OutboxDefinition *definition)
{
	Datum		values[17];
	char		nulls[18] = "                 ";

	put_definition(definition, values, nulls);
	values[16] = Int32GetDatum(id);
	if (old->nulls[DEF_HANDLER] != definition->nulls[DEF_HANDLER])
		hand_over_lanes(id);
	(void) outbox_store_run(&update_subscription, values, nulls, 0);
	if (differs_in(old, definition, DEF_LANES) || differs_in(old, definition, DEF_ORDERING))
		begin_generation(id, DatumGetInt32(definition->values[DEF_LANES]),
						 differs_in(old, definition, DEF_ORDERING) &&
						 strcmp(TextDatumGetCString(definition->values[DEF_ORDERING]), "key") == 0);
	if (differs_in(old, definition, DEF_ON_REVIEW) &&
		strcmp(TextDatumGetCString(definition->values[DEF_ON_REVIEW]), "block") == 0)
		close_gates(id);
	else if (differs_in(old, definition, DEF_ON_REVIEW) && definition->nulls[DEF_HANDLER])
		open_waived_gates(id);
}

Datum
outbox_alter_subscription(PG_FUNCTION_ARGS)
{
	Oid			caller = GetUserId();
	char	   *name = outbox_operator_get_subscription(fcinfo, 0);
	Subscription existing;
	OutboxDefinition definition;
	StringInfoData differing;
	OutboxSession session;
	bool		new_role;
	bool		check_handler;
	bool		changed;

	outbox_rights_require_operator(caller);
	SPI_connect();
	outbox_session_enter(&session);
	if (!read_subscription(&lock_subscription, name, &existing))
		outbox_operator_report_unknown(name);
	check_owner(name, &existing, caller);
	get_altered_definition(fcinfo, &existing.definition, &definition, caller);
	new_role = differs_in(&existing.definition, &definition, DEF_RUN_AS) || names_new_role(&existing, &definition);
	check_handler = new_role || differs_in(&existing.definition, &definition, DEF_HANDLER);
	outbox_definition_check(&definition, caller, false, check_handler);
	initStringInfo(&differing);
	changed = !is_same(&existing, &definition, &differing);
	if (changed)
	{
		update_definition(existing.id, &existing.definition, &definition);
		if (new_role)
			outbox_run_as_bind(existing.id, get_role_oid(TextDatumGetCString(definition.values[DEF_RUN_AS]), false));
		outbox_operator_record(caller, "alter_subscription", name, NULL, differing.data);
		announce_change();
	}
	if (check_handler)
		outbox_definition_warn(&definition);
	outbox_session_leave(&session);
	SPI_finish();
	PG_RETURN_BOOL(changed);
}

/* ---------------------------------------------------------------- unsubscribe */

static void
check_finished(const char *name)
{
	Datum		arg = CStringGetTextDatum(name);
	bool		isnull;

	(void) outbox_store_run(&select_unfinished, &arg, NULL, 1);
	if (SPI_processed > 0 && DatumGetInt64(outbox_store_value(0, 1, &isnull)) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" has unfinished deliveries", name),
				 errdetail("Events: %s.", TextDatumGetCString(outbox_store_value(0, 2, &isnull))),
				 errhint("Let them be delivered, or call outbox.unsubscribe() with force => true to give them up.")));
}

static void
delete_rows(int32 id)
{
	Datum		value = Int32GetDatum(id);

	for (int i = 0; i < lengthof(deletions); i++)
		(void) outbox_store_run(&deletions[i], &value, NULL, 0);
}

Datum
outbox_unsubscribe(PG_FUNCTION_ARGS)
{
	Oid			caller = GetUserId();
	char	   *name = outbox_operator_get_subscription(fcinfo, 0);
	bool		force = !PG_ARGISNULL(1) && PG_GETARG_BOOL(1);
	Subscription existing;
	OutboxSession session;
	bool		found;

	outbox_rights_require_operator(caller);
	SPI_connect();
	outbox_session_enter(&session);
	found = read_subscription(&lock_subscription, name, &existing);
	if (found)
	{
		check_owner(name, &existing, caller);
		lock_all_lanes(existing.id);
		if (!force)
			check_finished(name);
		outbox_exception_count_run_uncounted(delete_rows, existing.id);
		outbox_operator_record(caller, "unsubscribe", name, NULL, force ? "force" : NULL);
		outbox_rights_changed();
		announce_change();
	}
	outbox_session_leave(&session);
	SPI_finish();
	PG_RETURN_BOOL(found);
}

/* ---------------------------------------------------------------- pause and resume */

static bool
set_paused(FunctionCallInfo fcinfo, bool paused)
{
	Oid			caller = GetUserId();
	char	   *name = outbox_operator_get_subscription(fcinfo, 0);
	Subscription existing;
	OutboxSession session;
	bool		changed;

	outbox_rights_require_operator(caller);
	SPI_connect();
	outbox_session_enter(&session);
	if (!read_subscription(&lock_subscription, name, &existing))
		outbox_operator_report_unknown(name);
	changed = existing.paused != paused;
	if (changed)
	{
		Datum		values[2] = {Int32GetDatum(existing.id), BoolGetDatum(paused)};

		(void) outbox_store_run(&update_paused, values, NULL, 0);
		if (!paused)
			(void) outbox_store_run(&clear_incomplete, values, NULL, 0);
		outbox_operator_record(caller, paused ? "pause" : "resume", name, NULL, NULL);
		announce_change();
	}
	outbox_session_leave(&session);
	SPI_finish();
	return changed;
}

Datum
outbox_pause(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(set_paused(fcinfo, true));
}

Datum
outbox_resume(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(set_paused(fcinfo, false));
}

/* ---------------------------------------------------------------- matching_subscriptions */

static bool
matches_any(Datum patterns, const char *type)
{
	Datum	   *elements;
	int			count;

	deconstruct_array(DatumGetArrayTypeP(patterns), TEXTOID, -1, false, TYPALIGN_INT, &elements, NULL, &count);
	for (int i = 0; i < count; i++)
	{
		text	   *pattern = DatumGetTextPP(elements[i]);

		if (outbox_pattern_matches(VARDATA_ANY(pattern), VARSIZE_ANY_EXHDR(pattern), type, strlen(type)))
			return true;
	}
	return false;
}

/*
 * Reads the table, not the cache of the router and the workers: the answer is
 * what this transaction sees.
 */
Datum
outbox_matching_subscriptions(PG_FUNCTION_ARGS)
{
	char	   *type = TextDatumGetCString(outbox_operator_get_required(fcinfo, 0, "event_type"));
	const char *reason = outbox_pattern_check_type(type, strlen(type));
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxSession session;

	outbox_rights_require_operator(GetUserId());
	if (reason != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid event type: \"%s\"", type),
				 errdetail("%s", reason)));

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	SPI_connect();
	outbox_session_enter(&session);
	(void) outbox_store_run(&select_patterns, NULL, NULL, 0);
	for (uint64 row = 0; row < SPI_processed; row++)
	{
		bool		isnull;
		Datum		name = outbox_store_value(row, 1, &isnull);

		if (matches_any(outbox_store_value(row, 2, &isnull), type))
			tuplestore_putvalues(result->setResult, result->setDesc, &name, &isnull);
	}
	outbox_session_leave(&session);
	SPI_finish();
	return (Datum) 0;
}
