/*
 * handler.h - run the code of other roles in this process: find the function,
 * become the role, call it under a time limit, and leave nothing behind.
 */
#ifndef OUTBOX_HANDLER_H
#define OUTBOX_HANDLER_H

#include "outbox.h"

#include <signal.h>

#include "executor/tuptable.h"
#include "fmgr.h"
#include "subscription.h"

typedef struct OutboxHandler
{
	Oid			role;
	Oid			function;
	bool		batch;			/* takes outbox.event[] */
	FmgrInfo	finfo;
	char	   *search_path;	/* what a session of the role would have */
} OutboxHandler;

/* why a subscription cannot run now; nothing of it is the fault of an event */
typedef struct OutboxProblem
{
	const char *code;			/* SQLSTATE */
	char	   *reason;
} OutboxProblem;

/* the delivery that a handler is called for: outbox.current_delivery() */
typedef struct OutboxCurrentDelivery
{
	const char *subscription;	/* NULL: no handler runs */
	pg_uuid_t	event_id;
	int			attempt;
	int			max_attempts;
	int			replay_no;
} OutboxCurrentDelivery;

/* what a handler asked for by fail_permanently() or retry_after(); counts only if that error came out */
typedef struct OutboxRequest
{
	int			sqlerrcode;		/* of the error that carries it; 0: nothing was asked for */
	char		code[OUTBOX_ERROR_CODE_MAX + 1];
	int64		delay;			/* us, of retry_after() */
	bool		count_attempt;
} OutboxRequest;

typedef enum OutboxInterruption
{
	INTERRUPTED_NOT,
	INTERRUPTED_TIME_LIMIT,		/* the handler's own */
	INTERRUPTED_DEADLINE,		/* the batch's: others may be waiting for its locks */
	INTERRUPTED_SHUTDOWN
} OutboxInterruption;

/*
 * True while a handler runs: SIGTERM then cancels it as a query cancel would, so that the worker can
 * give its leases back and end cleanly.  Read by the signal handler.
 */
extern PGDLLIMPORT volatile sig_atomic_t outbox_handler_running;

extern PGDLLIMPORT OutboxCurrentDelivery outbox_handler_current;
extern PGDLLIMPORT OutboxRequest outbox_handler_request;

/* needs a transaction; false with *problem when it cannot run */
extern bool outbox_handler_resolve(const OutboxSubscription *subscription, OutboxHandler *handler, OutboxProblem *problem);

/* once a process: its handlers see a session of this role, while the process stays who it is */
extern void outbox_handler_adopt_role(Oid role);

/* become the role for the rest of the transaction, with its search_path and no lock timeout */
extern void outbox_handler_enter(OutboxHandler *handler);

/* an event as outbox.event, from a row of the log */
extern Datum outbox_handler_event(TupleTableSlot *row);
extern Datum outbox_handler_event_array(Datum *events, int count);

/* the event's context, for publish() and current_setting() in the handler */
extern void outbox_handler_set_context(TupleTableSlot *row);

/* the tenant that the next calls are made for: "" for none; NULL: no setting tells it.  Must stay until they are over */
extern void outbox_handler_set_tenant(const char *tenant);

/*
 * Call the function within `limit` microseconds (0: no limit), at the end of which it is cancelled;
 * kind says whose limit it is.  Fires what it deferred.  Raises its errors.
 */
extern void outbox_handler_call(OutboxHandler *handler, Datum argument, int64 limit, OutboxInterruption kind);

/* before the commit, as the role: leave no cursor, listener or temporary table behind */
extern void outbox_handler_finish(void);

/* after the transaction, however it ended: session locks, prepared statements, settings */
extern void outbox_handler_clean(void);

/* does this transaction run as a handler's role?  What is logged meanwhile may hold its data */
extern bool outbox_handler_is_entered(void);

/* what cut the last call short */
extern OutboxInterruption outbox_handler_interruption(void);

extern void outbox_handler_init(void);	/* once a process: the timeout */

#endif							/* OUTBOX_HANDLER_H */
