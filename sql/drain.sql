-- drain() returns when all that was committed before it is settled.
set client_min_messages = warning;
create extension if not exists outbox;
drop role if exists outbox_test_drain;
create role outbox_test_drain;
create schema drain_test authorization outbox_test_drain;
reset client_min_messages;
create table drain_test.effect (n integer, name text);
grant insert on drain_test.effect to outbox_test_drain;
create function drain_test.good(event outbox.event) returns void language sql
as $$ insert into drain_test.effect values ((event.payload->>'n')::integer, 'good') $$;
create function drain_test.picky(event outbox.event) returns void language plpgsql as $$
begin
    if event.payload ? 'bad' then
        raise check_violation;
    end if;
    insert into drain_test.effect values ((event.payload->>'n')::integer, 'picky');
end
$$;
-- the effects, and what is left, of the subscriptions of this test
create view drain_test.result as
select s.subscription,
       (select count(*) from drain_test.effect where 'dr ' || name = s.subscription) as effects,
       (select string_agg(format('%s %s', status, n), ', ' order by status)
        from (select d.status, count(*) as n from outbox.delivery d where d.subscription = s.subscription group by d.status) c) as deliveries
from outbox.subscription s
where s.subscription like 'dr %';

-- nothing to do
call outbox.drain();

select outbox.subscribe('dr good', '{dr.x}', 'drain_test.good', run_as => 'outbox_test_drain');
select outbox.subscribe('dr picky', '{dr.x}', 'drain_test.picky', run_as => 'outbox_test_drain', lanes => 3, backoff_base => '1 hour');
-- neither of these is waited for
select outbox.subscribe('dr external', '{dr.x}');
select outbox.subscribe('dr paused', '{dr.x}', 'drain_test.good', run_as => 'outbox_test_drain');
select outbox.pause('dr paused');

select count(outbox.publish('dr.x', jsonb_build_object('n', n), event_key => 'key ' || n % 7)) from generate_series(1, 700) n;
call outbox.drain();
select * from drain_test.result order by 1;

-- an event that waits for a person, and what waits behind it, is settled
select outbox.publish('dr.x', '{"bad": true}', event_key => 'key 1') as bad \gset
select count(outbox.publish('dr.x', jsonb_build_object('n', n), event_key => 'key ' || n % 7)) from generate_series(1, 14) n;
call outbox.drain(array['dr picky', 'dr good']);
select * from drain_test.result order by 1;
select subscription, attempts, max_attempts, error_code, blocked_events from outbox.review_required where event_id = :'bad';
-- given up: the key goes on
select outbox.discard('dr picky', :'bad', 'a test');
call outbox.drain();
select * from drain_test.result order by 1;
select count(*) as blocked_keys from outbox.blocked_key where subscription like 'dr %';

-- retried: after the cause is gone
select outbox.publish('dr.x', '{"bad": true, "n": 1}', event_key => 'key 1') as bad \gset
select count(outbox.publish('dr.x', jsonb_build_object('n', n), event_key => 'key 1')) from generate_series(1, 3) n;
call outbox.drain();
select * from drain_test.result order by 1;
create or replace function drain_test.picky(event outbox.event) returns void language sql
as $$ insert into drain_test.effect values ((event.payload->>'n')::integer, 'picky') $$;
select outbox.retry('dr picky', :'bad');
call outbox.drain();
select * from drain_test.result order by 1;

-- what is not due yet is settled too; what waits for another attempt is not
select outbox.publish('dr.x', '{"n": 0}', deliver_at => clock_timestamp() + interval '1 day') is not null as published;
call outbox.drain();
select * from drain_test.result order by 1;
create or replace function drain_test.picky(event outbox.event) returns void language plpgsql
as $$ begin raise exception 'not today'; end $$;
select outbox.publish('dr.x', '{"n": 0}') is not null as published;
call outbox.drain('{dr good}');
do $$
begin
    for i in 1 .. 3000 loop
        exit when exists (select from outbox.attempt where subscription = 'dr picky' and error_code = 'P0001');
        commit;
        perform pg_sleep(0.01);
    end loop;
end
$$;
\set VERBOSITY sqlstate
call outbox.drain(timeout => '1 s');
\set VERBOSITY default
select * from drain_test.result order by 1;

-- in a procedure it works as well, in a transaction block not
create procedure drain_test.twice() language plpgsql as $$
begin
    call outbox.drain('{dr good}');
    commit;
    call outbox.drain('{dr good}');
end
$$;
call drain_test.twice();
begin;
call outbox.drain('{dr good}');
rollback;

set client_min_messages = warning;
do $$ begin perform outbox.unsubscribe(subscription, force => true) from outbox.subscription where subscription like 'dr %'; end $$;
drop schema drain_test cascade;
drop role outbox_test_drain;
