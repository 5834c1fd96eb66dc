-- What may be in an event, agreed on once: names and types of the keys.  Anything else is refused, where it is published.

select outbox.define_event_type('task.created',
    allowed_keys => array['taskId', 'assigneeId'],
    required_keys => array['taskId', 'assigneeId'],
    key_types => '{"taskId": "integer", "assigneeId": "integer"}',
    description => 'A task exists from now on.');

select outbox.define_event_type('task.cancelled',
    allowed_keys => array['taskId', 'assigneeId', 'reasonCode'],
    required_keys => array['taskId', 'assigneeId', 'reasonCode'],
    key_types => '{"taskId": "integer", "assigneeId": "integer", "reasonCode": "string"}',
    importance => 'high',
    description => 'A task is not to be done any more.');

-- of another application in the same database
select outbox.define_event_type('invoice.paid', allowed_keys => array['invoiceId']);

-- who may publish what
select outbox.grant_publisher('tw_app', array['task.*']);
