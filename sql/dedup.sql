--
-- dedup_key: the edge of the window, batches, prepared transactions; two sessions: isolation/first_with_a_key.
--
set client_min_messages = warning;
create extension if not exists outbox;
reset client_min_messages;
\set VERBOSITY terse

-- the row of a key is as old as its event; the window is 7 days
create procedure dedup_age(key text, age interval) language sql as $$
    update outbox.dedup set published_at = clock_timestamp() - age where event_type = 'dd' and dedup_key = key
$$;
select outbox.publish('dd', '1', dedup_key => 'edge') as first \gset
call dedup_age('edge', '7 days -1 minute');
select outbox.publish('dd', '1', dedup_key => 'edge') = :'first' as same_within_the_window;
select outbox.publish('dd', '2', dedup_key => 'edge');
call dedup_age('edge', '7 days 1 second');
select outbox.publish('dd', '2', dedup_key => 'edge') as second \gset
select :'second' <> :'first' as another_after_it;
-- which begins anew
select outbox.publish('dd', '2', dedup_key => 'edge') = :'second' as same;
select count(*) from outbox.dedup where event_type = 'dd' and dedup_key = 'edge';
-- taking over an old key is taken back with its transaction (it is old in there only, or upkeep might trim it first)
begin;
call dedup_age('edge', '8 days');
select outbox.publish('dd', '3', dedup_key => 'edge') <> :'second' as third;
rollback;
select payload from outbox.event join outbox.dedup using (event_id) where dedup.event_type = 'dd' and dedup.dedup_key = 'edge';
call dedup_age('edge', '8 days');
begin;
savepoint s;
select outbox.publish('dd', '3', dedup_key => 'edge') <> :'second' as third;
rollback to s;
select outbox.publish('dd', '4', dedup_key => 'edge') <> :'second' as fourth;
commit;
select payload from outbox.event join outbox.dedup using (event_id) where dedup.event_type = 'dd' and dedup.dedup_key = 'edge';

-- of the second one nothing is left: its key and time neither
select outbox.publish('dd', '1', dedup_key => 'else', event_key => 'first') as first \gset
select outbox.publish('dd', '1', dedup_key => 'else', event_key => 'second', deliver_at => '2100-01-01') = :'first' as same;
select event_key, deliver_at from outbox.event where event_id = :'first';

-- in one batch, and against what was there
select outbox.publish('dd', '"b"', dedup_key => 'b1') as first \gset
select n, id = :'first' as first, id = lag(id) over (order by n) as same_as_before
from outbox.publish_batch('[{"event_type": "dd", "dedup_key": "b2", "payload": "b"}, {"event_type": "dd", "dedup_key": "b2", "payload": "b"},
    {"event_type": "dd", "dedup_key": "b1", "payload": "b"}, {"event_type": "dd", "payload": "b"}, {"event_type": "dd", "payload": "b"}]')
    with ordinality as t (id, n) order by n;
select outbox.publish_batch('[{"event_type": "dd", "dedup_key": "b3", "payload": 1}, {"event_type": "dd", "dedup_key": "b3", "payload": 2}]');
select count(*) from outbox.dedup where event_type = 'dd' and dedup_key = 'b3';

-- a prepared transaction has the key until it ends
begin;
select outbox.publish('dd', '1', dedup_key => 'p') as first \gset
prepare transaction 'dedup';
set lock_timeout = '100ms';
select outbox.publish('dd', '1', dedup_key => 'p');
reset lock_timeout;
commit prepared 'dedup';
select outbox.publish('dd', '1', dedup_key => 'p') = :'first' as same;

-- what is the same payload: values count, and structure, not how they were written
select name, outbox.publish('dd', a::jsonb, dedup_key => 'same ' || name) is not null as published
from (values ('spaces', '{"a":1,"b":[1,2]}'), ('order', '{"b":2,"a":1}'), ('zeros', '[1.50, 100]'), ('exponent', '1e3'), ('twice', '{"a":2,"a":1}')) as v (name, a);
select name, outbox.publish('dd', b::jsonb, dedup_key => 'same ' || name) = (select event_id from outbox.dedup where dedup_key = 'same ' || name) as same
from (values ('spaces', ' { "b" : [1, 2], "a" : 1 } '), ('order', '{"a":1,"b":2}'), ('zeros', '[1.5, 1e2]'), ('exponent', '1000.0'), ('twice', '{"a":1}')) as v (name, b);
select outbox.publish('dd', v::jsonb, dedup_key => 'other ' || n) is not null as published
from unnest(array['1', '{}', '[]', '""', 'null', '["a", "b"]', '{"a": {"b": 1}}', '[1, [2]]', '"1"', 'true']) with ordinality as t (v, n) group by 1;
do $$
declare
    v text;
    n integer := 0;
begin
    foreach v in array array['"1"', '[]', '{}', 'null', '""', '["ab", ""]', '{"a": 1, "b": 1}', '[[1], 2]', '1', '"true"'] loop
        n := n + 1;
        begin
            perform outbox.publish('dd', v::jsonb, dedup_key => 'other ' || n);
            raise warning '%: taken for the same', v;
        exception when unique_violation then
            null;
        end;
    end loop;
    raise notice '% others', n;
end $$;

-- the other fields do not count, and the first event's stay
select outbox.publish('dd', '1', dedup_key => 'fields', aggregate_type => 'a', aggregate_id => '1', occurred_at => '2020-01-01') as first \gset
select outbox.publish('dd', '1', dedup_key => 'fields', aggregate_type => 'a', aggregate_id => '2', deliver_at => '2100-01-01') = :'first' as same;
select aggregate_id, deliver_at from outbox.event where event_id = :'first';

drop procedure dedup_age;
delete from outbox.dedup where event_type = 'dd';
