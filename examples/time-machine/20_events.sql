-- Eight types of three importances, with one structure.

select event_type, importance,
       outbox.define_event_type('time_machine.' || event_type,
           allowed_keys => array['userId', 'version', 'virtualTime', 'previousTime', 'reasonCode', 'rollbackTo'],
           required_keys => array['userId', 'version', 'reasonCode'],
           key_types => '{"userId": "string", "version": "integer", "virtualTime": "timestamp", "previousTime": "timestamp",
                          "reasonCode": "string", "rollbackTo": "integer"}',
           importance => importance) as defined
from (values ('time_changed_for_all', 'high'),
             ('time_changed_for_user', 'medium'),
             ('time_reset', 'medium'),
             ('enabled', 'low'),
             ('disabled', 'low'),
             ('rollback_initiated', 'high'),
             ('rollback_completed', 'medium'),
             ('rollback_failed', 'high')) as type (event_type, importance);

-- the application publishes, and so do the handlers
select outbox.grant_publisher('tm_app', array['time_machine.*']);
select outbox.grant_publisher('tm_worker', array['time_machine.*']);
