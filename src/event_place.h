/*
 * event_place.h - where an open delivery of an event may be: which lane of a subscription, behind which gate, at which due time.
 *
 * The rule by which the router places events, and by which they are found again.
 */
#ifndef OUTBOX_EVENT_PLACE_H
#define OUTBOX_EVENT_PLACE_H

#include "outbox.h"

#include "utils/snapshot.h"
#include "utils/uuid.h"

/* what a lane is counted from: of an event with a key where the order of keys is kept, and of the others */
extern uint64 outbox_event_place_hash_key(Datum tenant_id, Datum event_key);	/* tenant_id 0: none */
extern uint64 outbox_event_place_hash_id(const pg_uuid_t *id);

/* the lanes that new events of a subscription go to */
typedef struct OutboxGeneration
{
	int32		subscription_id;
	int32		first_lane;
	int32		lanes;
	bool		ordered;		/* ordering => 'key' */
} OutboxGeneration;

static inline int32
outbox_event_place_lane(int32 first_lane, int32 lanes, uint64 hash)
{
	return first_lane + (int32) (hash % (uint64) lanes);
}

/* those of all subscriptions, as the snapshot has them; palloc'd */
extern int	outbox_event_place_generations(Snapshot snapshot, OutboxGeneration **generations);

/* what an event's row tells of its place */
typedef struct OutboxEventPlace
{
	pg_uuid_t	event_id;
	bool		known;			/* else its row is not in the log, as the active snapshot has it: it may be anywhere */
	Datum		tenant_id;		/* 0: none */
	Datum		event_key;		/* 0: none */
	uint64		hash_of_key;	/* when it has one */
	uint64		hash_of_id;
	TimestampTz due_at;			/* DT_NOBEGIN: none was given */
} OutboxEventPlace;

extern void outbox_event_place_read(const pg_uuid_t *id, OutboxEventPlace *place);	/* palloc'd */

/* May this lane of a subscription hold it? */
extern bool outbox_event_place_may_be_in(const OutboxEventPlace *place, const OutboxGeneration *generations, int n,
										 int32 subscription_id, int32 lane);

/* Calls visit() with the id of each gate of the event's key, until it returns false.  Of an event that is known. */
typedef bool (*OutboxGateVisit) (int64 gate_id, void *argument);
extern void outbox_event_place_walk_gates(const OutboxEventPlace *place, const OutboxGeneration *generations, int n,
										  Snapshot snapshot, OutboxGateVisit visit, void *argument);

#endif							/* OUTBOX_EVENT_PLACE_H */
