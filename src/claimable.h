/* claimable.h - is there something to claim, and in which lanes? */
#ifndef OUTBOX_CLAIMABLE_H
#define OUTBOX_CLAIMABLE_H

#include "outbox.h"

#include "store.h"
#include "subscription.h"

/* a lane of the generation that is worked */
typedef struct OutboxClaimLane
{
	int32		lane;
	int64		base;
	ItemPointerData tid;		/* of its row */
	int64		cursor;
	int64		reached;		/* a claim at hand goes there */
	bool		locked;			/* by a claim at hand, which has */
	int			taken;			/* so many events of it */
	/* its entries behind the cursor, see outbox_claimable_first_entry() */
	bool		open;
	int64		entries_from;
	bool		at_hand;		/* the entry in the slot of the scan is the next one */
	SnapshotData dirty;
	OutboxScan	entries;
} OutboxClaimLane;

/*
 * A subscription, looked at before any lane is locked: what saves looking where there is nothing.  What the
 * order of keys rests on is read again under the lane's lock.
 */
typedef struct OutboxClaimView
{
	const OutboxSubscription *s;
	TimestampTz now;
	bool		any_retry;		/* in any lane, due or not */
	bool		any_replay;
	bool		any_ended;		/* given up by a person, and its gate has not heard of it */
	bool		any_open_gate;
	int			nlanes;
	OutboxClaimLane *lanes;
} OutboxClaimView;

/* By what is committed now, by direct index access: a few probes a lane, whatever lies beside. */
extern void outbox_claimable_view(OutboxClaimView *view, const OutboxSubscription *s, TimestampTz now);

/* is there something to take in the lane?  Reads its cursor; its entries are open afterwards. */
extern bool outbox_claimable_has_work(const OutboxClaimView *view, OutboxClaimLane *lane);

/* does no lease hold the lane?  *newest: its newest lease, or 0; *expires_at: when that one ends */
extern bool outbox_claimable_is_free(const OutboxClaimView *view, const OutboxClaimLane *lane, int64 *newest,
									 TimestampTz *expires_at);
extern int64 outbox_claimable_cursor(const OutboxClaimView *view, const OutboxClaimLane *lane);

/*
 * The lane's entries behind its cursor, up to the first one that is not committed yet: what a claim has passed is
 * never looked at again.  The entry is in the slot of lane->entries; the scan stays open until it is closed, so that one that
 * was begun to see whether there is anything gives what is taken, too.
 */
extern bool outbox_claimable_first_entry(const OutboxClaimView *view, OutboxClaimLane *lane);
extern bool outbox_claimable_next_entry(OutboxClaimLane *lane);
extern void outbox_claimable_close_entries(OutboxClaimLane *lane);

/* the lane's rows under an index that begins with subscription and lane */
extern void outbox_claimable_begin_lane(OutboxScan *scan, const OutboxClaimView *view, const OutboxClaimLane *lane,
										const char *relname, const char *index, int nkeys);

/* is there a row under an index of that kind?  lane < 0: of any lane */
extern bool outbox_claimable_has_row(const char *relname, const char *index, int32 subscription_id, int32 lane);

#define OUTBOX_GATE_KEY_INDEX "gate_subscription_id_lane_tenant_id_event_key_key"

/* why there is nothing to claim */
typedef struct OutboxClaimLook
{
	TimestampTz next_due;		/* without anybody's doing there may be something then */
	bool		expired;		/* a lease, which a claim takes back if nobody has it locked */
	bool		busy;			/* there is something, which an open transaction has locked */
} OutboxClaimLook;

/* Would claim() find something in the subscription?  If not, what is found of the reasons is added. */
extern bool outbox_claimable_look(const OutboxSubscription *subscription, TimestampTz now, OutboxClaimLook *look);

#endif							/* OUTBOX_CLAIMABLE_H */
