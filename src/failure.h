/*
 * failure.h - what a handler's failure means for its delivery: pure rules.
 */
#ifndef OUTBOX_FAILURE_H
#define OUTBOX_FAILURE_H

#include "outbox.h"
#include "kept_error.h"
#include "subscription.h"

/* codes of our own, beside SQLSTATEs and the codes handlers give */
#define OUTBOX_CODE_WORKER_DIED		"worker_died"
#define OUTBOX_CODE_HANDLER_TIMEOUT	"handler_timeout"
#define OUTBOX_CODE_LEASE_EXPIRED	"lease_expired"
#define OUTBOX_CODE_OUTAGE			"outage"	/* of a subscription: its guard is up */

/* the longest delay that may be asked for, us */
#define OUTBOX_RETRY_AFTER_MAX (INT64CONST(30) * USECS_PER_DAY)

typedef enum OutboxAsked
{
	ASKED_NOTHING,
	ASKED_FAIL_PERMANENTLY,		/* outbox.fail_permanently() */
	ASKED_RETRY_AFTER			/* outbox.retry_after() */
} OutboxAsked;

typedef struct OutboxFailure
{
	char		sqlstate[6];
	char		code[OUTBOX_ERROR_CODE_MAX + 1];	/* what is shown: given by the handler, ours, or the SQLSTATE */
	char	   *message;		/* NULL: not kept */
	OutboxConstraint constraint;
	OutboxAsked asked;
	int64		delay;			/* us, of ASKED_RETRY_AFTER */
	bool		count_attempt;
} OutboxFailure;

typedef struct OutboxVerdict
{
	bool		review;			/* REVIEW_REQUIRED, else RETRY */
	bool		counted;		/* used an attempt */
	int64		delay;			/* us until the next attempt */
	bool		may_pass;		/* for a reason outside of the event: feeds the outage guard */
	bool		outage;			/* surely so (a deployment broke something): the guard acts at once */
} OutboxVerdict;

/* `attempt` is the number of the failed one, from 1; spread is uniform in [0, 1) */
extern OutboxVerdict outbox_failure_judge(const OutboxSubscription *subscription, const OutboxFailure *failure,
										  int attempt, double spread);

#endif							/* OUTBOX_FAILURE_H */
