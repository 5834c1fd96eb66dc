-- ---------------------------------------------------------------------------
-- The tables behind the contract: internal, not granted to anyone.
--
-- What goes well is only ever appended: event_log, lane_entry, lane_cursor,
-- receipt_log, batch, tick.  Rows that change are few: one a lane, one a
-- subscription, and one for each delivery that did not go well.
-- All text compares byte by byte (collation "C").
-- ---------------------------------------------------------------------------

create table outbox.incarnation (
    incarnation integer primary key check (incarnation > 0),
    system_identifier bigint not null,
    database_oid oid not null,
    activated_at timestamptz not null
);
comment on table outbox.incarnation is
'The clusters this log has lived in, the newest last. Transaction ids mean something within one of them only; when the newest is not the one at hand, nothing is routed or delivered until outbox.activate().';

-- The log. Rows live in the segments, its inheritance children: one an
-- interval of event ids, each with its own indexes.
create table outbox.event_log (
    event_id uuid not null,
    event_type text collate "C" not null,
    payload_version text collate "C" not null,
    aggregate_type text collate "C",
    aggregate_id text collate "C",
    event_key text collate "C",
    tenant_id text collate "C",
    actor_type text collate "C",
    actor_id text collate "C",
    request_id text collate "C",
    trace_id text collate "C",
    correlation_id text collate "C",
    causation_id uuid,
    source text collate "C",
    occurred_at timestamptz not null,
    published_at timestamptz not null,
    deliver_at timestamptz,
    dedup_key text collate "C",
    headers jsonb,
    payload jsonb not null,
    -- internal, behind the columns of outbox.event
    xid xid8 not null,
    incarnation integer not null,
    -- the parent holds no row: every row is in a segment
    constraint event_log_is_segmented check (false) no inherit
);
comment on table outbox.event_log is 'The event log: parent of its segments event_log_*, holds no rows itself.';

-- The proof that a subscription has completed an event.  Segmented like the log.
create table outbox.receipt_log (
    event_id uuid not null,
    batch_id bigint not null,
    subscription_id integer not null,
    replay_no smallint not null,
    attempts smallint not null,
    batch_index smallint not null,
    message_id text collate "C",
    constraint receipt_log_is_segmented check (false) no inherit
);
comment on table outbox.receipt_log is 'Receipts: parent of its segments receipt_log_*, holds no rows itself. Unique per (event, subscription, replay).';

create table outbox.segment (
    from_id uuid primary key,
    to_id uuid not null unique,
    name text collate "C" not null unique,
    past_xid xid8,
    sealed boolean not null default false,
    created_at timestamptz not null,
    archived_at timestamptz,
    events_dropped_at timestamptz,
    check (from_id < to_id)
);
comment on table outbox.segment is 'The segments of the log and of the receipts: event_log_<name>, receipt_log_<name>. Sealed: its range is past, and no transaction that could write it is left. archived_at: outbox.archive_function has had it. events_dropped_at: event_log_<name> is gone, receipt_log_<name> is still there. A table retired_<oid> is one of a segment that is gone, on its way off the disk.';

-- What retention keeps of segments that it drops: the few events with an open
-- delivery, and their receipts.
create table outbox.event_log_kept (primary key (event_id)) inherits (outbox.event_log);
comment on table outbox.event_log_kept is 'Events older than outbox.retention that a delivery still needs, from segments that are gone.';

create table outbox.receipt_log_kept (primary key (event_id, subscription_id, replay_no)) inherits (outbox.receipt_log);
comment on table outbox.receipt_log_kept is 'Receipts of the events in event_log_kept, from segments that are gone.';
create index receipt_log_kept_batch on outbox.receipt_log_kept (batch_id);

create table outbox.batch (
    batch_id bigint primary key,
    subscription_id integer not null,
    started_at timestamptz not null,
    completed_at timestamptz not null,
    events integer not null check (events > 0),
    processing_us integer[] not null,
    worker text collate "C",
    first_event uuid not null,
    last_event uuid not null,
    lease_id bigint,
    settled smallint[],
    check (first_event <= last_event),
    check ((lease_id is null) = (settled is null))
);
comment on table outbox.batch is 'One row for each committed batch of receipts: when, by whom, how long each handler call took (microseconds, by receipt_log.batch_index), and between which event ids its receipts lie. Of an external worker: of which lease they are, and its events that this has settled, as indexes into its arrays, from 0.';
create index batch_lease on outbox.batch (lease_id);

create table outbox.subscription (
    subscription_id integer generated always as identity primary key,
    subscription text collate "C" not null unique,
    event_types text[] collate "C" not null check (cardinality(event_types) > 0),
    handler text collate "C",
    ordering text collate "C" not null check (ordering in ('key', 'none')),
    lanes integer not null check (lanes between 1 and 1024),
    max_attempts integer not null check (max_attempts between 1 and 1000),
    backoff_base interval not null,
    backoff_factor float8 not null check (backoff_factor between 1 and 1000),
    backoff_max interval not null,
    lease_duration interval not null,
    handler_timeout interval not null,
    batch_size integer not null check (batch_size between 1 and 10000),
    start_at timestamptz,
    on_review text collate "C" not null check (on_review in ('block', 'continue')),
    permanent_errors text[] collate "C",
    transient_errors text[] collate "C",
    run_as text collate "C",
    paused boolean not null default false,
    first_lane integer not null default 0 check (first_lane >= 0),
    ordered_from integer not null default 0 check (ordered_from >= 0),
    seam pg_snapshot not null,
    seam_xid xid8 not null,
    seam_incarnation integer not null,
    created_at timestamptz not null,
    created_by text collate "C" not null
);
comment on table outbox.subscription is 'Definitions of the subscriptions. seam and seam_xid: the snapshot and transaction of subscribe(); events that it does not see belong to the subscription. first_lane: the first of the lanes that new events go to. ordered_from: from which lane on ordering ''key'' holds; those below were filled without.';

-- What changes while a subscription works, apart from its definition.
create table outbox.subscription_state (
    subscription_id integer primary key,
    joined boolean not null default false,
    catch_up_from pg_snapshot,
    catch_up_to pg_snapshot,
    catch_up_through uuid,
    failures integer not null default 0,
    last_failed uuid,
    outage_level integer not null default 0,
    outage_until timestamptz,
    stopped_at timestamptz,
    stopped_code text collate "C",
    stopped_reason text collate "C"
);
comment on table outbox.subscription_state is 'Running state: whether the subscription has joined the live ticks, or how far its catch-up is; the outage guard, and why a subscription stands still.';

create table outbox.lane (
    subscription_id integer not null,
    lane integer not null check (lane >= 0),
    base bigint not null default 0,
    token uuid unique,
    holder bigint,
    worker text collate "C",
    taken_at timestamptz,
    expires_at timestamptz,
    careful_through bigint,
    primary key (subscription_id, lane),
    check ((token is null) = (holder is null and expires_at is null))
) with (fillfactor = 50);
comment on table outbox.lane is 'One row a lane, and its lease. Whoever works a lane locks its row by the token (FOR KEY SHARE) before anything else; a takeover changes the token.';

create table outbox.lane_entry (
    subscription_id integer not null,
    lane integer not null,
    position bigint not null check (position > 0),
    event_id uuid not null,
    event_tid tid not null,
    primary key (subscription_id, lane, position)
);
comment on table outbox.lane_entry is 'What the router has put into the lanes, in order; appended only. event_tid: where it saw the event''s row, a hint that saves an index probe.';

create table outbox.lane_cursor (
    subscription_id integer not null,
    lane integer not null,
    position bigint not null,
    primary key (subscription_id, lane, position)
);
comment on table outbox.lane_cursor is 'How far each lane has been worked: appended, and read from the end.';

-- Leases of external workers: what outbox.claim() has handed out, appended.
create table outbox.lease (
    lease_id bigint generated always as identity primary key,
    token uuid not null unique,
    subscription_id integer not null,
    incarnation integer not null,
    claim_xid xid8 not null,
    worker text collate "C",
    claimed_at timestamptz not null,
    expires_at timestamptz not null,
    events smallint not null check (events > 0),
    event_ids uuid[] not null,
    lanes integer[] not null,
    positions bigint[] not null,
    replays smallint[],
    attempts smallint[],
    gates bigint[]
) with (toast_tuple_target = 8160);
comment on table outbox.lease is
'One row a claim. event_ids and the arrays beside it have one element for each event: its lane, its position (0: of a replay), its replay (null: none is), its attempt (null: all are first ones), and where it was taken from: 0 the lane, -1 its row in delivery_exception, else the gate behind which it was parked (null: all from lanes). Changed only by outbox.extend(), and when an expired lease is taken back: then the token is another one.';
-- ids hardly compress; trying that would be a quarter of what a claim of 500 costs
alter table outbox.lease
    alter column event_ids set storage external,
    alter column lanes set storage external,
    alter column positions set storage external;
-- with what it takes to see that a lease has ended
create index lease_expires on outbox.lease (expires_at, lease_id) include (events);

create table outbox.lease_progress (
    lease_id bigint not null,
    progress_id bigint not null,
    completed boolean not null,
    settled smallint[] not null,
    primary key (lease_id, progress_id)
);
comment on table outbox.lease_progress is 'What has been settled of a lease beside its batches, appended: indexes into its arrays, from 0. Returned: then progress_id is below 0; or completed by another one before. The lease has ended when all are settled.';

create table outbox.lane_lease (
    subscription_id integer not null,
    lane integer not null,
    lease_id bigint not null,
    primary key (subscription_id, lane, lease_id)
);
comment on table outbox.lane_lease is 'Which leases hold a lane whose order of keys is kept, appended: the newest one counts, and the lane is free when it has ended.';

create table outbox.tick (
    incarnation integer not null,
    tick bigint not null,
    chunk integer not null,
    seen pg_snapshot not null,
    target pg_snapshot not null,
    through uuid,
    routed integer not null,
    created_at timestamptz not null,
    primary key (incarnation, tick, chunk),
    check (chunk >= 0)
);
comment on table outbox.tick is 'What the router has routed: the events not visible in seen and visible in target, up to the event id through (null: all of them). One row a chunk; a second router would meet the primary key.';

-- Events with a due time, until it comes.
create table outbox.delayed (
    due_at timestamptz not null,
    event_id uuid not null,
    subscription_id integer not null,
    primary key (due_at, event_id, subscription_id)
);
comment on table outbox.delayed is 'Deliveries of events with deliver_at, until they are due.';

-- A delivery that did not go well: it waits, is being tried again, needs a
-- person, or was given up by one.
create table outbox.delivery_exception (
    subscription_id integer not null,
    event_id uuid not null,
    replay_no smallint not null default 0,
    lane integer not null,
    position bigint not null,
    status text collate "C" not null
        check (status in ('RETRY', 'IN_PROGRESS', 'REVIEW_REQUIRED', 'DISCARDED')),
    attempts integer not null check (attempts >= 0),
    attempts_before integer not null default 0 check (attempts_before >= 0),
    next_attempt_at timestamptz,
    tenant_id text collate "C" not null default '',
    event_key text collate "C",
    error_code text collate "C",
    error_message text collate "C",
    started_at timestamptz,
    first_failed_at timestamptz,
    failed_at timestamptz,
    worker text collate "C",
    gate_released boolean not null default false,
    lease_id bigint,
    alone boolean not null default false,
    primary key (subscription_id, event_id, replay_no),
    check ((status = 'RETRY') = (next_attempt_at is not null))
) with (fillfactor = 70);
comment on table outbox.delivery_exception is 'Deliveries that did not go well at once. attempts counts since the last outbox.retry(), attempts_before those before it. tenant_id is '''' for none. A replay (replay_no > 0) is a row from its beginning, without event_key and position: it stands outside of the order of keys. lease_id: of the external worker that is at it. alone: the lease it was in expired, and it is handed out alone.';
-- live retries and replays are found apart, so that neither waits behind a million of the others
create index delivery_exception_live_due on outbox.delivery_exception (subscription_id, lane, next_attempt_at)
    where status = 'RETRY' and replay_no = 0;
create index delivery_exception_replay_due on outbox.delivery_exception (subscription_id, lane, next_attempt_at)
    where status = 'RETRY' and replay_no > 0;
create index delivery_exception_started on outbox.delivery_exception (subscription_id, lane)
    where status = 'IN_PROGRESS';
create index delivery_exception_ended on outbox.delivery_exception (subscription_id, lane)
    where status = 'DISCARDED' and not gate_released;
create index delivery_exception_key on outbox.delivery_exception (subscription_id, tenant_id, event_key, position)
    where event_key is not null and status <> 'DISCARDED';
-- the same where what is in review holds nobody up, and one key may have a million of these
create index delivery_exception_key_trying on outbox.delivery_exception (subscription_id, tenant_id, event_key, position)
    where event_key is not null and status in ('RETRY', 'IN_PROGRESS');
create index delivery_exception_event on outbox.delivery_exception (event_id);
create index delivery_exception_review on outbox.delivery_exception (subscription_id, event_id, replay_no)
    where status = 'REVIEW_REQUIRED';
-- the newest and the oldest in review, of all and of one subscription
create index delivery_exception_review_time on outbox.delivery_exception (failed_at)
    where status = 'REVIEW_REQUIRED';
create index delivery_exception_review_since on outbox.delivery_exception (subscription_id, failed_at)
    where status = 'REVIEW_REQUIRED';

-- How many of them have which status: differences, appended by a trigger, whose sum is exact.
-- (Not dumped: activate() counts anew.)
create table outbox.exception_count (
    entry_id bigint primary key,
    subscription_id integer not null,
    status text collate "C" not null,
    event_type text collate "C" not null,
    n bigint not null
);
comment on table outbox.exception_count is 'Differences in the number of deliveries by subscription and status, and for those in review by event type ('''' for the others); upkeep folds them. DELAYED: rows of outbox.delayed.';

create function outbox.count_exceptions()
returns trigger
language c
as 'MODULE_PATHNAME', 'outbox_count_exceptions';
revoke all on function outbox.count_exceptions() from public;
comment on function outbox.count_exceptions() is 'Internal: the trigger that keeps outbox.exception_count.';
create trigger count_exceptions after insert or update or delete on outbox.delivery_exception
    for each row execute function outbox.count_exceptions();
alter table outbox.delivery_exception enable always trigger count_exceptions;

-- A key whose later events wait behind an unfinished one.
create table outbox.gate (
    gate_id bigint generated always as ((subscription_id::bigint << 40) + number) stored primary key,
    subscription_id integer not null,
    lane integer not null,
    tenant_id text collate "C" not null,
    event_key text collate "C" not null,
    held_by uuid,
    through bigint not null,
    alone_through bigint not null default 0,
    created_at timestamptz not null,
    number bigint generated always as identity,
    unique (subscription_id, lane, tenant_id, event_key)
) with (fillfactor = 70);
comment on table outbox.gate is 'One row a blocked key: held_by is the unfinished event (null: its parked events may run), through the position up to which parked events are done, alone_through that up to which an external worker gets them one by one. tenant_id is '''' for none. gate_id: the subscription and a number, so that what is parked lies by subscription.';
-- in an order, so that the next one is found without a look at the others
create index gate_open on outbox.gate (subscription_id, lane, gate_id) where held_by is null;
-- the keys that have been blocked longest, of all and of one subscription; and one key
create index gate_since on outbox.gate (created_at) where held_by is not null;
create index gate_of_subscription_since on outbox.gate (subscription_id, created_at) where held_by is not null;
create index gate_key on outbox.gate (event_key) where held_by is not null;

create table outbox.parked (
    gate_id bigint not null,
    position bigint not null,
    event_id uuid not null,
    primary key (gate_id, position)
);
comment on table outbox.parked is 'Later events of a blocked key, in order; appended once, read when the gate opens.';

create table outbox.attempt_log (
    attempt_id bigint generated always as identity primary key,
    subscription_id integer not null,
    event_id uuid not null,
    replay_no smallint not null,
    attempt integer not null,
    started_at timestamptz,
    failed_at timestamptz not null,
    worker text collate "C",
    error_code text collate "C" not null
);
comment on table outbox.attempt_log is 'Failed attempts, appended.';
create index attempt_log_event on outbox.attempt_log (event_id, subscription_id);
create index attempt_log_failed on outbox.attempt_log (failed_at);

create table outbox.dedup (
    tenant_id text collate "C" not null,
    event_type text collate "C" not null,
    dedup_key text collate "C" not null,
    event_id uuid not null,
    payload_hash uuid not null,
    published_at timestamptz not null,
    primary key (tenant_id, event_type, dedup_key)
);
comment on table outbox.dedup is 'Keys of publishers that may repeat themselves, within outbox.dedup_window. tenant_id is '''' for none.';

create table outbox.consumed (
    tenant_id text collate "C" not null,
    receiver text collate "C" not null,
    message_id text collate "C" not null,
    consumed_at timestamptz not null,
    primary key (tenant_id, receiver, message_id)
);
comment on table outbox.consumed is 'Messages from elsewhere that a receiver has had, kept as long as receipts. tenant_id is '''' for none.';

create table outbox.event_type_definition (
    event_type text collate "C" not null,
    payload_version text collate "C" not null,
    allowed_keys text[] collate "C",
    required_keys text[] collate "C",
    key_types jsonb,
    importance text collate "C" not null check (importance in ('high', 'medium', 'low')),
    max_payload_bytes integer check (max_payload_bytes > 0),
    exempt_keys text[] collate "C",
    description text collate "C",
    defined_at timestamptz not null,
    defined_by text collate "C" not null,
    primary key (event_type, payload_version)
);
comment on table outbox.event_type_definition is 'What the payloads of event types may hold. Read whole by each publishing session; outbox.define_event_type() tells them of changes.';

create table outbox.operator_entry (
    entry_id bigint generated always as identity primary key,
    at timestamptz not null,
    role_name text collate "C" not null,
    session_role text collate "C",
    action text collate "C" not null,
    subscription text collate "C",
    event_id uuid,
    events bigint,
    reason text collate "C",
    detail text collate "C"
);
comment on table outbox.operator_entry is 'Who did what by hand, and when. session_role: who had logged in, when that is not role_name. events: how many deliveries a call for many moved, detail: which it asked for.';

create table outbox.role_grant (
    role_name text collate "C" not null,
    kind text collate "C" not null check (kind in ('publisher', 'worker', 'operator', 'monitor')),
    scope text collate "C" not null,
    granted_at timestamptz not null,
    granted_by text collate "C" not null,
    primary key (role_name, kind, scope),
    check ((scope = '') = (kind in ('operator', 'monitor')))
);
comment on table outbox.role_grant is 'Who may do what: scope is a pattern of event types for publishers, a subscription for workers. Written by outbox.grant_*() and outbox.revoke_*(), which also grant the privileges that go with it.';

-- Names mean something in another server; which roles they are here is not dumped.
create table outbox.granted_role (
    role_id oid primary key,
    role_name text collate "C" not null unique
);
comment on table outbox.granted_role is 'Which role of this server each name in outbox.role_grant is, so that a right follows a role that is renamed, and is not inherited by another one that takes its name. A name that is not here, as after a restore, is whose it is now.';

create table outbox.run_as_role (
    subscription_id integer primary key,
    role_id oid not null
);
comment on table outbox.run_as_role is 'Which role of this server each subscription was given as run_as, so that it follows a role that is renamed, and does not run as another one that takes its name. Not dumped: a subscription that is not here, as after a restore, runs as whoever bears the name then, unless outbox.run_as_gone has it.';

create table outbox.run_as_gone (
    subscription_id integer primary key
);
comment on table outbox.run_as_gone is 'One row for each in outbox.run_as_role. A dump carries those whose run_as is not the name of that role any more, since it was dropped, or just renamed: a row that came with a restore, and so is not in outbox.run_as_role, tells that whoever bears the name is not who was meant.';

create table outbox.maintenance (
    task text collate "C" primary key,
    last_run timestamptz not null,
    last_success timestamptz,
    last_error_at timestamptz,
    last_error text collate "C",
    removed bigint not null default 0,
    removed_total bigint not null default 0,
    kept bigint not null default 0,
    kept_why text collate "C",
    resume_at bigint not null default 0
) with (fillfactor = 50);
comment on table outbox.maintenance is 'What upkeep did last, one row a task. Not dumped: it tells of this database alone.';

revoke all on all tables in schema outbox from public;
revoke all on all sequences in schema outbox from public;

-- A dump carries the contents.  No foreign keys: pg_restore --jobs loads the tables of an extension, whose
-- constraints are there from the beginning, in any order.
do $$
declare
    relation text;
begin
    foreach relation in array array[
        'incarnation', 'segment', 'event_log_kept', 'receipt_log_kept', 'subscription', 'subscription_state', 'lane', 'lane_entry', 'lane_cursor',
        'lease', 'lease_progress', 'lane_lease', 'tick',
        'delayed', 'delivery_exception', 'gate', 'parked', 'attempt_log', 'dedup', 'consumed', 'event_type_definition', 'operator_entry', 'batch',
        'subscription_subscription_id_seq', 'gate_number_seq', 'attempt_log_attempt_id_seq', 'operator_entry_entry_id_seq',
        'lease_lease_id_seq']
    loop
        perform pg_catalog.pg_extension_config_dump(('outbox.' || relation)::pg_catalog.regclass, '');
    end loop;
    -- What is of a role that is gone is nobody's in a restored database, whoever bears its name there; upkeep need not have noticed.
    perform pg_catalog.pg_extension_config_dump('outbox.role_grant',
        'where not exists (select from outbox.granted_role g where g.role_name = role_grant.role_name'
        ' and (not exists (select from pg_catalog.pg_roles a where a.oid = g.role_id)'
        ' or exists (select from pg_catalog.pg_roles a where a.rolname::text = g.role_name and a.oid <> g.role_id)))');
    perform pg_catalog.pg_extension_config_dump('outbox.run_as_gone',
        'where not exists (select from outbox.run_as_role b join outbox.subscription s on s.subscription_id = b.subscription_id'
        ' join pg_catalog.pg_roles a on a.oid = b.role_id and a.rolname::text = s.run_as'
        ' where b.subscription_id = run_as_gone.subscription_id)');
end
$$;
