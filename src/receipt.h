/* receipt.h - receipts of external workers: one for each delivery, whoever settles it at the same time. */
#ifndef OUTBOX_RECEIPT_H
#define OUTBOX_RECEIPT_H

#include "outbox.h"
#include "patience.h"

typedef struct OutboxReceipt
{
	pg_uuid_t	event_id;
	int16		replay_no;
	int			attempts;
	bool		fresh;			/* out: written now; else it was there */
} OutboxReceipt;

/*
 * Write receipts, sorted by event id; one that is there already is left as it is.  Waits, with
 * patience, for open transactions that write the same ones.  message_id: of all, or 0.
 */
extern void outbox_receipt_write(int32 subscription_id, int64 batch_id, OutboxReceipt *receipts, int count,
								 Datum message_id, OutboxPatience *patience);

/*
 * Keep others from completing the delivery until this transaction ends.  False when it has a receipt.
 */
extern bool outbox_receipt_bar(int32 subscription_id, const pg_uuid_t *event_id, int16 replay_no,
							   OutboxPatience *patience);

/* is the delivery completed, by what is committed now? */
extern bool outbox_receipt_exists(int32 subscription_id, const pg_uuid_t *event_id, int16 replay_no);

#endif							/* OUTBOX_RECEIPT_H */
