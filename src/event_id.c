/*
 * event_id.c - the arithmetic of event ids (UUIDv7).
 *
 * Time is kept in units of 1/4096 ms, which is what an id can carry, so that an
 * id and its time are the same order.  Nothing here knows of the server:
 * shmem.c holds the clock, api_publish.c the random bits.
 */
#include "outbox.h"

#include "utils/timestamp.h"

#include "event_id.h"

#define TIME_BITS			60
#define TIME_MAX			((UINT64CONST(1) << TIME_BITS) - 1)
#define TICKS_PER_MS		4096
#define TICKS_PER_HOUR		(UINT64CONST(3600000) * TICKS_PER_MS)
#define UNIX_EPOCH_OFFSET	((POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY)

/* Times before 1970 and beyond what 48 bits of milliseconds hold are clamped. */
OutboxIdTime
outbox_event_id_time_from(TimestampTz at)
{
	uint64		ms;
	uint64		us;

	if (at <= -UNIX_EPOCH_OFFSET)
		return 0;
	if (at >= PG_INT64_MAX - UNIX_EPOCH_OFFSET)
		return TIME_MAX;
	us = (uint64) (at + UNIX_EPOCH_OFFSET);
	ms = us / 1000;
	if (ms > TIME_MAX / TICKS_PER_MS)
		return TIME_MAX;
	return ms * TICKS_PER_MS + (us % 1000) * TICKS_PER_MS / 1000;
}

/* Rounds up, so that a time of whole microseconds survives the way there and back. */
TimestampTz
outbox_event_id_time_to(OutboxIdTime time)
{
	uint64		ms = time / TICKS_PER_MS;
	uint64		fraction = time % TICKS_PER_MS;

	return (TimestampTz) (ms * 1000 + (fraction * 1000 + TICKS_PER_MS - 1) / TICKS_PER_MS) - UNIX_EPOCH_OFFSET;
}

OutboxIdTime
outbox_event_id_time_of(const pg_uuid_t *id)
{
	uint64		ms = 0;

	for (int i = 0; i < 6; i++)
		ms = ms << 8 | id->data[i];
	return ms * TICKS_PER_MS + ((id->data[6] & 0x0f) << 8 | id->data[7]);
}

void
outbox_event_id_make(OutboxIdTime time, uint64 random, pg_uuid_t *id)
{
	uint64		ms = time / TICKS_PER_MS;

	for (int i = 5; i >= 0; i--)
	{
		id->data[i] = (unsigned char) ms;
		ms >>= 8;
	}
	id->data[6] = 0x70 | (unsigned char) ((time >> 8) & 0x0f);
	id->data[7] = (unsigned char) time;
	for (int i = 15; i >= 8; i--)
	{
		id->data[i] = (unsigned char) random;
		random >>= 8;
	}
	id->data[8] = 0x80 | (id->data[8] & 0x3f);
}

void
outbox_event_id_floor(OutboxIdTime time, pg_uuid_t *id)
{
	outbox_event_id_make(Min(time, TIME_MAX), 0, id);
}

int
outbox_event_id_compare(const pg_uuid_t *a, const pg_uuid_t *b)
{
	return memcmp(a->data, b->data, UUID_LEN);
}

OutboxIdTime
outbox_event_id_next(OutboxIdTime now, OutboxIdTime last, int count, bool *rebased)
{
	Assert(count > 0);
	*rebased = false;
	if (now > last)
		return now;
	if (last - now > TICKS_PER_HOUR)
	{
		*rebased = true;
		return now;
	}
	return last + 1;
}
