/* launcher.h - the process "outbox launcher". */
#ifndef OUTBOX_LAUNCHER_H
#define OUTBOX_LAUNCHER_H

#include "outbox.h"

/* in _PG_init: have the postmaster keep it running */
extern void outbox_launcher_register(void);

extern PGDLLEXPORT void outbox_launcher_main(Datum argument);

#endif							/* OUTBOX_LAUNCHER_H */
