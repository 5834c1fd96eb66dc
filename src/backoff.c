/*
 * backoff.c - when a failed delivery is tried again.
 *
 * Pure.  The delay grows by the factor with each failed attempt, up to the
 * cap, and is spread by 20 % either way, so that deliveries that failed
 * together do not come back together.  Computed in floating point and clamped
 * before it becomes an integer: nothing overflows, whatever is passed in.
 */
#include "outbox.h"

#include <math.h>

#include "backoff.h"

#define SPREAD 0.2

/* base * factor ^ (attempt - 1), no more than max */
static double
grow_delay(int attempt, double base, double factor, double max)
{
	double		delay;

	/* this order also settles not-a-number: it is not greater than 1 */
	if (attempt <= 1 || !(factor > 1.0))
		return Min(base, max);
	delay = base * pow(factor, attempt - 1);
	return delay < max ? delay : max;
}

int64
outbox_backoff_delay(int attempt, int64 base, double factor, int64 max, double spread)
{
	double		delay;

	if (base <= 0 || max <= 0)
		return 0;
	if (!(spread > 0.0))
		spread = 0.0;
	else if (spread > 1.0)
		spread = 1.0;

	delay = grow_delay(attempt, (double) base, factor, (double) max);
	delay *= 1.0 - SPREAD + 2.0 * SPREAD * spread;

	/* the largest double below 2^63 */
	if (delay >= (double) OUTBOX_BACKOFF_INTERVAL_MAX)
		return OUTBOX_BACKOFF_INTERVAL_MAX;
	return (int64) delay;
}

int64
outbox_backoff_interval_us(const Interval *interval)
{
	double		us = ((double) interval->month * DAYS_PER_MONTH + interval->day) * USECS_PER_DAY + interval->time;

	if (us >= (double) OUTBOX_BACKOFF_INTERVAL_MAX)
		return OUTBOX_BACKOFF_INTERVAL_MAX;
	if (us <= -(double) OUTBOX_BACKOFF_INTERVAL_MAX)
		return -OUTBOX_BACKOFF_INTERVAL_MAX;
	return (int64) us;
}
