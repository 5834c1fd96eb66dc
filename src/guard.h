/* guard.h - what may be published: checks and defaults of one event. */
#ifndef OUTBOX_GUARD_H
#define OUTBOX_GUARD_H

#include "outbox.h"

/* a row of the log in the making, by OutboxEventColumn */
typedef struct OutboxDraft
{
	Datum		values[OUTBOX_LOG_COLUMNS];
	bool		nulls[OUTBOX_LOG_COLUMNS];
} OutboxDraft;

/* the column's name, as it is the name of publish()'s argument */
extern const char *outbox_guard_column_name(OutboxEventColumn column);

/*
 * Takes what the publisher gave (all else null), fills in the context and the
 * defaults that depend on no clock, and raises an error for what may not be
 * published: OB002 for payload, headers, context and what the event's type
 * does not allow or looks sensitive, 22004 and 22023 for the other arguments.  Values may be replaced, in the current memory context.
 */
extern void outbox_guard_check(OutboxDraft *draft);

/*
 * 128 bits that are the same for equal payloads, whatever their numbers' trailing zeros.
 */
extern void outbox_guard_hash_payload(Datum payload, pg_uuid_t *hash);

#endif							/* OUTBOX_GUARD_H */
