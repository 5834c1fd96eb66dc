/*
 * subscription.c - the subscriptions of this database, as every process sees them.
 *
 * Read whole into one memory context, and thrown away whole when the table's
 * relcache entry is invalidated: whoever changes a row sends that message with
 * its commit.  A reader may be a moment behind; nothing rests on it (the
 * router covers a new subscription from its seam, a batch locks its lanes).
 */
#include "outbox.h"

#include "access/table.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "backoff.h"
#include "extension.h"
#include "session.h"
#include "store.h"
#include "subscription.h"

static MemoryContext cache_context = NULL;
static OutboxSubscription *cache = NULL;
static int	cache_count = 0;
static bool cache_valid = false;
static Oid	cache_relid = InvalidOid;
static uint64 cache_version = 0;

static OutboxStatement select_all = {
	"select subscription_id, subscription, event_types, handler, run_as, ordering, on_review, paused, lanes, first_lane, ordered_from,"
	" max_attempts, batch_size, backoff_base, backoff_factor, backoff_max, lease_duration, handler_timeout,"
	" start_at, permanent_errors, transient_errors, seam::text, seam_xid::text, seam_incarnation,"
	" coalesce((select b.role_id from outbox.run_as_role b where b.subscription_id = s.subscription_id),"
	" (select " OUTBOX_RUN_AS_GONE " from outbox.run_as_gone g where g.subscription_id = s.subscription_id))"
	" from outbox.subscription s order by subscription_id"
};

static void
forget_cache(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == cache_relid)
		cache_valid = false;
}

static char **
read_array(Datum value, bool isnull, int *count)
{
	Datum	   *elements;
	char	  **strings;

	*count = 0;
	if (isnull)
		return NULL;
	deconstruct_array(DatumGetArrayTypeP(value), TEXTOID, -1, false, TYPALIGN_INT, &elements, NULL, count);
	strings = palloc(sizeof(char *) * Max(*count, 1));
	for (int i = 0; i < *count; i++)
		strings[i] = TextDatumGetCString(elements[i]);
	return strings;
}

/* One row of select_all, into the current memory context. */
static void
read_subscription(OutboxSubscription *s, uint64 row)
{
	bool		isnull;
	Datum		value;

#define FIELD(column) outbox_store_value(row, column, &isnull)
	s->id = DatumGetInt32(FIELD(1));
	s->name = outbox_store_text(row, 2);
	value = FIELD(3);
	s->patterns = read_array(value, isnull, &s->npatterns);
	s->handler = outbox_store_text(row, 4);
	s->run_as = outbox_store_text(row, 5);
	s->ordered = strcmp(outbox_store_text(row, 6), "key") == 0;
	s->block_on_review = strcmp(outbox_store_text(row, 7), "block") == 0;
	s->paused = DatumGetBool(FIELD(8));
	s->lanes = DatumGetInt32(FIELD(9));
	s->first_lane = DatumGetInt32(FIELD(10));
	s->ordered_from = DatumGetInt32(FIELD(11));
	s->max_attempts = DatumGetInt32(FIELD(12));
	s->batch_size = DatumGetInt32(FIELD(13));
	s->backoff_base = outbox_backoff_interval_us(DatumGetIntervalP(FIELD(14)));
	s->backoff_factor = DatumGetFloat8(FIELD(15));
	s->backoff_max = outbox_backoff_interval_us(DatumGetIntervalP(FIELD(16)));
	s->lease_duration = outbox_backoff_interval_us(DatumGetIntervalP(FIELD(17)));
	s->handler_timeout = outbox_backoff_interval_us(DatumGetIntervalP(FIELD(18)));
	value = FIELD(19);
	s->has_start_at = !isnull;
	s->start_at = isnull ? 0 : DatumGetTimestampTz(value);
	value = FIELD(20);
	s->permanent_errors = read_array(value, isnull, &s->npermanent);
	value = FIELD(21);
	s->transient_errors = read_array(value, isnull, &s->ntransient);
	s->seam = outbox_snapshot_parse(outbox_store_text(row, 22));
	s->seam_xid = strtou64(outbox_store_text(row, 23), NULL, 10);
	s->seam_incarnation = DatumGetInt32(FIELD(24));
	value = FIELD(25);
	s->role = isnull ? InvalidOid : DatumGetObjectId(value);
#undef FIELD
}

static void
load_cache(void)
{
	MemoryContext caller = CurrentMemoryContext;
	uint64		n;

	if (cache_context == NULL)
	{
		cache_context = AllocSetContextCreate(TopMemoryContext, "outbox subscriptions", ALLOCSET_DEFAULT_SIZES);
		CacheRegisterRelcacheCallback(forget_cache, (Datum) 0);
	}
	MemoryContextReset(cache_context);
	cache = NULL;
	cache_count = 0;
	cache_relid = outbox_extension_relid("subscription");
	cache_valid = true;			/* before reading: an invalidation meanwhile counts */

	SPI_connect();
	/* not by a snapshot that may be older than what invalidated the cache */
	n = outbox_store_run_latest(&select_all, NULL, NULL, 0);
	MemoryContextSwitchTo(cache_context);
	cache = palloc0(sizeof(OutboxSubscription) * Max(n, 1));
	for (uint64 i = 0; i < n; i++)
		read_subscription(&cache[i], i);
	cache_count = (int) n;
	cache_version++;
	MemoryContextSwitchTo(caller);
	SPI_finish();
}

int
outbox_subscription_all(OutboxSubscription **subscriptions)
{
	if (!cache_valid)
	{
		PG_TRY();
		{
			load_cache();
		}
		PG_CATCH();
		{
			cache_valid = false;
			PG_RE_THROW();
		}
		PG_END_TRY();
	}
	*subscriptions = cache;
	return cache_count;
}

static char **
copy_strings(char **strings, int count)
{
	char	  **copy = palloc(sizeof(char *) * Max(count, 1));

	for (int i = 0; i < count; i++)
		copy[i] = pstrdup(strings[i]);
	return copy;
}

/* Without the patterns and the seam, which are the router's business. */
OutboxSubscription *
outbox_subscription_copy(const OutboxSubscription *s)
{
	OutboxSubscription *copy = palloc(sizeof(OutboxSubscription));

	*copy = *s;
	copy->npatterns = 0;
	copy->patterns = NULL;
	copy->seam = NULL;
	copy->name = pstrdup(s->name);
	copy->handler = s->handler ? pstrdup(s->handler) : NULL;
	copy->run_as = s->run_as ? pstrdup(s->run_as) : NULL;
	copy->permanent_errors = copy_strings(s->permanent_errors, s->npermanent);
	copy->transient_errors = copy_strings(s->transient_errors, s->ntransient);
	return copy;
}

OutboxSubscription *
outbox_subscription_find(int32 id, const char *name)
{
	OutboxSubscription *all;
	int			n;

	AcceptInvalidationMessages();
	if (cache_valid)
		n = outbox_subscription_all(&all);
	else
	{
		OutboxSession session;

		outbox_session_enter(&session);
		n = outbox_subscription_all(&all);
		outbox_session_leave(&session);
	}
	for (int i = 0; i < n; i++)
	{
		if (id != 0 ? all[i].id == id : strcmp(all[i].name, name) == 0)
			return outbox_subscription_copy(&all[i]);
	}
	return NULL;
}

bool
outbox_subscription_holds(const OutboxSubscription *s, Snapshot snapshot)
{
	OutboxScan	scan;
	bool		holds = false;
	bool		isnull;

	outbox_store_begin_scan(&scan, outbox_extension_relid("subscription"), outbox_extension_relid("subscription_pkey"),
							snapshot, 1);
	outbox_store_set_key(&scan, 0, BTEqualStrategyNumber, Int32GetDatum(s->id));
	outbox_store_rescan(&scan);
	if (outbox_store_next(&scan, true))
	{
		TupleDesc	descriptor = RelationGetDescr(scan.rel);
		Datum		handler = slot_getattr(scan.slot, SPI_fnumber(descriptor, "handler"), &isnull);

		holds = isnull ? s->handler == NULL : s->handler != NULL && strcmp(TextDatumGetCString(handler), s->handler) == 0;
		holds &= !DatumGetBool(slot_getattr(scan.slot, SPI_fnumber(descriptor, "paused"), &isnull));
	}
	outbox_store_end_scan(&scan);
	return holds;
}

uint64
outbox_subscription_version(void)
{
	return cache_valid ? cache_version : 0;
}

void
outbox_subscription_changed(void)
{
	CacheInvalidateRelcacheByRelid(outbox_extension_relid("subscription"));
}
