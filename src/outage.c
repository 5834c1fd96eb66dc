/*
 * outage.c - the outage guard, for external workers.
 *
 * The same rules as for handlers (settle.c): when events fail one after the other for a
 * reason that may pass, a claim hands out one event at growing distances, until
 * one completes.  The state is one row a subscription; an application that
 * settles may keep its transaction open, so nobody waits for that row: a
 * failure or success that meets it locked goes uncounted.
 */
#include "outbox.h"

#include <math.h>

#include "access/tableam.h"
#include "access/xact.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "alert.h"
#include "extension.h"
#include "outage.h"
#include "session.h"
#include "settle.h"
#include "shmem.h"
#include "store.h"

#define LEVEL_MAX	16

/* columns of outbox.subscription_state */
typedef enum StateColumn
{
	STATE_SUBSCRIPTION_ID,
	STATE_JOINED,
	STATE_CATCH_UP_FROM,
	STATE_CATCH_UP_TO,
	STATE_CATCH_UP_THROUGH,
	STATE_FAILURES,
	STATE_LAST_FAILED,
	STATE_OUTAGE_LEVEL,
	STATE_OUTAGE_UNTIL,
	STATE_STOPPED_AT,
	STATE_STOPPED_CODE,
	STATE_STOPPED_REASON,
	STATE_COLUMNS
} StateColumn;

/* the row, locked */
typedef struct StateRow
{
	OutboxScan	scan;
	TupleTableSlot *slot;
	ItemPointerData tid;
	Datum		values[STATE_COLUMNS];
	bool		nulls[STATE_COLUMNS];
	OutboxOutage outage;
} StateRow;

static void
begin_scan(OutboxScan *scan, int32 subscription_id)
{
	outbox_store_begin_scan(scan, outbox_extension_relid("subscription_state"),
							outbox_extension_relid("subscription_state_pkey"), SnapshotSelf, 1);
	outbox_store_set_key(scan, 0, BTEqualStrategyNumber, Int32GetDatum(subscription_id));
	outbox_store_rescan(scan);
}

static void
read_outage(TupleTableSlot *slot, OutboxOutage *outage)
{
	bool		isnull;
	Datum		until = slot_getattr(slot, STATE_OUTAGE_UNTIL + 1, &isnull);

	outage->until = isnull ? DT_NOBEGIN : DatumGetTimestampTz(until);
	outage->failures = DatumGetInt32(slot_getattr(slot, STATE_FAILURES + 1, &isnull));
	outage->level = DatumGetInt32(slot_getattr(slot, STATE_OUTAGE_LEVEL + 1, &isnull));
}

/*
 * Where this session has looked last, and found nothing: when all goes well, each acknowledgement would look again.  A
 * subscription that has had a handler meanwhile, whose workers keep the same row, has another version of the definitions.
 */
static struct
{
	OutboxDatabase *db;			/* NULL: nowhere */
	int32		subscription_id;
	uint64		definitions;
	uint32		changes;
}			quiet = {0};

static bool
is_quiet(const OutboxSubscription *s, OutboxDatabase *db, uint32 changes)
{
	return db != NULL && quiet.db == db && quiet.subscription_id == s->id && quiet.definitions != 0 &&
		quiet.definitions == outbox_subscription_version() && quiet.changes == changes;
}

/*
 * Has nobody the row just now, and is it the newest version still?  Whoever has replaced it between the scan and the question who
 * has it had counted his change before.
 */
static bool
is_untouched(OutboxScan *scan, bool held)
{
	return !held && table_tuple_satisfies_snapshot(scan->rel, scan->slot, SnapshotSelf);
}

void
outbox_outage_read(const OutboxSubscription *s, OutboxOutage *outage)
{
	OutboxDatabase *db = outbox_shmem_my_database();
	uint32		changes = db == NULL ? 0 : outbox_shmem_outage_changes(db);
	OutboxScan	scan;

	memset(outage, 0, sizeof(*outage));
	outage->until = DT_NOBEGIN;
	if (is_quiet(s, db, changes))
		return;
	begin_scan(&scan, s->id);
	if (outbox_store_next(&scan, true))
	{
		bool		held = outbox_store_is_held(scan.slot);

		read_outage(scan.slot, outage);
		outage->busy = outage->level > 0 && held;
		if (outage->level == 0 && outage->failures == 0 && is_untouched(&scan, held))
		{
			quiet.db = db;
			quiet.subscription_id = s->id;
			quiet.definitions = outbox_subscription_version();
			quiet.changes = changes;
		}
	}
	outbox_store_end_scan(&scan);
}

/* A time further off than any distance comes from a clock that was set back. */
bool
outbox_outage_holds(const OutboxOutage *outage, TimestampTz now)
{
	return outage->level > 0 && outage->until > now && outage->until <= now + OUTBOX_GUARD_DISTANCE_MAX;
}

static void
close_state(StateRow *row)
{
	ExecDropSingleTupleTableSlot(row->slot);
	outbox_store_end_scan(&row->scan);
}

/* False when it is not to be had just now; then there is nothing to close. */
static bool
open_state(StateRow *row, int32 subscription_id)
{
	begin_scan(&row->scan, subscription_id);
	row->slot = table_slot_create(row->scan.rel, NULL);
	if (outbox_store_next(&row->scan, true) &&
		outbox_store_lock(row->scan.rel, &row->scan.slot->tts_tid, LockTupleNoKeyExclusive, row->slot) == ROW_LOCKED)
	{
		slot_getallattrs(row->slot);
		row->tid = row->slot->tts_tid;
		memcpy(row->values, row->slot->tts_values, sizeof(row->values));
		memcpy(row->nulls, row->slot->tts_isnull, sizeof(row->nulls));
		read_outage(row->slot, &row->outage);
		return true;
	}
	close_state(row);
	return false;
}

static void
set(StateRow *row, StateColumn column, Datum value, bool isnull)
{
	row->values[column] = value;
	row->nulls[column] = isnull;
}

static void
write_state(StateRow *row)
{
	OutboxWriter *writer = outbox_store_open_writer(RelationGetRelid(row->scan.rel));
	OutboxDatabase *db = outbox_shmem_my_database();

	if (db != NULL)
		outbox_shmem_count_outage_change(db);
	set(row, STATE_FAILURES, Int32GetDatum(row->outage.failures), false);
	set(row, STATE_OUTAGE_LEVEL, Int32GetDatum(row->outage.level), false);
	set(row, STATE_OUTAGE_UNTIL, TimestampTzGetDatum(row->outage.until), row->outage.until == DT_NOBEGIN);
	outbox_store_replace(writer, &row->tid, row->values, row->nulls);
	outbox_store_close_writer(writer);
	CommandCounterIncrement();
}

static int64
distance(const OutboxSubscription *s, int level)
{
	return (int64) Min((double) s->backoff_base * pow(2, level), (double) Min(s->backoff_max, OUTBOX_GUARD_DISTANCE_MAX));
}

static void
tell(const OutboxSubscription *s)
{
	OutboxSession session;

	SPI_connect();
	outbox_session_enter(&session);
	outbox_alert_subscription_stopped(s, OUTBOX_CODE_OUTAGE);
	outbox_session_leave(&session);
	SPI_finish();
}

void
outbox_outage_note_failure(const OutboxSubscription *s, const pg_uuid_t *event_id, const OutboxVerdict *verdict,
						   TimestampTz now)
{
	StateRow	row;
	bool		begins = false;
	pg_uuid_t	id = *event_id;

	if (!verdict->may_pass || !open_state(&row, s->id))
		return;
	if (row.outage.level > 0 || row.nulls[STATE_LAST_FAILED] ||
		memcmp(DatumGetUUIDP(row.values[STATE_LAST_FAILED]), event_id, sizeof(pg_uuid_t)) != 0)
	{
		bool		acts = row.outage.level > 0 ||
		row.outage.failures + 1 >= (verdict->outage ? 1 : OUTBOX_GUARD_FAILURES);

		row.outage.failures = Min(row.outage.failures + 1, PG_INT16_MAX);
		if (acts && row.outage.until <= now)
		{
			begins = row.outage.level == 0;
			row.outage.until = now + distance(s, row.outage.level);
			row.outage.level = Min(row.outage.level + 1, LEVEL_MAX);
		}
		set(&row, STATE_LAST_FAILED, UUIDPGetDatum(&id), false);
		write_state(&row);
	}
	close_state(&row);
	if (begins)
		tell(s);
}

void
outbox_outage_note_success(const OutboxSubscription *s)
{
	OutboxOutage outage;
	StateRow	row;

	outbox_outage_read(s, &outage);
	if ((outage.failures == 0 && outage.level == 0) || !open_state(&row, s->id))
		return;
	row.outage.failures = row.outage.level = 0;
	row.outage.until = DT_NOBEGIN;
	set(&row, STATE_LAST_FAILED, (Datum) 0, true);
	write_state(&row);
	close_state(&row);
}

bool
outbox_outage_may_probe(const OutboxSubscription *s, TimestampTz now)
{
	StateRow	row;
	bool		may;

	if (!open_state(&row, s->id))
		return false;
	may = !outbox_outage_holds(&row.outage, now);
	if (may && row.outage.level > 0)
	{
		row.outage.until = now + distance(s, row.outage.level - 1);
		write_state(&row);
	}
	close_state(&row);
	return may;
}
