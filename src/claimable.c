/*
 * claimable.c - is there something to claim?
 *
 * What claim() would find, asked without taking anything: entries beyond a lane's cursor, retries that are
 * due, keys that are open again.  A few index probes a lane, whatever lies beside.
 */
#include "outbox.h"

#include "catalog/pg_type.h"
#include "utils/timestamp.h"

#include "claimable.h"
#include "store.h"

/* $2: now, $3: a key does not wait for a review.  Lanes of the oldest generation only */
static OutboxStatement select_lane_with_work = {
	"select 1 from outbox.lane l where l.subscription_id = $1"
	" and l.base = (select min(o.base) from outbox.lane o where o.subscription_id = $1)"
	" and ((select e.position from outbox.lane_entry e where e.subscription_id = l.subscription_id and e.lane = l.lane"
	"  order by e.position desc limit 1)"
	"  > coalesce((select c.position from outbox.lane_cursor c where c.subscription_id = l.subscription_id"
	"  and c.lane = l.lane order by c.position desc limit 1), l.base)"
	" or exists (select from outbox.delivery_exception x where x.subscription_id = l.subscription_id"
	"  and x.lane = l.lane and x.status = 'RETRY' and x.next_attempt_at <= $2)"
	" or exists (select from outbox.gate g where g.subscription_id = l.subscription_id and g.lane = l.lane"
	"  and g.held_by is null"
	"  and exists (select from outbox.parked p where p.gate_id = g.gate_id and p.position > g.through))"
	" or exists (select from outbox.delivery_exception x, outbox.gate g where x.subscription_id = l.subscription_id"
	"  and x.lane = l.lane and x.status = 'DISCARDED' and not x.gate_released"
	"  and g.subscription_id = x.subscription_id and g.lane = x.lane and g.held_by = x.event_id"
	"  and g.tenant_id = x.tenant_id and g.event_key = x.event_key"
	"  and exists (select from outbox.parked p where p.gate_id = g.gate_id and p.position > g.through))"
	" or ($3 and exists (select from outbox.gate g, outbox.delivery_exception x"
	"  where g.subscription_id = l.subscription_id and g.lane = l.lane and x.subscription_id = g.subscription_id"
	"  and x.event_id = g.held_by and x.status = 'REVIEW_REQUIRED'"
	"  and exists (select from outbox.parked p where p.gate_id = g.gate_id and p.position > g.through))))"
	" limit 1",
	3, {INT4OID, TIMESTAMPTZOID, BOOLOID}
};

static OutboxStatement select_next_due = {
	"select min(due.next_attempt_at) from outbox.lane l cross join lateral ("
	" select x.next_attempt_at from outbox.delivery_exception x where x.subscription_id = l.subscription_id"
	" and x.lane = l.lane and x.status = 'RETRY' order by x.next_attempt_at limit 1) due"
	" where l.subscription_id = $1",
	1, {INT4OID}
};

bool
outbox_claimable_look(const OutboxSubscription *subscription, TimestampTz now, TimestampTz *next_due)
{
	Datum		args[3] = {
		Int32GetDatum(subscription->id), TimestampTzGetDatum(now), BoolGetDatum(!subscription->block_on_review)
	};
	Datum		due;
	bool		isnull;

	if (subscription->paused)
		return false;
	if (outbox_store_run(&select_lane_with_work, args, NULL, 1) > 0)
		return true;
	(void) outbox_store_run(&select_next_due, args, NULL, 1);
	due = outbox_store_value(0, 1, &isnull);
	if (!isnull)
		*next_due = Min(*next_due, DatumGetTimestampTz(due));
	return false;
}
