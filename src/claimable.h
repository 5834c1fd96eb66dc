/* claimable.h - is there something to claim? */
#ifndef OUTBOX_CLAIMABLE_H
#define OUTBOX_CLAIMABLE_H

#include "outbox.h"
#include "subscription.h"

/*
 * Would claim() find something in the subscription?  If not, *next_due becomes the time, if any before it, at
 * which it may without anybody's doing.  Within outbox_session_enter() and SPI.
 */
extern bool outbox_claimable_look(const OutboxSubscription *subscription, TimestampTz now, TimestampTz *next_due);

#endif							/* OUTBOX_CLAIMABLE_H */
