/* event_log.h - write events into the log, in the transaction at hand; and look one up. */
#ifndef OUTBOX_EVENT_LOG_H
#define OUTBOX_EVENT_LOG_H

#include "outbox.h"
#include "guard.h"
#include "store.h"

/*
 * Give a checked draft its id and write it; the router is woken after the commit.  False when an
 * earlier event has its dedup key: that one's id is then in *id, and nothing is written.
 */
extern bool outbox_event_log_append(OutboxDraft *draft, pg_uuid_t *id);

/* The same for many; *current is the number, from 1, of the one at hand. */
extern void outbox_event_log_append_all(int count, OutboxDraft *drafts, pg_uuid_t *ids, int *current);

/* A number of the clock that ids come from: no other row of outbox.batch or outbox.exception_count, and no id, has it. */
extern int64 outbox_event_log_draw_number(void);

/* The row of an event, in the scan's slot until the caller ends the scan; false when it is not in the log. latest: as below. */
extern bool outbox_event_log_find(const pg_uuid_t *id, bool latest, OutboxScan *scan);

/*
 * One column (EV_*) of an event, palloc'd, by one index probe; false when it is null, or the event is not in the
 * log.  latest: also when the active snapshot does not see the event yet.
 */
extern bool outbox_event_log_read(const pg_uuid_t *id, int column, bool latest, Datum *value);

#endif							/* OUTBOX_EVENT_LOG_H */
