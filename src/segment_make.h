/* segment_make.h - the tables of a new segment. */
#ifndef OUTBOX_SEGMENT_MAKE_H
#define OUTBOX_SEGMENT_MAKE_H

#include "outbox.h"

/*
 * Make event_log_<name> and receipt_log_<name> for the ids [from, to), in this
 * transaction, as the extension's owner; or take those that a restore has brought.  The caller holds ShareUpdateExclusiveLock on
 * outbox.event_log and knows that the range is free.  has_receipts: of a segment whose events retention has dropped, only the
 * first one; the receipts are still there.
 */
extern void outbox_segment_make_tables(const char *name, const pg_uuid_t *from, const pg_uuid_t *to, bool has_receipts);

/* a table that came from a dump: let it go with its parent again, and not keep DROP EXTENSION from its work */
extern void outbox_segment_make_dependent(Oid relid, const char *parent);

#endif							/* OUTBOX_SEGMENT_MAKE_H */
