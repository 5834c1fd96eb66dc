-- outbox.maintain() and outbox.schedule_maintenance() as one session sees them; what they do to segments is
-- in the TAP tests.
set client_min_messages = warning;
create extension if not exists outbox;
reset client_min_messages;
\set SHOW_CONTEXT never
select count(outbox.publish('mt.first'));

-- not where it could not commit
begin;
call outbox.maintain();
rollback;
create function pg_temp.inside() returns void language plpgsql as 'begin call outbox.maintain(); end';
select pg_temp.inside();
do $$ begin call outbox.maintain(); end $$;
do $$ begin call outbox.maintain(); exception when others then raise; end $$;

-- every task, by name
call outbox.maintain();
select task, last_run = last_success as well, failing, last_error, kept, kept_why from outbox.maintenance_status order by task collate "C";
select count(*) >= 30 as segments_ahead from outbox.segment where to_id > (select event_id from outbox.event order by event_id desc limit 1);

-- keys of deduplication, past their window
select count(outbox.publish('mt.x', dedup_key => 'mt ' || n)) from generate_series(1, 1000) n;
update outbox.dedup set published_at = published_at - interval '8 days' where event_type = 'mt.x' and dedup_key < 'mt 5';
call outbox.maintain();
select count(*), min(dedup_key) from outbox.dedup where event_type = 'mt.x';

-- pg_cron is not here
select outbox.schedule_maintenance();
select outbox.schedule_maintenance(null);

-- nobody else may
create role mt_nobody;
grant usage on schema outbox to mt_nobody;
set role mt_nobody;
call outbox.maintain();
select outbox.schedule_maintenance();
select * from outbox.maintenance_status;
reset role;
revoke usage on schema outbox from mt_nobody;
drop role mt_nobody;
