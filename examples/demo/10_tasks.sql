-- The application: people and their tasks.  Creating and cancelling a task each
-- publish an event, in the transaction that changes the row.

create schema demo;

create table demo.member (
    name text primary key,
    email text
);
insert into demo.member
values ('anna', 'anna@example.org'), ('ben', 'ben@example.org'), ('dora', null);

create table demo.task (
    task_id bigint generated always as identity primary key,
    title text not null,
    assignee text not null references demo.member,
    status text not null default 'OPEN' check (status in ('OPEN', 'CANCELLED'))
);

create function demo.create_task(title text, assignee text) returns bigint
language plpgsql
as $$
declare
    new_task demo.task;
begin
    insert into demo.task (title, assignee)
    values (create_task.title, create_task.assignee)
    returning * into new_task;

    perform outbox.publish('task.created',
        payload => jsonb_build_object('taskId', new_task.task_id, 'title', title, 'assignee', assignee),
        aggregate_type => 'task',
        aggregate_id => new_task.task_id::text);
    return new_task.task_id;
end
$$;

create function demo.cancel_task(id bigint) returns bigint
language plpgsql
as $$
declare
    old_task demo.task;
begin
    update demo.task set status = 'CANCELLED'
    where task_id = id and status = 'OPEN'
    returning * into strict old_task;

    perform outbox.publish('task.cancelled',
        payload => jsonb_build_object('taskId', id, 'title', old_task.title, 'assignee', old_task.assignee),
        aggregate_type => 'task',
        aggregate_id => id::text);
    return id;
end
$$;
