-- ---------------------------------------------------------------------------
-- External workers: events are claimed under a lease, and settled by its token.
-- ---------------------------------------------------------------------------

create type outbox.claimed_event as (
    event_id uuid,
    event_type text,
    payload_version text,
    aggregate_type text,
    aggregate_id text,
    event_key text,
    tenant_id text,
    actor_type text,
    actor_id text,
    request_id text,
    trace_id text,
    correlation_id text,
    causation_id uuid,
    source text,
    occurred_at timestamptz,
    published_at timestamptz,
    deliver_at timestamptz,
    dedup_key text,
    headers jsonb,
    payload jsonb,
    subscription text,
    attempt integer,
    max_attempts integer,
    replay_no integer,
    lease_token uuid,
    lease_expires_at timestamptz
);
comment on type outbox.claimed_event is
'An event as outbox.claim() hands it out: the columns of outbox.event, then subscription, attempt (from 1, over all outbox.retry()), max_attempts (in the same count), replay_no (0: the live delivery), and lease_token and lease_expires_at, which are those of the whole claim.';

create function outbox.claim(
    subscription text,
    max_events integer default 10,
    lease_duration interval default null,
    worker text default null,
    ack uuid default null)
returns setof outbox.claimed_event
language c volatile
rows 10
as 'MODULE_PATHNAME', 'outbox_claim';
revoke all on function outbox.claim(text, integer, interval, text, uuid) from public;
comment on function outbox.claim(text, integer, interval, text, uuid) is
'Takes events of a subscription without a handler, in the order of their keys, and holds them under a lease, whose token is in every row, until they are settled or the lease expires. Call it in a transaction of its own, as "select * from outbox.claim(...)", and fetch all rows: those that are not fetched are held too. Returns no row when nothing can be had: nothing waits, others hold it, the subscription is paused or its outage guard is up.
max_events: 1-1000; fewer come when their payloads have more than 8 MB. lease_duration: more than 0, at most 1 day; null: that of the subscription. worker: at most 255 bytes, shown in the views. Each claim uses an attempt of its events. An event whose lease expired comes alone. Works also with outbox.dispatch = off, for what has been routed.
ack: null, or the token of an earlier lease; what it still holds is completed first, as by outbox.ack_all(), in the same transaction, so that a batch costs one call and one commit. A transaction that has claimed cannot be prepared (0A000).
Errors: 42704 no such subscription; 55000 it has a handler, or ack names a lease of this very transaction; OB001 the lease of ack is lost, 55P03 another open transaction settles its events: nothing of the call has happened then; 22023, 22004 an argument out of its rules; 25006 a read-only transaction or standby; OB006 deliveries are held until outbox.activate(). Cost: some index probes a lane, and an index probe or two for each event.';

create function outbox.ack(lease_token uuid, event_ids uuid[])
returns integer
language c volatile
as 'MODULE_PATHNAME', 'outbox_ack';
revoke all on function outbox.ack(uuid, uuid[]) from public;
comment on function outbox.ack(uuid, uuid[]) is
'Completes events of a lease, exactly once together with what else the transaction does, at every isolation level. Returns how many were not completed before; an id given twice counts once. An expired lease counts until its events are taken back.
Errors: OB001 the lease is lost, or one of the events is not held under it: nothing of the call has happened; 55000 called in the transaction that claimed them; 55P03 another open transaction settles the same events: roll back and try again; 22004 a null. Cost: a receipt for each event.';

create function outbox.ack_all(lease_token uuid)
returns integer
language c volatile
as 'MODULE_PATHNAME', 'outbox_ack_all';
revoke all on function outbox.ack_all(uuid) from public;
comment on function outbox.ack_all(uuid) is
'Completes all events that the lease still holds; returns how many. Otherwise as outbox.ack().';

create function outbox.ack_one(lease_token uuid, event_id uuid, message_id text default null)
returns boolean
language c volatile
as 'MODULE_PATHNAME', 'outbox_ack_one';
revoke all on function outbox.ack_one(uuid, uuid, text) from public;
comment on function outbox.ack_one(uuid, uuid, text) is
'Completes one event of a lease; returns false when it was completed before. message_id: what the receiving system calls it, at most 512 bytes, shown in outbox.delivery. Otherwise as outbox.ack().';

create function outbox.fail(
    lease_token uuid,
    event_id uuid,
    error_code text default null,
    permanent boolean default false,
    retry_after interval default null,
    error_message text default null)
returns text
language c volatile
as 'MODULE_PATHNAME', 'outbox_fail';
revoke all on function outbox.fail(uuid, uuid, text, boolean, interval, text) from public;
comment on function outbox.fail(uuid, uuid, text, boolean, interval, text) is
'Says that an event of a lease could not be handled; returns its new status: RETRY, or REVIEW_REQUIRED when its attempts are used up, permanent is true, or the subscription''s rules call error_code permanent. Later events of its key under the lease go back unstarted and are not held any more: do not handle them.
error_code: an SQLSTATE, which counts as one, or [A-Za-z0-9_.:-], 1-64 characters, the first a letter, at most 6 of them digits and 5 of these in a row; null: "failed". It is shown in views, metrics and the log: it names a kind of failure, and never holds data. retry_after: the delay until the next attempt, at most 30 days (longer is cut), instead of the subscription''s. error_message: kept, the first 1024 bytes of it, only with outbox.keep_error_message = primary.
Errors: OB001 the lease is lost, or the event is not held under it (any more); 22023, 22004 an argument out of its rules; 55000, 55P03 as outbox.ack(). Cost: reads the later events of its lane under the lease.';

create function outbox.extend(lease_token uuid, lease_duration interval default null)
returns timestamptz
language c volatile
as 'MODULE_PATHNAME', 'outbox_extend';
revoke all on function outbox.extend(uuid, interval) from public;
comment on function outbox.extend(uuid, interval) is
'Lets a lease end lease_duration from now (more than 0, at most 1 day; null: that of the subscription), unless it ends later already. Returns when it ends. A transaction that has extended a lease cannot be prepared (0A000). Errors: OB001 the lease is lost, or all its events are settled; 22023 out of range; 55000, 55P03 as outbox.ack().';

create function outbox.release(lease_token uuid, event_ids uuid[], delay interval default null)
returns integer
language c volatile
as 'MODULE_PATHNAME', 'outbox_release';
revoke all on function outbox.release(uuid, uuid[], interval) from public;
comment on function outbox.release(uuid, uuid[], interval) is
'Gives events of a lease back unstarted, without using an attempt, to be claimed again after delay (at most 30 days, longer is cut; null: at once). Later events of their keys under the lease go back with them. Returns how many of them were held; those that are completed or back already do not count. Errors: OB001 the lease is lost or never had one of them; 22023, 22004 an argument out of its rules; 55000, 55P03 as outbox.ack().';

create function outbox.release_all(lease_token uuid)
returns integer
language c volatile
as 'MODULE_PATHNAME', 'outbox_release_all';
revoke all on function outbox.release_all(uuid) from public;
comment on function outbox.release_all(uuid) is
'Gives all events that the lease still holds back unstarted, without using an attempt: for a worker that ends. Returns how many. Errors: as outbox.release().';

create function outbox.lease_events(
    out lease_id bigint,
    out subscription_id integer,
    out event_id uuid,
    out replay_no integer,
    out lane integer,
    out "position" bigint,
    out attempts integer,
    out has_exception boolean,
    out worker text,
    out expires_at timestamptz)
returns setof record
language c volatile
as 'MODULE_PATHNAME', 'outbox_lease_events';
revoke all on function outbox.lease_events() from public;
comment on function outbox.lease_events() is
'Internal: the events that external workers hold, for the views; never a token. Reads the leases that have not expired yet.';
