/*
 * exception_count.h - how many deliveries have which status, without counting them.
 *
 * Each change of outbox.delivery_exception appends a difference, by a trigger; their
 * sum is exact in every snapshot.  Upkeep folds what has gathered.
 */
#ifndef OUTBOX_EXCEPTION_COUNT_H
#define OUTBOX_EXCEPTION_COUNT_H

#include "outbox.h"

#include "utils/rel.h"
#include "executor/tuptable.h"

/* one row has changed: either tuple may be NULL */
extern void outbox_exception_count_change(Relation rel, HeapTuple before, HeapTuple after);

/* what run() changes is not counted: it removes the counts of that subscription too */
extern void outbox_exception_count_run_uncounted(void (*run) (int32 subscription_id), int32 subscription_id);

/* n more, or fewer, of a subscription's deliveries wait for their time */
extern void outbox_exception_count_delayed(int32 subscription_id, int n);

/* In SPI and as the extension's owner: put some differences, when they are many, into few.  True when there are more. */
extern bool outbox_exception_count_fold(void);

/* The same from the rows themselves: after a restore, whose order of tables is not ours. */
extern void outbox_exception_count_recount(void);

#endif							/* OUTBOX_EXCEPTION_COUNT_H */
