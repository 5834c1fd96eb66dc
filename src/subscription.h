/*
 * subscription.h - the subscriptions of this database, read once and kept until
 * the table's relcache entry is invalidated (whoever changes outbox.subscription
 * calls outbox_subscription_changed() in the same transaction).
 */
#ifndef OUTBOX_SUBSCRIPTION_H
#define OUTBOX_SUBSCRIPTION_H

#include "outbox.h"

#include "utils/snapshot.h"

#include "snapshot.h"

/* in SQL, the role of a binding to one that was dropped before the dump that was restored: no role has this id */
#define OUTBOX_RUN_AS_GONE	"4294967295::pg_catalog.oid"

typedef struct OutboxSubscription
{
	int32		id;
	char	   *name;
	int			npatterns;
	char	  **patterns;
	char	   *handler;		/* NULL: external workers claim */
	char	   *run_as;
	Oid			role;			/* whom it is bound to (run_as.h), or InvalidOid */
	bool		ordered;		/* ordering => 'key' */
	bool		block_on_review;
	bool		paused;
	int			lanes;
	int			first_lane;		/* of the routing generation for new entries */
	int			ordered_from;	/* lanes below were filled while no order was kept */
	int			max_attempts;
	int			batch_size;
	int64		backoff_base;	/* us */
	double		backoff_factor;
	int64		backoff_max;	/* us */
	int64		lease_duration; /* us */
	int64		handler_timeout;	/* us */
	bool		has_start_at;
	TimestampTz start_at;
	int			npermanent;
	char	  **permanent_errors;
	int			ntransient;
	char	  **transient_errors;
	OutboxSnapshot *seam;
	uint64		seam_xid;
	int			seam_incarnation;
} OutboxSubscription;

/* Does this lane keep the order of keys? */
static inline bool
outbox_subscription_orders(const OutboxSubscription *s, int32 lane)
{
	return s->ordered && lane >= s->ordered_from;
}

/* all of them by id; valid until the next call; needs a transaction */
extern int	outbox_subscription_all(OutboxSubscription **subscriptions);

/* one of them, to be kept: in the current memory context, without patterns and seam */
extern OutboxSubscription *outbox_subscription_copy(const OutboxSubscription *s);

/*
 * One of them, by its number or, when that is 0, by its name; NULL when there is none.  In nobody's session:
 * when they have to be read, it is done as the extension's owner.  Copied into the current memory context.
 */
extern OutboxSubscription *outbox_subscription_find(int32 id, const char *name);

/* has it the same handler, or none, as before, and is it not paused, in its row as the snapshot sees it?  One probe */
extern bool outbox_subscription_holds(const OutboxSubscription *s, Snapshot snapshot);

/* a number that changes with every reload of the cache */
extern uint64 outbox_subscription_version(void);

/* announce a change of outbox.subscription: every session reloads once this commits */
extern void outbox_subscription_changed(void);

#endif							/* OUTBOX_SUBSCRIPTION_H */
