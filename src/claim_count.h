/* claim_count.h - what external workers settle, counted for outbox.metrics once it is committed. */
#ifndef OUTBOX_CLAIM_COUNT_H
#define OUTBOX_CLAIM_COUNT_H

#include "outbox.h"
#include "receipt.h"

/* those of the receipts that are fresh */
extern void outbox_claim_count_completed(int32 subscription_id, TimestampTz claimed_at, TimestampTz completed_at,
										 const OutboxReceipt *receipts, int count);

/* an attempt; review: it was the last one */
extern void outbox_claim_count_failed(int32 subscription_id, const char *code, bool review);

/* a lease that expired was taken back */
extern void outbox_claim_count_recovered(int32 subscription_id);

#endif							/* OUTBOX_CLAIM_COUNT_H */
