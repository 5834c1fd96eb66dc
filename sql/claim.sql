-- What external workers get, in which order, and what becomes of it.
set client_min_messages = warning;
create extension if not exists outbox;
drop schema if exists claim cascade;
create schema claim;
reset client_min_messages;

-- publish events named k1, k2, ... of key k; an empty key: none
create procedure claim.publish(of text, keys text[], names text[]) language plpgsql as $$
begin
    perform outbox.publish('cl.' || of, jsonb_build_object('name', name), event_key => nullif(key, ''))
    from unnest(keys, names) with ordinality as e (key, name, n) order by n;
    commit;
    call outbox.drain(array['cl ' || of]);
end
$$;
create function claim.event(named text) returns uuid language sql as $$
    select event_id from outbox.event where event_type like 'cl.%' and payload ->> 'name' = named order by event_id desc limit 1
$$;
-- the open lease that holds an event; its token stands in no view
create function claim.token(named text) returns uuid language sql as $$
    select token from outbox.lease where claim.event(named) = any (event_ids) order by lease_id desc limit 1
$$;
-- why a failure is refused, for its reader
create function claim.why(token uuid, event_id uuid) returns text language plpgsql as $$
declare
    detail text;
    hint text;
begin
    perform outbox.fail(token, event_id);
    return 'it was not';
exception when sqlstate 'OB001' then
    get stacked diagnostics detail = pg_exception_detail, hint = pg_exception_hint;
    return detail || ' ' || hint;
end $$;
-- claim all that can be had, in one or more leases
create procedure claim.get(of text, most integer default 10, expected integer default null, lease interval default null) language plpgsql as $$
declare
    got text;
    n integer := 0;
begin
    for i in 1 .. 500 loop
        select string_agg(format('%s/%s', payload ->> 'name', attempt), ' ' order by ordinality), count(*) into got, n
        from outbox.claim('cl ' || of, most, lease, 'me') with ordinality;
        exit when expected is null or n >= expected;
        commit;
        perform pg_sleep(0.01);
    end loop;
    raise notice 'got %', coalesce(got, 'nothing');
    commit;
end
$$;
create view claim.outcome as
select substr(d.subscription, 4) as subscription, e.payload ->> 'name' as name, d.replay_no, d.status, d.attempts, d.error_code, d.worker
from outbox.delivery d join outbox.event e using (event_id) where d.subscription like 'cl %';

-- keys one at a time and in order: all that is free comes, a lane that is held does not
select outbox.subscribe('cl order', '{cl.order}', lanes => 1);
call claim.publish('order', '{a,b,a,c,b,a}', '{a1,b1,a2,c1,b2,a3}');
call claim.get('order', 4);
call claim.get('order', 4);
select name, status, attempts, worker from claim.outcome where subscription = 'order' order by name;
select outbox.ack(claim.token('a1'), array[claim.event('a1'), claim.event('b1')]);
call claim.get('order', 4);
select outbox.ack_one(claim.token('a1'), claim.event('a2'), 'message 7');
select outbox.ack_all(claim.token('a1'));
select message_id, worker, processing_ms > 0 as took from outbox.delivery where subscription = 'cl order' and event_id = claim.event('a2');
call claim.get('order', 4);

-- a failure holds its key, whatever of it was in the lease goes back, and other keys go on
select outbox.release_all(claim.token('b2'));
call claim.publish('order', '{b,a,c}', '{b3,a4,c2}');
call claim.get('order', 10);
select outbox.fail(claim.token('b2'), claim.event('b2'), 'E1', retry_after => '1 day');
select outbox.ack(claim.token('b2'), array[claim.event('a3')]);
select name, status, attempts, error_code from claim.outcome where subscription = 'order' and status <> 'COMPLETED' order by name;
select event_key, status, blocked_events from outbox.blocked_key where subscription = 'cl order' order by 1;
-- the lane is free again: what was behind the lease comes, and what is parked does not
call claim.get('order', 10);
-- of the lease before: not held any more
\set VERBOSITY sqlstate
select outbox.ack(claim.token('b2'), array[claim.event('b3')]);
\set VERBOSITY default
select outbox.ack_all(claim.token('c2'));
-- the retry is due: then what was parked follows, in order
update outbox.delivery_exception set next_attempt_at = clock_timestamp() where status = 'RETRY' and event_id = claim.event('b2');
call claim.get('order', 10);
select outbox.ack_all(claim.token('b2'));
call claim.get('order', 10);
select outbox.ack_all(claim.token('b3'));
call claim.get('order', 10);
call claim.publish('order', '{b}', '{b4}');
call claim.get('order', 10);
select outbox.ack_all(claim.token('b4'));
select name, status, attempts from claim.outcome where subscription = 'order' and status <> 'COMPLETED';
select count(*) from outbox.gate g join outbox.subscription s using (subscription_id) where s.subscription = 'cl order';

-- failures and releases of one key out of its order do not change it
select outbox.subscribe('cl mixed', '{cl.mixed}', lanes => 1);
call claim.publish('mixed', '{a,a,a,a,a,a}', '{a1,a2,a3,a4,a5,a6}');
call claim.get('mixed', 5);
select outbox.fail(claim.token('a1'), claim.event('a3'), 'E3', retry_after => '0');
select outbox.fail(claim.token('a1'), claim.event('a1'), 'E1', retry_after => '0');
select name, status, attempts from claim.outcome where subscription = 'mixed' order by name;
call claim.get('mixed');
select outbox.ack_all(claim.token('a1'));
call claim.get('mixed');
select outbox.ack_all(claim.token('a2'));
call claim.get('mixed');
select outbox.release(claim.token('a3'), array[claim.event('a3')]);
call claim.get('mixed');
select outbox.ack_all(claim.token('a3'));
call claim.get('mixed', 2);
-- taken from behind the gate, and back again
select outbox.fail(claim.token('a4'), claim.event('a5'), 'E5', retry_after => '0');
select outbox.release(claim.token('a4'), array[claim.event('a4')]);
call claim.get('mixed');
select outbox.ack_all(claim.token('a4'));
call claim.get('mixed');
select outbox.ack_all(claim.token('a5'));
call claim.get('mixed');
select outbox.ack_all(claim.token('a6'));
select count(*) filter (where status = 'COMPLETED'), count(*) from claim.outcome where subscription = 'mixed';

-- taken from behind the gate, and completed or failed before an earlier one goes back: waits behind nothing
select outbox.subscribe('cl early', '{cl.early}', lanes => 1);
call claim.publish('early', '{a,a,a,a,a}', '{y1,y2,y3,y4,y5}');
call claim.get('early', 1);
select outbox.fail(claim.token('y1'), claim.event('y1'), 'E1', retry_after => '0');
call claim.get('early');
select outbox.ack_all(claim.token('y1'));
call claim.get('early');
select outbox.ack(claim.token('y2'), array[claim.event('y3')]);
select outbox.fail(claim.token('y2'), claim.event('y4'), 'E4', retry_after => '1 day');
select outbox.fail(claim.token('y2'), claim.event('y2'), 'E2', permanent => true);
select name, status from claim.outcome where subscription = 'early' order by name, status;
select backlog, retry, blocked, review_required from outbox.subscription_status where subscription = 'cl early';
select blocked_events from outbox.review_required where subscription = 'cl early';
select payload ->> 'name' as name, status from outbox.event_history where event_type = 'cl.early' order by 1;
select outbox.discard('cl early', claim.event('y2'), 'no use');
update outbox.delivery_exception set next_attempt_at = clock_timestamp() where status = 'RETRY' and event_id = claim.event('y4');
call claim.get('early');
select outbox.ack_all(claim.token('y4'));
call claim.get('early');
select outbox.ack_all(claim.token('y5'));

-- one that is tried again comes together with those that have been let past it, and takes them back with it
select outbox.subscribe('cl past', '{cl.past}', lanes => 1, on_review => 'continue');
call claim.publish('past', '{a,a,a,a}', '{z1,z2,z3,z4}');
call claim.get('past', 1);
select outbox.release_all(claim.token('z1'));
call claim.get('past');
select outbox.fail(claim.token('z1'), claim.event('z1'), 'E1', permanent => true);
select outbox.retry('cl past', claim.event('z1'));
call claim.get('past', 3);
select outbox.ack(claim.token('z1'), array[claim.event('z3')]);
select outbox.fail(claim.token('z1'), claim.event('z1'), 'E1', retry_after => '0');
select name, status from claim.outcome where subscription = 'past' order by name, status;
select backlog, retry, blocked, review_required from outbox.subscription_status where subscription = 'cl past';
call claim.get('past');
select outbox.release_all(claim.token('z1'));
select name, status from claim.outcome where subscription = 'past' order by name, status;
call claim.get('past');
select outbox.ack_all(claim.token('z1'));
call claim.get('past');
select outbox.ack_all(claim.token('z2'));

-- a delay holds the key; a released event has used no attempt
call claim.publish('mixed', '{a,a,b}', '{a7,a8,b7}');
call claim.get('mixed');
select outbox.release(claim.token('a7'), array[claim.event('a7')], '1 hour');
select outbox.ack_all(claim.token('b7'));
call claim.get('mixed');
select name, status, attempts from claim.outcome where subscription = 'mixed' and status <> 'COMPLETED' order by name;

-- attempts: used up, permanent, by the subscription's rules; a person decides
select outbox.subscribe('cl review', '{cl.review}', lanes => 1, max_attempts => 2, backoff_base => '1 us', backoff_max => '1 us',
                        permanent_errors => '{gone,HV}', transient_errors => '{23505}');
call claim.publish('review', '{a,a,b,c,d,e}', '{a1,a2,b1,c1,d1,e1}');
call claim.get('review');
select outbox.fail(claim.token('a1'), claim.event('a1'), 'E1');
select outbox.fail(claim.token('b1'), claim.event('b1'), 'gone');
select outbox.fail(claim.token('c1'), claim.event('c1'), 'HV00R');
select outbox.fail(claim.token('d1'), claim.event('d1'), '23505');
select outbox.fail(claim.token('e1'), claim.event('e1'), permanent => true);
call claim.get('review', expected => 2);
select outbox.fail(claim.token('a1'), claim.event('a1'), 'E1');
select outbox.ack_all(claim.token('d1'));
select name, status, attempts, error_code from claim.outcome where subscription = 'review' order by name;
call claim.get('review');
select outbox.discard('cl review', claim.event('a1'), 'no use');
call claim.get('review');
select outbox.ack_all(claim.token('a2'));
select outbox.retry('cl review', claim.event('b1'));
call claim.get('review');
select outbox.fail(claim.token('b1'), claim.event('b1'), 'E2');
select name, attempt, error_code, worker from outbox.attempt join outbox.event e using (event_id) cross join lateral (select e.payload ->> 'name' as name) p
where subscription = 'cl review' order by name, attempt;

-- after a lease expired, its events come one by one; only one that was alone can need review for it
select outbox.subscribe('cl lost', '{cl.lost}', lanes => 1, max_attempts => 2);
call claim.publish('lost', '{a,a,b,c}', '{a1,a2,b1,c1}');
call claim.get('lost', lease => '1 ms');
call claim.get('lost', expected => 1);
select outbox.ack_all(claim.token('a1'));
call claim.get('lost', lease => '1 ms');
call claim.get('lost', expected => 1);
select outbox.ack_all(claim.token('c1'));
call claim.get('lost', expected => 1);
select outbox.ack_all(claim.token('a2'));
call claim.get('lost');
select name, status, attempts, error_code from claim.outcome where subscription = 'lost' order by name;
select name, attempt, error_code, worker from outbox.attempt join outbox.event e using (event_id) cross join lateral (select e.payload ->> 'name' as name) p
where subscription = 'cl lost' order by name, attempt;

-- without order, lanes are not held
select outbox.subscribe('cl none', '{cl.none}', ordering => 'none', lanes => 1);
call claim.publish('none', '{a,a,a,"",""}', '{n1,n2,n3,n4,n5}');
call claim.get('none', 2);
call claim.get('none', 2);
select outbox.fail(claim.token('n1'), claim.event('n1'), 'E1', retry_after => '0');
select outbox.release(claim.token('n3'), array[claim.event('n3')]);
call claim.get('none');
select outbox.ack_all(claim.token('n1')) + outbox.ack_all(claim.token('n2')) + outbox.ack_all(claim.token('n4'));
select status, count(*) from claim.outcome where subscription = 'none' group by 1;

-- the outage guard: after five events that failed in a row, one at a time until one completes
select outbox.subscribe('cl outage', '{cl.outage}', ordering => 'none', lanes => 1, backoff_base => '1 hour');
call claim.publish('outage', '{"","","","","","","",""}', '{o1,o2,o3,o4,o5,o6,o7,o8}');
call claim.get('outage', 5);
select outbox.fail(claim.token(n), claim.event(n), 'E1') from unnest('{o1,o2,o3,o4,o5}'::text[]) n;
call claim.get('outage');
select outage_until > clock_timestamp() + interval '59 s' as guarded from outbox.subscription_status where subscription = 'cl outage';
update outbox.subscription_state t set outage_until = clock_timestamp() from outbox.subscription s where s.subscription_id = t.subscription_id and s.subscription = 'cl outage';
call claim.get('outage');
call claim.get('outage');
select outbox.ack_all(claim.token('o6'));
select outage_until from outbox.subscription_status where subscription = 'cl outage';
call claim.get('outage');

-- paused; waived by on_review; the size of a claim
select outbox.subscribe('cl rest', '{cl.rest}', lanes => 1);
call claim.publish('rest', '{a,a,b}', '{r1,r2,r3}');
select outbox.pause('cl rest');
call claim.get('rest');
select outbox.resume('cl rest');
call claim.get('rest', 1);
select outbox.fail(claim.token('r1'), claim.event('r1'), permanent => true);
call claim.get('rest');
select outbox.ack_all(claim.token('r3'));
call claim.get('rest');
select outbox.alter_subscription('cl rest', on_review => 'continue');
call claim.get('rest');
select outbox.ack_all(claim.token('r2'));
set outbox.max_payload_bytes = '64MB';
select outbox.publish('cl.rest', jsonb_build_object('name', n, 'x', repeat('x', 3500000)), event_key => n) is not null from unnest('{x1,x2,x3}'::text[]) n;
reset outbox.max_payload_bytes;
call outbox.drain('{cl rest}');
call claim.get('rest');
select outbox.ack_all(claim.token('x1'));
call claim.get('rest');

-- one commit a round: a transaction may acknowledge one lease and claim the next, of the same lane; together they hold or roll back
select outbox.subscribe('cl chain', '{cl.chain}', lanes => 1);
call claim.publish('chain', '{a,a,b,a}', '{c1,c2,c3,c4}');
call claim.get('chain', 2);
begin;
select outbox.ack_all(claim.token('c2'));
select payload ->> 'name' as name, attempt from outbox.claim('cl chain', 1);
rollback;
call claim.get('chain');
begin;
select outbox.ack_all(claim.token('c2'));
select payload ->> 'name' as name, attempt from outbox.claim('cl chain', 1);
select outbox.ack_all(claim.token('c3'));
rollback;
begin;
select outbox.ack_all(claim.token('c2'));
select payload ->> 'name' as name, attempt from outbox.claim('cl chain', 1);
commit;
select outbox.ack_all(claim.token('c2')) as again, outbox.ack_one(claim.token('c3'), claim.event('c3'));
call claim.get('chain');
-- the same in one call: the lane that the acknowledged lease held is free for it
call claim.publish('chain', '{a,a,b,a}', '{e1,e2,e3,e4}');
select outbox.ack_all(claim.token('c4'));
call claim.get('chain', 2);
select claim.token('e1') as first \gset
begin;
select payload ->> 'name' as name, attempt from outbox.claim('cl chain', 1, ack => :'first');
rollback;
call claim.get('chain');
select name, status from claim.outcome where subscription = 'chain' and name like 'e%' order by name;
select payload ->> 'name' as name, attempt from outbox.claim('cl chain', 1, ack => :'first');
select payload ->> 'name' as name, attempt from outbox.claim('cl chain', 1, ack => claim.token('e3'));
select count(*) from outbox.claim('cl chain', 1, ack => claim.token('e4'));
select name, status from claim.outcome where subscription = 'chain' and name like 'e%' order by name;
-- one of them has failed: the others are completed; refused: nothing is claimed
call claim.publish('chain', '{z,y,z,x,w}', '{f1,f2,f3,f4,f5}');
call claim.get('chain', 4);
select outbox.fail(claim.token('f1'), claim.event('f1'), 'E1', permanent => true);
select claim.token('f4') as first \gset
select payload ->> 'name' as name, attempt from outbox.claim('cl chain', ack => gen_random_uuid());
select payload ->> 'name' as name, attempt from outbox.claim('cl chain', ack => :'first');
select name, status from claim.outcome where subscription = 'chain' and name like 'f%' order by name;
-- a second time it has nothing to complete; one that is paused hands out none, and completes
call claim.publish('chain', '{g}', '{g1}');
select outbox.pause('cl chain');
select count(*) from outbox.claim('cl chain', ack => claim.token('f5'));
select count(*) from outbox.claim('cl chain', ack => :'first');
select outbox.resume('cl chain');
select name, status from claim.outcome where subscription = 'chain' and name in ('f5', 'g1') order by name;
select payload ->> 'name' as name, attempt from outbox.claim('cl chain', ack => :'first');
select outbox.ack_all(claim.token('g1'));
-- what was acknowledged is not acknowledged again, nor recorded again, whatever else of the lease has ended how
call claim.publish('chain', '{a,b,c,d,e}', '{d1,d2,d3,d4,d5}');
call claim.get('chain');
select outbox.ack_one(claim.token('d1'), claim.event('d1')), outbox.ack_one(claim.token('d1'), claim.event('d1')) as again;
select outbox.ack(claim.token('d1'), array[claim.event('d1'), claim.event('d2')]) as one;
create function claim.fetched() returns bigint language sql as $$
    select sum(pg_stat_get_xact_tuples_fetched(of)) from unnest('{outbox.lease_progress_pkey,outbox.batch_lease}'::regclass[]) of
$$;
begin;
select claim.fetched() \gset
select outbox.ack_one(claim.token('d1'), claim.event('d5')), claim.fetched() - :fetched as read_of_those_before;
commit;
select outbox.fail(claim.token('d1'), claim.event('d3'), permanent => true);
select outbox.ack(claim.token('d1'), array[claim.event('d1'), claim.event('d2')]) as again;
\set VERBOSITY sqlstate
select outbox.ack(claim.token('d1'), array[claim.event('d2'), claim.event('d3')]);
select outbox.fail(claim.token('d1'), claim.event('d1'));
\set VERBOSITY default
-- and the answer says what has become of the event
select claim.why(claim.token('d1'), id) from (values (claim.event('d1')), (claim.event('d3')), (gen_random_uuid())) v (id);
select outbox.ack_one(claim.token('d1'), claim.event('d4'));
select settled, completed, sign(progress_id), completions from outbox.lease
join (select lease_id, settled, completed, progress_id, null as completions from outbox.lease_progress
      union all select lease_id, settled, null, null, events from outbox.batch) p using (lease_id)
where claim.event('d1') = any (event_ids) order by settled;

-- one that comes alone comes first or not at all: it has its turn, though each claim finds something in other lanes
create procedure claim.expire(n integer) language plpgsql as $$
begin
    for i in 1 .. n loop
        perform outbox.subscribe('cl turn' || i, array['cl.turn' || i], lanes => 2);
        commit;
        call claim.publish('turn' || i, '{a}', '{first}');
        perform from outbox.claim('cl turn' || i, 1, '1 ms');
        commit;
    end loop;
    for i in 1 .. 1000 loop
        exit when (select count(*) = n from outbox.delivery where subscription like 'cl turn%' and status = 'RETRY');
        commit;
        perform pg_sleep(0.01);
    end loop;
end
$$;
-- how many claims until it comes, beside others that keep coming
create procedure claim.come(of text, inout claims integer) language plpgsql as $$
declare
    token uuid;
    found_it boolean;
begin
    for i in 1 .. 10 loop
        call claim.publish(of, '{b,c,d,e}', '{b,c,d,e}');
        select min(lease_token::text)::uuid, bool_or(payload ->> 'name' = 'first') into token, found_it from outbox.claim('cl ' || of, 100);
        commit;
        claims := i;
        exit when found_it;
        perform outbox.ack_all(token);
        commit;
    end loop;
end
$$;
call claim.expire(8);
do $$
declare
    claims integer;
    most integer := 0;
begin
    for i in 1 .. 8 loop
        call claim.come('turn' || i, claims);
        most := greatest(most, claims);
    end loop;
    raise notice 'within three claims: %', most <= 3;
end $$;

-- leases of different lengths end in another order than they were made: where all went well, nobody looks for each into what did not
with l as (insert into outbox.lease (token, subscription_id, incarnation, claim_xid, claimed_at, expires_at, events, event_ids, lanes, positions)
    select gen_random_uuid(), 0, 1, '1', outbox.clock(), outbox.clock() + '1 day' + n * 7 % 2000 * interval '1 s', 1, array[gen_random_uuid()], '{0}', '{1}'
    from generate_series(1, 2000) n returning lease_id, event_ids[1] as id)
insert into outbox.batch (batch_id, subscription_id, started_at, completed_at, events, processing_us, first_event, last_event, lease_id, settled)
select -lease_id, 0, outbox.clock(), outbox.clock(), 1, '{1}', id, id, lease_id, '{0}' from l;
select pg_stat_force_next_flush() as flushed \gset
select pg_stat_get_blocks_fetched('outbox.lease_progress_pkey'::regclass) as before \gset
select count(*) from outbox.lease_events() where subscription_id = 0;
select pg_stat_force_next_flush() as flushed \gset
select pg_stat_get_blocks_fetched('outbox.lease_progress_pkey'::regclass) - :before < 500 as few;
delete from outbox.lease where subscription_id = 0;
delete from outbox.batch where subscription_id = 0;

-- a gate's id is its subscription and its number, whoever wrote it
select count(*) > 0 as gates, count(*) filter (where gate_id <> (subscription_id::bigint << 40) + number) as others from outbox.gate;
-- what is counted of deliveries that did not go well is what there is
select count(*) from (select subscription_id, status, count(*) as n from outbox.delivery_exception group by 1, 2) x
full join (select subscription_id, status, sum(n) as n from outbox.exception_count where status <> 'DELAYED' group by 1, 2 having sum(n) <> 0) c using (subscription_id, status)
where x.n is distinct from c.n;

set client_min_messages = warning;
select count(outbox.unsubscribe('cl ' || s, force => true)) from unnest('{order,mixed,review,lost,none,outage,rest,chain,turn1,turn2,turn3,turn4,turn5,turn6,turn7,turn8}'::text[]) s;
drop schema claim cascade;
