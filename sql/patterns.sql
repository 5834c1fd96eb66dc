-- Event types, patterns, names and codes; and the lane of a key.
set client_min_messages = warning;
create extension if not exists outbox;
reset client_min_messages;

create function pg_temp.reason(rule text, value text) returns text
language c strict as '$libdir/outbox', 'outbox_test_check';
create function pg_temp.matches(pattern text, type text) returns boolean
language c strict as '$libdir/outbox', 'outbox_test_matches';
create function pg_temp.key_hash(tenant text, key text) returns bigint
language c as '$libdir/outbox', 'outbox_test_key_hash';

-- well-formed event types
select type, pg_temp.reason('type', type) as reason
from unnest(array['task', 'task.created', 'Task.Created.v2', 'a.b.c.d', '$x.y_z-1', '1.2', 'outbox.activated', repeat('x', 200)]) type
where pg_temp.reason('type', type) is not null;

-- and others
select n, pg_temp.reason('type', type) as reason
from unnest(array['', '.', 'task.', '.task', 'task..created', 'task created', 'task.*', '#', E't\xc3\xa2che', 'task/created', E'task\n', repeat('x', 201)])
    with ordinality as t (type, n)
order by n;

-- patterns
select left(pattern, 20) as pattern, pg_temp.reason('pattern', pattern) as reason
from unnest(array['#', '*', 'task.*', 'task.#', '#.created', '*.*', 'task.created', '', 'task.', 'task.*d', 'ta#', '**', 'task.%', repeat('x', 201)])
    with ordinality as t (pattern, n)
order by n;

-- codes and names
select n, pg_temp.reason('error code', value) is null as well_formed
from unnest(array['23514', '23', 'worker_died', 'http:503', 'a.b-c', '', 'a b', E'\xc3\xa4', repeat('x', 64), repeat('x', 65)])
    with ordinality as t (value, n)
order by n;
-- a code is no number of a person: it begins as a name does, and has few digits
select value, pg_temp.reason('error code', value) as reason
from unnest(array['HTTP_503', 'E1042', '23505', 'HV00R', 'ERR_2024', 'ORA-01017', 'E11000', '57P01', 'v1.2.3:104', '900101-1234568', '010-1234-5678', '5f1c', '2350', '23505a', '2350a', '_x', '-1', 'K900101',
        'x-010-1234-5678', 'x.90.01.01.1', 'x.90.01.01'])
    with ordinality as t (value, n)
order by n;
select n, pg_temp.reason('name', value) is null as well_formed
from unnest(array['audit', 'Audit trail; "x"', ' ', E'\xc3\xa4', '', E'a\nb', E'a\x7f', repeat('x', 200), repeat('x', 201), repeat(E'\xc3\xa4', 101)])
    with ordinality as t (value, n)
order by n;

-- what matches what
select pattern, string_agg(type, ' ' order by n) as matches
from unnest(array['task.created', 'task.*', 'task.#', '*', '*.*', '#', '#.#', '*.#', '#.*', '#.created', '*.created', 'task.#.done', 'task.#.a.#.done', '#.a.a.b', 'outbox.#', 'outbox', 'outbox.*'])
    with ordinality as p (pattern, m)
left join unnest(array['task', 'task.created', 'Task.created', 'task.created.v2', 'tasks.created', 'created', 'task.done', 'task.a.done', 'task.x.a.y.done', 'a.a.a.b', 'outbox', 'outbox.activated', 'outboxes.created'])
    with ordinality as t (type, n) on pg_temp.matches(pattern, type)
group by m, pattern
order by m;

-- long ones end
select pg_temp.matches('#.' || repeat('a.#.', 49) || 'b', repeat('a.', 99) || 'a') as matches,
       pg_temp.matches('#.' || repeat('a.#.', 45) || 'a', repeat('a.', 99) || 'a') as matches_too;

-- The lane of a key is stored with its events: these values must never change.
select tenant, octet_length(key) as length, pg_temp.key_hash(tenant, key)
from (values (null, 'order:1'), ('', 'order:1'), ('acme', 'order:1'), ('acm', 'eorder:1'), (null, E'gr\xc3\xb6\xc3\x9fe'), (null, repeat('k', 1024)))
    as t (tenant, key);

-- keys spread evenly over any number of lanes
select lanes, min(n) > 0.8 * 10000 / lanes and max(n) < 1.2 * 10000 / lanes as even
from (select lanes, (pg_temp.key_hash(null, 'order:' || i) & 9223372036854775807) % lanes as lane, count(*) as n
      from generate_series(1, 10000) i, unnest(array[2, 7, 16]) lanes
      group by 1, 2) per_lane
group by lanes
order by lanes;
