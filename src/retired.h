/* retired.h - tables that have been taken out of the log, on their way off the disk. */
#ifndef OUTBOX_RETIRED_H
#define OUTBOX_RETIRED_H

#include "outbox.h"

#include "maintenance.h"

/* why a table stays that a person has made something of */
#define OUTBOX_RETIRED_DEPENDENT "another object depends on it"

/* does something depend on a table of a segment that would not go with it? */
extern bool outbox_retired_has_dependent(Oid relid);

/*
 * In place of dropping a table of a segment, which is locked against everybody, and on which nothing depends: with the
 * end of the transaction nobody finds it any more.
 */
extern void outbox_retired_add(Oid relid, const char *parent);

/* a step of a task, see maintenance.h: a piece of one of them, or what is left of it */
extern bool outbox_retired_shrink(OutboxPass *pass);

#endif							/* OUTBOX_RETIRED_H */
