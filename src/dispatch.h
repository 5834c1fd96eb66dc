/* dispatch.h - lease lanes, run batches of SQL handlers under the lease, give back. */
#ifndef OUTBOX_DISPATCH_H
#define OUTBOX_DISPATCH_H

#include "outbox.h"
#include "shmem.h"

/*
 * One round of a worker: at most one batch (or one single delivery) of one
 * subscription.  Starts and commits its own transactions; contains the errors of handlers.  Returns
 * the milliseconds until something is known to be due (at most the poll interval), 0 when there
 * is more to do at once.  Returns -1 when the worker must be replaced (another role's turn).
 */
extern long outbox_dispatch_round(OutboxProcess *self);

/*
 * Give all leases back cleanly (own transaction): before a worker ends, or after an error outside of handlers.  False: some
 * could not be, as somebody looked at them just now.
 */
extern bool outbox_dispatch_give_back(OutboxProcess *self);

#endif							/* OUTBOX_DISPATCH_H */
