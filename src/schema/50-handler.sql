-- ---------------------------------------------------------------------------
-- What a handler may say and ask.
-- ---------------------------------------------------------------------------

create type outbox.current_delivery as (
    subscription text,
    event_id uuid,
    attempt integer,
    max_attempts integer,
    replay_no integer
);
comment on type outbox.current_delivery is 'The delivery that a handler is called for; see outbox.current_delivery().';

create function outbox.current_delivery() returns outbox.current_delivery
language c volatile parallel restricted
as 'MODULE_PATHNAME', 'outbox_current_delivery';
revoke all on function outbox.current_delivery() from public;
comment on function outbox.current_delivery() is
'In a handler: the delivery at hand (of a batch handler, its first); attempt counts from 1, over all outbox.retry(). Elsewhere null.';

create function outbox.fail_permanently(error_code text) returns boolean
language c volatile parallel restricted
as 'MODULE_PATHNAME', 'outbox_fail_permanently';
revoke all on function outbox.fail_permanently(text) from public;
comment on function outbox.fail_permanently(text) is
'In a handler: give the event up at once; it needs review, with this error_code: an SQLSTATE, or [A-Za-z0-9_.:-], 1-64 characters, the first a letter, at most 6 of them digits and 5 of these in a row. It is shown in views, metrics and the log: it names a kind of failure, and never holds data. Raises an error (OB003), which must leave the handler to count. Errors: 22023 for a malformed code (outbox.fail_permanently() has the rules), 55000 outside of a handler.';

create function outbox.retry_after(delay interval, error_code text = null, count_attempt boolean = true) returns boolean
language c volatile parallel restricted
as 'MODULE_PATHNAME', 'outbox_retry_after';
revoke all on function outbox.retry_after(interval, text, boolean) from public;
comment on function outbox.retry_after(interval, text, boolean) is
'In a handler: try the event again after delay (0 to 30 days), with count_attempt => false without using an attempt. Raises an error (OB004), which must leave the handler to count. Errors: 22023 for a delay that is null or out of range or a malformed code, 55000 outside of a handler.';
