-- Many events at a time: one commit for several calls; and what a handler is given is what was published.
set client_min_messages = error;
set timezone = 'UTC';
create extension if not exists outbox;
drop schema if exists deliver_many cascade;
create schema deliver_many;
create table deliver_many.call (subscription text, size integer, what text, xid xid8 default pg_current_xact_id(), n bigint generated always as identity);
create table deliver_many.seen (subscription text, event_id uuid, whole jsonb, n bigint generated always as identity);

create function deliver_many.batch(events outbox.event[]) returns void language plpgsql as $$
declare
    it text := (select subscription from outbox.current_delivery());
begin
    insert into deliver_many.call (subscription, size) values (it, cardinality(events));
    if exists (select from unnest(events) e where e.payload ->> 'n' = 'bad') then
        raise exception 'one of them is bad';
    end if;
    insert into deliver_many.seen (subscription, event_id) select it, e.event_id from unnest(events) e;
end $$;
create procedure deliver_many.publish(events integer, bad integer) language plpgsql as $$
begin
    perform count(*) from outbox.publish_batch((select jsonb_agg(jsonb_build_object('event_type', 'dm.many', 'event_key', 'k' || i % 50,
        'payload', jsonb_build_object('n', case i when bad then 'bad' else 'good' end))) from generate_series(1, events) i));
end $$;

-- calls of at most batch_size share a transaction, which takes no more than that of one lane; small batches are what was asked for
select outbox.subscribe('dm lanes', '{dm.many}', 'deliver_many.batch', lanes => 8, batch_size => 150, max_attempts => 1);
select outbox.subscribe('dm one lane', '{dm.many}', 'deliver_many.batch', lanes => 1, batch_size => 150, max_attempts => 1);
select outbox.subscribe('dm small', '{dm.many}', 'deliver_many.batch', lanes => 8, batch_size => 100, max_attempts => 1);
call deliver_many.publish(5000, null);
call outbox.drain('{dm one lane,dm lanes,dm small}');
select s.subscription, sum(b.events) as events, max(b.events) > 100 as over_100, max(b.events) > 150 as over_150, max(b.events) <= 600 as up_to_600
from outbox.batch b join outbox.subscription s using (subscription_id) where s.subscription like 'dm%' group by 1 order by 1;
select subscription, sum(size) as events, max(size) > 100 as over_100, max(size) <= 150 as up_to_150 from deliver_many.call group by 1 order by 1;
select subscription, max(calls) > 1 as calls_share_transactions
from (select subscription, count(*) as calls from deliver_many.call group by subscription, xid) t group by 1 order by 1;
select subscription, count(*), count(distinct event_id) from deliver_many.seen group by 1 order by 1;

-- in the middle of such a transaction a bad event pays alone
truncate deliver_many.seen;
call deliver_many.publish(2000, 1111);
call outbox.drain('{dm one lane,dm lanes,dm small}');
select d.subscription, d.status, d.attempts, e.payload, count(*),
    sum((select count(*) from deliver_many.seen s where s.subscription = d.subscription and s.event_id = d.event_id)) as effects
from outbox.delivery d join outbox.event e using (event_id)
where d.subscription like 'dm%' and (d.status <> 'COMPLETED' or d.event_id in (select event_id from deliver_many.seen))
group by 1, 2, 3, 4 order by 1, 2;
select outbox.unsubscribe(subscription, force => true) from outbox.subscription where subscription like 'dm%';

-- the event is whole: with and without nulls, short, compressed, and out of line
truncate deliver_many.seen, deliver_many.call;
create function deliver_many.whole(event outbox.event) returns void language sql set timezone = 'UTC' as $$
    insert into deliver_many.seen values ('whole', event.event_id, to_jsonb(event))
$$;
create function deliver_many.wholes(events outbox.event[]) returns void language plpgsql set timezone = 'UTC' as $$
declare
    event outbox.event;
begin
    foreach event in array events loop
        insert into deliver_many.seen values ('wholes', event.event_id, to_jsonb(event));
    end loop;
    -- it may do with it what it likes
    events[1] := events[cardinality(events)];
    events := events || events;
    insert into deliver_many.call (subscription, size, what) values ('wholes', cardinality(events), events[1] = events[cardinality(events)]);
end $$;
create function deliver_many.in_sql(events outbox.event[]) returns void language sql set timezone = 'UTC' as $$
    insert into deliver_many.seen select 'in sql', e.event_id, to_jsonb(e) from unnest(events) e
$$;
select outbox.subscribe('dm ' || name, '{dm.whole}', 'deliver_many.' || name) from unnest('{whole,wholes,in_sql}'::text[]) name;
begin;
select count(outbox.publish('dm.whole', '{}'));
select count(outbox.publish('dm.whole', '{"a": [1, null]}', 'task', '7', tenant_id => 't', actor_type => 'u', actor_id => 'a', request_id => 'r',
    trace_id => '4bf92f3577b34da6a3ce929d0e0e4736', correlation_id => 'c', causation_id => '00000000-0000-7000-8000-000000000001', source => 's',
    payload_version => '2', headers => '{"h": 1}', occurred_at => '2020-02-02 02:02:02+00', dedup_key => 'dm'));
select count(outbox.publish('dm.whole', jsonb_build_object('long', repeat('x', 20000))));
select count(outbox.publish('dm.whole', jsonb_build_object('long', (select string_agg(md5(i::text), '') from generate_series(1, 2000) i))));
commit;
call outbox.drain('{dm whole,dm wholes,dm in_sql}');
select s.subscription, count(*), bool_and(s.whole = to_jsonb(e)) as same
from deliver_many.seen s join outbox.event e using (event_id) group by 1 order by 1;
select sum(size), bool_and(what = 'true') as as_it_likes from deliver_many.call where subscription = 'wholes';

select outbox.unsubscribe(subscription, force => true) from outbox.subscription where subscription like 'dm%';
drop schema deliver_many cascade;
