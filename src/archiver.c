/*
 * archiver.c - upkeep in a process of its own, for the archive function.
 *
 * That function is somebody's code and may take long; the router must not wait for it, nor
 * have another role's code run in its session.  So when segments wait for it, the router starts
 * this process, which does a run of upkeep and ends.  It ends with the router: whoever has our processes
 * stopped, to drop the database perhaps, waits for the router, and the router for this one.
 */
#include "outbox.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "archiver.h"
#include "extension.h"
#include "process.h"
#include "session.h"
#include "upkeep.h"

#define RUN_US			(3600 * USECS_PER_SEC)
#define AGAIN_MS		60000	/* between two starts */
#define STOP_MS			3000

static BackgroundWorkerHandle *archiver = NULL;
static uint64 started_at = 0;

static bool
is_running(void)
{
	pid_t		pid;

	return archiver != NULL && GetBackgroundWorkerPid(archiver, &pid) != BGWH_STOPPED;
}

/* Without a slot for it, it is tried again; the segments stay until then, and outbox.maintenance_status says so. */
void
outbox_archiver_start(void)
{
	BackgroundWorker worker = {0};
	MemoryContext caller;

	if (is_running() || (started_at != 0 && outbox_process_clock() < started_at + AGAIN_MS))
		return;
	started_at = outbox_process_clock();
	if (archiver != NULL)
		pfree(archiver);
	archiver = NULL;
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = ObjectIdGetDatum(MyDatabaseId);
	worker.bgw_notify_pid = MyProcPid;
	strlcpy(worker.bgw_library_name, OUTBOX_LIBRARY, sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "outbox_archiver_main", BGW_MAXLEN);
	strlcpy(worker.bgw_name, "outbox archiver", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "outbox archiver", BGW_MAXLEN);
	caller = MemoryContextSwitchTo(TopMemoryContext);
	if (!RegisterDynamicBackgroundWorker(&worker, &archiver))
		archiver = NULL;
	MemoryContextSwitchTo(caller);
}

void
outbox_archiver_stop(void)
{
	uint64		give_up_at = outbox_process_clock() + STOP_MS;

	if (!is_running())
		return;
	TerminateBackgroundWorker(archiver);
	while (is_running() && outbox_process_clock() < give_up_at)
		pg_usleep(1000);
}

void
outbox_archiver_main(Datum database)
{
	OutboxExtension extension;
	bool		present;

	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(database), InvalidOid, 0);
	outbox_session_pin(true);
	pgstat_report_activity(STATE_RUNNING, "archiving segments");
	StartTransactionCommand();
	present = outbox_extension_lookup(&extension);
	CommitTransactionCommand();
	if (present)
		(void) outbox_upkeep_run(false, RUN_US);
	pgstat_report_stat(true);
}
