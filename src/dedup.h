/* dedup.h - one event for one dedup key, within the window. */
#ifndef OUTBOX_DEDUP_H
#define OUTBOX_DEDUP_H

#include "outbox.h"

/* what a publisher claims a key with */
typedef struct OutboxDedupClaim
{
	Datum		tenant_id;		/* text, empty for none */
	Datum		event_type;		/* text */
	Datum		dedup_key;		/* text */
	pg_uuid_t	payload_hash;
	TimestampTz published_at;
	pg_uuid_t	event_id;		/* in: of the event to be; out: of the first */
} OutboxDedupClaim;

/*
 * True when the key is the caller's: its event is the first.  False when there is one, whose id is
 * then in claim->event_id.  Waits for an open transaction that has the key; raises
 * unique_violation when the first has another payload.
 */
extern bool outbox_dedup_claim(OutboxDedupClaim *claim);

#endif							/* OUTBOX_DEDUP_H */
