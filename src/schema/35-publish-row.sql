-- ---------------------------------------------------------------------------
-- Publishing from a table: each change of a row is an event.
-- ---------------------------------------------------------------------------

create function outbox.publish_row()
returns trigger
language c
as 'MODULE_PATHNAME', 'outbox_publish_row';
revoke all on function outbox.publish_row() from public;
comment on function outbox.publish_row() is
'A trigger function, for AFTER INSERT, UPDATE and DELETE triggers FOR EACH ROW: publishes the columns of the row that it is told to, and no others, in the transaction that changes the row.
create trigger publish after insert or update or delete on task for each row
    execute function outbox.publish_row(''event_type=task.{op}'', ''columns=id,title,due'', ''aggregate_type=task'', ''aggregate=id'');
Arguments, each as ''name=value''; columns are named as SQL names them, in double quotes where it needs them:
event_type: required; {op} in it becomes created, updated or deleted. columns: required; the payload is an object of these, as to_jsonb() has them: of the new row, or of the row that was deleted.
old=true: the payload is {"old": {...}, "new": {...}}; the one that there is not is null.
aggregate_type: a text. aggregate: the column that is the aggregate_id. key: the columns that are the event_key, from the new row if there is one; several are joined by colons. When one of them is null, or key is left out, the key comes from the aggregate as in outbox.publish(). tenant: the column that is the tenant_id; null, or left out: the setting outbox.tenant_id. payload_version: a text.
changed: an update makes an event only when one of these columns has become another one. For other conditions use the WHEN clause of CREATE TRIGGER.
Texts of times, floats, intervals and bytea do not depend on the session''s settings; times are in UTC. An update that moves a row to another partition is a deleted row and a created one.
The owner of the table needs the right to publish the type; who changes a row needs none.
Errors, at the change of a row: 42501 the owner may not publish the type; 42703 no such column (any more); 22023 an argument out of its rules; 39P01 not an AFTER trigger for each row; 0A000 a virtual generated column; else as outbox.publish().';
