/* repair.h - a subscription whose rows are not all there. */
#ifndef OUTBOX_REPAIR_H
#define OUTBOX_REPAIR_H

#include "outbox.h"

#include "candidate.h"
#include "snapshot.h"
#include "subscription.h"

/* subscription_state.stopped_code */
#define OUTBOX_CODE_INCOMPLETE	"incomplete"

/* its state and each lane of its newest generation; *joined: the ticks.  In SPI, by what is committed now. */
extern bool outbox_repair_is_whole(const OutboxSubscription *s, bool *joined);

/* the same of n subscriptions */
extern void outbox_repair_look_at_all(const OutboxSubscription *all, int n, bool *whole, bool *joined);

/* make what is missing anew, unless somebody is changing the subscription just now; in the router */
extern void outbox_repair_subscription(const OutboxSubscription *s);

/* does a catch-up that comes from there go through the log anew? */
extern bool outbox_repair_begins_at(const OutboxSnapshot *catch_up_from);

/* of n candidates, leave those that no other table knows to be on their way to it, or done; returns how many */
extern int	outbox_repair_leave_unknown(const OutboxSubscription *s, OutboxCandidate *items, int n);

#endif							/* OUTBOX_REPAIR_H */
