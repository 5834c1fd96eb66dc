/*
 * handler.c - the code of other roles, run inside this process.
 *
 * What a handler may do must not depend on who else is served by this process, and
 * must not reach further than its role:
 * - the role is set after the transaction's start and kept through its commit,
 *   as SECURITY_LOCAL_USERID_CHANGE, so that SET ROLE and SET SESSION
 *   AUTHORIZATION are refused and whatever runs at commit runs as the role;
 * - settings are changed in a nest level of their own, rolled back after each call;
 * - deferred triggers fire after each call, inside that level;
 * - cursors, listeners, temporary tables, prepared statements and session locks
 *   are gone before the next transaction; a process serves one role only.
 *
 * The time limit is our own timeout, so that it is told apart from an
 * administrator's cancel.  A handler that swallows it is cancelled again, and
 * when it goes on all the same the process ends.
 */
#include "outbox.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_type.h"
#include "commands/async.h"
#include "commands/prepare.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "parser/parse_func.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/regproc.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timeout.h"
#include "utils/typcache.h"
#include "utils/varlena.h"

#include "extension.h"
#include "handler.h"
#include "run_as.h"
#include "session.h"
#include "settings.h"
#include "store.h"

#define SWALLOWED_AGAIN_MS	1000	/* between cancels of a handler that goes on */
#define SWALLOWED_MAX		3	/* cancels, then the process ends */

volatile sig_atomic_t outbox_handler_running = false;
OutboxCurrentDelivery outbox_handler_current = {NULL};
OutboxRequest outbox_handler_request;

static TimeoutId limit_timeout;
static volatile sig_atomic_t limit_fired = 0;	/* how often */
static OutboxInterruption limit_kind = INTERRUPTED_NOT;

/* whom this process is outside of its handlers' transactions */
static Oid	own_user = InvalidOid;

static OutboxStatement select_search_path = {
	"select pg_catalog.substr(o, 13) from pg_catalog.pg_db_role_setting s, pg_catalog.unnest(s.setconfig) as o"
	" where s.setdatabase in (0, $1) and s.setrole in (0, $2) and o like 'search\\_path=%'"
	" order by s.setrole <> 0 desc, s.setdatabase <> 0 desc limit 1",
	2, {OIDOID, OIDOID}
};

/* ---------------------------------------------------------------- the time limit */

static void
limit_reached(void)
{
	if (++limit_fired > SWALLOWED_MAX)
		ProcDiePending = true;
	else
		QueryCancelPending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
	enable_timeout_after(limit_timeout, SWALLOWED_AGAIN_MS);
}

void
outbox_handler_init(void)
{
	limit_timeout = RegisterTimeout(USER_TIMEOUT, limit_reached);
}

static void
arm_limit(int64 limit, OutboxInterruption kind)
{
	limit_fired = 0;
	limit_kind = kind;
	if (limit > 0)
		enable_timeout_after(limit_timeout, (int) Min(limit / 1000 + 1, INT_MAX));
}

/* The timeout is over, and with it a cancel that came too late to be seen. */
static void
disarm_limit(void)
{
	disable_timeout(limit_timeout, false);
	if (limit_fired)
		QueryCancelPending = false;
}

OutboxInterruption
outbox_handler_interruption(void)
{
	if (ShutdownRequestPending)
		return INTERRUPTED_SHUTDOWN;
	return limit_fired ? limit_kind : INTERRUPTED_NOT;
}

/* ---------------------------------------------------------------- finding it */

static bool
report_problem(OutboxProblem *problem, const char *code, char *reason)
{
	problem->code = code;
	problem->reason = reason;
	return false;
}

/*
 * Two functions of the name are as bad as none: whoever may create functions in
 * the schema could put one in the place of the other.
 */
static Oid
find_function(const char *name, bool *batch, bool *ambiguous)
{
	List	   *names = outbox_compat_qualified_names(name);
	Oid			event = get_rel_type_id(outbox_extension_relid("event"));
	Oid			events = get_array_type(event);
	Oid			single = LookupFuncName(names, 1, &event, true);
	Oid			set = LookupFuncName(names, 1, &events, true);

	*batch = !OidIsValid(single);
	*ambiguous = OidIsValid(single) && OidIsValid(set);
	return *batch ? set : single;
}

/* What search_path a session of the role would begin with. In our own settings. */
static char *
find_search_path(Oid role)
{
	Datum		args[2] = {ObjectIdGetDatum(MyDatabaseId), ObjectIdGetDatum(role)};
	MemoryContext caller = CurrentMemoryContext;
	char	   *path = NULL;
	bool		isnull;

	SPI_connect();
	if (outbox_store_run(&select_search_path, args, NULL, 1) > 0)
	{
		Datum		value = outbox_store_value(0, 1, &isnull);

		path = MemoryContextStrdup(caller, TextDatumGetCString(value));
	}
	SPI_finish();
	return path != NULL ? path : pstrdup(outbox_session_default_search_path());
}

static bool
find_role(const OutboxSubscription *subscription, Oid *role, OutboxProblem *problem)
{
	const char *name = subscription->run_as;

	switch (outbox_run_as_find(subscription->role, name, role))
	{
		case RUN_AS_KNOWN:
			break;
		case RUN_AS_NOBODY:
			return report_problem(problem, "42704", psprintf("role \"%s\" does not exist", name));
		case RUN_AS_DROPPED:
			return report_problem(problem, "42704",
								  psprintf("its role \"%s\" was dropped%s; a superuser has to name its role: outbox.alter_subscription(%s, run_as => '...')",
										   name, OidIsValid(get_role_oid(name, true)) ? " (another one has that name now)" : "",
										   quote_literal_cstr(subscription->name)));
	}
	return true;
}

bool
outbox_handler_resolve(const OutboxSubscription *subscription, OutboxHandler *handler, OutboxProblem *problem)
{
	Oid			schema;
	char	   *role_name;
	bool		ambiguous;

	memset(handler, 0, sizeof(*handler));
	if (!find_role(subscription, &handler->role, problem))
		return false;
	role_name = GetUserNameFromId(handler->role, false);
	handler->function = find_function(subscription->handler, &handler->batch, &ambiguous);
	if (ambiguous)
		return report_problem(problem, "42725", psprintf("there are both %s(outbox.event) and %s(outbox.event[])",
														 subscription->handler, subscription->handler));
	if (!OidIsValid(handler->function))
		return report_problem(problem, "42883", psprintf("function %s(outbox.event) does not exist", subscription->handler));
	if (get_func_retset(handler->function))
		return report_problem(problem, "42809", psprintf("function %s returns a set", subscription->handler));
	schema = get_func_namespace(handler->function);
	if (!outbox_compat_may_use_schema(schema, handler->role))
		return report_problem(problem, "42501", psprintf("role \"%s\" has no USAGE on the schema of %s",
														 role_name, subscription->handler));
	if (!outbox_compat_may_execute(handler->function, handler->role))
		return report_problem(problem, "42501", psprintf("role \"%s\" has no EXECUTE on %s",
														 role_name, subscription->handler));
	handler->search_path = find_search_path(handler->role);
	return true;
}

/* ---------------------------------------------------------------- becoming the role */

/*
 * session_user and is_superuser are what policies and audits of applications
 * go by; they must not say that a superuser is at work.
 */
void
outbox_handler_adopt_role(Oid role)
{
	Oid			self = GetUserId();

	SetSessionAuthorization(role, superuser_arg(role));
	SetUserIdAndSecContext(self, 0);
}

/* of outbox.event: looked up once a transaction, as the type may have been made anew */
static TupleDesc event_descriptor = NULL;

/* of the log's rows that begin as outbox.event does: rows of this type are handed on as they lie */
static Oid	fitting_type = InvalidOid;

static void
find_event_descriptor(void)
{
	Oid			current = get_rel_type_id(outbox_extension_relid("event"));

	fitting_type = InvalidOid;
	if (event_descriptor == NULL || event_descriptor->tdtypeid != current)
	{
		MemoryContext caller = MemoryContextSwitchTo(TopMemoryContext);

		if (event_descriptor != NULL)
			FreeTupleDesc(event_descriptor);
		event_descriptor = lookup_rowtype_tupdesc_copy(current, -1);
		MemoryContextSwitchTo(caller);
	}
}

void
outbox_handler_enter(OutboxHandler *handler)
{
	own_user = GetUserId();
	SetUserIdAndSecContext(handler->role, SECURITY_LOCAL_USERID_CHANGE);
	fmgr_info(handler->function, &handler->finfo);
	find_event_descriptor();
}

bool
outbox_handler_is_entered(void)
{
	return OidIsValid(own_user);
}

/* ---------------------------------------------------------------- its argument */

/* Do rows of this descriptor begin with the columns of outbox.event, byte for byte? */
static bool
fits_event(TupleDesc row)
{
	if (row->tdtypeid == fitting_type && OidIsValid(fitting_type))
		return true;
	if (event_descriptor->natts != OUTBOX_EVENT_COLUMNS || row->natts < OUTBOX_EVENT_COLUMNS)
		return false;
	for (int i = 0; i < OUTBOX_EVENT_COLUMNS; i++)
	{
		if (TupleDescAttr(row, i)->atttypid != TupleDescAttr(event_descriptor, i)->atttypid ||
			TupleDescAttr(row, i)->attisdropped)
			return false;
	}
	fitting_type = row->tdtypeid;
	return true;
}

/* The row without the log's columns behind those of outbox.event: nobody knows of their bytes any more. */
static HeapTuple
cut_to_event(HeapTuple row)
{
	HeapTuple	event = heap_copytuple(row);

	HeapTupleHeaderSetNatts(event->t_data, OUTBOX_EVENT_COLUMNS);
	return event;
}

Datum
outbox_handler_event(TupleTableSlot *row)
{
	HeapTuple	tuple;
	bool		made;

	if (TTS_IS_BUFFERTUPLE(row) && fits_event(row->tts_tupleDescriptor))
	{
		tuple = ExecFetchSlotHeapTuple(row, false, &made);
		if (!HeapTupleHasExternal(tuple) && HeapTupleHeaderGetNatts(tuple->t_data) >= OUTBOX_EVENT_COLUMNS)
			return heap_copy_tuple_as_datum(cut_to_event(tuple), event_descriptor);
	}
	slot_getsomeattrs(row, OUTBOX_EVENT_COLUMNS);
	tuple = heap_form_tuple(event_descriptor, row->tts_values, row->tts_isnull);
	return heap_copy_tuple_as_datum(tuple, event_descriptor);
}

/*
 * Expanded from the start: a flat array would be put together only to be taken apart again. Read-only, as
 * its elements are the caller's: they must stay where they are until the call is over.
 */
Datum
outbox_handler_event_array(Datum *events, int count)
{
	ExpandedArrayHeader *array = construct_empty_expanded_array(event_descriptor->tdtypeid, CurrentMemoryContext, NULL);

	array->ndims = 1;
	array->dims = MemoryContextAlloc(array->hdr.eoh_context, sizeof(int));
	array->lbound = MemoryContextAlloc(array->hdr.eoh_context, sizeof(int));
	array->dims[0] = count;
	array->lbound[0] = 1;
	array->dvalues = events;
	array->dvalueslen = count;
	array->nelems = count;
	array->dnulls = NULL;
	array->flat_size = 0;
	/* what deconstruct_expanded_array() and flattening go by */
	array->fvalue = NULL;
	return EOHPGetRODatum(&array->hdr);
}

/* ---------------------------------------------------------------- its context */

/* the event at hand, and what has been asked for of it */
static TupleTableSlot *context_row = NULL;
static MemoryContext context_memory;
static const char *context_values[OUTBOX_CONTEXT_FIELDS];
static bool context_known[OUTBOX_CONTEXT_FIELDS];

static const OutboxEventColumn context_columns[OUTBOX_CONTEXT_FIELDS] = {
	[CTX_TENANT_ID] = EV_TENANT_ID,
	[CTX_ACTOR_TYPE] = EV_ACTOR_TYPE,
	[CTX_ACTOR_ID] = EV_ACTOR_ID,
	[CTX_REQUEST_ID] = EV_REQUEST_ID,
	[CTX_TRACE_ID] = EV_TRACE_ID,
	[CTX_CORRELATION_ID] = EV_CORRELATION_ID,
	/* what the handler publishes is caused by this event */
	[CTX_CAUSATION_ID] = EV_EVENT_ID,
	[CTX_SOURCE] = EV_SOURCE,
};

/* Most handlers publish nothing: a field is read when it is asked for. */
static const char *
event_context(OutboxContextField field)
{
	MemoryContext caller;
	bool		isnull;
	Datum		value;

	if (context_known[field])
		return context_values[field];
	caller = MemoryContextSwitchTo(context_memory);
	value = slot_getattr(context_row, context_columns[field] + 1, &isnull);
	if (isnull)
		context_values[field] = NULL;
	else if (field == CTX_CAUSATION_ID)
		context_values[field] = DatumGetCString(DirectFunctionCall1(uuid_out, value));
	else
		context_values[field] = TextDatumGetCString(value);
	context_known[field] = true;
	MemoryContextSwitchTo(caller);
	return context_values[field];
}

/* The row, and the current memory context, must stay until the call is over. */
void
outbox_handler_set_context(TupleTableSlot *row)
{
	context_row = row;
	context_memory = CurrentMemoryContext;
	memset(context_known, false, sizeof(context_known));
	outbox_settings_handler_context = (row != NULL) ? event_context : NULL;
}

/* ---------------------------------------------------------------- its tenant */

static const char *call_tenant = NULL;

void
outbox_handler_set_tenant(const char *tenant)
{
	call_tenant = tenant;
}

/* For the rest of the GUC nest level, whatever the worker's own session says. */
static void
become_tenant(void)
{
	if (call_tenant != NULL)
		(void) set_config_option(outbox_tenant_setting, call_tenant, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

/* ---------------------------------------------------------------- the call */

void
outbox_handler_call(OutboxHandler *handler, Datum argument, int64 limit, OutboxInterruption kind)
{
	LOCAL_FCINFO(fcinfo, 1);
	int			level = NewGUCNestLevel();

	become_tenant();
	PushActiveSnapshot(GetTransactionSnapshot());
	InitFunctionCallInfoData(*fcinfo, &handler->finfo, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = argument;
	fcinfo->args[0].isnull = false;

	memset(&outbox_handler_request, 0, sizeof(outbox_handler_request));
	arm_limit(limit, kind);
	outbox_handler_running = true;
	/* whoever asked us to end just before found nothing to cancel */
	if (ShutdownRequestPending)
	{
		QueryCancelPending = true;
		InterruptPending = true;
	}
	CHECK_FOR_INTERRUPTS();
	(void) FunctionCallInvoke(fcinfo);
	PopActiveSnapshot();
	AfterTriggerFireDeferred();
	outbox_handler_running = false;
	disarm_limit();
	if (limit_fired || ShutdownRequestPending)
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("handler went on after its cancellation")));
	AtEOXact_GUC(false, level);
}

void
outbox_handler_finish(void)
{
	PortalHashTableDeleteAll();
	Async_UnlistenAll();
	ResetTempTableNamespace();
}

void
outbox_handler_clean(void)
{
	/* an abort has done so already; a commit leaves the role in force */
	if (OidIsValid(own_user))
		SetUserIdAndSecContext(own_user, 0);
	own_user = InvalidOid;
	outbox_handler_running = false;
	outbox_handler_current.subscription = NULL;
	outbox_settings_handler_context = NULL;
	disarm_limit();
	DropAllPreparedStatements();
	LockReleaseSession(USER_LOCKMETHOD);
	ResetSequenceCaches();
	outbox_session_repin();
}
