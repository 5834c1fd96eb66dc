-- One round of a worker in plain SQL: waits, claims one event, handles it, and acknowledges it in the transaction
-- that holds its effects. worker.sh runs round after round. In psql, \gset puts what a statement
-- returns into variables (and leaves a variable unset for null).
--
--   psql -v worker=NAME -v token_file=FILE -f worker.sql
--
-- An error that is not foreseen here ends the round. What it claimed comes again when the lease has run out; its attempt counts.

\set ON_ERROR_STOP on
\set VERBOSITY sqlstate

-- Outside of a transaction. It is idle while it waits; the short timeout is how soon worker.sh sees a SIGTERM.
call outbox.wait(array['shipping'], timeout => '2 seconds') \gset
\if :ready
\else
    \quit
\endif

-- A transaction of its own, committed at once: from now on the event is leased to us, and its attempt counts.
-- Another worker may have been quicker; the outer join gives a row then too, of nulls, because \gset wants one.
select lease_token, event_id, attempt, payload ->> 'orderId' as order_id, payload ->> 'customer' as customer, payload ->> 'item' as item
from (select) as one_row
left join outbox.claim('shipping', max_events => 1, lease_duration => '3 seconds', worker => :'worker') on true \gset
\if :{?event_id}
\else
    \quit
\endif

-- for worker.sh, which gives the event back when it is told to stop
\o :token_file
\qecho :lease_token
\o

-- This stands for another system, with its moods: a piano takes four seconds, a vase times out twice, and
-- dragons are not carried. It may be asked twice for one event (we may crash after the call and before our commit), so it is
-- given the event's id, by which it can tell: the same id, the same booking.
select coalesce(:'item' = 'piano', false) as slow,
    case when :'item' = 'vase' and :attempt <= 2 then 'carrier_timeout' when :'item' = 'dragon' then 'not_carried' end as error_code,
    :'item' = 'dragon' as permanent,
    'B-' || :'event_id' as booking \gset

-- What is slow is done in steps, with no transaction open; between them the lease is renewed.
\if :slow
    \! sleep 2
    select outbox.extend(:'lease_token', '3 seconds') as lease_expires_at \gset
    \! sleep 2
    select outbox.extend(:'lease_token', '3 seconds') as lease_expires_at \gset
\endif

\if :{?error_code}
    -- By the code people find, and retry, what failed for the same reason.
    select outbox.fail(:'lease_token', :'event_id', error_code => :'error_code', permanent => :'permanent') as status \gset
    \echo failed :event_id: :error_code -> :status
    \quit
\endif

begin;
-- Acknowledge first: from here to the commit nobody can take the lease over; when it is lost, this raises OB001, and
-- ends the round with nothing done. False: it was acknowledged before, so its effects are there.
select outbox.ack_one(:'lease_token', :'event_id', message_id => :'booking') as first \gset
\if :first
    insert into shop.shipment (event_id, order_id, customer, booking, worker)
    values (:'event_id', :'order_id', :'customer', :'booking', :'worker');
\endif
commit;

\echo shipped :event_id
