-- Who listens: an audit trail and a notification for the assignee.  A handler is a
-- function of the event; it runs as the role demo_app, and what it writes commits
-- together with the receipt.  The tables have no unique key on the event: were
-- an event handled twice, it would show.

create table demo.audit (
    entry_id bigint generated always as identity primary key,
    event_id uuid not null,
    event_type text not null,
    task_id text not null,
    request_id text
);

create table demo.notification (
    notification_id bigint generated always as identity primary key,
    event_id uuid not null,
    recipient text not null,
    message text not null
);

create function demo.write_audit(event outbox.event) returns void
language sql
set search_path = demo, pg_temp
as $$
    insert into audit (event_id, event_type, task_id, request_id)
    values (event.event_id, event.event_type, event.aggregate_id, event.request_id)
$$;

-- Fails twice for the task "Book the hall", as a mail gateway does that comes back a
-- little later; and for good where the assignee has no e-mail address: NOT NULL is violated,
-- which no waiting heals.
create function demo.notify_assignee(event outbox.event) returns void
language plpgsql
set search_path = demo, pg_temp
as $$
begin
    if event.payload ->> 'title' = 'Book the hall' and (select attempt from outbox.current_delivery()) <= 2 then
        raise exception 'mail gateway does not answer' using errcode = 'connection_failure';
    end if;

    insert into notification (event_id, recipient, message)
    select event.event_id, email, format('%s: %s', event.event_type, event.payload ->> 'title')
    from member
    where name = event.payload ->> 'assignee';
end
$$;

create role demo_app;
grant usage on schema demo, outbox to demo_app;
grant execute on function outbox.current_delivery() to demo_app;
grant select on demo.member to demo_app;
grant insert on demo.audit, demo.notification to demo_app;

select outbox.subscribe('audit', array['task.*'],
    handler => 'demo.write_audit', run_as => 'demo_app');
select outbox.subscribe('notification', array['task.*'],
    handler => 'demo.notify_assignee', run_as => 'demo_app',
    backoff_base => '300 milliseconds', backoff_factor => 2);
