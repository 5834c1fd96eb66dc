-- ---------------------------------------------------------------------------
-- Receiving: waiting for something to claim, and messages from elsewhere.
-- ---------------------------------------------------------------------------

create procedure outbox.wait(subscriptions text[], timeout interval default '30 seconds', inout ready boolean default null)
language c
as 'MODULE_PATHNAME', 'outbox_wait';
revoke all on procedure outbox.wait(text[], interval, boolean) from public;
comment on procedure outbox.wait(text[], interval, boolean) is
'Returns when there is something to claim in one of the subscriptions (ready: true), or at the timeout (ready: false). Whoever else waits may be faster to claim it.
Wakes within milliseconds of the commit that brings something, also of a retry, a due time, a key that opens. When more sessions wait for a subscription than events came, the others learn of them within outbox.poll_interval. What an open transaction has locked, such as a lane by a claim that is not committed, is not to be claimed; its end is noticed within the time that it took, or outbox.poll_interval. Holds no snapshot and no transaction while it waits, and costs publishers nothing.
subscriptions: 1 to 1000 names, of subscriptions without a handler. timeout: from 0 (only look) to 1 day. ready: only returned.
Errors: 25001 called inside a transaction block or a function; 42704 no such subscription; 55000 it has a handler; 42501 no right to work it; OB006 deliveries are held until outbox.activate(); 25006 on a standby.';

create function outbox.consume_once(receiver text, message_id text)
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_consume_once';
revoke all on function outbox.consume_once(text, text) from public;
comment on function outbox.consume_once(text, text) is
'For messages that come from elsewhere and may come again: true the first time only, in the caller''s transaction. Call it before what the message makes, and leave that when it is false. A rollback, also to a savepoint, takes it back. While another transaction has the same message open, it waits for that one: false when it commits, true when it rolls back. The same at every isolation level, also when the caller''s snapshot is older than the first time.
receiver: whose messages these are, 1-200 bytes. message_id: as the sender gave it, 1-512 bytes; both compare byte by byte. Under outbox.tenant_setting each tenant has receivers of its own. A name is common to all roles that may call this function: whoever names a receiver and a message takes it. A message is remembered for as long as receipts are kept.
Two transactions that take the same two messages in opposite order can deadlock, as with any unique key (40P01, and one of them is to be done again): take one message in a transaction, or several in the order of their ids.
Errors: 22004 an argument is null; 22023 it is empty or too long; OB002 outbox.tenant_setting names no tenant, and the role is not one of all tenants; 25006 in a read-only transaction.';
