--
-- outbox.consume_once(): true the first time only.
--
set client_min_messages = warning;
create extension if not exists outbox;
reset client_min_messages;

select outbox.consume_once('mail', 'm1') as first;
select outbox.consume_once('mail', 'm1') as first;
select outbox.consume_once('mail', 'm2') as other_message, outbox.consume_once('stock', 'm1') as other_receiver;
select n, outbox.consume_once('mail', 'm' || n % 2 + 10) as first from generate_series(1, 4) as n;
select receiver, message_id, consumed_at between now() - interval '1 minute' and clock_timestamp() as now
from outbox.consumed order by receiver, message_id;

-- a rollback takes it back, also to a savepoint
begin;
select outbox.consume_once('mail', 'r1') as first;
rollback;
select outbox.consume_once('mail', 'r1') as first;
begin;
savepoint s;
select outbox.consume_once('mail', 'r2') as first, outbox.consume_once('mail', 'r2') as again;
rollback to s;
select outbox.consume_once('mail', 'r2') as first;
savepoint t;
release t;
select outbox.consume_once('mail', 'r2') as again;
commit;
select outbox.consume_once('mail', 'r2') as again;
do $$
begin
    begin
        if outbox.consume_once('mail', 'r3') then
            raise exception 'the work fails';
        end if;
    exception when raise_exception then
        raise notice 'failed';
    end;
    raise notice 'first: %', outbox.consume_once('mail', 'r3');
end $$;

-- in the transaction of its effects, whose prepared half counts
create table consume_effect (n integer);
begin;
insert into consume_effect select 1 where outbox.consume_once('mail', 'p1');
prepare transaction 'consume';
set lock_timeout = '100ms';
\set VERBOSITY terse
select outbox.consume_once('mail', 'p1');
\set VERBOSITY default
reset lock_timeout;
commit prepared 'consume';
insert into consume_effect select 2 where outbox.consume_once('mail', 'p1');
select n from consume_effect;

-- names and ids: byte by byte, at their edges
select name, length(receiver) as receiver_bytes, length(message_id) as id_bytes,
       outbox.consume_once(receiver, message_id) as first, outbox.consume_once(receiver, message_id) as again
from (values ('shortest', 'r', 'm'),
             ('longest', repeat('r', 200), repeat('m', 512)),
             ('quotes', 'a"b''c;--', '%I $$ \ '),
             ('control', E'a\nb', E'\t'),
             ('upper', 'Twin', 'ID'), ('lower', 'twin', 'id'),
             ('space', 'twin ', 'id'), ('space too', 'twin', 'id '),
             ('split here', 'ab', 'c'), ('split there', 'a', 'bc')) as v (name, receiver, message_id);
select outbox.consume_once(null, 'm');
\echo :SQLSTATE
select outbox.consume_once('r', null);
\echo :SQLSTATE
select outbox.consume_once('', 'm');
\echo :SQLSTATE
select outbox.consume_once('r', '');
\echo :SQLSTATE
select outbox.consume_once(repeat('r', 201), 'm');
\echo :SQLSTATE
select outbox.consume_once('r', repeat('m', 513));
\echo :SQLSTATE
begin read only;
select outbox.consume_once('r', 'm');
\echo :SQLSTATE
rollback;

-- no rights on the table are needed, and PUBLIC has none on the function
create role outbox_test_receiver;
grant usage on schema outbox to outbox_test_receiver;
set role outbox_test_receiver;
select outbox.consume_once('mail', 'x');
\echo :SQLSTATE
reset role;
grant execute on function outbox.consume_once to outbox_test_receiver;
set role outbox_test_receiver;
select outbox.consume_once('mail', 'x') as first;
select count(*) from outbox.consumed;
\echo :SQLSTATE
reset role;
revoke all on function outbox.consume_once from outbox_test_receiver;
revoke usage on schema outbox from outbox_test_receiver;
drop role outbox_test_receiver;

delete from outbox.consumed;
drop table consume_effect;
