--
-- outbox.publish_batch(): many events at once.
--
set client_min_messages = warning;
create extension if not exists outbox;
reset client_min_messages;
set datestyle = iso;
set timezone = 'UTC';
create view published as select e.* from outbox.event e where e.source = 'test batch';
set outbox.source = 'test batch';

-- every name arrives; numbers do for text; null is the default
select count(*) from outbox.publish_batch('[
    {"event_type": "batch.all", "payload": {"n": null}, "aggregate_type": "task", "aggregate_id": 7, "event_key": "k", "tenant_id": "t",
     "actor_type": "user", "actor_id": "u", "request_id": "r", "trace_id": "trace", "correlation_id": "c",
     "causation_id": "01a228b6-27b7-7ad9-bcf4-106d98f189e4", "source": "test batch", "payload_version": 2, "headers": {"h": 1},
     "occurred_at": "2026-01-02T03:04:05.678901Z", "deliver_at": "2100-01-01", "dedup_key": "d"},
    {"event_type": "batch.all", "aggregate_type": "task", "aggregate_id": "8", "tenant_id": null, "headers": null}
]');
\x
select event_type, payload_version, aggregate_type, aggregate_id, event_key, tenant_id, actor_type, actor_id, request_id, trace_id,
       correlation_id, causation_id, source, deliver_at, dedup_key, headers, payload,
       case when occurred_at <> published_at then occurred_at end as occurred_at
from published order by event_id;
\x

-- ids in the order of the array, rising; each in the index
create temp table returned as
select b.id, b.n
from (select jsonb_agg(jsonb_build_object('event_type', 'batch.order', 'payload', i) order by i) as events
      from generate_series(1, 1000) as i) as j,
     outbox.publish_batch(j.events) with ordinality as b (id, n);
select count(*) as events, bool_and(p.payload = to_jsonb(r.n)) as in_order
from returned as r join published as p on p.event_id = r.id;
select bool_and(id > before) as rising
from (select id, lag(id, 1, '00000000-0000-0000-0000-000000000000') over (order by n) as before from returned) as r;
set enable_seqscan = off;
select count(*) from returned as r where exists (select from published as p where p.event_id = r.id);
reset enable_seqscan;

-- nothing, in a select list, rolled back
select outbox.publish_batch('[]');
select outbox.publish_batch('[{"event_type": "batch.list"}, {"event_type": "batch.list"}]') is not null as published;
begin;
select count(*) from outbox.publish_batch('[{"event_type": "batch.rolled_back"}]');
rollback;
select event_type, count(*) from published where event_type in ('batch.list', 'batch.rolled_back') group by 1;

-- dedup keys, within the batch too
select count(*) as ids, count(distinct id) as distinct_ids from outbox.publish_batch('[
    {"event_type": "batch.dedup", "payload": 1, "dedup_key": "a"}, {"event_type": "batch.dedup", "payload": 2, "dedup_key": "b"},
    {"event_type": "batch.dedup", "payload": 1, "dedup_key": "a"}, {"event_type": "batch.dedup", "payload": 1}]') as b (id);
select payload, dedup_key from published where event_type = 'batch.dedup' order by event_id;

-- the context stands in
begin;
set local outbox.tenant_id = 'from context';
select count(*) from outbox.publish_batch('[{"event_type": "batch.context"}, {"event_type": "batch.context", "tenant_id": "own"}]');
commit;
select tenant_id from published where event_type = 'batch.context' order by event_id;

-- what is refused is named, and nothing is written before all is checked
select outbox.publish_batch(null);
select outbox.publish_batch('{}');
select outbox.publish_batch('1');
select outbox.publish_batch('[{"event_type": "batch.refused"}, 1]');
select outbox.publish_batch('[{"event_type": "batch.refused"}, []]');
select outbox.publish_batch('[{"event_type": "batch.refused"}, {"event_type": "batch.refused", "evnet_key": 1}]');
select outbox.publish_batch('[{"event_type": "batch.refused"}, {}]');
select outbox.publish_batch('[{"event_type": "batch.refused"}, {"event_type": "batch.refused", "payload": null}]');
select outbox.publish_batch('[{"event_type": "batch.refused"}, {"event_type": "batch.refused", "event_key": ""}]');
select outbox.publish_batch('[{"event_type": "batch.refused"}, {"event_type": "batch.refused", "event_key": true}]');
select outbox.publish_batch('[{"event_type": "batch.refused"}, {"event_type": "batch.refused", "causation_id": 1}]');
select outbox.publish_batch('[{"event_type": "batch.refused"}, {"event_type": "batch.refused", "causation_id": "x"}]');
select outbox.publish_batch('[{"event_type": "batch.refused"}, {"event_type": "batch.refused", "deliver_at": "infinity"}]');
select outbox.publish_batch('[{"event_type": "batch.refused"}, {"event_type": "batch.refused", "deliver_at": "soon"}]');
select count(*) from published where event_type = 'batch.refused';

drop view published;
