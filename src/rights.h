/*
 * rights.h - who may publish which event types, work which subscription, act as an operator, and give rights.
 *
 * Each entry point asks before it does anything, with the role that called it (GetUserId() before
 * outbox_session_enter()).  All raise 42501 with a hint that names the grant that is missing.
 */
#ifndef OUTBOX_RIGHTS_H
#define OUTBOX_RIGHTS_H

#include "outbox.h"

extern void outbox_rights_require_publisher(Oid role, const char *event_type);

/* both also refuse a session of one tenant: what they let do reaches over all tenants */
extern void outbox_rights_require_worker(Oid role, int32 subscription_id, const char *subscription);
extern void outbox_rights_require_operator(Oid role);

/* who may give and take rights: superusers, and the extension's owner */
extern void outbox_rights_require_owner(Oid role);

/* is it the owner's, a worker's, an operator's or a monitor's, and so not of one tenant?  look_again: before saying no */
extern bool outbox_rights_spans_tenants(Oid role, bool look_again);

/* announce a change of outbox.role_grant or outbox.granted_role: every session looks again once this commits */
extern void outbox_rights_changed(void);

#endif							/* OUTBOX_RIGHTS_H */
