/*
 * patience.h - wait for others, but not for long.
 *
 * Who settles events waits for another transaction that settles the same ones, for at most 3/4 of
 * deadlock_timeout in one call: so nobody's deadlock check ever finds us waiting.
 */
#ifndef OUTBOX_PATIENCE_H
#define OUTBOX_PATIENCE_H

#include "outbox.h"

typedef struct OutboxPatience
{
	int64		until;			/* outbox_settings_ticks(); 0: has not waited yet */
	long		step;			/* us */
	bool		waited;			/* what was read before may have changed */
} OutboxPatience;

/* wait for a moment; 55P03 when there is no more patience */
extern void outbox_patience_wait(OutboxPatience *patience);

#endif							/* OUTBOX_PATIENCE_H */
