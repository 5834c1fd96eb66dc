/* maintenance.h - what upkeep does to rows: trimming, sealing, ending generations of lanes. */
#ifndef OUTBOX_MAINTENANCE_H
#define OUTBOX_MAINTENANCE_H

#include "outbox.h"

#include "lib/stringinfo.h"

#include "subscription.h"

/* a task of upkeep on its way, from its first step to the one that has no more to do */
typedef struct OutboxPass
{
	bool		patient;		/* may wait a moment for a strong lock: not the router */
	bool		may_archive;	/* may call the archive function here: not the router */
	int			nsubscriptions;
	OutboxSubscription *subscriptions;
	int			incarnation;
	int64		reached;		/* where the next step goes on */
	pg_uuid_t	after;			/* the same, by event id */
	int64		removed;		/* rows or segments */
	int64		kept;			/* what had to stay, and why */
	StringInfoData kept_why;
	bool		rest;			/* others may have noticed the step: they get a rest before the next one */
	bool		archive_due;	/* there is something that only another process may archive */
} OutboxPass;

/*
 * A step of a task: bounded, in the transaction at hand, in SPI; waits for no strong lock.
 * True when there is more to do, in a new transaction.
 */
extern bool outbox_maintenance_trim_lanes(OutboxPass *pass);
extern bool outbox_maintenance_trim_ticks(OutboxPass *pass);
extern bool outbox_maintenance_trim_leases(OutboxPass *pass);
extern bool outbox_maintenance_trim_parked(OutboxPass *pass);
extern bool outbox_maintenance_trim_dedup(OutboxPass *pass);
extern bool outbox_maintenance_trim_consumed(OutboxPass *pass);
extern bool outbox_maintenance_trim_batches(OutboxPass *pass);
extern bool outbox_maintenance_trim_attempts(OutboxPass *pass);
extern bool outbox_maintenance_trim_discarded(OutboxPass *pass);
extern bool outbox_maintenance_count_reviews(OutboxPass *pass);
extern bool outbox_maintenance_seal(int incarnation);

/* is a relation used by nobody?  Then it is locked; tried for again for a moment where there is time, never waited for */
extern bool outbox_maintenance_lock_alone(const OutboxPass *pass, Oid relid);

/* what had to stay */
extern void outbox_maintenance_keep(OutboxPass *pass, const char *name, const char *why);

/* in the router only; true when there is more to do at once */
extern bool outbox_maintenance_end_generations(OutboxSubscription *subscriptions, int n);

#endif							/* OUTBOX_MAINTENANCE_H */
