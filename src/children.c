/*
 * children.c - one process that the launcher keeps running.
 *
 * The state of a child is in its slot, in shared memory; here is what only the
 * launcher needs.  Two things tell of its end: its slot, freed by itself, and the server's
 * own slot, freed a moment later by the postmaster, who then signals us.
 */
#include "outbox.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "children.h"
#include "process.h"
#include "settings.h"
#include "slots.h"

/* a child that ends younger than this has failed to start well */
#define SHORT_LIFE_MS 5000
#define REST_MIN_MS 100

/* asked to end but still there: ask again */
#define ASK_AGAIN_MS 5000

/* the postmaster's signal may be missed */
#define REAP_LOOK_MS 250

static uint64 next_look = 0;

static void describe(BackgroundWorker *worker, const char *database_name, int number, const OutboxProcess *slot);

OutboxStart
outbox_children_start(OutboxChild *child, Oid database, const char *database_name, int number)
{
	BackgroundWorker worker;
	OutboxProcess *slot = NULL;
	MemoryContext caller;
	bool		registered;

	Assert(child->slot == NULL);
	switch (outbox_slots_reserve(database, number == OUTBOX_ROUTER ? PROCESS_ROUTER : PROCESS_WORKER, number, &slot))
	{
		case RESERVED:
			break;
		case RESERVE_LATER:
			return START_LATER;
		case RESERVE_FULL:
			return START_NO_SLOT;
	}
	describe(&worker, database_name, number, slot);
	caller = MemoryContextSwitchTo(TopMemoryContext);
	registered = RegisterDynamicBackgroundWorker(&worker, &child->handle);
	MemoryContextSwitchTo(caller);
	if (!registered)
	{
		child->handle = NULL;
		outbox_slots_expire(slot, slot->generation);
		return START_NO_SLOT;
	}
	child->slot = slot;
	child->generation = slot->generation;
	child->started_at = outbox_process_clock();
	child->asked_at = 0;
	outbox_children_look_again_at(child->started_at + outbox_test_start_timeout);
	return START_DONE;
}

static void
describe(BackgroundWorker *worker, const char *database_name, int number, const OutboxProcess *slot)
{
	const char *type = (number == OUTBOX_ROUTER) ? "outbox router" : "outbox worker";
	const char *function = (number == OUTBOX_ROUTER) ? "outbox_router_main" : "outbox_worker_main";

	memset(worker, 0, sizeof(BackgroundWorker));
	if (number == OUTBOX_ROUTER)
		snprintf(worker->bgw_name, BGW_MAXLEN, "%s %s", type, database_name);
	else
		snprintf(worker->bgw_name, BGW_MAXLEN, "%s %d %s", type, number, database_name);
	strlcpy(worker->bgw_type, type, BGW_MAXLEN);
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = BGW_NEVER_RESTART;
	worker->bgw_notify_pid = MyProcPid;
	strlcpy(worker->bgw_library_name, OUTBOX_LIBRARY, sizeof(worker->bgw_library_name));
	strlcpy(worker->bgw_function_name, function, BGW_MAXLEN);
	worker->bgw_main_arg = Int32GetDatum(slot - outbox_shared->processes);
	StaticAssertStmt(sizeof(slot->generation) <= BGW_EXTRALEN, "the generation must fit");
	memcpy(worker->bgw_extra, &slot->generation, sizeof(slot->generation));
}

void
outbox_children_adopt(OutboxChild *child, OutboxProcess *slot)
{
	child->slot = slot;
	child->generation = slot->generation;
	child->started_at = outbox_process_clock();
}

bool
outbox_children_has_ended(OutboxChild *child, OutboxProcessEnd *end, bool *short_lived)
{
	uint64		now = outbox_process_clock();
	BgwHandleStatus status = BGWH_STARTED;
	pid_t		pid;

	Assert(child->slot != NULL);
	if (child->handle != NULL)
		status = GetBackgroundWorkerPid(child->handle, &pid);

	if (outbox_slots_is_used(child->slot, child->generation))
	{
		bool		overdue = (child->slot->pid == 0 && now >= child->started_at + outbox_test_start_timeout);

		if (status != BGWH_STOPPED && !overdue)
		{
			if (child->slot->pid == 0)
				outbox_children_look_again_at(child->started_at + outbox_test_start_timeout);
			return false;
		}
		/* it could not be started; should it start after all, it finds its slot taken away */
		if (child->handle != NULL)
			TerminateBackgroundWorker(child->handle);
		outbox_slots_expire(child->slot, child->generation);
	}
	else if (status == BGWH_STARTED && child->handle != NULL)
	{
		/* until the server's slot is free too, a new one might find none */
		outbox_children_look_again_at(now + REAP_LOOK_MS);
		return false;
	}

	/* another generation: the slot was taken away, from a process that never started */
	*end = (child->slot->generation == child->generation) ? child->slot->end : END_UNKNOWN;
	*short_lived = now < child->started_at + SHORT_LIFE_MS;
	if (child->handle != NULL)
		pfree(child->handle);
	child->handle = NULL;
	child->slot = NULL;
	child->asked_at = 0;
	return true;
}

/* The first time at once. */
void
outbox_children_rest(OutboxChild *child, bool healthy, uint64 rest_max)
{
	uint64		rest = 0;

	child->failures = healthy ? 0 : child->failures + 1;
	if (child->failures > 1)
		rest = Min(rest_max, (uint64) REST_MIN_MS << Min(child->failures - 2, 20));
	child->start_at = outbox_process_clock() + rest;
}

void
outbox_children_ask_to_end(OutboxChild *child)
{
	uint64		now = outbox_process_clock();

	if (child->asked_at == 0 || now >= child->asked_at + ASK_AGAIN_MS)
	{
		child->asked_at = now;
		outbox_slots_terminate(child->slot, child->generation);
	}
	outbox_children_look_again_at(child->asked_at + ASK_AGAIN_MS);
}

void
outbox_children_look_again_at(uint64 at)
{
	if (next_look == 0 || at < next_look)
		next_look = at;
}

uint64
outbox_children_next_look(void)
{
	return next_look;
}

void
outbox_children_reset_next_look(void)
{
	next_look = 0;
}
