/*
 * counters.h - what is counted in shared memory, for outbox.metrics: totals and histograms of
 * each subscription, failures by code, event types that nobody subscribes to.
 *
 * Counting takes no lock that anybody waits for.  Like the server's own statistics, the numbers
 * are written to a file at shutdown and read at start, and begin at nothing after a crash.
 */
#ifndef OUTBOX_COUNTERS_H
#define OUTBOX_COUNTERS_H

#include "outbox.h"

#include "storage/lwlock.h"

#include "histogram.h"

#define OUTBOX_COUNTED_SUBSCRIPTIONS	512 /* of all databases; more are not counted */
#define OUTBOX_COUNTED_CODES			16	/* of a subscription; more count as "other" */
#define OUTBOX_COUNTED_TYPES			256 /* that nobody subscribes to, of all databases */

typedef enum OutboxTotal
{
	TOTAL_COMPLETED,			/* deliveries */
	TOTAL_FAILED,				/* attempts that failed */
	TOTAL_REVIEW,				/* deliveries that went to review */
	TOTAL_RECOVERED,			/* leases taken over from a holder that had not given them back */
	TOTAL_HANDLER_US,			/* in calls that completed a delivery */
	TOTAL_ROUTED,				/* deliveries put into lanes or aside, of the database: subscription 0 */
	TOTAL_UNMATCHED,			/* events that no subscription matched, of the database */
	OUTBOX_TOTALS
} OutboxTotal;

typedef enum OutboxDuration
{
	DURATION_HANDLER,			/* of one call, or from claim to settle */
	DURATION_TO_START,			/* from publish to the start of the call that completed it */
	DURATION_TO_DONE,			/* from publish to the commit that completed it */
	OUTBOX_DURATIONS
} OutboxDuration;

/* one subscription, copied out */
typedef struct OutboxCounts
{
	int32		subscription_id;
	uint64		totals[OUTBOX_TOTALS];
	uint64		durations[OUTBOX_DURATIONS][OUTBOX_HISTOGRAM_BUCKETS];
	int			ncodes;
	char		codes[OUTBOX_COUNTED_CODES][OUTBOX_ERROR_CODE_MAX + 1];
	uint64		failures[OUTBOX_COUNTED_CODES];
} OutboxCounts;

typedef struct OutboxUnmatched
{
	char		event_type[OUTBOX_EVENT_TYPE_MAX + 1];
	uint64		events;
	TimestampTz last_seen_at;
} OutboxUnmatched;

/* for shmem.c: size, and setting up (found: by another process already) */
extern Size outbox_counters_size(void);
extern void outbox_counters_attach(void *place, LWLock *lock, bool found);

/* In this database; subscription 0 is the database itself.  Harmless when there is no room. */
extern void outbox_counters_add(int32 subscription_id, OutboxTotal total, uint64 n);
extern void outbox_counters_completed(int32 subscription_id, int64 handler_us, int64 to_start_us, int64 to_done_us);
extern void outbox_counters_failed(int32 subscription_id, const char *code, bool review);
extern void outbox_counters_unmatched(const char *event_type, int n, TimestampTz at);

/* copies of what is counted for this database; palloc'd */
extern int	outbox_counters_read(OutboxCounts **counts);
extern int	outbox_counters_read_unmatched(OutboxUnmatched **types);

/* forget a database that is gone; forget the subscriptions of this one that are not among these */
extern void outbox_counters_forget(Oid database);
extern void outbox_counters_keep_only(int n, const int32 *subscription_ids);

#endif							/* OUTBOX_COUNTERS_H */
