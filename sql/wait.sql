--
-- outbox.wait(): arguments, and what counts as something to claim.
--
set client_min_messages = warning;
create extension if not exists outbox;
reset client_min_messages;

select outbox.subscribe('wait a', '{wait.a}', lanes => 1);
select outbox.subscribe('wait b', '{wait.b}');
create function wait_handler(e outbox.event) returns void language sql as '';
set client_min_messages = error;
select outbox.subscribe('wait handled', '{wait.handled}', 'public.wait_handler');
reset client_min_messages;

-- nothing there: at once with timeout 0, else at the timeout
call outbox.wait('{wait a}', '0');
call outbox.wait(array['wait a', 'wait b', 'wait a'], timeout => '10 milliseconds');
call outbox.wait('{wait a}', '10 milliseconds', true);

-- something there in one of them
select outbox.publish('wait.a') is not null as published;
call outbox.wait('{wait b, wait a}', '20 s');
call outbox.wait('{wait a}', '0');
call outbox.wait('{{wait a}, {wait b}}', '0');
call outbox.wait('{wait b}', '0');

-- not while the subscription is paused
select outbox.pause('wait a');
call outbox.wait('{wait a}', '10 milliseconds');
select outbox.resume('wait a');
call outbox.wait('{wait a}', '0');

-- not while it is delayed
select outbox.publish('wait.b', deliver_at => '2100-01-01') is not null as published;
call outbox.drain('{wait b}');
call outbox.wait('{wait b}', '0');

-- arguments
call outbox.wait(null);
\echo :SQLSTATE
call outbox.wait('{}');
\echo :SQLSTATE
call outbox.wait('{wait a, null}');
\echo :SQLSTATE
call outbox.wait('{wait a, wait nowhere}');
\echo :SQLSTATE
call outbox.wait('{""}');
\echo :SQLSTATE
call outbox.wait('{Wait A}');
\echo :SQLSTATE
call outbox.wait('{wait a, wait handled}');
\echo :SQLSTATE
call outbox.wait(array_fill('wait a'::text, '{1001}'));
\echo :SQLSTATE
call outbox.wait('{wait a}', null);
\echo :SQLSTATE
call outbox.wait('{wait a}', '-1 microsecond');
\echo :SQLSTATE
call outbox.wait('{wait a}', '1 day 1 microsecond');
\echo :SQLSTATE
call outbox.wait('{wait a}', '178000000 years');
\echo :SQLSTATE
call outbox.wait('{wait a}', '1 day');

-- where it cannot wait
begin;
call outbox.wait('{wait a}', '0');
\echo :SQLSTATE
rollback;
do $$
declare
    ready boolean;
begin
    call outbox.wait('{wait a}', '0', ready);
exception when active_sql_transaction then
    raise notice 'not in a block that catches errors: %', sqlerrm;
end $$;
create function wait_in_function() returns boolean language plpgsql as $$
declare
    ready boolean;
begin
    call outbox.wait('{wait a}', '0', ready);
    return ready;
end $$;
select wait_in_function();
\echo :SQLSTATE

-- but in a procedure, time after time, and whatever the session's defaults are
create procedure wait_in_procedure(inout looks integer) language plpgsql as $$
declare
    ready boolean;
    n integer := 0;
begin
    for i in 1 .. looks loop
        call outbox.wait('{wait a}', '0', ready);
        n := n + ready::integer;
        commit;
    end loop;
    looks := n;
end $$;
call wait_in_procedure(3);
set default_transaction_isolation = 'serializable';
set default_transaction_read_only = on;
set default_transaction_deferrable = on;
call wait_in_procedure(3);
call outbox.wait('{wait a}', '0');
reset default_transaction_isolation;
reset default_transaction_read_only;
reset default_transaction_deferrable;
set search_path = '';
call outbox.wait('{wait a}', '0');
reset search_path;

-- EXECUTE is not for everyone
create role outbox_test_waiter;
grant usage on schema outbox to outbox_test_waiter;
set role outbox_test_waiter;
call outbox.wait('{wait a}', '0');
\echo :SQLSTATE
reset role;
revoke usage on schema outbox from outbox_test_waiter;
drop role outbox_test_waiter;

select outbox.unsubscribe(name, force => true) from unnest(array['wait a', 'wait b', 'wait handled']) as name;
drop function wait_handler, wait_in_function;
drop procedure wait_in_procedure;
