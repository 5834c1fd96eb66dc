/*
 * segment.h - the segments of the log and of the receipts.
 *
 * A segment covers a range of event ids, [from, to).  Both tables of a segment
 * are made together.  Segments are found by id range, never by name.
 */
#ifndef OUTBOX_SEGMENT_H
#define OUTBOX_SEGMENT_H

#include "outbox.h"

#include "utils/relcache.h"
#include "utils/snapshot.h"

typedef struct OutboxSegment
{
	pg_uuid_t	from;
	pg_uuid_t	to;
	bool		sealed;
	bool		kept;			/* its events are in event_log_kept, as far as they are kept */
	Oid			event_log;		/* relation of events */
	Oid			event_log_pk;	/* its index on event_id */
	Oid			event_log_xid;	/* its index on xid; none of event_log_kept */
	Oid			receipt_log;	/* relation of receipts; its primary key is (event_id, subscription_id, replay_no) */
	Oid			receipt_log_pk;
} OutboxSegment;

/*
 * The segment that holds an id; remembered per backend.  Both its tables are locked for reading
 * until the transaction ends.  For an id whose segment retention has dropped: the tables of
 * what was kept, and the gap that the id lies in.
 */
extern void outbox_segment_find(const pg_uuid_t *id, OutboxSegment *segment);

/* the same for somebody who writes receipts and reads no event: only that table is locked, for writing */
extern void outbox_segment_find_receipts(const pg_uuid_t *id, OutboxSegment *segment);

/* the same for one that was listed; false when retention has taken its events out of the log since */
extern bool outbox_segment_hold(const OutboxSegment *segment);

/*
 * When an event is not there, it may be one that was kept of a segment which was made anew, as the clock went back to its time:
 * its row is to be looked for again, where `segment` leads to now; false when that has been done.
 */
extern bool outbox_segment_turn_to_kept(OutboxSegment *segment);

/* with which to read it: what was moved away from a segment is there, whatever the active snapshot */
extern Snapshot outbox_segment_snapshot(const OutboxSegment *segment);

/*
 * The same for a publisher, opened with RowExclusiveLock, and reopened when it was
 * sealed.  Its transaction has a transaction id already.
 */
extern Relation outbox_segment_open_for_write(const pg_uuid_t *id, OutboxSegment *segment);

/*
 * All segments that have their events, oldest first, palloc'd; with unsealed_only those that a
 * transaction may still write to: not sealed, or of a range that ended less than 2 h ago.
 */
extern int	outbox_segment_list(bool unsealed_only, OutboxSegment **segments);

/*
 * Make the segment of an id in this transaction, or open it again; false when the lock
 * was not to be had at once and `wait` is false.
 */
extern bool outbox_segment_provide(const pg_uuid_t *id, bool wait);

/* what the active snapshot sees of the segments, outbox_segment_list() will know at least */
extern void outbox_segment_refresh(void);

/* make the segments of the next `days`, one a call; true when one was made (call again in a new transaction) */
extern bool outbox_segment_make_ahead(int days);

/* those that came from a dump, or with an upgraded cluster, go with the extension again when it is dropped */
extern void outbox_segment_adopt_all(void);

/*
 * Mark what is past and written by nobody any more as sealed, given that the router has routed all before
 * `horizon`; true when there is more to do in a new transaction.
 */
extern bool outbox_segment_seal(uint64 horizon_xid);

/* whoever changes outbox.segment holds this lock, false when it is not to be had at once, and tells of it */
extern bool outbox_segment_lock_changes(void);
extern void outbox_segment_announce_change(void);

/*
 * The highest event id in the log that is at most an hour ahead of the clock, whether
 * visible or not; false when there is none.
 */
extern bool outbox_segment_highest_id(pg_uuid_t *id);

#endif							/* OUTBOX_SEGMENT_H */
