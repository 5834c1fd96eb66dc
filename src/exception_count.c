/*
 * exception_count.c - how many deliveries have which status, without counting them.
 *
 * A million deliveries in review are as quickly counted as one: whoever changes
 * a row of outbox.delivery_exception appends what it changes in the count, in its own
 * transaction, so that nobody waits for a shared number.  Those in review are counted by event type too,
 * because types differ in importance.
 */
#include "outbox.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"

#include "event_log.h"
#include "exception_count.h"
#include "extension.h"
#include "store.h"

#define REVIEW_REQUIRED "REVIEW_REQUIRED"
#define DELAYED			"DELAYED"
#define FOLD_AT			1000	/* differences */
#define FOLD_MOST		5000	/* of them in one transaction */
#define FOLD_ANEW		60		/* the so many-th look is from the beginning again */

/* what a row counts as */
typedef struct Counted
{
	bool		is;				/* there is a row */
	int32		subscription_id;
	char	   *status;
	pg_uuid_t	event_id;
} Counted;

static int	uncounted = 0;

/* $2: up to where they are folded, so that what vacuum cannot remove yet is not passed over again */
static OutboxStatement select_many = {
	"select 1 from outbox.exception_count where entry_id > $2 order by entry_id offset $1 limit 1",
	2, {INT8OID, INT8OID}
};

/* the oldest */
static OutboxStatement take_some = {
	"with gone as (delete from outbox.exception_count where ctid = any (array(select c.ctid from outbox.exception_count c"
	" where c.entry_id > $2 order by c.entry_id limit $1)) returning entry_id, subscription_id, status, event_type, n)"
	" select subscription_id, status, event_type, sum(n)::bigint, (select count(*) from gone), (select max(entry_id) from gone)"
	" from gone group by subscription_id, status, event_type",
	2, {INT8OID, INT8OID}
};

static OutboxStatement delete_all = {
	"delete from outbox.exception_count"
};

static OutboxStatement count_all = {
	"select x.subscription_id, x.status, coalesce(e.event_type, ''), count(*)"
	" from outbox.delivery_exception x left join outbox.event_log e"
	" on x.status = 'REVIEW_REQUIRED' and e.event_id = x.event_id"
	" group by x.subscription_id, x.status, coalesce(e.event_type, '')"
	" union all select subscription_id, 'DELAYED', '', count(*) from outbox.delayed group by subscription_id"
};

/* of a column that is not null */
static Datum
read_column(Relation rel, HeapTuple tuple, const char *name)
{
	TupleDesc	desc = RelationGetDescr(rel);
	Datum		value = 0;
	bool		isnull = true;

	for (int i = 0; i < desc->natts && isnull; i++)
	{
		if (strcmp(NameStr(TupleDescAttr(desc, i)->attname), name) == 0)
			value = heap_getattr(tuple, i + 1, desc, &isnull);
	}
	if (isnull)
		elog(ERROR, "column %s is missing", name);
	return value;
}

static Counted
read_row(Relation rel, HeapTuple tuple)
{
	Counted		row = {.is = tuple != NULL};

	if (!row.is)
		return row;
	row.subscription_id = DatumGetInt32(read_column(rel, tuple, "subscription_id"));
	row.status = TextDatumGetCString(read_column(rel, tuple, "status"));
	row.event_id = *DatumGetUUIDP(read_column(rel, tuple, "event_id"));
	return row;
}

/* '' when the event is not in the log. */
static Datum
type_of(const pg_uuid_t *id)
{
	Datum		type;

	return outbox_event_log_read(id, EV_EVENT_TYPE, true, &type) ? type : CStringGetTextDatum("");
}

static void
put(OutboxWriter *writer, Datum subscription_id, Datum status, Datum event_type, Datum n)
{
	Datum		values[5] = {Int64GetDatum(outbox_event_log_draw_number()), subscription_id, status, event_type, n};
	bool		nulls[5] = {false};

	outbox_store_put(writer, values, nulls);
}

static void
append(const Counted *row, int n)
{
	OutboxWriter *writer;
	bool		typed = strcmp(row->status, REVIEW_REQUIRED) == 0;

	writer = outbox_store_open_writer(outbox_extension_relid("exception_count"));
	put(writer, Int32GetDatum(row->subscription_id), CStringGetTextDatum(row->status),
		typed ? type_of(&row->event_id) : CStringGetTextDatum(""), Int64GetDatum(n));
	outbox_store_close_writer(writer);
}

/* Not while a dump is restored, whose segments may not be there yet: outbox.activate() counts anew. */
static bool
is_counted(void)
{
	OutboxIncarnation known;

	outbox_extension_incarnation(&known);
	return known.recorded && !known.held;
}

/* Rows of a subscription that goes, with all that is counted of it. */
void
outbox_exception_count_run_uncounted(void (*run) (int32 subscription_id), int32 subscription_id)
{
	uncounted++;
	PG_TRY();
	{
		run(subscription_id);
	}
	PG_FINALLY();
	{
		uncounted--;
	}
	PG_END_TRY();
}

void
outbox_exception_count_change(Relation rel, HeapTuple before, HeapTuple after)
{
	Counted		old;
	Counted		new;

	if (uncounted > 0)
		return;
	old = read_row(rel, before);
	new = read_row(rel, after);

	if (!is_counted() ||
		(old.is && new.is && old.subscription_id == new.subscription_id && strcmp(old.status, new.status) == 0))
		return;
	if (old.is)
		append(&old, -1);
	if (new.is)
		append(&new, 1);
}

void
outbox_exception_count_delayed(int32 subscription_id, int n)
{
	Counted		row = {.is = true, .subscription_id = subscription_id, .status = DELAYED};

	append(&row, n);
}

/* The rows of SPI_tuptable, but those that add up to nothing. */
static void
append_rows(uint64 n)
{
	OutboxWriter *writer = outbox_store_open_writer(outbox_extension_relid("exception_count"));
	bool		isnull;

	for (uint64 i = 0; i < n; i++)
	{
		if (DatumGetInt64(outbox_store_value(i, 4, &isnull)) != 0)
			put(writer, outbox_store_value(i, 1, &isnull), outbox_store_value(i, 2, &isnull),
				outbox_store_value(i, 3, &isnull), outbox_store_value(i, 4, &isnull));
	}
	outbox_store_close_writer(writer);
}

/*
 * An entry's number is drawn before it is committed, and those of a long transaction lie far back: now and then all of them
 * are looked at.
 */
bool
outbox_exception_count_fold(void)
{
	static int64 through = 0;
	static int	looks = 0;
	Datum		args[2] = {Int64GetDatum(FOLD_AT), Int64GetDatum(through)};
	bool		isnull;
	uint64		n;
	bool		more;

	if (outbox_store_run(&select_many, args, NULL, 1) == 0)
	{
		if (++looks % FOLD_ANEW == 0)
			through = 0;
		return false;
	}
	args[0] = Int64GetDatum(FOLD_MOST);
	n = outbox_store_run(&take_some, args, NULL, 0);
	if (n == 0)
		return false;
	/* not when they are of nearly as many kinds */
	more = DatumGetInt64(outbox_store_value(0, 5, &isnull)) == FOLD_MOST && n <= FOLD_MOST / 2;
	through = DatumGetInt64(outbox_store_value(0, 6, &isnull));
	append_rows(n);
	return more;
}

void
outbox_exception_count_recount(void)
{
	(void) outbox_store_run(&delete_all, NULL, NULL, 0);
	append_rows(outbox_store_run(&count_all, NULL, NULL, 0));
}
