/*
 * placement.h - where an event goes: which subscriptions, which lane, which position.
 *
 * One OutboxPlacement is what one transaction of the router appends.
 */
#ifndef OUTBOX_PLACEMENT_H
#define OUTBOX_PLACEMENT_H

#include "outbox.h"

#include "executor/tuptable.h"
#include "nodes/pg_list.h"

#include "shmem.h"
#include "store.h"
#include "subscription.h"

typedef struct OutboxPlacement
{
	TimestampTz now;
	OutboxWriter *entries;
	struct OutboxPlacedEntry *pending;	/* [npending]: entries that are not written yet, see placement.c */
	int			npending;
	int			pending_size;
	OutboxWriter *delayed;
	OutboxSubscription *subscriptions;
	int			nsubscriptions;
	int			routed;
	int		   *delayed_changes;	/* by subscription: how many more wait for their time; NULL: none has changed */
	List	   *unmatched;		/* types that nobody subscribes to, see placement.c */
	TimestampTz earliest_due;	/* of what was put aside until it is due, or DT_NOEND */
	/* lanes that got something: hints to give after the commit */
	uint64		hints[OUTBOX_HINT_WORDS];
	int		   *placed;			/* by index of the subscription: entries put into its lanes */
} OutboxPlacement;

/* in a transaction, in SPI */
extern void outbox_placement_begin(OutboxPlacement *placement);

/* to all subscriptions that match and have joined the ticks, or to `only`, which catches up */
extern void outbox_placement_put(OutboxPlacement *placement, OutboxSubscription *only, TupleTableSlot *event,
								 const pg_uuid_t *id);

/* into the lane of one subscription, now, whatever its due time */
extern void outbox_placement_put_entry(OutboxPlacement *placement, const OutboxSubscription *s, TupleTableSlot *event,
									   const pg_uuid_t *id);

/* a delayed delivery of a subscription, by its index, has come (n = 1) or gone (-1) */
extern void outbox_placement_count_delayed(OutboxPlacement *placement, int index, int n);

/* write out what was put: before the commit */
extern void outbox_placement_end(OutboxPlacement *placement);

/* after the commit: tell workers which lanes to look at, and those who wait to claim */
extern void outbox_placement_announce(OutboxPlacement *placement);

/* has the subscription, by its index, joined the ticks?  how many have not? */
extern bool outbox_placement_has_joined(int index);
extern int	outbox_placement_unjoined(void);
extern void outbox_placement_note_joined(int index);	/* one of those at the last outbox_placement_begin() */
extern void outbox_placement_forget_joined(void);

/* are the rows of the subscription, by its index, all there?  how many have some missing? */
extern bool outbox_placement_is_whole(int index);
extern int	outbox_placement_incomplete(void);

/* forget all that is remembered between transactions */
extern void outbox_placement_reset(void);

#endif							/* OUTBOX_PLACEMENT_H */
