/* upkeep.h - the tasks of upkeep, one after the other, and what came of them. */
#ifndef OUTBOX_UPKEEP_H
#define OUTBOX_UPKEEP_H

#include "outbox.h"

typedef enum OutboxUpkeepEnd
{
	UPKEEP_DONE,
	UPKEEP_MORE,				/* the time was up */
	UPKEEP_BUSY,				/* another run is under way */
	UPKEEP_HELD					/* until outbox.activate() */
} OutboxUpkeepEnd;

/*
 * One bounded piece, in a transaction of its own; never waits for a lock.
 * Called by the router, and again after so many ms.
 */
extern long outbox_upkeep_step(void);

/* in the router: segments wait for the archive function, which another process must call */
extern bool outbox_upkeep_archive_is_due(void);

/*
 * All of it, in transactions of its own, until nothing is left to do or the time is up.  In a
 * procedure that is called outside of a transaction block, or in a process of ours.
 */
extern OutboxUpkeepEnd outbox_upkeep_run(bool in_call, int64 budget_us);

#endif							/* OUTBOX_UPKEEP_H */
