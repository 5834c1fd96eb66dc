/* tenant.h - whose an event is, where a setting tells the tenant of a session. */
#ifndef OUTBOX_TENANT_H
#define OUTBOX_TENANT_H

#include "outbox.h"
#include "guard.h"

/*
 * Under outbox.tenant_setting: the draft's tenant is the session's; OB002 when it names another one, or when the
 * session names none and the role is not one of all tenants.  Before outbox_guard_check().
 */
extern void outbox_tenant_apply(Oid role, OutboxDraft *draft);

/*
 * Whose the messages are that this session takes from elsewhere: its tenant as text, empty for none; OB002 when it
 * names none and the role is not one of all tenants.
 */
extern Datum outbox_tenant_of_messages(Oid role);

/* may this session see what is the tenant's?  tenant: text, empty for none, or 0 */
extern bool outbox_tenant_is_visible(Datum tenant);

/* the same of the tenant of an event; one that is gone from the log is nobody's */
extern bool outbox_tenant_event_is_visible(const pg_uuid_t *id);

/* the tenant of an event as text, palloc'd, or 0 for none; also 0 when the event is gone */
extern Datum outbox_tenant_find(const pg_uuid_t *id);

/* may it see what is of no tenant in particular? */
extern bool outbox_tenant_sees_all(void);

#endif							/* OUTBOX_TENANT_H */
