-- ---------------------------------------------------------------------------
-- Views for people and monitoring: statuses as text, times in seconds, and
-- never a payload.  They read with the rights of the extension's owner;
-- outbox.grant_monitor() gives them, with the functions that they call.
-- A session of one tenant sees its own rows; what is of no tenant, counts
-- over all of them too, only those see who are of all tenants.
-- ---------------------------------------------------------------------------

create function outbox.clock()
returns timestamptz
language c
volatile
as 'MODULE_PATHNAME', 'outbox_clock';
revoke all on function outbox.clock() from public;
comment on function outbox.clock() is
'The time by which the extension decides what is due: the server''s wall clock, which tests may move.';

create function outbox.is_held()
returns boolean
language c
volatile
as 'MODULE_PATHNAME', 'outbox_is_held';
revoke all on function outbox.is_held() from public;
comment on function outbox.is_held() is
'Whether this database was restored or copied from another server, so that nothing is routed or delivered until outbox.activate().';

create function outbox.published_at_of(event_id uuid)
returns timestamptz
language c
stable strict
cost 20
as 'MODULE_PATHNAME', 'outbox_published_at_of';
revoke all on function outbox.published_at_of(uuid) from public;
comment on function outbox.published_at_of(uuid) is
'When an event was published; null when it is not in the log (any more). One index probe.';

create function outbox.tenant_of(event_id uuid)
returns text
language c
stable strict
cost 20
as 'MODULE_PATHNAME', 'outbox_tenant_of';
revoke all on function outbox.tenant_of(uuid) from public;
comment on function outbox.tenant_of(uuid) is
'The tenant of an event; null when it has none, or is not in the log (any more). One index probe.';

-- Where an event can be that is open: what the views ask of tables that have
-- no index on the event's id, so that a query for one event reads no more of
-- them than that (src/api_place.c).
create function outbox.place_support(internal)
returns internal
language c strict immutable
as 'MODULE_PATHNAME', 'outbox_place_support';
revoke all on function outbox.place_support(internal) from public;
comment on function outbox.place_support(internal) is
'Internal: tells the planner what outbox.may_be_there() means when a query fixes the event.';

create function outbox.may_be_there(lane integer, subscription_id integer, its_lane integer, event_id uuid)
returns boolean
language c
immutable strict parallel safe
support outbox.place_support
as 'MODULE_PATHNAME', 'outbox_may_be_there';
revoke all on function outbox.may_be_there(integer, integer, integer, uuid) from public;
comment on function outbox.may_be_there(integer, integer, integer, uuid) is
'Internal: true for every row of outbox.lane_entry, read lane by lane. For the planner: where the event is fixed, only lanes that outbox.lane_to_search() names are read.';

create function outbox.may_be_there(gate_id bigint, event_id uuid)
returns boolean
language c
immutable strict parallel safe
support outbox.place_support
as 'MODULE_PATHNAME', 'outbox_may_be_there';
revoke all on function outbox.may_be_there(bigint, uuid) from public;
comment on function outbox.may_be_there(bigint, uuid) is
'Internal: true for every row of outbox.parked. For the planner: where the event is fixed, only what is behind the gates of outbox.gates_to_search() is read.';

create function outbox.may_be_there(due_at timestamptz, event_id uuid)
returns boolean
language c
immutable strict parallel safe
support outbox.place_support
as 'MODULE_PATHNAME', 'outbox_may_be_there';
revoke all on function outbox.may_be_there(timestamptz, uuid) from public;
comment on function outbox.may_be_there(timestamptz, uuid) is
'Internal: true for every row of outbox.delayed. For the planner: where the event is fixed, only the times of outbox.due_times_to_search() are read.';

create function outbox.lane_to_search(subscription_id integer, lane integer, event_ids uuid[])
returns integer
language c
stable strict parallel safe
cost 100
as 'MODULE_PATHNAME', 'outbox_lane_to_search';
revoke all on function outbox.lane_to_search(integer, integer, uuid[]) from public;
comment on function outbox.lane_to_search(integer, integer, uuid[]) is
'Internal: the lane, when entries of one of these events may be in it, else null. An event that is not in the log (any more) may be in any lane. One index probe an event, the first time a query asks.';

create function outbox.gates_to_search(event_ids uuid[])
returns bigint[]
language c
stable strict parallel safe
cost 100
as 'MODULE_PATHNAME', 'outbox_gates_to_search';
revoke all on function outbox.gates_to_search(uuid[]) from public;
comment on function outbox.gates_to_search(uuid[]) is
'Internal: the gates of the keys of these events. Of an event that is not in the log (any more), those that it is parked behind: a scan of all that is parked. Else an index probe an event, and one or more a subscription.';

create function outbox.due_times_to_search(event_ids uuid[])
returns timestamptz[]
language c
stable strict parallel safe
cost 100
as 'MODULE_PATHNAME', 'outbox_due_times_to_search';
revoke all on function outbox.due_times_to_search(uuid[]) from public;
comment on function outbox.due_times_to_search(uuid[]) is
'Internal: when these events are due that have a deliver_at. Of an event that is not in the log (any more), when it is due in outbox.delayed: a scan of that. Else an index probe an event.';

create function outbox.apart()
returns boolean
language c
volatile parallel safe
as 'MODULE_PATHNAME', 'outbox_may_be_there';
revoke all on function outbox.apart() from public;
comment on function outbox.apart() is
'Internal: true. A subquery that shows it is planned by itself, and still given the conditions that a query has on its other columns.';

-- A batch is of no tenant, and holds receipts of many: its columns go through
-- a CASE that asks of the receipt too, so that no condition on them is asked
-- of batches whose receipts have not been looked at (src/api_tenant.c).
-- The branches agree in type and collation, column by column, so that what a
-- query does not ask for is not computed.
create view outbox.delivery as
select s.subscription,
       r.event_id,
       r.replay_no::integer as replay_no,
       outbox.tenant_of(r.event_id) collate "C" as tenant_id,
       'COMPLETED'::text collate "C" as status,
       r.attempts::integer as attempts,
       null::timestamptz as next_attempt_at,
       null::timestamptz as lease_expires_at,
       case when b.batch_id = r.batch_id then b.worker end as worker,
       null::text collate "C" as error_code,
       case when b.batch_id = r.batch_id then b.completed_at end as completed_at,
       b.processing_us[r.batch_index + 1] / 1000::float8 as processing_ms,
       r.message_id
from outbox.receipt_log r
join outbox.subscription s on s.subscription_id = r.subscription_id
left join outbox.batch b on b.batch_id = r.batch_id
where outbox.event_is_visible(r.event_id)
union all
select s.subscription,
       x.event_id,
       x.replay_no::integer,
       nullif(x.tenant_id, ''),
       case when w.event_id is not null and x.status = 'RETRY' then 'IN_PROGRESS' else x.status end,
       case when w.event_id is not null and x.status = 'RETRY' then x.attempts + 1 else x.attempts end,
       case when w.event_id is null then x.next_attempt_at end,
       case when w.event_id is not null or x.status = 'IN_PROGRESS' then coalesce(h.expires_at, l.expires_at) end,
       case when x.lease_id is null and (w.event_id is not null or x.status = 'IN_PROGRESS') then l.worker else x.worker end,
       x.error_code,
       null::timestamptz,
       null::float8,
       null::text collate "C"
from outbox.delivery_exception x
join outbox.subscription s on s.subscription_id = x.subscription_id
left join outbox.lane l on l.subscription_id = x.subscription_id and l.lane = x.lane
left join outbox.lease h on h.lease_id = x.lease_id
left join outbox.process_list() w
    on w.subscription_id = s.subscription_id and w.event_id = x.event_id and w.replay_no = x.replay_no
where outbox.tenant_is_visible(x.tenant_id)
union all
select s.subscription,
       h.event_id,
       h.replay_no,
       outbox.tenant_of(h.event_id) collate "C",
       'IN_PROGRESS'::text collate "C",
       h.attempts,
       null::timestamptz,
       h.expires_at,
       h.worker collate "C",
       null::text collate "C",
       null::timestamptz,
       null::float8,
       null::text collate "C"
from outbox.lease_events() h
join outbox.subscription s on s.subscription_id = h.subscription_id
where not h.has_exception
  and outbox.event_is_visible(h.event_id)
union all
select s.subscription,
       e.event_id,
       0,
       outbox.tenant_of(e.event_id) collate "C",
       case when w.event_id is not null then 'IN_PROGRESS' else 'PENDING' end collate "C",
       case when w.event_id is not null then 1 else 0 end,
       null::timestamptz,
       case when w.event_id is not null then l.expires_at end,
       case when w.event_id is not null then l.worker end,
       null::text collate "C",
       null::timestamptz,
       null::float8,
       null::text collate "C"
from outbox.subscription s
join (
    select each.subscription_id,
           each.lane,
           each.worker,
           each.expires_at,
           coalesce((select max(c.position)
                     from outbox.lane_cursor c
                     where c.subscription_id = each.subscription_id and c.lane = each.lane), each.base) as done
    from outbox.lane each
    offset 0) l -- one look at the cursor a lane, not one an entry
    on l.subscription_id = s.subscription_id
cross join lateral (
    select each.event_id,
           outbox.apart() as apart -- always lane by lane
    from outbox.lane_entry each
    where each.subscription_id = l.subscription_id
      and each.lane = l.lane
      and each.position > l.done
      and outbox.may_be_there(each.lane, l.subscription_id, l.lane, each.event_id)) e
left join outbox.process_list() w on w.subscription_id = s.subscription_id and w.event_id = e.event_id and w.replay_no = 0
where not exists (
    select from outbox.delivery_exception x
    where x.subscription_id = s.subscription_id and x.event_id = e.event_id and x.replay_no = 0)
  and outbox.event_is_visible(e.event_id)
union all
select s.subscription,
       p.event_id,
       0,
       nullif(g.tenant_id, ''),
       case when w.event_id is not null then 'IN_PROGRESS' when g.held_by is null then 'PENDING' else 'BLOCKED' end collate "C",
       case when w.event_id is not null then 1 else 0 end,
       null::timestamptz,
       case when w.event_id is not null then l.expires_at end,
       case when w.event_id is not null then l.worker end,
       null::text collate "C",
       null::timestamptz,
       null::float8,
       null::text collate "C"
from outbox.gate g
join outbox.subscription s on s.subscription_id = g.subscription_id
join outbox.parked p on p.gate_id = g.gate_id and p.position > g.through
left join outbox.lane l on l.subscription_id = g.subscription_id and l.lane = g.lane
left join outbox.process_list() w on w.subscription_id = s.subscription_id and w.event_id = p.event_id and w.replay_no = 0
where not exists (
    select from outbox.delivery_exception x
    where x.subscription_id = g.subscription_id and x.event_id = p.event_id and x.replay_no = 0)
  and outbox.may_be_there(p.gate_id, p.event_id)
  and outbox.tenant_is_visible(g.tenant_id) -- of each table whose columns are shown
  and outbox.event_is_visible(p.event_id)
union all
select s.subscription,
       d.event_id,
       0,
       outbox.tenant_of(d.event_id) collate "C",
       'RETRY'::text collate "C",
       0,
       d.due_at,
       null::timestamptz,
       null::text collate "C",
       null::text collate "C",
       null::timestamptz,
       null::float8,
       null::text collate "C"
from outbox.delayed d
join outbox.subscription s on s.subscription_id = d.subscription_id
where outbox.may_be_there(d.due_at, d.event_id)
  and outbox.event_is_visible(d.event_id);
revoke all on outbox.delivery from public;
comment on view outbox.delivery is
'One row for each event on its way to a subscription, from when it has been routed on. status: PENDING, IN_PROGRESS, RETRY (waits for next_attempt_at; also events with deliver_at), BLOCKED (waits behind an unfinished event of its key), COMPLETED, REVIEW_REQUIRED, DISCARDED. attempts: started since the last outbox.retry(), the one under way included. worker: who is at it, or was last. processing_ms: of the call that completed it.
Cost: by event_id an index probe a segment, the open entries of the lanes that the event can be in (one a subscription, and each one of before a change of its lanes), what is parked behind its key, and the leases that have not expired yet; for an event that is not in the log (any more) a scan of all that is open; without a condition it reads every receipt there is, and tenant_id costs an index probe for each row. For counts of what is open ask outbox.subscription_status.';

create view outbox.attempt as
select s.subscription,
       a.event_id,
       a.replay_no::integer as replay_no,
       a.attempt,
       a.worker,
       a.started_at,
       a.failed_at,
       a.error_code
from outbox.attempt_log a
join outbox.subscription s on s.subscription_id = a.subscription_id
where outbox.event_is_visible(a.event_id);
revoke all on outbox.attempt from public;
comment on view outbox.attempt is
'The attempts that failed. Cost: an index probe by event_id; else a scan of all failed attempts.';

create view outbox.review_required as
select s.subscription,
       x.event_id,
       e.event_type,
       e.aggregate_type,
       e.aggregate_id,
       nullif(x.tenant_id, '') as tenant_id,
       e.request_id,
       e.trace_id,
       e.correlation_id,
       e.dedup_key,
       coalesce(d.importance, 'medium') as importance,
       x.replay_no::integer as replay_no,
       x.attempts,
       s.max_attempts,
       x.error_code,
       x.error_message,
       x.first_failed_at,
       x.failed_at,
       e.occurred_at,
       e.published_at,
       (select count(*)
        from outbox.gate g
        join outbox.parked p on p.gate_id = g.gate_id and p.position > g.through
        where g.subscription_id = x.subscription_id
          and g.lane = x.lane
          and g.tenant_id = x.tenant_id
          and g.event_key = x.event_key
          and g.held_by = x.event_id) as blocked_events
from outbox.delivery_exception x
join outbox.subscription s on s.subscription_id = x.subscription_id
left join lateral (
    select log.event_type, log.payload_version, log.aggregate_type, log.aggregate_id, log.request_id, log.trace_id,
           log.correlation_id, log.dedup_key, log.occurred_at, log.published_at
    from outbox.event_log log
    where log.event_id = x.event_id
    limit 1) e on true -- probes, however many deliveries are in review
left join outbox.event_type_definition d on d.event_type = e.event_type and d.payload_version = e.payload_version
where x.status = 'REVIEW_REQUIRED'
  and outbox.tenant_is_visible(x.tenant_id);
revoke all on outbox.review_required from public;
comment on view outbox.review_required is
'The deliveries that wait for a person: fix the cause and call outbox.retry(), or give up with outbox.discard(). importance: of the event type''s definition, else medium. blocked_events: later events of the key that wait behind it. Cost: for each delivery in review an index probe a segment of the log, and blocked_events counts what is parked behind it.';

create view outbox.blocked_key as
select s.subscription,
       nullif(g.tenant_id, '') as tenant_id,
       g.event_key,
       g.held_by,
       (select x.status
        from outbox.delivery_exception x
        where x.subscription_id = g.subscription_id and x.event_id = g.held_by
        order by x.replay_no
        limit 1) as status,
       (select count(*) from outbox.parked p where p.gate_id = g.gate_id and p.position > g.through) as blocked_events,
       g.created_at as since
from outbox.gate g
join outbox.subscription s on s.subscription_id = g.subscription_id
where g.held_by is not null
  and outbox.tenant_is_visible(g.tenant_id);
revoke all on outbox.blocked_key from public;
comment on view outbox.blocked_key is
'The keys whose later events wait: held_by is the unfinished event, status its status, blocked_events how many wait behind it (0: none has come yet), since when the key is blocked. Cost: those of one event_key, and the first by since, are found by an index, of all and of one subscription; else it reads all gates, and blocked_events counts what is parked behind each that is shown.';

create function outbox.open_counts(
    out subscription_id integer,
    out waiting bigint,
    out next_event_id uuid,
    out ready bigint,
    out blocked bigint,
    out leased bigint)
returns setof record
language c volatile
as 'MODULE_PATHNAME', 'outbox_open_counts';
revoke all on function outbox.open_counts() from public;
comment on function outbox.open_counts() is
'Internal: how many events wait in the lanes of each subscription, and the oldest of those that come next; how many are parked behind open gates (ready) and behind the others, counted up to 10,000 events or 2,000 keys; and how many external workers hold, but those that are counted in outbox.exception_count. Four index probes a lane, two or three a key that has parked events, and the leases that have not expired yet.';

create view outbox.open_count as
select c.subscription_id,
       c.waiting + c.ready as backlog,
       c.next_event_id,
       c.blocked,
       c.leased + coalesce(w.n, 0) as at_work
from outbox.open_counts() c
left join (
    select p.subscription_id, count(*) as n
    from outbox.process_list() p
    where p.event_id is not null
      and not exists (
          select from outbox.delivery_exception x
          where x.subscription_id = p.subscription_id and x.event_id = p.event_id and x.replay_no = p.replay_no
            and x.status = 'IN_PROGRESS')
    group by p.subscription_id) w on w.subscription_id = c.subscription_id
where outbox.sees_all_tenants();
revoke all on outbox.open_count from public;
comment on view outbox.open_count is
'Internal: what outbox.open_counts() counts, for the views that show it. at_work: the deliveries that are being worked on and are not counted as IN_PROGRESS in outbox.exception_count.';

create view outbox.status_count as
select c.subscription_id,
       coalesce(sum(c.n) filter (where c.status = 'RETRY'), 0)::bigint as retry,
       coalesce(sum(c.n) filter (where c.status = 'IN_PROGRESS'), 0)::bigint as in_progress,
       coalesce(sum(c.n) filter (where c.status = 'REVIEW_REQUIRED'), 0)::bigint as review_required,
       coalesce(sum(c.n) filter (where c.status = 'DISCARDED'), 0)::bigint as discarded,
       coalesce(sum(c.n) filter (where c.status = 'DELAYED'), 0)::bigint as delayed
from outbox.exception_count c
where outbox.sees_all_tenants()
group by c.subscription_id;
revoke all on outbox.status_count from public;
comment on view outbox.status_count is
'Internal: the sums of outbox.exception_count, for the views that show them. Cost: a scan of what upkeep has not added up yet.';

create view outbox.subscription_status as
select s.subscription,
       s.handler,
       s.paused,
       coalesce(open.backlog, 0) as backlog,
       oldest.published_at as oldest_waiting_at,
       greatest(0, extract(epoch from outbox.clock() - oldest.published_at))::float8 as oldest_delay_seconds,
       coalesce(counted.delayed, 0) as delayed,
       coalesce(counted.retry, 0) as retry,
       coalesce(counted.in_progress, 0) + coalesce(open.at_work, 0) as in_progress,
       coalesce(open.blocked, 0) as blocked,
       coalesce(counted.review_required, 0) as review_required,
       t.outage_until,
       t.stopped_at,
       t.stopped_code,
       case when outbox.is_held() then 'the database was restored or cloned: outbox.activate() makes it live'
            when current_setting('outbox.dispatch') = 'off' then 'the setting outbox.dispatch is off'
            when t.subscription_id is null then 'rows of it are missing, as after a restore that failed in part: the router makes them anew, and pauses it'
            else t.stopped_reason end as stopped_reason,
       t.joined is distinct from true as catching_up,
       outbox.is_held() as held,
       s.event_types,
       s.run_as,
       s.ordering,
       s.lanes,
       s.max_attempts,
       extract(epoch from s.backoff_base)::float8 as backoff_base_seconds,
       s.backoff_factor,
       extract(epoch from s.backoff_max)::float8 as backoff_max_seconds,
       extract(epoch from s.lease_duration)::float8 as lease_duration_seconds,
       extract(epoch from s.handler_timeout)::float8 as handler_timeout_seconds,
       s.batch_size,
       s.start_at,
       s.on_review,
       s.permanent_errors,
       s.transient_errors,
       s.created_at,
       s.created_by
from outbox.subscription s
left join outbox.subscription_state t on t.subscription_id = s.subscription_id -- a restore may have failed in part
left join outbox.open_count open on open.subscription_id = s.subscription_id
left join outbox.status_count counted on counted.subscription_id = s.subscription_id
cross join lateral (
    select outbox.published_at_of(open.next_event_id) as published_at
    offset 0) oldest
where outbox.sees_all_tenants();
revoke all on outbox.subscription_status from public;
comment on view outbox.subscription_status is
'One row a subscription: how it stands, then its definition (times in seconds). backlog: events that could be delivered now, those of a batch at work included until it commits. oldest_waiting_at, oldest_delay_seconds: when the oldest of them was published, and how long ago. delayed: wait for their deliver_at. retry: wait for their next attempt. in_progress: being delivered just now, or held by external workers. blocked: wait behind an unfinished event of their key; this, and the part of backlog whose keys have been opened, stop counting at 10,000 events or 2,000 keys. review_required: wait for a person. outage_until: deliveries pause after failures on many keys. stopped_*: since when and why the handler cannot be run, or that rows of the subscription were missing and it waits for outbox.resume(); stopped_reason also tells of a database that is held, and of outbox.dispatch = off. Events that were committed since the router last ran (dispatch off, or held) are in the log and not in backlog yet. catching_up: a new subscription has not reached the live events yet. held: this database waits for outbox.activate().
Cost: some index probes a lane, the first of what is parked, and the leases of external workers that have not expired; whatever the backlog, the size of the log and what is in review.';

create view outbox.operator_log as
select o.entry_id,
       o.at,
       o.role_name,
       o.action,
       o.subscription,
       o.event_id,
       o.reason,
       o.session_role,
       o.events,
       o.detail
from outbox.operator_entry o
where outbox.sees_all_tenants();
revoke all on outbox.operator_log from public;
comment on view outbox.operator_log is
'Who did what by hand, and when: one row a call that changed something, written in its transaction. role_name: who acted; session_role: who had logged in, when that is another role. reason: of a discard, or what an alteration changed. events: how many deliveries outbox.retry_all() or outbox.replay() moved, detail: which were asked for. Cost: a scan of all entries.';
