-- Every call that settles, with a token and an event in every state: what it answers, and that a refused
-- call changes nothing.
set client_min_messages = warning;
create extension if not exists outbox;
drop schema if exists claim_tokens cascade;
create schema claim_tokens;
reset client_min_messages;

-- The target is the second of three events of a key; one of another key stands beside.
create table claim_tokens.state (n serial, state text primary key, prepare text);
insert into claim_tokens.state (state, prepare) values
    ('held', 'select'),
    ('completed', 'select outbox.ack($1, array[$3])'),
    ('failed', 'select outbox.fail($1, $3)'),
    ('failed for good', 'select outbox.fail($1, $3, permanent => true)'),
    ('behind a failed one', 'select outbox.fail($1, $2)'),
    ('before a failed one', 'select outbox.fail($1, $4)'),
    ('released', 'select outbox.release($1, array[$3])'),
    ('behind a released one', 'select outbox.release($1, array[$2])'),
    ('all completed', 'select outbox.ack_all($1)'),
    ('all released', 'select outbox.release_all($1)'),
    -- below what has been swept already: so nobody takes it back
    ('expired', 'update outbox.lease set expires_at = clock_timestamp() - interval ''30 min'' where token = $1'),
    ('taken back', null),
    ('handed out again', null),
    ('paused', 'select outbox.pause($5)'),
    ('unknown token', null),
    ('another event', null),
    ('in the claim''s transaction', null),
    ('subscription gone', 'select outbox.unsubscribe($5, force => true)');
create table claim_tokens.call (n serial, call text primary key);
insert into claim_tokens.call (call) values
    ('outbox.ack($1, array[$2])'), ('outbox.ack($1, array[$2, $2])'), ('outbox.ack($1, array[]::uuid[])'), ('outbox.ack_all($1)'),
    ('outbox.ack_one($1, $2, ''m'')'), ('outbox.fail($1, $2, ''E1'')'), ('outbox.extend($1, ''1 hour'')'),
    ('outbox.release($1, array[$2])'), ('outbox.release_all($1)'),
    ('(select count(*) from outbox.claim(''ct nothing'', ack => $1)) || '' claimed''');
create table claim_tokens.trial (subscription text primary key, ordering text, state_n integer, call_n integer, answer text, changed boolean);
insert into claim_tokens.trial (subscription, ordering, state_n, call_n)
select format('ct %s %s %s', o, s.n, c.n), o, s.n, c.n from claim_tokens.state s, claim_tokens.call c, unnest('{key,none}'::text[]) o;

select outbox.subscribe('ct nothing', '{ct.nothing}');
select count(outbox.subscribe(subscription, '{ct.token}', ordering => ordering, lanes => 2)) from claim_tokens.trial;
create table claim_tokens.event as
select n, outbox.publish('ct.token', event_key => key) as event_id from unnest('{a,a,a,b}'::text[]) with ordinality as k (key, n);
select array_agg(subscription) as subscriptions from claim_tokens.trial \gset
call outbox.drain(:'subscriptions');

-- all that a call could change
create function claim_tokens.picture(of text) returns text language sql as $$
    select md5(concat(
        (select string_agg(l::text, ' ' order by lease_id) from outbox.lease l join outbox.subscription s using (subscription_id) where s.subscription = of),
        (select string_agg(b::text, ' ' order by batch_id) from outbox.batch b join outbox.subscription s using (subscription_id) where s.subscription = of),
        (select string_agg(p::text, ' ' order by lease_id, progress_id) from outbox.lease_progress p join outbox.lease l using (lease_id) join outbox.subscription s using (subscription_id) where s.subscription = of),
        (select string_agg(x::text, ' ' order by event_id) from outbox.delivery_exception x join outbox.subscription s using (subscription_id) where s.subscription = of),
        (select string_agg(g::text, ' ' order by gate_id) from outbox.gate g join outbox.subscription s using (subscription_id) where s.subscription = of),
        (select string_agg(a::text, ' ' order by attempt_id) from outbox.attempt_log a join outbox.subscription s using (subscription_id) where s.subscription = of),
        (select string_agg(r::text, ' ' order by event_id) from outbox.receipt_log r join outbox.subscription s using (subscription_id) where s.subscription = of)))
$$;

create procedure claim_tokens.try(of text) language plpgsql as $$
declare
    its claim_tokens.state := (select s from claim_tokens.state s join claim_tokens.trial t on t.state_n = s.n where t.subscription = of);
    its_call text := (select c.call from claim_tokens.call c join claim_tokens.trial t on t.call_n = c.n where t.subscription = of);
    ids uuid[] := (select array_agg(event_id order by n) from claim_tokens.event);
    target uuid := ids[2];
    its_token uuid;
    before text;
    reply text;
begin
    select max(c.lease_token::text)::uuid into its_token
    from outbox.claim(of, 10, case when its.state in ('taken back', 'handed out again') then interval '1 ms' end, 'tester') c;
    if its.state <> 'in the claim''s transaction' then
        commit;
    end if;
    if its.prepare is not null and its.prepare <> 'select' then
        execute its.prepare using its_token, ids[1], ids[2], ids[3], of;
        commit;
    end if;
    case its.state
        when 'unknown token' then its_token := gen_random_uuid();
        when 'another event' then target := gen_random_uuid();
        when 'taken back', 'handed out again' then
            for i in 1 .. 1000 loop
                exit when not exists (select from outbox.lease l where l.token = its_token);
                commit;
                perform pg_sleep(0.01);
            end loop;
            if its.state = 'handed out again' then
                perform outbox.claim(of, 10, '1 hour', 'another');
                commit;
            end if;
        else null;
    end case;
    before := claim_tokens.picture(of);
    begin
        execute 'select (' || its_call || ')::text' into reply using its_token, target;
        if its_call like 'outbox.extend%' then
            reply := case when reply::timestamptz > clock_timestamp() + interval '59 min' then 'later' else 'not later' end;
        end if;
    exception when others then
        reply := sqlstate || case when sqlerrm ~ '[0-9a-f]{8}-' then ' event' else '' end;
    end;
    update claim_tokens.trial t set answer = reply, changed = (claim_tokens.picture(of) <> before) where t.subscription = of;
    commit;
end
$$;
create procedure claim_tokens.try_all() language plpgsql as $$
declare
    of text;
begin
    for of in select subscription from claim_tokens.trial order by ordering, state_n, call_n loop
        call claim_tokens.try(of);
    end loop;
end
$$;
call claim_tokens.try_all();

select t.ordering, s.state,
       max(t.answer) filter (where c.call like '%array[$2])' and c.call like '%ack%') as ack,
       max(t.answer) filter (where c.call like '%$2, $2%') as ack_twice,
       max(t.answer) filter (where c.call like '%array[]%') as ack_none,
       max(t.answer) filter (where c.call like '%ack_all%') as ack_all,
       max(t.answer) filter (where c.call like '%ack_one%') as ack_one,
       max(t.answer) filter (where c.call like '%fail%') as fail,
       max(t.answer) filter (where c.call like '%extend%') as extend,
       max(t.answer) filter (where c.call like '%release(%') as release,
       max(t.answer) filter (where c.call like '%release_all%') as release_all,
       max(t.answer) filter (where c.call like '%claim%') as claim_and_ack
from claim_tokens.trial t join claim_tokens.state s on s.n = t.state_n join claim_tokens.call c on c.n = t.call_n
group by t.ordering, s.n, s.state order by t.ordering, s.n;
-- a refused call changes nothing, and neither does one that finds nothing to do
select t.ordering, s.state, c.call, t.answer, t.changed
from claim_tokens.trial t join claim_tokens.state s on s.n = t.state_n join claim_tokens.call c on c.n = t.call_n
where t.changed <> (t.answer not like '%OB001%' and t.answer not like '55000%' and t.answer not in ('0', 'false')) and c.call not like '%claim%';
-- a claim that acknowledges does what ack_all() does
select t.ordering, s.state, t.answer, t.changed, a.answer as ack_all, a.changed as ack_all_changed
from claim_tokens.trial t join claim_tokens.call c on c.n = t.call_n and c.call like '%claim%' join claim_tokens.state s on s.n = t.state_n
    join (claim_tokens.trial a join claim_tokens.call ac on ac.n = a.call_n and ac.call like '%ack_all%') using (ordering, state_n)
where t.changed <> a.changed or (t.answer = '0 claimed') <> (a.answer ~ '^\d$');

-- an open lease can be settled by nobody who does not have its token, and no view shows one
select v.relname, a.attname
from pg_class v join pg_attribute a on a.attrelid = v.oid
where v.relnamespace = 'outbox'::regnamespace and v.relkind = 'v' and a.attname like '%token%';

set client_min_messages = warning;
select count(outbox.unsubscribe(subscription, force => true)) from claim_tokens.trial;
select outbox.unsubscribe('ct nothing');
drop schema claim_tokens cascade;
