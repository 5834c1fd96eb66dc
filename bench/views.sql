-- What a server that has lived for a month holds, written straight into the tables: psql -v rows=EVENTS -v review=DELIVERIES.
--
-- Three subscriptions: works, whose deliveries are completed, and whose lanes have 167,000 open ones before them; fails, in which
-- every key has a delivery in review, so that each has a gate, and one in ten keys has later events parked behind it; claimed,
-- whose external workers hold leases.  Beside them what retries, was discarded, is delayed, has been deduplicated, was done by hand.

\set per_segment :rows / 30
\set review_per_segment :review / 30
\set backlog 200000

-- an id in a segment: its first one's milliseconds, and n
create function bench.id_in(from_id uuid, n bigint) returns uuid language sql immutable return
    (lpad(to_hex(('x' || left(replace(from_id::text, '-', ''), 12))::bit(48)::bigint + n), 12, '0') || '7000' || '8000' || lpad(to_hex(n), 12, '0'))::uuid;

-- the first 30 segments, numbered
create table bench.segment as
    select row_number() over (order by from_id)::integer as i, from_id, name, ('x' || left(replace(from_id::text, '-', ''), 12))::bit(48)::bigint * 4096 as from_time
    from (select from_id, name from outbox.segment order by from_id limit 30) oldest;

-- the key of event n of a segment, and the lane of a key, of 16
create function bench.key_of(segment integer, n bigint) returns text language sql immutable return
    case when segment = 30 and n > :review_per_segment * 1.1 and n between :per_segment - 5000 and :per_segment - 1 then 'task:1:1'
         when n between :review_per_segment + 1 and :review_per_segment * 1.1 then 'task:' || segment || ':' || (n - :review_per_segment) * 10
         else 'task:' || segment || ':' || n end;
create function bench.key_hash(tenant text, key text) returns bigint language c immutable as '$libdir/outbox', 'outbox_test_key_hash';
create function bench.lane_of(key text) returns integer language sql immutable return (bench.key_hash('tenant-1', key) & 15)::integer;

create table bench.of as
    select (select subscription_id from outbox.subscription where subscription = 'fails') as fails,
           (select subscription_id from outbox.subscription where subscription = 'works') as works,
           (select subscription_id from outbox.subscription where subscription = 'claimed') as claimed;

-- events: those in review have a key each, and are followed by one event for every tenth of these keys
select format($sql$
    insert into outbox.event_log_%1$s
    select bench.id_in(%2$L, n), 'bench.type' || n %% 5, '1', 'task', n::text,
           bench.key_of(%3$s, n),
           'tenant-1', null, null, 'r', 't', null, null, null, at, at, null, case when n %% 5 = 0 then 'd' || n end, null, bench.payload(), '3'::xid8, 1
    from (select n, to_timestamp(%4$s / 4096000 + n / 1000.0) as at from generate_series(1, %5$s) n) each
    $sql$, name, from_id, i, from_time, :per_segment)
from bench.segment order by i
\gexec

-- completed, by 100
select format($sql$
    insert into outbox.receipt_log_%1$s
    select bench.id_in(%2$L, n), %3$s::bigint + (n - 1) / 100, o.works, 0, case when n %% 50 = 0 then 2 else 1 end, (n - 1) %% 100, null
    from bench.of o, generate_series(1, %4$s) n
    $sql$, name, from_id, from_time, :per_segment)
from bench.segment order by i
\gexec

insert into outbox.batch (batch_id, subscription_id, started_at, completed_at, events, processing_us, worker, first_event, last_event)
select s.from_time + n - 1, o.works, to_timestamp(s.from_time / 4096000 + n / 10.0), to_timestamp(s.from_time / 4096000 + n / 10.0), 100, array_fill(300, array[100]), 'worker 1',
       bench.id_in(s.from_id, n * 100 - 99), bench.id_in(s.from_id, n * 100)
from bench.of o, bench.segment s, generate_series(1, (:per_segment + 99) / 100) n;

-- in review: a trigger counts them one by one, and upkeep adds that up; this is what comes of it, and what ten seconds leave
alter table outbox.delivery_exception disable trigger count_exceptions;
insert into outbox.delivery_exception (subscription_id, event_id, lane, position, status, attempts, tenant_id, event_key, error_code, first_failed_at, failed_at, worker)
select o.fails, bench.id_in(s.from_id, n), bench.lane_of(bench.key_of(s.i, n)), (s.i - 1) * :per_segment + n, 'REVIEW_REQUIRED', 6, 'tenant-1', bench.key_of(s.i, n), '23514', at, at, 'worker 1'
from bench.of o, bench.segment s, generate_series(1, :review_per_segment) n, to_timestamp(s.from_time / 4096000 + n / 1000.0) at;
-- that retry, that were given up, and that are at work: of the newest events
insert into outbox.delivery_exception (subscription_id, event_id, lane, position, status, attempts, next_attempt_at, tenant_id, event_key, error_code, started_at, first_failed_at, failed_at, worker, gate_released)
select o.works, bench.id_in(s.from_id, n), bench.lane_of('task:' || s.i || ':' || n), (s.i - 1) * :per_segment + n, status, 2, case when status = 'RETRY' then outbox.clock() + n * interval '1 second' end, 'tenant-1', 'task:' || s.i || ':' || n, '40001',
       case when status = 'IN_PROGRESS' then outbox.clock() end, outbox.clock(), outbox.clock(), 'worker 1', true
from bench.of o, bench.segment s, generate_series(1, 20000) n, lateral (select case when n % 4 = 0 then 'DISCARDED' when n % 400 = 1 then 'IN_PROGRESS' else 'RETRY' end as status) x
where s.i = 29;
alter table outbox.delivery_exception enable always trigger count_exceptions;
insert into outbox.exception_count
select row_number() over (), * from (
    select x.subscription_id, x.status, case when x.status = 'REVIEW_REQUIRED' then 'bench.type' || x.position % 5 else '' end, count(*) from outbox.delivery_exception x group by 1, 2, 3) counted;
insert into outbox.exception_count
select 1000 + n, o.works, case when n % 2 = 0 then 'IN_PROGRESS' else 'RETRY' end, '', case when n % 4 < 2 then 1 else -1 end from bench.of o, generate_series(1, 10000) n;

insert into outbox.attempt_log (subscription_id, event_id, replay_no, attempt, started_at, failed_at, worker, error_code)
select x.subscription_id, x.event_id, 0, 1, x.first_failed_at, x.first_failed_at, x.worker, x.error_code from outbox.delivery_exception x;

-- the gates of their keys, and what is parked behind one in ten
insert into outbox.gate (subscription_id, lane, tenant_id, event_key, held_by, through, created_at)
select x.subscription_id, x.lane, x.tenant_id, x.event_key, x.event_id, x.position, x.first_failed_at
from outbox.delivery_exception x where x.status <> 'DISCARDED';
insert into outbox.parked (gate_id, position, event_id)
select g.gate_id, (s.i - 1) * :per_segment + :review_per_segment + n, bench.id_in(s.from_id, :review_per_segment + n)
from bench.of o, bench.segment s, generate_series(1, :review_per_segment / 10) n, outbox.gate g
where g.subscription_id = o.fails and g.lane = bench.lane_of(bench.key_of(s.i, n * 10)) and g.tenant_id = 'tenant-1' and g.event_key = bench.key_of(s.i, n * 10);
-- of one key more, and some keys that were opened a moment ago
insert into outbox.parked (gate_id, position, event_id)
select g.gate_id, 30 * :per_segment + n, bench.id_in(s.from_id, :per_segment - n)
from bench.of o, bench.segment s, outbox.gate g, generate_series(1, 5000) n where s.i = 30 and g.subscription_id = o.fails and g.event_key = 'task:1:1';
update outbox.gate set held_by = null where gate_id in (select g.gate_id from outbox.gate g join outbox.parked p on p.gate_id = g.gate_id order by g.gate_id desc limit 100);

-- lanes: what upkeep has not trimmed yet, cursors, and the open ones; each event in the lane of its key, written lane by lane as the router does
insert into outbox.lane_entry (subscription_id, lane, position, event_id, event_tid)
select s.subscription_id, e.lane, 1000000 + row_number() over (partition by s.subscription_id, e.lane order by e.n), e.event_id, '(0,1)'
from outbox.subscription s, (select n, bench.id_in(g.from_id, n) as event_id, bench.lane_of(bench.key_of(g.i, n)) as lane from bench.segment g, generate_series(1, :backlog) n where g.i = 29) e
order by e.n / 5000, s.subscription_id, e.lane, e.n;
insert into outbox.lane_cursor (subscription_id, lane, position)
select c.subscription_id, c.lane, case when c.subscription = 'fails' then 100000000 else c.position end
from (select s.subscription, e.subscription_id, e.lane, e.position, max(e.position) over (partition by e.subscription_id, e.lane) as last
      from outbox.lane_entry e join outbox.subscription s using (subscription_id)) c
where c.position % 6 = 0 or c.position = c.last on conflict do nothing;
insert into outbox.lane_entry (subscription_id, lane, position, event_id, event_tid)
select s.subscription_id, e.lane, c.done + row_number() over (partition by s.subscription_id, e.lane order by e.n), e.event_id, '(0,1)'
from outbox.subscription s, (select n, bench.id_in(g.from_id, n) as event_id, bench.lane_of(bench.key_of(g.i, n)) as lane
                             from bench.segment g, generate_series(1, least(:backlog, :per_segment)) n where g.i = 30) e,
     lateral (select max(c.position) as done from outbox.lane_cursor c where c.subscription_id = s.subscription_id and c.lane = e.lane) c
where s.subscription <> 'fails'
order by e.n / 5000, s.subscription_id, e.lane, e.n;

-- claims of the last minutes, of which all but a hundred have ended
insert into outbox.lease (token, subscription_id, incarnation, claim_xid, worker, claimed_at, expires_at, events, event_ids, lanes, positions)
select gen_random_uuid(), o.claimed, 1, '3', 'w' || n % 8, outbox.clock(), outbox.clock() + interval '1 hour' + n * interval '1 ms', 100,
       array(select bench.id_in(g.from_id, n % 1000 * 100 + m) from bench.segment g, generate_series(1, 100) m where g.i = 28), array_fill(n % 16, array[100]), array(select m from generate_series(1, 100) m)
from bench.of o, generate_series(1, 5100) n;
insert into outbox.batch (batch_id, subscription_id, started_at, completed_at, events, processing_us, worker, first_event, last_event, lease_id, settled)
select s.from_time + 1000000 + l.lease_id, l.subscription_id, l.claimed_at, l.claimed_at, 100, '{300}', l.worker, l.event_ids[1], l.event_ids[100], l.lease_id, array(select generate_series(0, 99)::smallint)
from outbox.lease l, bench.segment s where s.i = 30 and l.lease_id <= (select max(lease_id) - 100 from outbox.lease);
insert into outbox.lane_lease select l.subscription_id, l.lanes[1], l.lease_id from outbox.lease l;

insert into outbox.delayed select outbox.clock() + n * interval '1 min', bench.id_in(s.from_id, n), o.works from bench.of o, bench.segment s, generate_series(1, 50000) n where s.i = 27;
insert into outbox.exception_count select 100000, o.works, 'DELAYED', '', 50000 from bench.of o;
insert into outbox.dedup select 'tenant-1', 'bench.type' || n % 5, 'd' || n, gen_random_uuid(), gen_random_uuid(), outbox.clock() from generate_series(1, :rows / 20) n;
insert into outbox.consumed select 'tenant-1', 'bench', n::text, outbox.clock() from generate_series(1, :rows / 50) n;
insert into outbox.tick select t.incarnation, t.tick + n, 0, t.seen, t.target, null, 100, t.created_at from (select * from outbox.tick order by incarnation desc, tick desc, chunk desc limit 1) t, generate_series(1, 20000) n;
insert into outbox.operator_entry (at, role_name, action, subscription, event_id, reason) select outbox.clock() - n * interval '1 min', 'anna', 'discard', 'fails', gen_random_uuid(), 'a duplicate of the order' from generate_series(1, 20000) n;
select count(outbox.define_event_type('bench.type' || n, '1', array['title'], description => 'one of two hundred')) as defined from generate_series(1, 200) n;
