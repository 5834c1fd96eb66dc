/*
 * histogram.h - times in buckets that grow by a quarter of an octave: pure arithmetic.
 *
 * A quantile read from it is off by less than a quarter of its value.
 */
#ifndef OUTBOX_HISTOGRAM_H
#define OUTBOX_HISTOGRAM_H

#include "outbox.h"

/* from 1 us to some 19 hours; what is longer counts as the last */
#define OUTBOX_HISTOGRAM_BUCKETS	144

extern int	outbox_histogram_bucket(int64 us);

/* The value, in us, below which the fraction lies; -1 when nothing was counted. */
extern double outbox_histogram_quantile(const uint64 *counts, double fraction);

#endif							/* OUTBOX_HISTOGRAM_H */
