--
-- outbox.publish(): what is kept, and when.
--
set client_min_messages = warning;
create extension if not exists outbox;
reset client_min_messages;
set datestyle = iso;
\set VERBOSITY terse
set timezone = 'UTC';

-- what these tests publish carries this source
set outbox.source = 'test publish';
create view published as select e.* from outbox.event e where e.source = 'test publish';

-- every argument arrives
select outbox.publish(
    event_type => 'task.created', payload => '{"title": "first"}', aggregate_type => 'task', aggregate_id => '1',
    event_key => 'k1', tenant_id => 't1', actor_type => 'user', actor_id => 'u1', request_id => 'r1', trace_id => 'trace1',
    correlation_id => 'c1', causation_id => '01a228b6-27b7-7ad9-bcf4-106d98f189e4', source => 'test publish',
    payload_version => '2', headers => '{"h": [1, null]}', occurred_at => '2026-01-02 03:04:05.678901+00',
    deliver_at => '2100-01-01 00:00+00', dedup_key => 'd1') as id \gset
\x
select event_type, payload_version, aggregate_type, aggregate_id, event_key, tenant_id, actor_type, actor_id, request_id,
       trace_id, correlation_id, causation_id, source, occurred_at, deliver_at, dedup_key, headers, payload,
       published_at between now() - interval '1 minute' and clock_timestamp() as published_just_now
from published where event_id = :'id';
\x

-- and the defaults
select outbox.publish('task.renamed') as id \gset
select payload_version, aggregate_type, event_key, tenant_id, trace_id, causation_id, deliver_at, dedup_key, headers, payload,
       occurred_at = published_at as occurred_when_published
from published where event_id = :'id';

-- null means the default
select outbox.publish('task.renamed', payload_version => null, aggregate_type => 'task') as id \gset
select payload_version, aggregate_type, aggregate_id, event_key from published where event_id = :'id';

-- the key comes from the aggregate, unless there is another
select outbox.publish('task.moved', aggregate_type => 'task', aggregate_id => '7') as id \gset
select event_key from published where event_id = :'id';
select outbox.publish('task.moved', aggregate_type => 'task', aggregate_id => '7', event_key => 'board:1') as id \gset
select event_key from published where event_id = :'id';

-- any JSON value is a payload
select outbox.publish('json.value', v) is not null as published
from (values ('null'::jsonb), ('1'), ('"text"'), ('[1, 2]'), ('{}')) as j (v);
select payload from published where event_type = 'json.value' order by event_id;

-- ids are UUIDs of version 7, rise with every call, and carry the time
select outbox.publish('id.test') is not null as published from generate_series(1, 1000) as i group by 1;
select count(*) as events, count(distinct event_id) as ids,
       bool_and(substr(event_id::text, 15, 1) = '7' and substr(event_id::text, 20, 1) in ('8', '9', 'a', 'b')) as version_7
from published where event_type = 'id.test';
select bool_and(coalesce(event_id > before and published_at >= before_at, true)) as rising
from (select event_id, published_at, lag(event_id) over w as before, lag(published_at) over w as before_at
      from published where event_type = 'id.test' window w as (order by event_id)) as e;
select abs(extract(epoch from published_at) * 1000
           - ('x' || substr(replace(event_id::text, '-', ''), 1, 12))::bit(48)::bigint) < 3600000 as id_has_the_time
from published where event_type = 'id.test' limit 1;

--
-- Context: what is set for the transaction stands in for null arguments.
--
begin;
set local outbox.tenant_id = 'tenant';
set local outbox.actor_type = 'user';
set local outbox.actor_id = 'actor';
set local outbox.request_id = 'request';
set local outbox.trace_id = 'trace';
set local outbox.correlation_id = 'correlation';
set local outbox.causation_id = '01A228B6-27B7-7AD9-BCF4-106D98F189E4';
select outbox.publish('context.test', '1') is not null as published;
select outbox.publish('context.test', '2', tenant_id => 'other', trace_id => 'other trace') is not null as published;
commit;
select outbox.publish('context.test', '3') is not null as published;
select payload, tenant_id, actor_type, actor_id, request_id, trace_id, correlation_id, causation_id, source
from published where event_type = 'context.test' order by event_id;
select current_setting('outbox.tenant_id') = '' as nothing_left;

-- a whole traceparent goes into the headers, its trace id into the column
select outbox.publish('trace.test', '1', trace_id => '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01') is not null as published;
set outbox.trace_id = '00-5bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00';
select outbox.publish('trace.test', '2', headers => '{"a": 1, "traceparent": "old"}') is not null as published;
set outbox.trace_id = '4bf92f3577b34da6a3ce929d0e0e4736';
select outbox.publish('trace.test', '3') is not null as published;
reset outbox.trace_id;
select payload, trace_id, headers from published where event_type = 'trace.test' order by event_id;

--
-- Transactions.
--
begin;
select outbox.publish('rollback.test', '1') is not null as published;
rollback;
begin;
select outbox.publish('rollback.test', '2') is not null as published;
savepoint s;
select outbox.publish('rollback.test', '3') is not null as published;
rollback to s;
select outbox.publish('rollback.test', '4') is not null as published;
commit;
select payload from published where event_type = 'rollback.test' order by event_id;

-- an event names its top-level transaction
begin;
savepoint a;
select outbox.publish('xid.test') is not null as published;
select l.xid = pg_current_xact_id() as top_level, l.incarnation > 0 as has_incarnation
from outbox.event_log l where l.event_type = 'xid.test';
commit;

-- from a trigger, a deferred trigger, a procedure that commits, an exception block, and COPY
create table task (id integer primary key, title text);
create function publish_task() returns trigger language plpgsql as $$
begin
    perform outbox.publish(tg_argv[0], to_jsonb(new), 'task', new.id::text);
    return null;
end $$;
create trigger at_once after insert on task for each row execute function publish_task('trigger.at_once');
create constraint trigger at_commit after insert on task deferrable initially deferred
    for each row execute function publish_task('trigger.at_commit');
insert into task values (1, 'one');
copy task from stdin;
2	two
3	three
\.
create procedure publish_and_commit() language plpgsql as $$
begin
    for i in 1 .. 3 loop
        perform outbox.publish('procedure.test', to_jsonb(i));
        if i = 2 then rollback; else commit; end if;
    end loop;
end $$;
call publish_and_commit();
do $$
begin
    perform outbox.publish('block.test', '1');
    begin
        perform outbox.publish('block.test', '2');
        raise exception 'no';
    exception when others then
        perform outbox.publish('block.test', '3');
    end;
end $$;
select event_type, event_key, payload from published
where event_type like 'trigger.%' or event_type in ('procedure.test', 'block.test') order by event_id;

-- at every isolation level
begin isolation level repeatable read;
select outbox.publish('isolation.test', '"repeatable read"') is not null as published;
commit;
begin isolation level serializable;
select outbox.publish('isolation.test', '"serializable"') is not null as published;
select count(*) as predicate_locks from pg_locks where mode = 'SIReadLock' and pid = pg_backend_pid()
    and relation in (select oid from pg_class where relnamespace = 'outbox'::regnamespace);
commit;
select payload from published where event_type = 'isolation.test' order by event_id;

-- a large payload is kept whole
select outbox.publish('large.test', jsonb_build_object('text', (select string_agg(md5(i::text), '') from generate_series(1, 6000) as i))) as id \gset
select md5(payload ->> 'text') = md5((select string_agg(md5(i::text), '') from generate_series(1, 6000) as i)) as whole
from published where event_id = :'id';

-- a row of a table with an index more is in that index too
select l.tableoid::regclass as segment from outbox.event_log l where l.event_id = :'id' \gset
create index extra_index on :segment (event_type);
select outbox.publish('index.test') is not null as published;
set enable_seqscan = off;
select count(*) from :segment where event_type = 'index.test';
reset enable_seqscan;
drop index outbox.extra_index;

--
-- Deduplication.
--
select outbox.publish('dedup.test', '{"a": 1, "b": 1.0}', dedup_key => 'k') as first \gset
select outbox.publish('dedup.test', '{"b": 1.00, "a": 1}', dedup_key => 'k') = :'first' as same_id;
select outbox.publish('dedup.test', '{"a": 2}', dedup_key => 'k');
select outbox.publish('dedup.test', '{"a": 2}', dedup_key => 'k2') <> :'first' as other_key;
select outbox.publish('dedup.test', '{"a": 2}', dedup_key => 'k', tenant_id => 't') <> :'first' as other_tenant;
select outbox.publish('dedup.test2', '{"a": 2}', dedup_key => 'k') <> :'first' as other_type;
begin;
select outbox.publish('dedup.rolled_back', '1', dedup_key => 'k') is not null as published;
rollback;
select outbox.publish('dedup.rolled_back', '2', dedup_key => 'k') is not null as published;
begin;
savepoint s;
select outbox.publish('dedup.rolled_back', '1', dedup_key => 'k3') is not null as published;
rollback to s;
select outbox.publish('dedup.rolled_back', '2', dedup_key => 'k3') is not null as published;
select outbox.publish('dedup.rolled_back', '2', dedup_key => 'k3') is not null as published;
commit;
select count(distinct outbox.publish('dedup.one_statement', dedup_key => 'k')) from generate_series(1, 3) as i;
select event_type, count(*) from published where event_type like 'dedup.%' group by 1 order by 1;
-- structure counts
select outbox.publish('dedup.nested', '[[1], 2]', dedup_key => 'k') is not null as published;
select outbox.publish('dedup.nested', '[[1, 2]]', dedup_key => 'k');
-- outside of the window the key is free again
update outbox.dedup set published_at = published_at - interval '8 days' where event_type = 'dedup.test' and dedup_key = 'k';
select outbox.publish('dedup.test', '{"a": 3}', dedup_key => 'k') <> :'first' as published_again;
select count(*) from outbox.dedup where event_type = 'dedup.test' and dedup_key = 'k' and tenant_id = '';

--
-- The envelope.
--
select outbox.publish('envelope.test', '{"n": null}', 'task', '9', tenant_id => 't', actor_id => 'u', headers => '{"h": null}',
    occurred_at => '2026-01-02 03:04:05.6+00') as id \gset
set timezone = 'Asia/Tokyo';
select jsonb_pretty(outbox.envelope(e) - 'eventId' - 'publishedAt') as envelope from outbox.event e where event_id = :'id';
set timezone = 'UTC';
select outbox.envelope(e) ->> 'eventId' = :'id' as id,
       outbox.envelope(e) ->> 'publishedAt' = to_char(published_at, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as published_at
from outbox.event e where event_id = :'id';

--
-- Rights: none on the tables are needed to publish; PUBLIC has none on the functions. (rights.sql has the rest)
--
create role outbox_test_publisher;
grant usage on schema outbox to outbox_test_publisher;
set role outbox_test_publisher;
select outbox.publish('rights.test');
reset role;
grant execute on function outbox.publish to outbox_test_publisher;
set role outbox_test_publisher;
select outbox.publish('rights.test');
reset role;
select outbox.grant_publisher('outbox_test_publisher', '{rights.*}');
set role outbox_test_publisher;
select outbox.publish('rights.test', dedup_key => 'k') is not null as published;
select count(*) from outbox.event;
reset role;
select outbox.revoke_publisher('outbox_test_publisher', '{rights.*}');
drop role outbox_test_publisher;

drop view published;
drop table task;
drop function publish_task;
drop procedure publish_and_commit;
