-- outbox.delivery asked for one event shows what the whole of it has of that event, wherever its deliveries are; outbox.is_open() agrees.
set client_min_messages = warning;
create extension if not exists outbox;
drop schema if exists places cascade;
drop role if exists outbox_test_places;
create role outbox_test_places;
create schema places;
set jit = off;
grant usage on schema places to outbox_test_places;
select outbox.grant_monitor('outbox_test_places');

create table places.published (name text, event_id uuid);
create function places.publish(of text, named text, key text default null, tenant text default null, due timestamptz default null) returns void language sql as $$
    insert into places.published
    select named, outbox.publish('dp.' || of, jsonb_build_object('name', named), event_key => key, tenant_id => tenant, deliver_at => due)
$$;
create function places.event(named text) returns uuid language sql as 'select event_id from places.published where name = named';
create function places.token(of text, named text) returns uuid language sql as $$
    select token from outbox.lease join outbox.subscription using (subscription_id)
    where subscription = of and places.event(named) = any (event_ids) order by lease_id desc limit 1
$$;
create procedure places.comes_true(condition text) language plpgsql as $$
declare
    yes boolean;
begin
    for i in 1 .. 1000 loop
        execute 'select ' || condition into yes;
        commit;
        exit when yes;
        perform pg_sleep(0.02);
    end loop;
    if not yes then raise 'it does not: %', condition; end if;
end $$;
-- complete what is held
create procedure places.ack(of text) language sql as $$
    select count(outbox.ack_all(l.token)) from outbox.lease l join outbox.subscription s using (subscription_id)
    where s.subscription = of and exists (select from outbox.lease_events() h where h.lease_id = l.lease_id)
$$;
-- claim until the named event is held; or on and on, until something else is true
create procedure places.claim(of text, named text default null, condition text default 'false') language plpgsql as $$
declare
    yes boolean;
begin
    for i in 1 .. 500 loop
        if named is null then
            call places.ack(of);
            commit;
        end if;
        perform from outbox.claim(of, 4, '1 h', 'me');
        commit;
        execute 'select ' || condition into yes;
        exit when yes or places.token(of, named) is not null;
        perform pg_sleep(0.02);
    end loop;
end $$;

-- complete what is held, and claim until all is done that the oldest lanes have, or that nothing comes any more
create procedure places.finish(of text) language plpgsql as $$
begin
    for i in 1 .. 200 loop
        call places.ack(of);
        commit;
        perform from outbox.claim(of, 4, '1 h', 'me');
        commit;
        exit when not exists (select from outbox.lane l join outbox.subscription s using (subscription_id) where s.subscription = of and l.lane = 0);
        perform pg_sleep(0.01);
    end loop;
    call places.ack(of);
end $$;

create view places.shown as
select subscription, event_id, replay_no, tenant_id, status, attempts, next_attempt_at, lease_expires_at, worker, error_code, completed_at from outbox.delivery;
grant select on places.shown, places.published to outbox_test_places;

-- how many rows are shown of each event, or of some, and are not in the whole; or the reverse. Beside it of how many events outbox.is_open() says another thing.
create function places.differences(out of_each bigint, out of_one bigint, out of_several bigint, out is_open bigint) language plpgsql set enable_seqscan = off as $$
declare
    ids uuid[] := array(select event_id from places.published order by event_id);
    one uuid;
    several uuid[];
    other boolean;
    n bigint;
begin
    create temporary table whole on commit drop as select * from (select * from places.shown offset 0) w where w.event_id = any (ids);
    create temporary table seen on commit drop as select s.* from unnest(ids) id cross join lateral (select * from places.shown where event_id = id offset 0) s;
    select count(*) into of_each from ((table seen except all table whole) union all (table whole except all table seen)) d;
    of_one := 0;
    for i in 1 .. cardinality(ids) by 12 loop
        one := ids[i];
        select count(*) into n from (
            (select * from places.shown where one = event_id except all select * from whole w where w.event_id = one) union all
            (select * from whole w where w.event_id = one except all select * from places.shown where event_id = one)) d;
        of_one := of_one + n;
    end loop;
    truncate seen;
    for i in 1 .. cardinality(ids) by 20 loop
        several := ids[i : i + 19] || null::uuid;
        insert into seen select * from places.shown where event_id = any (several);
    end loop;
    select count(*) into of_several from ((table seen except all table whole) union all (table whole except all table seen)) d;
    several := ids || array(select gen_random_uuid() from generate_series(1, 2000)); -- too many to look where each may be
    select count(*) into n from ((select * from places.shown where event_id = any (several) except all table whole) union all
                                 (table whole except all select * from places.shown where event_id = any (several))) d;
    of_several := of_several + n;
    select count(*) into is_open from unnest(ids) id
    where outbox.is_open(id) is distinct from exists (select from whole w where w.event_id = id and w.status in ('PENDING', 'BLOCKED', 'RETRY', 'IN_PROGRESS'));
    foreach one in array ids loop -- each by itself
        execute 'select outbox.is_open($1)' into other using one;
        is_open := is_open + (other is distinct from exists (select from whole w where w.event_id = one and w.status in ('PENDING', 'BLOCKED', 'RETRY', 'IN_PROGRESS')))::integer;
    end loop;
    drop table whole, seen;
end $$;
-- (how many are in each rests on the ids)
create view places.states as
select subscription, string_agg(distinct status || case when replay_no > 0 then ' (replay)' else '' end, ', ') as states from outbox.delivery where subscription like 'dp %' group by 1;
-- which of the conditions the plan has (of tables with few rows it would rather read all)
create function places.conditions(condition text, value text) returns text language plpgsql set enable_seqscan = off as $$
declare
    line text;
    found text := '';
begin
    execute format('prepare places_plan as select * from outbox.delivery where event_id %s', condition);
    for line in execute format('explain (costs off) execute places_plan(%s)', value) loop
        found := found || coalesce(' ' || (regexp_match(line, 'Index Cond: .*outbox\.(\w+_to_search)'))[1], '');
    end loop;
    deallocate places_plan;
    return found;
end $$;

-- ---------------------------------------------------------------- deliveries in each state
select outbox.subscribe('dp key', '{dp.all}', lanes => 4);
select outbox.subscribe('dp none', '{dp.all}', lanes => 3, ordering => 'none');
select outbox.subscribe('dp moved', '{dp.all,dp.moved}', lanes => 2);
reset client_min_messages;
do $$
begin
    for n in 1 .. 48 loop
        perform places.publish('all', 'a' || n, case when n % 4 > 0 then 'k' || n % 6 end, case n % 3 when 1 then 't1' when 2 then 't2' end,
                               case when n % 8 = 7 then outbox.clock() + interval '1 day' + n * interval '1 s' end);
    end loop;
end $$;
call places.comes_true($$(select count(*) from outbox.delivery where subscription like 'dp %') = 3 * 48$$);
begin isolation level repeatable read;
select * from places.states order by 1;
select * from places.differences();
commit;

-- external workers: some hold events, some have failed, so that their keys are blocked, or wait for a person; some are completed, given up, or done again
call places.claim('dp key', 'a1');
select outbox.fail(places.token('dp key', 'a1'), places.event('a1'), 'E1', retry_after => '1 day');
call places.claim('dp key', 'a2');
select outbox.fail(places.token('dp key', 'a2'), places.event('a2'), 'E2', permanent => true);
call places.claim('dp key', 'a3');
select outbox.ack_one(places.token('dp key', 'a3'), places.event('a3'));
call places.claim('dp key', 'a5');
select outbox.fail(places.token('dp key', 'a5'), places.event('a5'), 'E5', permanent => true);
select outbox.discard('dp key', places.event('a5'), 'not needed');
call places.claim('dp key', condition => $$exists (select from outbox.delivery where subscription = 'dp key' and status = 'BLOCKED')$$);
call places.claim('dp none', 'a1');
select outbox.ack_one(places.token('dp none', 'a1'), places.event('a1'));
call places.claim('dp none', 'a2');
select outbox.fail(places.token('dp none', 'a2'), places.event('a2'), 'E2', retry_after => '1 day');
select outbox.replay('dp key', array[places.event('a3')]), outbox.replay('dp none', array[places.event('a1')]);
begin isolation level repeatable read;
select * from places.states order by 1;
select * from places.differences();
commit;

-- ---------------------------------------------------------------- the plan
set plan_cache_mode = force_custom_plan;
select places.conditions('= $1', quote_literal(places.event('a4')));
select places.conditions('= any ($1::uuid[])', quote_literal(array[places.event('a4'), places.event('a6')]));
set plan_cache_mode = force_generic_plan;
select places.conditions('= $1', quote_literal(places.event('a4')));
select places.conditions('= any ($1::uuid[])', quote_literal(array[places.event('a4'), places.event('a6')]));
select places.conditions('= (select $1::uuid)', quote_literal(places.event('a4')));
begin isolation level repeatable read;
select * from places.differences();
commit;
-- not where the event is not fixed
select places.conditions('> $1', quote_literal(places.event('a4')));
select places.conditions('is distinct from $1', quote_literal(places.event('a4')));
select places.conditions('= coalesce($1, event_id)', quote_literal(places.event('a4')));
select places.conditions('= case when random() < 2 then $1::uuid end', quote_literal(places.event('a4')));
-- a monitor, of all tenants and of one
select subscription_id as id from outbox.subscription where subscription = 'dp key' \gset
set role outbox_test_places;
select places.conditions('= $1', quote_literal(places.event('a4')));
begin isolation level repeatable read;
select * from places.differences();
commit;
reset role;
set outbox.tenant_setting = 'places.tenant';
set role outbox_test_places;
set places.tenant = 't1';
select places.conditions('= $1', quote_literal(gen_random_uuid()));
begin isolation level repeatable read;
select count(*) from places.shown where subscription like 'dp %';
select of_each, of_one, of_several from places.differences();
commit;
-- where an event of another tenant lies it is not told: a1 is of t1, a2 of t2, and the third is nobody's
select p.name, count(outbox.lane_to_search(:id, lane, array[p.event_id])) as lanes, max(cardinality(outbox.gates_to_search(array[p.event_id]))) as gates
from (select * from places.published where name in ('a1', 'a2') union all select 'none', gen_random_uuid()) p, generate_series(0, 3) lane group by p.name order by 1;
reset role;
reset places.tenant;
reset outbox.tenant_setting;
reset plan_cache_mode;

-- ---------------------------------------------------------------- an event whose row is not in the log: what is open is shown
begin isolation level repeatable read;
-- (which events are blocked or at work rests on the lanes that claims begin with: these too, whichever they are)
delete from outbox.event_log where event_id in (select event_id from places.published where right(name, 1) in ('1', '2', '3', '5', '7')
    union all select event_id from outbox.delivery where subscription like 'dp %' and status in ('BLOCKED', 'IN_PROGRESS'));
select string_agg(distinct s.status, ', ') as states from places.shown s join places.published p using (event_id) where not exists (select from outbox.event e where e.event_id = s.event_id);
select * from places.differences();
rollback;

-- ---------------------------------------------------------------- lanes of older generations
select outbox.alter_subscription('dp moved', lanes => 5);
do $$
begin
    for n in 1 .. 30 loop
        perform places.publish('moved', 'b' || n, case when n % 4 > 0 then 'k' || n % 6 end, case n % 3 when 1 then 't1' when 2 then 't2' end);
    end loop;
end $$;
call places.comes_true($$(select count(*) from outbox.delivery where subscription = 'dp moved') = 48 + 30$$);
call places.claim('dp moved', 'a1');
select outbox.fail(places.token('dp moved', 'a1'), places.event('a1'), 'E1', retry_after => '1 day');
call places.claim('dp moved', 'a2');
select outbox.fail(places.token('dp moved', 'a2'), places.event('a2'), 'E2', permanent => true);
call places.claim('dp moved', condition => $$exists (select from outbox.delivery where subscription = 'dp moved' and status = 'BLOCKED')$$);
begin isolation level repeatable read;
select * from places.states where subscription = 'dp moved';
select * from places.differences();
commit;
select outbox.alter_subscription('dp moved', lanes => 3, ordering => 'none');
do $$
begin
    for n in 1 .. 20 loop
        perform places.publish('moved', 'c' || n, case when n % 4 > 0 then 'k' || n % 6 end, case n % 3 when 1 then 't1' when 2 then 't2' end);
    end loop;
end $$;
call places.comes_true($$(select count(*) from outbox.delivery where subscription = 'dp moved') = 48 + 30 + 20$$);
begin isolation level repeatable read;
select min(lane), max(lane), count(distinct lane) from outbox.lane join outbox.subscription using (subscription_id) where subscription = 'dp moved';
select * from places.states where subscription = 'dp moved';
select * from places.differences();
commit;
-- the oldest ends when all that can be done in it is done; what failed, the gates and what is parked behind them move on
call places.finish('dp moved');
call places.comes_true($$(select min(lane) from outbox.lane join outbox.subscription using (subscription_id) where subscription = 'dp moved') = 2$$);
begin isolation level repeatable read;
select min(lane), max(lane), count(distinct lane) from outbox.lane join outbox.subscription using (subscription_id) where subscription = 'dp moved';
select * from places.states where subscription = 'dp moved';
select * from places.differences();
commit;

set client_min_messages = warning;
select count(outbox.unsubscribe(subscription, force => true)) as removed from outbox.subscription where subscription like 'dp %';
drop schema places cascade;
drop owned by outbox_test_places;
drop role outbox_test_places;
