/* procedure.h - what the procedures that wait have in common: drain() and wait(). */
#ifndef OUTBOX_PROCEDURE_H
#define OUTBOX_PROCEDURE_H

#include "outbox.h"

#include "fmgr.h"

#include "extension.h"

/* an error inside of a transaction block, or when called by a function: it would hold a snapshot, and see nothing new */
extern void outbox_procedure_require_autocommit(FunctionCallInfo fcinfo, const char *procedure);

/* argument n, "timeout": microseconds, from 0 to 1 day */
extern int64 outbox_procedure_get_timeout(FunctionCallInfo fcinfo, int n);

/* the incarnation at hand; an error when deliveries are held */
extern void outbox_procedure_refuse_held(OutboxIncarnation *incarnation);

#endif							/* OUTBOX_PROCEDURE_H */
