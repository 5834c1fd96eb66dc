--
-- outbox.publish(): what is refused, with which SQLSTATE; the transaction's other work is
-- the caller's to keep.
--
set client_min_messages = warning;
create extension if not exists outbox;
reset client_min_messages;
set datestyle = iso;

create function refusal(statement text) returns table (code text, message text, detail text)
language plpgsql as $$
begin
    execute statement;
    message := 'accepted';
    return next;
exception when others then
    get stacked diagnostics code = returned_sqlstate, message = message_text, detail = pg_exception_detail;
    return next;
end $$;
\pset null ''

-- event types
select left(t.type, 20) as type, r.* from (values (null), (''), ('.'), ('a.'), ('.a'), ('a..b'), ('a b'), ('a.*'), ('a.#'), ('ä'), (E'a\n'),
    (repeat('a', 200)), (repeat('a', 201)), ('Task_1.$-x'), ('outbox'), ('outbox.a'), ('outboxes.a')) as t (type),
    refusal(format('select outbox.publish(%L)', t.type)) as r;

-- texts: empty, at the limit, over it
select a.name, v.what, r.code, r.message, r.detail
from (values ('payload_version', 255), ('aggregate_type', 255), ('aggregate_id', 512), ('event_key', 1024), ('dedup_key', 512),
             ('tenant_id', 255), ('actor_type', 255), ('actor_id', 255), ('request_id', 255), ('trace_id', 255),
             ('correlation_id', 255), ('source', 255)) as a (name, max)
cross join lateral (values (1, 'empty', ''), (2, 'at the limit', repeat('x', max)), (3, 'too long', repeat('x', max + 1)),
                           (4, 'control', E'a\tb')) as v (n, what, value)
cross join lateral refusal(format('select outbox.publish(''a'', %I => %L%s)', a.name, v.value,
    case when a.name = 'aggregate_id' then ', aggregate_type => ''t''' end)) as r
where r.message <> 'accepted' or v.n = 2
order by v.n, a.name collate "C";
-- bytes count
select r.* from refusal(format('select outbox.publish(''a'', tenant_id => %L)', repeat('ä', 128))) as r;

select r.* from refusal($$select outbox.publish('a', aggregate_id => '1')$$) as r;

-- the same from settings
begin;
select set_config('outbox.request_id', repeat('x', 256), true) is not null as set;
select r.* from refusal($$select outbox.publish('a')$$) as r;
select r.* from refusal($$select outbox.publish('a', request_id => 'mine')$$) as r;
rollback;
select r.*
from (values ('no uuid'), ('01a228b6-27b7-7ad9-bcf4-106d98f189e'), ('01a228b6-27b7-7ad9-bcf4-106d98f189e4x'),
             ('01a228b6x27b7-7ad9-bcf4-106d98f189e4'), ('01a228b6-27b7-7ad9-bcf4-106d98f189eg'),
             ('01a228b6-27b7-7ad9-bcf4-106d98f189e4'), ('')) as v (value),
     lateral (select set_config('outbox.causation_id', value, false)) as s (set),
     lateral refusal(format('select outbox.publish(''a'', %L)', to_jsonb(s.set))) as r;
reset outbox.causation_id;

-- traceparents
select v.value, r.*
from (values ('00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'), ('00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01'),
             ('00-00000000000000000000000000000000-00f067aa0ba902b7-01'), ('00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01'),
             ('ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'), ('00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more'),
             ('01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more'), ('00-4bf9-bare')) as v (value),
     refusal(format('select outbox.publish(''a'', trace_id => %L)', v.value)) as r;

-- payload and headers
select r.* from refusal($$select outbox.publish('a', null)$$) as r;
select r.code, r.message from refusal($$select outbox.publish('a', to_jsonb(repeat('x', 300000)))$$) as r;
select r.code, r.message from refusal($$select outbox.publish('a', headers => jsonb_build_object('h', repeat('x', 300000)))$$) as r;
set outbox.max_payload_bytes = 100;
select r.* from refusal($$select outbox.publish('a', to_jsonb(repeat('x', 88)))$$) as r;
select r.* from refusal($$select outbox.publish('a', to_jsonb(repeat('x', 100)))$$) as r;
reset outbox.max_payload_bytes;
select r.* from refusal($$select outbox.publish('a', headers => '[1]')$$) as r;
select r.* from refusal($$select outbox.publish('a', headers => '1')$$) as r;

-- times
select a.name, v.value, r.* from (values ('occurred_at'), ('deliver_at')) as a (name)
cross join (values ('infinity'), ('-infinity'), ('1969-12-31 23:59:59+00'), ('1970-01-01 00:00+00'), ('2200-01-02 00:00+00'), ('100000-01-01')) as v (value)
cross join lateral refusal(format('select outbox.publish(''a'', %I => %L)', a.name, v.value)) as r;

-- names
select r.* from refusal($$select outbox.publish('a', evnet_key => 'k')$$) as r;

-- business rows stay
create table business (id integer);
begin;
insert into business values (1);
savepoint s;
select outbox.publish('not a type');
rollback to s;
commit;
select * from business;
drop table business;

-- where nothing can be written
begin read only;
select outbox.publish('a');
rollback;
begin read only;
select outbox.publish_batch('[]');
rollback;

-- settings: unknown names and values
\set VERBOSITY sqlstate
set outbox.no_such_setting = 1;
set outbox.max_payload_bytes = '65MB';
set outbox.workers = 3;

drop function refusal;
