/*
 * wakeup.c - tell our processes, once a commit is visible, that there is work.
 *
 * A backend keeps flags for its current transaction, and looks at them when the transaction has left the list of
 * running ones, has told others which of their caches are out of date, and has given its locks back: so whoever
 * wakes up sees its rows, and definitions as they are now.  Transaction callbacks are called before the last two,
 * those of resource owners after.  A rolled-back savepoint leaves its flag: a wake-up too many costs a look.
 * A prepared transaction commits elsewhere, and is found by the poll.
 */
#include "outbox.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/resowner.h"

#include "settings.h"
#include "shmem.h"
#include "waiters.h"
#include "wakeup.h"

#define SUBSCRIPTIONS_MAX 8		/* beyond that, all who wait are woken */

/* what a subscription's waiters are to be told */
typedef struct Claimable
{
	int32		subscription_id;
	int			most;
} Claimable;

static bool committed = false;
static bool wake_router = false;
static bool wake_workers = false;
static bool wake_launcher = false;
static bool wake_all_waiters = false;
static int	nclaimable = 0;
static Claimable claimable[SUBSCRIPTIONS_MAX];
static bool leased = false;
static TimestampTz lease_expires = DT_NOEND;	/* the first */

static void
forget_all(void)
{
	committed = wake_router = wake_workers = wake_launcher = wake_all_waiters = leased = false;
	nclaimable = 0;
	lease_expires = DT_NOEND;
}

static void
set_latches(void)
{
	OutboxDatabase *database;

	if (wake_router && (database = outbox_shmem_my_database()) != NULL)
		outbox_shmem_wake_router(database);
	if (wake_workers)
	{
		database = outbox_shmem_my_database();
		for (uint32 bit = 0; database != NULL && bit < OUTBOX_HINT_BITS; bit++)
			outbox_shmem_count_work(database, bit);
		outbox_shmem_wake_workers(MyDatabaseId);
	}
	if (wake_workers || wake_all_waiters)
		outbox_waiters_wake_all();
	for (int i = 0; i < nclaimable; i++)
		outbox_waiters_wake(claimable[i].subscription_id, claimable[i].most);
	if (wake_launcher)
		outbox_shmem_wake_launcher(true);
}

/* At once: a sweep that begins now may see the lease. */
static void
note_lease(void)
{
	OutboxDatabase *database;

	if (leased && (database = outbox_shmem_my_database()) != NULL)
		outbox_shmem_unsweep(database, lease_expires, lease_expires <= outbox_settings_now());
}

static void
refuse_prepare(void)
{
	if (leased)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot prepare a transaction that has claimed events, extended a lease or activated the database"),
				 errhint("Claim in a transaction of its own; the one that settles the events may be prepared.")));
}

static void
end_transaction(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			note_lease();
			committed = true;
			break;
		case XACT_EVENT_PRE_PREPARE:
			refuse_prepare();
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			forget_all();
			break;
		default:
			break;
	}
}

static void
after_transaction(ResourceReleasePhase phase, bool is_commit, bool is_top_level, void *arg)
{
	if (phase != RESOURCE_RELEASE_AFTER_LOCKS || !is_top_level || !committed)
		return;
	set_latches();
	forget_all();
}

static void
install_callbacks(void)
{
	static bool installed = false;

	if (!installed)
	{
		RegisterXactCallback(end_transaction, NULL);
		RegisterResourceReleaseCallback(after_transaction, NULL);
		installed = true;
	}
}

static void
request_wakeup(bool *flag)
{
	install_callbacks();
	*flag = true;
}

void
outbox_wakeup_router(void)
{
	request_wakeup(&wake_router);
}

void
outbox_wakeup_workers(void)
{
	request_wakeup(&wake_workers);
}

void
outbox_wakeup_waiters(int32 subscription_id, int most)
{
	int			i = 0;

	while (i < nclaimable && claimable[i].subscription_id != subscription_id)
		i++;
	if (i == SUBSCRIPTIONS_MAX)
	{
		request_wakeup(&wake_all_waiters);
		return;
	}
	if (i == nclaimable)
		claimable[nclaimable++] = (Claimable) {subscription_id, 0};
	claimable[i].most += most;
	install_callbacks();
}

void
outbox_wakeup_launcher(void)
{
	request_wakeup(&wake_launcher);
}

void
outbox_wakeup_lease(TimestampTz expires_at)
{
	request_wakeup(&leased);
	lease_expires = Min(lease_expires, expires_at);
}
