/*
 * event_id.h - the arithmetic of event ids (UUIDv7): pure, no server state.
 *
 * An id carries a 60-bit time, in units of 1/4096 ms since the Unix epoch:
 * 48 bits of milliseconds and, in rand_a, 12 bits of the fraction (RFC 9562,
 * 6.2, method 3).  The 62 bits of rand_b are random.
 */
#ifndef OUTBOX_EVENT_ID_H
#define OUTBOX_EVENT_ID_H

#include "outbox.h"

typedef uint64 OutboxIdTime;	/* 1/4096 ms since 1970-01-01 */

extern OutboxIdTime outbox_event_id_time_from(TimestampTz at);
extern TimestampTz outbox_event_id_time_to(OutboxIdTime time);
extern OutboxIdTime outbox_event_id_time_of(const pg_uuid_t *id);
extern void outbox_event_id_make(OutboxIdTime time, uint64 random, pg_uuid_t *id);

/* the smallest id of a time: the bound of a segment */
extern void outbox_event_id_floor(OutboxIdTime time, pg_uuid_t *id);

extern int	outbox_event_id_compare(const pg_uuid_t *a, const pg_uuid_t *b);

/*
 * The next time to issue, given the wall clock and the last one issued:
 * above `last`, unless that is more than an hour ahead of the clock; then
 * *rebased is set and the clock is believed again.
 */
extern OutboxIdTime outbox_event_id_next(OutboxIdTime now, OutboxIdTime last, int count, bool *rebased);

#endif							/* OUTBOX_EVENT_ID_H */
