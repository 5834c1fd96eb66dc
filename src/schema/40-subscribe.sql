-- ---------------------------------------------------------------------------
-- Subscriptions: who gets which events, and how.
-- ---------------------------------------------------------------------------

create function outbox.subscribe(
    subscription text,
    event_types text[],
    handler text default null,
    ordering text default 'key',
    lanes integer default 16,
    max_attempts integer default 6,
    backoff_base interval default '5 seconds',
    backoff_factor float8 default 5,
    backoff_max interval default '1 hour',
    lease_duration interval default '2 minutes',
    handler_timeout interval default '30 seconds',
    batch_size integer default 500,
    start_at timestamptz default null,
    on_review text default 'block',
    permanent_errors text[] default null,
    transient_errors text[] default null,
    run_as text default null)
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_subscribe';
revoke all on function outbox.subscribe(text, text[], text, text, integer, integer, interval, float8, interval, interval, interval, integer, timestamptz, text, text[], text[], text) from public;
comment on function outbox.subscribe(text, text[], text, text, integer, integer, interval, float8, interval, interval, interval, integer, timestamptz, text, text[], text[], text) is
'Makes a subscription: every event that matches and commits from now on is delivered to it. Returns true when it was made, false when it is there already with the same definition. An argument of null stands for its default.
subscription: its name, 1-200 bytes. event_types: types and patterns; * is one word, # any number of words.
handler: ''schema.function'', taking outbox.event (called for each event) or outbox.event[] (called for a batch); null: the events wait for outbox.claim(). run_as: the role it runs as, whatever it is called later; default: the caller. When that role is dropped the subscription stops until a superuser names another one.
ordering: ''key'' (events of one key one at a time, in order) or ''none''. lanes: 1-1024, how many parts may be worked side by side.
max_attempts: 1-1000, then REVIEW_REQUIRED. backoff_base, backoff_factor (1-1000), backoff_max: the delay after a failed attempt, at most 365 days, spread by 20 % either way.
lease_duration: 1 second to 1 day, of a claim that names none; a handler keeps what it is at, however long it takes. handler_timeout: 100 milliseconds to 1 day for one call. batch_size: 1-10000 events, at most, that a call of a batch handler is given, and that one transaction takes from a lane; up to 100 also at most in a transaction.
start_at: also the events still in the log since then; ''-infinity'': all of them. on_review: ''block'' (a key waits behind an event that needs a person) or ''continue''.
permanent_errors, transient_errors: SQLSTATEs, classes of them, or error codes; the more specific wins.
Errors: 42710 another definition under the name; 22023, 22004 an argument out of its rules; 42883, 42725, 42809 no such handler, two of them, not a plain function; 42501 the caller is no member of run_as, or run_as may not run the handler. Warning 01000: the handler will run as a superuser.';

create function outbox.alter_subscription(
    subscription text,
    event_types text[] default null,
    handler text default null,
    ordering text default null,
    lanes integer default null,
    max_attempts integer default null,
    backoff_base interval default null,
    backoff_factor float8 default null,
    backoff_max interval default null,
    lease_duration interval default null,
    handler_timeout interval default null,
    batch_size integer default null,
    on_review text default null,
    permanent_errors text[] default null,
    transient_errors text[] default null,
    run_as text default null,
    reset text[] default '{}')
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_alter_subscription';
revoke all on function outbox.alter_subscription(text, text[], text, text, integer, integer, interval, float8, interval, interval, interval, integer, text, text[], text[], text, text[]) from public;
comment on function outbox.alter_subscription(text, text[], text, text, integer, integer, interval, float8, interval, interval, interval, integer, text, text[], text[], text, text[]) is
'Changes the definition of a subscription; arguments as in outbox.subscribe(), null: as it is. reset: names of arguments to put back to their defaults (handler: none, run_as: the caller). Returns true when something changed. A change of lanes takes effect for new events, after the old lanes are drained, so that the order of a key holds. ordering ''none'' counts at once, for events in the lanes too; what waits behind an unfinished event of its key goes on waiting for that one. ordering ''key'' counts for events that are routed from then on; they wait until the old lanes are drained, and for nothing else that came before. New event_types apply to events routed from then on.
Errors: 42704 no such subscription; 42501 the caller is no member of its role; 55006 a handler is given or taken away while external workers hold events; else as outbox.subscribe().';

create function outbox.unsubscribe(subscription text, force boolean default false)
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_unsubscribe';
revoke all on function outbox.unsubscribe(text, boolean) from public;
comment on function outbox.unsubscribe(text, boolean) is
'Removes a subscription; its receipts stay. Returns false when there is none of that name. Waits for a batch at work. force: also when events wait for it, which are then never delivered to it.
Errors: 55000 there are unfinished deliveries; 42501 the caller is no member of its role.';

create function outbox.pause(subscription text)
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_pause';
revoke all on function outbox.pause(text) from public;
comment on function outbox.pause(text) is
'Stops deliveries of a subscription until outbox.resume(); its events go on to queue up. A batch at work is finished. Returns true when it was not paused before. Errors: 42704 no such subscription.';

create function outbox.resume(subscription text)
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_resume';
revoke all on function outbox.resume(text) from public;
comment on function outbox.resume(text) is
'Goes on with a paused subscription. Returns true when it was paused before. Errors: 42704 no such subscription.';

create function outbox.matching_subscriptions(event_type text)
returns setof text
language c
stable
as 'MODULE_PATHNAME', 'outbox_matching_subscriptions';
revoke all on function outbox.matching_subscriptions(text) from public;
comment on function outbox.matching_subscriptions(text) is
'The subscriptions that get events of a type, by name. Errors: 22023 not an event type.';
