/* alert.h - the extension's own events: something stands in front of a person. */
#ifndef OUTBOX_ALERT_H
#define OUTBOX_ALERT_H

#include "outbox.h"
#include "subscription.h"

/*
 * Published in the transaction at hand, when a subscription asks for them: one of its
 * patterns begins with "outbox".  In SPI and as the extension's owner.
 */

/*
 * A delivery needs review: a line in the server's log, and outbox.review_required, though not about a delivery
 * of one of our own events.
 */
extern void outbox_alert_review_required(const OutboxSubscription *s, const pg_uuid_t *event_id, int replay_no,
										 int attempts, const char *code);

/* outbox.subscription_stopped: a subscription stands still until something is put right */
extern void outbox_alert_subscription_stopped(const OutboxSubscription *s, const char *code);

#endif							/* OUTBOX_ALERT_H */
