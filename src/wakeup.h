/*
 * wakeup.h - after the commit, tell the processes that there is work.
 *
 * Callbacks of the backend's transactions, installed at the first use; they act only
 * once the commit is visible, by setting latches: no NOTIFY, nothing to wait for.
 */
#ifndef OUTBOX_WAKEUP_H
#define OUTBOX_WAKEUP_H

#include "outbox.h"

/* when this transaction commits: the router has events to route */
extern void outbox_wakeup_router(void);

/* when this transaction commits: workers and sessions in outbox.wait() should look at everything again (retry, resume, ...) */
extern void outbox_wakeup_workers(void);

/*
 * When this transaction commits there is something to claim in the subscription, for up to `most` sessions
 * in outbox.wait(): a lane was given back, a key opened, a delivery is to be tried again, or its due time has changed.
 * Included in outbox_wakeup_workers().
 */
extern void outbox_wakeup_waiters(int32 subscription_id, int most);

/* when this transaction commits: the launcher should look at the databases again */
extern void outbox_wakeup_launcher(void);

/*
 * When this transaction commits: there is a lease that expires then, perhaps before what has been swept already.
 * Such a transaction cannot be prepared: it commits elsewhere.
 */
extern void outbox_wakeup_lease(TimestampTz expires_at);

#endif							/* OUTBOX_WAKEUP_H */
