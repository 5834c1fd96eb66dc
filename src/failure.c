/*
 * failure.c - try again, when, or ask a person?
 *
 * A rule names an SQLSTATE or an error code, or the two characters of an
 * SQLSTATE's class; the more specific one wins, and the subscription's own win over the
 * built-in ones.  What no rule calls permanent is tried again.
 */
#include "outbox.h"

#include "backoff.h"
#include "failure.h"

/* errors that the same event will meet again: bad data, violated constraints */
static const char *const permanent_by_default[] = {"21", "22", "23502", "23505", "23514"};

/* how well a list of rules fits: 0 not at all, 1 by class, 2 exactly */
static int
fit_rules(const char *const *rules, int count, const OutboxFailure *failure)
{
	int			best = 0;

	for (int i = 0; i < count; i++)
	{
		if (strcmp(rules[i], failure->code) == 0 || strcmp(rules[i], failure->sqlstate) == 0)
			return 2;
		if (strlen(rules[i]) == 2 && strncmp(rules[i], failure->sqlstate, 2) == 0)
			best = 1;
	}
	return best;
}

static bool
is_permanent(const OutboxSubscription *subscription, const OutboxFailure *failure)
{
	int			permanent = fit_rules((const char *const *) subscription->permanent_errors,
									  subscription->npermanent, failure);
	int			transient = fit_rules((const char *const *) subscription->transient_errors,
									  subscription->ntransient, failure);
	int			built_in = fit_rules(permanent_by_default, lengthof(permanent_by_default), failure);

	if (permanent > transient)
		return true;
	if (transient > 0)
		return built_in > transient;
	return built_in > 0;
}

/* Something is missing or not supported: not the event's fault, whatever event it is. */
static bool
is_outage(const OutboxFailure *failure)
{
	return strncmp(failure->sqlstate, "42", 2) == 0 || strncmp(failure->sqlstate, "0A", 2) == 0;
}

OutboxVerdict
outbox_failure_judge(const OutboxSubscription *subscription, const OutboxFailure *failure,
					 int attempt, double spread)
{
	OutboxVerdict verdict = {.counted = true};

	if (failure->asked == ASKED_FAIL_PERMANENTLY)
	{
		verdict.review = true;
		return verdict;
	}
	if (failure->asked == ASKED_RETRY_AFTER)
	{
		verdict.counted = failure->count_attempt;
		verdict.review = verdict.counted && attempt >= subscription->max_attempts;
		verdict.delay = Min(Max(failure->delay, 0), OUTBOX_RETRY_AFTER_MAX);
		return verdict;
	}
	verdict.review = is_permanent(subscription, failure) || attempt >= subscription->max_attempts;
	verdict.may_pass = !is_permanent(subscription, failure) &&
		strcmp(failure->code, OUTBOX_CODE_WORKER_DIED) != 0;
	verdict.outage = verdict.may_pass && is_outage(failure);
	verdict.delay = outbox_backoff_delay(attempt, subscription->backoff_base, subscription->backoff_factor,
										 subscription->backoff_max, spread);
	return verdict;
}
