--
-- outbox.envelope(): every field of an event, in the one form that relays send.
--
set client_min_messages = warning;
create extension if not exists outbox;
reset client_min_messages;

-- an event with everything
select outbox.publish(
    event_type => 'ev.all', payload => '{"n": 1.50, "deep": {"null": null, "list": [1, null]}}', aggregate_type => 'task', aggregate_id => '7',
    event_key => 'board:1', tenant_id => 'tenant-1', actor_type => 'user', actor_id => 'anna', request_id => 'req-1', trace_id => 'trace-1',
    correlation_id => 'corr-1', causation_id => '01a228b6-27b7-7ad9-bcf4-106d98f189e4', source => 'billing', payload_version => '3',
    headers => '{"h": null, "x": "y"}', occurred_at => '2026-03-29 01:59:59.123456+00', deliver_at => '2100-01-01 00:00+00', dedup_key => 'ev-all') as id \gset
create temp table expected (field text primary key, value jsonb);
insert into expected
select f.field, f.value
from outbox.event e
cross join lateral (values
    ('eventId', to_jsonb(e.event_id)), ('eventType', '"ev.all"'), ('payloadVersion', '"3"'), ('source', '"billing"'),
    ('timestamp', '"2026-03-29T01:59:59.123456Z"'),
    ('publishedAt', to_jsonb(e.published_at at time zone 'UTC')),
    ('aggregateType', '"task"'), ('aggregateId', '"7"'), ('key', '"board:1"'), ('tenantId', '"tenant-1"'),
    ('actor', '{"type": "user", "id": "anna"}'), ('requestId', '"req-1"'), ('traceId', '"trace-1"'), ('correlationId', '"corr-1"'),
    ('causationId', '"01a228b6-27b7-7ad9-bcf4-106d98f189e4"'), ('headers', '{"h": null, "x": "y"}'),
    ('data', '{"n": 1.50, "deep": {"null": null, "list": [1, null]}}')) as f (field, value)
where e.event_id = :'id';
-- (publishedAt always has six digits behind the point)
select coalesce(x.field, t.key) as field,
       case when x.field = 'publishedAt' then (t.value #>> '{}')::timestamptz = (x.value #>> '{}' || 'Z')::timestamptz and t.value #>> '{}' ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$'
            else t.value::text = x.value::text end as as_expected
from expected x
full join (select t.* from outbox.event e, jsonb_each(outbox.envelope(e)) as t where e.event_id = :'id') as t on t.key = x.field
order by coalesce(x.field, t.key) collate "C";

-- an event with nothing: what it does not have is left out
select outbox.publish('ev.least') as id \gset
select array_agg(k order by k collate "C") as fields
from outbox.event e, jsonb_object_keys(outbox.envelope(e)) as k where e.event_id = :'id';
select outbox.envelope(e) ->> 'timestamp' = outbox.envelope(e) ->> 'publishedAt' as occurred_when_published, outbox.envelope(e) -> 'data' as data
from outbox.event e where e.event_id = :'id';

-- one field at a time: each is there by itself, and no other
create temp table one as
select * from (values ('aggregate_type', outbox.publish('ev.one', aggregate_type => 'x')),
             ('aggregate_id', outbox.publish('ev.one', aggregate_type => 'x', aggregate_id => 'y')),
             ('event_key', outbox.publish('ev.one', event_key => 'x')),
             ('tenant_id', outbox.publish('ev.one', tenant_id => 'x')),
             ('actor_type', outbox.publish('ev.one', actor_type => 'x')),
             ('actor_id', outbox.publish('ev.one', actor_id => 'x')),
             ('request_id', outbox.publish('ev.one', request_id => 'x')),
             ('trace_id', outbox.publish('ev.one', trace_id => 'x')),
             ('traceparent', outbox.publish('ev.one', trace_id => '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01')),
             ('correlation_id', outbox.publish('ev.one', correlation_id => 'x')),
             ('causation_id', outbox.publish('ev.one', causation_id => '01a228b6-27b7-7ad9-bcf4-106d98f189e4')),
             ('source', outbox.publish('ev.one', source => 'x')),
             ('headers', outbox.publish('ev.one', headers => '{}')),
             ('deliver_at', outbox.publish('ev.one', deliver_at => '2100-01-01')),
             ('dedup_key', outbox.publish('ev.one', dedup_key => 'ev-one'))) as a (field, id);
select one.field, (select jsonb_object_agg(t.key, t.value) from outbox.event e, jsonb_each(outbox.envelope(e)) as t
    where e.event_id = one.id and t.key not in ('eventId', 'eventType', 'payloadVersion', 'timestamp', 'publishedAt', 'data')) as envelope
from one;

-- data is the payload, whatever it is
create temp table given (id uuid, payload jsonb);
insert into given select outbox.publish('ev.data', v), v
from unnest(array['null', '1', '1.500', 'true', '""', '"text"', '[]', '[null]', '{}', '{"eventId": "mine", "data": null}']::jsonb[]) as v;
select given.payload, (outbox.envelope(e) -> 'data')::text = given.payload::text as same, outbox.envelope(e) ? 'data' as there
from given join outbox.event e on e.event_id = given.id order by e.event_id;

-- the same for every session
create temp table differing (setting text);
do $$
declare
    s text;
    wanted text := (select outbox.envelope(e)::text from outbox.event e where event_type = 'ev.all' order by event_id desc limit 1);
begin
    foreach s in array array['timezone=Asia/Tokyo', 'timezone=America/St_Johns', 'timezone=Europe/Berlin', 'datestyle=SQL, DMY', 'datestyle=German',
        'intervalstyle=iso_8601', 'lc_time=C', 'extra_float_digits=-15', 'search_path=pg_temp'] loop
        perform set_config(split_part(s, '=', 1), split_part(s, '=', 2), true);
        insert into pg_temp.differing select s from outbox.event e
        where e.event_id = (select event_id from outbox.event where event_type = 'ev.all' order by event_id desc limit 1) and outbox.envelope(e)::text <> wanted;
    end loop;
end $$;
select * from pg_temp.differing;
select outbox.envelope(null) is null as null_of_null;

delete from outbox.dedup where dedup_key in ('ev-all', 'ev-one');
