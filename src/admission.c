/*
 * admission.c - what publish() and its like let in.
 *
 * Whatever way an application's event comes, it passes here; only the extension's own events do not.
 */
#include "outbox.h"

#include "utils/builtins.h"

#include "admission.h"
#include "rights.h"
#include "tenant.h"

void
outbox_admission_check(Oid role, OutboxDraft *draft)
{
	outbox_tenant_apply(role, draft);
	outbox_guard_check(draft);
	outbox_rights_require_publisher(role, text_to_cstring(DatumGetTextPP(draft->values[EV_EVENT_TYPE])));
}
