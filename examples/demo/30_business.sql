-- Three requests that commit, one that changes its mind.

begin;
set local outbox.request_id = 'req-1001';
set local outbox.trace_id = '0af7651916cd43dd8448eb211c80319c';
select demo.create_task('Paint the fence', 'anna') as task;
commit;

begin;
set local outbox.request_id = 'req-1002';
select demo.create_task('Water the plants', 'ben') as task;
commit;

begin;
set local outbox.request_id = 'req-1003';
select demo.cancel_task(2) as task;
commit;

begin;
set local outbox.request_id = 'req-1004';
select demo.create_task('Never mind', 'anna') as task;
rollback;
