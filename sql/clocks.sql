--
-- Whose clock: the server's, at the moment of the call; whatever the session's TimeZone, and however old its transaction.
--
set client_min_messages = warning;
create extension if not exists outbox;
reset client_min_messages;

-- not the start of the transaction
begin;
select pg_sleep(0.3) is not null as slept;
select clock_timestamp() as before \gset
select outbox.publish('clk.late') as id \gset
select published_at between :'before' and clock_timestamp() as at_the_call,
       published_at > now() + interval '0.25 s' as not_at_the_start, occurred_at = published_at as occurred_when_published
from outbox.event where event_id = :'id';
-- nor of the statement
select count(outbox.publish('clk.statement', to_jsonb(i))) as published from generate_series(1, 3) as i, lateral (select pg_sleep(0.1 + 0 * i)) as s;
select count(*) filter (where published_at > now() + interval '0.25 s') as late, max(published_at) - min(published_at) >= interval '0.2 s' as each_at_its_call
from outbox.event where event_type = 'clk.statement' and published_at >= now();
select outbox.consume_once('clocks', 'm') as first;
select consumed_at > now() + interval '0.25 s' as consumed_at_the_call from outbox.consumed where receiver = 'clocks';
rollback;

-- a time with its zone is the same instant for every session; one without is the session's
create temp table zone (name text, id uuid, bare uuid);
do $$
declare
    z text;
begin
    foreach z in array array['UTC', 'Asia/Tokyo', 'America/St_Johns', 'Europe/Berlin', 'Pacific/Kiritimati'] loop
        perform set_config('timezone', z, true);
        insert into zone select z,
            outbox.publish('clk.zone', occurred_at => '2026-03-29 01:30:00+00', deliver_at => '2100-06-01 12:00:00+02'),
            (select outbox.publish_batch('[{"event_type": "clk.zone", "occurred_at": "2026-03-29 02:30:00"}]'));
    end loop;
end $$;
set timezone = 'UTC';
set datestyle = 'ISO, MDY';
select count(distinct e.occurred_at) as occurred, count(distinct e.deliver_at) as deliver, max(e.published_at) - min(e.published_at) < interval '1 minute' as published
from zone join outbox.event e on e.event_id = zone.id;
-- (02:30 is not there in Berlin on that day: it is 03:30, as everywhere in PostgreSQL)
select zone.name, e.occurred_at from zone join outbox.event e on e.event_id = zone.bare order by e.event_id;

-- what is delayed is due at the same instant for every session
set timezone = 'Pacific/Kiritimati';
select outbox.subscribe('clk', '{clk.due}', lanes => 1);
select outbox.publish('clk.due', '1', deliver_at => clock_timestamp() - interval '1 s') is not null as published;
set timezone = 'Pacific/Pago_Pago';
select outbox.publish('clk.due', '2', deliver_at => clock_timestamp() + interval '1 hour') is not null as published;
call outbox.drain('{clk}');
-- a lease lasts from the claim on, however old its transaction
begin;
select pg_sleep(0.5) is not null as slept;
select clock_timestamp() as before \gset
select lease_expires_at - interval '10 s' between :'before' and clock_timestamp() as from_the_claim_on
from outbox.claim('clk', 1, '10 seconds') as e;
rollback;
set timezone = 'UTC';
select e.payload, d.status from outbox.delivery d join outbox.event e using (event_id) where d.subscription = 'clk' order by e.event_id;
select outbox.unsubscribe('clk', force => true);

--
-- The extension's clock is the one that decides, and tests can move it.
--
select abs(extract(epoch from outbox.clock() - clock_timestamp())) < 1 as wall_clock;
