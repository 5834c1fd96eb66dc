-- Keys, checks, unique constraints and indexes of our tables:
-- all listed, and each constraint tried to be broken.
set client_min_messages = warning;
create extension if not exists outbox;
reset client_min_messages;
set datestyle = iso;

create temp view our_table as
select c.oid, c.relname
from pg_class c
where c.relnamespace = 'outbox'::regnamespace and c.relkind in ('r', 'p')
  and not exists (select from pg_inherits i where i.inhrelid = c.oid);

create temp view our_constraint as
select t.relname, k.contype, k.conname, k.convalidated, pg_get_constraintdef(k.oid) as definition
from pg_constraint k join our_table t on t.oid = k.conrelid
where k.contype <> 'n';

-- every table has a primary key, but for the parents of the segments
select relname from our_table
where relname not in (select relname from our_constraint where contype = 'p')
order by relname collate "C";

select relname, contype as type, conname, convalidated as valid, definition
from our_constraint
order by relname collate "C", position(contype in 'pufc'), conname collate "C";

-- the other indexes
select c.relname as index, pg_get_indexdef(i.indexrelid) as definition, i.indisvalid and i.indisready as valid
from pg_index i
join our_table t on t.oid = i.indrelid
join pg_class c on c.oid = i.indexrelid
where not exists (select from pg_constraint k where k.conindid = i.indexrelid and k.contype in ('p', 'u'))
order by c.relname collate "C";

-- columns that may be null
select t.relname, string_agg(a.attname, ' ' order by a.attnum) as nullable
from our_table t join pg_attribute a on a.attrelid = t.oid and a.attnum > 0 and not a.attisdropped and not a.attnotnull
group by t.relname
order by t.relname collate "C";

-- text compares byte by byte
select t.relname, a.attname
from our_table t
join pg_attribute a on a.attrelid = t.oid and a.attnum > 0 and a.attcollation <> 0
join pg_collation l on l.oid = a.attcollation
where l.collname <> 'C'
order by 1, 2;

-- none is writable or readable for anyone but the owner
select c.relname, c.relacl
from pg_class c
where c.relnamespace = 'outbox'::regnamespace and c.relkind in ('r', 'p', 'S', 'v')
  and exists (select from aclexplode(c.relacl) where grantee <> c.relowner);

-- something to try it with
begin;
select outbox.subscribe('ct s', '{ct.x}');
select outbox.subscribe('ct t', '{ct.x}');
select outbox.publish('ct.sample') is not null as published;
create temp table id as
select s.subscription_id as s, t.subscription_id as t,
       (select e.event_id from outbox.event e where e.event_type = 'ct.sample') as event
from outbox.subscription s, outbox.subscription t
where s.subscription = 'ct s' and t.subscription = 'ct t';
create temp table segment as
select 'outbox.event_log_' || name as event_log, 'outbox.receipt_log_' || name as receipt_log, from_id, to_id
from outbox.segment, id
where event >= from_id and event < to_id;

-- a statement run in a subtransaction: which constraint stops it?
create function pg_temp.broken(statement text) returns text
language plpgsql as $$
declare
    name text;
begin
    execute statement;
    raise exception using errcode = 'P0001', message = 'rolled back';
exception
    when integrity_constraint_violation then
        get stacked diagnostics name = constraint_name;
        return name;
    when raise_exception then
        return 'nothing';
end
$$;

-- rows that are copied and spoiled
insert into outbox.batch select 9223372036854775807, s, now(), now(), 1, '{1}', null, event, event from id;
insert into outbox.lane_entry select s, 0, 1, event, '(0,1)' from id;
insert into outbox.lane_cursor select s, 0, 1 from id;
insert into outbox.lease (token, subscription_id, incarnation, claim_xid, claimed_at, expires_at, events, event_ids, lanes, positions)
select gen_random_uuid(), s, 1, '1', now(), now(), 1, array[event], '{0}', '{1}' from id;
insert into outbox.lease_progress select lease_id, 1, true, '{0}' from outbox.lease, id where subscription_id = s;
insert into outbox.lane_lease select s, 0, lease_id from outbox.lease, id where subscription_id = s;
insert into outbox.delayed select now(), event, s from id;
insert into outbox.delivery_exception (subscription_id, event_id, lane, position, status, attempts) select s, event, 0, 1, 'REVIEW_REQUIRED', 1 from id;
insert into outbox.gate (subscription_id, lane, tenant_id, event_key, held_by, through, created_at) select s, 0, '', 'k', event, 1, now() from id;
insert into outbox.parked select gate_id, 2, event from outbox.gate, id where subscription_id = s;
insert into outbox.attempt_log (subscription_id, event_id, replay_no, attempt, failed_at, error_code) select s, event, 0, 1, now(), 'x' from id;
insert into outbox.event_type_definition (event_type, payload_version, importance, defined_at, defined_by) values ('ct.x', '1', 'medium', now(), 'me');
insert into outbox.dedup select '', 'ct.x', 'd', event, gen_random_uuid(), now() from id;
insert into outbox.exception_count select -7, s, 'RETRY', '', 0 from id;
select outbox.consume_once('ct', 'm');
insert into outbox.maintenance (task, last_run) values ('ct', now());
insert into outbox.role_grant values ('ct role', 'worker', 'ct s', now(), 'x');
insert into outbox.granted_role values (4294967295, 'ct role');
insert into outbox.tick values (2147483647, 1, 0, '1:1:', '1:1:', null, 0, now());
update outbox.lane set token = gen_random_uuid(), holder = 1, expires_at = now() from id where subscription_id = s and lane = 0;
do $$
begin
    execute format('insert into %s (event_id, batch_id, subscription_id, replay_no, attempts, batch_index) select event, 1, s, 0, 1, 0 from id',
                   (select receipt_log from segment));
end
$$;

-- a row with some fields changed, once more
create function pg_temp.again(relation text, condition text, changes text default '{}') returns text
language sql as $$
    select format('insert into %s overriding system value select (jsonb_populate_record(r, %L)).* from %s r, id where %s',
                  relation, changes, relation, condition)
$$;

create temp table trial (n serial, breaks text, statement text);
insert into trial (breaks, statement) values
    ('incarnation_pkey', pg_temp.again('outbox.incarnation', 'true')),
    ('incarnation_incarnation_check', pg_temp.again('outbox.incarnation', 'true', '{"incarnation": 0}')),
    ('event_log_is_segmented', 'insert into outbox.event_log select e.* from outbox.event_log e, id where event_id = event'),
    ('receipt_log_is_segmented', 'insert into outbox.receipt_log select r.* from outbox.receipt_log r, id where event_id = event'),
    ('segment_pkey', pg_temp.again('outbox.segment', 'event >= from_id and event < to_id', '{"to_id": "ffffffff-ffff-ffff-ffff-ffffffffffff", "name": "x"}')),
    ('segment_to_id_key', pg_temp.again('outbox.segment', 'event >= from_id and event < to_id', '{"from_id": "00000000-0000-0000-0000-000000000000", "name": "x"}')),
    ('segment_name_key', pg_temp.again('outbox.segment', 'event >= from_id and event < to_id', '{"from_id": "00000000-0000-0000-0000-000000000000", "to_id": "00000000-0000-0000-0000-000000000001"}')),
    ('segment_check', pg_temp.again('outbox.segment', 'event >= from_id and event < to_id', '{"to_id": "00000000-0000-0000-0000-000000000000", "name": "x"}')),
    ('batch_pkey', pg_temp.again('outbox.batch', 'subscription_id = s')),
    ('batch_events_check', pg_temp.again('outbox.batch', 'subscription_id = s', '{"batch_id": -1, "events": 0}')),
    ('batch_check', pg_temp.again('outbox.batch', 'subscription_id = s', '{"batch_id": -1, "last_event": "00000000-0000-0000-0000-000000000000"}')),
    ('batch_check1', pg_temp.again('outbox.batch', 'subscription_id = s', '{"batch_id": 1, "lease_id": 1}')),
    ('subscription_pkey', pg_temp.again('outbox.subscription', 'subscription_id = s', '{"subscription": "ct u"}')),
    ('subscription_subscription_key', pg_temp.again('outbox.subscription', 'subscription_id = s', '{"subscription_id": -1}')),
    ('subscription_event_types_check', 'update outbox.subscription set event_types = ''{}'''),
    ('subscription_ordering_check', 'update outbox.subscription set ordering = ''time'''),
    ('subscription_lanes_check', 'update outbox.subscription set lanes = 0'),
    ('subscription_lanes_check', 'update outbox.subscription set lanes = 1025'),
    ('subscription_max_attempts_check', 'update outbox.subscription set max_attempts = 0'),
    ('subscription_max_attempts_check', 'update outbox.subscription set max_attempts = 1001'),
    ('subscription_backoff_factor_check', 'update outbox.subscription set backoff_factor = 0.5'),
    ('subscription_backoff_factor_check', 'update outbox.subscription set backoff_factor = ''NaN'''),
    ('subscription_batch_size_check', 'update outbox.subscription set batch_size = 0'),
    ('subscription_batch_size_check', 'update outbox.subscription set batch_size = 10001'),
    ('subscription_on_review_check', 'update outbox.subscription set on_review = ''skip'''),
    ('subscription_first_lane_check', 'update outbox.subscription set first_lane = -1'),
    ('subscription_ordered_from_check', 'update outbox.subscription set ordered_from = -1'),
    ('subscription_state_pkey', pg_temp.again('outbox.subscription_state', 'subscription_id = s')),
    ('lane_pkey', pg_temp.again('outbox.lane', 'subscription_id = s and lane = 1')),
    ('lane_token_key', pg_temp.again('outbox.lane', 'subscription_id = s and lane = 0', '{"lane": 99}')),
    ('lane_lane_check', pg_temp.again('outbox.lane', 'subscription_id = s and lane = 1', '{"lane": -1}')),
    ('lane_check', 'update outbox.lane set token = gen_random_uuid() from id where subscription_id = s and lane = 1'),
    ('lane_check', 'update outbox.lane set holder = null, expires_at = null from id where subscription_id = s and lane = 0'),
    ('lane_check', 'update outbox.lane set holder = 1 from id where subscription_id = s and lane = 1'),
    ('lane_check', 'update outbox.lane set expires_at = now() from id where subscription_id = s and lane = 1'),
    ('lane_check', 'update outbox.lane set token = null from id where subscription_id = s and lane = 0'),
    ('lane_entry_pkey', pg_temp.again('outbox.lane_entry', 'subscription_id = s')),
    ('lane_entry_position_check', pg_temp.again('outbox.lane_entry', 'subscription_id = s', '{"position": 0}')),
    ('lane_cursor_pkey', pg_temp.again('outbox.lane_cursor', 'subscription_id = s')),
    ('lease_pkey', pg_temp.again('outbox.lease', 'subscription_id = s', '{"token": "00000000-0000-0000-0000-000000000000"}')),
    ('lease_token_key', pg_temp.again('outbox.lease', 'subscription_id = s', '{"lease_id": -1}')),
    ('lease_events_check', pg_temp.again('outbox.lease', 'subscription_id = s', '{"lease_id": -1, "token": "00000000-0000-0000-0000-000000000000", "events": 0}')),
    ('lease_progress_pkey', pg_temp.again('outbox.lease_progress', 'lease_id in (select lease_id from outbox.lease where subscription_id = s)')),
    ('lane_lease_pkey', pg_temp.again('outbox.lane_lease', 'subscription_id = s')),
    ('tick_pkey', pg_temp.again('outbox.tick', 'r.incarnation = 2147483647')),
    ('tick_chunk_check', pg_temp.again('outbox.tick', 'r.incarnation = 2147483647', '{"chunk": -1}')),
    ('delayed_pkey', pg_temp.again('outbox.delayed', 'subscription_id = s')),
    ('delivery_exception_pkey', pg_temp.again('outbox.delivery_exception', 'subscription_id = s')),
    ('delivery_exception_status_check', pg_temp.again('outbox.delivery_exception', 'subscription_id = s', '{"replay_no": 1, "status": "COMPLETED"}')),
    ('delivery_exception_attempts_check', pg_temp.again('outbox.delivery_exception', 'subscription_id = s', '{"replay_no": 1, "attempts": -1}')),
    ('delivery_exception_attempts_before_check', pg_temp.again('outbox.delivery_exception', 'subscription_id = s', '{"replay_no": 1, "attempts_before": -1}')),
    ('delivery_exception_check', pg_temp.again('outbox.delivery_exception', 'subscription_id = s', '{"replay_no": 1, "status": "RETRY"}')),
    ('delivery_exception_check', pg_temp.again('outbox.delivery_exception', 'subscription_id = s', '{"replay_no": 1, "next_attempt_at": "2030-01-01"}')),
    ('gate_pkey', 'insert into outbox.gate (subscription_id, lane, tenant_id, event_key, through, created_at, number) overriding system value select subscription_id, lane, tenant_id, ''l'', through, created_at, number from outbox.gate, id where subscription_id = s'),
    ('gate_subscription_id_lane_tenant_id_event_key_key', 'insert into outbox.gate (subscription_id, lane, tenant_id, event_key, through, created_at) select subscription_id, lane, tenant_id, event_key, through, created_at from outbox.gate, id where subscription_id = s'),
    ('parked_pkey', pg_temp.again('outbox.parked', 'event_id = event')),
    ('attempt_log_pkey', pg_temp.again('outbox.attempt_log', 'subscription_id = s')),
    ('exception_count_pkey', pg_temp.again('outbox.exception_count', 'entry_id = -7')),
    ('consumed_pkey', pg_temp.again('outbox.consumed', 'receiver = ''ct''')),
    ('dedup_pkey', pg_temp.again('outbox.dedup', 'event_type = ''ct.x''')),
    ('event_type_definition_pkey', pg_temp.again('outbox.event_type_definition', 'event_type = ''ct.x''')),
    ('event_type_definition_importance_check', pg_temp.again('outbox.event_type_definition', 'event_type = ''ct.x''', '{"payload_version": "2", "importance": "urgent"}')),
    ('event_type_definition_max_payload_bytes_check', pg_temp.again('outbox.event_type_definition', 'event_type = ''ct.x''', '{"payload_version": "2", "max_payload_bytes": 0}')),
    ('maintenance_pkey', pg_temp.again('outbox.maintenance', 'task = ''ct''')),
    ('operator_entry_pkey', pg_temp.again('outbox.operator_entry', 'subscription = ''ct s''')),
    ('role_grant_pkey', pg_temp.again('outbox.role_grant', 'role_name = ''ct role''')),
    ('role_grant_kind_check', pg_temp.again('outbox.role_grant', 'role_name = ''ct role''', '{"kind": "reader"}')),
    ('role_grant_check', pg_temp.again('outbox.role_grant', 'role_name = ''ct role''', '{"kind": "monitor"}')),
    ('role_grant_check', pg_temp.again('outbox.role_grant', 'role_name = ''ct role''', '{"scope": ""}')),
    ('run_as_role_pkey', pg_temp.again('outbox.run_as_role', 'subscription_id = s')),
    ('run_as_gone_pkey', pg_temp.again('outbox.run_as_gone', 'subscription_id = s')),
    ('granted_role_pkey', pg_temp.again('outbox.granted_role', 'role_name = ''ct role''', '{"role_name": "ct other"}')),
    ('granted_role_role_name_key', pg_temp.again('outbox.granted_role', 'role_name = ''ct role''', '{"role_id": 4294967294}'));

select breaks, statement
from trial
where pg_temp.broken(statement) is distinct from breaks
order by n;
-- none is left out
select relname, conname
from our_constraint
where conname not in (select breaks from trial)
order by 1, 2;
-- a row that breaks nothing is told apart
select pg_temp.broken(pg_temp.again('outbox.delivery_exception', 'subscription_id = s', '{"replay_no": 1}')) as broken;

-- without a subscription nothing of its work is left; receipts and history are
select (select count(*) from outbox.delivery_exception where subscription_id = s) as exceptions, (select count(*) from outbox.lane where subscription_id = s) as lanes from id;
select outbox.unsubscribe((select subscription from outbox.subscription, id where subscription_id = s), force => true);
select (select count(*) from outbox.subscription_state where subscription_id = s)
     + (select count(*) from outbox.lane where subscription_id = s)
     + (select count(*) from outbox.delivery_exception where subscription_id = s)
     + (select count(*) from outbox.lane_lease where subscription_id = s)
     + (select count(*) from outbox.gate where subscription_id = s) as left_over,
       (select count(*) from outbox.attempt_log where subscription_id = s) as attempts,
       (select count(*) from outbox.receipt_log where subscription_id = s) as receipts
from id;

-- A segment: the range of its ids, its keys and indexes.
create temp view segment_table as
select case when i.inhparent = 'outbox.event_log'::regclass then 'event_log' else 'receipt_log' end as parent, i.inhrelid as oid, c.relname, c.relacl, c.relowner
from segment, pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhrelid in (event_log::regclass, receipt_log::regclass);
select parent, contype as type, regexp_replace(regexp_replace(pg_get_constraintdef(k.oid), '[0-9a-f]{8}-[-0-9a-f]{27}', 'from'), '[0-9a-f]{8}-[-0-9a-f]{27}', 'to') as definition
from segment_table t join pg_constraint k on k.conrelid = t.oid and k.contype <> 'n'
order by parent, contype, 3;
select parent, replace(replace(pg_get_indexdef(x.indexrelid), c.relname, 'index'), t.relname, 'segment') as definition, x.indisvalid as valid
from segment_table t join pg_index x on x.indrelid = t.oid join pg_class c on c.oid = x.indexrelid
order by parent, 2;
select parent, relacl from segment_table t where exists (select from aclexplode(relacl) where grantee <> relowner);
-- tried
select regexp_replace(pg_temp.broken(format('insert into %s select e.* from %s e, id where event_id = event', event_log, event_log)), '[0-9]+(_[0-9]+)*', 'n') as event_twice,
       regexp_replace(pg_temp.broken(format('insert into %s select r.* from %s r, id where event_id = event', receipt_log, receipt_log)), '[0-9]+(_[0-9]+)*', 'n') as receipt_twice,
       regexp_replace(pg_temp.broken(format('update %s set event_id = %L from id where event_id = event', event_log, to_id)), '[0-9]+(_[0-9]+)*', 'n') as event_outside,
       regexp_replace(pg_temp.broken(format('update %s set event_id = %L from id where event_id = event', receipt_log, to_id)), '[0-9]+(_[0-9]+)*', 'n') as receipt_outside,
       pg_temp.broken(format('update %s set replay_no = 1 from id where event_id = event', receipt_log)) as another_replay,
       pg_temp.broken(format('update %s set subscription_id = t from id where event_id = event', receipt_log)) as another_subscription
from segment;
rollback;
