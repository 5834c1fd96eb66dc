/* retention.h - segments that are past their time: archived, and dropped but for what is still needed. */
#ifndef OUTBOX_RETENTION_H
#define OUTBOX_RETENTION_H

#include "outbox.h"

#include "maintenance.h"

/* steps of tasks, see maintenance.h; each looks at one segment */
extern bool outbox_retention_archive(OutboxPass *pass);
extern bool outbox_retention_drop_events(OutboxPass *pass);
extern bool outbox_retention_drop_receipts(OutboxPass *pass);

/* events, and then their receipts, that were kept for a delivery which is settled now */
extern bool outbox_retention_trim_kept(OutboxPass *pass);

#endif							/* OUTBOX_RETENTION_H */
