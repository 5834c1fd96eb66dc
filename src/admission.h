/* admission.h - what publish() and its like let in. */
#ifndef OUTBOX_ADMISSION_H
#define OUTBOX_ADMISSION_H

#include "outbox.h"
#include "guard.h"

/* All that is asked of one event: whose it is, what it holds, and whether the role may publish its type. */
extern void outbox_admission_check(Oid role, OutboxDraft *draft);

#endif							/* OUTBOX_ADMISSION_H */
