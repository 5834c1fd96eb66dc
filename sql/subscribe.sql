-- Subscriptions: made, changed, paused, removed; every rule of their arguments.
set client_min_messages = warning;
create extension if not exists outbox;
drop schema if exists subscribe_test cascade;
drop role if exists outbox_test_subscriber, outbox_test_handler, outbox_test_stranger, outbox_test_super;
create role outbox_test_super superuser;
set role outbox_test_super;
create role outbox_test_handler;
create role outbox_test_subscriber in role outbox_test_handler;
create role outbox_test_stranger;
select outbox.grant_operator('outbox_test_subscriber'), outbox.grant_operator('outbox_test_stranger');
revoke execute on function outbox.pause from outbox_test_subscriber;
create schema subscribe_test;
grant usage on schema subscribe_test to outbox_test_handler, outbox_test_subscriber;
create function subscribe_test.single(outbox.event) returns void language sql as '';
create function subscribe_test.batch(outbox.event[]) returns void language sql as '';
create function subscribe_test.both(outbox.event) returns void language sql as '';
create function subscribe_test.both(outbox.event[]) returns void language sql as '';
create function subscribe_test."Odd name"(outbox.event) returns integer language sql as 'select 1';
create function subscribe_test.more(outbox.event, integer default 1) returns void language sql as '';
create function subscribe_test.other(text) returns void language sql as '';
create function subscribe_test.set(outbox.event) returns setof integer language sql as 'select 1';
create procedure subscribe_test.procedure(outbox.event) language sql as '';
create function subscribe_test.private(outbox.event) returns void language sql as '';
revoke all on function subscribe_test.private from public;
reset client_min_messages;

-- the whole of a definition
create view subscribe_test.definition as
select subscription, event_types, handler, ordering, lanes, max_attempts, backoff_base_seconds, backoff_factor, backoff_max_seconds,
       lease_duration_seconds, handler_timeout_seconds, batch_size, start_at, on_review, permanent_errors, transient_errors,
       run_as, paused, created_by
from outbox.subscription_status
where subscription like 'st %';

-- a subscription with all defaults; the same again changes nothing
select outbox.subscribe('st plain', '{task.created,task.*}');
\x
select * from subscribe_test.definition;
\x
select outbox.subscribe('st plain', '{task.created,task.*}');
-- order and repetitions of a list make no difference, nor does another way to write an interval, nor a null for a default
select outbox.subscribe('st plain', '{task.*,task.created,task.*}', backoff_max => '60 minutes', lanes => null, on_review => null, run_as => null);
-- another definition does
select outbox.subscribe('st plain', '{task.created}', lanes => 8);
-- a transaction that is rolled back leaves none
begin;
select outbox.subscribe('st rolled back', '{#}');
rollback;
select count(*) from outbox.subscription where subscription = 'st rolled back';

-- lanes, state, seam
select count(*) as lanes, min(l.lane) as first, max(l.lane) as last, max(l.base) as base, count(l.token) as leased
from outbox.lane l join outbox.subscription s using (subscription_id) where s.subscription = 'st plain';
select count(*) as states from outbox.subscription_state join outbox.subscription s using (subscription_id) where s.subscription = 'st plain';
-- the seam counts the subscribing transaction as running, and is of the moment of the call
begin isolation level repeatable read;
select count(*) from outbox.subscription where subscription = 'st seam';
select outbox.subscribe('st seam', '{#}');
select seam_xid = pg_current_xact_id() as own_transaction, pg_snapshot_xmax(seam) >= pg_snapshot_xmax(pg_current_snapshot()) as not_older
from outbox.subscription where subscription = 'st seam';
commit;
select outbox.unsubscribe('st seam', force => true);

-- handlers
set client_min_messages = error;
select outbox.subscribe('st single', '{st.x}', handler => 'subscribe_test.single');
select outbox.subscribe('st batch', '{st.x}', handler => 'Subscribe_Test . batch');
select outbox.subscribe('st odd', '{st.x}', handler => 'subscribe_test."Odd name"');
reset client_min_messages;
select subscription, handler from outbox.subscription where subscription like 'st %' order by 1;
-- a superuser is warned
select outbox.subscribe('st single', '{st.x}', handler => 'subscribe_test."single"');
select outbox.subscribe('st y', '{st.x}', handler => 'single');
select outbox.subscribe('st y', '{st.x}', handler => 'a.b.c');
select outbox.subscribe('st y', '{st.x}', handler => 'subscribe_test.single(outbox.event)');
select outbox.subscribe('st y', '{st.x}', handler => '');
select outbox.subscribe('st y', '{st.x}', handler => 'subscribe_test.missing');
select outbox.subscribe('st y', '{st.x}', handler => 'no_such_schema.single');
select outbox.subscribe('st y', '{st.x}', handler => 'subscribe_test.other');
select outbox.subscribe('st y', '{st.x}', handler => 'subscribe_test.more');
select outbox.subscribe('st y', '{st.x}', handler => 'subscribe_test.both');
select outbox.subscribe('st y', '{st.x}', handler => 'subscribe_test.set');
select outbox.subscribe('st y', '{st.x}', handler => 'subscribe_test.procedure');

-- the role a handler runs as
select outbox.subscribe('st y', '{st.x}', handler => 'subscribe_test.single', run_as => 'no_such_role');
select outbox.subscribe('st y', '{st.x}', handler => 'subscribe_test.private', run_as => 'outbox_test_handler');
select outbox.subscribe('st y', '{st.x}', handler => 'subscribe_test.single', run_as => 'outbox_test_stranger');
select outbox.subscribe('st role', '{st.x}', handler => 'subscribe_test.single', run_as => 'outbox_test_handler');
set role outbox_test_subscriber;
select outbox.subscribe('st own', '{st.x}', handler => 'subscribe_test.single');
select outbox.subscribe('st y', '{st.x}', handler => 'subscribe_test.single', run_as => 'outbox_test_stranger');
select outbox.alter_subscription('st role', max_attempts => 3);
select outbox.alter_subscription('st plain', max_attempts => 3);
select outbox.alter_subscription('st own', run_as => 'outbox_test_stranger');
select outbox.unsubscribe('st plain');
-- what is not granted is refused
select outbox.pause('st own');
set role outbox_test_stranger;
select outbox.alter_subscription('st own', max_attempts => 3);
select outbox.unsubscribe('st own', force => true);
select outbox.unsubscribe('st missing');
set role outbox_test_super;
select subscription, run_as, created_by, max_attempts from outbox.subscription where subscription in ('st own', 'st role') order by 1;

-- who may change it is said as it is: by the role that it runs as or belongs to, or that was dropped
create role outbox_test_leaver;
select outbox.subscribe('st left', '{st.x}', run_as => 'outbox_test_leaver'), outbox.alter_subscription('st role', run_as => 'outbox_test_handler');
set role outbox_test_subscriber;
select outbox.alter_subscription('st left', max_attempts => 3);
set role outbox_test_super;
drop role outbox_test_leaver;
set role outbox_test_subscriber;
select outbox.alter_subscription('st left', max_attempts => 3);
set role outbox_test_super;
select outbox.unsubscribe('st left');

-- lists are lists
select outbox.subscribe('st y', '{{a,b},{c,d}}');
select outbox.subscribe('st y', '{a}', permanent_errors => '{{a},{b}}');
select outbox.alter_subscription('st role', reset => '{{lanes},{handler}}');
select outbox.grant_publisher('outbox_test_subscriber', '{{a,b}}');
select outbox.define_event_type('st.x', allowed_keys => '{{a,b}}');

-- the schema keeps its name
alter schema outbox rename to outbox_elsewhere;

-- nobody has any of it by default
select p.proname
from pg_proc p
where p.pronamespace = 'outbox'::regnamespace
  and p.proname in ('subscribe', 'alter_subscription', 'unsubscribe', 'pause', 'resume', 'matching_subscriptions', 'retry', 'discard', 'drain', 'activate', 'clock', 'is_held', 'tenant_of')
  and exists (select from aclexplode(p.proacl) where grantee = 0);
select count(*)
from pg_proc p
where p.pronamespace = 'outbox'::regnamespace
  and p.proname in ('subscribe', 'alter_subscription', 'unsubscribe', 'pause', 'resume', 'matching_subscriptions', 'retry', 'discard', 'drain', 'activate', 'clock', 'is_held', 'tenant_of')
  and p.proacl is not null;

-- every other argument
create function subscribe_test.try(arguments text) returns text
language plpgsql as $$
declare
    message text;
    detail text;
    hint text;
begin
    execute 'select outbox.subscribe(''st try'', ' || arguments || ')';
    perform outbox.unsubscribe('st try', force => true);
    return 'accepted';
exception when others then
    get stacked diagnostics message = message_text, detail = pg_exception_detail, hint = pg_exception_hint;
    return concat_ws(' | ', sqlstate, message, nullif(detail, ''), nullif(hint, ''));
end
$$;
select arguments, subscribe_test.try(arguments) as result
from unnest(array[
    'null',
    '''{}''',
    '''{null}''',
    '''{a b}''',
    '''{task.*x}''',
    '''{outbox.#}''',
    '''{#}'', ordering => ''none''',
    '''{#}'', ordering => ''Key''',
    '''{#}'', lanes => 1',
    '''{#}'', lanes => 1024',
    '''{#}'', lanes => 0',
    '''{#}'', lanes => 1025',
    '''{#}'', max_attempts => 1',
    '''{#}'', max_attempts => 0',
    '''{#}'', max_attempts => 1001',
    '''{#}'', backoff_base => ''1 microsecond''',
    '''{#}'', backoff_base => ''0''',
    '''{#}'', backoff_base => ''-1 s''',
    '''{#}'', backoff_base => ''1 month -30 days''',
    '''{#}'', backoff_base => ''366 days''',
    '''{#}'', backoff_base => ''178000000 years''',
    '''{#}'', backoff_factor => 1',
    '''{#}'', backoff_factor => 0.99',
    '''{#}'', backoff_factor => 1001',
    '''{#}'', backoff_factor => ''NaN''',
    '''{#}'', backoff_max => ''365 days''',
    '''{#}'', backoff_max => ''13 months''',
    '''{#}'', backoff_max => ''-1 day''',
    '''{#}'', lease_duration => ''1 s''',
    '''{#}'', lease_duration => ''999 ms''',
    '''{#}'', lease_duration => ''25 h''',
    '''{#}'', handler_timeout => ''100 ms''',
    '''{#}'', handler_timeout => ''99 ms''',
    '''{#}'', handler_timeout => ''2 days''',
    '''{#}'', batch_size => 10000',
    '''{#}'', batch_size => 0',
    '''{#}'', batch_size => 10001',
    '''{#}'', start_at => ''-infinity''',
    '''{#}'', start_at => ''2020-01-01''',
    '''{#}'', start_at => ''infinity''',
    '''{#}'', start_at => clock_timestamp() + interval ''1 day''',
    '''{#}'', on_review => ''continue''',
    '''{#}'', on_review => ''stop''',
    '''{#}'', permanent_errors => ''{}''',
    '''{#}'', permanent_errors => ''{23514,23,worker_died,http:404}'', transient_errors => ''{23505}''',
    '''{#}'', permanent_errors => ''{a b}''',
    '''{#}'', transient_errors => ''{null}''',
    '''{#}'', permanent_errors => ''{23,42}'', transient_errors => ''{40,42}'''])
    with ordinality as t (arguments, n)
order by n;
select outbox.subscribe(null, '{#}');
select outbox.subscribe('', '{#}');
select outbox.subscribe(E'st\tx', '{#}');
select outbox.subscribe(repeat('x', 201), '{#}');

-- alter_subscription: what is not named stays as it is
select outbox.alter_subscription('st missing', lanes => 4);
select outbox.alter_subscription('st plain');
select outbox.alter_subscription('st plain', lanes => 16, event_types => '{task.created,task.*}');
select outbox.alter_subscription('st plain', event_types => '{task.#}', max_attempts => 9, backoff_base => '1 s', backoff_factor => 2,
    backoff_max => '1 min', lease_duration => '1 min', handler_timeout => '1 s', batch_size => 7, on_review => 'continue',
    permanent_errors => '{x}', transient_errors => '{23505}', run_as => 'outbox_test_handler');
select outbox.alter_subscription('st plain', max_attempts => 9);
\x
select * from subscribe_test.definition where subscription = 'st plain';
\x
-- each rule holds here too
select outbox.alter_subscription('st plain', lanes => 0);
select outbox.alter_subscription('st plain', transient_errors => '{x}');
select outbox.alter_subscription('st plain', handler => 'subscribe_test.private');
select outbox.alter_subscription('st plain', event_types => '{}');
-- back to the defaults, which are those of subscribe()
select outbox.alter_subscription('st plain', reset => '{handler,ordering,lanes,max_attempts,backoff_base,backoff_factor,backoff_max,lease_duration,handler_timeout,batch_size,on_review,permanent_errors,transient_errors,run_as}');
select outbox.subscribe('st plain', '{task.#}');
select outbox.alter_subscription('st plain', reset => '{event_types}');
select outbox.alter_subscription('st plain', reset => '{start_at}');
select outbox.alter_subscription('st plain', reset => '{nothing}');
select outbox.alter_subscription('st plain', reset => '{null}');
select outbox.alter_subscription('st plain', lanes => 4, reset => '{lanes}');
-- a handler that is gone does not keep from changing something else
begin;
drop function subscribe_test.single(outbox.event);
select outbox.alter_subscription('st single', max_attempts => 2);
select outbox.alter_subscription('st single', run_as => 'outbox_test_handler');
rollback;
select outbox.alter_subscription('st single', reset => '{handler}');
select handler from outbox.subscription where subscription = 'st single';

-- other lanes, or another ordering: new ones above the old, with room for what is still routed into those
create function subscribe_test.lanes() returns table (first_lane integer, lanes integer, made bigint, base bigint)
language sql as $$
    select s.first_lane, s.lanes, count(*), min(l.base)
    from outbox.subscription s join outbox.lane l on l.subscription_id = s.subscription_id and l.lane >= s.first_lane
    where s.subscription = 'st plain'
    group by s.first_lane, s.lanes
$$;
select outbox.alter_subscription('st plain', lanes => 4);
select * from subscribe_test.lanes();
begin;
insert into outbox.lane_entry select subscription_id, 17, 1000005, gen_random_uuid(), '(0,1)' from outbox.subscription where subscription = 'st plain';
insert into outbox.lane_cursor select subscription_id, 18, 1000009 from outbox.subscription where subscription = 'st plain';
select outbox.alter_subscription('st plain', lanes => 2);
select * from subscribe_test.lanes();
rollback;
select outbox.alter_subscription('st plain', ordering => 'none');
select * from subscribe_test.lanes();

-- pause and resume
select outbox.pause('st plain');
select outbox.pause('st plain');
select paused from outbox.subscription where subscription = 'st plain';
select outbox.resume('st plain');
select outbox.resume('st plain');
select outbox.pause('st missing');
select outbox.pause(null);

-- who gets what
select outbox.matching_subscriptions('task.a.b');
select outbox.matching_subscriptions('st.x');
select outbox.matching_subscriptions('outbox.activated');
select outbox.matching_subscriptions('st.*');
select outbox.matching_subscriptions(null);

-- unsubscribe: not while there is something to do, unless forced
select subscription_id as id from outbox.subscription where subscription = 'st batch' \gset
begin;
insert into outbox.lane_entry select subscription_id, 0, 1, gen_random_uuid(), '(0,1)' from outbox.subscription where subscription = 'st batch';
select outbox.unsubscribe('st batch');
rollback;
begin;
insert into outbox.lane_entry select subscription_id, 0, 1, gen_random_uuid(), '(0,1)' from outbox.subscription where subscription = 'st batch';
insert into outbox.lane_cursor select subscription_id, 0, 0 from outbox.subscription where subscription = 'st batch';
insert into outbox.delayed select now() + interval '1 day', gen_random_uuid(), subscription_id from outbox.subscription where subscription = 'st batch';
insert into outbox.delivery_exception (subscription_id, event_id, lane, position, status, attempts)
    select subscription_id, gen_random_uuid(), 0, 1, 'REVIEW_REQUIRED', 1 from outbox.subscription where subscription = 'st batch';
insert into outbox.gate (subscription_id, lane, tenant_id, event_key, held_by, through, created_at)
    select subscription_id, 0, '', 'k', gen_random_uuid(), 1, now() from outbox.subscription where subscription = 'st batch';
select gate_id as gate from outbox.gate where subscription_id = :id \gset
insert into outbox.parked values (:gate, 2, gen_random_uuid());
select outbox.unsubscribe('st batch', force => true);
select (select count(*) from outbox.lane where subscription_id = s) + (select count(*) from outbox.lane_entry where subscription_id = s)
     + (select count(*) from outbox.lane_cursor where subscription_id = s) + (select count(*) from outbox.delayed where subscription_id = s)
     + (select count(*) from outbox.delivery_exception where subscription_id = s) + (select count(*) from outbox.gate where subscription_id = s)
     + (select count(*) from outbox.subscription_state where subscription_id = s)
     + (select count(*) from outbox.parked where gate_id = :gate) as left_over
from (select :id) m (s);
select outbox.unsubscribe('st batch');
rollback;
-- ids are never used again
select outbox.unsubscribe('st batch');
select outbox.subscribe('st batch', '{st.x}');
select subscription_id > :id as another_id from outbox.subscription where subscription = 'st batch';

-- what was done by hand is written down
select action, subscription, reason from outbox.operator_log
where subscription like 'st %' and subscription not in ('st try', 'st single') order by entry_id;

select outbox.unsubscribe(subscription, force => true) from outbox.subscription where subscription like 'st %' order by subscription;
set client_min_messages = warning;
drop schema subscribe_test cascade;
select outbox.revoke_operator('outbox_test_subscriber'), outbox.revoke_operator('outbox_test_stranger');
reset role;
drop role outbox_test_subscriber, outbox_test_handler, outbox_test_stranger, outbox_test_super;
