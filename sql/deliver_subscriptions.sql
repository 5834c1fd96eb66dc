-- Subscriptions at work: which events they get, and how they are paused, changed and removed under way.
set client_min_messages = warning;
create extension if not exists outbox;
drop schema if exists deliver_subscriptions cascade;
create schema deliver_subscriptions;
set jit = off;
set client_min_messages = error;
create table deliver_subscriptions.seen (n integer generated always as identity, subscription text, event_key text, name text);
create function deliver_subscriptions.handler(e outbox.event) returns void language plpgsql as $$
begin
    insert into deliver_subscriptions.seen (subscription, event_key, name) values ((outbox.current_delivery()).subscription, e.event_key, e.event_type || coalesce(' ' || (e.payload ->> 'n'), ''));
end
$$;
create view deliver_subscriptions.done as
select subscription, count(*) as deliveries, string_agg(name, ', ' order by name collate "C") as done from deliver_subscriptions.seen group by subscription;
create function deliver_subscriptions.publish(type text, variadic numbers integer[]) returns bigint language sql as $$
    select count(outbox.publish(type, jsonb_build_object('n', n), event_key => 'k')) from unnest(numbers) n;
$$;

-- patterns
select outbox.subscribe('dn word', '{dn.*}', handler => 'deliver_subscriptions.handler');
select outbox.subscribe('dn words', '{dn.#}', handler => 'deliver_subscriptions.handler');
select outbox.subscribe('dn inner', '{dn.*.b,#.z}', handler => 'deliver_subscriptions.handler');
select outbox.subscribe('dn exact', '{dn.a,dn.a.b}', handler => 'deliver_subscriptions.handler');
reset client_min_messages;
select count(outbox.publish(t)) from unnest('{dn,dn.a,dn.A,dn.a.b,dn.a.c,dn.a.b.c,dn.z,dnx.a}'::text[]) t;
call outbox.drain('{dn word,dn words,dn inner,dn exact}');
select * from deliver_subscriptions.done order by 1;
-- each match is one delivery, however many patterns match
select subscription, name, count(*) from deliver_subscriptions.seen group by 1, 2 having count(*) > 1;
-- other types from now on: what was routed before stays
select outbox.alter_subscription('dn exact', event_types => '{dn.z}');
select count(outbox.publish(t)) from unnest('{dn.a,dn.z}'::text[]) t;
call outbox.drain('{dn word,dn words,dn inner,dn exact}');
select * from deliver_subscriptions.done where subscription = 'dn exact';
select count(outbox.unsubscribe(subscription)) as removed from outbox.subscription where subscription like 'dn %';
truncate deliver_subscriptions.seen;

-- a subscription gets what is committed after it, and what its own transaction publishes after it
set client_min_messages = error;
select deliver_subscriptions.publish('dn.log', 1);
begin;
select deliver_subscriptions.publish('dn.log', 2);
select outbox.subscribe('dn now', '{dn.log}', handler => 'deliver_subscriptions.handler');
select deliver_subscriptions.publish('dn.log', 3);
commit;
select deliver_subscriptions.publish('dn.log', 4);
-- start_at: also what is in the log since then; the old before the new
select outbox.subscribe('dn all', '{dn.log}', handler => 'deliver_subscriptions.handler', start_at => '-infinity');
select clock_timestamp() as later \gset
select deliver_subscriptions.publish('dn.log', 5, 6);
select outbox.subscribe('dn later', '{dn.log}', handler => 'deliver_subscriptions.handler', start_at => :'later');
select outbox.subscribe('dn tomorrow', '{dn.log}', handler => 'deliver_subscriptions.handler', start_at => clock_timestamp() + interval '1 day');
select deliver_subscriptions.publish('dn.log', 7);
reset client_min_messages;
call outbox.drain('{dn now,dn all,dn later}');
select subscription, string_agg(name, ', ' order by n) as done from deliver_subscriptions.seen group by subscription order by 1;
select subscription, catching_up, backlog from outbox.subscription_status where subscription like 'dn %' order by 1;
select count(outbox.unsubscribe(subscription)) as removed from outbox.subscription where subscription like 'dn %';
truncate deliver_subscriptions.seen;

-- paused: events queue up; nobody waits for them
set client_min_messages = error;
select outbox.subscribe('dn pause', '{dn.event}', handler => 'deliver_subscriptions.handler');
select outbox.subscribe('dn other', '{dn.event}', handler => 'deliver_subscriptions.handler');
reset client_min_messages;
select outbox.pause('dn pause');
select outbox.pause('dn pause');
select deliver_subscriptions.publish('dn.event', 1, 2, 3);
call outbox.drain();
select * from deliver_subscriptions.done order by 1;
select paused, backlog, in_progress, oldest_waiting_at is not null as waits from outbox.subscription_status where subscription = 'dn pause';
select status, attempts, count(*) from outbox.delivery where subscription = 'dn pause' group by 1, 2;
select outbox.resume('dn pause');
select outbox.resume('dn pause');
call outbox.drain('{dn pause}');
select string_agg(name, ', ' order by n) as done from deliver_subscriptions.seen where subscription = 'dn pause';

-- no handler: they wait for outbox.claim(); a handler can be given later
select outbox.alter_subscription('dn pause', reset => '{handler}');
select deliver_subscriptions.publish('dn.event', 4);
call outbox.drain('{dn pause,dn other}');
select handler is null as no_handler, backlog from outbox.subscription_status where subscription = 'dn pause';
set client_min_messages = error;
select outbox.alter_subscription('dn pause', handler => 'deliver_subscriptions.handler');
reset client_min_messages;
call outbox.drain('{dn pause}');
select backlog from outbox.subscription_status where subscription = 'dn pause';

-- another number of lanes: order of a key holds over the change, which comes soon
truncate deliver_subscriptions.seen;
select outbox.pause('dn pause');
select count(outbox.publish('dn.event', jsonb_build_object('n', n), event_key => 'k' || n % 7)) from generate_series(1001, 1100) n;
select outbox.alter_subscription('dn pause', lanes => 3);
select count(outbox.publish('dn.event', jsonb_build_object('n', n), event_key => 'k' || n % 7)) from generate_series(1101, 1200) n;
select outbox.resume('dn pause');
call outbox.drain('{dn pause}', timeout => '4 s');
select outbox.alter_subscription('dn pause', lanes => 20);
select count(outbox.publish('dn.event', jsonb_build_object('n', n), event_key => 'k' || n % 7)) from generate_series(1201, 1300) n;
call outbox.drain('{dn pause}', timeout => '4 s');
select count(*), count(distinct name) as different from deliver_subscriptions.seen where subscription = 'dn pause';
select count(*) as out_of_order
from (select name < lag(name) over (partition by event_key order by n) as wrong from deliver_subscriptions.seen where subscription = 'dn pause') s where wrong;

-- also with one in review, whose key goes on waiting after it
set client_min_messages = error;
create function deliver_subscriptions.picky(e outbox.event) returns void language plpgsql as $$
begin
    if to_regclass('deliver_subscriptions.broken') is not null and e.payload ->> 'n' = '1' then
        perform outbox.fail_permanently('broken');
    end if;
    insert into deliver_subscriptions.seen (subscription, event_key, name) values ('dn picky', e.event_key, e.payload ->> 'n');
end
$$;
create table deliver_subscriptions.broken ();
select outbox.subscribe('dn picky', '{dn.picky}', handler => 'deliver_subscriptions.picky', lanes => 4);
reset client_min_messages;
select deliver_subscriptions.publish('dn.picky', 1, 2);
call outbox.drain('{dn picky}', timeout => '4 s');
select outbox.alter_subscription('dn picky', lanes => 9);
select deliver_subscriptions.publish('dn.picky', 3, 4);
call outbox.drain('{dn picky}', timeout => '4 s');
select status, count(*) from outbox.delivery where subscription = 'dn picky' group by status order by status;
drop table deliver_subscriptions.broken;
select outbox.retry('dn picky', event_id) from outbox.review_required where subscription = 'dn picky';
call outbox.drain('{dn picky}');
select string_agg(name, ' ' order by n) as done from deliver_subscriptions.seen where subscription = 'dn picky';

-- unsubscribe: not while something is left, unless forced
select outbox.pause('dn picky');
select deliver_subscriptions.publish('dn.picky', 5);
call outbox.drain();
\set VERBOSITY default
select outbox.unsubscribe('dn picky');
select outbox.unsubscribe('dn picky', force => true);
select outbox.unsubscribe('dn picky', force => true);
call outbox.drain();
select count(*) filter (where name = '5') as delivered from deliver_subscriptions.seen where subscription = 'dn picky';
-- the name is free; nothing of the one before is found by its successor
set client_min_messages = error;
select outbox.subscribe('dn picky', '{dn.picky}', handler => 'deliver_subscriptions.picky', start_at => '-infinity');
reset client_min_messages;
call outbox.drain('{dn picky}');
select string_agg(name, ' ' order by n) as done from deliver_subscriptions.seen where subscription = 'dn picky';

-- drain
begin;
call outbox.drain();
rollback;
create function deliver_subscriptions.drains() returns void language plpgsql as 'begin call outbox.drain(); end';
select deliver_subscriptions.drains();
select outbox.retry('dn none', gen_random_uuid());

select count(outbox.unsubscribe(subscription, force => true)) as removed from outbox.subscription where subscription like 'dn %';
set client_min_messages = warning;
drop schema deliver_subscriptions cascade;
