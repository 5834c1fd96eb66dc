-- What the views show, in each state a delivery can be in.
-- The rows are made by hand, for subscriptions that no worker serves.
set client_min_messages = warning;
create extension if not exists outbox;
reset client_min_messages;
set timezone = 'UTC';
set datestyle = iso;

-- The public views: no payload, and no type that a driver may not know.
select c.relname, a.attname, format_type(a.atttypid, a.atttypmod) as type
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
where c.relnamespace = 'outbox'::regnamespace
  and c.relname in ('delivery', 'attempt', 'review_required', 'blocked_key', 'subscription_status', 'operator_log')
order by c.relname, a.attnum;
-- all have a comment, and none is granted to anyone
select c.relname
from pg_class c
where c.relnamespace = 'outbox'::regnamespace and c.relkind = 'v'
  and (obj_description(c.oid, 'pg_class') is null or exists (select from aclexplode(c.relacl) where grantee <> c.relowner));
select p.proname
from pg_proc p
where p.pronamespace = 'outbox'::regnamespace and obj_description(p.oid, 'pg_proc') is null;

begin;
select outbox.subscribe('vw a', '{vw.nothing}', max_attempts => 4, lanes => 1);
select outbox.subscribe('vw b', '{vw.nothing}', lanes => 1, ordering => 'none');
create temp table sample as
select label, outbox.publish('vw.sample', '{"remark": 1}', aggregate_type => 'thing', aggregate_id => label, event_key => key, tenant_id => tenant,
                             request_id => 'request ' || label, trace_id => repeat('a', 32), correlation_id => 'c', dedup_key => 'dedup ' || label,
                             deliver_at => case label when 'delayed' then timestamptz '2031-01-01' end) as event_id
from (values ('completed', 'k1', 't1'), ('pending', 'k2', null), ('retry', 'k3', 't1'), ('blocked 1', 'k3', 't1'), ('in review', 'k4', 't2'),
             ('blocked 2', 'k4', 't2'), ('blocked 3', 'k4', 't2'), ('discarded', 'k5', null), ('opened', 'k5', null), ('started', 'k6', null),
             ('delayed', 'k7', null)) v (label, key, tenant);
create temp view id as
select s.subscription_id as a, t.subscription_id as b from outbox.subscription s, outbox.subscription t
where s.subscription = 'vw a' and t.subscription = 'vw b';
create function pg_temp.event(of text) returns uuid language sql as 'select event_id from sample where label = of';

-- completed, in a batch of two calls
insert into outbox.batch select 9223372036854775807, a, '2026-01-01 10:00', '2026-01-01 10:00:01', 2, '{1500,2500}', 'worker 1', pg_temp.event('completed'), pg_temp.event('completed') from id;
do $$
begin
    execute format('insert into outbox.receipt_log_%s (event_id, batch_id, subscription_id, replay_no, attempts, batch_index, message_id) '
                   'select pg_temp.event(''completed''), 9223372036854775807, a, 0, 1, 1, ''m1'' from id',
                   (select name from outbox.segment where pg_temp.event('completed') >= from_id and pg_temp.event('completed') < to_id));
end
$$;
-- in lane 0: completed, retry, blocked 1, in review, blocked 2 and 3, discarded, opened, started are behind the cursor, pending is not
insert into outbox.lane_entry
select a, 0, row_number() over (order by position(label in 'completed retry blocked 1 in review blocked 2 blocked 3 discarded opened started pending')), event_id, '(0,1)'
from sample, id where label not in ('delayed', 'pending');
insert into outbox.lane_entry select a, 0, 10, pg_temp.event('pending'), '(0,1)' from id;
insert into outbox.lane_cursor select a, 0, 5 from id;
insert into outbox.lane_cursor select a, 0, 9 from id;
update outbox.lane set token = gen_random_uuid(), holder = 1, worker = 'worker 2', expires_at = '2030-01-01' from id where subscription_id = a and lane = 0;
-- those that did not go well
insert into outbox.delivery_exception (subscription_id, event_id, lane, position, status, attempts, attempts_before, next_attempt_at, tenant_id, event_key, error_code, error_message, started_at, first_failed_at, failed_at, worker)
select a, event_id, 0, v.position, v.status, v.attempts, v.before, v.next, v.tenant, v.key, '23514', 'message', '2026-01-01', '2026-01-01 11:00', '2026-01-01 12:00', 'worker 1'
from id, (values ('retry', 2, 'RETRY', 2, 0, timestamptz '2030-01-01', 't1', 'k3'), ('in review', 4, 'REVIEW_REQUIRED', 4, 4, null, 't2', 'k4'),
                 ('discarded', 7, 'DISCARDED', 4, 0, null, '', 'k5'), ('started', 9, 'IN_PROGRESS', 1, 0, null, '', 'k6')) v (label, position, status, attempts, before, next, tenant, key)
     join sample using (label);
insert into outbox.attempt_log (subscription_id, event_id, replay_no, attempt, started_at, failed_at, worker, error_code)
select a, pg_temp.event('retry'), 0, n, '2026-01-01 10:00', '2026-01-01 11:00', 'worker 1', '23514' from id, generate_series(1, 2) n;
insert into outbox.gate (subscription_id, lane, tenant_id, event_key, held_by, through, created_at)
select a, 0, v.tenant, v.key, pg_temp.event(v.held_by), v.through, '2026-01-01 13:00'
from id, (values ('t1', 'k3', 'retry', 2), ('t2', 'k4', 'in review', 4), ('', 'k5', null, 7)) v (tenant, key, held_by, through);
insert into outbox.parked
select gate_id, v.position, pg_temp.event(v.label)
from id, (values ('k3', 'blocked 1', 3), ('k4', 'blocked 2', 5), ('k4', 'blocked 3', 6), ('k5', 'opened', 8), ('k5', 'discarded', 7)) v (key, label, position), outbox.gate g
where g.subscription_id = a and g.event_key = v.key;
insert into outbox.delayed select '2031-01-01', pg_temp.event('delayed'), a from id;
insert into outbox.exception_count select -7, a, 'DELAYED', '', 1 from id;
-- which events are open: the first ones that a query asks of are searched for, the others are looked up
select string_agg(label, ', ' order by label) as open from sample where outbox.is_open(event_id);
select bool_and(outbox.is_open(s.event_id) = (s.label not in ('completed', 'in review', 'discarded'))) as same from (select s.* from sample s, generate_series(1, 3) order by label desc) s;
select string_agg(label || case when (select outbox.is_open(s.event_id)) then '' else ' is not' end, ', ' order by label) as each_by_itself from sample s;
do $$ -- an expression that goes on after a change
declare
    open boolean;
    was_open integer[] := '{}';
    was_not integer[] := '{}';
begin
    for i in 1 .. 30 loop
        open := outbox.is_open(pg_temp.event('delayed'));
        if open then was_open := was_open || i; else was_not := was_not || i; end if;
        if i in (4, 28) then delete from outbox.delayed; end if;
        if i = 5 then insert into outbox.delayed select '2031-01-01', pg_temp.event('delayed'), a from id; end if;
    end loop;
    raise notice 'open: %; not: %', was_open, was_not;
    insert into outbox.delayed select '2031-01-01', pg_temp.event('delayed'), a from id;
end $$;
-- the other subscription: everything pending in its one lane
insert into outbox.lane_entry select b, 0, row_number() over (order by event_id), event_id, '(0,1)' from sample, id;

select label, replay_no, tenant_id, status, attempts, next_attempt_at, lease_expires_at, worker, error_code, completed_at, processing_ms, message_id
from outbox.delivery left join sample using (event_id) where subscription = 'vw a'
order by event_id;
select status, count(*) from outbox.delivery where subscription = 'vw b' group by status;
-- one delivery, one row
select subscription, event_id, replay_no, count(*) from outbox.delivery group by 1, 2, 3 having count(*) > 1;

select subscription, label, replay_no, attempt, worker, started_at, failed_at, error_code
from outbox.attempt left join sample using (event_id) where subscription = 'vw a' order by attempt;

\x
select subscription, label, event_type, aggregate_type, aggregate_id, tenant_id, request_id, trace_id, correlation_id, dedup_key, importance, replay_no,
       attempts, max_attempts, error_code, error_message, first_failed_at, failed_at, occurred_at is not null as occurred, published_at is not null as published, blocked_events
from outbox.review_required left join sample using (event_id) where subscription like 'vw %';
\x

select k.subscription, k.tenant_id, k.event_key, label as held_by, k.status, k.blocked_events, k.since
from outbox.blocked_key k left join sample on event_id = held_by where k.subscription like 'vw %' order by k.event_key;

select subscription, paused, backlog, oldest_waiting_at = (select published_at from outbox.event where event_id = pg_temp.event(case subscription when 'vw a' then 'pending' else 'completed' end)) as oldest,
       oldest_delay_seconds between 0 and 60 as delay_ok, delayed, retry, in_progress, blocked, review_required, outage_until, stopped_at, catching_up, held
from outbox.subscription_status where subscription like 'vw %' order by 1;
-- the counts are those of the deliveries
select s.subscription, s.backlog = n.pending and s.delayed + s.retry = n.retry and s.in_progress = n.in_progress and s.blocked = n.blocked and s.review_required = n.review as same
from outbox.subscription_status s
join (select subscription, count(*) filter (where status = 'PENDING') as pending, count(*) filter (where status = 'RETRY') as retry, count(*) filter (where status = 'IN_PROGRESS') as in_progress,
             count(*) filter (where status = 'BLOCKED') as blocked, count(*) filter (where status = 'REVIEW_REQUIRED') as review
      from outbox.delivery group by subscription) n using (subscription)
where s.subscription like 'vw %' order by 1;
-- a subscription that stands still says why
update outbox.subscription_state set stopped_at = '2026-01-01', stopped_code = '42883', stopped_reason = 'no handler', outage_until = '2026-01-02', joined = true from id where subscription_id = a;
select stopped_at, stopped_code, stopped_reason, outage_until, catching_up from outbox.subscription_status where subscription = 'vw a';

-- what people do
select outbox.retry('vw a', pg_temp.event('in review'));
select outbox.retry('vw a', pg_temp.event('in review'));
select status, attempts, attempts_before, next_attempt_at <= clock_timestamp() as due, error_code, first_failed_at
from outbox.delivery_exception where event_id = pg_temp.event('in review');
select outbox.retry('vw a', pg_temp.event('retry'));
select outbox.retry('vw a', pg_temp.event('pending'));
select outbox.retry('vw a', gen_random_uuid());
select outbox.discard('vw a', pg_temp.event('retry'), 'agreed with the customer');
select outbox.discard('vw a', pg_temp.event('retry'), 'again');
select outbox.discard('vw a', pg_temp.event('started'), 'not while it is being tried');
select outbox.discard('vw a', pg_temp.event('completed'), 'done already');
select label, status, attempts, next_attempt_at is not null as due, gate_released from outbox.delivery_exception join sample using (event_id) order by position;
select action, subscription, label, reason from outbox.operator_log left join sample using (event_id) where subscription = 'vw a' order by entry_id;
savepoint s;
select outbox.retry('vw missing', pg_temp.event('retry'));
rollback to s;
select outbox.discard('vw missing', pg_temp.event('retry'), 'x');
rollback to s;
select outbox.discard('vw a', pg_temp.event('retry'), null);
rollback to s;
select outbox.discard('vw a', pg_temp.event('retry'), E' \n');
rollback to s;
select outbox.retry('vw a', null);
rollback to s;
select outbox.retry(null, pg_temp.event('retry'));
rollback to s;
-- drain waits for others, so not here
call outbox.drain();
rollback;

-- However many keys are blocked: of what is parked the first of each subscription is counted. Gates that nothing waits behind do not
-- count as keys, nor do events that are done, or whose gate is gone.
begin;
select outbox.subscribe(name, '{vw.nothing}') from unnest('{vw c, vw d, vw e}'::text[]) name;
create function pg_temp.block(of text, key text, held boolean, done integer, waiting integer) returns void language sql as $$
    with made as (
        insert into outbox.gate (subscription_id, lane, tenant_id, event_key, held_by, through, created_at)
        select subscription_id, 0, '', key, case when held then gen_random_uuid() end, done, now() from outbox.subscription where subscription = of
        returning gate_id)
    insert into outbox.parked select gate_id, n, gen_random_uuid() from made, generate_series(1, done + waiting) n
$$;
create temp view counted as
select s.subscription, s.backlog, s.blocked, m.backlog = s.backlog and m.blocked = s.blocked as same
from outbox.subscription_status s join outbox.metrics m using (subscription) where s.subscription in ('vw c', 'vw d', 'vw e') order by 1;
do $$
begin
    for n in 1 .. 3000 loop
        perform pg_temp.block('vw c', 'c' || n, true, 0, (n % 2));
        perform pg_temp.block('vw d', 'd' || n, true, 0, 1);
    end loop;
    perform pg_temp.block('vw e', 'done', false, 100, 0), pg_temp.block('vw e', 'gone', true, 0, 100), pg_temp.block('vw e', 'opened', false, 100, 30), pg_temp.block('vw e', 'reopened', true, 7, 500);
    delete from outbox.gate where event_key = 'gone';
end $$;
select * from counted;
select pg_temp.block('vw e', 'many', true, 3, 12000);
select pg_temp.block('vw c', 'ready', false, 0, 12000);
select * from counted;
rollback;

-- its arguments
call outbox.drain('{vw missing}');
call outbox.drain('{null}');
call outbox.drain(timeout => '-1 s');
call outbox.drain(timeout => '25 h');
call outbox.drain(timeout => null);
select outbox.activate();

-- of which time a report may be
\set VERBOSITY terse
select outbox.report('-infinity') is null;
select outbox.report(to_time => 'infinity') is null;
select outbox.report('1969-12-31 00:00+00', '2300-01-01') is null;
select outbox.report('2020-01-02', '2020-01-01') is null;
select outbox.report(outbox.clock() + interval '1 hour') is null;
select outbox.report('2020-01-01', '2020-01-01') is null, outbox.report('1970-01-01 00:00+00', '2200-01-01 00:00+00') is null;
\set VERBOSITY default
