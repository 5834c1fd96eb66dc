/* routing.h - ticks: newly committed events into the lanes. */
#ifndef OUTBOX_ROUTING_H
#define OUTBOX_ROUTING_H

#include "outbox.h"

/*
 * One round of the router: due delayed events, new subscriptions' catch-up, one tick.
 * Starts and commits its own transactions, in chunks.  Returns the milliseconds until the next
 * thing known to be due (at most the poll interval), 0 when there is more to do at once.
 */
extern long outbox_routing_round(void);

/* Is this process the router of the database?  Takes the router's lock when it is free.  In a transaction. */
extern bool outbox_routing_is_ours(void);

/* does it have the lock already? */
extern bool outbox_routing_has_lock(void);

/* forget what is remembered between rounds (after an error) */
extern void outbox_routing_reset(void);

/* in the router: transactions before it are over and their events routed, as far as it remembers; or 0 */
extern uint64 outbox_routing_horizon(void);

/* outbox.activate() */
extern bool outbox_routing_activate(void);

#endif							/* OUTBOX_ROUTING_H */
