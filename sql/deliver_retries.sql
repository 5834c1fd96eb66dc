-- What happens to an event whose handler fails: when it is tried again, and when a person is asked.
set client_min_messages = warning;
create extension if not exists outbox;
drop schema if exists deliver_retries cascade;
create schema deliver_retries;
set jit = off;
reset client_min_messages;

-- handlers do what the payload says: {"fail": SQLSTATE, "times": how often}; effects are kept in "seen"
create table deliver_retries.calls (subscription text, event_id uuid, attempt integer, max_attempts integer);
create table deliver_retries.seen (subscription text, event_id uuid);
create sequence deliver_retries.called; -- counts calls, also those that are rolled back
create function deliver_retries.handler(e outbox.event) returns void language plpgsql as $$
declare
    d outbox.current_delivery := outbox.current_delivery();
begin
    perform nextval('deliver_retries.called');
    insert into deliver_retries.seen values (d.subscription, e.event_id);
    if d.attempt <= coalesce((e.payload ->> 'times')::integer, 1000) then
        raise 'refused, secret %', e.payload ->> 'remark' using errcode = e.payload ->> 'fail';
    end if;
end
$$;
-- what came of an event
create view deliver_retries.outcome as
select d.subscription, e.payload ->> 'name' as name, d.status, d.attempts, d.error_code,
       (select count(*) from deliver_retries.seen s where s.event_id = e.event_id and s.subscription = d.subscription) as effects,
       (select string_agg(a.attempt || ' ' || a.error_code, ', ' order by a.attempt, a.failed_at) from outbox.attempt a where a.event_id = e.event_id and a.subscription = d.subscription) as failed
from outbox.delivery d join outbox.event e using (event_id);
create function deliver_retries.publish(type text, payload jsonb) returns boolean language sql as $$
    select outbox.publish(type, payload, request_id => 'request of ' || (payload ->> 'name'), trace_id => md5(payload ->> 'name')) is not null;
$$;
-- fails twice, then goes well: one effect, three attempts
set client_min_messages = error; -- the handler runs as a superuser
select outbox.subscribe('dr soon', '{dr.soon}', handler => 'deliver_retries.handler', backoff_base => '10 ms', max_attempts => 4);
reset client_min_messages;
select deliver_retries.publish('dr.soon', '{"name": "twice", "fail": "OT001", "times": 2}');
-- the last attempt may be the good one; one more is too many
select deliver_retries.publish('dr.soon', '{"name": "three times", "fail": "OT001", "times": 3}');
select deliver_retries.publish('dr.soon', '{"name": "always", "fail": "OT001"}');
call outbox.drain('{dr soon}');
select name, status, attempts, effects, failed from deliver_retries.outcome where subscription = 'dr soon' order by name;
select subscription, event_type, request_id, trace_id = md5('always') as its_trace, attempts, max_attempts, error_code, error_message, first_failed_at < failed_at as failed_again, blocked_events
from outbox.review_required where subscription = 'dr soon';

-- a person fixes the cause: fresh attempts, and the history stays
create or replace function deliver_retries.handler(e outbox.event) returns void language plpgsql as $$
declare
    d outbox.current_delivery := outbox.current_delivery();
begin
    insert into deliver_retries.calls values (d.subscription, e.event_id, d.attempt, d.max_attempts);
    insert into deliver_retries.seen values (d.subscription, e.event_id);
end
$$;
select outbox.retry('dr soon', event_id) from outbox.review_required where subscription = 'dr soon';
call outbox.drain('{dr soon}');
select name, status, effects, failed from deliver_retries.outcome where name = 'always';
select attempt, max_attempts from deliver_retries.calls where subscription = 'dr soon';
select count(*) as in_review from outbox.review_required where subscription = 'dr soon';

-- the delays: base, factor, cap, each spread by 20 % either way
create or replace function deliver_retries.handler(e outbox.event) returns void language plpgsql as $$
begin
    raise 'refused' using errcode = 'OT001';
end
$$;
select outbox.alter_subscription('dr soon', backoff_base => '100 s', backoff_factor => 3, backoff_max => '10 min', max_attempts => 6);
select deliver_retries.publish('dr.soon', '{"name": "slow"}');
create table deliver_retries.delays (attempts integer, delay float8);
create procedure deliver_retries.note(expected integer) language plpgsql as $$
begin
    for i in 1 .. 1000 loop
        perform from deliver_retries.outcome where name = 'slow' and status = 'RETRY' and attempts = expected;
        exit when found;
        perform pg_sleep(0.01);
        commit;
    end loop;
    insert into deliver_retries.delays
    select d.attempts, extract(epoch from d.next_attempt_at - (select max(failed_at) from outbox.attempt a where a.event_id = d.event_id))
    from outbox.delivery d join outbox.event e using (event_id) where e.payload ->> 'name' = 'slow';
end
$$;
call deliver_retries.note(1);
-- not before its time
call outbox.drain('{dr soon}', timeout => '200 ms');
alter system set outbox.test_clock_offset = 3600;
select pg_reload_conf();
call deliver_retries.note(2);
alter system set outbox.test_clock_offset = 7200;
select pg_reload_conf();
call deliver_retries.note(3);
alter system set outbox.test_clock_offset = 10800;
select pg_reload_conf();
call deliver_retries.note(4);
select attempts, delay between 0.79 * expected and 1.21 * expected as as_expected
from deliver_retries.delays join (values (1, 100), (2, 300), (3, 600), (4, 600)) v (attempts, expected) using (attempts) order by attempts;
-- no two are the same
select count(distinct round(delay * 1000)) as different from deliver_retries.delays where attempts in (3, 4);
alter system set outbox.test_clock_offset = 14400;
select pg_reload_conf();
call deliver_retries.note(5);
alter system set outbox.test_clock_offset = 18000;
select pg_reload_conf();
call outbox.drain('{dr soon}');
select name, status, attempts, failed from deliver_retries.outcome where name = 'slow';
-- given up by a person
select outbox.discard('dr soon', event_id, 'test') from outbox.review_required where subscription = 'dr soon';
call outbox.drain('{dr soon}');
select name, status, attempts from deliver_retries.outcome where name = 'slow';
select outbox.retry('dr soon', event_id) from outbox.delivery where subscription = 'dr soon' and status = 'DISCARDED';
alter system reset outbox.test_clock_offset;
select pg_reload_conf();
-- the workers have heard of it when a handler sees the real time
create table deliver_retries.clocks (at timestamptz);
create or replace function deliver_retries.handler(e outbox.event) returns void language sql as $$
    insert into deliver_retries.clocks select outbox.clock();
$$;
create procedure deliver_retries.until_now() language plpgsql as $$
begin
    for i in 1 .. 100 loop
        perform deliver_retries.publish('dr.soon', '{"name": "clock"}');
        commit;
        call outbox.drain('{dr soon}');
        exit when (select abs(extract(epoch from max(at) - clock_timestamp())) < 600 from deliver_retries.clocks);
        delete from deliver_retries.clocks;
        commit;
    end loop;
end
$$;
call deliver_retries.until_now();
select count(*) > 0 as is_now from deliver_retries.clocks;

-- what is permanent by default, and what is not
create or replace function deliver_retries.handler(e outbox.event) returns void language plpgsql as $$
begin
    raise 'refused, secret %', e.payload ->> 'remark' using errcode = e.payload ->> 'name';
end
$$;
set client_min_messages = error;
select outbox.subscribe('dr rules', '{dr.rules}', handler => 'deliver_retries.handler', backoff_base => '1 ms', backoff_factor => 1, max_attempts => 2);
reset client_min_messages;
select count(deliver_retries.publish('dr.rules', jsonb_build_object('name', code)))
from unnest('{21000,22012,23502,23505,23514,23503,23P01,P0001,OT001,53100}'::text[]) code;
call outbox.drain('{dr rules}');
select case attempts when 1 then 'permanent' else 'tried again' end as what, string_agg(name, ' ' order by name) as codes
from deliver_retries.outcome where subscription = 'dr rules' and status = 'REVIEW_REQUIRED' group by attempts order by attempts;
-- a subscription's own rules go before these; the more specific wins
set client_min_messages = error;
select outbox.subscribe('dr own rules', '{dr.own}', handler => 'deliver_retries.handler', backoff_base => '1 ms', backoff_factor => 1, max_attempts => 2,
                        permanent_errors => '{OT,23503,my.code}');
reset client_min_messages;
select outbox.alter_subscription('dr own rules', transient_errors => '{OT001,22,23505}');
select count(deliver_retries.publish('dr.own', jsonb_build_object('name', code)))
from unnest('{OT002,OT001,22012,23505,23503,23514,P0001}'::text[]) code;
call outbox.drain('{dr own rules}');
select name, attempts from deliver_retries.outcome where subscription = 'dr own rules' order by name;

-- error messages are kept when the setting says so, and the primary one only
select count(error_message) as kept from outbox.review_required where subscription like 'dr %';
alter system set outbox.keep_error_message = 'primary';
select pg_reload_conf();
-- the worker has read the setting when a message is kept, or no longer
create procedure deliver_retries.until_kept(expected boolean) language plpgsql as $$
declare
    kept boolean;
begin
    for i in 1 .. 100 loop
        perform deliver_retries.publish('dr.rules', '{"name": "22012", "remark": "s3"}');
        commit;
        call outbox.drain('{dr rules}');
        select error_message is not null into kept from outbox.review_required where subscription = 'dr rules' order by failed_at desc limit 1;
        exit when kept = expected;
        commit;
    end loop;
    raise notice 'kept: %', kept;
end
$$;
call deliver_retries.until_kept(true);
select distinct error_message from outbox.review_required where subscription = 'dr rules' and error_message is not null;
alter system reset outbox.keep_error_message;
select pg_reload_conf();
call deliver_retries.until_kept(false);

-- what a handler asks for
create or replace function deliver_retries.handler(e outbox.event) returns void language plpgsql as $$
declare
    d outbox.current_delivery := outbox.current_delivery();
begin
    if nextval('deliver_retries.called') > 0 then
        insert into deliver_retries.seen values (d.subscription, e.event_id);
    end if;
    case e.payload ->> 'name'
    when 'gives up' then
        perform outbox.fail_permanently('card.declined');
    when 'later' then
        if d.attempt < 3 then
            perform outbox.retry_after('10 ms', 'not.yet');
        end if;
    when 'later, always' then
        perform outbox.retry_after('1 ms');
    when 'for free' then
        -- the sequence is not rolled back: the 60th call goes well
        if nextval('deliver_retries.free') < 60 then
            perform outbox.retry_after('1 ms', 'rate.limit', count_attempt => false);
        end if;
    when 'swallows' then
        begin
            perform outbox.fail_permanently('swallowed');
        exception when others then
        end;
        begin
            perform outbox.retry_after('1 day', 'swallowed', count_attempt => false);
        exception when others then
        end;
    when 'swallows, then fails' then
        begin
            perform outbox.retry_after('1 day', 'swallowed', count_attempt => false);
        exception when others then
        end;
        raise 'other' using errcode = '22023';
    when 'as if' then
        raise 'as if' using errcode = 'OB003';
    when 'wrong code' then
        perform outbox.fail_permanently('not a code');
    when 'number of a person' then
        perform outbox.fail_permanently('900101-1234568');
    when 'number, later' then
        perform outbox.retry_after('1 s', 'p900101-1234568');
    when 'no delay' then
        perform outbox.retry_after(null);
    when 'negative delay' then
        perform outbox.retry_after('-1 s');
    when 'too far' then
        perform outbox.retry_after('30 days 1 microsecond');
    else
        perform outbox.retry_after('30 days', 'snoozed', count_attempt => false);
    end case;
end
$$;
create sequence deliver_retries.free;
create procedure deliver_retries.until_status(of_name text, is_status text) language plpgsql as $$
begin
    for i in 1 .. 1000 loop
        perform from deliver_retries.outcome where name = of_name and status = is_status;
        exit when found;
        perform pg_sleep(0.01);
        commit;
    end loop;
end
$$;
set client_min_messages = error;
select outbox.subscribe('dr asks', '{dr.asks}', handler => 'deliver_retries.handler', backoff_base => '1 ms', backoff_factor => 1, max_attempts => 3);
reset client_min_messages;
select count(deliver_retries.publish('dr.asks', jsonb_build_object('name', name)))
from unnest('{gives up,later,"later, always",for free,swallows,"swallows, then fails",as if,wrong code,number of a person,"number, later",no delay,negative delay,too far}'::text[]) name;
call outbox.drain('{dr asks}');
select name, status, attempts, error_code, effects, failed from deliver_retries.outcome where subscription = 'dr asks' order by name;
-- a delay is at most 30 days
select deliver_retries.publish('dr.asks', '{"name": "far"}');
call deliver_retries.until_status('far', 'RETRY');
select d.status, d.attempts, d.error_code, round(extract(epoch from d.next_attempt_at - outbox.clock()) / 86400) as days
from outbox.delivery d where d.subscription = 'dr asks' and d.status = 'RETRY';
select count(*) as used from outbox.attempt a join outbox.delivery d using (subscription, event_id) where d.subscription = 'dr asks' and d.status = 'RETRY';
-- given up while it waits for its next attempt
select outbox.discard('dr asks', event_id, 'too far') from outbox.delivery where subscription = 'dr asks' and status = 'RETRY';
call outbox.drain('{dr asks}');
select name, status from deliver_retries.outcome where subscription = 'dr asks' and name = 'far';

-- serialization failures and deadlocks are tried again at once, three times for free
create or replace function deliver_retries.handler(e outbox.event) returns void language plpgsql as $$
begin
    insert into deliver_retries.seen values ('dr conflicts', e.event_id);
    if nextval('deliver_retries.conflicts') <= (e.payload ->> 'times')::integer then
        raise 'conflict' using errcode = e.payload ->> 'code';
    end if;
end
$$;
create sequence deliver_retries.conflicts;
-- Each worker that has the lane gives its three: so that there is one, the other one is kept busy.
create function deliver_retries.hold(e outbox.event) returns void language plpgsql as $$
begin
    perform pg_advisory_xact_lock(hashtext('deliver_retries.hold'));
end
$$;
set client_min_messages = error;
select outbox.subscribe('dr conflicts', '{dr.conflicts}', handler => 'deliver_retries.handler', backoff_base => '1 ms');
select outbox.subscribe('dr hold', '{dr.hold}', handler => 'deliver_retries.hold', handler_timeout => '10 min');
reset client_min_messages;
select pg_advisory_lock(hashtext('deliver_retries.hold')) is not null as locked;
select count(deliver_retries.publish('dr.hold', '{"name": "hold"}')) as held from generate_series(2, current_setting('outbox.workers')::integer);
create function deliver_retries.wait_until_busy() returns boolean language plpgsql as $$
begin
    for i in 1 .. 2000 loop
        if exists (select from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())
            and objid = hashtext('deliver_retries.hold')::bigint & 4294967295) then
            return true;
        end if;
        perform pg_sleep(0.01);
    end loop;
    return false;
end
$$;
select deliver_retries.wait_until_busy() as busy;
select deliver_retries.publish('dr.conflicts', '{"name": "1 three", "times": 3, "code": "40001"}');
call outbox.drain('{dr conflicts}');
select setval('deliver_retries.conflicts', 1, false);
select deliver_retries.publish('dr.conflicts', '{"name": "2 four", "times": 4, "code": "40001"}');
call outbox.drain('{dr conflicts}');
select setval('deliver_retries.conflicts', 1, false);
select deliver_retries.publish('dr.conflicts', '{"name": "3 deadlocks", "times": 3, "code": "40P01"}');
call outbox.drain('{dr conflicts}');
-- also when it is a retry
select setval('deliver_retries.conflicts', 1, false);
select deliver_retries.publish('dr.conflicts', '{"name": "4 eight", "times": 8, "code": "40001"}');
call outbox.drain('{dr conflicts}');
select pg_advisory_unlock(hashtext('deliver_retries.hold')) as unlocked;
call outbox.drain('{dr hold}');
select name, status, attempts, effects, failed from deliver_retries.outcome where subscription = 'dr conflicts' order by name;

-- of a batch, the bad event pays alone: no other loses an attempt, and each has one effect
create function deliver_retries.batch(events outbox.event[]) returns void language plpgsql as $$
begin
    insert into deliver_retries.calls select 'dr batch', e.event_id, cardinality(events) from unnest(events) e;
    insert into deliver_retries.seen select 'dr batch', e.event_id from unnest(events) e;
    if exists (select from unnest(events) e where e.payload ->> 'name' = 'bad') then
        raise 'bad' using errcode = 'OT001';
    end if;
    if exists (select from unnest(events) e where e.payload ->> 'name' = 'worse') then
        perform outbox.fail_permanently('worse');
    end if;
end
$$;
create or replace function deliver_retries.handler(e outbox.event) returns void language plpgsql as $$
begin
    insert into deliver_retries.seen values ('dr single', e.event_id);
    if e.payload ->> 'name' = 'bad' then
        raise 'bad' using errcode = 'OT001';
    elsif e.payload ->> 'name' = 'worse' then
        perform outbox.fail_permanently('worse');
    end if;
end
$$;
set client_min_messages = error;
select outbox.subscribe('dr batch', '{dr.batch}', handler => 'deliver_retries.batch', backoff_base => '1 ms', max_attempts => 3, lanes => 1);
select outbox.subscribe('dr single', '{dr.batch}', handler => 'deliver_retries.handler', backoff_base => '1 ms', max_attempts => 3, lanes => 1);
reset client_min_messages;
select count(*) from outbox.publish_batch((select jsonb_agg(jsonb_build_object('event_type', 'dr.batch', 'payload', jsonb_build_object('name', case n when 7 then 'bad' when 20 then 'worse' else 'good' end)))
                                          from generate_series(1, 25) n));
call outbox.drain('{dr batch,dr single}');
select subscription, name, status, attempts, error_code, failed, effects, count(*) from deliver_retries.outcome
where subscription in ('dr batch', 'dr single') group by 1, 2, 3, 4, 5, 6, 7 order by 1, 2;
-- and later it is a batch again
select count(*) from outbox.publish_batch((select jsonb_agg(jsonb_build_object('event_type', 'dr.batch', 'payload', '{"name": "again"}'::jsonb)) from generate_series(1, 25)));
call outbox.drain('{dr batch,dr single}');
select max(c.attempt) > 1 as at_once from deliver_retries.calls c join outbox.event e using (event_id) where e.payload ->> 'name' = 'again';

select count(outbox.unsubscribe(subscription, force => true)) as removed from outbox.subscription where subscription like 'dr %';
set client_min_messages = warning;
drop schema deliver_retries cascade;
