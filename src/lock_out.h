/* lock_out.h - before the extension is dropped: wait for its users without deadlock. */
#ifndef OUTBOX_LOCK_OUT_H
#define OUTBOX_LOCK_OUT_H

#include "outbox.h"

/* Lock all relations of the schema exclusively until the end of the transaction, as far as possible in the time. */
extern void outbox_lock_out_users(Oid schema, int timeout_ms);

#endif							/* OUTBOX_LOCK_OUT_H */
