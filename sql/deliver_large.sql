-- A batch ends by the bytes of its events: large ones do not pile up in a worker.
set client_min_messages = warning;
create extension if not exists outbox;
create schema deliver_large;
-- and by nothing else, however slow the server is
alter system set outbox.batch_time = '10 s';
alter system set deadlock_timeout = '20 s';
select pg_reload_conf();
create table deliver_large.call (events integer);

create function deliver_large.handler(events outbox.event[]) returns void language sql as
'insert into deliver_large.call values (cardinality(events))';
select outbox.subscribe('dl batch', '{dl.#}', 'deliver_large.handler');

-- incompressible: 100 times about 240 kB, in one lane
select count(outbox.publish('dl.large', jsonb_build_object('n', n, 'text', filler), event_key => 'one'))
from generate_series(1, 100) n,
     lateral (select string_agg(md5(n::text || '-' || i), '') as filler from generate_series(1, 7500) i) f;
call outbox.drain('{dl batch}');
select sum(events), max(events) > 30 as many_at_once, max(events) * 240 < 9000 as within_bytes from deliver_large.call;
select status, count(*) from outbox.delivery where subscription = 'dl batch' group by status;

alter system reset outbox.batch_time;
alter system reset deadlock_timeout;
select pg_reload_conf();
select outbox.unsubscribe('dl batch');
drop schema deliver_large cascade;
