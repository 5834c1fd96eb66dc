-- Who listens: an audit trail and a notification for the assignee, each with a role of its own that may do
-- what it needs and no more.  The tables have no unique key on the event: were an event handled twice, it would show.

create table tw.audit (
    entry_id bigint generated always as identity primary key,
    event_id uuid not null,
    company_id text not null,
    envelope jsonb not null
);
grant insert on tw.audit to tw_audit;

create table tw.notification (
    notification_id bigint generated always as identity primary key,
    event_id uuid not null,
    company_id text not null,
    recipient text not null,
    message text not null
);
grant insert on tw.notification to tw_notify;
grant select on tw.member, tw.task to tw_notify;
create policy all_companies on tw.task for select to tw_notify using (true);

-- The envelope is what every relay would send: company, actor, request and trace around the data.
create function tw.write_audit(event outbox.event) returns void
language sql
set search_path = tw, pg_temp
as $$
    insert into audit (event_id, company_id, envelope)
    values (event.event_id, event.tenant_id, outbox.envelope(event))
$$;
grant execute on function outbox.envelope to tw_audit;

-- Takes the address when it is needed, from the member's own row: an address that was
-- corrected meanwhile is the right one, and a member without one fails for good.
create function tw.notify(event outbox.event) returns void
language plpgsql
set search_path = tw, pg_temp
as $$
begin
    insert into notification (event_id, company_id, recipient, message)
    select event.event_id, event.tenant_id, m.email,
           case event.event_type when 'task.created' then 'New task: ' else 'Cancelled: ' end || t.title
    from member m, task t
    where m.member_id = (event.payload ->> 'assigneeId')::bigint
      and t.task_id = (event.payload ->> 'taskId')::bigint;
end
$$;

grant usage on schema outbox to tw_audit, tw_notify;
select outbox.subscribe('audit', array['task.*'], handler => 'tw.write_audit', run_as => 'tw_audit');
select outbox.subscribe('notification', array['task.*'], handler => 'tw.notify', run_as => 'tw_notify');
