-- What the benches work on, beside the two hand-written outboxes.

create schema bench;

create table bench.task (
    task_id bigint generated always as identity primary key,
    title text not null,
    owner text not null,
    created_at timestamptz not null default now()
);

-- the work of the handlers that do some
create table bench.effect (
    effect_id bigint generated always as identity primary key,
    event_type text not null,
    aggregate_id text,
    made_at timestamptz not null default now()
);

create table bench.handled (event_id uuid primary key, started_at timestamptz not null);

create table bench.result (name text not null, value float8 not null);

create function bench.do_nothing(event outbox.event) returns void language plpgsql as $$ begin end $$;

create function bench.insert_one(event outbox.event) returns void language plpgsql as $$
begin
    insert into bench.effect (event_type, aggregate_id) values (event.event_type, event.aggregate_id);
end $$;

create function bench.insert_set(events outbox.event[]) returns void language plpgsql as $$
begin
    insert into bench.effect (event_type, aggregate_id)
        select e.event_type, e.aggregate_id from unnest(events) as e;
end $$;

create function bench.record_start(event outbox.event) returns void language plpgsql as $$
begin
    insert into bench.handled values (event.event_id, clock_timestamp());
end $$;

-- 200 bytes as text
create function bench.payload() returns jsonb language sql immutable as
$$ select '{"title": "Book the hall", "owner": "anna", "due": "2026-03-01", "priority": 3, "note": "the quick brown fox jumps over the lazy dog and then it comes back for the bread that it left behind it all"}'::jsonb $$;

-- an event as each of the three takes it; keys repeat every 10,000 events
create procedure bench.load_log(event_type text, events integer) language plpgsql as $$
declare
    batch jsonb := (
        select jsonb_agg(jsonb_build_object('event_type', event_type, 'payload', bench.payload(),
            'aggregate_type', 'task', 'aggregate_id', (n * 7919 % 10000)::text, 'tenant_id', 'tenant-1', 'actor_type', 'user',
            'actor_id', 'anna', 'request_id', 'req-1004', 'trace_id', '4bf92f3577b34da6a3ce929d0e0e4736',
            'correlation_id', 'order-77', 'source', 'bench') order by n)
        from generate_series(1, least(events, 1000)) as n);
begin
    for i in 1 .. (events + 999) / 1000 loop
        perform count(*) from outbox.publish_batch(batch);
    end loop;
end $$;

create procedure bench.load_baseline(tablename text, events integer) language plpgsql as $$
begin
    execute format('truncate bench.%I', tablename);
    execute format($sql$
        insert into bench.%I (event_type, aggregate_type, aggregate_id, event_key, tenant_id, actor_type, actor_id,
            request_id, trace_id, correlation_id, source, payload)
        select 'bench', 'task', (n * 7919 %% 10000)::text, 'task:' || n * 7919 %% 10000, 'tenant-1', 'user', 'anna',
            'req-1004', '4bf92f3577b34da6a3ce929d0e0e4736', 'order-77', 'bench', bench.payload()
        from generate_series(1, $1) as n $sql$, tablename) using events;
end $$;

-- deliveries of a subscription that have their receipt
create function bench.completed(of_subscription text) returns bigint language sql stable as $$
    select coalesce(sum(b.events), 0) from outbox.batch b join outbox.subscription s using (subscription_id)
    where s.subscription = of_subscription
$$;

-- a look every 10 ms, each in a transaction of its own; what fails is no measurement
create procedure bench.wait_for(of_subscription text, deliveries bigint) language plpgsql as $$
begin
    while bench.completed(of_subscription) < deliveries loop
        if exists (select from outbox.delivery_exception) then
            raise exception 'deliveries of % have failed', of_subscription;
        end if;
        commit;
        perform pg_sleep(0.01);
    end loop;
end $$;

-- what a bench of claims has left
create procedure bench.finish_claimed() language plpgsql as $$
declare
    token uuid;
begin
    -- of clients that went away
    perform outbox.ack_all(l.token) from outbox.lease l
    where l.events > (select coalesce(sum(cardinality(b.settled)), 0) from outbox.batch b where b.lease_id = l.lease_id)
                   + (select coalesce(sum(cardinality(p.settled)), 0) from outbox.lease_progress p where p.lease_id = l.lease_id);
    commit;
    loop
        select max(lease_token::text)::uuid into token from outbox.claim('claimed', 1000);
        exit when token is null;
        commit;
        perform outbox.ack_all(token);
        commit;
    end loop;
end $$;
