/* row_event.h - the event that a changed row makes, as the arguments of its trigger say. */
#ifndef OUTBOX_ROW_EVENT_H
#define OUTBOX_ROW_EVENT_H

#include "outbox.h"

#include "commands/trigger.h"
#include "fmgr.h"

#include "guard.h"

/*
 * Fill in what the row says of its event: the type, the payload, key, aggregate, tenant; all else is null.  False when it
 * makes none: an update that leaves the columns of "changed" as they are.  What the arguments mean is remembered
 * in flinfo.
 */
extern bool outbox_row_event_fill(const TriggerData *trigger, FmgrInfo *flinfo, OutboxDraft *draft);

#endif							/* OUTBOX_ROW_EVENT_H */
