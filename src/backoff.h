/* backoff.h - when a failed delivery is tried again: pure, cannot overflow. */
#ifndef OUTBOX_BACKOFF_H
#define OUTBOX_BACKOFF_H

#include "outbox.h"

/*
 * Microseconds to wait after failed attempt number `attempt` (1 ..), with
 * base and max in microseconds (months count 30 days), spread by ± 20 %:
 * `spread` is a uniform random number in [0, 1).  Never negative, never above max * 1.2,
 * whatever is passed in.
 */
extern int64 outbox_backoff_delay(int attempt, int64 base, double factor, int64 max, double spread);

/* what an interval of 292,000 years and more is cut to, also the infinite one of PostgreSQL 17 */
#define OUTBOX_BACKOFF_INTERVAL_MAX INT64CONST(9223372036854774784)

/* an interval in microseconds, a month counting 30 days; cut to what an int64 holds */
extern int64 outbox_backoff_interval_us(const Interval *interval);

#endif							/* OUTBOX_BACKOFF_H */
