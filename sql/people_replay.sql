-- The same event again, on purpose: replay by time and by ids.
set client_min_messages = warning;
create extension if not exists outbox;
drop schema if exists people_replay cascade;
create schema people_replay;
set jit = off;
reset client_min_messages;

create table people_replay.seen (n integer generated always as identity, event_id uuid, name text, replay_no integer, attempt integer);
create function people_replay.handler(e outbox.event) returns void language plpgsql as $$
declare
    d outbox.current_delivery := outbox.current_delivery();
begin
    if d.attempt <= coalesce((e.payload ->> 'times')::integer, 0) and d.replay_no > 0 then
        raise 'refused' using errcode = 'OT001';
    end if;
    insert into people_replay.seen (event_id, name, replay_no, attempt) values (e.event_id, e.payload ->> 'name', d.replay_no, d.attempt);
end
$$;
create function people_replay.id(name text) returns uuid language sql as $$
    select event_id from outbox.event where event_type like 'pp.%' and payload ->> 'name' = $1
$$;
create view people_replay.state as
select e.payload ->> 'name' as name, d.replay_no, d.status, d.attempts
from outbox.delivery d join outbox.event e using (event_id) where d.subscription = 'pp s';
create table people_replay.mark (at timestamptz);

-- some are older than the subscription
select outbox.publish('pp.a', '{"name": "older"}') is not null as published;
set client_min_messages = error;
select outbox.subscribe('pp s', '{pp.#}', handler => 'people_replay.handler', backoff_base => '10 ms');
reset client_min_messages;
select outbox.publish('pp.a', '{"name": "one"}', event_key => 'k', tenant_id => 'acme') is not null as published;
select outbox.publish('pp.b', '{"name": "two", "times": 2}', event_key => 'k', tenant_id => 'acme') is not null as published;
call outbox.drain('{pp s}');
insert into people_replay.mark values (clock_timestamp());
select outbox.publish('pp.c', '{"name": "three"}') is not null as published;
call outbox.drain('{pp s}');

-- by ids: the next number, each once, an older one too; what was delivered before stays
select outbox.replay('pp s', event_ids => array[people_replay.id('two'), people_replay.id('older'), people_replay.id('two')]);
select outbox.replay('pp s', event_ids => '{}');
call outbox.drain('{pp s}');
select name, replay_no, attempt from people_replay.seen order by name, replay_no;
select * from people_replay.state order by name, replay_no;
select count(*) as failed, min(replay_no) as replay_no from outbox.attempt where subscription = 'pp s';
select count(*) as receipts from outbox.receipt_log join outbox.subscription using (subscription_id) where subscription = 'pp s';

-- by time, up to a time and up to now
select outbox.replay('pp s', '-infinity', (select at from people_replay.mark));
call outbox.drain('{pp s}');
select outbox.replay('pp s', from_time => (select at from people_replay.mark));
call outbox.drain('{pp s}');
select name, array_agg(replay_no order by n) as replays from people_replay.seen group by name order by name;
select outbox.replay('pp s', 'infinity', 'infinity') as nothing;
select outbox.replay('pp s', (select published_at from outbox.event where event_id = (select people_replay.id('one'))),
                             (select published_at from outbox.event where event_id = (select people_replay.id('two')))) as without_the_end;

-- while one is under way: the next number
call outbox.drain('{pp s}');
select outbox.pause('pp s');
select outbox.replay('pp s', event_ids => array[people_replay.id('one')]);
select outbox.replay('pp s', event_ids => array[people_replay.id('one')]);
begin;
select outbox.replay('pp s', event_ids => array[people_replay.id('one')]);
select outbox.replay('pp s', from_time => '-infinity');
select name, max(replay_no) from people_replay.state group by name order by name;
rollback;
-- outside of the key's order: it neither waits nor holds up
select name, replay_no, status from people_replay.state where name = 'one' and status <> 'COMPLETED' order by replay_no;
select count(*) as keys, sum(position) as positions from outbox.delivery_exception x join outbox.subscription s using (subscription_id) where subscription = 'pp s' and event_key is not null;
select distinct tenant_id from outbox.delivery where subscription = 'pp s' and replay_no > 0 and status = 'RETRY';
select outbox.resume('pp s');
call outbox.drain('{pp s}');

-- only what the subscription receives: by time passed over, by ids refused
select outbox.alter_subscription('pp s', event_types => '{pp.a}');
select outbox.replay('pp s', from_time => '-infinity') as of_one_type;
call outbox.drain('{pp s}');
do $$
begin
    perform outbox.replay('pp s', event_ids => array[people_replay.id('one'), people_replay.id('two')]);
exception when others then
    raise notice '% % (%)', sqlstate, replace(sqlerrm, people_replay.id('two')::text, 'two'), (select count(*) from people_replay.state where name = 'one' and status = 'RETRY');
end
$$;
-- one that is not in the log: it is named, and nothing is replayed
select outbox.replay('pp s', event_ids => array[people_replay.id('one'), '00000000-0000-7000-8000-00000000000b', '00000000-0000-7000-8000-00000000000a']);
select count(*) as waiting from people_replay.state where replay_no > 0 and status = 'RETRY';
-- a delayed one stays delayed
select outbox.publish('pp.a', '{"name": "later"}', deliver_at => now() + interval '1 day') is not null as published;
select outbox.replay('pp s', event_ids => array[people_replay.id('later')]);
select replay_no, next_attempt_at > now() + interval '23 hours' as delayed from outbox.delivery where event_id = people_replay.id('later') and subscription = 'pp s' and replay_no = 1;
select outbox.discard('pp s', people_replay.id('later'), 'no use');

-- without a handler they are claimed, and failed, and given back as others are
select outbox.subscribe('pp claims', '{pp.c}', max_attempts => 1);
select outbox.replay('pp claims', event_ids => array[people_replay.id('three')]);
select outbox.replay('pp claims', event_ids => array[people_replay.id('three')]);
create table people_replay.claimed (replay_no integer, attempt integer, lease_token uuid);
insert into people_replay.claimed select replay_no, attempt, lease_token from outbox.claim('pp claims', 1);
select outbox.fail(lease_token, people_replay.id('three'), 'OT001') from people_replay.claimed;
insert into people_replay.claimed select replay_no, attempt, lease_token from outbox.claim('pp claims', 10);
select outbox.ack_all(lease_token) from people_replay.claimed where replay_no = 2;
select outbox.retry('pp claims', people_replay.id('three'));
insert into people_replay.claimed select replay_no, attempt, lease_token from outbox.claim('pp claims', 10);
select replay_no, attempt from people_replay.claimed;
select outbox.ack_one(lease_token, people_replay.id('three'), 'theirs') from people_replay.claimed where attempt = 2;
select replay_no, status, attempts, message_id from outbox.delivery where subscription = 'pp claims' order by replay_no;

-- spread over time
select outbox.subscribe('pp many', '{pp.many}');
select count(*) from outbox.publish_batch((select jsonb_agg(jsonb_build_object('event_type', 'pp.many', 'event_key', 'k')) from generate_series(1, 10000) n));
select outbox.replay('pp many', from_time => '-infinity');
create view people_replay.many as
select x.* from outbox.delivery_exception x join outbox.subscription s using (subscription_id) where s.subscription = 'pp many';
select min(next_attempt_at) <= outbox.clock() as first_at_once, count(distinct lane) as lanes, bool_and(attempts = 0 and replay_no = 1) as fresh from people_replay.many;
select max(n) <= 500 as spread
from (select count(*) over (order by next_attempt_at range between current row and interval '0.999999 s' following) as n from people_replay.many) w;
select count(*) as out_of_order from (select next_attempt_at < lag(next_attempt_at) over (order by event_id) as early from people_replay.many) o where early;

-- what is refused
\set VERBOSITY sqlstate
select outbox.replay('none such', from_time => '-infinity');
select outbox.replay('none such', event_ids => '{}');
select outbox.replay(null, from_time => '-infinity');
select outbox.replay('pp s', from_time => null);
select outbox.replay('pp s', event_ids => null);
select outbox.replay('pp s', event_ids => array[null]::uuid[]);
select outbox.replay('pp s', '2020-01-02', '2020-01-01');
select outbox.replay('pp s', from_time => now() + interval '1 day');
\set VERBOSITY default
select replay_no, count(*) from people_replay.seen where name = 'older' group by replay_no order by replay_no;

select action, subscription, events, case when detail like 'published_at%' then 'published_at' else detail end as detail
from outbox.operator_log where action = 'replay' and subscription like 'pp %' order by entry_id;
select count(outbox.unsubscribe(subscription, force => true)) as removed from outbox.subscription where subscription like 'pp %';
set client_min_messages = warning;
drop schema people_replay cascade;
