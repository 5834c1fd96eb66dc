/*
 * settle.h - deliveries that did not go well: their rows, the gates of their
 * keys, the outage guard.
 *
 * Everything here runs in the transaction at hand, in SPI, as the extension's
 * owner, after the lane's row was locked by the lease's token.
 */
#ifndef OUTBOX_SETTLE_H
#define OUTBOX_SETTLE_H

#include "outbox.h"
#include "failure.h"
#include "lease.h"
#include "shmem.h"
#include "subscription.h"

/* a delivery at hand */
typedef struct OutboxDelivery
{
	pg_uuid_t	event_id;
	int			replay_no;
	OutboxLane *lane;
	ItemPointerData tid;		/* where the event's row was when it was routed; invalid: not known */
	int64		position;
	int64		gate_id;		/* read from the parked ones of this gate; 0: from the lane */
	int			attempts;		/* counting the one at hand, once it has started; since the last retry() */
	int			attempts_before;	/* before the last retry() */
	char	   *tenant_id;		/* "" for none; palloc'd */
	char	   *event_key;		/* NULL: no key, or no order */
	TimestampTz started_at;
} OutboxDelivery;

/* put the start on record: the delivery is IN_PROGRESS, its attempt counted, the key's gate closed */
extern void outbox_settle_start_first(const OutboxSubscription *s, OutboxDelivery *d, OutboxProcess *self);

/* the due delivery of the lane, or due replay, that has waited longest, now IN_PROGRESS; false when there is none */
extern bool outbox_settle_start_due(const OutboxSubscription *s, OutboxLane *lane, bool replay, OutboxDelivery *d,
									OutboxProcess *self);

/* the same for the first parked one behind an open gate that must be worked carefully; false when there is none */
extern bool outbox_settle_start_parked(const OutboxSubscription *s, OutboxLane *lane, OutboxDelivery *d,
									   OutboxProcess *self);

/* a started delivery completes: its row goes, its gate may open.  Together with the receipt. */
extern void outbox_settle_complete(const OutboxSubscription *s, OutboxDelivery *d);

/* a delivery failed that had no row yet: it gets one, and its key a gate; also logs the attempt */
extern void outbox_settle_fail_first(const OutboxSubscription *s, OutboxDelivery *d, const OutboxFailure *failure,
									 OutboxProcess *self);

/* a started delivery failed */
extern void outbox_settle_fail_started(const OutboxSubscription *s, OutboxDelivery *d, const OutboxFailure *failure,
									   OutboxProcess *self);

/* a started delivery was not run to its end, through no fault of its own: due at once, no attempt used */
extern void outbox_settle_put_back(const OutboxSubscription *s, OutboxDelivery *d);

/*
 * Deliveries that the holder before had started: failed as worker_died when it died, else put
 * back; returns how many (bounded).
 */
extern int	outbox_settle_recover(const OutboxSubscription *s, OutboxLane *lane, OutboxProcess *self);

/* gates whose holder was given up by a person, or is waived by on_review => 'continue': open them; returns how many */
extern int	outbox_settle_sweep(const OutboxSubscription *s, OutboxLane *lane);

/* a delivery whose gate_id is set waits behind it: the lane goes past it */
extern void outbox_settle_park(OutboxDelivery *d);

/* the gate has let pass up to this position */
extern void outbox_settle_move_gate(int64 gate_id, int64 position);

/* is the key's gate there?  then its id */
extern bool outbox_settle_find_gate(OutboxLane *lane, const char *tenant_id, const char *event_key, int64 *gate_id);

/* events in a row that failed, before the outage guard acts */
#define OUTBOX_GUARD_FAILURES 5

/* between two probes of the outage guard, at most; us */
#define OUTBOX_GUARD_DISTANCE_MAX (INT64CONST(60) * USECS_PER_SEC)

/* the outage guard: hears of successes and failures */
extern void outbox_settle_note_success(const OutboxSubscription *s);

/* why the subscription stands still; NULL: it does not */
extern void outbox_settle_note_problem(const OutboxSubscription *s, const char *code, const char *reason);

typedef struct OutboxGuard
{
	int			failures;
	int			level;
	TimestampTz until;			/* DT_NOBEGIN: not set */
	bool		stopped;
} OutboxGuard;

extern void outbox_settle_read_guard(const OutboxSubscription *s, OutboxGuard *guard);

#endif							/* OUTBOX_SETTLE_H */
