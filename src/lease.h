/*
 * lease.h - the lanes that this process has leased, and where there is work.
 */
#ifndef OUTBOX_LEASE_H
#define OUTBOX_LEASE_H

#include "outbox.h"
#include "shmem.h"
#include "subscription.h"

/* a lane as this process knows it; lives as long as the process */
typedef struct OutboxLane
{
	int32		subscription_id;	/* with lane: the key */
	int32		lane;

	/* from the last look */
	uint32		work_count;
	int64		end;			/* position of the last entry */
	int64		holder;			/* process id of the lease's holder, or 0 */
	bool		has_due;
	TimestampTz due;			/* when the first retry is */
	bool		has_replay;
	TimestampTz replay_due;		/* when the first replay is */
	bool		has_started;	/* deliveries IN_PROGRESS */
	bool		has_ended;		/* discarded deliveries whose gate has not heard of it */
	bool		has_open_gate;
	bool		has_gate;
	bool		touched;		/* worked since the last look: to be looked at again */
	bool		outdated;		/* of a routing generation before: it ends when nobody leases it any more */

	/* the lease */
	bool		held;
	bool		unclean;		/* taken from a holder that died without giving it back */
	pg_uuid_t	token;
	int64		cursor;			/* worked up to here */
	int64		careful_through;	/* one by one, with the attempt recorded first, up to here */
	int64		last_used;		/* outbox_settings_ticks() */

	/* of the batch at hand */
	int64		reached;		/* the last position that is done with */
	int64		stopped_before; /* the first one that did not run */
} OutboxLane;

extern OutboxLane *outbox_lease_lane(int32 subscription_id, int32 lane);

/* has something happened in the lane since the last look? */
extern bool outbox_lease_has_news(OutboxDatabase *db, OutboxLane *lane);

/* Look at these lanes of a subscription (all when nlanes < 0); returns those that exist. In SPI. */
extern int	outbox_lease_look(const OutboxSubscription *subscription, OutboxDatabase *db,
							  int nlanes, const int32 *lanes, OutboxLane ***found);

/* Does the last look show something to do in the lane now? */
extern bool outbox_lease_has_work(const OutboxLane *lane, TimestampTz now);
extern bool outbox_lease_has_due_replay(const OutboxLane *lane, TimestampTz now);

/*
 * Lease the lane if it is free, its holder is dead, or its holder is alive but
 * busy elsewhere.  In a transaction that is committed before any work.  False: not to be had.
 */
extern bool outbox_lease_acquire(const OutboxSubscription *subscription, OutboxLane *lane, OutboxProcess *self);

/*
 * The fence: lock the lane's row by our token until the end of the transaction, before
 * anything else.  False: the lease is lost (held is cleared) or just being taken.
 */
extern bool outbox_lease_lock(OutboxLane *lane);

/* the first entry beyond the cursor */
extern bool outbox_lease_next_entry(OutboxLane *lane, int64 *position, pg_uuid_t *event_id);

/* append how far lanes have been worked; the caller sets lane->cursor once that has committed */
extern void outbox_lease_move_cursor(OutboxLane *lane, int64 position);
extern void outbox_lease_move_cursors(int nlanes, OutboxLane **lanes, const int64 *positions);

/* whoever leases the lane next works what a batch may have reached one by one; in the transaction at hand */
extern void outbox_lease_mark_careful(const OutboxSubscription *subscription, OutboxLane *lane);

/* give back the leases not used since then, in the transaction at hand */
extern void outbox_lease_give_back_unused(int64 unused_since);

/* give back all that the process holds, in the transaction at hand; false: somebody had the row of one locked just now */
extern bool outbox_lease_give_back_all(OutboxProcess *self);

/* give back those of generations before that have no work; in a transaction.  Is there any to give back? */
extern bool outbox_lease_has_outdated(void);
extern void outbox_lease_give_back_outdated(TimestampTz now);

/* forget them all; after the commit of outbox_lease_give_back_all(), with what it has returned */
extern void outbox_lease_forget(bool all_given_back);

#endif							/* OUTBOX_LEASE_H */
