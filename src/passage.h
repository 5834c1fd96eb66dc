/* passage.h - to the lanes of a subscription: for those who work them, side by side, and for one who wants them all. */
#ifndef OUTBOX_PASSAGE_H
#define OUTBOX_PASSAGE_H

#include "outbox.h"
#include "subscription.h"

/*
 * Before work is taken from lanes, until the end of the transaction.  Never waits; false: somebody wants the lanes, or
 * has them, and they are to be left alone for a moment.
 */
extern bool outbox_passage_enter(int32 subscription_id);

/* the same for a worker: also false when the subscription is paused, or gone, or has another handler; needs a snapshot */
extern bool outbox_passage_enter_as_handler(const OutboxSubscription *s);

/* Wait until nobody is within; nobody enters from now on until the end of the transaction. */
extern void outbox_passage_close(int32 subscription_id);

/* could one enter just now? */
extern bool outbox_passage_is_open(int32 subscription_id);

#endif							/* OUTBOX_PASSAGE_H */
