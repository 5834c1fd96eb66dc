-- Who may do what: every kind of role against every function, view and table.
-- The one place where it is decided for the tests is the table "decision" below.
set client_min_messages = warning;
create extension if not exists outbox;
drop schema if exists rights_test, rights_test_of_publisher cascade;
do $$
declare
    name text;
begin
    for name in select rolname from pg_roles where rolname like 'outbox\_test\_r\_%' loop
        execute format('drop owned by %1$I; drop role %1$I', name);
    end loop;
end
$$;
reset client_min_messages;

-- ---------------------------------------------------------------- nothing for PUBLIC
select 'function', p.proname from pg_proc p
where p.pronamespace = 'outbox'::regnamespace
  and (p.proacl is null or exists (select from aclexplode(p.proacl) a where a.grantee = 0))
union all
select 'relation', c.relname from pg_class c
where c.relnamespace = 'outbox'::regnamespace and exists (select from aclexplode(c.relacl) a where a.grantee = 0)
union all
select 'column', c.relname from pg_class c join pg_attribute t on t.attrelid = c.oid
where c.relnamespace = 'outbox'::regnamespace and t.attacl is not null
union all
select 'schema', n.nspname from pg_namespace n
where n.nspname = 'outbox' and exists (select from aclexplode(n.nspacl) a where a.grantee = 0);
-- A type is a shape: PostgreSQL lets everybody use it who can reach the schema, and nothing more is said about any.
select t.typname from pg_type t where t.typnamespace = 'outbox'::regnamespace and t.typacl is not null;
-- the functions that run as their owner: their names were resolved when they were made, and their search_path ends in pg_temp
select p.proname, p.prosqlbody is not null as resolved, p.proconfig from pg_proc p where p.pronamespace = 'outbox'::regnamespace and p.prosecdef order by 1;
-- tables are closed by row security, also against whom one is granted to; each view that reads them asks whose the row is
select c.relname from pg_class c where c.relnamespace = 'outbox'::regnamespace and c.relkind in ('r', 'p') and not c.relrowsecurity;
select p.polname from pg_policy p join pg_class c on c.oid = p.polrelid where c.relnamespace = 'outbox'::regnamespace;
select c.relname from pg_class c
where c.relnamespace = 'outbox'::regnamespace and c.relkind = 'v' and c.relname <> 'event_type' -- of no tenant
  and pg_get_viewdef(c.oid) !~ 'outbox\.(tenant_is_visible|event_is_visible|sees_all_tenants)\('
order by 1;

-- ---------------------------------------------------------------- the kinds of roles
create role outbox_test_r_publisher;
create role outbox_test_r_worker_1;
create role outbox_test_r_worker_2;
create role outbox_test_r_operator;
create role outbox_test_r_monitor;
create role outbox_test_r_stranger;
create role outbox_test_r_table_owner;
create role outbox_test_r_member in role outbox_test_r_publisher;
create role outbox_test_r_granter;
grant outbox_test_r_granter to outbox_test_r_operator;

select outbox.subscribe('rt h1', '{rt.#}'), outbox.subscribe('rt h2', '{rt.#}');
select outbox.grant_publisher('outbox_test_r_publisher', '{rt.task.*,rt.exact}');
select outbox.grant_publisher('outbox_test_r_publisher', '{rt.exact}') as again, outbox.grant_publisher('outbox_test_r_publisher', '{rt.exact,rt.more}') as more;
select outbox.grant_publisher('outbox_test_r_table_owner', '{rt.row}');
select outbox.grant_worker('outbox_test_r_worker_1', 'rt h1'), outbox.grant_worker('outbox_test_r_worker_1', 'rt h1') as again;
select outbox.grant_worker('outbox_test_r_worker_2', 'rt h2');
select outbox.grant_operator('outbox_test_r_operator'), outbox.grant_operator('outbox_test_r_operator') as again;
select outbox.grant_monitor('outbox_test_r_monitor'), outbox.grant_monitor('outbox_test_r_monitor') as again;
-- bad arguments
select outbox.grant_publisher('outbox_test_r_nobody', '{rt.x}');
select outbox.grant_publisher('public', '{rt.x}');
select outbox.grant_publisher('outbox_test_r_stranger', '{}');
select outbox.grant_publisher('outbox_test_r_stranger', '{rt.x,null}');
select outbox.grant_publisher('outbox_test_r_stranger', '{rt.x*}');
select outbox.grant_publisher('outbox_test_r_stranger', null);
select outbox.grant_publisher(null, '{rt.x}');
select outbox.grant_worker('outbox_test_r_stranger', 'rt missing');
select outbox.grant_worker('outbox_test_r_stranger', null);
select outbox.grant_monitor(null);
select outbox.revoke_publisher('outbox_test_r_stranger', '{rt.x}') as nothing, outbox.revoke_monitor('outbox_test_r_nobody') as nobody;

-- ---------------------------------------------------------------- the decision
create schema rights_test;
-- who has a privilege on it at all: p publisher, w worker, o operator, m monitor; empty: nobody but the owner
create table rights_test.decision (object text primary key, kinds text not null);
insert into rights_test.decision values
    ('publish', 'p'), ('publish_batch', 'p'), ('publish_row', 'p'),
    ('current_delivery', 'pw'), ('fail_permanently', 'pw'), ('retry_after', 'pw'), ('envelope', 'pw'), ('consume_once', 'pw'),
    ('claim', 'w'), ('ack', 'w'), ('ack_all', 'w'), ('ack_one', 'w'), ('fail', 'w'), ('extend', 'w'), ('release', 'w'), ('release_all', 'w'), ('wait', 'w'),
    ('subscribe', 'o'), ('alter_subscription', 'o'), ('unsubscribe', 'o'), ('pause', 'o'), ('resume', 'o'), ('matching_subscriptions', 'o'),
    ('define_event_type', 'o'), ('drop_event_type', 'o'),
    ('retry', 'o'), ('retry_all', 'o'), ('discard', 'o'), ('replay', 'o'), ('drain', 'o'), ('maintain', 'o'), ('schedule_maintenance', 'o'), ('activate', 'o'),
    ('status', 'om'), ('report', 'om'), ('process_list', 'om'), ('clock', 'om'), ('is_held', 'om'), ('tenant_of', 'om'),
    ('may_be_there', 'om'), ('lane_to_search', 'om'), ('gates_to_search', 'om'), ('due_times_to_search', 'om'), ('apart', 'om'),
    ('published_at_of', 'om'), ('counters', 'om'), ('open_counts', 'om'), ('is_open', 'om'), ('failure_counters', 'om'), ('unmatched_types', 'om'), ('lease_events', 'om'), ('oldest_since', 'om'),
    ('grant_publisher', ''), ('grant_worker', ''), ('grant_operator', ''), ('grant_monitor', ''),
    ('revoke_publisher', ''), ('revoke_worker', ''), ('revoke_operator', ''), ('revoke_monitor', ''),
    ('reassert_grants', ''), ('announce_database', ''), ('count_exceptions', ''), ('tenant_support', ''), ('ago', ''), ('html', ''), ('traffic', ''), ('chart', ''),
    ('tenant_is_visible', 'pwom'), ('event_is_visible', 'pwom'), ('sees_all_tenants', 'pwom'), ('require_all_tenants', ''), ('check_report_times', ''),
    -- views
    ('delivery', 'om'), ('attempt', 'om'), ('review_required', 'om'), ('blocked_key', 'om'), ('subscription_status', 'om'), ('worker_status', 'om'),
    ('operator_log', 'om'), ('event_type', 'om'), ('metrics', 'om'), ('failure_metrics', 'om'), ('review_metrics', 'om'), ('server_metrics', 'om'), ('maintenance_status', 'om'),
    ('snapshot_holder', 'om'), ('unmatched_event_type', 'om'),
    ('event', ''), ('event_history', ''), ('open_count', ''), ('status_count', '');
create view rights_test.object as
select p.oid, p.proname::text as object, p.prokind::text as kind,
       format(case p.prokind when 'p' then 'call outbox.%I(%s)' else 'select outbox.%I(%s)' end, p.proname,
              (select string_agg(format(case p.prokind when 'p' then 'null::%s' else '(select null::%s offset 0)' end, format_type(t, null)), ', ' order by n) from unnest(p.proargtypes) with ordinality a (t, n))) as command
from pg_proc p where p.pronamespace = 'outbox'::regnamespace and not p.proargtypes::oid[] @> '{internal}'::regtype[]::oid[] -- these SQL cannot call
union all
select c.oid, c.relname, c.relkind::text, format(case c.relkind when 'S' then 'select nextval(''outbox.%I'')' else 'select * from outbox.%I limit 1' end, c.relname)
from pg_class c where c.relnamespace = 'outbox'::regnamespace and c.relkind in ('v', 'r', 'S');
create table rights_test.role (name text, kind text);
insert into rights_test.role values
    ('outbox_test_r_publisher', 'p'), ('outbox_test_r_member', 'p'), ('outbox_test_r_table_owner', 'p'), ('outbox_test_r_worker_1', 'w'), ('outbox_test_r_worker_2', 'w'),
    ('outbox_test_r_operator', 'o'), ('outbox_test_r_monitor', 'm'), ('outbox_test_r_stranger', '-');

-- Nothing without a decision: tables and sequences are for nobody.
select o.kind, o.object from rights_test.object o left join rights_test.decision d using (object)
where d.object is null and o.kind in ('f', 'p', 'v')
order by 1, 2;

-- a command as a role: was it let in?
create function rights_test.attempt(role_name text, command text) returns text language plpgsql as $$
begin
    begin
        execute format('set local role %I', role_name);
        execute command;
        raise exception using errcode = 'OT000';
    exception
        when insufficient_privilege then return 'refused';
        when sqlstate 'OB002' then return 'OB002';
        when others then return 'let in';
    end;
end
$$;
-- what is not as decided, for each privilege and by trying
select r.name, o.kind, o.object, tried
from rights_test.role r cross join rights_test.object o left join rights_test.decision d using (object)
cross join lateral (select rights_test.attempt(r.name, o.command) as tried) t
where (tried = 'let in') is distinct from (position(r.kind in coalesce(d.kinds, '')) > 0)
order by 1, 2, 3;
select r.name, o.kind, o.object, privilege
from rights_test.role r cross join rights_test.object o cross join unnest(array['select', 'insert', 'update', 'delete', 'truncate', 'references', 'trigger']) privilege
where o.kind in ('r', 'v') and has_table_privilege(r.name, o.oid, privilege)
  and not (o.kind = 'v' and privilege = 'select' and position(r.kind in (select kinds from rights_test.decision d where d.object = o.object)) > 0)
order by 1, 2, 3;
select r.name, privilege from rights_test.role r cross join unnest(array['usage', 'create']) privilege
where has_schema_privilege(r.name, 'outbox', privilege) <> (privilege = 'usage' and r.kind <> '-');

-- ---------------------------------------------------------------- what EXECUTE alone does not give
-- Everybody may execute everything: what is refused now, the functions themselves refuse.
begin;
grant usage on schema outbox to outbox_test_r_stranger, outbox_test_r_monitor;
grant execute on all routines in schema outbox to outbox_test_r_publisher, outbox_test_r_worker_1, outbox_test_r_operator, outbox_test_r_monitor, outbox_test_r_stranger, outbox_test_r_member;
create table rights_test.call (n serial, command text);
insert into rights_test.call (command) values
    ($$select outbox.publish('rt.task.done')$$),
    ($$select outbox.publish('rt.task.done.late')$$),
    ($$select outbox.publish('rt.exact')$$),
    ($$select outbox.publish('rt.Exact')$$),
    ($$select outbox.publish('rt.more')$$),
    ($$select outbox.publish('rt')$$),
    ($$select outbox.publish_batch('[{"event_type": "rt.exact"}, {"event_type": "rt.task.x"}]')$$),
    ($$select outbox.publish_batch('[{"event_type": "rt.exact"}, {"event_type": "rt.other"}]')$$),
    ($$select outbox.subscribe('rt new', '{rt.x}')$$),
    ($$select outbox.alter_subscription('rt h1', max_attempts => 3)$$),
    ($$select outbox.unsubscribe('rt h1')$$),
    ($$select outbox.pause('rt h1')$$),
    ($$select outbox.resume('rt h1')$$),
    ($$select outbox.matching_subscriptions('rt.x')$$),
    ($$select outbox.retry('rt h1', gen_random_uuid())$$),
    ($$select outbox.discard('rt h1', gen_random_uuid(), 'x')$$),
    ($$call outbox.drain()$$),
    ($$select outbox.activate()$$),
    ($$select outbox.retry_all('rt h1')$$),
    ($$select outbox.replay('rt h1', array[gen_random_uuid()])$$),
    ($$select outbox.replay('rt h1', now())$$),
    ($$select outbox.define_event_type('rt.x')$$),
    ($$select outbox.drop_event_type('rt.x', '1')$$),
    ($$select outbox.claim('rt h1')$$),
    ($$select outbox.claim('rt h2')$$),
    ($$select outbox.grant_publisher('outbox_test_r_granter', '{#}')$$),
    ($$select outbox.grant_worker('outbox_test_r_granter', 'rt h1')$$),
    ($$select outbox.grant_operator('outbox_test_r_granter')$$),
    ($$select outbox.grant_monitor('outbox_test_r_granter')$$),
    ($$select outbox.revoke_publisher('outbox_test_r_publisher', '{rt.exact}')$$),
    ($$select outbox.revoke_worker('outbox_test_r_worker_1', 'rt h1')$$),
    ($$select outbox.revoke_operator('outbox_test_r_operator')$$),
    ($$select outbox.revoke_monitor('outbox_test_r_monitor')$$),
    ($$select outbox.reassert_grants()$$);
select command, array_to_string(array(
           select replace(r.name, 'outbox_test_r_', '') from rights_test.role r
           where r.kind <> '-' and rights_test.attempt(r.name, c.command) = 'let in' order by r.name), ', ') as let_in,
       rights_test.attempt('outbox_test_r_stranger', c.command) as stranger
from rights_test.call c order by n;
rollback;
-- the message says what to do
grant usage on schema outbox to outbox_test_r_stranger;
grant execute on function outbox.publish, outbox.retry to outbox_test_r_stranger;
set role outbox_test_r_stranger;
select outbox.publish('rt.exact');
select outbox.retry('rt h1', gen_random_uuid());
reset role;
revoke all on schema outbox from outbox_test_r_stranger;
revoke execute on function outbox.publish, outbox.retry from outbox_test_r_stranger;

-- ---------------------------------------------------------------- triggers, functions and views of those who may publish
create schema rights_test_of_publisher authorization outbox_test_r_publisher;
grant usage on schema rights_test_of_publisher to public;
set role outbox_test_r_publisher;
create table rights_test_of_publisher.task (title text);
grant insert on rights_test_of_publisher.task to public;
create function rights_test_of_publisher.announce() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform outbox.publish('rt.task.made', jsonb_build_object('title', new.title));
    return new;
end $$;
create trigger announce after insert on rights_test_of_publisher.task for each row execute function rights_test_of_publisher.announce();
create function rights_test_of_publisher.finish() returns uuid language sql security definer set search_path = pg_catalog, pg_temp as $$ select outbox.publish('rt.task.finished') $$;
create function rights_test_of_publisher.invoked() returns uuid language sql as $$ select outbox.publish('rt.task.invoked') $$;
create view rights_test_of_publisher.finishing as select rights_test_of_publisher.finish() is not null as done;
grant select on rights_test_of_publisher.finishing to public;
set role outbox_test_r_stranger;
insert into rights_test_of_publisher.task values ('by a stranger');
select rights_test_of_publisher.finish() is not null as by_function;
select * from rights_test_of_publisher.finishing;
-- as the caller, the caller's right counts
select rights_test_of_publisher.invoked();
reset role;
select event_type, count(*) from outbox.event where event_type like 'rt.task.%' group by 1 order by 1;
-- and the definer's goes with the right
select outbox.revoke_publisher('outbox_test_r_publisher', '{rt.task.*}');
set role outbox_test_r_stranger;
insert into rights_test_of_publisher.task values ('too late');
reset role;

-- outbox.publish_row(): the right of the table's owner counts, whoever changes the row
create table rights_test.row (n integer);
alter table rights_test.row owner to outbox_test_r_table_owner;
grant usage, create on schema rights_test to outbox_test_r_table_owner;
grant usage on schema rights_test to outbox_test_r_stranger;
grant insert, select on rights_test.row to outbox_test_r_stranger;
set role outbox_test_r_table_owner;
create trigger publish after insert on rights_test.row for each row when (new.n < 10) execute function outbox.publish_row('event_type=rt.row', 'columns=n');
create trigger publish_other after insert on rights_test.row for each row when (new.n >= 10) execute function outbox.publish_row('event_type=rt.exact', 'columns=n');
create view rights_test.row_view as select * from rights_test.row;
grant insert on rights_test.row_view to outbox_test_r_stranger;
set role outbox_test_r_stranger;
insert into rights_test.row values (1);
insert into rights_test.row_view values (2);
insert into rights_test.row values (10);
create temp table own (n integer);
create trigger publish after insert on own for each row execute function outbox.publish_row('event_type=rt.row', 'columns=n');
reset role;
select event_type, payload from outbox.event where event_type = 'rt.row' order by event_id;

-- ---------------------------------------------------------------- whose lease it is
call outbox.drain('{rt h1}');
set role outbox_test_r_worker_1;
create temp table lease as select lease_token, event_id from outbox.claim('rt h1', max_events => 1);
reset role;
grant select on lease to public;
set role outbox_test_r_worker_2;
select outbox.ack_all(lease_token) from lease;
select count(*) from outbox.claim('rt h2', ack => (select lease_token from lease));
select outbox.fail(lease_token, event_id) from lease;
select outbox.extend(lease_token) from lease;
select outbox.release_all(lease_token) from lease;
set role outbox_test_r_operator;
select outbox.ack_all(lease_token) from lease;
set role outbox_test_r_worker_1;
select outbox.ack_all(lease_token) from lease;
call outbox.wait('{rt h1}', '0');
call outbox.wait('{rt h1,rt h2}', '0');
drop table lease;
reset role;

-- ---------------------------------------------------------------- changes count at once, and go with their transaction
set role outbox_test_r_publisher;
select outbox.publish('rt.exact') is not null as published;
begin;
reset role;
select outbox.revoke_publisher('outbox_test_r_publisher', '{rt.exact}');
savepoint s;
set role outbox_test_r_publisher;
select outbox.publish('rt.exact');
rollback to s;
reset role;
rollback;
set role outbox_test_r_publisher;
select outbox.publish('rt.exact') is not null as published;
select outbox.publish('rt.new');
reset role;
begin;
select outbox.grant_publisher('outbox_test_r_publisher', '{rt.new}');
set role outbox_test_r_publisher;
select outbox.publish('rt.new') is not null as published;
reset role;
rollback;
set role outbox_test_r_publisher;
select outbox.publish('rt.new');
-- membership
set role outbox_test_r_member;
select outbox.publish('rt.exact') is not null as published;
reset role;
revoke outbox_test_r_publisher from outbox_test_r_member;
grant usage on schema outbox to outbox_test_r_member;
grant execute on function outbox.publish to outbox_test_r_member;
set role outbox_test_r_member;
select outbox.publish('rt.exact');
reset role;
grant outbox_test_r_publisher to outbox_test_r_member;
set role outbox_test_r_member;
select outbox.publish('rt.exact') is not null as published;
reset role;
-- also at a level of isolation that sees the past, and leaves no predicate lock
begin isolation level serializable;
select count(*) from outbox.role_grant where role_name = 'outbox_test_r_nobody';
set local role outbox_test_r_publisher;
select outbox.publish('rt.exact') is not null as published;
rollback;

-- ---------------------------------------------------------------- a role that is renamed, dropped, made again
alter role outbox_test_r_publisher rename to outbox_test_r_renamed;
create role outbox_test_r_publisher;
grant usage on schema outbox to outbox_test_r_publisher;
grant execute on function outbox.publish to outbox_test_r_publisher;
set role outbox_test_r_renamed;
select outbox.publish('rt.exact') is not null as published;
set role outbox_test_r_publisher;
select outbox.publish('rt.exact');
reset role;
select outbox.grant_publisher('outbox_test_r_publisher', '{rt.second}');
select role_name, kind, scope from outbox.role_grant where role_name like 'outbox\_test\_r\_%' order by 1, 2, 3;
-- two change their names for each other's
alter role outbox_test_r_publisher rename to outbox_test_r_third;
alter role outbox_test_r_renamed rename to outbox_test_r_publisher;
alter role outbox_test_r_third rename to outbox_test_r_renamed;
set role outbox_test_r_publisher;
select outbox.publish('rt.exact') is not null as published;
select outbox.publish('rt.second');
set role outbox_test_r_renamed;
select outbox.publish('rt.second') is not null as published;
select outbox.publish('rt.exact');
reset role;
select outbox.revoke_publisher('outbox_test_r_renamed', '{rt.second}');
select role_name, kind, scope from outbox.role_grant where role_name in ('outbox_test_r_publisher', 'outbox_test_r_renamed') order by 1, 2, 3;
select has_schema_privilege('outbox_test_r_renamed', 'outbox', 'usage') as usage, has_function_privilege('outbox_test_r_renamed', 'outbox.current_delivery()', 'execute') as execute;
-- PostgreSQL keeps a role that has privileges; when they are gone, nobody inherits the rights
\set VERBOSITY terse
drop role outbox_test_r_monitor;
\set VERBOSITY default
drop owned by outbox_test_r_monitor;
drop role outbox_test_r_monitor;
create role outbox_test_r_monitor;
grant usage on schema outbox to outbox_test_r_monitor;
grant execute on function outbox.clock to outbox_test_r_monitor;
set role outbox_test_r_monitor;
select count(*) from outbox.delivery;
reset role;
select outbox.grant_publisher('outbox_test_r_monitor', '{rt.x}');
select role_name, kind, scope from outbox.role_grant where role_name = 'outbox_test_r_monitor';

-- names without a role of this server, as after a restore: whose they are now
delete from outbox.granted_role;
set role outbox_test_r_monitor;
select outbox.publish('rt.x') is not null as published;
reset role;
insert into outbox.role_grant values ('outbox_test_r_lost', 'operator', '', now(), 'x');
select outbox.revoke_monitor('outbox_test_r_worker_2') as nothing;
select role_name, role_name = role_id::regrole::text as same from outbox.granted_role where role_name like 'outbox\_test\_r\_%' order by 1;
-- what no role has is taken back by its name
select outbox.revoke_operator('outbox_test_r_lost');

-- ---------------------------------------------------------------- revokes
-- a right that another one needs too stays
select outbox.grant_publisher('outbox_test_r_worker_1', '{rt.w}');
select outbox.revoke_worker('outbox_test_r_worker_1', 'rt h1'), outbox.revoke_worker('outbox_test_r_worker_1', 'rt h1') as again;
select has_function_privilege('outbox_test_r_worker_1', 'outbox.current_delivery()', 'execute') as current_delivery, has_schema_privilege('outbox_test_r_worker_1', 'outbox', 'usage') as usage;
select outbox.revoke_publisher('outbox_test_r_worker_1', '{rt.w}');
select has_function_privilege('outbox_test_r_worker_1', 'outbox.current_delivery()', 'execute') as current_delivery, has_schema_privilege('outbox_test_r_worker_1', 'outbox', 'usage') as usage;
-- nothing is left on anything, so the role can be dropped
drop role outbox_test_r_worker_1;
-- a worker's right ends with the subscription
select outbox.unsubscribe('rt h2', force => true);
select count(*) from outbox.role_grant where role_name = 'outbox_test_r_worker_2';
-- privileges that were lost are given again
revoke execute on function outbox.retry from outbox_test_r_operator;
select outbox.reassert_grants();
select has_function_privilege('outbox_test_r_operator', 'outbox.retry(text, uuid)', 'execute') as retry;
-- all of it is written down
select action, subscription, reason from outbox.operator_log where action ~ '^(grant|revoke)_' and reason ~ 'outbox_test_r_(worker_1|operator|publisher)' order by entry_id;

set client_min_messages = warning;
select outbox.unsubscribe('rt h1', force => true);
drop schema rights_test, rights_test_of_publisher cascade;
do $$
declare
    name text;
begin
    for name in select rolname from pg_roles where rolname like 'outbox\_test\_r\_%' loop
        execute format('drop owned by %1$I; drop role %1$I', name);
    end loop;
end
$$;
