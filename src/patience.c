/*
 * patience.c - wait for others, but not for long.
 *
 * A look again and again rather than a lock: no order of locks can make a cycle of it that
 * does not come apart by itself.
 */
#include "outbox.h"

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/proc.h"

#include "patience.h"
#include "settings.h"

#define FIRST_STEP_US	200
#define LAST_STEP_US	10000

static int64
limit_us(void)
{
	int64		limit = (int64) DeadlockTimeout * 1000 * 3 / 4;

	if (LockTimeout > 0)
		limit = Min(limit, (int64) LockTimeout * 1000);
	return limit;
}

void
outbox_patience_wait(OutboxPatience *patience)
{
	int64		now = outbox_settings_ticks();

	if (patience->until == 0)
	{
		patience->until = now + limit_us();
		patience->step = FIRST_STEP_US;
	}
	if (now >= patience->until)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("another transaction is settling events of this call"),
				 errdetail("It is still open after %d ms.", (int) (limit_us() / 1000)),
				 errhint("Nothing of the call has happened. Roll back and try again.")));
	patience->waited = true;
	/* not all in step, so that one of two that give way to each other comes first */
	pg_usleep((long) (patience->step * (0.5 + pg_prng_double(&pg_global_prng_state))));
	CHECK_FOR_INTERRUPTS();
	patience->step = Min(patience->step * 2, LAST_STEP_US);
}
