/* claim.h - what an external worker gets: events under a lease. */
#ifndef OUTBOX_CLAIM_H
#define OUTBOX_CLAIM_H

#include "outbox.h"

#include "access/tupdesc.h"
#include "utils/tuplestore.h"

#include "subscription.h"

/* columns of outbox.claimed_event behind those of an event */
#define OUTBOX_CLAIMED_COLUMNS (OUTBOX_EVENT_COLUMNS + 6)

/*
 * Claim up to `most` events for `duration` us; their rows go into the tuplestore.  Nothing but the lane's rows is
 * locked, and nothing waited for.  worker: text or 0.
 */
extern void outbox_claim_run(const OutboxSubscription *s, int most, int64 duration, Datum worker,
							 Tuplestorestate *rows, TupleDesc descriptor);

#endif							/* OUTBOX_CLAIM_H */
