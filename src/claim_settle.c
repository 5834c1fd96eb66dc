/*
 * claim_settle.c - how the events of a lease end.
 *
 * Each call first locks the lease's row by its token, at top level and before anything else: one that an
 * expired lease was taken from finds nothing.  Completing shares the lock, so that any
 * number of sessions may settle a lease's events at once; failing and giving back, which decide
 * about the order of keys, exclude each other, but not those that complete.
 * Between them, the place of the receipt decides (receipt.c): what is settled is read again
 * after it has been taken.
 *
 * An event that failed, or was not started, gets a row in delivery_exception and its key a gate;
 * later events of the key in the same lease go back behind the gate: parked, or, when a still later
 * one has a row already, with a row of their own, since rows are delivered in the order of their positions.
 */
#include "outbox.h"

#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "alert.h"
#include "batch.h"
#include "claim_count.h"
#include "claim_settle.h"
#include "event_id.h"
#include "event_log.h"
#include "exception.h"
#include "extension.h"
#include "outage.h"
#include "receipt.h"
#include "rights.h"
#include "session.h"
#include "settings.h"
#include "store.h"
#include "wakeup.h"


/* ---------------------------------------------------------------- the lease at hand */

OUTBOX_NORETURN static void
report_lost(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OUTBOX_LEASE_LOST),
			 errmsg("the lease is lost"),
			 errdetail("No lease has this token: it expired and its events were taken back, or it ended long ago."),
			 errhint("Roll back what was done for its events; outbox.claim() hands out again what was not settled.")));
}

void
outbox_claim_settle_report_not_held(const pg_uuid_t *event_id, OutboxClaimState state)
{
	char	   *id = DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(event_id)));

	ereport(ERROR,
			(errcode(ERRCODE_OUTBOX_LEASE_LOST),
			 errmsg("the lease does not hold event %s", id),
			 state == CLAIM_COMPLETED ?
			 errdetail("It is completed: it was acknowledged before.") :
			 errdetail("It has failed or gone back since it was claimed, perhaps together with an earlier event of its key."),
			 state == CLAIM_COMPLETED ?
			 errhint("It does not come again. An operator has it delivered once more with outbox.replay().") :
			 errhint("Roll back what was done for it; outbox.claim() hands it out again, unless it requires a review.")));
}

OUTBOX_NORETURN static void
report_not_claimed(const pg_uuid_t *event_id)
{
	ereport(ERROR,
			(errcode(ERRCODE_OUTBOX_LEASE_LOST),
			 errmsg("the lease does not hold event %s",
					DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(event_id)))),
			 errdetail("It was not claimed under this token."),
			 errhint("Settle each event with the token that outbox.claim() returned beside it.")));
}

static void
refuse_own_claim(const OutboxClaimLease *lease)
{
	if (FullTransactionIdEquals(GetTopFullTransactionIdIfAny(), FullTransactionIdFromU64(lease->claim_xid)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("events cannot be settled in the transaction that claimed them"),
				 errhint("Commit the claim first: its attempts would be rolled back together with the work.")));
}

static const OutboxClaimLease *sorting;

static int
compare_by_id(const void *a, const void *b)
{
	return outbox_event_id_compare(&sorting->events[*(const int *) a].event_id,
								   &sorting->events[*(const int *) b].event_id);
}

static void
sort_by_id(OutboxClaimSettle *settle)
{
	if (settle->by_id != NULL)
		return;
	settle->by_id = palloc(settle->lease.count * sizeof(int));
	for (int i = 0; i < settle->lease.count; i++)
		settle->by_id[i] = i;
	sorting = &settle->lease;
	qsort(settle->by_id, settle->lease.count, sizeof(int), compare_by_id);
}

static void
read_all(OutboxClaimSettle *settle)
{
	outbox_claim_lease_read_progress(&settle->lease);
	settle->was_read = true;
}

void
outbox_claim_settle_open(OutboxClaimSettle *settle, const pg_uuid_t *token, bool deciding, Oid role)
{
	OutboxIncarnation incarnation;

	memset(settle, 0, sizeof(*settle));
	outbox_extension_incarnation(&incarnation);
	if (!outbox_claim_lease_lock(token, deciding ? LockTupleNoKeyExclusive : LockTupleKeyShare,
								 &settle->patience, &settle->lease) ||
		incarnation.held || settle->lease.incarnation != incarnation.incarnation)
		report_lost();
	settle->subscription = outbox_subscription_find(settle->lease.subscription_id, NULL);
	if (settle->subscription == NULL)
		report_lost();
	outbox_rights_require_worker(role, settle->subscription->id, settle->subscription->name);
	refuse_own_claim(&settle->lease);
	if (deciding)
		read_all(settle);
	settle->now = outbox_settings_now();
	settle->marked = palloc(settle->lease.count * sizeof(int));
}

static void
mark(OutboxClaimSettle *settle, int index)
{
	OutboxClaimedEvent *event = &settle->lease.events[index];

	if (event->marked)
		return;
	event->marked = true;
	settle->marked[settle->nmarked++] = index;
}

static OutboxClaimedEvent *
marked_event(const OutboxClaimSettle *settle, int i)
{
	return &settle->lease.events[settle->marked[i]];
}

/* Those that are settled already are not marked any more; returns how many still are. */
static int
keep_held(OutboxClaimSettle *settle)
{
	int			n = 0;

	for (int i = 0; i < settle->nmarked; i++)
	{
		OutboxClaimedEvent *event = marked_event(settle, i);

		event->marked = event->state == CLAIM_HELD;
		if (event->marked)
			settle->marked[n++] = settle->marked[i];
	}
	settle->nmarked = n;
	return n;
}

/* Where the lease has an event, or -1.  Sorting pays from the second one on. */
static int
find_event(OutboxClaimSettle *settle, const pg_uuid_t *event_id)
{
	const OutboxClaimedEvent *events = settle->lease.events;
	int			low = 0;
	int			high = settle->lease.count;

	if (settle->looks++ == 0)
	{
		for (int i = 0; i < high; i++)
		{
			if (memcmp(&events[i].event_id, event_id, UUID_LEN) == 0)
				return i;
		}
		return -1;
	}
	sort_by_id(settle);
	while (low < high)
	{
		int			middle = (low + high) / 2;
		int			index = settle->by_id[middle];
		int			order = outbox_event_id_compare(&events[index].event_id, event_id);

		if (order == 0)
			return index;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return -1;
}

OutboxClaimState
outbox_claim_settle_mark(OutboxClaimSettle *settle, const pg_uuid_t *event_id)
{
	int			index;

	if (!settle->was_read && outbox_claim_progress_has_returned(settle->lease.lease_id, settle->lease.claim_xid, &settle->returned))
		read_all(settle);
	settle->was_read = true;
	index = find_event(settle, event_id);
	if (index < 0)
		report_not_claimed(event_id);
	mark(settle, index);
	return settle->lease.events[index].state;
}

/* All that is held: what is not is nobody's business any more. */
void
outbox_claim_settle_mark_all(OutboxClaimSettle *settle)
{
	if (!settle->was_read)
		read_all(settle);
	for (int i = 0; i < settle->lease.count; i++)
	{
		if (settle->lease.events[i].state == CLAIM_HELD)
			mark(settle, i);
	}
}

/* Once it is committed, there may be more to claim. */
static void
announce(const OutboxClaimSettle *settle)
{
	outbox_wakeup_waiters(settle->lease.subscription_id, Min(settle->lease.count, settle->subscription->lanes));
}

/* ---------------------------------------------------------------- completing */

/* receipts: in the order of their ids */
static void
append_batch(const OutboxClaimSettle *settle, int64 batch_id, const OutboxReceipt *receipts, int n, int fresh)
{
	const OutboxClaimLease *lease = &settle->lease;
	OutboxWriter *writer = outbox_store_open_writer(outbox_extension_relid("batch"));
	TimestampTz completed_at = Max(settle->now, lease->claimed_at);
	Datum		us = Int32GetDatum((int32) Min(completed_at - lease->claimed_at, PG_INT32_MAX));
	Datum		values[11] = {
		Int64GetDatum(batch_id), Int32GetDatum(lease->subscription_id),
		TimestampTzGetDatum(lease->claimed_at), TimestampTzGetDatum(completed_at), Int32GetDatum(fresh),
		PointerGetDatum(construct_array(&us, 1, INT4OID, sizeof(int32), true, TYPALIGN_INT)), lease->worker,
		UUIDPGetDatum(&receipts[0].event_id), UUIDPGetDatum(&receipts[n - 1].event_id),
		Int64GetDatum(lease->lease_id), outbox_claim_progress_indexes(settle->marked, settle->nmarked)
	};
	bool		nulls[11] = {false, false, false, false, false, false, lease->worker == (Datum) 0};

	outbox_store_put(writer, values, nulls);
	outbox_store_close_writer(writer);
}

static int
compare_receipts(const void *a, const void *b)
{
	return outbox_event_id_compare(&((const OutboxReceipt *) a)->event_id, &((const OutboxReceipt *) b)->event_id);
}

/* Of the marked ones, in the order of their ids. */
static void
list_receipts(const OutboxClaimSettle *settle, OutboxReceipt *receipts)
{
	for (int i = 0; i < settle->nmarked; i++)
	{
		const OutboxClaimedEvent *event = marked_event(settle, i);

		receipts[i].event_id = event->event_id;
		receipts[i].replay_no = event->replay_no;
		receipts[i].attempts = event->attempts;
	}
	qsort(receipts, settle->nmarked, sizeof(OutboxReceipt), compare_receipts);
}

/* Is the row this lease's? */
static bool
is_ours(const OutboxClaimSettle *settle, const OutboxException *x)
{
	return outbox_exception_has_status(x, "IN_PROGRESS") && !x->nulls[EX_LEASE_ID] &&
		DatumGetInt64(x->values[EX_LEASE_ID]) == settle->lease.lease_id;
}

/* The row of a delivery that was being tried again goes, and its gate may open. */
static void
end_exception(OutboxClaimSettle *settle, const OutboxClaimedEvent *event)
{
	OutboxException x;
	OutboxKey	key;
	OutboxKeyGate gate;

	if (!outbox_exception_lock(settle->lease.subscription_id, &event->event_id, event->replay_no, &settle->patience, &x) ||
		!is_ours(settle, &x))
		return;
	key = outbox_exception_key(&x);
	outbox_exception_delete(&x);
	(void) outbox_exception_derive_gate(&key, false, false, 0, &gate);
}

/*
 * Whoever failed or gave back one of them while its receipt was not yet there has been waited for,
 * or was over before: in both cases that is known now.
 */
static void
check_still_held(OutboxClaimSettle *settle)
{
	for (int i = 0; i < settle->nmarked; i++)
	{
		if (marked_event(settle, i)->state == CLAIM_RETURNED)
			outbox_claim_settle_report_not_held(&marked_event(settle, i)->event_id, CLAIM_RETURNED);
	}
}

static void
complete_marked(OutboxClaimSettle *settle)
{
	for (int i = 0; i < settle->nmarked; i++)
	{
		OutboxClaimedEvent *event = marked_event(settle, i);

		if (event->gate_id == OUTBOX_FROM_EXCEPTION)
			end_exception(settle, event);
		event->state = CLAIM_COMPLETED;
	}
}

/*
 * Of what is settled already only that is looked for which failed or went back: what is completed meets its
 * receipt.  A worker that acknowledges one by one would read a row for each time it has.
 */
static int
complete(OutboxClaimSettle *settle, Datum message_id)
{
	OutboxClaimLease *lease = &settle->lease;
	int			n = keep_held(settle);
	OutboxReceipt *receipts = palloc(Max(n, 1) * sizeof(OutboxReceipt));
	int64		batch_id;
	int			fresh = 0;

	if (n == 0)
		return 0;
	list_receipts(settle, receipts);
	batch_id = outbox_event_log_draw_number();
	outbox_receipt_write(lease->subscription_id, batch_id, receipts, n, message_id, &settle->patience);
	for (int i = 0; i < n; i++)
		fresh += receipts[i].fresh;
	if (fresh < n || outbox_claim_progress_has_returned(lease->lease_id, lease->claim_xid, &settle->returned))
	{
		outbox_claim_lease_read_progress(lease);
		check_still_held(settle);
	}
	if (keep_held(settle) == 0)
		return 0;
	complete_marked(settle);
	if (fresh > 0)
	{
		append_batch(settle, batch_id, receipts, n, fresh);
		outbox_claim_count_completed(lease->subscription_id, lease->claimed_at, Max(settle->now, lease->claimed_at),
									 receipts, n);
	}
	else
		outbox_claim_progress_append(lease->lease_id, CLAIM_COMPLETED, settle->marked, settle->nmarked);
	outbox_outage_note_success(settle->subscription);
	/* the lanes may be free now: whether it was the last event, the others that settle just now do not know either */
	if (settle->subscription->ordered)
		announce(settle);
	return fresh;
}

int
outbox_claim_settle_complete(OutboxClaimSettle *settle, Datum message_id)
{
	int			fresh = complete(settle, message_id);

	if (settle->returned.rel != NULL)
		outbox_store_end_scan(&settle->returned);
	return fresh;
}

/* ---------------------------------------------------------------- going back */

/* What became of it: RETRY at that time, REVIEW_REQUIRED, ... */
typedef struct Outcome
{
	bool		review;
	bool		started;		/* the attempt is recorded */
	bool		counted;		/* and was used */
	bool		alone;			/* its lease expired */
	int			most_attempts;	/* 0: no matter */
	TimestampTz next_attempt_at;
	const char *error_code;
	const char *error_message;
} Outcome;

/* The key of an event, from the log; event_key 0 when it has none, or no order is kept. */
static OutboxKey
read_key(OutboxClaimSettle *settle, const OutboxClaimedEvent *event)
{
	OutboxKey	key = {
		.subscription_id = settle->lease.subscription_id, .lane = event->lane, .tenant_id = CStringGetTextDatum("")
	};
	OutboxEventReader *reader = outbox_batch_open_reader(SnapshotSelf);
	OutboxDelivery d = {0};
	TupleTableSlot *slot;

	if (outbox_batch_read_event(reader, &event->event_id, NULL, &slot))
	{
		outbox_batch_read_key(settle->subscription, event->lane, slot, &d);
		key.tenant_id = CStringGetTextDatum(d.tenant_id);
		if (d.event_key != NULL && event->position > 0)
			key.event_key = CStringGetTextDatum(d.event_key);
	}
	outbox_batch_close_reader(reader);
	return key;
}

static bool
text_equal(Datum a, Datum b)
{
	return DatumGetBool(DirectFunctionCall2Coll(texteq, C_COLLATION_OID, a, b));
}

static bool
same_key(const OutboxKey *a, const OutboxKey *b)
{
	return a->event_key != (Datum) 0 && b->event_key != (Datum) 0 &&
		text_equal(a->event_key, b->event_key) && text_equal(a->tenant_id, b->tenant_id);
}

static void
append_parked(int64 gate_id, const OutboxClaimedEvent *event)
{
	OutboxWriter *writer = outbox_store_open_writer(outbox_extension_relid("parked"));
	Datum		values[3] = {Int64GetDatum(gate_id), Int64GetDatum(event->position), UUIDPGetDatum(&event->event_id)};
	bool		nulls[3] = {false};

	outbox_store_put(writer, values, nulls);
	outbox_store_close_writer(writer);
}

/* A row for an event that was not started, due at that time. */
static void
append_unstarted(const OutboxKey *key, const OutboxClaimedEvent *event, TimestampTz next_attempt_at, bool alone)
{
	OutboxException x;

	outbox_exception_make(&x, key, &event->event_id, event->replay_no, event->position);
	outbox_exception_set(&x, EX_STATUS, CStringGetTextDatum("RETRY"));
	outbox_exception_set(&x, EX_NEXT_ATTEMPT_AT, TimestampTzGetDatum(next_attempt_at));
	outbox_exception_set(&x, EX_ALONE, BoolGetDatum(alone));
	outbox_exception_write(&x);
}

/*
 * Parked, unless it lies there still.  The gate may be further: an event that a person had tried again came with those that had
 * been let past it.
 */
static void
put_behind(OutboxKeyGate *gate, const OutboxClaimedEvent *event)
{
	if (event->gate_id != gate->gate_id)
		append_parked(gate->gate_id, event);
	gate->through = Min(gate->through, event->position - 1);
}

/*
 * Later events of the key that are held go back behind its gate.  What is behind the gate's `through` is read
 * again when it opens: those that were parked before need no other row.
 */
static void
return_later_ones(OutboxClaimSettle *settle, const OutboxClaimedEvent *first, const OutboxKey *key,
				  OutboxKeyGate *gate, bool alone)
{
	int64		through = gate->through;

	for (int i = 0; i < settle->lease.count; i++)
	{
		OutboxClaimedEvent *event = &settle->lease.events[i];
		OutboxKey	its;

		if (event->state != CLAIM_HELD || event->lane != first->lane || event->position <= first->position ||
			event->gate_id == OUTBOX_FROM_EXCEPTION)
			continue;
		its = read_key(settle, event);
		if (!same_key(&its, key))
			continue;
		if (outbox_exception_has_later(key, event->position))
			append_unstarted(key, event, settle->now, alone);
		else
			put_behind(gate, event);
		if (alone)
			gate->alone_through = Max(gate->alone_through, event->position);
		event->state = CLAIM_RETURNED;
		mark(settle, i);
	}
	if (gate->through != through || (alone && gate->alone_through >= first->position))
		outbox_exception_write_gate(gate);
}

/* The row as it is, or a first one. */
static bool
take_exception(OutboxClaimSettle *settle, const OutboxClaimedEvent *event, OutboxException *x)
{
	OutboxKey	key;

	if (event->gate_id == OUTBOX_FROM_EXCEPTION)
		return outbox_exception_lock(settle->lease.subscription_id, &event->event_id, event->replay_no,
									 &settle->patience, x) && is_ours(settle, x);
	if (outbox_exception_exists(settle->lease.subscription_id, &event->event_id, event->replay_no))
		return false;
	key = read_key(settle, event);
	outbox_exception_make(x, &key, &event->event_id, event->replay_no, event->position);
	outbox_exception_set(x, EX_ATTEMPTS, Int32GetDatum(1));
	outbox_exception_set(x, EX_STARTED_AT, TimestampTzGetDatum(settle->lease.claimed_at));
	return true;
}

static void
fill_outcome(OutboxClaimSettle *settle, OutboxException *x, const Outcome *outcome)
{
	int			attempts = DatumGetInt32(x->values[EX_ATTEMPTS]);

	outbox_exception_set(x, EX_STATUS, CStringGetTextDatum(outcome->review ? "REVIEW_REQUIRED" : "RETRY"));
	if (!outcome->counted)
		attempts = Max(attempts - 1, 0);
	if (outcome->alone && !outcome->review)
		attempts = Min(attempts, outcome->most_attempts);
	outbox_exception_set(x, EX_ATTEMPTS, Int32GetDatum(attempts));
	if (outcome->review)
		outbox_exception_set_null(x, EX_NEXT_ATTEMPT_AT);
	else
		outbox_exception_set(x, EX_NEXT_ATTEMPT_AT, TimestampTzGetDatum(outcome->next_attempt_at));
	outbox_exception_set_null(x, EX_WORKER);
	outbox_exception_set_null(x, EX_LEASE_ID);
	outbox_exception_set(x, EX_ALONE, BoolGetDatum(outcome->alone));
	if (!outcome->started)
		return;
	outbox_exception_set(x, EX_ERROR_CODE, CStringGetTextDatum(outcome->error_code));
	if (outcome->error_message != NULL)
		outbox_exception_set(x, EX_ERROR_MESSAGE, CStringGetTextDatum(outcome->error_message));
	else
		outbox_exception_set_null(x, EX_ERROR_MESSAGE);
	if (x->nulls[EX_FIRST_FAILED_AT])
		outbox_exception_set(x, EX_FIRST_FAILED_AT, TimestampTzGetDatum(settle->now));
	outbox_exception_set(x, EX_FAILED_AT, TimestampTzGetDatum(settle->now));
}

/* One event that is held goes back; with it the later ones of its key. */
static void
return_event(OutboxClaimSettle *settle, int index, OutboxException *x, const Outcome *outcome)
{
	OutboxClaimedEvent *event = &settle->lease.events[index];
	OutboxKey	key;
	OutboxKeyGate gate;

	if (outcome->started && outcome->counted)
		outbox_exception_log_attempt(x, settle->now, settle->lease.worker, outcome->error_code);
	fill_outcome(settle, x, outcome);
	outbox_exception_write(x);
	event->state = CLAIM_RETURNED;
	mark(settle, index);
	key = outbox_exception_key(x);
	if (outbox_exception_derive_gate(&key, event->gate_id != OUTBOX_FROM_EXCEPTION, event->gate_id > 0,
									 event->position, &gate))
	{
		return_later_ones(settle, event, &key, &gate, outcome->alone);
		outbox_exception_clear_parked(key.subscription_id, &gate);
	}
}

/* It is completed, or another row says what becomes of it: nothing to do for this lease any more. */
static void
skip_event(OutboxClaimSettle *settle, int index)
{
	settle->lease.events[index].state = CLAIM_RETURNED;
	mark(settle, index);
}

static void
report_review(OutboxClaimSettle *settle, const OutboxException *x)
{
	const OutboxSubscription *s = settle->subscription;
	pg_uuid_t  *id = DatumGetUUIDP(x->values[EX_EVENT_ID]);
	int			attempts = DatumGetInt32(x->values[EX_ATTEMPTS_BEFORE]) + DatumGetInt32(x->values[EX_ATTEMPTS]);
	char	   *code = TextDatumGetCString(x->values[EX_ERROR_CODE]);
	OutboxSession session;

	SPI_connect();
	outbox_session_enter(&session);
	outbox_alert_review_required(s, id, DatumGetInt16(x->values[EX_REPLAY_NO]), attempts, code);
	outbox_session_leave(&session);
	SPI_finish();
}

/* ---------------------------------------------------------------- failing and releasing */

/* Nobody else completes it from here on; OB001 when somebody has. */
static void
bar_event(OutboxClaimSettle *settle, int index)
{
	const OutboxClaimedEvent *event = &settle->lease.events[index];

	if (!outbox_receipt_bar(settle->lease.subscription_id, &event->event_id, event->replay_no, &settle->patience))
		outbox_claim_settle_report_not_held(&event->event_id, CLAIM_COMPLETED);
}

const char *
outbox_claim_settle_fail(OutboxClaimSettle *settle, const OutboxFailure *failure)
{
	int			index = settle->marked[0];
	OutboxClaimedEvent *event = &settle->lease.events[index];
	pg_uuid_t	event_id = event->event_id;
	OutboxException x;
	OutboxVerdict verdict;
	Outcome		outcome = {.started = true, .error_code = failure->code, .error_message = failure->message};

	if (event->state != CLAIM_HELD)
		outbox_claim_settle_report_not_held(&event_id, event->state);
	bar_event(settle, index);
	if (!take_exception(settle, event, &x))
		outbox_claim_settle_report_not_held(&event_id, CLAIM_RETURNED);
	verdict = outbox_failure_judge(settle->subscription, failure, DatumGetInt32(x.values[EX_ATTEMPTS]),
								   pg_prng_double(&pg_global_prng_state));
	outcome.review = verdict.review;
	outcome.counted = verdict.counted;
	outcome.next_attempt_at = settle->now + verdict.delay;
	return_event(settle, index, &x, &outcome);
	outbox_claim_progress_append(settle->lease.lease_id, CLAIM_RETURNED, settle->marked, settle->nmarked);
	outbox_outage_note_failure(settle->subscription, &event_id, &verdict, settle->now);
	if (verdict.counted)
		outbox_claim_count_failed(settle->lease.subscription_id, failure->code, verdict.review);
	announce(settle);
	if (verdict.review)
		report_review(settle, &x);
	CommandCounterIncrement();
	return verdict.review ? "REVIEW_REQUIRED" : "RETRY";
}

/* In the order of ids, as receipts are written: two such calls do not wait for each other. */
static void
bar_marked(OutboxClaimSettle *settle)
{
	sort_by_id(settle);
	for (int i = 0; i < settle->lease.count; i++)
	{
		int			index = settle->by_id[i];

		if (settle->lease.events[index].marked)
			bar_event(settle, index);
	}
}

int
outbox_claim_settle_release(OutboxClaimSettle *settle, int64 delay)
{
	Outcome		outcome = {.next_attempt_at = settle->now + delay};
	int			released = keep_held(settle);

	if (released == 0)
		return 0;
	bar_marked(settle);
	/* those of one key stand in their order: with the first one the later ones go back */
	for (int i = 0; i < settle->lease.count; i++)
	{
		OutboxException x;

		if (!settle->lease.events[i].marked || settle->lease.events[i].state != CLAIM_HELD)
			continue;
		if (take_exception(settle, &settle->lease.events[i], &x))
			return_event(settle, i, &x, &outcome);
		else
			skip_event(settle, i);
	}
	outbox_claim_progress_append(settle->lease.lease_id, CLAIM_RETURNED, settle->marked, settle->nmarked);
	announce(settle);
	CommandCounterIncrement();
	return released;
}

/* ---------------------------------------------------------------- taking back */

/*
 * Its attempt is used.  One that shared its lease may be innocent of the end: it never needs review for
 * that, and is handed out alone next time.
 */
static bool
recover_event(OutboxClaimSettle *settle, int index, OutboxException *x)
{
	const OutboxSubscription *s = settle->subscription;
	OutboxClaimedEvent *event = &settle->lease.events[index];
	Outcome		outcome = {
		.started = true, .counted = true, .alone = true, .next_attempt_at = settle->now,
		.error_code = OUTBOX_CODE_LEASE_EXPIRED
	};

	if (outbox_receipt_exists(settle->lease.subscription_id, &event->event_id, event->replay_no) ||
		!take_exception(settle, event, x))
	{
		skip_event(settle, index);
		return false;
	}
	outcome.review = settle->lease.count == 1 && DatumGetInt32(x->values[EX_ATTEMPTS]) >= s->max_attempts;
	outcome.most_attempts = s->max_attempts - 1;	/* the last one is alone */
	return_event(settle, index, x, &outcome);
	outbox_claim_count_failed(s->id, outcome.error_code, outcome.review);
	return outcome.review;
}

static void
recover_lease(int64 lease_id, TimestampTz now)
{
	OutboxClaimSettle settle = {.now = now};
	OutboxIncarnation incarnation;
	OutboxException review;
	bool		needs_review = false;

	outbox_extension_incarnation(&incarnation);
	if (!outbox_claim_lease_take_back(lease_id, now, incarnation.incarnation, &settle.lease))
		return;
	settle.marked = palloc(settle.lease.count * sizeof(int));
	settle.subscription = outbox_subscription_find(settle.lease.subscription_id, NULL);
	for (int i = 0; i < settle.lease.count; i++)
	{
		OutboxException x;

		CHECK_FOR_INTERRUPTS();
		if (settle.lease.events[i].state != CLAIM_HELD)
			continue;
		if (settle.subscription == NULL)
			skip_event(&settle, i);
		else if (recover_event(&settle, i, &x))
		{
			review = x;
			needs_review = true;
		}
	}
	outbox_claim_progress_append(settle.lease.lease_id, CLAIM_RETURNED, settle.marked, settle.nmarked);
	outbox_claim_count_recovered(settle.lease.subscription_id);
	if (settle.subscription != NULL)
		announce(&settle);
	if (needs_review)
		report_review(&settle, &review);
	CommandCounterIncrement();
}

/* Is the error one of the lease, rather than of whoever runs this? */
static bool
is_forgivable(int sqlerrcode)
{
	return ERRCODE_TO_CATEGORY(sqlerrcode) != ERRCODE_OPERATOR_INTERVENTION;
}

/* No more than one a second: when it is for the same reason, all of them fail, in each sweep. */
static void
log_failure(int64 lease_id, const ErrorData *error)
{
	static int64 next = 0;
	int64		ticks = outbox_settings_ticks();

	if (ticks < next)
		return;
	next = ticks + USECS_PER_SEC;
	ereport(LOG,
			(errcode(error->sqlerrcode),
			 errmsg("lease " INT64_FORMAT " cannot be taken back, code %s", lease_id, unpack_sql_state(error->sqlerrcode)),
			 errhint("It is tried again; the others go on.")));
}

/* One that cannot be taken back must not keep the others from it. */
static void
try_to_recover(int64 lease_id, TimestampTz now)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(caller);
	PG_TRY();
	{
		recover_lease(lease_id, now);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(caller);
		CurrentResourceOwner = owner;
		if (!is_forgivable(error->sqlerrcode))
			ReThrowError(error);
		if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
			log_failure(lease_id, error);
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	CurrentResourceOwner = owner;
}

/* a sweep at hand */
typedef struct Sweep
{
	int			most;			/* events in them */
	int			events;
	int			n;
	int64	   *lease_ids;		/* expired and open */
	TimestampTz first;			/* expiry of the first one */
} Sweep;

static bool
note_expired(const OutboxClaimLease *lease, void *argument)
{
	Sweep	   *sweep = argument;

	if (sweep->n == 0)
		sweep->first = lease->expires_at;
	sweep->lease_ids[sweep->n++] = lease->lease_id;
	sweep->events += lease->held;
	return sweep->events < sweep->most;
}

bool
outbox_claim_settle_sweep(OutboxDatabase *db, int most, int looks, OutboxSweepPlace *place)
{
	TimestampTz now = outbox_settings_now();
	uint32		late_leases = db == NULL ? 0 : outbox_shmem_late_leases(db);
	TimestampTz swept = db == NULL ? DT_NOBEGIN : outbox_shmem_swept(db);
	Sweep		sweep = {.most = most, .lease_ids = palloc(most * sizeof(int64))};
	OutboxClaimWalk walk = {
		.until = now, .snapshot = SnapshotSelf, .most = looks, .visit = note_expired, .argument = &sweep
	};
	OutboxIncarnation incarnation;

	outbox_extension_incarnation(&incarnation);
	if (incarnation.held || !incarnation.recorded)
	{
		/* its leases may be yet to come, from a dump */
		place->under_way = false;
		return false;
	}
	/* somebody else has swept on, or one that expires earlier has come since */
	if (!place->ahead && (!place->under_way || place->swept != swept))
		*place = (OutboxSweepPlace) {.swept = swept, .from = swept};
	walk.from = place->from;
	walk.from_id = place->from_id;
	outbox_claim_lease_walk(&walk);
	/* up to the first one that is open, all have ended; but what this transaction has settled may be rolled back */
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
		place->behind_open = true;
	if (!place->behind_open && !place->ahead && db != NULL)
	{
		place->swept = sweep.n > 0 ? sweep.first : (walk.at_end ? now : walk.from);
		outbox_shmem_sweep(db, swept, place->swept, late_leases);
		/* the clock was set back meanwhile: leases that were committed since seemed to expire later */
		if (outbox_settings_now() < now)
			outbox_shmem_unsweep(db, swept, false);
	}
	for (int i = 0; i < sweep.n; i++)
		try_to_recover(sweep.lease_ids[i], now);
	place->behind_open |= sweep.n > 0;
	place->from = walk.from;
	place->from_id = walk.from_id;
	place->under_way = !walk.at_end;
	return place->under_way;
}
