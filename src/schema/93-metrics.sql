-- ---------------------------------------------------------------------------
-- Numbers for monitoring.  Totals and times are counted in shared memory, the rest
-- are index probes and sums of few rows, whatever the size of the log: cheap enough for a
-- scrape every few seconds, on a standby and in a read-only transaction too.  Labels
-- are subscription, event type and code; never a key, a tenant or an id.
-- ---------------------------------------------------------------------------

create function outbox.counters(
    out subscription_id integer,
    out completed bigint,
    out failed bigint,
    out review bigint,
    out recovered bigint,
    out handler_us bigint,
    out routed bigint,
    out unmatched bigint,
    out handler_p50 float8, out handler_p95 float8, out handler_p99 float8,
    out start_p50 float8, out start_p95 float8, out start_p99 float8,
    out done_p50 float8, out done_p95 float8, out done_p99 float8)
returns setof record
language c volatile
as 'MODULE_PATHNAME', 'outbox_counters';
revoke all on function outbox.counters() from public;
comment on function outbox.counters() is 'Internal: what outbox.metrics shows of shared memory; subscription 0 is the database.';

create function outbox.failure_counters(
    out subscription_id integer,
    out error_code text,
    out failed bigint)
returns setof record
language c volatile
as 'MODULE_PATHNAME', 'outbox_failure_counters';
revoke all on function outbox.failure_counters() from public;
comment on function outbox.failure_counters() is 'Internal: what outbox.failure_metrics shows of shared memory.';

create function outbox.unmatched_types(
    out event_type text,
    out events bigint,
    out last_seen_at timestamptz)
returns setof record
language c volatile
as 'MODULE_PATHNAME', 'outbox_unmatched_types';
revoke all on function outbox.unmatched_types() from public;
comment on function outbox.unmatched_types() is 'Internal: what outbox.unmatched_event_type shows of shared memory.';

create view outbox.metrics as
select s.subscription,
       coalesce(open.backlog, 0) as backlog,
       greatest(0, extract(epoch from outbox.clock() - oldest.published_at))::float8 as oldest_delay_seconds,
       coalesce(counted.in_progress, 0) + coalesce(open.at_work, 0) as in_progress,
       coalesce(counted.retry, 0) as retry,
       coalesce(open.blocked, 0) as blocked,
       coalesce(counted.review_required, 0) as review_required,
       coalesce(counted.discarded, 0) as discarded,
       coalesce(counted.delayed, 0) as delayed,
       coalesce(k.completed, 0) as completed_total,
       coalesce(k.failed, 0) as failed_total,
       coalesce(k.completed + k.failed, 0) as attempts_total,
       coalesce(k.review, 0) as review_total,
       coalesce(k.recovered, 0) as lease_recoveries_total,
       coalesce(k.handler_us, 0) / 1e6::float8 as handler_seconds_total,
       k.handler_p50 as handler_ms_p50, k.handler_p95 as handler_ms_p95, k.handler_p99 as handler_ms_p99,
       k.start_p50 as publish_to_start_ms_p50, k.start_p95 as publish_to_start_ms_p95, k.start_p99 as publish_to_start_ms_p99,
       k.done_p50 as publish_to_done_ms_p50, k.done_p95 as publish_to_done_ms_p95, k.done_p99 as publish_to_done_ms_p99,
       s.paused,
       t.stopped_at is not null or coalesce(t.outage_until > outbox.clock(), false) as stopped,
       -- as outbox.status() says it
       s.handler is null and not s.paused and not outbox.is_held()
           and coalesce(open.backlog > 0, false)
           and coalesce(counted.in_progress, 0) + coalesce(open.at_work, 0) = 0
           and coalesce(oldest.published_at < outbox.clock() - interval '1 minute', false) as unclaimed
from outbox.subscription s
left join outbox.subscription_state t on t.subscription_id = s.subscription_id
left join outbox.status_count counted on counted.subscription_id = s.subscription_id
left join outbox.open_count open on open.subscription_id = s.subscription_id
left join outbox.counters() k on k.subscription_id = s.subscription_id
cross join lateral (
    select outbox.published_at_of(open.next_event_id) as published_at offset 0) oldest
where outbox.sees_all_tenants();
revoke all on outbox.metrics from public;
comment on view outbox.metrics is
'One row a subscription, for monitoring. Gauges: backlog (could be delivered now), oldest_delay_seconds (since the oldest of them was published; 0 when there is none), in_progress, retry, blocked, review_required, discarded, delayed; they are those of this moment, exact, but that blocked and the opened keys'' part of backlog stop counting at 10,000 events or 2,000 keys. Counters since the statistics began (they are kept over a restart, not over a crash): completed_total, failed_total and attempts_total (attempts), review_total (went to review), lease_recoveries_total (lanes taken over from a worker that died, leases of external workers that expired), handler_seconds_total; what external workers settle in a prepared transaction is not in them. Times in milliseconds, read from histograms whose buckets are a quarter of an octave wide: handler_ms (one call, or from claim to settle), publish_to_start_ms, publish_to_done_ms. paused: by a person. stopped: its handler cannot be run, or its deliveries pause after failures on many keys; outbox.subscription_status says why. unclaimed: it has no handler, its events have waited for more than a minute, and nobody holds a lease: its workers do not run.
Cost: some index probes a lane, the first of what is parked, and the leases of external workers that have not expired; whatever the size of the log and of what is in review.';

create view outbox.failure_metrics as
select s.subscription,
       f.error_code,
       f.failed as failed_total
from outbox.failure_counters() f
join outbox.subscription s on s.subscription_id = f.subscription_id
where outbox.sees_all_tenants();
revoke all on outbox.failure_metrics from public;
comment on view outbox.failure_metrics is
'Failed attempts by subscription and error code since the statistics began; after 15 codes of a subscription the rest count as "other". Cost: reads shared memory.';

create view outbox.review_metrics as
select s.subscription,
       c.event_type,
       coalesce(min(t.importance), 'medium') as importance,
       sum(c.n)::bigint as review_required
from outbox.exception_count c
join outbox.subscription s on s.subscription_id = c.subscription_id
left join (
    -- of its versions the most important one
    select d.event_type, (array['high', 'medium', 'low'])[min(array_position(array['high', 'medium', 'low'], d.importance))] as importance
    from outbox.event_type_definition d
    group by d.event_type) t on t.event_type = c.event_type
where c.status = 'REVIEW_REQUIRED'
  and outbox.sees_all_tenants()
group by s.subscription, c.event_type
having sum(c.n) > 0;
revoke all on outbox.review_metrics from public;
comment on view outbox.review_metrics is
'Deliveries in review by subscription and event type, with the importance of the type. Cost: reads a few hundred rows, however many are in review.';

create view outbox.unmatched_event_type as
select u.event_type,
       u.events,
       u.last_seen_at
from outbox.unmatched_types() u
where outbox.sees_all_tenants();
revoke all on outbox.unmatched_event_type from public;
comment on view outbox.unmatched_event_type is
'Event types that were routed to no subscription since the statistics began, the 256 seen last on the server: perhaps the pattern of a subscription has a slip of the pen, or the subscription was made after the event. Cost: reads shared memory.';

create view outbox.snapshot_holder as
select h.kind,
       h.name,
       h.pid,
       h.since,
       h.xids_behind
from (
    select 'session' as kind,
           coalesce(nullif(a.application_name, ''), a.backend_type) as name,
           a.pid,
           a.xact_start as since,
           greatest(age(a.backend_xmin), age(a.backend_xid)) as xids_behind
    from pg_catalog.pg_stat_activity a
    where (a.backend_xmin is not null or a.backend_xid is not null) and a.pid <> pg_backend_pid()
    union all
    select 'prepared transaction', p.gid, null, p.prepared, age(p.transaction)
    from pg_catalog.pg_prepared_xacts p
    union all
    select 'replication slot', r.slot_name::text, r.active_pid, null, greatest(age(r.xmin), age(r.catalog_xmin))
    from pg_catalog.pg_replication_slots r
    where r.xmin is not null or r.catalog_xmin is not null
    union all
    select 'standby', w.application_name, w.pid, null, age(w.backend_xmin)
    from pg_catalog.pg_stat_replication w
    where w.backend_xmin is not null) h
where outbox.sees_all_tenants()
order by h.xids_behind desc nulls last, h.since;
revoke all on outbox.snapshot_holder from public;
comment on view outbox.snapshot_holder is
'Who keeps vacuum from removing dead rows, the worst first, and of equal ones the oldest: a session (its application_name), a prepared transaction, a replication slot or a standby; since when, and how many transaction ids behind. since is null for sessions of other roles unless the reader is a member of pg_read_all_stats.';

create function outbox.oldest_since(xid xid8)
returns timestamptz
language c
stable strict
cost 100
as 'MODULE_PATHNAME', 'outbox_oldest_since';
revoke all on function outbox.oldest_since(xid8) from public;
comment on function outbox.oldest_since(xid8) is
'Internal: when the oldest event was published that was written by this or a later transaction; null when there is none. A probe of each segment that is still written to.';

create view outbox.server_metrics as
select outbox.is_held() as held,
       current_setting('outbox.dispatch') = 'on' as dispatch,
       coalesce(p.router_running, false) as router_running,
       p.workers_wanted,
       p.workers_running,
       coalesce(c.routed, 0) as routed_total,
       coalesce(c.unmatched, 0) as unmatched_total,
       greatest(0, extract(epoch from outbox.clock() - outbox.oldest_since(coalesce(last.seen, '0'))))::float8 as router_lag_seconds,
       holders.xids_behind as oldest_snapshot_xids,
       extract(epoch from clock_timestamp() - holders.since)::float8 as oldest_snapshot_seconds
from (
    select bool_or(l.process = 'router' and l.pid is not null) as router_running,
           max(l.workers_wanted) as workers_wanted,
           max(l.workers_running) as workers_running
    from outbox.process_list() l) p
left join outbox.counters() c on c.subscription_id = 0
left join (
    select pg_snapshot_xmax(t.target) as seen
    from outbox.tick t
    order by t.incarnation desc, t.tick desc, t.chunk desc
    limit 1) last on true
cross join (select max(h.xids_behind) as xids_behind, min(h.since) as since from outbox.snapshot_holder h) holders
where outbox.sees_all_tenants();
revoke all on outbox.server_metrics from public;
comment on view outbox.server_metrics is
'One row: how the processes of this database stand. held: waits for outbox.activate(). routed_total: deliveries put into lanes, unmatched_total: events that no subscription matched, both since the statistics began. router_lag_seconds: since the oldest event was published that the router has not looked at, 0 when there is none. oldest_snapshot_*: what outbox.snapshot_holder shows of the worst. Cost: an index probe a segment that is still written to, and a look at the server''s sessions.';
