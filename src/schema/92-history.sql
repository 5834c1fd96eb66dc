-- ---------------------------------------------------------------------------
-- What became of each event: one row an event, over all its deliveries.
-- ---------------------------------------------------------------------------

create view outbox.event_history as
select e.event_id,
       e.event_type,
       e.dedup_key,
       done.message_id,
       e.payload,
       e.published_at,
       case when failed.event_id is not null then 'DELIVERY_FAILED'
            when done.completed_at is null then 'PUBLISHED'
            when open.still then 'PUBLISHED'
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
-- Asked only of what is completed somewhere and failed nowhere; then one look at all that is open, however many rows are asked for. What
-- is in outbox.delivery_exception and open nowhere else has been found to have failed, so the rest need not be compared with it.
-- Not among the columns above: what tells of leases is volatile, and the planner would compute the view whole before it joins it.
left join lateral (
    select case when failed.event_id is null and done.completed_at is not null then e.event_id in (
        select x.event_id from outbox.delivery_exception x where x.status = 'RETRY' and x.replay_no = 0
        union all
        select x.event_id from outbox.delivery_exception x where x.status = 'RETRY' and x.replay_no > 0
        union all
        select x.event_id from outbox.delivery_exception x where x.status = 'IN_PROGRESS'
        union all
        select h.event_id from outbox.lease_events() h
        union all
        select n.event_id
        from (
            select l.subscription_id,
                   l.lane,
                   coalesce((select max(c.position)
                             from outbox.lane_cursor c
                             where c.subscription_id = l.subscription_id and c.lane = l.lane), l.base) as done
            from outbox.lane l
            offset 0) lane -- one look at the cursor a lane
        join outbox.lane_entry n on n.subscription_id = lane.subscription_id and n.lane = lane.lane and n.position > lane.done
        union all
        select p.event_id
        from outbox.gate g
        join outbox.parked p on p.gate_id = g.gate_id and p.position > g.through
        union all
        select d.event_id from outbox.delayed d) end as still) open on true
where outbox.tenant_is_visible(e.tenant_id);
revoke all on outbox.event_history from public;
comment on view outbox.event_history is
'One row for each event, over all its deliveries. status: DELIVERY_FAILED when one of them is in review or was discarded, PROCESSED when there is at least one and all are completed, else PUBLISHED. retry_count: attempts after the first of each delivery, and last_retry_at when the last of them began. error_message: the last failure, as its message when messages are kept, else as its code; it stays when a later attempt went well. processing_time_ms: of the calls that completed it, added up. created_at: when it was published; updated_at: when something last happened to it.
Cost: by event_id some index probes a segment; a list of events costs these probes for each row; and, when one is completed, one scan of the deliveries that are open. Shows payloads, so outbox.grant_monitor() does not give it; its reader needs both.';
comment on column outbox.event_history.event_id is 'UUIDv7, strictly increasing over the server';
comment on column outbox.event_history.message_id is 'id that a receiving system gave, when a worker kept it with outbox.ack_one()';
comment on column outbox.event_history.payload is 'the data';
