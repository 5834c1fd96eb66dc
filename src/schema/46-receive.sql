-- ---------------------------------------------------------------------------
-- Receiving: waiting for something to claim, and messages from elsewhere.
-- ---------------------------------------------------------------------------

create procedure outbox.wait(subscriptions text[], timeout interval default '30 seconds', inout ready boolean default null)
language c
as 'MODULE_PATHNAME', 'outbox_wait';
revoke all on procedure outbox.wait(text[], interval, boolean) from public;
comment on procedure outbox.wait(text[], interval, boolean) is
'Returns when there is something to claim in one of the subscriptions (ready: true), or at the timeout (ready: false). Whoever else waits may be faster to claim it.
Wakes within milliseconds of the commit that brings something, also of a retry, a due time, a key that opens. When more sessions wait for a subscription than events came, the others learn of them within outbox.poll_interval. Holds no snapshot and no transaction while it waits, and costs publishers nothing.
subscriptions: 1 to 1000 names, of subscriptions without a handler. timeout: from 0 (only look) to 1 day. ready: only returned.
Errors: 25001 called inside a transaction block or a function; 42704 no such subscription; 55000 it has a handler; 42501 no right to work it; OB006 deliveries are held until outbox.activate(); 25006 on a standby.';
