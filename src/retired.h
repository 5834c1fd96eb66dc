/* retired.h - tables that have been taken out of the log, on their way off the disk. */
#ifndef OUTBOX_RETIRED_H
#define OUTBOX_RETIRED_H

#include "outbox.h"

#include "maintenance.h"

/*
 * In place of dropping a table of a segment, which is locked against everybody: with the end of the transaction
 * nobody finds it any more.  An error when something else depends on it.
 */
extern void outbox_retired_add(Oid relid, const char *parent);

/* a step of a task, see maintenance.h: a piece of one of them, or what is left of it */
extern bool outbox_retired_shrink(OutboxPass *pass);

#endif							/* OUTBOX_RETIRED_H */
