/*
 * slots.h - the life of a process slot, and what keeps processes out of a database.
 *
 * free --reserve--> reserved --attach--> running --detach--> free
 *                   reserved --expire, terminate--> free (the process that starts late finds another generation)
 */
#ifndef OUTBOX_SLOTS_H
#define OUTBOX_SLOTS_H

#include "outbox.h"
#include "shmem.h"

typedef enum OutboxReservation
{
	RESERVED,
	RESERVE_LATER,				/* barred, or the databases must be read again first */
	RESERVE_FULL				/* no slot is free */
} OutboxReservation;

/* the launcher: take a free slot for a process it is about to register */
extern OutboxReservation outbox_slots_reserve(Oid database, OutboxProcessKind kind, int number, OutboxProcess **slot);

/* the process itself: false when its slot is not meant for it any more */
extern bool outbox_slots_attach(OutboxProcess *slot, uint32 generation);
extern void outbox_slots_detach(OutboxProcess *slot);
extern bool outbox_slots_is_attached(void); /* has this process ever been? */

/* ask the process of this generation to end; a slot whose process has not started yet is free at once */
extern void outbox_slots_terminate(OutboxProcess *slot, uint32 generation);

/* take the slot away from a process that is not there: it never started, or died without a word */
extern void outbox_slots_expire(OutboxProcess *slot, uint32 generation);

/* is the slot still used by this generation? */
extern bool outbox_slots_is_used(OutboxProcess *slot, uint32 generation);

/* Keep new processes out of a database; false when there is no room to write it down.  Nests. */
extern bool outbox_slots_bar(Oid database);
extern void outbox_slots_unbar(Oid database);

/*
 * End all processes of a database, except the caller when it is one, and wait
 * until they are gone; false when some are not within the time.  Interruptible.
 */
extern bool outbox_slots_stop_database(Oid database, int timeout_ms);

#endif							/* OUTBOX_SLOTS_H */
