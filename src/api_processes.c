/*
 * api_processes.c - SQL functions about our processes: the list behind
 * outbox.worker_status, and the news of CREATE EXTENSION to the launcher.
 */
#include "outbox.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "settings.h"
#include "shmem.h"
#include "tenant.h"
#include "wakeup.h"

#define LIST_COLUMNS 12

/* one process as it was at one moment */
typedef struct ListEntry
{
	OutboxProcessKind kind;
	int			number;
	int			pid;			/* 0: none, or not yet started */
	const char *state;
	uint32		subscription_id;
	uint32		lane;
	pg_uuid_t	event_id;
	int			replay_no;
	TimestampTz busy_since;
	Oid			role;
} ListEntry;

PG_FUNCTION_INFO_V1(outbox_process_list);
PG_FUNCTION_INFO_V1(outbox_announce_database);

static int	copy_processes(ListEntry *entries, int *wanted, int *running);
static void copy_process(ListEntry *entry, OutboxProcess *process);
static int	add_missing(ListEntry *entries, int n, int wanted);
static bool has_entry(const ListEntry *entries, int n, OutboxProcessKind kind, int number);
static void put_entry(ReturnSetInfo *result, const ListEntry *entry, int wanted, int running);

/*
 * outbox.process_list(): the processes of this database, and those that should be there.
 */
Datum
outbox_process_list(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	ListEntry  *entries = palloc0(sizeof(ListEntry) * (outbox_shared->max_processes + outbox_workers + 1));
	int			wanted;
	int			running;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	n = copy_processes(entries, &wanted, &running);
	n = add_missing(entries, n, wanted);
	for (int i = 0; i < n; i++)
		put_entry(result, &entries[i], wanted, running);
	return (Datum) 0;
}

static int
copy_processes(ListEntry *entries, int *wanted, int *running)
{
	int			n = 0;

	LWLockAcquire(outbox_shared->lock, LW_SHARED);
	*wanted = outbox_dispatch ? outbox_workers : 0;
	*running = 0;
	for (int i = 0; i < outbox_shared->max_processes; i++)
	{
		OutboxProcess *process = &outbox_shared->processes[i];

		if (process->kind == PROCESS_FREE || process->database != MyDatabaseId)
			continue;
		if (process->kind == PROCESS_WORKER && process->pid != 0)
			(*running)++;
		copy_process(&entries[n++], process);
	}
	LWLockRelease(outbox_shared->lock);
	return n;
}

static void
copy_process(ListEntry *entry, OutboxProcess *process)
{
	entry->kind = process->kind;
	entry->number = process->number;
	entry->pid = process->pid;
	entry->role = process->role;
	entry->busy_since = (TimestampTz) pg_atomic_read_u64(&process->busy_since);
	entry->subscription_id = pg_atomic_read_u32(&process->subscription_id);
	entry->lane = pg_atomic_read_u32(&process->lane);
	entry->event_id = process->event_id;
	entry->replay_no = process->replay_no;
	if (entry->pid == 0)
		entry->state = "starting";
	else
		entry->state = (entry->busy_since != 0 || entry->subscription_id != 0) ? "running" : "idle";
}

/* A router and the wanted workers always have a row; without a process it says so. */
static int
add_missing(ListEntry *entries, int n, int wanted)
{
	int			present = n;

	if (!has_entry(entries, present, PROCESS_ROUTER, 0))
		entries[n++] = (ListEntry) {.kind = PROCESS_ROUTER, .state = outbox_dispatch ? "missing" : "off"};
	for (int number = 1; number <= wanted; number++)
	{
		if (!has_entry(entries, present, PROCESS_WORKER, number))
			entries[n++] = (ListEntry) {.kind = PROCESS_WORKER, .number = number, .state = "missing"};
	}
	return n;
}

static bool
has_entry(const ListEntry *entries, int n, OutboxProcessKind kind, int number)
{
	for (int i = 0; i < n; i++)
	{
		if (entries[i].kind == kind && entries[i].number == number)
			return true;
	}
	return false;
}

static void
put_entry(ReturnSetInfo *result, const ListEntry *entry, int wanted, int running)
{
	static const pg_uuid_t no_event = {{0}};
	bool		worker = (entry->kind == PROCESS_WORKER);
	bool		working = (entry->subscription_id != 0);
	bool		event = working && memcmp(&entry->event_id, &no_event, sizeof(pg_uuid_t)) != 0 &&
	outbox_tenant_event_is_visible(&entry->event_id);
	Datum		values[LIST_COLUMNS] = {
		CStringGetTextDatum(worker ? "worker" : "router"),
		Int32GetDatum(entry->number),
		Int32GetDatum(entry->pid),
		CStringGetTextDatum(entry->state),
		Int32GetDatum((int32) entry->subscription_id),
		Int32GetDatum((int32) entry->lane),
		UUIDPGetDatum(&entry->event_id),
		TimestampTzGetDatum(entry->busy_since),
		ObjectIdGetDatum(entry->role),
		Int32GetDatum(wanted),
		Int32GetDatum(running),
		Int32GetDatum(entry->replay_no)
	};
	bool		nulls[LIST_COLUMNS] = {
		false, !worker, entry->pid == 0, false, !working, !working, !event,
		entry->busy_since == 0, !OidIsValid(entry->role), false, false, !event
	};

	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/*
 * outbox.announce_database(): called by the install script.  When it commits, the
 * launcher looks whether the extension is here.
 */
Datum
outbox_announce_database(PG_FUNCTION_ARGS)
{
	outbox_wakeup_launcher();
	PG_RETURN_BOOL(true);
}
