/* claim_count.h - what external workers complete, counted for outbox.metrics once it is committed. */
#ifndef OUTBOX_CLAIM_COUNT_H
#define OUTBOX_CLAIM_COUNT_H

#include "outbox.h"
#include "receipt.h"

/* those of the receipts that are fresh */
extern void outbox_claim_count_completed(int32 subscription_id, TimestampTz claimed_at, TimestampTz completed_at,
										 const OutboxReceipt *receipts, int count);

#endif							/* OUTBOX_CLAIM_COUNT_H */
