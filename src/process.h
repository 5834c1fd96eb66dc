/*
 * process.h - what router and worker have in common: start and end, signals,
 * the check that the extension is there, rounds that survive errors, waiting.
 */
#ifndef OUTBOX_PROCESS_H
#define OUTBOX_PROCESS_H

#include "outbox.h"
#include "shmem.h"

/* what a process does over and over; kept between rounds */
typedef struct OutboxTask
{
	const char *activity;		/* for pg_stat_activity */

	/* a round: milliseconds until the next is due; may be negative, with a meaning of its own */
	long		(*run) (OutboxProcess *self);

	/* after an error, outside of a transaction; may be NULL */
	void		(*recover) (OutboxProcess *self);

	int			failures;		/* in a row */
	uint64		retry_at;		/* outbox_process_clock(); 0: at once */
	uint64		reported_at;	/* when the last error was logged, and which it was */
	uint32		reported_hash;
} OutboxTask;

typedef enum OutboxPresence
{
	PRESENCE_YES,
	PRESENCE_NO,				/* the extension is not installed (any more) */
	PRESENCE_UNSURE				/* a transaction that may drop it is open: do nothing for now */
} OutboxPresence;

/* attach to the slot, connect, pin the session; does not return when the process is not wanted any more */
extern OutboxProcess *outbox_process_begin(Datum argument, bool synchronous_commit);

OUTBOX_NORETURN extern void outbox_process_end(OutboxProcess *self, OutboxProcessEnd end);

/* was SIGTERM received? */
extern bool outbox_process_is_asked_to_end(void);

/* looked up once a poll interval, and whenever a relation has changed */
extern OutboxPresence outbox_process_look_for_extension(void);

/*
 * A round of the task, which an error does not leave: it is logged, and the
 * task rests for a growing while.  Returns what the round returned, or the rest.
 */
extern long outbox_process_attempt(OutboxTask *task, OutboxProcess *self);

/* wait for the latch or the timeout (ms; 0: only see to signals) */
extern void outbox_process_wait(OutboxProcess *self, long timeout);

/* milliseconds of a clock that is never set, the same in all processes */
extern uint64 outbox_process_clock(void);

#endif							/* OUTBOX_PROCESS_H */
