-- What a handler is given, as whom it runs, and what it finds around it.
set client_min_messages = warning;
create extension if not exists outbox;
drop schema if exists deliver_handlers, deliver_handlers_own cascade;
drop role if exists outbox_test_handlers;
create role outbox_test_handlers;
create schema deliver_handlers;
set jit = off;
create schema deliver_handlers_own authorization outbox_test_handlers;
grant usage on schema deliver_handlers to outbox_test_handlers;
select outbox.grant_publisher('outbox_test_handlers', '{dh.#}');
create table deliver_handlers.seen (n integer generated always as identity, subscription text, what text);
grant insert, select on deliver_handlers.seen to outbox_test_handlers;
set role outbox_test_handlers;

-- one call an event: all of the event is there
create function deliver_handlers_own.single(e outbox.event) returns void language plpgsql as $$
begin
    insert into deliver_handlers.seen (subscription, what)
    values ('single', concat_ws(' ', e.event_type, e.payload_version, e.aggregate_type, e.aggregate_id, e.event_key, e.tenant_id, e.actor_type, e.actor_id,
                                e.request_id, e.trace_id, e.correlation_id, e.source, e.headers, e.payload));
end
$$;
-- all at once: in order
create function deliver_handlers_own.batch(events outbox.event[]) returns integer language plpgsql as $$
begin
    insert into deliver_handlers.seen (subscription, what) select 'batch', e.payload ->> 'n' from unnest(events) with ordinality as e order by e.ordinality;
    return cardinality(events);
end
$$;
-- who and where it is
create function deliver_handlers_own.around(e outbox.event) returns text language plpgsql as $$
declare
    d outbox.current_delivery := outbox.current_delivery();
begin
    insert into deliver_handlers.seen (subscription, what) values
        ('around', format('%s, session of %s, superuser %s', current_user, session_user, current_setting('is_superuser'))),
        ('around', format('delivery %s, the event''s %s, attempt %s of %s, replay %s', d.subscription, d.event_id = e.event_id, d.attempt, d.max_attempts, d.replay_no)),
        ('around', format('tenant %s, actor %s %s, request %s, trace %s, correlation %s, source %s, caused by the event %s',
                          current_setting('outbox.tenant_id'), current_setting('outbox.actor_type'), current_setting('outbox.actor_id'), current_setting('outbox.request_id'),
                          current_setting('outbox.trace_id'), current_setting('outbox.correlation_id'), current_setting('outbox.source'),
                          current_setting('outbox.causation_id') = e.event_id::text)),
        ('around', format('isolation %s, read only %s, lock_timeout %s, statement_timeout %s, row_security %s, seqscan %s', current_setting('transaction_isolation'),
                          current_setting('transaction_read_only'), current_setting('lock_timeout'), current_setting('statement_timeout'), current_setting('row_security'),
                          current_setting('enable_seqscan')));
    return 'is ignored';
end
$$;
-- publishes on, also for its own key
create function deliver_handlers_own.chain(e outbox.event) returns void language plpgsql as $$
declare
    step integer := (e.payload ->> 'step')::integer;
begin
    insert into deliver_handlers.seen (subscription, what)
    values ('chain', format('step %s, caused %s, trace %s, tenant %s', step, (select c.payload ->> 'step' from deliver_handlers.published c where c.event_id = e.causation_id), e.trace_id, e.tenant_id));
    if step < 3 then
        perform outbox.publish('dh.chain', jsonb_build_object('step', step + 1), event_key => e.event_key);
    elsif step = 3 then
        -- what the handler says itself goes before what the event says
        perform set_config('outbox.trace_id', 'another', true);
        perform outbox.publish('dh.chain', '{"step": 4}', event_key => e.event_key, tenant_id => 't2');
    end if;
end
$$;
reset role;
create view deliver_handlers.published as select event_id, payload from outbox.event where event_type = 'dh.chain';
grant select on deliver_handlers.published to outbox_test_handlers;
reset client_min_messages;

select outbox.subscribe('dh single', '{dh.one.*}', handler => 'deliver_handlers_own.single', run_as => 'outbox_test_handlers');
select outbox.publish('dh.one.a', '{"a": [1, null]}', aggregate_type => 'task', aggregate_id => '7', tenant_id => 't1', actor_type => 'user', actor_id => 'u1', request_id => 'r1',
                      trace_id => '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', correlation_id => 'c1', source => 's', payload_version => '2', headers => '{"h": 1}') is not null as published;
select outbox.publish('dh.one.b') is not null as published;
select outbox.publish('dh.other') is not null as published;
call outbox.drain('{dh single}');
select what from deliver_handlers.seen where subscription = 'single' order by what;

-- a batch handler takes what one transaction published in one call
select outbox.subscribe('dh batch', '{dh.many}', handler => 'deliver_handlers_own.batch', run_as => 'outbox_test_handlers', lanes => 1);
select count(*) from outbox.publish_batch((select jsonb_agg(jsonb_build_object('event_type', 'dh.many', 'event_key', 'k', 'payload', jsonb_build_object('n', n))) from generate_series(1, 20) n));
call outbox.drain('{dh batch}');
select string_agg(what, ' ' order by n) from deliver_handlers.seen where subscription = 'batch';
select count(distinct r.batch_id) as transactions, sum(distinct b.events) as events
from outbox.receipt_log r join outbox.batch b using (batch_id) join outbox.event e using (event_id) where e.event_type = 'dh.many';

-- the role's session, the delivery, the event's context
select outbox.subscribe('dh around', '{dh.around}', handler => 'deliver_handlers_own.around', run_as => 'outbox_test_handlers');
select outbox.publish('dh.around', tenant_id => 't1', actor_type => 'user', actor_id => 'u1', request_id => 'r1', trace_id => repeat('a', 32), correlation_id => 'c1', source => 's') is not null as published;
call outbox.drain('{dh around}');
select what from deliver_handlers.seen where subscription = 'around' order by n;
-- another event's context is its own: nothing of the one before is left
delete from deliver_handlers.seen;
select outbox.publish('dh.around') is not null as published;
call outbox.drain('{dh around}');
select what from deliver_handlers.seen where subscription = 'around' and what like 'tenant%';
-- outside of a handler there is no delivery
select outbox.current_delivery() is null as none;
select outbox.fail_permanently('x');
select outbox.retry_after('1 s');

-- a chain keeps its trace, and its order
select outbox.subscribe('dh chain', '{dh.chain}', handler => 'deliver_handlers_own.chain', run_as => 'outbox_test_handlers');
select outbox.publish('dh.chain', '{"step": 1}', event_key => 'k', tenant_id => 't1', trace_id => repeat('b', 32)) is not null as published;
-- drain() waits for what was committed before it: one step each
call outbox.drain('{dh chain}');
call outbox.drain('{dh chain}');
call outbox.drain('{dh chain}');
call outbox.drain('{dh chain}');
select what from deliver_handlers.seen where subscription = 'chain' order by n;

-- search_path is what a session of the role would have: its own schema by "$user", or as the role or the database is set
set client_min_messages = warning;
create schema outbox_test_handlers authorization outbox_test_handlers;
create table outbox_test_handlers.place (what text);
create table deliver_handlers_own.place (what text);
create table deliver_handlers.place (what text);
grant all on outbox_test_handlers.place, deliver_handlers_own.place, deliver_handlers.place to outbox_test_handlers;
reset client_min_messages;
create function deliver_handlers_own.where_am_i(e outbox.event) returns void language plpgsql as $$
begin
    insert into place values (e.payload ->> 'n');
    -- this holds for the call alone
    set search_path = deliver_handlers;
    perform set_config('search_path', 'deliver_handlers', false);
end
$$;
create view deliver_handlers.places as
select 'of the user' as place, what from outbox_test_handlers.place union all
select 'of the role', what from deliver_handlers_own.place union all
select 'of the database', what from deliver_handlers.place;
select outbox.subscribe('dh place', '{dh.place}', handler => 'deliver_handlers_own.where_am_i', run_as => 'outbox_test_handlers');
select count(outbox.publish('dh.place', '{"n": 1}', event_key => 'k')) as published from generate_series(1, 2);
call outbox.drain('{dh place}');
do $$ begin execute format('alter database %I set search_path = deliver_handlers', current_database()); end $$;
select outbox.publish('dh.place', '{"n": 2}') is not null as published;
call outbox.drain('{dh place}');
alter role outbox_test_handlers set search_path = deliver_handlers_own, public;
select count(outbox.publish('dh.place', '{"n": 3}', event_key => 'k')) as published from generate_series(1, 2);
call outbox.drain('{dh place}');
do $$ begin execute format('alter role outbox_test_handlers in database %I set search_path = ''outbox_test_handlers''', current_database()); end $$;
select outbox.publish('dh.place', '{"n": 4}') is not null as published;
call outbox.drain('{dh place}');
do $$ begin execute format('alter database %I reset search_path', current_database()); end $$;
alter role outbox_test_handlers reset search_path;
do $$ begin execute format('alter role outbox_test_handlers in database %I reset search_path', current_database()); end $$;
select place, what, count(*) from deliver_handlers.places group by place, what order by what;

-- settings that a handler leaves behind are gone for its next event, also in the same batch
create function deliver_handlers_own.settings(e outbox.event) returns void language plpgsql as $$
begin
    insert into deliver_handlers.seen (subscription, what)
    select 'settings', string_agg(s || ' ' || coalesce(nullif(current_setting(s, true), ''), '-'), ', ' order by s)
    from unnest('{work_mem,outbox.tenant_id,outbox.trace_id,my.own,transaction_read_only,DateStyle}'::text[]) s;
    set work_mem = '1MB';
    set outbox.tenant_id = 'left';
    set local outbox.trace_id = 'left';
    set my.own = 'left';
    set DateStyle = 'SQL, DMY';
    set transaction read only;
end
$$;
select outbox.subscribe('dh settings', '{dh.settings}', handler => 'deliver_handlers_own.settings', run_as => 'outbox_test_handlers');
select count(outbox.publish('dh.settings', event_key => 'k')) as published from generate_series(1, 3);
call outbox.drain('{dh settings}');
select what, count(*) from deliver_handlers.seen where subscription = 'settings' group by what;

-- TimeZone is the server's or the database's: neither that of whoever publishes nor that of the role
alter role outbox_test_handlers set timezone = 'Asia/Kathmandu';
set timezone = 'Pacific/Kiritimati';
create function deliver_handlers_own.what_time(e outbox.event) returns void language sql as $$
    insert into deliver_handlers.seen (subscription, what)
    select 'time', current_setting('TimeZone') in ('Asia/Kathmandu', 'Pacific/Kiritimati')
$$;
select outbox.subscribe('dh time', '{dh.time}', handler => 'deliver_handlers_own.what_time', run_as => 'outbox_test_handlers');
select outbox.publish('dh.time') is not null as published;
call outbox.drain('{dh time}');
select what as of_one_of_them from deliver_handlers.seen where subscription = 'time';
reset timezone;
alter role outbox_test_handlers reset timezone;

-- what a handler makes for itself is gone too: each of these would be there a second time
create function deliver_handlers_own.leftovers(e outbox.event) returns void language plpgsql as $$
begin
    create temp table leftover (n integer);
    execute 'prepare leftover as select 1';
    execute 'declare leftover cursor with hold for select 1';
    perform pg_advisory_lock(4711);
end
$$;
grant temporary on database :DBNAME to outbox_test_handlers;
select outbox.subscribe('dh leftovers', '{dh.leftovers}', handler => 'deliver_handlers_own.leftovers', run_as => 'outbox_test_handlers', max_attempts => 1);
select count(outbox.publish('dh.leftovers', event_key => 'k')) as published from generate_series(1, 3);
call outbox.drain('{dh leftovers}');
select status, count(*) from outbox.delivery where subscription = 'dh leftovers' group by status;
-- (the worker lets go of its locks once it has committed)
do $$
begin
    for i in 1 .. 1000 loop
        exit when not exists (select from pg_locks where locktype = 'advisory' and objid = 4711 and database = (select oid from pg_database where datname = current_database()));
        perform pg_sleep(0.01);
    end loop;
end
$$;
select count(*) as locks from pg_locks where locktype = 'advisory' and objid = 4711 and database = (select oid from pg_database where datname = current_database());

-- a security definer handler is its owner
create function deliver_handlers.definer(e outbox.event) returns void language plpgsql security definer set search_path = deliver_handlers as $$
begin
    insert into seen (subscription, what) values ('definer', format('owner %s, search_path %s', current_user = e.payload ->> 'owner', current_setting('search_path')));
end
$$;
select outbox.subscribe('dh definer', '{dh.definer}', handler => 'deliver_handlers.definer', run_as => 'outbox_test_handlers');
select outbox.publish('dh.definer', jsonb_build_object('owner', current_user)) is not null as published;
call outbox.drain('{dh definer}');
select what from deliver_handlers.seen where subscription = 'definer';

-- a handler in SQL, and one that returns rows' worth of nothing
create function deliver_handlers_own.in_sql(outbox.event) returns deliver_handlers.seen language sql as $$
    insert into deliver_handlers.seen (subscription, what) values ('sql', ($1).payload ->> 'n') returning *;
$$;
select outbox.subscribe('dh sql', '{dh.sql}', handler => 'deliver_handlers_own.in_sql', run_as => 'outbox_test_handlers');
select count(outbox.publish('dh.sql', jsonb_build_object('n', n), event_key => 'k')) as published from generate_series(1, 3) n;
call outbox.drain('{dh sql}');
select string_agg(what, ' ' order by n) from deliver_handlers.seen where subscription = 'sql';

-- deferred triggers of a call fire within it, as the role; when one fails, it is that event's failure
create table deliver_handlers_own.deferred (what text);
create function deliver_handlers_own.fire() returns trigger language plpgsql as $$
begin
    if new.what = '2' then
        raise 'no' using errcode = 'OT001';
    end if;
    insert into deliver_handlers.seen (subscription, what) values ('deferred', format('%s as %s, request %s', new.what, current_user, current_setting('outbox.request_id')));
    return null;
end
$$;
alter table deliver_handlers_own.deferred owner to outbox_test_handlers;
create constraint trigger fire after insert on deliver_handlers_own.deferred deferrable initially deferred for each row execute function deliver_handlers_own.fire();
create function deliver_handlers_own.defer(e outbox.event) returns void language sql as $$
    insert into deliver_handlers_own.deferred values (e.payload ->> 'n');
$$;
select outbox.subscribe('dh deferred', '{dh.deferred}', handler => 'deliver_handlers_own.defer', run_as => 'outbox_test_handlers', max_attempts => 1);
select count(outbox.publish('dh.deferred', jsonb_build_object('n', n), request_id => 'r' || n)) as published from generate_series(1, 3) n;
call outbox.drain('{dh deferred}');
select what from deliver_handlers.seen where subscription = 'deferred' order by what;
select e.payload, d.status, d.attempts, d.error_code from outbox.delivery d join outbox.event e using (event_id) where d.subscription = 'dh deferred' order by e.event_id;

select count(outbox.unsubscribe(subscription, force => true)) as removed from outbox.subscription where subscription like 'dh %';
set client_min_messages = warning;
drop schema deliver_handlers, deliver_handlers_own, outbox_test_handlers cascade;
drop owned by outbox_test_handlers;
drop role outbox_test_handlers;
