/*
 * children.h - one process that the launcher keeps running: started, watched,
 * asked to end, and how long to wait before the next one takes its place.
 */
#ifndef OUTBOX_CHILDREN_H
#define OUTBOX_CHILDREN_H

#include "outbox.h"

#include "postmaster/bgworker.h"

#include "shmem.h"

/* as the number of a child: the router; workers count from 1 */
#define OUTBOX_ROUTER 0

typedef struct OutboxChild
{
	OutboxProcess *slot;		/* NULL: none */
	uint32		generation;
	BackgroundWorkerHandle *handle; /* NULL: adopted from an earlier launcher */
	uint64		started_at;		/* all times by outbox_process_clock() */
	uint64		asked_at;		/* to end; 0: not */
	uint64		start_at;		/* the next one not before */
	int			failures;		/* in a row */
} OutboxChild;

typedef enum OutboxStart
{
	START_DONE,
	START_LATER,				/* not now, whoever is in the way will wake the launcher */
	START_NO_SLOT				/* the server has no slot left */
} OutboxStart;

extern OutboxStart outbox_children_start(OutboxChild *child, Oid database, const char *database_name, int number);

/* one that an earlier launcher has started */
extern void outbox_children_adopt(OutboxChild *child, OutboxProcess *slot);

/* has a running child ended, or could it not be started?  Then it has no slot any more, and *end says why. */
extern bool outbox_children_has_ended(OutboxChild *child, OutboxProcessEnd *end, bool *short_lived);

/* after its end: let time pass, at most rest_max ms, longer with each failure in a row */
extern void outbox_children_rest(OutboxChild *child, bool healthy, uint64 rest_max);

extern void outbox_children_ask_to_end(OutboxChild *child);

/* when the launcher has to look by the clock alone: the earliest that was asked for since the last reset; 0: none */
extern void outbox_children_look_again_at(uint64 at);
extern uint64 outbox_children_next_look(void);
extern void outbox_children_reset_next_look(void);

#endif							/* OUTBOX_CHILDREN_H */
