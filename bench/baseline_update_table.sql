-- The hand-written outbox in its first form: a status table, claimed with
-- UPDATE ... FOR UPDATE SKIP LOCKED by 100 and marked done.
--
-- It has the same information as an event.  Where people write it differently, the cheaper
-- way is taken: a bigint key rather than a random uuid, and a partial index
-- that holds waiting rows only.

create table bench.update_table (
    id bigint generated always as identity primary key,
    event_type text not null,
    payload_version text not null default '1',
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
    payload jsonb not null,
    status text not null default 'PENDING',
    attempts integer not null default 0,
    created_at timestamptz not null default now(),
    claimed_at timestamptz,
    completed_at timestamptz
);
create index update_table_pending on bench.update_table (id) where status = 'PENDING';
