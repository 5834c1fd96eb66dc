-- ---------------------------------------------------------------------------
-- Who may do what.  Nothing is granted to anybody at first.
-- ---------------------------------------------------------------------------

create function outbox.grant_publisher(role_name text, event_types text[])
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_grant_publisher';
revoke all on function outbox.grant_publisher(text, text[]) from public;
comment on function outbox.grant_publisher(text, text[]) is
'Lets a role, and its members, publish events of these types. event_types: types and patterns; * is one word, # any number of words. With it go USAGE on the schema, and EXECUTE on what publishers and handlers call. Returns true when something of it is new. Only the owner of the extension may give rights.
Errors: 42704 no such role; 22023 not a pattern, or none; 42501 the caller is not the owner.';

create function outbox.grant_worker(role_name text, subscription text)
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_grant_worker';
revoke all on function outbox.grant_worker(text, text) from public;
comment on function outbox.grant_worker(text, text) is
'Lets a role, and its members, work a subscription: claim its events, of all tenants, and settle them. With it go USAGE on the schema, and EXECUTE on what workers and handlers call. It ends with the subscription. Returns true when it is new.
Errors: 42704 no such role or subscription; 42501 the caller is not the owner.';

create function outbox.grant_operator(role_name text)
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_grant_operator';
revoke all on function outbox.grant_operator(text) from public;
comment on function outbox.grant_operator(text) is
'Lets a role, and its members, run the whole: subscribe, alter, pause, retry, discard, replay, define event types, for all tenants; and look at all that a monitor sees. Whoever subscribes gets the events: an operator can read every payload. An operator cannot give rights. Returns true when it is new.
Errors: 42704 no such role; 42501 the caller is not the owner.';

create function outbox.grant_monitor(role_name text)
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_grant_monitor';
revoke all on function outbox.grant_monitor(text) from public;
comment on function outbox.grant_monitor(text) is
'Lets a role, and its members, look at all views that show no payload, for all tenants. Returns true when it is new.
Errors: 42704 no such role; 42501 the caller is not the owner.';

create function outbox.revoke_publisher(role_name text, event_types text[])
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_revoke_publisher';
revoke all on function outbox.revoke_publisher(text, text[]) from public;
comment on function outbox.revoke_publisher(text, text[]) is
'Takes back what outbox.grant_publisher() gave, pattern by pattern as they were given; with the last one EXECUTE, and USAGE on the schema when no other right is left. Returns true when there was something to take.
Errors: 22023 not a pattern, or none; 42501 the caller is not the owner.';

create function outbox.revoke_worker(role_name text, subscription text)
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_revoke_worker';
revoke all on function outbox.revoke_worker(text, text) from public;
comment on function outbox.revoke_worker(text, text) is
'Takes back what outbox.grant_worker() gave. Returns true when there was something to take. Errors: 42501 the caller is not the owner.';

create function outbox.revoke_operator(role_name text)
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_revoke_operator';
revoke all on function outbox.revoke_operator(text) from public;
comment on function outbox.revoke_operator(text) is
'Takes back what outbox.grant_operator() gave. Returns true when there was something to take. Errors: 42501 the caller is not the owner.';

create function outbox.revoke_monitor(role_name text)
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_revoke_monitor';
revoke all on function outbox.revoke_monitor(text) from public;
comment on function outbox.revoke_monitor(text) is
'Takes back what outbox.grant_monitor() gave. Returns true when there was something to take. Errors: 42501 the caller is not the owner.';

create function outbox.reassert_grants()
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_reassert_grants';
revoke all on function outbox.reassert_grants() from public;
comment on function outbox.reassert_grants() is
'Internal: gives every role the privileges that go with its rights again; called at the end of an upgrade, which may have added functions and views. Errors: 42501 the caller is not the owner.';
