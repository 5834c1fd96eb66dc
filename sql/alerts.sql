-- What needs a person is an event as well, for a subscription that asks for it; and never begets another.
set client_min_messages = warning;
create extension if not exists outbox;
drop schema if exists alerts cascade;
drop role if exists outbox_test_alerts;
create role outbox_test_alerts;
create schema alerts;
set jit = off;
grant usage on schema alerts, outbox to outbox_test_alerts;
create table alerts.seen (n integer generated always as identity, event outbox.event);
grant insert on alerts.seen to outbox_test_alerts;
create function alerts.fails(e outbox.event) returns void language plpgsql as $$
begin
    raise 'fails' using errcode = 'check_violation';
end
$$;
create function alerts.goes(e outbox.event) returns void language plpgsql as $$
begin
end
$$;
create function alerts.keeps(e outbox.event) returns void language plpgsql as $$
begin
    insert into alerts.seen (event) values (e);
end
$$;
create procedure alerts.until(condition text) language plpgsql as $$
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
select outbox.subscribe('al work', '{al.event}', handler => 'alerts.fails', run_as => 'outbox_test_alerts');
select outbox.subscribe('al stops', '{al.other}', handler => 'alerts.goes', run_as => 'outbox_test_alerts');
reset client_min_messages;

-- nobody asks: no event is written
select outbox.publish('al.event', '{"remark": "x"}', aggregate_type => 'thing', aggregate_id => '1') is not null as published;
call outbox.drain('{al work}');
select count(*) from outbox.review_required where subscription = 'al work';
select count(*) from outbox.event where event_type like 'outbox.%';

-- somebody asks; "#" alone does not
set client_min_messages = warning;
select outbox.subscribe('al alerts', '{outbox.#}', handler => 'alerts.keeps', run_as => 'outbox_test_alerts');
select outbox.subscribe('al all', '{#}', handler => 'alerts.goes', run_as => 'outbox_test_alerts');
reset client_min_messages;
begin;
set local outbox.trace_id = '0af7651916cd43dd8448eb211c80319c';
select outbox.publish('al.event', '{"remark": "x"}', aggregate_type => 'thing', aggregate_id => '2', tenant_id => 't1', request_id => 'req-2', correlation_id => 'c-2') as id \gset
commit;
call outbox.drain('{al work}');
call outbox.drain();
select (event).event_type, (event).aggregate_type, (event).aggregate_id, (event).event_key, (event).tenant_id, (event).request_id, (event).trace_id,
       (event).correlation_id, (event).causation_id = :'id' as caused_by_it, (event).source, (event).payload - 'eventId' as payload,
       (event).payload ->> 'eventId' = :'id' as names_it
from alerts.seen order by n;
select count(*) as delivered_to_all from outbox.delivery d join outbox.event e using (event_id) where d.subscription = 'al all' and e.event_type like 'outbox.%';

-- a subscription that stops
alter function alerts.goes rename to goes_not;
select outbox.publish('al.other') is not null as published;
call alerts.until($$exists (select from alerts.seen where (event).aggregate_id = 'al stops')$$);
select (event).event_type, (event).aggregate_id, (event).payload from alerts.seen where n > 1 and (event).aggregate_id = 'al stops';
alter function alerts.goes_not rename to goes;
call outbox.drain('{al stops}');

-- an outage is one alert, however many events fail
set client_min_messages = warning;
create function alerts.is_down(e outbox.event) returns void language plpgsql as $$
begin
    raise 'down' using errcode = 'connection_failure';
end
$$;
select outbox.subscribe('al down', '{al.many}', handler => 'alerts.is_down', run_as => 'outbox_test_alerts', backoff_base => '10 ms', max_attempts => 1000);
reset client_min_messages;
select count(*) from outbox.publish_batch((select jsonb_agg(jsonb_build_object('event_type', 'al.many')) from generate_series(1, 20)));
call alerts.until($$exists (select from alerts.seen where (event).aggregate_id = 'al down')$$);
call alerts.until($$count(*) >= 8 from outbox.attempt where subscription = 'al down'$$);
select (event).event_type, (event).payload from alerts.seen where (event).aggregate_id = 'al down';
select outbox.unsubscribe('al down', force => true);

-- an alert that fails is no alert
create or replace function alerts.keeps(e outbox.event) returns void language plpgsql as $$
begin
    raise 'fails' using errcode = 'check_violation';
end
$$;
select outbox.publish('al.event') is not null as published;
call outbox.drain('{al work}');
call outbox.drain();
select r.event_type, r.error_code from outbox.review_required r where r.subscription = 'al alerts';
select count(*) as alerts from outbox.event where event_type = 'outbox.review_required';

set client_min_messages = warning;
select count(outbox.unsubscribe(subscription, force => true)) as removed from outbox.subscription where subscription like 'al %';
drop schema alerts cascade;
drop owned by outbox_test_alerts;
drop role outbox_test_alerts;
