-- ---------------------------------------------------------------------------
-- What became of each event: one row an event, over all its deliveries.
-- ---------------------------------------------------------------------------

create function outbox.is_open(event_id uuid)
returns boolean
language c
stable strict
cost 10000
as 'MODULE_PATHNAME', 'outbox_is_open';
revoke all on function outbox.is_open(uuid) from public;
comment on function outbox.is_open(uuid) is
'Internal: whether a delivery of the event is pending, delayed, blocked, in progress or to be tried again; null for an event that this session may not see. It is looked for where it can be, as outbox.delivery does by event_id; a query that asks of more than twenty events then reads all that is open, once.';

create view outbox.event_history as
select e.event_id,
       e.event_type,
       e.dedup_key,
       done.message_id,
       e.payload,
       e.published_at,
       case when failed.event_id is not null then 'DELIVERY_FAILED'
            when done.completed_at is null then 'PUBLISHED'
            when outbox.is_open(e.event_id) then 'PUBLISHED'
            else 'PROCESSED' end as status,
       done.retries + tried.retries as retry_count,
       greatest(done.last_retry_at, tried.last_retry_at) as last_retry_at,
       coalesce(failed.error_message, failed.error_code, tried.error_code) as error_message,
       done.processing_time_ms,
       e.tenant_id,
       e.request_id,
       e.trace_id,
       e.published_at as created_at,
       greatest(e.published_at, done.completed_at, tried.last_failed_at, failed.failed_at) as updated_at
from outbox.event_log e
left join lateral (
    select max(r.message_id) as message_id,
           max(b.completed_at) as completed_at,
           count(*) filter (where r.attempts > 1) as retries,
           max(b.started_at) filter (where r.attempts > 1) as last_retry_at,
           sum(b.processing_us[r.batch_index + 1]) / 1000::float8 as processing_time_ms
    from outbox.receipt_log r
    left join outbox.batch b on b.batch_id = r.batch_id
    where r.event_id = e.event_id) done on true
left join lateral (
    select x.event_id, x.error_code, x.error_message, x.failed_at
    from outbox.delivery_exception x
    where x.event_id = e.event_id and x.status in ('REVIEW_REQUIRED', 'DISCARDED')
    order by x.failed_at desc nulls last
    limit 1) failed on true
left join lateral (
    select count(*) filter (where a.attempt > 1) as retries,
           max(coalesce(a.started_at, a.failed_at)) filter (where a.attempt > 1) as last_retry_at,
           max(a.failed_at) as last_failed_at,
           (array_agg(a.error_code order by a.attempt_id desc))[1] as error_code
    from outbox.attempt_log a
    where a.event_id = e.event_id) tried on true
where outbox.tenant_is_visible(e.tenant_id);
revoke all on outbox.event_history from public;
comment on view outbox.event_history is
'One row for each event, over all its deliveries. status: DELIVERY_FAILED when one of them is in review or was discarded, PROCESSED when there is at least one and all are completed, else PUBLISHED. retry_count: attempts after the first of each delivery, and last_retry_at when the last of them began. error_message: the last failure, as its message when messages are kept, else as its code; it stays when a later attempt went well. processing_time_ms: of the calls that completed it, added up. created_at: when it was published; updated_at: when something last happened to it.
Cost: by event_id some index probes a segment; a list of events costs these probes for each row; and, when events are completed somewhere and failed nowhere, for the first twenty of them a look at the lanes that each can be in, as outbox.delivery does by event_id, then one scan of the deliveries that are open. Shows payloads, so outbox.grant_monitor() does not give it; its reader needs both.';
comment on column outbox.event_history.event_id is 'UUIDv7, strictly increasing over the server';
comment on column outbox.event_history.message_id is 'id that a receiving system gave, when a worker kept it with outbox.ack_one()';
comment on column outbox.event_history.payload is 'the data';
