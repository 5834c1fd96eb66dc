/*
 * operator.h - what the calls of people have in common: arguments, the
 * subscription they name, and writing down who did it.
 */
#ifndef OUTBOX_OPERATOR_H
#define OUTBOX_OPERATOR_H

#include "outbox.h"

#include "fmgr.h"
#include "utils/array.h"

/* argument n, a subscription's name: an error unless it is one; palloc'd */
extern char *outbox_operator_get_subscription(FunctionCallInfo fcinfo, int n);

/* argument n, which must not be null */
extern Datum outbox_operator_get_required(FunctionCallInfo fcinfo, int n, const char *name);

/* a list, as an argument of that name: 22023 for an array of more dimensions, 22004 when it has a null */
extern ArrayType *outbox_operator_check_list(Datum value, const char *name);

/* raise 42704 */
OUTBOX_NORETURN extern void outbox_operator_report_unknown(const char *subscription);

/* its number; 42704 when there is none.  In SPI and in our session */
extern int32 outbox_operator_find_subscription(const char *subscription);

/* a row of outbox.operator_entry; event_id and reason may be NULL.  In SPI and in our session */
extern void outbox_operator_record(Oid role, const char *action, const char *subscription,
								   const pg_uuid_t *event_id, const char *reason);

/* the same for a call that moves many deliveries: how many, and which were asked for (may be NULL) */
extern void outbox_operator_record_many(Oid role, const char *action, const char *subscription, int64 events,
										const char *detail);

#endif							/* OUTBOX_OPERATOR_H */
