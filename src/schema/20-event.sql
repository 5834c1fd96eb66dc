-- ---------------------------------------------------------------------------
-- The event as everybody sees it.
-- ---------------------------------------------------------------------------

create view outbox.event as
select event_id, event_type, payload_version, aggregate_type, aggregate_id, event_key, tenant_id,
       actor_type, actor_id, request_id, trace_id, correlation_id, causation_id, source,
       occurred_at, published_at, deliver_at, dedup_key, headers, payload
from outbox.event_log
where outbox.tenant_is_visible(tenant_id);
revoke all on outbox.event from public;
comment on view outbox.event is
'The event log: one row an event, immutable. Its row type is what handlers take. Reading one event by event_id costs an index probe per segment; a time range goes by published_at and reads whole segments. A session of one tenant sees its own events only (outbox.tenant_setting).';
comment on column outbox.event.event_id is 'UUIDv7, strictly increasing over the server';
comment on column outbox.event.event_type is 'words joined by dots, case-sensitive, 1-200 characters';
comment on column outbox.event.payload_version is 'version of the payload''s form, as the publisher gave it';
comment on column outbox.event.aggregate_type is 'kind of thing the event is about';
comment on column outbox.event.aggregate_id is 'which one of that kind';
comment on column outbox.event.event_key is 'events of one (tenant_id, event_key) are delivered in order; null: no order';
comment on column outbox.event.tenant_id is 'tenant the event belongs to';
comment on column outbox.event.actor_type is 'kind of actor that caused it';
comment on column outbox.event.actor_id is 'which actor caused it';
comment on column outbox.event.request_id is 'request that caused it';
comment on column outbox.event.trace_id is 'trace id (W3C)';
comment on column outbox.event.correlation_id is 'what ties the events of one process together';
comment on column outbox.event.causation_id is 'event_id of the event that caused this one';
comment on column outbox.event.source is 'application that published it';
comment on column outbox.event.occurred_at is 'when the fact happened; default: when it was published';
comment on column outbox.event.published_at is 'wall clock of the server at the call of publish()';
comment on column outbox.event.deliver_at is 'not delivered before; null: at once';
comment on column outbox.event.dedup_key is 'key under which a second publish makes no second event';
comment on column outbox.event.headers is 'further context, a JSON object';
comment on column outbox.event.payload is 'the data';
