/* router.h - the process "outbox router <db>". */
#ifndef OUTBOX_ROUTER_H
#define OUTBOX_ROUTER_H

#include "outbox.h"

extern PGDLLEXPORT void outbox_router_main(Datum argument);

#endif							/* OUTBOX_ROUTER_H */
