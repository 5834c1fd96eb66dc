-- What people do with deliveries in review: one by one, many at once, and who did it.
set client_min_messages = warning;
create extension if not exists outbox;
drop schema if exists people_retry cascade;
create schema people_retry;
set jit = off;
reset client_min_messages;
set timezone = 'UTC';

-- a handler that fails as the world says; effects are kept
create table people_retry.world (fails boolean not null);
insert into people_retry.world values (true);
create table people_retry.seen (n integer generated always as identity, name text, replay_no integer, attempt integer, max_attempts integer);
create function people_retry.handler(e outbox.event) returns void language plpgsql as $$
declare
    d outbox.current_delivery := outbox.current_delivery();
begin
    if (select fails from people_retry.world) then
        raise 'refused' using errcode = coalesce(e.payload ->> 'code', '22001');
    end if;
    insert into people_retry.seen (name, replay_no, attempt, max_attempts) values (e.payload ->> 'name', d.replay_no, d.attempt, d.max_attempts);
end
$$;
create function people_retry.id(name text) returns uuid language sql as $$
    select event_id from outbox.event where event_type like 'pr.%' and payload ->> 'name' = $1
$$;
create view people_retry.state as
select e.payload ->> 'name' as name, d.replay_no, d.status, d.attempts, d.error_code
from outbox.delivery d join outbox.event e using (event_id) where d.subscription = 'pr s';
create procedure people_retry.until(condition text) language plpgsql as $$
declare
    met boolean;
begin
    for i in 1 .. 1000 loop
        execute 'select ' || condition into met;
        exit when met;
        perform pg_sleep(0.02);
        commit;
    end loop;
end
$$;
set client_min_messages = error;
select outbox.subscribe('pr s', '{pr.a}', handler => 'people_retry.handler', max_attempts => 3, backoff_base => '1 hour', transient_errors => '{OT001}');
reset client_min_messages;

-- only what is in review moves
select outbox.publish('pr.a', '{"name": "review"}') is not null as published;
select outbox.publish('pr.a', '{"name": "retry", "code": "OT001"}') is not null as published;
call people_retry.until('count(*) = 2 from people_retry.state where status in (''REVIEW_REQUIRED'', ''RETRY'') and error_code is not null');
update people_retry.world set fails = false;
select outbox.publish('pr.a', '{"name": "good"}') is not null as published;
call people_retry.until('count(*) = 1 from people_retry.state where status = ''COMPLETED'' ');
select * from people_retry.state order by name;
select name, outbox.retry('pr s', people_retry.id(name)) as moved from unnest('{good,retry}'::text[]) name;
select outbox.retry('pr s', '00000000-0000-7000-8000-000000000000') as unknown;
select outbox.discard('pr s', people_retry.id('good'), 'no use') as moved;
-- twice in one transaction: the second one finds nothing to do
select outbox.pause('pr s');
begin;
select outbox.retry('pr s', people_retry.id('review')) as first;
select outbox.retry('pr s', people_retry.id('review')) as second;
rollback;
select status from people_retry.state where name = 'review';
-- more attempts than there may be by now: a fresh budget all the same
select outbox.alter_subscription('pr s', max_attempts => 1);
update outbox.delivery_exception set attempts = 3 where event_id = people_retry.id('review');
select outbox.retry('pr s', people_retry.id('review')) as moved;
select outbox.retry('pr s', people_retry.id('review')) as again;
select name, replay_no, status, attempts from people_retry.state where name = 'review';
select outbox.resume('pr s');
call people_retry.until('count(*) = 2 from people_retry.state where status = ''COMPLETED'' ');
select name, status, attempts from people_retry.state order by name;
select name, attempt, max_attempts from people_retry.seen where name = 'review';
-- what waits for its retry can be given up, and nothing else can be done with it then
select outbox.discard('pr s', people_retry.id('retry'), 'no use') as moved;
select outbox.discard('pr s', people_retry.id('retry'), 'no use') as again;
select outbox.retry('pr s', people_retry.id('retry')) as retried;
call outbox.drain('{pr s}');
select name, status from people_retry.state where name = 'retry';

-- the handler is gone: the delivery waits for it, and no attempt is used
update people_retry.world set fails = true;
select outbox.publish('pr.a', '{"name": "orphan"}') is not null as published;
call outbox.drain('{pr s}');
drop function people_retry.handler;
select outbox.retry('pr s', people_retry.id('orphan')) as moved;
call people_retry.until('stopped_reason is not null from outbox.subscription_status where subscription = ''pr s'' ');
select stopped_code, stopped_reason from outbox.subscription_status where subscription = 'pr s';
select name, status, attempts from people_retry.state where name = 'orphan';
create function people_retry.handler(e outbox.event) returns void language sql as $$
    insert into people_retry.seen (name) values (e.payload ->> 'name');
$$;
call outbox.drain('{pr s}');
select name, status from people_retry.state where name = 'orphan';

-- an event that was replayed: whatever is in review is retried; given up first is what is in review
drop function people_retry.handler;
create function people_retry.handler(e outbox.event) returns void language plpgsql as $$
begin
    raise 'refused' using errcode = '22001';
end
$$;
select outbox.publish('pr.a', '{"name": "both"}') is not null as published;
call outbox.drain('{pr s}');
select outbox.replay('pr s', event_ids => array[people_retry.id('both')]);
call outbox.drain('{pr s}');
select * from people_retry.state where name = 'both' order by replay_no;
select outbox.pause('pr s');
select outbox.retry('pr s', people_retry.id('both')) as moved;
select * from people_retry.state where name = 'both' order by replay_no;
update outbox.delivery_exception set status = 'REVIEW_REQUIRED', next_attempt_at = null where event_id = people_retry.id('both') and replay_no = 1;
select outbox.discard('pr s', people_retry.id('both'), 'no use') as moved;
select * from people_retry.state where name = 'both' order by replay_no;
select outbox.discard('pr s', people_retry.id('both'), 'no use') as moved;
select * from people_retry.state where name = 'both' order by replay_no;
select outbox.resume('pr s');

-- many at once: 10,000 in review of a subscription that nobody works
select outbox.subscribe('pr many', '{pr.many}');
select count(*) from outbox.publish_batch((select jsonb_agg(jsonb_build_object('event_type', 'pr.many', 'event_key', 'k' || n % 100, 'payload', jsonb_build_object('n', n))) from generate_series(1, 10000) n));
insert into outbox.delivery_exception (subscription_id, event_id, lane, position, status, attempts, event_key, error_code, failed_at)
select s.subscription_id, e.event_id, 0, (e.payload ->> 'n')::bigint, 'REVIEW_REQUIRED', 6, e.event_key, case when (e.payload ->> 'n')::integer % 5 = 0 then 'OT005' else 'OT001' end, now()
from outbox.event e, outbox.subscription s where e.event_type = 'pr.many' and s.subscription = 'pr many';
-- so that they are joined as many are, whether autovacuum has seen them or not
analyze outbox.delivery_exception;
create view people_retry.many as
select x.* from outbox.delivery_exception x join outbox.subscription s using (subscription_id) where s.subscription = 'pr many';
begin;
select outbox.retry_all('pr many');
select count(*) as retried, min(next_attempt_at) <= outbox.clock() as first_at_once, bool_and(attempts = 0 and attempts_before = 6) as fresh
from people_retry.many where status = 'RETRY';
-- no second holds more than a twentieth
select max(n) <= 500 as spread
from (select count(*) over (order by next_attempt_at range between current row and interval '0.999999 s' following) as n from people_retry.many) w;
-- of a key the earlier one comes first
select count(*) as keys_out_of_order
from people_retry.many a join people_retry.many b on a.event_key = b.event_key and a.position < b.position and a.next_attempt_at > b.next_attempt_at;
select outbox.retry_all('pr many') as again;
rollback;
select outbox.retry_all('pr many', error_code => 'OT005', max_events => 700);
select outbox.retry_all('pr many', 'OT005', 700);
select outbox.retry_all('pr many', 'OT005');
select outbox.retry_all('pr many', 'none such');
select outbox.retry_all('pr many', max_events => 1);
select error_code, status, count(*) from people_retry.many group by 1, 2 order by 1, 2;
-- the oldest were the first, whatever the call
select count(*) filter (where next_attempt_at is not null and n > first_waiting) as out_of_order
from (select x.*, (e.payload ->> 'n')::integer as n, min((e.payload ->> 'n')::integer) filter (where x.status <> 'RETRY') over (partition by error_code) as first_waiting
      from people_retry.many x join outbox.event e using (event_id)) m;
\set VERBOSITY sqlstate
select outbox.retry_all('none such');
select outbox.retry_all(null);
select outbox.retry_all('pr many', max_events => 0);
select outbox.retry_all('pr many', max_events => -1);
select outbox.discard('pr many', null, 'no use');
select outbox.retry('pr many', null);
\set VERBOSITY default

-- who did it, and when
set client_min_messages = warning;
drop role if exists outbox_test_people;
create role outbox_test_people;
select outbox.grant_operator('outbox_test_people');
set role outbox_test_people;
select outbox.pause('pr many');
select outbox.resume('pr many');
reset role;
select outbox.unsubscribe('pr many', force => true);
select outbox.unsubscribe('pr s', force => true);
select role_name = current_user as by_me, case when role_name = current_user then session_role else case when session_role = session_user then 'logged in as another' end end as session_role,
       action, subscription, event_id is not null as has_event, events, reason, detail, at between now() - interval '1 hour' and clock_timestamp() as recent
from outbox.operator_log
where subscription like 'pr %' and entry_id > (select max(entry_id) from outbox.operator_log where subscription = 'pr s' and action = 'subscribe') - 1
order by entry_id;
drop owned by outbox_test_people;
drop role outbox_test_people;
drop schema people_retry cascade;
