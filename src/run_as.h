/* run_as.h - which role of this server a subscription runs as, or belongs to when it has no handler. */
#ifndef OUTBOX_RUN_AS_H
#define OUTBOX_RUN_AS_H

#include "outbox.h"

typedef enum OutboxRunAsState
{
	RUN_AS_KNOWN,
	RUN_AS_NOBODY,				/* there is no role of that name; there may be, after a restore */
	RUN_AS_DROPPED				/* the role it was given is gone, whoever has its name now */
} OutboxRunAsState;

/* the role of a binding (InvalidOid: none yet, the name is whose it is now) and a name; it, or InvalidOid */
extern OutboxRunAsState outbox_run_as_find(Oid bound, const char *name, Oid *role);

/* the role a subscription is bound to, or InvalidOid.  By what is committed now; in SPI and in our session */
extern Oid	outbox_run_as_read(int32 subscription_id);

/* bind it to a role.  The subscription's row is locked, or new */
extern void outbox_run_as_bind(int32 subscription_id, Oid role);

/*
 * Follow what has become of the roles: renamed ones are known by their new name, restored names are bound to the roles
 * of this server.  Passes over subscriptions that somebody is changing.  In SPI and in our session.
 */
extern void outbox_run_as_refresh(void);

#endif							/* OUTBOX_RUN_AS_H */
