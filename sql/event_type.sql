--
-- Event types: what a definition may say, what publish() then refuses and how it tells, and when
-- a definition counts.
--
set client_min_messages = warning;
create extension if not exists outbox;
reset client_min_messages;
\pset null ''

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

-- again and again, other versions, dropped
select outbox.define_event_type('et.order', description => 'an order was placed',
    allowed_keys => array['id', 'customer.id', 'customer.since', 'items[].sku', 'items[].qty', 'tags[]', 'meta.*', 'paid', 'total', '"odd.key"', 'grid[][]'],
    required_keys => '{id,customer.id,items[].sku}',
    key_types => '{"id": "uuid", "customer.id": "string(8)", "customer.since": "timestamp", "items": "array", "items[].qty": "integer", "paid": "boolean",
                   "total": "number", "meta.tree": "object", "*": "string(50)"}',
    importance => 'high', max_payload_bytes => 600);
select outbox.define_event_type('et.order', description => 'an order was placed',
    allowed_keys => array['customer.id', 'id', 'id', 'customer.since', 'items[].sku', 'items[].qty', 'tags[]', 'meta.*', 'paid', 'total', '"odd.key"', 'grid[][]'],
    required_keys => '{items[].sku,id,customer.id}',
    key_types => '{"*": "string(50)", "id": "uuid", "customer.id": "string(8)", "customer.since": "timestamp", "items": "array", "items[].qty": "integer",
                   "paid": "boolean", "total": "number", "meta.tree": "object"}',
    importance => 'high', max_payload_bytes => 600) as changed;
select outbox.define_event_type('et.order', '2', description => 'anything');
select outbox.define_event_type('et.order', '2', description => 'anything at all') as changed;
select event_type, payload_version, importance, allowed_keys, required_keys, key_types, max_payload_bytes, exempt_keys, description, defined_by = current_user as mine
from outbox.event_type where event_type like 'et.%' order by 1, 2;
select outbox.drop_event_type('et.order', '2');
select outbox.drop_event_type('et.order', '2') as dropped;
select outbox.drop_event_type('et.order', null);
select action, subscription, reason, role_name = current_user as mine from outbox.operator_log where reason like 'et.%' order by entry_id;

-- payloads
create table payload (n integer generated always as identity, payload text);
insert into payload (payload) values
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1", "since": "2026-01-15T09:30:00.5+09:00"}, "items": [{"sku": "x", "qty": 1.0}, {"sku": 7, "qty": null}],'
     ' "tags": ["a", 1, null], "meta": {"deep": [{"x": [1]}], "tree": {"a": {}}}, "paid": true, "total": 1.5, "odd.key": 1, "grid": [[1], []]}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "items": [], "meta": {}, "tags": null, "grid": null, "paid": null}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "meta": "a plain value"}'),
    -- keys
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1", "name": "Anna"}}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "name": null}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "Paid": true}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "items": [{"sku": "x"}, {"sku": "x", "name": {"first": 1}}]}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "odd": {"key": 1}}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "paid": {"by": "card"}}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "total": [1]}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "total": []}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "tags": "a"}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "tags": [{"a": 1}]}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "tags": [["a"]]}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "grid": [1]}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "grid": [[[1]]]}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": [{"id": "c1"}]}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": "c1"}'),
    -- what is missing
    ('{}'), ('null'), ('7'), ('[]'), ('"text"'),
    ('{"customer": {"id": "c1"}}'),
    ('{"id": null, "customer": {"id": "c1"}}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7"}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": null}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {}}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": null}}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "items": [{"sku": "x"}, {"qty": 1}]}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "items": [null]}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "items": ["x"]}'),
    -- types
    ('{"id": "7c9e6679", "customer": {"id": "c1"}}'),
    ('{"id": 7, "customer": {"id": "c1"}}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": 7}}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "12345678"}}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "123456789"}}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "여덟글자입니다요"}}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "items": [{"sku": "x", "qty": 1.5}]}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "items": [{"sku": "x", "qty": "1"}]}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "items": {"sku": "x"}}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "paid": "true"}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "total": "1"}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "meta": {"tree": [1]}}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "meta": {"tree": 1}}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "tags": ["' || repeat('x', 50) || '"]}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "tags": ["' || repeat('x', 51) || '"]}'),
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "meta": {"note": "' || repeat('x', 51) || '"}}'),
    -- size
    ('{"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "customer": {"id": "c1"}, "tags": [' || repeat('"some more", ', 60) || '1]}');
select p.n, left(p.payload, 12) || '...' || right(p.payload, 44) as payload, r.code, r.message, r.detail
from payload p cross join lateral refusal(format('select outbox.publish(''et.order'', %L)', p.payload)) r order by p.n;
drop table payload;

-- timestamps, by their form
select outbox.define_event_type('et.time', key_types => '{"t": "timestamp"}');
select t.t, r.code from unnest(array['2026-01-15T09:30Z', '2026-01-15 09:30:00', '2026-01-15T09:30:00,123456789-0330', '2026-01-15t24:00:00z', '2024-02-29T00:00:60+14',
    '2026-01-15', '2026-02-29T00:00Z', '2026-13-01T00:00Z', '2026-1-15T00:00Z', '2026-01-15T09:30:00.Z', '2026-01-15T09:61Z', '2026-01-15T09:30:00+9', 'now', '']) as t (t)
cross join lateral refusal(format('select outbox.publish(''et.time'', jsonb_build_object(''t'', %L))', t.t)) r;

-- no list at all: only what it says; an empty list: nothing; payloads that are arrays
select outbox.define_event_type('et.open', required_keys => '{a.b}'), outbox.define_event_type('et.empty', allowed_keys => '{}'),
       outbox.define_event_type('et.array', allowed_keys => '{[].x}', required_keys => '{[].x}');
select t.type, p.payload, r.code, r.message
from (values ('et.open'), ('et.empty'), ('et.array')) as t (type)
cross join (values ('{}'), ('{"a": {"b": 1, "c": [2]}, "d": 3}'), ('[]'), ('[{"x": 1}]'), ('[{"x": 1}, {"y": 2}]'), ('{"x": 1}')) as p (payload)
cross join lateral refusal(format('select outbox.publish(%L, %L)', t.type, p.payload)) r;

-- versions and unknown types
select r.code, r.message from refusal($$select outbox.publish('et.time', payload_version => '2')$$) r;
select outbox.publish('et.unknown') is not null as published;
set outbox.require_event_type = on;
select outbox.publish('et.unknown');
select outbox.publish('et.time', payload_version => '2');
select outbox.publish('et.time') is not null as published;
reset outbox.require_event_type;

-- definitions that cannot hold
select a.arguments, r.* from (values (1, $$null$$), (2, $$'a b'$$), (3, $$'outbox.x'$$), (4, $$'a', null$$), (5, $$'a', ''$$), (6, $$'a', repeat('1', 256)$$),
    (10, $$'a', allowed_keys => '{NULL}'$$), (11, $$'a', allowed_keys => '{""}'$$), (12, $$'a', allowed_keys => '{a..b}'$$), (13, $$'a', allowed_keys => '{a.}'$$),
    (14, $$'a', allowed_keys => '{.a}'$$), (15, $$'a', allowed_keys => '{a[0]}'$$), (16, $$'a', allowed_keys => '{a[]b}'$$), (17, $$'a', allowed_keys => '{*}'$$),
    (18, $$'a', allowed_keys => '{a.*.b}'$$), (19, $$'a', allowed_keys => array['"a']$$), (20, $$'a', allowed_keys => array[E'a\tb']$$),
    (21, $$'a', allowed_keys => array[repeat('a.', 40) || 'a']$$), (22, $$'a', allowed_keys => array[repeat('a', 1001)]$$),
    (23, $$'a', allowed_keys => array(select 'k' || n from generate_series(1, 1001) n)$$),
    (30, $$'a', allowed_keys => '{a}', required_keys => '{b}'$$), (31, $$'a', allowed_keys => '{a.b}', required_keys => '{a.c}'$$), (32, $$'a', required_keys => '{a[]}'$$),
    (33, $$'a', required_keys => '{a.*}'$$), (34, $$'a', required_keys => array(select 'k' || n from generate_series(1, 65) n)$$),
    (35, $$'a', allowed_keys => '{a[].b}', required_keys => '{a.b}'$$),
    (40, $$'a', key_types => '[]'$$), (41, $$'a', key_types => '{"a": "text"}'$$), (42, $$'a', key_types => '{"a": 1}'$$), (43, $$'a', key_types => '{"a": "string(0)"}'$$),
    (44, $$'a', key_types => '{"a": "string(x)"}'$$), (45, $$'a', key_types => '{"*": "string"}'$$), (46, $$'a', key_types => '{"a.*": "string"}'$$),
    (47, $$'a', allowed_keys => '{a}', key_types => '{"b": "string"}'$$), (48, $$'a', allowed_keys => '{a.b}', key_types => '{"a": "string"}'$$),
    (49, $$'a', allowed_keys => '{a}', key_types => '{"a": "object"}'$$), (50, $$'a', allowed_keys => '{a}', key_types => '{"a": "array"}'$$),
    (60, $$'a', importance => 'urgent'$$), (61, $$'a', max_payload_bytes => 0$$), (62, $$'a', max_payload_bytes => 67108865$$), (63, $$'a', description => repeat('x', 2001)$$),
    (70, $$'a', exempt_keys => '{no_detector:a}'$$), (71, $$'a', exempt_keys => '{@tenant_id}'$$), (72, $$'a', exempt_keys => '{jwt:}'$$), (73, $$'a', exempt_keys => '{@headers.}'$$)
    ) as a (n, arguments)
cross join lateral refusal(format('select outbox.define_event_type(%s)', a.arguments)) r order by a.n;
select count(*) from outbox.event_type where event_type = 'a';

-- a definition counts in its transaction at once, and not after a rollback, of all or of a part
begin;
select outbox.define_event_type('et.tx', allowed_keys => '{a}');
savepoint s;
select outbox.publish('et.tx', '{"b": 1}');
rollback to s;
select outbox.define_event_type('et.tx', allowed_keys => '{b}');
select outbox.publish('et.tx', '{"b": 1}') is not null as published;
rollback to s;
select r.message from refusal($$select outbox.publish('et.tx', '{"b": 1}')$$) r;
rollback;
select outbox.publish('et.tx', '{"b": 1}') is not null as published;
-- in one statement, as a function would
do $$
begin
    perform outbox.define_event_type('et.tx', allowed_keys => '{a}');
    begin
        perform outbox.publish('et.tx', '{"b": 1}');
    exception when sqlstate 'OB002' then
        raise notice 'refused';
    end;
    perform outbox.drop_event_type('et.tx', '1');
    perform outbox.publish('et.tx', '{"b": 1}');
end $$;
-- with a snapshot from before
begin isolation level repeatable read;
select count(*) from outbox.event_type where event_type = 'et.tx';
select outbox.define_event_type('et.tx', allowed_keys => '{a}');
select r.message from refusal($$select outbox.publish('et.tx', '{"b": 1}')$$) r;
commit;
select r.message from refusal($$select outbox.publish('et.tx', '{"b": 1}')$$) r;
begin read only;
select outbox.define_event_type('et.tx');
rollback;

-- a batch tells which of its events
select outbox.publish_batch('[{"event_type": "et.tx", "payload": {"a": 1}}, {"event_type": "et.tx", "payload": {"b": {"c": 1}}}]');

select count(outbox.drop_event_type(event_type, payload_version)) from outbox.event_type where event_type like 'et.%';
drop function refusal;
