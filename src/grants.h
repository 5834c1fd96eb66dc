/* grants.h - give and take the rights that rights.c asks for. */
#ifndef OUTBOX_GRANTS_H
#define OUTBOX_GRANTS_H

#include "outbox.h"

typedef enum OutboxGrantKind
{
	GRANT_PUBLISHER,
	GRANT_WORKER,
	GRANT_OPERATOR,
	GRANT_MONITOR,
	OUTBOX_GRANT_KINDS
} OutboxGrantKind;

/*
 * Give a role the right, or take it, for each of the scopes (event type patterns, a subscription's
 * name; "" for a right that has none), with the privileges on our objects that go with it.
 * True when it was not as asked for already.  Opens a session of ours; the caller is not in SPI.
 */
extern bool outbox_grants_give(OutboxGrantKind kind, const char *role_name, char **scopes, int nscopes);
extern bool outbox_grants_take(OutboxGrantKind kind, const char *role_name, char **scopes, int nscopes);

/* give every role the privileges that go with its rights again, as an upgrade may have added objects */
extern void outbox_grants_reassert(void);

/*
 * Follow what has become of the roles: those renamed are known by their new name, those that are gone have no
 * rights, restored names are bound to the roles of this server.  Passes over when somebody
 * else is at it and `wait` is false.  In SPI and in our session.
 */
extern void outbox_grants_refresh(bool wait);

#endif							/* OUTBOX_GRANTS_H */
