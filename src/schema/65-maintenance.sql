-- ---------------------------------------------------------------------------
-- Upkeep: what goes when its time is up.
-- ---------------------------------------------------------------------------

create procedure outbox.maintain()
language c
as 'MODULE_PATHNAME', 'outbox_maintain';
revoke all on procedure outbox.maintain() from public;
comment on procedure outbox.maintain() is
'Does at once what the router does by itself every few minutes: makes segments ahead, takes those older than outbox.retention out of the log and their tables off the disk, these in small steps with rests between, and trims what nobody reads any more or what is older than its window. Each step commits, so a run that is ended early has lost nothing; it ends by itself after four minutes, or within statement_timeout. Of two runs at once, the second ends with a notice. A task that fails is a warning and does not stop the others. What came of it: outbox.maintenance_status.
Errors: 25001 called inside a transaction block; 25006 on a standby.';

create function outbox.schedule_maintenance(schedule text default '*/5 * * * *')
returns bigint
language c
as 'MODULE_PATHNAME', 'outbox_schedule_maintenance';
revoke all on function outbox.schedule_maintenance(text) from public;
comment on function outbox.schedule_maintenance(text) is
'Has pg_cron run outbox.maintain(), as the caller; only needed where outbox.dispatch is off, since the router does the same by itself. schedule: as pg_cron takes it. Returns the id of the job, named "outbox maintenance"; called again it changes that job. The job does nothing once the extension is dropped; end it with cron.unschedule(''outbox maintenance''). pg_cron keeps a row of each run in cron.job_run_details, which is yours to trim.
Errors: 0A000 pg_cron is not installed, or lives in another database (the hint has the statement to run there); 42501 the caller may not use pg_cron.';

create view outbox.maintenance_status as
select m.task,
       m.last_run,
       m.last_success,
       m.last_error_at,
       m.last_error,
       m.last_error_at is not null and (m.last_success is null or m.last_success < m.last_error_at) as failing,
       m.removed,
       m.removed_total,
       m.kept,
       m.kept_why
from outbox.maintenance m
where outbox.sees_all_tenants();
revoke all on outbox.maintenance_status from public;
comment on view outbox.maintenance_status is
'What upkeep did last, one row a task. last_error: an SQLSTATE, and when (last_error_at); failing: the last run of the task ended so. removed: rows, segments or (retired tables) tables in the last run that was recorded, removed_total: since the extension was installed. kept: segments (or events, deliveries, tables) that are past their time and had to stay, and kept_why. Tasks: segments ahead, sealing, lanes, rights, ticks, leases, parked events, archive, events, receipts, kept events, batches, retired tables (those of dropped segments, which leave the disk in steps), attempts, discarded deliveries, deduplication, consumed messages, reviews (deliveries that have required a review for longer than outbox.review_retention; they are never removed).
Empty for a session of one tenant. Cost: a scan of some dozen rows.';
