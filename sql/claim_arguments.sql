-- Arguments of the calls of external workers, at their edges.
set client_min_messages = warning;
create extension if not exists outbox;
drop schema if exists claim_arguments cascade;
create schema claim_arguments;
create function claim_arguments.nothing(e outbox.event) returns void language sql as 'select';
set client_min_messages = error;
select outbox.subscribe('ca handled', '{ca.x}', handler => 'claim_arguments.nothing');
reset client_min_messages;
select outbox.subscribe('ca s', '{ca.x}', ordering => 'none');
select outbox.subscribe('ca paused', '{ca.x}');
select outbox.pause('ca paused');
select count(outbox.publish('ca.x', jsonb_build_object('n', n), event_key => n::text)) from generate_series(1, 1200) n;
call outbox.drain('{ca s,ca paused}');

-- what a statement answers, or how it is refused
create function claim_arguments.try(statement text) returns text language plpgsql as $$
declare
    answer text;
    hint text;
begin
    execute statement into answer;
    return answer;
exception when others then
    get stacked diagnostics hint = pg_exception_hint;
    return concat_ws(' | ', sqlstate, sqlerrm, nullif(hint, ''));
end
$$;
create table claim_arguments.trial (n serial, statement text);
insert into claim_arguments.trial (statement)
select format('select count(*) from outbox.claim(%s)', a) from unnest(array[
    'null', $q$''$q$, $q$'ca missing'$q$, $q$'ca handled'$q$, $q$'ca paused'$q$, $q$repeat('x', 201)$q$,
    $q$'ca s', null$q$, $q$'ca s', 0$q$, $q$'ca s', -1$q$, $q$'ca s', 1001$q$, $q$'ca s', 2147483647$q$, $q$'ca s', -2147483648$q$,
    $q$'ca s', 1, '0'$q$, $q$'ca s', 1, '-1 s'$q$, $q$'ca s', 1, '1 day 1 us'$q$, $q$'ca s', 1, '100 years'$q$, $q$'ca s', 1, '178000000 years'$q$,
    $q$'ca s', 1, '1 mon -31 days'$q$, $q$'ca s', 1, worker => repeat('w', 256)$q$,
    $q$'ca s', 1, ack => ''$q$, $q$'ca missing', ack => '00000000-0000-4000-8000-000000000000'$q$]) a;
select statement, claim_arguments.try(statement) as answer from claim_arguments.trial order by n;
-- none of these took anything
select backlog, in_progress from outbox.subscription_status where subscription = 'ca s';
select count(*), min(attempt), max(max_attempts), count(distinct lease_token) from outbox.claim('ca s', 1000, '1 day', repeat('w', 255));
select backlog, in_progress from outbox.subscription_status where subscription = 'ca s';
select distinct worker = repeat('w', 255) as worker, lease_expires_at > clock_timestamp() + interval '23 hours' as lease from outbox.delivery where subscription = 'ca s' and status = 'IN_PROGRESS';
-- a read-only transaction
begin read only;
select * from outbox.claim('ca s');
rollback;
begin read only;
select outbox.ack_all(gen_random_uuid());
rollback;
-- only the first row is fetched: the others are held too
select count(*) from (select from outbox.claim('ca s', 10) limit 1) c;
select in_progress from outbox.subscription_status where subscription = 'ca s';
begin;
declare c cursor for select payload from outbox.claim('ca s', 10);
fetch 0 from c;
fetch 1 from c \g /dev/null
close c;
commit;
select in_progress from outbox.subscription_status where subscription = 'ca s';
-- rolled back: as if it had not been
begin;
select count(*) from outbox.claim('ca s', 10);
rollback;
begin;
savepoint a;
select count(*) from outbox.claim('ca s', 10);
rollback to a;
commit;
select in_progress from outbox.subscription_status where subscription = 'ca s';
-- not to be prepared
begin;
select count(*) from outbox.claim('ca s', 10);
prepare transaction 'ca';
select in_progress from outbox.subscription_status where subscription = 'ca s';

-- the other calls
select lease_token as t, event_id as e from outbox.claim('ca s', 1) \gset
truncate claim_arguments.trial;
insert into claim_arguments.trial (statement)
select format('select ' || a, :'t', :'e') from unnest(array[
    'outbox.ack(null, array[%2$L::uuid])', 'outbox.ack(%1$L, null)', 'outbox.ack(%1$L, array[%2$L, null]::uuid[])', 'outbox.ack(%1$L, ''{}'')',
    'outbox.ack_all(null)', 'outbox.ack_one(null, %2$L)', 'outbox.ack_one(%1$L, null)', 'outbox.ack_one(%1$L, %2$L, repeat(''m'', 513))',
    'outbox.fail(null, %2$L)', 'outbox.fail(%1$L, null)', 'outbox.fail(%1$L, %2$L, '''')', 'outbox.fail(%1$L, %2$L, ''a b'')', 'outbox.fail(%1$L, %2$L, repeat(''c'', 65))', 'outbox.fail(%1$L, %2$L, ''010-1234-5678'')', 'outbox.fail(%1$L, %2$L, ''tel.010-1234-5678'')',
    'outbox.fail(%1$L, %2$L, E''a\nb'')', 'outbox.fail(%1$L, %2$L, permanent => null)', 'outbox.fail(%1$L, %2$L, permanent => true, retry_after => ''1 s'')',
    'outbox.fail(%1$L, %2$L, retry_after => ''-1 s'')',
    'outbox.extend(null)', 'outbox.extend(%1$L, ''0'')', 'outbox.extend(%1$L, ''-1 s'')', 'outbox.extend(%1$L, ''1 day 1 us'')', 'outbox.extend(%1$L, ''100 years'')',
    'outbox.release(null, array[%2$L::uuid])', 'outbox.release(%1$L, null)', 'outbox.release(%1$L, array[null]::uuid[])', 'outbox.release(%1$L, ''{}'')',
    'outbox.release(%1$L, array[%2$L::uuid], ''-1 us'')', 'outbox.release_all(null)']) a;
select regexp_replace(regexp_replace(statement, :'t', 'T'), :'e', 'E') as statement, claim_arguments.try(statement) as answer from claim_arguments.trial order by n;
-- by the class of the SQLSTATE only: ids are not the same each time, and infinite intervals came with 17
select what, left(claim_arguments.try(format('select ' || call, :'t', :'e')), 2) as class from (values
    ('two dimensions, one unknown', 'outbox.ack(%1$L, array[[%2$L, gen_random_uuid()::text]]::uuid[])'),
    ('a hundred thousand unknown', 'outbox.ack(%1$L, array(select gen_random_uuid() from generate_series(1, 100000)))'),
    ('the nil uuid', 'outbox.ack(%1$L, array[''00000000-0000-0000-0000-000000000000'']::uuid[])'),
    ('  as token', 'outbox.ack_all(''00000000-0000-0000-0000-000000000000'')'),
    ('    with a claim', 'count(*) from outbox.claim(''ca s'', ack => ''00000000-0000-0000-0000-000000000000'')'),
    ('an endless lease', 'count(*) from outbox.claim(''ca s'', 1, ''infinity'')'), ('  of minus infinity', 'count(*) from outbox.claim(''ca s'', 1, ''-infinity'')'),
    ('extended for ever', 'outbox.extend(%1$L, ''infinity'')'), ('  minus', 'outbox.extend(%1$L, ''-infinity'')'),
    ('failed, never again', 'outbox.fail(%1$L, %2$L, retry_after => ''infinity'')'), ('  minus', 'outbox.fail(%1$L, %2$L, retry_after => ''-infinity'')'),
    ('released for ever', 'outbox.release(%1$L, array[%2$L::uuid], ''infinity'')'), ('  minus', 'outbox.release(%1$L, array[%2$L::uuid], ''-infinity'')'))
    as t (what, call);
-- what is allowed at the edge
create table claim_arguments.held as select lease_token as t, event_id as e, row_number() over () as n from outbox.claim('ca s', 12, null, null);
select d.worker is null as no_worker, l.expires_at - l.claimed_at as lease from outbox.delivery d, outbox.lease l, claim_arguments.held h
where d.subscription = 'ca s' and d.event_id = h.e and l.token = h.t and h.n = 1;
select call, claim_arguments.try(format('select ' || call, t, e)) as answer from (values
    (1, 'outbox.extend(%1$L, null) between clock_timestamp() + interval ''115 s'' and clock_timestamp() + interval ''125 s'''),
    (2, 'outbox.extend(%1$L, ''1 day'') > clock_timestamp() + interval ''23 hours'''),
    (3, 'outbox.ack_one(%1$L, %2$L, null)'), (4, 'outbox.ack_one(%1$L, %2$L, '''')'), (5, 'outbox.ack_one(%1$L, %2$L, repeat(''m'', 512))'),
    (6, 'outbox.ack(%1$L, array_fill(%2$L::uuid, array[100000]))'), (7, 'outbox.ack(%1$L, array[[%2$L, %2$L], [%2$L, %2$L]]::uuid[])'),
    (8, 'outbox.fail(%1$L, %2$L, null, false, null, null)'), (9, 'outbox.fail(%1$L, %2$L, retry_after => ''30 days'')'),
    (10, 'outbox.release(%1$L, array[%2$L::uuid], null)'), (11, 'outbox.release(%1$L, array[%2$L::uuid], ''0'')'),
    (12, 'outbox.release(%1$L, array[%2$L::uuid], ''100 years'')')) as c (n, call) join claim_arguments.held using (n) order by n;
select h.n, d.status, d.error_code, length(d.message_id) as message_id, d.next_attempt_at > clock_timestamp() + interval '29 days' as late
from claim_arguments.held h join outbox.delivery d on d.subscription = 'ca s' and d.event_id = h.e where h.n > 2 order by n;
select count(*) from outbox.claim('ca s', 1, worker => '');

-- it is still held
select outbox.fail(:'t', :'e', repeat('c', 64), retry_after => '100 years');
select error_code = repeat('c', 64) as code, status, attempts, next_attempt_at - clock_timestamp() between interval '29 days' and interval '30 days' as cut
from outbox.delivery where subscription = 'ca s' and event_id = :'e';

-- the message of a failure is kept on demand, and cut between characters
select lease_token as t, event_id as e from outbox.claim('ca s', 1) \gset
set outbox.keep_error_message = 'primary';
select outbox.fail(:'t', :'e', permanent => true, error_message => repeat('ü', 1000));
reset outbox.keep_error_message;
select attempts, max_attempts, error_code, error_message = repeat('ü', 512) as message from outbox.review_required where subscription = 'ca s';
select lease_token as t, event_id as e from outbox.claim('ca s', 1) \gset
select outbox.fail(:'t', :'e', '23505', error_message => 'secret');
select attempts, error_code, error_message from outbox.review_required where subscription = 'ca s' and event_id = :'e';

-- a new owner: none while somebody holds events
select outbox.alter_subscription('ca s', handler => 'claim_arguments.nothing');
set client_min_messages = error;
select outbox.alter_subscription('ca paused', handler => 'claim_arguments.nothing');
reset client_min_messages;
select count(outbox.unsubscribe(s, force => true)) from unnest('{ca s,ca paused,ca handled}'::text[]) s;
set client_min_messages = warning;
drop schema claim_arguments cascade;
