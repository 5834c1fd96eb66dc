/* outage.h - the outage guard, for external workers: by direct access to outbox.subscription_state. */
#ifndef OUTBOX_OUTAGE_H
#define OUTBOX_OUTAGE_H

#include "outbox.h"
#include "failure.h"
#include "subscription.h"

typedef struct OutboxOutage
{
	int			failures;		/* events in a row */
	int			level;			/* above 0: the guard is up */
	TimestampTz until;			/* the next probe not before; DT_NOBEGIN: not set */
	bool		busy;			/* somebody settles, and may end it: no probe meanwhile */
} OutboxOutage;

extern void outbox_outage_read(const OutboxSubscription *s, OutboxOutage *outage);

/* may nothing be handed out before the next probe? */
extern bool outbox_outage_holds(const OutboxOutage *outage, TimestampTz now);

/* none of these waits: when somebody has the row just now, what is to be noted is not */
extern void outbox_outage_note_failure(const OutboxSubscription *s, const pg_uuid_t *event_id,
									   const OutboxVerdict *verdict, TimestampTz now);
extern void outbox_outage_note_success(const OutboxSubscription *s);

/* may one event be handed out to see whether the outage is over?  Then the next one not before another distance. */
extern bool outbox_outage_may_probe(const OutboxSubscription *s, TimestampTz now);

#endif							/* OUTBOX_OUTAGE_H */
