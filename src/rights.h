/*
 * rights.h - who may publish which event types, work which subscription, and act as an operator.
 *
 * Each entry point asks before it does anything, with the role that called it (GetUserId() before
 * outbox_session_enter()).  All raise 42501 with a hint that names the grant that is missing.
 */
#ifndef OUTBOX_RIGHTS_H
#define OUTBOX_RIGHTS_H

#include "outbox.h"

extern void outbox_rights_require_publisher(Oid role, const char *event_type);
extern void outbox_rights_require_worker(Oid role, int32 subscription_id, const char *subscription);
extern void outbox_rights_require_operator(Oid role);

#endif							/* OUTBOX_RIGHTS_H */
