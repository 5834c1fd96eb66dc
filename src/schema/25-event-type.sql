-- ---------------------------------------------------------------------------
-- Event types: what their payloads may hold.
-- ---------------------------------------------------------------------------

create function outbox.define_event_type(
    event_type text,
    payload_version text default '1',
    allowed_keys text[] default null,
    required_keys text[] default null,
    key_types jsonb default null,
    importance text default 'medium',
    max_payload_bytes integer default null,
    exempt_keys text[] default null,
    description text default null)
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_define_event_type';
revoke all on function outbox.define_event_type(text, text, text[], text[], jsonb, text, integer, text[], text) from public;
comment on function outbox.define_event_type(text, text, text[], text[], jsonb, text, integer, text[], text) is
'Says what the payload of an event type may hold, in one payload_version; publish() refuses what does not fit (OB002), and any version of the type that is not defined. Calling it again replaces the definition; true when something changed. It counts in this transaction at once, elsewhere from the commit on.
A path is keys joined by dots; "[]" behind a key stands for the elements of its array, ".*" at the end for whatever is there and below; a key that holds . [ ] * or " stands in double quotes. customer.id, items[].sku, details.*
allowed_keys: null: any. A path allows a plain value (string, number, boolean) there, and objects and arrays on the way to it; an object or array that itself ends a path is refused unless the path ends with ".*", or with "[]" for an array of plain values. Null is allowed wherever something is. ''{}'': only the empty object.
required_keys: must be there and not null; behind "[]": in each element there is. Must be allowed. At most 64 in one object.
key_types: {"path": "type"}, type one of string, string(<characters>), number, integer, boolean, uuid, timestamp (ISO 8601, with date and time), array, object; "*": "string(<characters>)" limits every string that has no limit of its own.
importance: high, medium, low; shown in outbox.review_required. max_payload_bytes: as jsonb, up to 64 MB; outbox.max_payload_bytes still counts.
exempt_keys: where outbox.sensitive_data does not look: a path of the payload, "@headers." and a path, "@actor_id", "@aggregate_id", "@event_key", "@dedup_key", "@request_id" or "@correlation_id"; with "<detector>:" in front only that detector does not look.
Errors: 22023 a definition that cannot hold (a bad path, an unknown type, a required key that is not allowed, ...); 22004 event_type, payload_version or an element null; 42939 reserved event type.';

create function outbox.drop_event_type(event_type text, payload_version text)
returns boolean
language c
as 'MODULE_PATHNAME', 'outbox_drop_event_type';
revoke all on function outbox.drop_event_type(text, text) from public;
comment on function outbox.drop_event_type(text, text) is
'Removes the definition of an event type in one payload_version; false when there is none. Published events stay. With its last version the type is free again, unless outbox.require_event_type is on. Errors: 22004 an argument is null.';

create view outbox.event_type as
select d.event_type,
       d.payload_version,
       d.importance,
       d.allowed_keys,
       d.required_keys,
       d.key_types,
       d.max_payload_bytes,
       d.exempt_keys,
       d.description,
       d.defined_at,
       d.defined_by
from outbox.event_type_definition d;
revoke all on outbox.event_type from public;
comment on view outbox.event_type is 'The defined event types, one row a version; see outbox.define_event_type(). Cost: a scan of them.';
