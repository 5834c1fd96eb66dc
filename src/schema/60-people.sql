-- ---------------------------------------------------------------------------
-- What people do by hand.
-- ---------------------------------------------------------------------------

create function outbox.retry(subscription text, event_id uuid)
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_retry';
revoke all on function outbox.retry(text, uuid) from public;
comment on function outbox.retry(text, uuid) is
'Tries a REVIEW_REQUIRED delivery again, at once and with fresh attempts; its history is kept. Of an event that was replayed, whatever is in review is tried again. Returns false when nothing of it requires a review (any more): in every other state the delivery is left alone. Errors: 42704 no such subscription.';

create function outbox.retry_all(subscription text, error_code text default null, max_events integer default null)
returns integer
language c
as 'MODULE_PATHNAME', 'outbox_retry_all';
revoke all on function outbox.retry_all(text, text, integer) from public;
comment on function outbox.retry_all(text, text, integer) is
'Tries the REVIEW_REQUIRED deliveries of a subscription again, as outbox.retry() does, and returns how many. error_code: only those that failed with it last; null: whatever the code. max_events: at most so many, the oldest first; null: all. They come due one after the other, 400 a second, the first one at once, of a key the earlier event first; each call starts anew, so that several calls add up. A delivery that somebody else has locked just now is left out. Cost: about 20 us a delivery, in the caller''s transaction, in bounded memory. Errors: 42704 no such subscription; 22023 max_events below 1.';

create function outbox.replay(subscription text, from_time timestamptz, to_time timestamptz default null)
returns bigint
language c
as 'MODULE_PATHNAME', 'outbox_replay_range';
revoke all on function outbox.replay(text, timestamptz, timestamptz) from public;
comment on function outbox.replay(text, timestamptz, timestamptz) is
'Delivers events of the log to a subscription again, and returns how many: those published from from_time on and before to_time (null: now) whose types the subscription receives, whether they were delivered before or not, and older ones than the subscription too. Each becomes a delivery of its own under the next replay_no; the receipts and the history of earlier ones stay. Replays are outside of the live order: they neither wait for events of their key nor hold them up, nor each other, and live deliveries go first. They come due one after the other, 400 a second, the first one at once, those with a later deliver_at then. Name the second argument: a bare literal there could be a time or a list.
Only events are found that are committed when the call begins. Until the end of the transaction, changes by hand of the subscription wait. Cost: about 25 us an event that is replayed and 1 us one that is passed over, in the caller''s transaction, in bounded memory; then a row each until it is delivered. Errors: 42704 no such subscription; 22023 from_time after to_time.';

create function outbox.replay(subscription text, event_ids uuid[])
returns bigint
language c
as 'MODULE_PATHNAME', 'outbox_replay_ids';
revoke all on function outbox.replay(text, uuid[]) from public;
comment on function outbox.replay(text, uuid[]) is
'Delivers these events to a subscription again, each once, in the order of their ids, and returns how many: as outbox.replay() does by time. Either all of them or, after an error, none. Errors: 42704 no such subscription, or an event that is not in the log (the first one is named); 22023 an event of a type that the subscription does not receive; 22004 a null.';

create function outbox.discard(subscription text, event_id uuid, reason text)
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_discard';
revoke all on function outbox.discard(text, uuid, text) from public;
comment on function outbox.discard(text, uuid, text) is
'Gives up a delivery that is REVIEW_REQUIRED, or one in RETRY when nothing of the event is in review: it becomes DISCARDED, and later events of its key go on. Of an event that was replayed, all that are in that state. reason: required, kept in outbox.operator_log. Returns false when the delivery is in another state, also when it is being tried just now or has not been tried yet. Errors: 42704 no such subscription; 22023 no reason.';

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
