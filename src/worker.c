/*
 * worker.c - the process that runs batches of SQL handlers.
 *
 * outbox.workers of them for each database; dispatch.c does the work.  It ends
 * cleanly when asked (leases given back, no attempt used), and when another role's
 * handlers are due: what a role leaves in a session must not meet another one.
 */
#include "outbox.h"

#include "miscadmin.h"

#include "dispatch.h"
#include "process.h"
#include "settings.h"
#include "shmem.h"
#include "worker.h"

#define LEAVE_MS			2000	/* less than the grace of SIGTERM */
#define LEAVE_AGAIN_MS		10

static long dispatch(OutboxProcess *self);
static void give_back(OutboxProcess *self);
static long give_back_task(OutboxProcess *self);
OUTBOX_NORETURN static void leave(OutboxProcess *self, OutboxProcessEnd end);

static bool has_given_back = false;
static OutboxTask dispatching = {.activity = "dispatching", .run = dispatch, .recover = give_back};
static OutboxTask leaving = {.activity = "giving leases back", .run = give_back_task};

void
outbox_worker_main(Datum argument)
{
	OutboxProcess *self = outbox_process_begin(argument, true);

	while (!outbox_process_is_asked_to_end())
	{
		long		timeout = outbox_poll_interval;
		OutboxPresence presence = outbox_process_look_for_extension();

		if (presence == PRESENCE_NO)
			outbox_process_end(self, END_ABSENT);
		if (presence == PRESENCE_YES)
			timeout = outbox_process_attempt(&dispatching, self);
		if (timeout < 0)
			leave(self, END_REPLACED);
		outbox_process_wait(self, timeout);
	}
	leave(self, END_ASKED);
}

/*
 * The cancel that ended a handler must not end this.  Another worker may have a lane of ours locked for a moment, to see
 * whether it may take it: a lease that stayed ours would look as if we had died, and use an attempt.
 */
static void
leave(OutboxProcess *self, OutboxProcessEnd end)
{
	uint64		until = outbox_process_clock() + LEAVE_MS;

	QueryCancelPending = false;
	for (;;)
	{
		long		rest = outbox_process_attempt(&leaving, self);

		if (has_given_back || outbox_process_look_for_extension() == PRESENCE_NO || outbox_process_clock() >= until)
			break;
		outbox_process_wait(self, Max(LEAVE_AGAIN_MS, Min(rest, LEAVE_MS)));
	}
	outbox_process_end(self, end);
}

static long
dispatch(OutboxProcess *self)
{
	return outbox_dispatch_round(self);
}

/* What cannot be given back remains ours, and is taken anew. */
static void
give_back(OutboxProcess *self)
{
	(void) outbox_dispatch_give_back(self);
}

static long
give_back_task(OutboxProcess *self)
{
	has_given_back = outbox_dispatch_give_back(self);
	return has_given_back ? 0 : LEAVE_AGAIN_MS;
}
