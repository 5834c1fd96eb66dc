-- ---------------------------------------------------------------------------
-- What people do by hand.
-- ---------------------------------------------------------------------------

create function outbox.retry(subscription text, event_id uuid)
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_retry';
revoke all on function outbox.retry(text, uuid) from public;
comment on function outbox.retry(text, uuid) is
'Tries a REVIEW_REQUIRED delivery again, with fresh attempts; its history is kept. Returns false when the delivery does not require a review (any more). Errors: 42704 no such subscription.';

create function outbox.discard(subscription text, event_id uuid, reason text)
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_discard';
revoke all on function outbox.discard(text, uuid, text) from public;
comment on function outbox.discard(text, uuid, text) is
'Gives up a delivery that is REVIEW_REQUIRED or in RETRY: it becomes DISCARDED, and later events of its key go on. reason: required, kept in outbox.operator_log. Returns false when the delivery is in another state, also when it is being tried just now. Errors: 42704 no such subscription; 22023 no reason.';

create procedure outbox.drain(subscriptions text[] default null, timeout interval default '30 seconds')
language c
as 'MODULE_PATHNAME', 'outbox_drain';
revoke all on procedure outbox.drain(text[], interval) from public;
comment on procedure outbox.drain(text[], interval) is
'Returns when everything that was committed before the call is settled: completed, or waiting for a person (events behind one that waits for a person included), or delayed to a later time. For tests. subscriptions: null for all; of those without a handler, or paused, the events are routed and not waited for. timeout: at most 1 day.
Errors: OB005 timeout, with what is left; OB006 deliveries are held until outbox.activate(); 25001 called inside a transaction block; 42704 no such subscription.';

create function outbox.activate()
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_activate';
revoke all on function outbox.activate() from public;
comment on function outbox.activate() is
'Lets a database that was restored or copied from another server route and deliver from here on. Call it on one copy only: each copy that is activated delivers what was open. Returns false when nothing was held.';
