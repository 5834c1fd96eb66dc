-- outbox.event_history: what became of each event, over all its deliveries.
set client_min_messages = warning;
create extension if not exists outbox;
drop schema if exists history cascade;
drop role if exists outbox_test_history;
create role outbox_test_history;
create schema history;
set jit = off;
grant usage on schema history, outbox to outbox_test_history;
grant execute on function outbox.current_delivery to outbox_test_history;
create function history.does(e outbox.event) returns void language plpgsql as $$
begin
    if e.payload ->> 'do' = 'fail' then
        raise 'fails' using errcode = 'check_violation';
    elsif e.payload ->> 'do' = 'retry' and (outbox.current_delivery()).attempt < 3 then
        raise 'once more' using errcode = 'connection_failure';
    end if;
end
$$;
create function history.goes(e outbox.event) returns void language plpgsql as $$ begin end $$;
select outbox.subscribe('hi does', '{hi.event}', handler => 'history.does', run_as => 'outbox_test_history', backoff_base => '1 ms');
select outbox.subscribe('hi goes', '{hi.event}', handler => 'history.goes', run_as => 'outbox_test_history');
select outbox.subscribe('hi waits', '{hi.waits}');
create view history.seen as
select event_type, payload ->> 'do' as what, status, retry_count, last_retry_at is not null as retried, error_message,
       processing_time_ms is not null as timed, tenant_id, request_id, dedup_key, message_id, created_at = published_at as created, updated_at > created_at as updated
from outbox.event_history where event_type like 'hi.%' order by event_id;
reset client_min_messages;

select outbox.publish('hi.event', '{"do": "go"}', tenant_id => 't', request_id => 'r', dedup_key => 'd') is not null as published;
select outbox.publish('hi.event', '{"do": "retry"}') is not null as published;
select outbox.publish('hi.event', '{"do": "fail"}') as failed \gset
select outbox.publish('hi.waits', '{"do": "wait"}') is not null as published;
select outbox.publish('hi.nobody', '{"do": "nothing"}') is not null as published;
call outbox.drain();
select * from history.seen;

-- done by one subscription, open with the other
select outbox.pause('hi goes');
select outbox.publish('hi.event', '{"do": "half"}') is not null as published;
call outbox.drain();
select what, status, timed from history.seen where what = 'half';
select outbox.resume('hi goes');
call outbox.drain();
select what, status, timed from history.seen where what = 'half';

-- given up by a person; then the same event by its id
select outbox.discard('hi does', :'failed', 'not needed');
select status, error_message, processing_time_ms is not null as timed, updated_at > created_at as updated from outbox.event_history where event_id = :'failed';
-- joined by id, nothing is looked up for events that are not asked for
create temporary table asked as select :'failed'::uuid as event_id;
analyze asked;
create function pg_temp.lookups() returns integer language plpgsql as $$
declare
    plan jsonb;
begin
    execute 'explain (analyze, format json) select * from asked join outbox.event_history using (event_id)' into plan;
    -- but how far each lane is, which a plan may ask for each entry in it
    return (select max(n::integer) from jsonb_path_query(plan,
        'strict $.**?(@."Node Type" == "Aggregate" && !exists(@."Plans"[*]?(@."Relation Name" == "lane_cursor")))."Actual Loops"') as l (n));
end
$$;
select count(*) > 1 as has_others, pg_temp.lookups() from outbox.event_log;
set client_min_messages = warning;
select count(outbox.unsubscribe(subscription, force => true)) as removed from outbox.subscription where subscription like 'hi %';
drop schema history cascade;
drop owned by outbox_test_history;
drop role outbox_test_history;
