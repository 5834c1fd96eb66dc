/*
 * segment_worker.c - a segment that a publisher needs now, made by a process of its own.
 *
 * Upkeep makes segments long before they are needed.  Where it did not (dispatch is off, the
 * extension was created a moment ago), the first publisher asks for one here.  Made in
 * the publisher's own transaction, it would hold up all other publishers until that ends, a
 * prepared one perhaps for days.
 *
 * The process never waits for a lock, so that a publisher that waits for it
 * cannot be in a deadlock nobody sees.  Publishers that come together wait for one process.
 */
#include "outbox.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_extension.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "extension.h"
#include "event_id.h"
#include "segment.h"
#include "segment_worker.h"
#include "session.h"
#include "shmem.h"

/* after this time the publisher helps itself */
#define PATIENCE_MS 5000

/* between two looks whether the router has made it */
#define ASKED_MS 10

/* ---------------------------------------------------------------- the publisher's side */

/* Are our tables this transaction's own work, which no other sees yet? */
static bool
is_own_work(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool		own;

	if (!HeapTupleIsValid(tuple))
		return true;
	own = TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
	ReleaseSysCache(tuple);
	return own;
}

static bool
start_process(const pg_uuid_t *id, BackgroundWorkerHandle **handle)
{
	BackgroundWorker worker = {0};

	StaticAssertStmt(sizeof(pg_uuid_t) <= BGW_EXTRALEN, "an id must fit into bgw_extra");
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = ObjectIdGetDatum(MyDatabaseId);
	worker.bgw_notify_pid = MyProcPid;
	strlcpy(worker.bgw_library_name, OUTBOX_LIBRARY, sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "outbox_segment_worker_main", BGW_MAXLEN);
	strlcpy(worker.bgw_name, "outbox segment maker", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "outbox segment maker", BGW_MAXLEN);
	memcpy(worker.bgw_extra, id, sizeof(pg_uuid_t));
	return RegisterDynamicBackgroundWorker(&worker, handle);
}

static void
wait_for_process(BackgroundWorkerHandle *handle)
{
	TimestampTz give_up_at = GetCurrentTimestamp() + PATIENCE_MS * INT64CONST(1000);
	pid_t		pid;

	while (GetBackgroundWorkerPid(handle, &pid) != BGWH_STOPPED)
	{
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), give_up_at);

		if (left <= 0)
		{
			TerminateBackgroundWorker(handle);
			break;
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, left,
						 outbox_compat_wait_event("OutboxSegment"));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/* No process can be had for it: the router makes it in its next round of upkeep. */
static bool
ask_router(const pg_uuid_t *id)
{
	OutboxDatabase *db = outbox_shmem_my_database();
	TimestampTz give_up_at = GetCurrentTimestamp() + PATIENCE_MS * INT64CONST(1000);

	if (db == NULL || pg_atomic_read_u32(&db->router_slot) == 0)
		return false;
	pg_atomic_write_u64(&db->segment_wanted, outbox_event_id_time_of(id));
	outbox_shmem_wake_router(db);
	while (pg_atomic_read_u64(&db->segment_wanted) != 0 && GetCurrentTimestamp() < give_up_at)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ASKED_MS,
						 outbox_compat_wait_event("OutboxSegment"));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return pg_atomic_read_u64(&db->segment_wanted) == 0;
}

/*
 * The lock is not kept: it only lets one publisher ask at a time.  Who had to wait for it finds the
 * segment made, most likely, and looks first.
 */
bool
outbox_segment_worker_provide(const pg_uuid_t *id)
{
	Oid			event_log = outbox_extension_relid("event_log");
	BackgroundWorkerHandle *handle;
	LOCKTAG		tag;
	bool		waited;
	bool		started = false;

	if (is_own_work(event_log))
		return false;
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, RelationRelationId, event_log, 1);
	waited = (LockAcquire(&tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL);
	if (waited)
		(void) LockAcquire(&tag, ExclusiveLock, false, false);
	else
	{
		started = start_process(id, &handle);
		if (started)
			wait_for_process(handle);
		else
			started = ask_router(id);
	}
	LockRelease(&tag, ExclusiveLock, false);
	return waited || started;
}

/* ---------------------------------------------------------------- the process */

void
outbox_segment_worker_main(Datum database)
{
	OutboxExtension extension;
	pg_uuid_t	id;

	memcpy(&id, MyBgworkerEntry->bgw_extra, sizeof(id));
	/* the default handler ends the process where it is: in a critical section, and the server with it */
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(database), InvalidOid, 0);
	outbox_session_pin(true);
	SetConfigOption("lock_timeout", "1s", PGC_SUSET, PGC_S_OVERRIDE);

	PG_TRY();
	{
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		if (outbox_extension_lookup(&extension))
			(void) outbox_segment_provide(&id, false);
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		/* somebody holds our tables, to drop them most likely: the publisher sees for itself */
		if (geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE)
			PG_RE_THROW();
		FlushErrorState();
		AbortCurrentTransaction();
	}
	PG_END_TRY();
}
