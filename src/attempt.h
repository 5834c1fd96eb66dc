/* attempt.h - run a batch of a worker's round, and draw the conclusions. */
#ifndef OUTBOX_ATTEMPT_H
#define OUTBOX_ATTEMPT_H

#include "outbox.h"
#include "batch.h"
#include "round.h"

/* in its own transactions; the next part to run, after a failure, is in the round's memo */
extern void outbox_attempt_run_batch(OutboxRound *round, OutboxBatch *batch);

/* a serialization failure or deadlock? */
extern bool outbox_attempt_is_conflict(const OutboxBatch *batch);

/* was the handler of its delivery ended by SIGTERM once too often? */
extern bool outbox_attempt_ends_its_worker(const OutboxRound *round, const OutboxBatch *batch);

/* then it has used an attempt */
extern void outbox_attempt_record_ended(OutboxRound *round, OutboxBatch *batch, OutboxDelivery *d);

/* not run to the end because the worker must stop: as if it had not been started */
extern void outbox_attempt_put_back(OutboxRound *round, OutboxDelivery *d);

#endif							/* OUTBOX_ATTEMPT_H */
