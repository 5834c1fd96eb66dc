/*
 * router.c - the process that moves newly committed events into the lanes.
 *
 * One for each database where the extension is.  The launcher starts it to find
 * out, too: a router that finds no extension says so in its slot and ends at once; one
 * that finds it enters itself in the database's entry, for the commit latch, and
 * only then do workers follow.  Routing goes first; upkeep has its own task, so that
 * trouble with one does not stop the other.
 */
#include "outbox.h"

#include "storage/latch.h"

#include "archiver.h"
#include "process.h"
#include "router.h"
#include "routing.h"
#include "settings.h"
#include "shmem.h"
#include "upkeep.h"

static void enter_database(OutboxProcess *self);
OUTBOX_NORETURN static void leave(OutboxProcess *self, OutboxProcessEnd end);
static long run_rounds(OutboxProcess *self);
static long route(OutboxProcess *self);
static void forget_routing(OutboxProcess *self);
static long keep_up(OutboxProcess *self);

static OutboxTask routing = {.activity = "routing", .run = route, .recover = forget_routing};
static OutboxTask upkeep = {.activity = "upkeep", .run = keep_up};

void
outbox_router_main(Datum argument)
{
	OutboxProcess *self = outbox_process_begin(argument, false);

	while (!outbox_process_is_asked_to_end())
	{
		long		timeout = outbox_poll_interval;
		OutboxPresence presence = outbox_process_look_for_extension();

		if (presence == PRESENCE_NO)
			leave(self, END_ABSENT);
		if (presence == PRESENCE_YES)
		{
			enter_database(self);
			timeout = run_rounds(self);
		}
		outbox_process_wait(self, timeout);
	}
	leave(self, END_ASKED);
}

/* Whoever waits for us to be gone wants the database for itself. */
static void
leave(OutboxProcess *self, OutboxProcessEnd end)
{
	outbox_archiver_stop();
	outbox_process_end(self, end);
}

/*
 * From now on commits wake us, and the launcher knows that workers are wanted.  Should there be two routers, the
 * one that routes is entered.
 */
static void
enter_database(OutboxProcess *self)
{
	OutboxDatabase *db = outbox_shmem_my_database();
	uint32		mine = self - outbox_shared->processes + 1;
	uint32		entered;

	if (db == NULL && (db = outbox_shmem_ensure_database(self->database)) == NULL)
		return;					/* found by the poll interval alone, until there is room */
	entered = pg_atomic_read_u32(&db->router_slot);
	if (entered != mine && (entered == 0 || outbox_routing_has_lock()) &&
		pg_atomic_compare_exchange_u32(&db->router_slot, &entered, mine))
		outbox_shmem_wake_launcher(false);
}

/* Upkeep has its turn when there is nothing to route, and at least once a poll interval. */
static long
run_rounds(OutboxProcess *self)
{
	static uint64 upkeep_at = 0;
	uint64		now = outbox_process_clock();
	long		timeout;

	pg_atomic_write_u64(&self->busy_since, outbox_settings_now());
	timeout = outbox_process_attempt(&routing, self);
	upkeep_at = Min(upkeep_at, now + outbox_poll_interval); /* the setting may have changed */
	if (now >= upkeep_at && !outbox_process_is_asked_to_end())
	{
		long		until_upkeep = outbox_process_attempt(&upkeep, self);

		upkeep_at = outbox_process_clock() + until_upkeep;
		timeout = Min(timeout, until_upkeep);
	}
	return timeout;
}

static long
route(OutboxProcess *self)
{
	return outbox_routing_round();
}

static void
forget_routing(OutboxProcess *self)
{
	outbox_routing_reset();
}

static long
keep_up(OutboxProcess *self)
{
	long		pause = outbox_upkeep_step();

	if (outbox_upkeep_archive_is_due())
		outbox_archiver_start();
	return pause;
}
