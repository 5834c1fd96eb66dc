-- ---------------------------------------------------------------------------
-- One page for a person: what runs, what is stuck and since when, and the next thing to do.
-- ---------------------------------------------------------------------------

create function outbox.ago(at timestamptz)
returns text
language sql stable strict
return
    case when outbox.clock() - at < interval '1 minute' then round(greatest(0, extract(epoch from outbox.clock() - at))) || ' s'
         when outbox.clock() - at < interval '2 hours' then round(extract(epoch from outbox.clock() - at) / 60) || ' min'
         when outbox.clock() - at < interval '2 days' then round(extract(epoch from outbox.clock() - at) / 3600) || ' h'
         else round(extract(epoch from outbox.clock() - at) / 86400) || ' days' end;
revoke all on function outbox.ago(timestamptz) from public;
comment on function outbox.ago(timestamptz) is 'Internal: how long ago, for a person.';

create function outbox.status()
returns setof text
language sql volatile
security definer set search_path = pg_catalog, pg_temp
begin atomic
    select outbox.require_all_tenants('outbox.status()');
    with server as materialized (
        select s.*, (select d.datistemplate from pg_catalog.pg_database d where d.datname = current_database()) as template
        from outbox.server_metrics s
    ), subscription as materialized (
        select s.subscription, s.handler, s.paused, s.backlog, s.oldest_waiting_at, s.delayed, s.retry, s.in_progress, s.blocked,
               s.review_required, s.outage_until, s.stopped_at, s.stopped_code, s.stopped_reason, s.catching_up,
               case when v.held then 'held'
                    when not v.dispatch and s.handler is not null then 'dispatch is off'
                    when s.paused then 'paused'
                    when s.stopped_at is not null then 'stopped'
                    when s.outage_until > outbox.clock() then 'outage'
                    when s.catching_up then 'catching up'
                    when s.handler is null then 'claimed by workers outside'
                    else 'works' end as state
        from outbox.subscription_status s
        cross join server v
    ), upkeep as materialized (
        select * from outbox.maintenance_status
    ), name as materialized (
        select greatest(32, max(length(subscription))) as width from subscription having count(*) > 0
    ), stray as materialized (
        -- tables of segments that outbox.segment does not tell of; nobody minds those that are empty
        select c.oid, regexp_replace(c.relname, '^[a-z]+_log_', '') as day
        from pg_inherits i
        join pg_class c on c.oid = i.inhrelid
        where i.inhparent in ('outbox.event_log'::regclass, 'outbox.receipt_log'::regclass) and c.relname !~ '_kept$'
          and not exists (select from outbox.segment s where c.relname in ('event_log_' || s.name, 'receipt_log_' || s.name))
    ), unknown_day as materialized (
        select distinct day from stray where pg_relation_size(oid) > 0
    ), advice (urgency, line) as (
        select 0, 'This server is a standby: nothing runs here, and nothing can be changed. What follows is to be done on the primary, or here once it is promoted: select pg_promote();'
        where pg_is_in_recovery()
        union all
        select 1, 'This database was restored or copied from another server: nothing is routed or delivered. When this copy is to live: select outbox.activate();'
        from server where held
        union all
        select 1, format('The log has tables with rows of %s (%s) that outbox.segment does not tell of, as after a restore in part: publishing fails with 42P07 on such a day. While a restore is under way, wait for its end; otherwise restore again, with all of schema outbox; or, when what is in them is not needed: drop table if exists %s;',
                         case count(*) when 1 then '1 day' else count(*) || ' days' end, string_agg(day, ', ' order by day),
                         string_agg(format('outbox.%I, outbox.%I', 'event_log_' || day, 'receipt_log_' || day), ', ' order by day))
        from unknown_day having count(*) > 0
        union all
        select 1, format('This database is a template, and no process serves a template: nothing is routed or delivered. To go on: alter database %I is_template false;', current_database())
        from server where template and not pg_is_in_recovery()
        union all
        select 2, 'outbox.dispatch is off: nothing is delivered. To go on: alter system set outbox.dispatch = on; select pg_reload_conf();'
        from server where not dispatch
        union all
        select 2, 'outbox.workers is 0: no handler is run. To go on: alter system set outbox.workers = 2; select pg_reload_conf();'
        from server where dispatch and workers_wanted = 0 and exists (select from subscription where handler is not null)
        union all
        select 3, 'The router does not run: no event is passed on. Look for a free slot (max_worker_processes) and into the server''s log.'
        from server where dispatch and not router_running and not held and not template and not pg_is_in_recovery()
        union all
        select 4, format('Only %s of %s workers run. Raise max_worker_processes, or lower outbox.workers.', workers_running, workers_wanted)
        from server where dispatch and workers_running < workers_wanted and not held and not template and not pg_is_in_recovery()
        union all
        select 4, format('The router is %s behind: what was published since then is in no lane yet. If there is much of it, this gets less; else its rounds fail, and the server''s log says why: a full disk, for one.',
                         outbox.ago(outbox.clock() - router_lag_seconds * interval '1 second'))
        from server where dispatch and router_running and router_lag_seconds > 60 and not held and not pg_is_in_recovery()
        union all
        select 4, format('Upkeep fails since %s: task "%s", code %s. Look: select * from outbox.maintenance_status where failing; the server''s log has when. It is tried again every few minutes, or now: call outbox.maintain();',
                         outbox.ago(coalesce(last_success, last_error_at)), task, last_error)
        from upkeep where failing
        union all
        select 4, format('Upkeep has not been done since %s: nothing is removed, and no segments are made ahead. %s', outbox.ago(max(last_run)),
                         case when bool_and(dispatch) then 'The router does it; see whether it runs.' else 'Where outbox.dispatch is off, a scheduler has to: select outbox.schedule_maintenance(); or now: call outbox.maintain();' end)
        from upkeep cross join server where not held and not pg_is_in_recovery()
        having max(last_run) < outbox.clock() - interval '1 hour'
        union all
        select 5, format('Subscription "%s" stands still since %s: %s. It goes on by itself when that is put right.', subscription, outbox.ago(stopped_at), stopped_reason)
        from subscription where stopped_at is not null and stopped_code is distinct from 'incomplete'
        union all
        select 5, format('Subscription "%s" waits for you since %s: %s. Is the restore complete? What has no receipt is delivered again after: select outbox.resume(%L);',
                         subscription, outbox.ago(stopped_at), stopped_reason, subscription)
        from subscription where stopped_code = 'incomplete'
        union all
        select 6, format('Subscription "%s" pauses: too many deliveries failed for a reason that may pass. It tries again in %s s; see what fails: select * from outbox.failure_metrics where subscription = %L;',
                         subscription, ceil(extract(epoch from outage_until - outbox.clock())), subscription)
        from subscription where outage_until > outbox.clock()
        union all
        select 7, format('In review in "%s": %s, the oldest since %s%s. Look: select * from outbox.review_required where subscription = %L; mend the cause, then select outbox.retry_all(%L); or give one up with outbox.discard().',
                         s.subscription, s.review_required, outbox.ago(x.failed_at),
                         case when s.blocked > 0 then format('; events of blocked keys: %s', s.blocked) end, s.subscription, s.subscription)
        from subscription s
        cross join lateral (
            select min(d.failed_at) as failed_at
            from outbox.delivery_exception d
            where d.subscription_id = (select o.subscription_id from outbox.subscription o where o.subscription = s.subscription)
              and d.status = 'REVIEW_REQUIRED') x
        where s.review_required > 0
        union all
        select 7, format('Waiting for a person too long: %s. Look: select * from outbox.review_required order by failed_at limit 20;', kept_why)
        from upkeep where task = 'reviews' and kept > 0
        union all
        select 8, format('Waiting for "%s", which is paused: %s, the oldest since %s. To go on: select outbox.resume(%L);', subscription, backlog, outbox.ago(oldest_waiting_at), subscription)
        from subscription where paused and backlog > 0
        union all
        select 9, format('Waiting for "%s", which nobody claims: %s, the oldest since %s. Start its workers, or remove it: select outbox.unsubscribe(%L, force => true);', subscription, backlog, outbox.ago(oldest_waiting_at), subscription)
        from subscription where handler is null and not paused and state <> 'held' and backlog > 0 and in_progress = 0 and oldest_waiting_at < outbox.clock() - interval '1 minute'
        union all
        select 10, format('Waiting for "%s": %s, the oldest since %s. If that grows: a quicker handler, a batch handler, more lanes, or more outbox.workers.', subscription, backlog, outbox.ago(oldest_waiting_at))
        from subscription where state = 'works' and oldest_waiting_at < outbox.clock() - interval '1 minute'
        union all
        select 11, format('No subscription took events of type %s: %s, the last one %s ago. A slip of the pen in a pattern? select outbox.matching_subscriptions(%L);', event_type, events, outbox.ago(last_seen_at), event_type)
        from outbox.unmatched_event_type where last_seen_at > outbox.clock() - interval '1 day'
        union all
        select 12, format('A %s (%s%s) keeps vacuum from removing dead rows%s. When you know whose it is%s', kind, name, coalesce(', pid ' || pid, ''), coalesce(' since ' || outbox.ago(since), ''),
                          case kind when 'session' then format(': select pg_terminate_backend(%s);', pid)
                               when 'prepared transaction' then format(', in its database: rollback prepared %L;', name)
                               when 'replication slot' then format(', and nobody is to read it any more: select pg_drop_replication_slot(%L);', name)
                               else ', end it.' end)
        from outbox.snapshot_holder
        -- a slot does not tell since when; one that is read by nobody for a moment is none
        where since < clock_timestamp() - interval '1 hour' or kind = 'replication slot' and pid is null and xids_behind > 100000
        union all
        select 13, format('Past their time and still on the disk, task "%s": %s (%s). What each means, and what to do: doc/runbook.md, "The disk fills up".', task, kept, left(kept_why, 300))
        from upkeep where task in ('archive', 'events', 'receipts', 'retired tables') and kept > 0
    ), line (part, n, line) as (
        select 1, 0::bigint, format('outbox %s, database "%s", %s', e.extversion, current_database(), to_char(outbox.clock(), 'YYYY-MM-DD HH24:MI:SS TZ'))
        from pg_catalog.pg_extension e where e.extname = 'outbox'
        union all
        select 2, 0, format('router %s, %s of %s workers running%s', case when router_running then 'running' else 'not running' end, workers_running, workers_wanted,
                            case when router_lag_seconds > 1 then format(', router %s s behind', round(router_lag_seconds)) else '' end)
        from server
        union all
        select 3, 0, ''
        union all
        select 4, 0, format('%-*s %10s %10s %8s %8s %8s %8s  %s', width, 'subscription', 'backlog', 'oldest', 'working', 'retry', 'blocked', 'review', 'state')
        from name
        union all
        select 5, row_number() over (order by subscription),
               format('%-*s %10s %10s %8s %8s %8s %8s  %s', width, subscription, backlog, coalesce(outbox.ago(oldest_waiting_at), '-'), in_progress, retry, blocked, review_required, state)
        from subscription cross join name
        union all
        select 5, 0, 'There is no subscription yet: select outbox.subscribe(...);' where not exists (select from subscription)
        union all
        select 6, 0, ''
        union all
        select 7, row_number() over (order by urgency, line), format('%s. %s', row_number() over (order by urgency, line), line)
        from advice
        union all
        select 8, 0, 'Nothing needs a person.' where not exists (select from advice where urgency < 11)
    )
    select line.line from line order by part, n;
end;
revoke all on function outbox.status() from public;
comment on function outbox.status() is
'One page of text for a person: what runs, how each subscription stands, what is stuck and since when, and the next thing to do, the most urgent first. Cost: that of outbox.subscription_status. Errors: 42501 in a session of one tenant (outbox.tenant_setting).';
