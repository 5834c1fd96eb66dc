/* worker.h - the process "outbox worker <n> <db>". */
#ifndef OUTBOX_WORKER_H
#define OUTBOX_WORKER_H

#include "outbox.h"

extern PGDLLEXPORT void outbox_worker_main(Datum argument);

#endif							/* OUTBOX_WORKER_H */
