/*
 * rights.c - who may publish which event types, work which subscription, and act as an operator.
 *
 * So far EXECUTE on the functions decides, which nobody but the extension's owner has
 * unless it is granted.
 */
#include "outbox.h"

#include "rights.h"

void
outbox_rights_require_publisher(Oid role, const char *event_type)
{
}

void
outbox_rights_require_worker(Oid role, int32 subscription_id, const char *subscription)
{
}

void
outbox_rights_require_operator(Oid role)
{
}
