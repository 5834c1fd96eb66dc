/*
 * session.h - run our own SQL as the extension's owner, whatever the caller's
 * role, search_path and settings; and pin the settings of our processes.
 */
#ifndef OUTBOX_SESSION_H
#define OUTBOX_SESSION_H

#include "outbox.h"

typedef struct OutboxSession
{
	Oid			userid;
	int			sec_context;
	int			guc_level;
} OutboxSession;

/*
 * Between the two, the current user is the owner of our tables, with
 * SECURITY_LOCAL_USERID_CHANGE, and search_path, row_security and what else
 * our SQL depends on is ours.  An error in between needs no leave: the abort
 * of the (sub)transaction puts everything back.
 */
extern void outbox_session_enter(OutboxSession *session);
extern void outbox_session_leave(OutboxSession *session);

/* the owner of our tables; 42704 when the extension is not installed */
extern Oid	outbox_session_owner(void);

/*
 * For our processes, once after connecting: pin search_path, isolation,
 * timeouts, synchronous_commit (the router's may be off: a tick lost in a crash is made
 * again), and the rest, against ALTER DATABASE, ALTER ROLE and handlers.
 */
extern void outbox_session_pin(bool synchronous_commit);

/*
 * In our processes, before a transaction that runs handlers: what they find in place of the pinned
 * settings, until outbox_session_repin().  Our own SQL in that transaction goes between begin_own and end_own.
 */
extern void outbox_session_for_handlers(const char *search_path);
extern int	outbox_session_begin_own(void);
extern void outbox_session_end_own(int level);

/*
 * What search_path is by the server's configuration, without the settings of
 * databases and roles: those of the role we connect as are not our handlers'.
 * Remembered before connecting.
 */
extern void outbox_session_remember_search_path(void);
extern const char *outbox_session_default_search_path(void);

/* pin again whatever a handler's commit has left changed */
extern void outbox_session_repin(void);

#endif							/* OUTBOX_SESSION_H */
