/*
 * batch.h - one transaction of handler calls: fence, receipts, handlers, progress, commit.
 */
#ifndef OUTBOX_BATCH_H
#define OUTBOX_BATCH_H

#include "outbox.h"
#include "handler.h"
#include "lease.h"
#include "settle.h"
#include "shmem.h"
#include "subscription.h"

typedef enum OutboxBatchSource
{
	BATCH_FROM_LANES,			/* the next entries of leased lanes */
	BATCH_FROM_GATE,			/* the next parked events of an open gate */
	BATCH_STARTED				/* one delivery whose start is on record */
} OutboxBatchSource;

typedef enum OutboxBatchStage
{
	STAGE_ASSEMBLY,				/* nobody's fault but ours */
	STAGE_RECEIPTS,
	STAGE_HANDLER,
	STAGE_COMMIT
} OutboxBatchStage;

typedef struct OutboxBatch
{
	/* what to do */
	const OutboxSubscription *subscription;
	OutboxHandler *handler;
	OutboxProcess *self;
	OutboxBatchSource source;
	int			nlanes;
	OutboxLane **lanes;			/* in the order to read them; [0] is the gate's or the delivery's */
	int			limit;			/* events at most */
	int			lane_limit;		/* of one lane, and in one call of a batch handler; see outbox_lease_acquire() */
	bool		check_receipts; /* look for receipts that are there already */

	/* what came of it */
	int			count;			/* deliveries that were to run */
	OutboxDelivery *deliveries;
	int			nparked;
	OutboxDelivery *parked;		/* entries that wait at a gate, between them */
	int			completed;
	int			moved;			/* entries, or parked ones, that the lanes and gates went past */
	double		average_us;		/* of a handler call */
	bool		barred;			/* nothing was taken: the lanes are wanted by somebody, or the definition is another
								 * one */
	bool		failed;
	OutboxBatchStage stage;
	int			failed_index;	/* -1: not one of them in particular */
	int			failed_count;	/* in the call that failed, from there on */
	OutboxFailure failure;
	OutboxInterruption interruption;
	uint32		interrupted_times;	/* how often SIGTERM has ended the handler of this event */
} OutboxBatch;

/*
 * Run it, in its own transaction, which is over afterwards.  Failures of handlers, of their commit, and of
 * receipts that are there already are told in the batch; other errors are raised.
 * Lives in a memory context that the next run resets.
 */
extern void outbox_batch_run(OutboxBatch *batch);

/*
 * After a failed run: park what lies before the delivery in its lane, in the transaction that moves
 * the cursor past it.
 */
extern void outbox_batch_park_before(OutboxBatch *batch, const OutboxDelivery *d);

/*
 * The event from the log, in the reader's slot until the next call; false when it is not there any
 * more.  tid, where its row was when it was routed, saves an index probe; NULL: not known.
 */
typedef struct OutboxEventReader OutboxEventReader;
extern OutboxEventReader *outbox_batch_open_reader(Snapshot snapshot);	/* NULL: the active one */
extern bool outbox_batch_read_event(OutboxEventReader *reader, const pg_uuid_t *id, const ItemPointerData *tid,
									TupleTableSlot **slot);
extern void outbox_batch_close_reader(OutboxEventReader *reader);

/* tenant and key of a delivery, from its event */
extern void outbox_batch_read_key(const OutboxSubscription *s, int32 lane, TupleTableSlot *event, OutboxDelivery *d);

#endif							/* OUTBOX_BATCH_H */
