-- The order of a key: what waits behind what, and what lets it go.
set client_min_messages = warning;
create extension if not exists outbox;
drop schema if exists deliver_order cascade;
create schema deliver_order;
set jit = off;
-- what is in "broken" fails, until it is mended
create table deliver_order.broken (name text primary key);
create table deliver_order.seen (n integer generated always as identity, subscription text, event_key text, name text);
create function deliver_order.handler(e outbox.event) returns void language plpgsql as $$
begin
    if exists (select from deliver_order.broken b where b.name = e.payload ->> 'name') then
        perform outbox.fail_permanently('broken');
    end if;
    insert into deliver_order.seen (subscription, event_key, name) values ((outbox.current_delivery()).subscription, e.event_key, e.payload ->> 'name');
end
$$;
create function deliver_order.publish(key text, name text, tenant text default null, deliver_at timestamptz default null) returns uuid language sql as $$
    select outbox.publish('do.event', jsonb_build_object('name', name), event_key => key, tenant_id => tenant, deliver_at => deliver_at);
$$;
create function deliver_order.event(of text) returns uuid language sql as $$
    select event_id from outbox.event where event_type = 'do.event' and payload ->> 'name' = of;
$$;
create view deliver_order.done as
select subscription, coalesce(event_key, 'no key') as event_key, string_agg(name, ' ' order by n) as done from deliver_order.seen group by subscription, event_key;
create view deliver_order.open as
select d.subscription, e.payload ->> 'name' as name, d.tenant_id, d.status, d.attempts from outbox.delivery d join outbox.event e using (event_id)
where d.subscription like 'do %' and d.status <> 'COMPLETED';
insert into deliver_order.broken values ('a2'), ('x');
select outbox.subscribe('do block', '{do.event}', handler => 'deliver_order.handler');
select outbox.subscribe('do continue', '{do.event}', handler => 'deliver_order.handler', on_review => 'continue', lanes => 2);
select outbox.subscribe('do none', '{do.event}', handler => 'deliver_order.handler', ordering => 'none');
reset client_min_messages;

-- of key a the second fails for good; b is another key; the same key of another tenant, and no key at all, are none of its business
select count(deliver_order.publish(key, name, tenant)) as published
from (values (1, 'a', 'a1', null), (2, 'a', 'a2', null), (3, 'a', 'a3', null), (4, 'b', 'b1', null), (5, 'a', 't1', 'tenant'), (6, null, 'n1', null), (7, 'a', 'a4', null), (8, null, 'x', null), (9, null, 'n2', null)) v (n, key, name, tenant);
call outbox.drain('{do block,do continue,do none}');
select subscription, event_key, string_agg(name, ' ' order by name) as done from deliver_order.seen group by subscription, event_key order by 1, 2;
select * from deliver_order.open order by subscription, name;
select subscription, tenant_id, event_key, held_by = deliver_order.event('a2') as held_by_a2, status, blocked_events from outbox.blocked_key where subscription like 'do %';
select subscription, error_code, attempts, blocked_events from outbox.review_required where subscription like 'do %' order by subscription, event_id;
select subscription, backlog, retry, in_progress, blocked, review_required from outbox.subscription_status where subscription like 'do %' order by 1;

-- later events of the key wait too, also those that come now
select count(deliver_order.publish(key, name)) as published from (values (1, 'a', 'a5'), (2, 'b', 'b2')) v (n, key, name);
call outbox.drain('{do block,do continue,do none}');
select name, status from deliver_order.open where subscription = 'do block' order by name;
select subscription, done from deliver_order.done where event_key = 'b' order by 1;

-- the cause is mended, and the event tried again: it goes first, and the others in their order
delete from deliver_order.broken;
select subscription, outbox.retry(subscription, event_id) from outbox.review_required where subscription like 'do %' order by subscription, event_id;
call outbox.drain('{do block,do continue,do none}');
select string_agg(name, ' ' order by n) as done from deliver_order.seen where subscription = 'do block' and event_key = 'a' and name like 'a%';
-- there the key went on without it
select string_agg(name, ' ' order by n) as done from deliver_order.seen where subscription = 'do continue' and event_key = 'a' and name like 'a%';
select count(*) as open from deliver_order.open;
select count(*) as blocked from outbox.blocked_key where subscription like 'do %';
select subscription, action, count(*) from outbox.operator_log where subscription like 'do %' group by 1, 2 order by 1, 2;

-- a person gives it up: the key goes on
insert into deliver_order.broken values ('c1'), ('c3');
select count(deliver_order.publish('c', 'c' || n)) as published from generate_series(1, 5) n;
call outbox.drain('{do block}');
select outbox.discard('do block', deliver_order.event('c1'), 'agreed');
call outbox.drain('{do block}');
select string_agg(name, ' ' order by n) as done from deliver_order.seen where subscription = 'do block' and event_key = 'c';
select name, status from deliver_order.open where subscription = 'do block' order by name;
-- another one holds it now; on_review => 'continue' lets it go
select outbox.alter_subscription('do block', on_review => 'continue');
call outbox.drain('{do block}');
select string_agg(name, ' ' order by n) as done from deliver_order.seen where subscription = 'do block' and event_key = 'c';
-- and back: what has passed has passed, what comes waits
select outbox.alter_subscription('do block', on_review => 'block');
insert into deliver_order.broken values ('d1');
select count(deliver_order.publish('d', 'd' || n)) as published from generate_series(1, 2) n;
call outbox.drain('{do block}');
select name, status from deliver_order.open where subscription = 'do block' order by name;

-- also of the key that has one in review still
select deliver_order.publish('c', 'c6') is not null as published;
call outbox.drain('{do block}');
select name, status from deliver_order.open where subscription = 'do block' and name like 'c%' order by name;

-- an event in RETRY holds its key, one that is delayed does not
truncate deliver_order.broken;
set client_min_messages = warning;
create function deliver_order.once(e outbox.event) returns void language plpgsql as $$
begin
    if e.payload ->> 'name' = 'e1' and (outbox.current_delivery()).attempt = 1 then
        perform outbox.retry_after('300 ms');
    end if;
    insert into deliver_order.seen (subscription, event_key, name) values ('do retry', e.event_key, e.payload ->> 'name');
end
$$;
select outbox.subscribe('do retry', '{do.event}', handler => 'deliver_order.once');
reset client_min_messages;
select count(deliver_order.publish('e', 'e' || n, deliver_at => case n when 2 then clock_timestamp() + interval '1 hour' end)) as published from generate_series(1, 4) n;
call outbox.drain('{do retry}');
select done from deliver_order.done where subscription = 'do retry';
select name, status, attempts from deliver_order.open where subscription = 'do retry';
select delayed, retry from outbox.subscription_status where subscription = 'do retry';
-- when it is due it takes its place at the end
alter system set outbox.test_clock_offset = 7200;
select pg_reload_conf();
create procedure deliver_order.until_done(what text) language plpgsql as $$
begin
    for i in 1 .. 1000 loop
        perform from deliver_order.seen where subscription = 'do retry' and name = what;
        exit when found;
        perform pg_sleep(0.01);
        commit;
    end loop;
end
$$;
call deliver_order.until_done('e2');
select done from deliver_order.done where subscription = 'do retry';
select count(*) as open from deliver_order.open where subscription = 'do retry';
alter system reset outbox.test_clock_offset;
select pg_reload_conf();
-- a due time that is past is no delay
select deliver_order.publish('f', 'f1', deliver_at => '2020-01-01') is not null as published;
call outbox.drain('{do retry}');
select done from deliver_order.done where subscription = 'do retry' and event_key = 'f';
-- what is delayed does not keep drain() waiting (a day: a worker may not have heard yet that the clock is back)
select deliver_order.publish('g', 'g1', deliver_at => clock_timestamp() + interval '1 day') is not null as published;
call outbox.drain('{do retry}');
select name, status from deliver_order.open where subscription = 'do retry';

select count(outbox.unsubscribe(subscription, force => true)) as removed from outbox.subscription where subscription like 'do %';
set client_min_messages = warning;
drop schema deliver_order cascade;
