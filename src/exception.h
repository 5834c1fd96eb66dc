/*
 * exception.h - deliveries that did not go well, and the gates of their keys,
 * for external workers: by direct table access.
 *
 * settle.h does the same for handlers, in SQL.  Here it must be right in whatever transaction an
 * application settles events: everything is read by what is committed now, nothing is waited for without a
 * limit, and no predicate lock is left behind.
 */
#ifndef OUTBOX_EXCEPTION_H
#define OUTBOX_EXCEPTION_H

#include "outbox.h"

#include "access/htup.h"
#include "storage/itemptr.h"

#include "patience.h"
#include "subscription.h"

/* columns of outbox.delivery_exception */
typedef enum OutboxExceptionColumn
{
	EX_SUBSCRIPTION_ID,
	EX_EVENT_ID,
	EX_REPLAY_NO,
	EX_LANE,
	EX_POSITION,
	EX_STATUS,
	EX_ATTEMPTS,
	EX_ATTEMPTS_BEFORE,
	EX_NEXT_ATTEMPT_AT,
	EX_TENANT_ID,
	EX_EVENT_KEY,
	EX_ERROR_CODE,
	EX_ERROR_MESSAGE,
	EX_STARTED_AT,
	EX_FIRST_FAILED_AT,
	EX_FAILED_AT,
	EX_WORKER,
	EX_GATE_RELEASED,
	EX_LEASE_ID,
	EX_ALONE,
	OUTBOX_EXCEPTION_COLUMNS
} OutboxExceptionColumn;

/* a row, copied; `tid` is where it is, invalid for one that is not written yet */
typedef struct OutboxException
{
	ItemPointerData tid;
	HeapTuple	row;			/* as it is in the table; NULL: it is not */
	Datum		values[OUTBOX_EXCEPTION_COLUMNS];
	bool		nulls[OUTBOX_EXCEPTION_COLUMNS];
} OutboxException;

/* the key whose order is kept; event_key 0: none */
typedef struct OutboxKey
{
	int32		subscription_id;
	int32		lane;
	Datum		tenant_id;		/* text, '' for none */
	Datum		event_key;		/* text */
} OutboxKey;

typedef struct OutboxKeyGate
{
	ItemPointerData tid;
	int64		gate_id;
	bool		held;
	pg_uuid_t	held_by;
	int64		through;
	int64		was_through;	/* before outbox_exception_derive_gate() lowered it */
	int64		alone_through;
} OutboxKeyGate;

/* ---- rows */

extern void outbox_exception_set(OutboxException *x, OutboxExceptionColumn column, Datum value);
extern void outbox_exception_set_null(OutboxException *x, OutboxExceptionColumn column);
extern bool outbox_exception_has_status(const OutboxException *x, const char *status);

/* the key of a row */
extern OutboxKey outbox_exception_key(const OutboxException *x);

/* a row of a delivery that has none yet, all of it null but what says which one it is */
extern void outbox_exception_make(OutboxException *x, const OutboxKey *key, const pg_uuid_t *event_id,
								  int16 replay_no, int64 position);

/* The row of a delivery, locked.  False when there is none. */
extern bool outbox_exception_lock(int32 subscription_id, const pg_uuid_t *event_id, int16 replay_no,
								  OutboxPatience *patience, OutboxException *x);

/* is there one, in whatever state, or about to be? */
extern bool outbox_exception_exists(int32 subscription_id, const pg_uuid_t *event_id, int16 replay_no);

/* insert it, or put it in place of the one that is locked */
extern void outbox_exception_write(OutboxException *x);
extern void outbox_exception_delete(OutboxException *x);

/*
 * Is there a RETRY row of the lane that a claim may take?  replay: of the replays, else of the live ones.
 * busy, unless it is NULL: those that somebody has locked do not count, and set it.
 */
extern bool outbox_exception_has_due(const OutboxSubscription *s, int32 lane, bool replay, TimestampTz now, bool *busy);

/*
 * RETRY rows of a lane that are due, the first ones first, that nobody has locked and whose key has no older
 * unfinished one: each is shown to `take`, locked, until that returns false.  Looks at `most` rows at most.
 */
typedef bool (*OutboxDueVisitor) (OutboxException *x, void *argument);
extern void outbox_exception_walk_due(const OutboxSubscription *s, int32 lane, bool replay, TimestampTz now, int most,
									  OutboxDueVisitor take, void *argument);

/* append a failed attempt */
extern void outbox_exception_log_attempt(const OutboxException *x, TimestampTz failed_at, Datum worker,
										 const char *error_code);

/* ---- gates */

/* the ids of a subscription's gates begin there, and end before the next one's */
extern int64 outbox_exception_first_gate_id(int32 subscription_id);

extern bool outbox_exception_find_gate(const OutboxKey *key, OutboxKeyGate *gate);

/*
 * Let the key's oldest unfinished delivery hold its gate, or nobody.  A gate that is missing is made for it, or when
 * `make` is set, with everything up to `through` done.  lower: what is parked behind `through` is to be done, again.
 * False when there is no gate afterwards.
 */
extern bool outbox_exception_derive_gate(const OutboxKey *key, bool make, bool lower, int64 through,
										 OutboxKeyGate *gate);

/*
 * After a gate was lowered: what was parked and is completed, or has a row of its own, does not wait behind it.  Goes, up to where
 * the gate was.
 */
extern void outbox_exception_clear_parked(int32 subscription_id, const OutboxKeyGate *gate);

/* is there an unfinished delivery of the key behind this position? */
extern bool outbox_exception_has_later(const OutboxKey *key, int64 position);

/* other values of a gate */
extern void outbox_exception_write_gate(const OutboxKeyGate *gate);

/* deliveries that were given up, and whose gates have not heard of it; bounded */
extern void outbox_exception_sweep(const OutboxSubscription *s, int32 lane);

/* started deliveries of a lane that no lease holds: their handler's worker died.  They are due again. */
extern void outbox_exception_free_started(int32 subscription_id, int32 lane, TimestampTz now);

#endif							/* OUTBOX_EXCEPTION_H */
