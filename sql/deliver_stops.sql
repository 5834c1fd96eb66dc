-- What cannot run stops by itself, tells why, and goes on by itself: no event pays for it.
set client_min_messages = warning;
create extension if not exists outbox;
drop schema if exists deliver_stops cascade;
drop role if exists outbox_test_stops, outbox_test_stops_other;
create role outbox_test_stops;
create role outbox_test_stops_other;
create schema deliver_stops;
set jit = off;
grant usage on schema deliver_stops, outbox to outbox_test_stops, outbox_test_stops_other;
grant execute on function outbox.current_delivery to outbox_test_stops, outbox_test_stops_other;
create table deliver_stops.seen (n integer generated always as identity, subscription text, what text);
grant insert, select on deliver_stops.seen to outbox_test_stops, outbox_test_stops_other;
create function deliver_stops.handler(e outbox.event) returns void language plpgsql as $$
begin
    insert into deliver_stops.seen (subscription, what) values ((outbox.current_delivery()).subscription, e.payload ->> 'n');
end
$$;
create function deliver_stops.second(e outbox.event) returns void language plpgsql as $$
begin
    insert into deliver_stops.seen (subscription, what) values ((outbox.current_delivery()).subscription, e.payload ->> 'n');
end
$$;
create procedure deliver_stops.until(condition text) language plpgsql as $$
declare
    met boolean := false;
begin
    for i in 1 .. 2000 loop
        execute 'select ' || condition into met;
        exit when met;
        perform pg_sleep(0.01);
        commit;
    end loop;
    if not coalesce(met, false) then
        raise 'not within its time: %', condition;
    end if;
end
$$;
create procedure deliver_stops.until_stopped(name text) language plpgsql as $$
begin
    call deliver_stops.until(format('exists (select from outbox.subscription_status where subscription = %L and stopped_at is not null)', name));
end
$$;
create function deliver_stops.publish(n integer) returns boolean language sql as $$
    select outbox.publish('ds.event', jsonb_build_object('n', n), event_key => 'k') is not null;
$$;
create view deliver_stops.state as
select subscription, backlog, retry, review_required, stopped_code, stopped_reason from outbox.subscription_status where subscription like 'ds %';
create view deliver_stops.done as
select subscription, string_agg(what, ' ' order by n) as done from deliver_stops.seen group by subscription;
select outbox.subscribe('ds first', '{ds.event}', handler => 'deliver_stops.handler', run_as => 'outbox_test_stops');
select outbox.subscribe('ds second', '{ds.event}', handler => 'deliver_stops.second', run_as => 'outbox_test_stops_other');
reset client_min_messages;

select deliver_stops.publish(1);
call outbox.drain('{ds first,ds second}');
select * from deliver_stops.done order by 1;

-- the function is dropped, and made again
drop function deliver_stops.handler;
select deliver_stops.publish(2);
call outbox.drain('{ds second}');
call deliver_stops.until_stopped('ds first');
select * from deliver_stops.state order by 1;
-- drain says so
\set VERBOSITY default
call outbox.drain('{ds first}', timeout => '100 ms');
create function deliver_stops.handler(e outbox.event) returns void language plpgsql as $$
begin
    insert into deliver_stops.seen (subscription, what) values ((outbox.current_delivery()).subscription, e.payload ->> 'n');
end
$$;
call outbox.drain('{ds first,ds second}');
select * from deliver_stops.state order by 1;
select * from deliver_stops.done order by 1;

-- EXECUTE is revoked; public has it by default
revoke execute on function deliver_stops.handler from public;
select deliver_stops.publish(3);
call outbox.drain('{ds second}');
call deliver_stops.until_stopped('ds first');
select * from deliver_stops.state where subscription = 'ds first';
grant execute on function deliver_stops.handler to outbox_test_stops;
call outbox.drain('{ds first}');

-- USAGE of the schema is revoked
revoke usage on schema deliver_stops from outbox_test_stops;
select deliver_stops.publish(4);
call outbox.drain('{ds second}');
call deliver_stops.until_stopped('ds first');
select * from deliver_stops.state where subscription = 'ds first';
grant usage on schema deliver_stops to outbox_test_stops;
call outbox.drain('{ds first}');

-- the function became a procedure
drop function deliver_stops.handler;
create procedure deliver_stops.handler(e outbox.event) language plpgsql as 'begin end';
grant execute on procedure deliver_stops.handler to outbox_test_stops;
select deliver_stops.publish(5);
call outbox.drain('{ds second}');
call deliver_stops.until_stopped('ds first');
select * from deliver_stops.state where subscription = 'ds first';
drop procedure deliver_stops.handler;
-- now for batches: that is as good
create function deliver_stops.handler(events outbox.event[]) returns void language plpgsql as $$
begin
    insert into deliver_stops.seen (subscription, what) select (outbox.current_delivery()).subscription, e.payload ->> 'n' from unnest(events) e;
end
$$;
call outbox.drain('{ds first}');

-- it returns a set now: nobody would read it
drop function deliver_stops.handler;
create function deliver_stops.handler(events outbox.event[]) returns setof integer language sql as 'select 1';
grant execute on function deliver_stops.handler to outbox_test_stops;
select deliver_stops.publish(54);
call outbox.drain('{ds second}');
call deliver_stops.until_stopped('ds first');
select * from deliver_stops.state where subscription = 'ds first';
drop function deliver_stops.handler;
create function deliver_stops.handler(events outbox.event[]) returns void language plpgsql as $$
begin
    insert into deliver_stops.seen (subscription, what) select (outbox.current_delivery()).subscription, e.payload ->> 'n' from unnest(events) e;
end
$$;
grant execute on function deliver_stops.handler to outbox_test_stops;
call outbox.drain('{ds first}');

-- somebody puts another function of the name beside it: neither is run
create function deliver_stops.handler(e outbox.event) returns void language sql as 'insert into deliver_stops.seen (subscription, what) values (''ds first'', ''never'')';
select deliver_stops.publish(55);
call outbox.drain('{ds second}');
call deliver_stops.until_stopped('ds first');
select * from deliver_stops.state where subscription = 'ds first';
drop function deliver_stops.handler(outbox.event);
call outbox.drain('{ds first}');

-- what it stood still for may be gone by then: that it can run is found out all the same
alter function deliver_stops.handler rename to away;
insert into outbox.delivery_exception (subscription_id, event_id, lane, position, status, attempts, next_attempt_at)
select subscription_id, gen_random_uuid(), 0, 1, 'RETRY', 1, outbox.clock() from outbox.subscription where subscription = 'ds first';
call deliver_stops.until_stopped('ds first');
delete from outbox.delivery_exception where subscription_id = (select subscription_id from outbox.subscription where subscription = 'ds first');
alter function deliver_stops.away rename to handler;
call deliver_stops.until('stopped_at is null from outbox.subscription_status where subscription = ''ds first'' ');

-- the role is dropped, and made again
drop owned by outbox_test_stops;
drop role outbox_test_stops;
select deliver_stops.publish(6);
call outbox.drain('{ds second}');
call deliver_stops.until_stopped('ds first');
select * from deliver_stops.state where subscription = 'ds first';
-- one that takes its name is another one, until somebody says so; a migration is told, too
create role outbox_test_stops;
grant usage on schema deliver_stops, outbox to outbox_test_stops;
grant execute on function outbox.current_delivery to outbox_test_stops;
grant insert, select on deliver_stops.seen to outbox_test_stops;
call deliver_stops.until($$exists (select from deliver_stops.state where subscription = 'ds first' and stopped_reason ~ 'another one')$$);
select stopped_code, stopped_reason from deliver_stops.state where subscription = 'ds first';
select outbox.subscribe('ds first', '{ds.event}', handler => 'deliver_stops.handler', run_as => 'outbox_test_stops');
select outbox.alter_subscription('ds first', max_attempts => 7), outbox.alter_subscription('ds first', reset => '{max_attempts}');
select outbox.alter_subscription('ds first', run_as => 'outbox_test_stops'), outbox.alter_subscription('ds first', run_as => 'outbox_test_stops') as again;
call outbox.drain('{ds first}');
-- a role that is renamed goes on, and its new name is what the definition says
alter role outbox_test_stops rename to outbox_test_stops_new;
create role outbox_test_stops;
select deliver_stops.publish(7);
call outbox.drain('{ds first,ds second}');
select outbox.subscribe('ds first', '{ds.event}', handler => 'deliver_stops.handler', run_as => 'outbox_test_stops_new');
call outbox.maintain();
call deliver_stops.until($$exists (select from outbox.subscription_status where subscription = 'ds first' and run_as = 'outbox_test_stops_new')$$);
drop role outbox_test_stops;
alter role outbox_test_stops_new rename to outbox_test_stops;
select * from deliver_stops.state order by 1;
select * from deliver_stops.done order by 1;
-- none of it was an attempt, and no event was delivered twice
select count(*) as failed from outbox.attempt where subscription like 'ds %';

-- a deployment drops the handler's table: a few probes fail, no event is given up, and it heals by itself
set client_min_messages = warning;
create table deliver_stops.target (n integer primary key);
grant insert on deliver_stops.target to outbox_test_stops;
create function deliver_stops.writes(e outbox.event) returns void language plpgsql as $$
begin
    insert into deliver_stops.target values ((e.payload ->> 'n')::integer);
end
$$;
select outbox.subscribe('ds outage', '{ds.many}', handler => 'deliver_stops.writes', run_as => 'outbox_test_stops', backoff_base => '40 ms', max_attempts => 6);
reset client_min_messages;
select outbox.publish('ds.many', '{"n": 0}') is not null as published;
call outbox.drain('{ds outage}');
drop table deliver_stops.target;
select count(*) from outbox.publish_batch((select jsonb_agg(jsonb_build_object('event_type', 'ds.many', 'event_key', 'k' || n, 'payload', jsonb_build_object('n', n))) from generate_series(1, 50) n));
-- three failures, each a probe, however long it lasts
call deliver_stops.until('count(*) >= 3 from outbox.attempt where subscription = ''ds outage''');
select outage_until is not null as has_stopped, review_required from outbox.subscription_status where subscription = 'ds outage';
select count(*) < 10 as few_attempts, max(n) < 6 as none_used_up
from (select count(*) as n from outbox.attempt where subscription = 'ds outage' group by event_id) a;
create table deliver_stops.target (n integer primary key);
grant insert on deliver_stops.target to outbox_test_stops;
call outbox.drain('{ds outage}');
select count(*) from deliver_stops.target;
select d.status, count(*) from outbox.delivery d where d.subscription = 'ds outage' group by d.status;
select outage_until, retry, review_required from outbox.subscription_status where subscription = 'ds outage';

-- five different events that fail for a reason that may pass stop it as well, but for what another worker is at just then
set client_min_messages = warning;
create table deliver_stops.down ();
create function deliver_stops.calls_out(e outbox.event) returns void language plpgsql as $$
begin
    if to_regclass('deliver_stops.down') is not null then
        raise 'down' using errcode = 'OT503';
    end if;
end
$$;
select outbox.subscribe('ds down', '{ds.many}', handler => 'deliver_stops.calls_out', run_as => 'outbox_test_stops', backoff_base => '1 min');
reset client_min_messages;
select count(*) from outbox.publish_batch((select jsonb_agg(jsonb_build_object('event_type', 'ds.many', 'payload', jsonb_build_object('n', n))) from generate_series(101, 150) n));
call deliver_stops.until('outage_until is not null from outbox.subscription_status where subscription = ''ds down''');
select count(*) = count(distinct event_id) as each_once, count(*) between 5 and 4 + current_setting('outbox.workers')::integer as few_attempts
from outbox.attempt where subscription = 'ds down';
select retry + in_progress + backlog as open, backlog >= 46 - current_setting('outbox.workers')::integer as untried, review_required from outbox.subscription_status where subscription = 'ds down';
drop table deliver_stops.down;

select count(outbox.unsubscribe(subscription, force => true)) as removed from outbox.subscription where subscription like 'ds %';
set client_min_messages = warning;
drop schema deliver_stops cascade;
drop owned by outbox_test_stops, outbox_test_stops_other;
drop role outbox_test_stops, outbox_test_stops_other;
