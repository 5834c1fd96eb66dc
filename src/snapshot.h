/*
 * snapshot.h - pg_snapshot values taken apart, so that "was this transaction
 * visible then?" costs a comparison and, at most, a binary search.  Pure.
 */
#ifndef OUTBOX_SNAPSHOT_H
#define OUTBOX_SNAPSHOT_H

#include "outbox.h"

typedef struct OutboxSnapshot
{
	uint64		xmin;			/* all before it are over */
	uint64		xmax;			/* none from it on had begun */
	int			nxip;
	uint64	   *xip;			/* running, sorted */
} OutboxSnapshot;

/* from and to the text of pg_snapshot, "xmin:xmax:xip,xip"; palloc'd */
extern OutboxSnapshot *outbox_snapshot_parse(const char *text);
extern char *outbox_snapshot_text(const OutboxSnapshot *snapshot);

/* sees nothing at all: "1:1:" */
extern OutboxSnapshot *outbox_snapshot_empty(void);

/* was xid over (committed or not) when the snapshot was taken? */
extern bool outbox_snapshot_sees(const OutboxSnapshot *snapshot, uint64 xid);
extern bool outbox_snapshot_equals(const OutboxSnapshot *a, const OutboxSnapshot *b);

/* does `later` see all that `earlier` sees? */
extern bool outbox_snapshot_covers(const OutboxSnapshot *later, const OutboxSnapshot *earlier);

/* the same snapshot, but for one transaction that counts as running; palloc'd */
extern OutboxSnapshot *outbox_snapshot_without(const OutboxSnapshot *snapshot, uint64 xid);

#endif							/* OUTBOX_SNAPSHOT_H */
