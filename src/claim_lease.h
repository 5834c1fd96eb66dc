/* claim_lease.h - the leases of external workers: a row for each claim, and what has been settled of it. */
#ifndef OUTBOX_CLAIM_LEASE_H
#define OUTBOX_CLAIM_LEASE_H

#include "outbox.h"

#include "nodes/lockoptions.h"
#include "utils/snapshot.h"

#include "claim_progress.h"
#include "patience.h"
#include "store.h"

#define OUTBOX_CLAIM_EVENTS_MAX		1000
#define OUTBOX_CLAIM_DURATION_MAX	USECS_PER_DAY
#define OUTBOX_CLAIM_KEPT			USECS_PER_HOUR	/* a lease that has ended, so that late calls are understood */

/* where a claim took an event from, beside a gate's id */
#define OUTBOX_FROM_LANE		0
#define OUTBOX_FROM_EXCEPTION	(-1)

typedef struct OutboxClaimedEvent
{
	pg_uuid_t	event_id;
	int16		replay_no;
	int32		lane;
	int64		position;
	int			attempts;		/* counting the one at hand; since the last retry() */
	int64		gate_id;		/* or OUTBOX_FROM_... */
	OutboxClaimState state;
	bool		marked;			/* the call at hand is about it */
} OutboxClaimedEvent;

typedef struct OutboxClaimLease
{
	int64		lease_id;
	pg_uuid_t	token;
	int32		subscription_id;
	int			incarnation;
	uint64		claim_xid;		/* top level, of the claim */
	Datum		worker;			/* text, or 0 */
	TimestampTz claimed_at;
	TimestampTz expires_at;
	int			count;
	OutboxClaimedEvent *events; /* in the order in which they were handed out */
	int			held;			/* events that are not settled */
} OutboxClaimLease;

/* a lease's number; along a lane they rise, so it is drawn when all lanes are locked */
extern int64 outbox_claim_lease_draw(void);

extern void outbox_claim_lease_make_token(pg_uuid_t *token);

/* append a lease that has been filled in */
extern void outbox_claim_lease_append(OutboxClaimLease *lease);

/* append that the lane is held by it from now on; the latest of a lane, or 0 */
extern void outbox_claim_lease_hold_lane(int32 subscription_id, int32 lane, int64 lease_id);
extern int64 outbox_claim_lease_of_lane(int32 subscription_id, int32 lane);

/*
 * The lease of a token, locked in this mode until the transaction ends.  False when there is none.  What is settled
 * of it has not been read: its events are as if they were held.
 */
extern bool outbox_claim_lease_lock(const pg_uuid_t *token, LockTupleMode mode, OutboxPatience *patience,
									OutboxClaimLease *lease);

/* read what is settled by now: a row for each call that settled */
extern void outbox_claim_lease_read_progress(OutboxClaimLease *lease);

/* how a lease stands; true when it has not ended */
extern bool outbox_claim_lease_is_open(int64 lease_id, TimestampTz *expires_at);

/*
 * To take an expired lease back: lock it against everybody, without waiting, and give it another
 * token.  False when it is locked, has ended, or is not expired after all.
 */
extern bool outbox_claim_lease_take_back(int64 lease_id, TimestampTz now, int incarnation, OutboxClaimLease *lease);

/* another end, of a lease that is locked; later than the one it has */
extern void outbox_claim_lease_extend(OutboxClaimLease *lease, TimestampTz expires_at);

/*
 * A walk over leases that have not ended, in the order of their expiry.  visit() may stop it by
 * returning false.
 */
typedef struct OutboxClaimWalk
{
	TimestampTz from;			/* in: begin behind (from, from_id); out: how far it came */
	int64		from_id;
	TimestampTz until;			/* those that expire up to then */
	Snapshot	snapshot;
	int			most;			/* leases to look at, ended ones too */
	bool		whole;			/* visit() is shown the events too */
	bool		at_end;			/* out: there is no more */
	bool		(*visit) (const OutboxClaimLease *lease, void *argument);
	void	   *argument;
} OutboxClaimWalk;

extern void outbox_claim_lease_walk(OutboxClaimWalk *walk);

#endif							/* OUTBOX_CLAIM_LEASE_H */
