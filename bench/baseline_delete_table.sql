-- The hand-written outbox in its second form: rows are taken with
-- DELETE ... RETURNING by 100, and the transaction commits when they are handled.

create table bench.delete_table (
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
    created_at timestamptz not null default now()
);
