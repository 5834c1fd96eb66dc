-- Two tenants side by side, in every view and call. (Handlers: tap/tenants_are_kept_apart)
set client_min_messages = warning;
create extension if not exists outbox;
drop schema if exists tenants_test cascade;
do $$
declare
    name text;
begin
    for name in select rolname from pg_roles where rolname like 'outbox\_test\_t\_%' loop
        execute format('drop owned by %1$I; drop role %1$I', name);
    end loop;
end
$$;
create role outbox_test_t_app;
create role outbox_test_t_monitor;
create role outbox_test_t_worker;
create role outbox_test_t_operator;
create schema tenants_test;
grant usage, create on schema tenants_test to public;
reset client_min_messages;
select outbox.subscribe('tn s', '{tn.nothing}');
select outbox.grant_publisher('outbox_test_t_app', '{tn.#}'), outbox.grant_publisher('outbox_test_t_worker', '{tn.#}'),
       outbox.grant_monitor('outbox_test_t_monitor'), outbox.grant_worker('outbox_test_t_worker', 'tn s'), outbox.grant_operator('outbox_test_t_operator');

-- ---------------------------------------------------------------- the setting
set outbox.tenant_setting = 'tenant_id';
set outbox.tenant_setting = 'app.';
set outbox.tenant_setting = '.app';
set outbox.tenant_setting = 'app..id';
set outbox.tenant_setting = 'app.1';
set outbox.tenant_setting = 'app.tenant id';
set outbox.tenant_setting = 'search_path';
set outbox.tenant_setting = 'outbox.dispatch';
set outbox.tenant_setting = 'Outbox.workers';
set outbox.tenant_setting = 'outbox.tenant_id';
set outbox.tenant_setting = 'app.a.b_1$';
set outbox.tenant_setting = 'tn.tenant';
set role outbox_test_t_app;
set outbox.tenant_setting = '';
reset outbox.tenant_setting;
select set_config('outbox.tenant_setting', '', true);

-- ---------------------------------------------------------------- publishing
-- without a tenant: nothing, unless the role is one of all tenants
select outbox.publish('tn.x');
select outbox.publish('tn.x', tenant_id => 'a');
select outbox.publish_batch('[{"event_type": "tn.x", "tenant_id": "a"}]');
set tn.tenant = '';
select outbox.publish('tn.x', tenant_id => 'a');
set role outbox_test_t_worker;
select outbox.publish('tn.free', tenant_id => 'a') is not null as published, outbox.publish('tn.free') is not null as of_none;
reset role;
select outbox.publish('tn.free', tenant_id => 'b') is not null as published, outbox.publish('tn.free') is not null as of_none;
-- with one: for it, and no other one
set role outbox_test_t_app;
set tn.tenant = 'a';
select outbox.publish('tn.x') is not null as published;
select outbox.publish('tn.x', tenant_id => 'a') is not null as published;
select outbox.publish('tn.x', tenant_id => 'b');
select outbox.publish('tn.x', tenant_id => 'A');
select outbox.publish('tn.x', tenant_id => '');
select count(*) from outbox.publish_batch('[{"event_type": "tn.x"}, {"event_type": "tn.x", "tenant_id": "a"}]');
select outbox.publish_batch('[{"event_type": "tn.x"}, {"event_type": "tn.x", "tenant_id": "b"}]');
set outbox.tenant_id = 'a';
select outbox.publish('tn.x') is not null as published;
set outbox.tenant_id = 'b';
select outbox.publish('tn.x');
reset outbox.tenant_id;
set tn.tenant = E'a\tb';
select outbox.publish('tn.x');
do $$ begin perform set_config('tn.tenant', repeat('a', 256), false); end $$;
select outbox.publish('tn.x');
-- for all tenants there is no such session
set role outbox_test_t_worker;
set tn.tenant = 'a';
select outbox.publish('tn.x', tenant_id => 'b');
reset role;
select outbox.publish('tn.x', tenant_id => 'b');
-- one dedup_key, two tenants, two events
set role outbox_test_t_app;
create temp table answer (n serial, id uuid);
insert into answer (id) select outbox.publish('tn.dedup', dedup_key => 'k');
set tn.tenant = 'b';
insert into answer (id) select outbox.publish('tn.dedup', dedup_key => 'k');
set tn.tenant = 'a';
insert into answer (id) select outbox.publish('tn.dedup', dedup_key => 'k');
reset role;
select (select id from answer where n = 1) = (select id from answer where n = 3) as same, count(distinct id) from answer;
reset tn.tenant;
select event_type, tenant_id, count(*) from outbox.event where event_type like 'tn.%' group by 1, 2 order by 1, 2;

-- Upkeep has been done once: by this, or by the router, which may be at it.
set client_min_messages = warning;
call outbox.maintain();
reset client_min_messages;
do $$
begin
    for i in 1 .. 3000 loop
        exit when exists (select from outbox.maintenance_status);
        perform pg_sleep(0.01);
    end loop;
end
$$;

-- ---------------------------------------------------------------- a delivery of each kind, for each tenant
create table tenants_test.sample as
select kind, tenant, coalesce(tenant, 'none') as label,
       outbox.publish('tn.sample', jsonb_build_object('whose', coalesce(tenant, 'none')), tenant_id => tenant, event_key => kind) as event_id
from unnest(array['completed', 'pending', 'retry', 'review', 'blocked', 'delayed']) with ordinality k (kind, n) cross join (values ('a'), ('b'), (null)) t (tenant) order by n, tenant;
-- so that views are joined with it by index: event_history whole costs some probes an event and segment, of all that other tests have left
analyze tenants_test.sample;
set jit = off;
create view tenants_test.id as select subscription_id as id from outbox.subscription where subscription = 'tn s';
-- a batch for each tenant, whose columns tell whose it is
insert into outbox.batch select 9223372036854775800 + n, id, timestamptz '2026-01-01' + n * interval '1 day', timestamptz '2026-02-01' + n * interval '1 day', 1, array[n * 1111], 'w' || n, i.event_id, i.event_id
from tenants_test.id, (select row_number() over (order by tenant) as n, event_id from tenants_test.sample where kind = 'completed') i;
do $$
declare
    one record;
begin
    for one in select s.event_id, g.name, 9223372036854775800 + row_number() over (order by tenant) as batch_id from tenants_test.sample s join outbox.segment g on s.event_id >= g.from_id and s.event_id < g.to_id where kind = 'completed' loop
        execute format('insert into outbox.receipt_log_%s (event_id, batch_id, subscription_id, replay_no, attempts, batch_index) select %L, %s, id, 0, 1, 0 from tenants_test.id', one.name, one.event_id, one.batch_id);
    end loop;
end
$$;
insert into outbox.lane_entry select id, 0, 1000000 + row_number() over (), event_id, '(0,1)' from tenants_test.sample, tenants_test.id where kind = 'pending';
insert into outbox.delivery_exception (subscription_id, event_id, lane, position, status, attempts, next_attempt_at, tenant_id, event_key, error_code, failed_at)
select id, event_id, 0, row_number() over (), case kind when 'retry' then 'RETRY' else 'REVIEW_REQUIRED' end, 1, case kind when 'retry' then timestamptz '2100-01-01' end, coalesce(tenant, ''), kind, 'x', now()
from tenants_test.sample, tenants_test.id where kind in ('retry', 'review');
insert into outbox.gate (subscription_id, lane, tenant_id, event_key, held_by, through, created_at)
select id, 0, coalesce(tenant, ''), kind, event_id, 1, now() from tenants_test.sample, tenants_test.id where kind = 'review';
insert into outbox.parked select gate_id, 1000100 + row_number() over (), event_id
from tenants_test.sample s join outbox.gate g on g.tenant_id = coalesce(tenant, '') and g.event_key = 'review' join tenants_test.id on id = g.subscription_id where kind = 'blocked';
insert into outbox.attempt_log (subscription_id, event_id, replay_no, attempt, failed_at, error_code) select id, event_id, 0, 1, now(), 'x' from tenants_test.sample, tenants_test.id where kind = 'review';
insert into outbox.delayed select '2100-01-01', event_id, id from tenants_test.sample, tenants_test.id where kind = 'delayed';

-- by hand, what no right gives to an application
grant select on outbox.event, outbox.event_history, outbox.delivery, outbox.attempt, outbox.review_required, outbox.blocked_key, outbox.subscription_status, outbox.worker_status,
    outbox.operator_log, outbox.metrics, outbox.failure_metrics, outbox.review_metrics, outbox.server_metrics, outbox.maintenance_status, outbox.snapshot_holder, outbox.unmatched_event_type, outbox.event_type, outbox.open_count, outbox.status_count to outbox_test_t_app, outbox_test_t_monitor, outbox_test_t_worker;
grant execute on function outbox.process_list, outbox.tenant_of, outbox.clock, outbox.is_held, outbox.published_at_of, outbox.counters, outbox.open_counts, outbox.is_open, outbox.failure_counters, outbox.unmatched_types, outbox.lease_events, outbox.oldest_since,
    outbox.may_be_there(integer, integer, integer, uuid), outbox.may_be_there(bigint, uuid), outbox.may_be_there(timestamptz, uuid), outbox.lane_to_search, outbox.gates_to_search, outbox.due_times_to_search, outbox.apart to outbox_test_t_app, outbox_test_t_worker;
grant select on tenants_test.sample, tenants_test.id to public;

-- whose rows does a role see in a view?
create function tenants_test.seen(role_name text, tenant text, view text) returns text language plpgsql as $$
declare
    seen text;
begin
    perform set_config('tn.tenant', tenant, true);
    execute format('set local role %I', role_name);
    if view in ('event', 'event_history', 'delivery', 'attempt', 'review_required') then
        execute format('select string_agg(distinct label || n, '' '' order by label || n) from (select label, count(*) as n from outbox.%I join tenants_test.sample using (event_id) group by 1) s', view) into seen;
    elsif view = 'blocked_key' then
        select string_agg(coalesce(tenant_id, 'none') || blocked_events, ' ' order by tenant_id) from outbox.blocked_key where subscription = 'tn s' into seen;
    else
        execute format('select case when exists (select from outbox.%I) then ''rows'' end', view) into seen;
    end if;
    reset role;
    perform set_config('tn.tenant', '', true);
    return coalesce(seen, '-');
end
$$;
select v.relname as view,
       tenants_test.seen('outbox_test_t_app', 'a', relname) as app_a, tenants_test.seen('outbox_test_t_app', 'b', relname) as app_b, tenants_test.seen('outbox_test_t_app', '', relname) as app,
       tenants_test.seen('outbox_test_t_monitor', '', relname) as monitor, tenants_test.seen('outbox_test_t_monitor', 'a', relname) as monitor_a,
       tenants_test.seen('outbox_test_t_worker', '', relname) as worker, tenants_test.seen(current_user, '', relname) as owner, tenants_test.seen(current_user, 'b', relname) as owner_b
from pg_class v where relnamespace = 'outbox'::regnamespace and relkind = 'v' and relname not in ('failure_metrics', 'review_metrics', 'unmatched_event_type', 'snapshot_holder')
order by 1;

-- A function in WHERE is not called with what is another tenant's, however cheap it says it is.
set role outbox_test_t_app;
create function tenants_test.listen(what anyelement) returns boolean language plpgsql immutable cost 0.0000001 as $$
begin
    perform set_config('tn.heard', current_setting('tn.heard', true) || ' ' || coalesce(what::text, 'null'), false);
    return true;
end $$;
create function tenants_test.heard(query text) returns text language plpgsql as $$
declare
    heard text;
begin
    perform set_config('tn.heard', '', false);
    execute query;
    heard := current_setting('tn.heard');
    return case when heard = '' then 'nothing'
           else (select string_agg(distinct coalesce(s.label, w), ' ') from unnest(string_to_array(btrim(heard), ' ')) w left join tenants_test.sample s on s.event_id::text = w) end;
end $$;
set tn.tenant = 'a';
select tenants_test.heard($$select count(*) from outbox.event where event_type = 'tn.sample' and tenants_test.listen(payload ->> 'whose')$$) as event;
select tenants_test.heard($$select count(*) from outbox.event where tenants_test.listen(coalesce(tenant_id, 'none'))$$) as event;
select tenants_test.heard($$select count(*) from outbox.event e join tenants_test.sample s using (event_id) where tenants_test.listen(e.payload ->> 'whose')$$) as joined;
select tenants_test.heard($$select count(*) from outbox.event_history where event_type = 'tn.sample' and tenants_test.listen(payload ->> 'whose')$$) as history;
select tenants_test.heard($$select count(*) from outbox.delivery where subscription = 'tn s' and tenants_test.listen(event_id)$$) as delivery;
select tenants_test.heard($$select count(*) from outbox.delivery where event_id = any (array(select event_id from tenants_test.sample)) and tenants_test.listen(event_id)$$) as of_some;
select tenants_test.heard($$select count(*) from outbox.delivery where tenants_test.listen(coalesce(tenant_id, 'none'))$$) as delivery;
select tenants_test.heard($$select count(*) from outbox.attempt where tenants_test.listen(event_id)$$) as attempt;
select tenants_test.heard($$select count(*) from outbox.review_required where tenants_test.listen(event_id)$$) as review_required;
select tenants_test.heard($$select count(*) from outbox.blocked_key where tenants_test.listen(held_by)$$) as blocked_key;
select tenants_test.heard($$select count(*) from outbox.subscription_status where tenants_test.listen(subscription)$$) as subscription_status;
select tenants_test.heard($$select count(*) from outbox.operator_log where tenants_test.listen(role_name)$$) as operator_log;
select tenants_test.heard($$select count(*) from outbox.worker_status where tenants_test.listen(process)$$) as worker_status;

-- So for each column of each view, with a function that null reaches and with one that it does not: for a strict one the planner takes outer joins for inner
-- ones, and asks of the joined table first. Definitions are no tenant's: of subscriptions (subscription, max_attempts) and of event types.
reset role;
create table tenants_test.of_others (view text, attribute text, value text);
grant select on tenants_test.of_others to public;
-- event_history whole costs some probes for each event of other tests
create function tenants_test.source(view text) returns text language sql immutable as $$
    select format('outbox.%I v', view) || case when view in ('event', 'event_history') then ' join tenants_test.sample s using (event_id)' else '' end $$;
do $$
declare
    asked record;
begin
    for asked in select c.relname, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
        where c.relnamespace = 'outbox'::regnamespace and c.relkind = 'v' and has_table_privilege('outbox_test_t_app', c.oid, 'select')
          and c.relname not in ('event_type', 'snapshot_holder') and a.attname not in ('subscription', 'max_attempts')
    loop
        perform set_config('tn.tenant', case when asked.relname in ('event', 'event_history', 'delivery', 'attempt', 'review_required', 'blocked_key') then 'b' else '' end, true);
        execute format('insert into tenants_test.of_others select distinct %L, %L, v.%I::text from %s', asked.relname, asked.attname, asked.attname, tenants_test.source(asked.relname));
    end loop;
end
$$;
create function tenants_test.listen_strict(what anyelement) returns boolean language plpgsql immutable strict cost 0.0000001 as $$
begin
    perform set_config('tn.heard', current_setting('tn.heard', true) || '|' || what::text, false);
    return true;
end $$;
create function tenants_test.listen_null(what anyelement) returns boolean language plpgsql immutable cost 0.0000001 as $$
begin
    perform set_config('tn.heard', current_setting('tn.heard', true) || '|' || coalesce(what::text, ''), false);
    return true;
end $$;
-- as heard(), for one column: what another tenant can read there and this one cannot
create function tenants_test.heard_of_others(view text, attribute text) returns text language plpgsql as $$
declare
    listener text;
    others text;
    answer text;
begin
    foreach listener in array '{listen_strict(v.%I),listen_null(v.%I)}'::text[] loop
        perform set_config('tn.heard', '', false);
        execute format('select count(*) from %s where tenants_test.' || listener, tenants_test.source(view), attribute);
        execute format('select string_agg(distinct value, '' '' order by value) from tenants_test.of_others where view = $1 and attribute = $2'
                       ' and value = any (string_to_array(current_setting(''tn.heard''), ''|'')) and value not in (select v.%I::text from %s where v.%I is not null)',
                       attribute, tenants_test.source(view), attribute) into others using view, attribute;
        answer := concat_ws(' ', answer, others);
    end loop;
    return answer;
end $$;
set role outbox_test_t_app;
set tn.tenant = 'a';
create view tenants_test.heard_everywhere as
select *
from (select view, attribute, tenants_test.heard_of_others(view, attribute) as heard
      from (select distinct view, attribute from tenants_test.of_others) c
      where view <> 'event_history' or current_setting('enable_nestloop') = 'on'
      offset 0) h;
select count(distinct (view, attribute)) > 50 as columns, string_agg(distinct view, ' ' order by view) as views_with_rows
from tenants_test.of_others where view in ('event', 'event_history', 'delivery', 'attempt', 'review_required', 'blocked_key');
select view, attribute, heard from tenants_test.heard_everywhere where heard <> '' order by 1, 2;
-- and when other plans are taken: whole tables are read
set enable_nestloop = off;
select view, attribute, heard from tenants_test.heard_everywhere where heard <> '' order by 1, 2;
reset enable_nestloop;

-- views of one's own, with the rights of whoever reads or of whoever made them
create view tenants_test.invoker with (security_invoker) as select event_id, tenant_id from outbox.event where event_type = 'tn.sample';
create view tenants_test.definer as select event_id, tenant_id from outbox.event where event_type = 'tn.sample';
select (select string_agg(distinct tenant_id, ' ') from tenants_test.invoker) as invoker, (select string_agg(distinct tenant_id, ' ') from tenants_test.definer) as definer;
set tn.tenant = '';
select (select count(*) from tenants_test.invoker) as invoker, (select count(*) from tenants_test.definer) as definer;
-- what is called about an event
set tn.tenant = 'a';
select label, outbox.tenant_of(event_id) from tenants_test.sample where kind = 'pending' order by 1;
select label, outbox.event_is_visible(event_id) from tenants_test.sample where kind = 'pending' order by 1;
set tn.tenant = '';
select label, outbox.tenant_of(event_id) from tenants_test.sample where kind = 'pending' order by 1;
-- tables are closed, whatever is granted
reset role;
do $$
begin
    execute 'grant select on outbox.event_log, outbox.delivery_exception, outbox.gate, outbox.dedup to outbox_test_t_app';
    execute format('grant select on outbox.event_log_%s to outbox_test_t_app', (select max(g.name) from outbox.segment g join tenants_test.sample s on s.event_id >= g.from_id));
end
$$;
set role outbox_test_t_app;
set tn.tenant = 'a';
select (select count(*) from outbox.event_log) as log, (select count(*) from outbox.delivery_exception) as exceptions, (select count(*) from outbox.gate) as gates, (select count(*) from outbox.dedup) as dedup;
select count(*) as open from pg_class c where relnamespace = 'outbox'::regnamespace and relkind = 'r' and not relrowsecurity;
set row_security = off;
select count(*) from outbox.event_log;
reset row_security;

-- ---------------------------------------------------------------- calls for all tenants
set role outbox_test_t_operator;
select outbox.retry('tn s', (select event_id from tenants_test.sample where kind = 'review' and tenant = 'a'));
select outbox.pause('tn s');
select outbox.subscribe('tn other', '{tn.x}');
set role outbox_test_t_worker;
call outbox.wait('{tn s}', '0');
select count(*) from outbox.claim('tn s');
reset role;
select outbox.unsubscribe('tn s', force => true);
select outbox.status();
select outbox.report();
set tn.tenant = '';
set role outbox_test_t_operator;
select outbox.retry('tn s', (select event_id from tenants_test.sample where kind = 'review' and tenant = 'a'));
-- a worker of all tenants gets all tenants' events
set role outbox_test_t_worker;
call outbox.wait('{tn s}', '0');
create temp table claimed as select * from outbox.claim('tn s', max_events => 20);
select string_agg(distinct coalesce(tenant_id, 'none'), ' ') from claimed;
-- and tenants see what is at work of theirs
reset role;
grant select on claimed to outbox_test_t_app;
set tn.tenant = 'a';
set role outbox_test_t_app;
select distinct d.tenant_id, d.status from outbox.delivery d join claimed c using (event_id) order by 1;
select distinct c.tenant_id from outbox.lease_events() join claimed c using (event_id);
-- what it holds can be settled in a session without a tenant only
set role outbox_test_t_worker;
select outbox.ack_all((select lease_token from claimed limit 1));
set tn.tenant = '';
select outbox.release_all((select lease_token from claimed limit 1));
reset role;

-- the planner calls the operator of a condition with the most common values of a column, whosever they are: not ours
create function tenants_test.overhear(value text, with_what text) returns boolean language plpgsql as $$
begin
    raise notice 'overheard %', value;
    return true;
end $$;
create operator tenants_test.=== (function = tenants_test.overhear, leftarg = text, rightarg = text, restrict = eqsel);
analyze outbox.event_log, outbox.delivery_exception, outbox.attempt_log;
set tn.tenant = 'a';
set role outbox_test_t_app;
do $$
declare
    condition text;
begin
    foreach condition in array array['event where tenant_id', 'event where event_type', 'event where event_key', 'delivery where error_code', 'attempt where error_code', 'review_required where error_code'] loop
        execute format('explain select from outbox.%s operator(tenants_test.===) %L', condition, 'x');
    end loop;
end $$;
reset role;
set tn.tenant = '';

-- messages from elsewhere: each tenant's receivers are its own, and those of none
create function tenants_test.consume(tenant text) returns boolean language plpgsql as $$
begin
    perform set_config('tn.tenant', tenant, true);
    return outbox.consume_once('tn mail', 'm');
end $$;
select tenant, tenants_test.consume(tenant) as first, tenants_test.consume(tenant) as again from unnest(array['a', '', 'b', 'A']) as tenant;
set role outbox_test_t_app;
select tenants_test.consume('a') as again, tenants_test.consume('c') as first;
select tenants_test.consume('');
select tenants_test.consume(repeat('a', 256));
set role outbox_test_t_worker;
select tenants_test.consume('') as again, tenants_test.consume('c') as again;
reset role;
select tenant_id, message_id from outbox.consumed where receiver = 'tn mail' order by 1;
delete from outbox.consumed where receiver = 'tn mail';

-- without the setting, tenants are what publishers say
reset outbox.tenant_setting;
set tn.tenant = 'a';
set role outbox_test_t_app;
select outbox.publish('tn.x', tenant_id => 'b') is not null as published;
select string_agg(distinct coalesce(tenant_id, 'none'), ' ') from outbox.event where event_type = 'tn.sample';
reset role;

set client_min_messages = warning;
select outbox.unsubscribe('tn s', force => true);
drop schema tenants_test cascade;
do $$
declare
    name text;
begin
    for name in select rolname from pg_roles where rolname like 'outbox\_test\_t\_%' loop
        execute format('drop owned by %1$I; drop role %1$I', name);
    end loop;
end
$$;
