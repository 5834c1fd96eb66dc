/*
 * histogram.c - times in buckets that grow by a quarter of an octave.
 *
 * The bucket of a time is found by its highest bit and the two bits below it, so that four
 * buckets share an octave, each as wide as a quarter of where the octave begins; counting
 * costs no floating point.  (The layout is that of HdrHistogram with two bits of precision.)
 */
#include "outbox.h"

#include "port/pg_bitutils.h"

#include "histogram.h"

int
outbox_histogram_bucket(int64 us)
{
	uint64		value = us < 1 ? 1 : (uint64) us;
	int			octave = pg_leftmost_one_pos64(value);
	int			quarter = octave >= 2 ? (int) ((value >> (octave - 2)) & 3) : (int) ((value << (2 - octave)) & 3);
	int			bucket = octave * 4 + quarter;

	return Min(bucket, OUTBOX_HISTOGRAM_BUCKETS - 1);
}

/* in us; a bucket ends where the next begins */
static double
lower_bound(int bucket)
{
	return (double) (UINT64CONST(1) << (bucket / 4)) * (1.0 + 0.25 * (bucket % 4));
}

double
outbox_histogram_quantile(const uint64 *counts, double fraction)
{
	uint64		total = 0;
	double		wanted;
	double		below = 0;

	for (int i = 0; i < OUTBOX_HISTOGRAM_BUCKETS; i++)
		total += counts[i];
	if (total == 0)
		return -1;
	wanted = fraction * total;
	for (int i = 0; i < OUTBOX_HISTOGRAM_BUCKETS; i++)
	{
		double		lower = lower_bound(i);

		if (counts[i] > 0 && below + counts[i] >= wanted)
			return lower + (lower_bound(i + 1) - lower) * (wanted - below) / counts[i];
		below += counts[i];
	}
	return lower_bound(OUTBOX_HISTOGRAM_BUCKETS);
}
