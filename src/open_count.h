/* open_count.h - how much of each subscription is open, by index probes. */
#ifndef OUTBOX_OPEN_COUNT_H
#define OUTBOX_OPEN_COUNT_H

#include "outbox.h"

#include "utils/snapshot.h"
#include "utils/uuid.h"

#define OUTBOX_OPEN_COUNT_PARKED	10000	/* parked events are counted up to here, of each subscription */

typedef struct OutboxOpenCount
{
	int32		subscription_id;
	int64		waiting;		/* in its lanes */
	bool		has_next;
	pg_uuid_t	next;			/* the oldest of those that come next in their lanes */
	int64		ready;			/* parked, behind gates that are open */
	int64		blocked;		/* parked, behind the others */
	int64		leased;			/* held by external workers, without a row of their own in delivery_exception */
} OutboxOpenCount;

/* All subscriptions, as the snapshot has them; returns how many. */
extern int	outbox_open_count_read(Snapshot snapshot, OutboxOpenCount **counts);

#endif							/* OUTBOX_OPEN_COUNT_H */
