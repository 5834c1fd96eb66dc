/* maintenance.h - upkeep in small transactions: segments ahead, sealing, trimming. */
#ifndef OUTBOX_MAINTENANCE_H
#define OUTBOX_MAINTENANCE_H

#include "outbox.h"

/*
 * One bounded piece of upkeep, in its own transaction; never waits for a strong
 * lock.  Called by the router, again at once while it returns true.
 */
extern bool outbox_maintenance_step(void);

#endif							/* OUTBOX_MAINTENANCE_H */
