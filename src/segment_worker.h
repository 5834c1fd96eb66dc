/* segment_worker.h - a segment that a publisher needs now, made by a process of its own. */
#ifndef OUTBOX_SEGMENT_WORKER_H
#define OUTBOX_SEGMENT_WORKER_H

#include "outbox.h"

/*
 * Have the segment of an id made, or opened again, in a transaction of its own, and wait
 * for it.  True when somebody has tried, maybe in vain; false when it cannot be done that way.
 */
extern bool outbox_segment_worker_provide(const pg_uuid_t *id);

/* the process */
extern PGDLLEXPORT void outbox_segment_worker_main(Datum database);

#endif							/* OUTBOX_SEGMENT_WORKER_H */
