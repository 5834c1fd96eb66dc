/*
 * snapshot.c - what a transaction snapshot saw, as plain arithmetic.
 *
 * The router asks of every event whether its transaction was over when an
 * earlier snapshot was taken (the method of PgQ's ticks).  pg_snapshot has no
 * C interface, so its text form is taken apart once, and asked often.
 */
#include "outbox.h"

#include "lib/stringinfo.h"

#include "snapshot.h"

static int
compare_xids(const void *a, const void *b)
{
	uint64		x = *(const uint64 *) a;
	uint64		y = *(const uint64 *) b;

	return (x > y) - (x < y);
}

OutboxSnapshot *
outbox_snapshot_parse(const char *text)
{
	OutboxSnapshot *snapshot = palloc(sizeof(OutboxSnapshot));
	const char *p;
	char	   *end;
	int			room = 1;

	for (p = text; *p; p++)
		room += (*p == ',');
	snapshot->xip = palloc(room * sizeof(uint64));
	snapshot->nxip = 0;

	snapshot->xmin = strtou64(text, &end, 10);
	if (*end != ':')
		elog(ERROR, "malformed snapshot");
	snapshot->xmax = strtou64(end + 1, &end, 10);
	if (*end != ':')
		elog(ERROR, "malformed snapshot");
	for (end++; *end; end += (*end == ','))
	{
		const char *start = end;

		snapshot->xip[snapshot->nxip++] = strtou64(start, &end, 10);
		if (end == start || (*end != ',' && *end != '\0'))
			elog(ERROR, "malformed snapshot");
	}
	qsort(snapshot->xip, snapshot->nxip, sizeof(uint64), compare_xids);
	return snapshot;
}

char *
outbox_snapshot_text(const OutboxSnapshot *snapshot)
{
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfo(&text, UINT64_FORMAT ":" UINT64_FORMAT ":", snapshot->xmin, snapshot->xmax);
	for (int i = 0; i < snapshot->nxip; i++)
		appendStringInfo(&text, "%s" UINT64_FORMAT, i > 0 ? "," : "", snapshot->xip[i]);
	return text.data;
}

OutboxSnapshot *
outbox_snapshot_empty(void)
{
	return outbox_snapshot_parse("1:1:");
}

bool
outbox_snapshot_sees(const OutboxSnapshot *snapshot, uint64 xid)
{
	if (xid >= snapshot->xmax)
		return false;
	if (xid < snapshot->xmin)
		return true;
	return bsearch(&xid, snapshot->xip, snapshot->nxip, sizeof(uint64), compare_xids) == NULL;
}

bool
outbox_snapshot_equals(const OutboxSnapshot *a, const OutboxSnapshot *b)
{
	return a->xmin == b->xmin && a->xmax == b->xmax && a->nxip == b->nxip &&
		memcmp(a->xip, b->xip, a->nxip * sizeof(uint64)) == 0;
}

bool
outbox_snapshot_covers(const OutboxSnapshot *later, const OutboxSnapshot *earlier)
{
	if (later->xmax < earlier->xmax)
		return false;
	for (int i = 0; i < later->nxip; i++)
	{
		if (outbox_snapshot_sees(earlier, later->xip[i]))
			return false;
	}
	return true;
}

OutboxSnapshot *
outbox_snapshot_without(const OutboxSnapshot *snapshot, uint64 xid)
{
	OutboxSnapshot *result = palloc(sizeof(OutboxSnapshot));
	int			n = 0;

	*result = *snapshot;
	if (!outbox_snapshot_sees(snapshot, xid))
		return result;
	result->xmin = Min(snapshot->xmin, xid);
	result->xip = palloc((snapshot->nxip + 1) * sizeof(uint64));
	while (n < snapshot->nxip && snapshot->xip[n] < xid)
	{
		result->xip[n] = snapshot->xip[n];
		n++;
	}
	result->xip[n] = xid;
	memcpy(&result->xip[n + 1], &snapshot->xip[n], (snapshot->nxip - n) * sizeof(uint64));
	result->nxip = snapshot->nxip + 1;
	return result;
}
