/* claim_progress.h - what has been settled of the leases of external workers. */
#ifndef OUTBOX_CLAIM_PROGRESS_H
#define OUTBOX_CLAIM_PROGRESS_H

#include "outbox.h"

#include "utils/snapshot.h"

#include "store.h"

typedef enum OutboxClaimState
{
	CLAIM_HELD,
	CLAIM_COMPLETED,
	CLAIM_RETURNED				/* failed, released, taken back */
} OutboxClaimState;

#define OUTBOX_CLAIM_PROGRESS_SOURCES	2

/* one of the tables it stands in, being read */
typedef struct OutboxClaimProgressRows
{
	OutboxScan	scan;
	bool		begun;
	bool		at_row;			/* one is in the slot: the first behind those that were read */
	int64		from;			/* of leases from this one on, the first that has a row not read */
} OutboxClaimProgressRows;

/* Reads it.  All zeros but for snapshot and walking before the first lease; nothing is opened until then. */
typedef struct OutboxClaimProgress
{
	Snapshot	snapshot;
	bool		walking;		/* leases are asked for in about the order of their numbers */
	OutboxClaimProgressRows rows[OUTBOX_CLAIM_PROGRESS_SOURCES];
} OutboxClaimProgress;

/* How each event of a lease stands, into states[count]; returns how many are held. */
extern int	outbox_claim_progress_read(OutboxClaimProgress *progress, int64 lease_id, OutboxClaimState *states, int count);
extern void outbox_claim_progress_end(OutboxClaimProgress *progress);

/*
 * Has anything of the lease, claimed by that transaction, failed or gone back?  One probe at most, however many calls have completed
 * something.  The scan is begun when its rel is NULL, and left open, to ask again.
 */
extern bool outbox_claim_progress_has_returned(int64 lease_id, uint64 claim_xid, OutboxScan *scan);

/* as columns have it: n indexes of events in the arrays of their lease */
extern Datum outbox_claim_progress_indexes(const int *settled, int n);

/* append that these n events of a lease are settled, where no batch says so */
extern void outbox_claim_progress_append(int64 lease_id, OutboxClaimState state, const int *settled, int n);

#endif							/* OUTBOX_CLAIM_PROGRESS_H */
