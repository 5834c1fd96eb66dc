-- ---------------------------------------------------------------------------
-- Publishing.
-- ---------------------------------------------------------------------------

create function outbox.publish(
    event_type text,
    payload jsonb default '{}',
    aggregate_type text default null,
    aggregate_id text default null,
    event_key text default null,
    tenant_id text default null,
    actor_type text default null,
    actor_id text default null,
    request_id text default null,
    trace_id text default null,
    correlation_id text default null,
    causation_id uuid default null,
    source text default null,
    payload_version text default '1',
    headers jsonb default null,
    occurred_at timestamptz default null,
    deliver_at timestamptz default null,
    dedup_key text default null)
returns uuid
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'outbox_publish';
revoke all on function outbox.publish(text, jsonb, text, text, text, text, text, text, text, text, text, uuid, text, text, jsonb, timestamptz, timestamptz, text) from public;
comment on function outbox.publish(text, jsonb, text, text, text, text, text, text, text, text, text, uuid, text, text, jsonb, timestamptz, timestamptz, text) is
'Publishes an event in this transaction and returns its event_id: every matching subscription gets it once the transaction has committed, and nothing is left of it when it rolls back.
event_type: 1-200 characters, words of letters, digits, "_", "-" and "$" joined by dots; those that begin with "outbox" are reserved. payload: at most outbox.max_payload_bytes as jsonb. aggregate_type (255 bytes), aggregate_id (512): what the event is about. event_key (1024): events of one (tenant_id, event_key) are delivered in order; default aggregate_type:aggregate_id.
tenant_id, actor_type, actor_id, request_id, trace_id, correlation_id, causation_id, source (255 each): when null, the setting outbox.<name>. trace_id: an id or a W3C traceparent, which goes whole into headers.traceparent. headers: a JSON object. occurred_at: default now. deliver_at: not delivered before. Both between 1970 and 2200. dedup_key (512): within outbox.dedup_window, a second publish under the same (tenant_id, event_type, dedup_key) makes no event and returns the first one''s id: nothing but the payload is compared, so another event_key, deliver_at or headers of the second one count for nothing.
Errors: OB002 payload or headers too large, context refused; 22004 event_type or payload null; 22023 another argument refused; 42939 reserved event type; 23505 another payload under the same dedup_key; 25006 read-only transaction or standby.';

create function outbox.publish_batch(events jsonb)
returns setof uuid
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'outbox_publish_batch';
revoke all on function outbox.publish_batch(jsonb) from public;
comment on function outbox.publish_batch(jsonb) is
'Publishes many events at once and returns their ids in the order of the array. events: an array of objects, whose names are the arguments of outbox.publish(); an absent name or a null means its default, except that payload must not be null.
Everything is checked before the first event is written. Errors: as outbox.publish(), with the position of the event (from 1) in the context; 22023 for an unknown name, or for anything but an array of objects; 22004 events null.';

create function outbox.envelope(event outbox.event)
returns jsonb
language sql stable strict parallel safe
return
    jsonb_strip_nulls(jsonb_build_object(
        'eventId', event.event_id,
        'eventType', event.event_type,
        'payloadVersion', event.payload_version,
        'source', event.source,
        'timestamp', to_char(event.occurred_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'publishedAt', to_char(event.published_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'aggregateType', event.aggregate_type,
        'aggregateId', event.aggregate_id,
        'key', event.event_key,
        'tenantId', event.tenant_id,
        'actor', case when event.actor_type is not null or event.actor_id is not null
                      then jsonb_build_object('type', event.actor_type, 'id', event.actor_id) end,
        'requestId', event.request_id,
        'traceId', event.trace_id,
        'correlationId', event.correlation_id,
        'causationId', event.causation_id))
    || case when event.headers is null then '{}'::jsonb else jsonb_build_object('headers', event.headers) end
    || jsonb_build_object('data', event.payload);
revoke all on function outbox.envelope(outbox.event) from public;
comment on function outbox.envelope(outbox.event) is
'The event as JSON, in the one form that every relay sends: eventId, eventType, payloadVersion, source, timestamp (occurred_at) and publishedAt (ISO 8601, UTC), aggregateType, aggregateId, key, tenantId, actor {type, id}, requestId, traceId, correlationId, causationId, headers, data (the payload). What the event does not have is left out; nulls within headers and data stay.';
