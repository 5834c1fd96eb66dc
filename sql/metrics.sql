-- The numbers for monitoring are those of the deliveries.
set client_min_messages = warning;
create extension if not exists outbox;
drop schema if exists metrics cascade;
drop role if exists outbox_test_metrics;
create role outbox_test_metrics;
create schema metrics;
set jit = off;
grant usage on schema metrics, outbox to outbox_test_metrics;
grant execute on function outbox.fail_permanently to outbox_test_metrics;

-- a quantile is in the bucket of its value: less than a quarter off
create function metrics.quantile(us bigint[], fraction float8) returns float8 language c as 'outbox', 'outbox_test_quantile';
select v, metrics.quantile(array_fill(v, array[100]), 0.5) / v between 0.75 and 1.26 as near
from unnest(array[1, 2, 3, 4, 7, 100, 999, 12345, 1000000, 60000000, 3600000000]) as v;
select round(metrics.quantile(array(select n from generate_series(1, 1000) n), q)::numeric, -2) from unnest(array[0.5, 0.95, 0.99]) q;
select metrics.quantile('{}', 0.5), metrics.quantile('{-5, 0}', 0.5) < 2 as small, metrics.quantile('{9223372036854775807}', 0.5) > 6e10 as large;

create function metrics.does(e outbox.event) returns void language plpgsql as $$
begin
    case e.payload ->> 'do'
        when 'fail' then raise 'fails' using errcode = 'check_violation';
        when 'give up' then perform outbox.fail_permanently('no_such_' || (e.payload ->> 'n'));
        when 'retry' then raise 'later' using errcode = 'connection_failure';
        else perform pg_sleep(0.002);
    end case;
end
$$;
create procedure metrics.until(condition text) language plpgsql as $$
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
select outbox.subscribe('me does', '{me.*}', handler => 'metrics.does', run_as => 'outbox_test_metrics', backoff_base => '1 hour', backoff_max => '1 hour');
select outbox.subscribe('me waits', '{me.one}');
reset client_min_messages;

select subscription, backlog, oldest_delay_seconds, in_progress, retry, blocked, review_required, discarded, delayed, completed_total, failed_total, attempts_total, review_total,
       lease_recoveries_total, handler_seconds_total, handler_ms_p50, publish_to_start_ms_p50, publish_to_done_ms_p99, paused, stopped
from outbox.metrics where subscription like 'me %' order by 1;

select count(*) from outbox.publish_batch(
    (select jsonb_agg(jsonb_build_object('event_type', 'me.one', 'payload', jsonb_build_object('do', 'go'))) from generate_series(1, 20)));
select outbox.publish('me.one', '{"do": "fail"}', event_key => 'k') as failed \gset
select outbox.publish('me.two', '{"do": "go"}', event_key => 'k') is not null as blocked;
select outbox.publish('me.two', '{"do": "fail"}') is not null as published;
select outbox.publish('me.two', '{"do": "retry"}') is not null as published;
select outbox.publish('me.two', '{"do": "go"}', deliver_at => '2100-01-01') is not null as delayed;
select count(outbox.publish('me.nobody.' || n)) from generate_series(1, 3) n, generate_series(1, 2);
call metrics.until($$completed_total + failed_total = 23 and review_required = 2 and backlog = 0 from outbox.metrics where subscription = 'me does'$$);
call metrics.until($$count(*) = 3 from outbox.unmatched_event_type where event_type like 'me.%'$$);
select subscription, backlog, oldest_delay_seconds >= 0 as oldest, in_progress, retry, blocked, review_required, discarded, delayed, completed_total, failed_total, attempts_total, review_total, lease_recoveries_total
from outbox.metrics where subscription like 'me %' order by 1;
select handler_seconds_total between 0.04 and 10 as total, handler_ms_p50 between 1.5 and 100 as p50, handler_ms_p50 <= handler_ms_p95 and handler_ms_p95 <= handler_ms_p99 as rise,
       publish_to_start_ms_p50 > 0 as start, publish_to_done_ms_p50 >= publish_to_start_ms_p50 as done
from outbox.metrics where subscription = 'me does';
select error_code, failed_total from outbox.failure_metrics where subscription = 'me does' order by 1;
select event_type, importance, review_required from outbox.review_metrics where subscription = 'me does' order by 1;
select event_type, events, last_seen_at <= outbox.clock() as seen from outbox.unmatched_event_type where event_type like 'me.%' order by 1;
select held, dispatch, router_running, workers_wanted >= workers_running as running, routed_total >= 46 as routed, unmatched_total >= 6 as unmatched, router_lag_seconds = 0 as looked from outbox.server_metrics;

-- what people do moves the gauges
select outbox.discard('me does', :'failed', 'not needed');
call metrics.until($$blocked = 0 from outbox.metrics where subscription = 'me does'$$);
call metrics.until($$completed_total = 21 from outbox.metrics where subscription = 'me does'$$);
select retry, blocked, review_required, discarded from outbox.metrics where subscription = 'me does';
select event_type, review_required from outbox.review_metrics where subscription = 'me does' order by 1;
begin;
select count(outbox.retry('me does', event_id)) from outbox.review_required where subscription = 'me does';
select retry, review_required from outbox.metrics where subscription = 'me does';
rollback;
select retry, review_required from outbox.metrics where subscription = 'me does';

-- codes beyond the fifteenth count together
select count(*) from outbox.publish_batch(
    (select jsonb_agg(jsonb_build_object('event_type', 'me.two', 'payload', jsonb_build_object('do', 'give up', 'n', n))) from generate_series(1, 20) n));
call metrics.until($$review_total = 22 from outbox.metrics where subscription = 'me does'$$);
select count(*), sum(failed_total), sum(failed_total) filter (where error_code = 'other') as other from outbox.failure_metrics where subscription = 'me does';

-- external workers settle in transactions of their own: what is rolled back does not count
select outbox.subscribe('me claims', array['me.claims'], lanes => 1);
select count(outbox.publish('me.claims')) from generate_series(1, 2);
call metrics.until($$backlog = 2 from outbox.metrics where subscription = 'me claims'$$);
select event_id as claimed, lease_token as token from outbox.claim('me claims', 1) \gset
begin;
select outbox.ack_all(:'token');
rollback;
begin;
select outbox.fail(:'token', :'claimed', 'MC001', permanent => true);
rollback;
begin;
savepoint s;
select outbox.fail(:'token', :'claimed', 'MC001');
rollback to s;
select outbox.ack_all(:'token');
commit;
-- nor does what a claim took back that is rolled back itself
select count(*) from outbox.claim('me claims', 1, '1 ms');
begin;
select count(*) <= 1 as tried from outbox.claim('me claims', 1);
rollback;
call metrics.until($$count(*) = 1 from outbox.claim('me claims', 1)$$);
select completed_total, failed_total, review_total, lease_recoveries_total from outbox.metrics where subscription = 'me claims';
select error_code, failed_total from outbox.failure_metrics where subscription = 'me claims';

-- read-only, and at any isolation level; each column is computed for count(m), none for count(*)
begin isolation level serializable read only;
select count(m) from outbox.metrics m where subscription like 'me %';
select count(m) from outbox.server_metrics m;
select count(h) >= 0 as readable from outbox.snapshot_holder h;
commit;
-- in every snapshot the sums are the rows
select (select coalesce(sum(n), 0) from outbox.exception_count where status <> 'DELAYED') = (select count(*) from outbox.delivery_exception) as same,
       (select coalesce(sum(n), 0) from outbox.exception_count where status = 'DELAYED') = (select count(*) from outbox.delayed) as same_delayed;

-- a subscription that goes takes what is counted of it along, row by row nothing is counted
set client_min_messages = warning;
begin;
select n_tup_ins as before from pg_stat_xact_all_tables where schemaname = 'outbox' and relname = 'exception_count' \gset
select count(outbox.unsubscribe(subscription, force => true)) as removed from outbox.subscription where subscription like 'me %';
select n_tup_ins - :before as counted, n_tup_del > 0 as taken_along from pg_stat_xact_all_tables where schemaname = 'outbox' and relname = 'exception_count';
commit;
select (select coalesce(sum(n), 0) from outbox.exception_count where status <> 'DELAYED') = (select count(*) from outbox.delivery_exception) as same,
       (select coalesce(sum(n), 0) from outbox.exception_count where status = 'DELAYED') = (select count(*) from outbox.delayed) as same_delayed;
drop schema metrics cascade;
drop owned by outbox_test_metrics;
drop role outbox_test_metrics;
