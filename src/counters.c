/*
 * counters.c - what is counted in shared memory.
 *
 * A table of slots, one a subscription, found by probing from the hash of its key.  Slots are
 * taken and given up under a lock that counting never needs: a key that is
 * there stays until it is forgotten, and what a slot holds are atomic numbers.
 */
#include "outbox.h"

#include <unistd.h>

#include "common/hashfn.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/atomics.h"
#include "storage/fd.h"
#include "storage/ipc.h"

#include "counters.h"

#define STAT_FILE	PGSTAT_STAT_PERMANENT_DIRECTORY "/outbox.stat"
#define STAT_MAGIC	UINT64CONST(0x6f7574626f780001) /* "outbox", form 1 */
#define OTHER_CODE	"other"

#define KEY_FREE		UINT64CONST(0)
#define KEY_FORGOTTEN	UINT64CONST(1)	/* probing goes on behind it */

typedef struct Slot
{
	pg_atomic_uint64 key;
	pg_atomic_uint64 totals[OUTBOX_TOTALS];
	pg_atomic_uint64 durations[OUTBOX_DURATIONS][OUTBOX_HISTOGRAM_BUCKETS];
	pg_atomic_uint32 ncodes;
	pg_atomic_uint64 failures[OUTBOX_COUNTED_CODES];
	char		codes[OUTBOX_COUNTED_CODES][OUTBOX_ERROR_CODE_MAX + 1];
} Slot;

typedef struct TypeSlot
{
	Oid			database;		/* InvalidOid: free; under the lock, as all of it */
	OutboxUnmatched type;
} TypeSlot;

typedef struct Counters
{
	LWLock	   *lock;			/* keys and codes of slots; types */
	Slot		slots[OUTBOX_COUNTED_SUBSCRIPTIONS];
	TypeSlot	types[OUTBOX_COUNTED_TYPES];
} Counters;

/* a slot in the file */
typedef struct SavedSlot
{
	uint64		key;
	OutboxCounts counts;
} SavedSlot;

static Counters *counters = NULL;
static Slot *last_slot = NULL;	/* found by this process last */

static void read_counters(void);
static void write_counters(int code, Datum arg);

/* ---------------------------------------------------------------- shared memory */

Size
outbox_counters_size(void)
{
	return MAXALIGN(sizeof(Counters));
}

static void
init_slot(Slot *slot)
{
	pg_atomic_init_u64(&slot->key, KEY_FREE);
	for (int i = 0; i < OUTBOX_TOTALS; i++)
		pg_atomic_init_u64(&slot->totals[i], 0);
	for (int d = 0; d < OUTBOX_DURATIONS; d++)
		for (int b = 0; b < OUTBOX_HISTOGRAM_BUCKETS; b++)
			pg_atomic_init_u64(&slot->durations[d][b], 0);
	pg_atomic_init_u32(&slot->ncodes, 0);
	for (int i = 0; i < OUTBOX_COUNTED_CODES; i++)
		pg_atomic_init_u64(&slot->failures[i], 0);
	memset(slot->codes, 0, sizeof(slot->codes));
}

void
outbox_counters_attach(void *place, LWLock *lock, bool found)
{
	counters = place;
	if (found)
		return;
	counters->lock = lock;
	for (int i = 0; i < OUTBOX_COUNTED_SUBSCRIPTIONS; i++)
		init_slot(&counters->slots[i]);
	memset(counters->types, 0, sizeof(counters->types));
	read_counters();
	if (!IsUnderPostmaster)
		on_shmem_exit(write_counters, (Datum) 0);
}

/* ---------------------------------------------------------------- finding a slot */

static uint64
key_of(Oid database, int32 subscription_id)
{
	return ((uint64) database << 32) | (uint32) subscription_id;
}

static int
first_place(uint64 key)
{
	return hash_bytes((const unsigned char *) &key, sizeof(key)) % OUTBOX_COUNTED_SUBSCRIPTIONS;
}

static Slot *
find_slot(uint64 key)
{
	int			place = first_place(key);

	for (int i = 0; i < OUTBOX_COUNTED_SUBSCRIPTIONS; i++)
	{
		Slot	   *slot = &counters->slots[(place + i) % OUTBOX_COUNTED_SUBSCRIPTIONS];
		uint64		there = pg_atomic_read_u64(&slot->key);

		if (there == key)
			return slot;
		if (there == KEY_FREE)
			return NULL;
	}
	return NULL;
}

/* With the lock held exclusively; NULL when all are taken. */
static Slot *
take_slot(uint64 key)
{
	int			place = first_place(key);
	Slot	   *found = find_slot(key);

	for (int i = 0; found == NULL && i < OUTBOX_COUNTED_SUBSCRIPTIONS; i++)
	{
		Slot	   *slot = &counters->slots[(place + i) % OUTBOX_COUNTED_SUBSCRIPTIONS];

		if (pg_atomic_read_u64(&slot->key) <= KEY_FORGOTTEN)
		{
			init_slot(slot);
			pg_write_barrier();
			pg_atomic_write_u64(&slot->key, key);
			found = slot;
		}
	}
	return found;
}

static Slot *
my_slot(int32 subscription_id)
{
	uint64		key = key_of(MyDatabaseId, subscription_id);

	if (last_slot != NULL && pg_atomic_read_u64(&last_slot->key) == key)
		return last_slot;
	last_slot = find_slot(key);
	if (last_slot == NULL)
	{
		LWLockAcquire(counters->lock, LW_EXCLUSIVE);
		last_slot = take_slot(key);
		LWLockRelease(counters->lock);
	}
	return last_slot;
}

/* ---------------------------------------------------------------- counting */

void
outbox_counters_add(int32 subscription_id, OutboxTotal total, uint64 n)
{
	Slot	   *slot = my_slot(subscription_id);

	if (slot != NULL)
		pg_atomic_fetch_add_u64(&slot->totals[total], n);
}

static void
add_duration(Slot *slot, OutboxDuration duration, int64 us)
{
	pg_atomic_fetch_add_u64(&slot->durations[duration][outbox_histogram_bucket(us)], 1);
}

void
outbox_counters_completed(int32 subscription_id, int64 handler_us, int64 to_start_us, int64 to_done_us)
{
	Slot	   *slot = my_slot(subscription_id);

	if (slot == NULL)
		return;
	pg_atomic_fetch_add_u64(&slot->totals[TOTAL_COMPLETED], 1);
	pg_atomic_fetch_add_u64(&slot->totals[TOTAL_HANDLER_US], Max(handler_us, 0));
	add_duration(slot, DURATION_HANDLER, handler_us);
	add_duration(slot, DURATION_TO_START, to_start_us);
	add_duration(slot, DURATION_TO_DONE, to_done_us);
}

/* Its place among the codes of the slot; the last place is for all that do not fit. */
static int
find_code(Slot *slot, const char *code)
{
	int			n = pg_atomic_read_u32(&slot->ncodes);

	pg_read_barrier();
	for (int i = 0; i < n; i++)
		if (strcmp(slot->codes[i], code) == 0)
			return i;
	return -1;
}

static int
take_code(Slot *slot, const char *code)
{
	int			place;

	LWLockAcquire(counters->lock, LW_EXCLUSIVE);
	place = find_code(slot, code);
	if (place < 0)
	{
		place = pg_atomic_read_u32(&slot->ncodes);
		if (place >= OUTBOX_COUNTED_CODES - 1)
		{
			place = OUTBOX_COUNTED_CODES - 1;
			code = OTHER_CODE;
		}
		strlcpy(slot->codes[place], code, sizeof(slot->codes[place]));
		pg_write_barrier();
		pg_atomic_write_u32(&slot->ncodes, place + 1);
	}
	LWLockRelease(counters->lock);
	return place;
}

void
outbox_counters_failed(int32 subscription_id, const char *code, bool review)
{
	Slot	   *slot = my_slot(subscription_id);
	int			place;

	if (slot == NULL)
		return;
	place = find_code(slot, code);
	if (place < 0)
		place = take_code(slot, code);
	pg_atomic_fetch_add_u64(&slot->failures[place], 1);
	pg_atomic_fetch_add_u64(&slot->totals[TOTAL_FAILED], 1);
	if (review)
		pg_atomic_fetch_add_u64(&slot->totals[TOTAL_REVIEW], 1);
}

/* Nobody listens to this type: the router says so once for many of them. */
void
outbox_counters_unmatched(const char *event_type, int n, TimestampTz at)
{
	TypeSlot   *found = NULL;
	TypeSlot   *oldest = &counters->types[0];

	outbox_counters_add(0, TOTAL_UNMATCHED, n);
	LWLockAcquire(counters->lock, LW_EXCLUSIVE);
	for (int i = 0; i < OUTBOX_COUNTED_TYPES && found == NULL; i++)
	{
		TypeSlot   *slot = &counters->types[i];

		if (slot->database == MyDatabaseId && strcmp(slot->type.event_type, event_type) == 0)
			found = slot;
		else if (oldest->database != InvalidOid &&
				 (slot->database == InvalidOid || slot->type.last_seen_at < oldest->type.last_seen_at))
			oldest = slot;
	}
	if (found == NULL)
	{
		found = oldest;
		found->database = MyDatabaseId;
		strlcpy(found->type.event_type, event_type, sizeof(found->type.event_type));
		found->type.events = 0;
	}
	found->type.events += n;
	found->type.last_seen_at = at;
	LWLockRelease(counters->lock);
}

void
outbox_counters_forget(Oid database)
{
	LWLockAcquire(counters->lock, LW_EXCLUSIVE);
	for (int i = 0; i < OUTBOX_COUNTED_SUBSCRIPTIONS; i++)
		if (pg_atomic_read_u64(&counters->slots[i].key) >> 32 == database)
			pg_atomic_write_u64(&counters->slots[i].key, KEY_FORGOTTEN);
	for (int i = 0; i < OUTBOX_COUNTED_TYPES; i++)
		if (counters->types[i].database == database)
			counters->types[i].database = InvalidOid;
	LWLockRelease(counters->lock);
}

void
outbox_counters_keep_only(int n, const int32 *subscription_ids)
{
	LWLockAcquire(counters->lock, LW_EXCLUSIVE);
	for (int i = 0; i < OUTBOX_COUNTED_SUBSCRIPTIONS; i++)
	{
		uint64		key = pg_atomic_read_u64(&counters->slots[i].key);
		bool		keep = key >> 32 != MyDatabaseId || (uint32) key == 0;

		for (int j = 0; j < n && !keep; j++)
			keep = (int32) (uint32) key == subscription_ids[j];
		if (!keep)
			pg_atomic_write_u64(&counters->slots[i].key, KEY_FORGOTTEN);
	}
	LWLockRelease(counters->lock);
}

/* ---------------------------------------------------------------- reading */

static void
copy_slot(OutboxCounts *counts, Slot *slot, uint64 key)
{
	memset(counts, 0, sizeof(*counts));
	counts->subscription_id = (int32) (uint32) key;
	for (int i = 0; i < OUTBOX_TOTALS; i++)
		counts->totals[i] = pg_atomic_read_u64(&slot->totals[i]);
	for (int d = 0; d < OUTBOX_DURATIONS; d++)
		for (int b = 0; b < OUTBOX_HISTOGRAM_BUCKETS; b++)
			counts->durations[d][b] = pg_atomic_read_u64(&slot->durations[d][b]);
	counts->ncodes = pg_atomic_read_u32(&slot->ncodes);
	pg_read_barrier();
	memcpy(counts->codes, slot->codes, sizeof(counts->codes));
	for (int i = 0; i < counts->ncodes; i++)
		counts->failures[i] = pg_atomic_read_u64(&slot->failures[i]);
}

int
outbox_counters_read(OutboxCounts **counts)
{
	int			n = 0;

	*counts = palloc(sizeof(OutboxCounts) * OUTBOX_COUNTED_SUBSCRIPTIONS);
	LWLockAcquire(counters->lock, LW_SHARED);
	for (int i = 0; i < OUTBOX_COUNTED_SUBSCRIPTIONS; i++)
	{
		uint64		key = pg_atomic_read_u64(&counters->slots[i].key);

		if (key >> 32 == MyDatabaseId)
			copy_slot(&(*counts)[n++], &counters->slots[i], key);
	}
	LWLockRelease(counters->lock);
	return n;
}

int
outbox_counters_read_unmatched(OutboxUnmatched **types)
{
	int			n = 0;

	*types = palloc(sizeof(OutboxUnmatched) * OUTBOX_COUNTED_TYPES);
	LWLockAcquire(counters->lock, LW_SHARED);
	for (int i = 0; i < OUTBOX_COUNTED_TYPES; i++)
		if (counters->types[i].database == MyDatabaseId)
			(*types)[n++] = counters->types[i].type;
	LWLockRelease(counters->lock);
	return n;
}

/* ---------------------------------------------------------------- the file */

static void
restore_slot(const SavedSlot *saved)
{
	Slot	   *slot = take_slot(saved->key);

	if (slot == NULL)
		return;
	for (int i = 0; i < OUTBOX_TOTALS; i++)
		pg_atomic_write_u64(&slot->totals[i], saved->counts.totals[i]);
	for (int d = 0; d < OUTBOX_DURATIONS; d++)
		for (int b = 0; b < OUTBOX_HISTOGRAM_BUCKETS; b++)
			pg_atomic_write_u64(&slot->durations[d][b], saved->counts.durations[d][b]);
	memcpy(slot->codes, saved->counts.codes, sizeof(slot->codes));
	for (int i = 0; i < OUTBOX_COUNTED_CODES; i++)
	{
		slot->codes[i][OUTBOX_ERROR_CODE_MAX] = '\0';
		pg_atomic_write_u64(&slot->failures[i], saved->counts.failures[i]);
	}
	pg_atomic_write_u32(&slot->ncodes, Min(Max(saved->counts.ncodes, 0), OUTBOX_COUNTED_CODES));
}

/* What the last shutdown has left; a file that is not ours to read is as good as none. */
static void
read_counters(void)
{
	FILE	   *file = AllocateFile(STAT_FILE, PG_BINARY_R);
	uint64		head[3];
	SavedSlot  *saved;

	if (file == NULL)
		return;
	saved = malloc(sizeof(SavedSlot));
	if (saved != NULL && fread(head, sizeof(head), 1, file) == 1 &&
		head[0] == STAT_MAGIC && head[1] == sizeof(SavedSlot) && head[2] == sizeof(counters->types))
	{
		if (fread(counters->types, sizeof(counters->types), 1, file) != 1)
			memset(counters->types, 0, sizeof(counters->types));
		while (fread(saved, sizeof(SavedSlot), 1, file) == 1)
			restore_slot(saved);
	}
	free(saved);
	FreeFile(file);
	/* a crash from here on loses what was counted, as it does for the server's own statistics */
	(void) unlink(STAT_FILE);
}

static bool
write_slots(FILE * file)
{
	static SavedSlot saved;
	uint64		head[3] = {STAT_MAGIC, sizeof(SavedSlot), sizeof(counters->types)};

	if (fwrite(head, sizeof(head), 1, file) != 1 || fwrite(counters->types, sizeof(counters->types), 1, file) != 1)
		return false;
	for (int i = 0; i < OUTBOX_COUNTED_SUBSCRIPTIONS; i++)
	{
		saved.key = pg_atomic_read_u64(&counters->slots[i].key);
		if (saved.key <= KEY_FORGOTTEN)
			continue;
		copy_slot(&saved.counts, &counters->slots[i], saved.key);
		if (fwrite(&saved, sizeof(saved), 1, file) != 1)
			return false;
	}
	return true;
}

/* In the postmaster, at its end; not after a crash. */
static void
write_counters(int code, Datum arg)
{
	FILE	   *file;
	bool		written;

	if (code != 0 || counters == NULL)
		return;
	file = AllocateFile(STAT_FILE ".tmp", PG_BINARY_W);
	written = file != NULL && write_slots(file);
	if (file != NULL && FreeFile(file) != 0)
		written = false;
	if (written)
		(void) durable_rename(STAT_FILE ".tmp", STAT_FILE, LOG);
	else
	{
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", STAT_FILE)));
		(void) unlink(STAT_FILE ".tmp");
	}
}
