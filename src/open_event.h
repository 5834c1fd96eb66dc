/* open_event.h - is any delivery of an event open? */
#ifndef OUTBOX_OPEN_EVENT_H
#define OUTBOX_OPEN_EVENT_H

#include "outbox.h"

#include "utils/snapshot.h"
#include "utils/uuid.h"

/*
 * Is any delivery of the event pending, delayed, parked, leased, started or to be tried again?  For a query that may ask of many:
 * the first ones are searched for, then all that is open is read once.
 */
typedef struct OutboxOpenEvents OutboxOpenEvents;
extern OutboxOpenEvents *outbox_open_event_begin(MemoryContext context);
extern bool outbox_open_event_has(OutboxOpenEvents *events, const pg_uuid_t *id, Snapshot snapshot);

#endif							/* OUTBOX_OPEN_EVENT_H */
