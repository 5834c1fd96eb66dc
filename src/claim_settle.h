/* claim_settle.h - how the events of a lease end: completed, failed, given back, taken back. */
#ifndef OUTBOX_CLAIM_SETTLE_H
#define OUTBOX_CLAIM_SETTLE_H

#include "outbox.h"

#include "claim_lease.h"
#include "failure.h"
#include "patience.h"
#include "shmem.h"
#include "store.h"
#include "subscription.h"

/* a call that settles, or extends */
typedef struct OutboxClaimSettle
{
	OutboxClaimLease lease;
	const OutboxSubscription *subscription;
	OutboxPatience patience;
	TimestampTz now;
	int		   *by_id;			/* the lease's events in the order of their ids, once that was wanted */
	int			looks;			/* at events by their ids */
	int		   *marked;			/* which of them the call is about */
	int			nmarked;
	OutboxScan	returned;		/* asks for what has failed or gone back; its rel is NULL while it is not open */
	bool		was_read;		/* what has failed or gone back is known; and what is completed, if it matters */
} OutboxClaimSettle;

/*
 * The lease of a token, for the rest of the transaction: locked, found not lost, and the role may work its
 * subscription.  deciding: for what changes the order of keys, one call at a time.  Raises OB001, 55000, 55P03, 42501.
 */
extern void outbox_claim_settle_open(OutboxClaimSettle *settle, const pg_uuid_t *token, bool deciding, Oid role);

/* mark an event of the lease; its state.  Raises OB001 when the lease does not have it. */
extern OutboxClaimState outbox_claim_settle_mark(OutboxClaimSettle *settle, const pg_uuid_t *event_id);
extern void outbox_claim_settle_mark_all(OutboxClaimSettle *settle);

/* raise OB001: the event is not held under the lease any more, but in this state */
OUTBOX_NORETURN extern void outbox_claim_settle_report_not_held(const pg_uuid_t *event_id, OutboxClaimState state);

/* the marked ones are done; returns how many were not before.  message_id: text or 0 */
extern int	outbox_claim_settle_complete(OutboxClaimSettle *settle, Datum message_id);

/* the one that is marked has failed; returns its status */
extern const char *outbox_claim_settle_fail(OutboxClaimSettle *settle, const OutboxFailure *failure);

/* the marked ones were not started; returns how many were held */
extern int	outbox_claim_settle_release(OutboxClaimSettle *settle, int64 delay);

/*
 * Take back some of the leases that have expired, in the transaction at hand: what they hold is due again.  Each as a
 * whole, and no further one from `most` events on.  Passes over those that are locked.  Looks at no more than `looks`, ended
 * ones too.  True when there is more: the next one goes on where this one came to, and else begins again where all
 * before have ended.
 */
extern bool outbox_claim_settle_sweep(OutboxDatabase *db, int most, int looks, OutboxSweepPlace *place);

#endif							/* OUTBOX_CLAIM_SETTLE_H */
