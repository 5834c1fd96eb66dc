-- ---------------------------------------------------------------------------
-- The processes that serve this database.
-- ---------------------------------------------------------------------------

create function outbox.process_list(
    out process text,
    out number integer,
    out pid integer,
    out state text,
    out subscription_id integer,
    out lane integer,
    out event_id uuid,
    out busy_since timestamptz,
    out role_id oid,
    out workers_wanted integer,
    out workers_running integer,
    out replay_no integer)
returns setof record
language c volatile
as 'MODULE_PATHNAME', 'outbox_process_list';
revoke all on function outbox.process_list() from public;
comment on function outbox.process_list() is
'Internal: what outbox.worker_status shows, read from shared memory.';

create view outbox.worker_status as
select p.process,
       p.number,
       p.pid,
       p.state,
       s.subscription,
       p.lane,
       p.event_id,
       p.busy_since,
       r.rolname::pg_catalog.text as role_name,
       p.workers_wanted,
       p.workers_running
from outbox.process_list() p
left join outbox.subscription s on s.subscription_id operator(pg_catalog.=) p.subscription_id
left join pg_catalog.pg_roles r on r.oid operator(pg_catalog.=) p.role_id
where outbox.sees_all_tenants()
order by p.process, p.number;
revoke all on outbox.worker_status from public;
comment on view outbox.worker_status is
'The processes of this database, one row each, also for those that are wanted but not there. Read from shared memory: cheap, and not a snapshot. A session of one tenant sees none of it. Its reader needs EXECUTE on outbox.process_list() too.';
comment on column outbox.worker_status.process is 'router or worker';
comment on column outbox.worker_status.number is 'of a worker, from 1';
comment on column outbox.worker_status.pid is 'process id, as in pg_stat_activity; null: no process, or not yet started';
comment on column outbox.worker_status.state is
'idle, running, starting; missing: wanted, but there is none (no free slot of max_worker_processes, just ended, or the server is a standby); off: outbox.dispatch is off';
comment on column outbox.worker_status.subscription is 'whose batch a worker has at hand';
comment on column outbox.worker_status.lane is 'the lane of that batch';
comment on column outbox.worker_status.event_id is 'the event at hand';
comment on column outbox.worker_status.busy_since is 'start of what it does just now; null: idle';
comment on column outbox.worker_status.role_name is 'the role whose handlers the worker has run; another role gets another process';
comment on column outbox.worker_status.workers_wanted is 'outbox.workers, or 0 when outbox.dispatch is off';
comment on column outbox.worker_status.workers_running is 'workers that are there';

-- Called once, here: when CREATE EXTENSION commits, the launcher looks at this database.
create function outbox.announce_database()
returns boolean
language c volatile
as 'MODULE_PATHNAME', 'outbox_announce_database';
revoke all on function outbox.announce_database() from public;
comment on function outbox.announce_database() is
'Internal: tells the launcher, when the transaction commits, to look whether the extension is in this database.';

select outbox.announce_database();
