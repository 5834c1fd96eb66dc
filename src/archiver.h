/* archiver.h - a process beside the router, for upkeep that calls the archive function. */
#ifndef OUTBOX_ARCHIVER_H
#define OUTBOX_ARCHIVER_H

#include "outbox.h"

/* in the router: start it, unless it is there or was a moment ago */
extern void outbox_archiver_start(void);

/* end it, and wait until it is gone */
extern void outbox_archiver_stop(void);

extern PGDLLEXPORT void outbox_archiver_main(Datum database);

#endif							/* OUTBOX_ARCHIVER_H */
