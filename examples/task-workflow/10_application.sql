-- The application: companies that share one database, their members and tasks.
-- A connection layer sets app.company_id for each transaction; row-level security shows it that company only.

create role tw_app;         -- the application
create role tw_audit;       -- owns what the audit trail may do
create role tw_notify;      -- owns what notifications may do

create schema tw;
grant usage on schema tw to tw_app, tw_audit, tw_notify;

create table tw.company (
    company_id text primary key,
    name text not null
);

create table tw.member (
    member_id bigint generated always as identity primary key,
    company_id text not null references tw.company,
    name text not null,
    email text
);

create table tw.task (
    task_id bigint generated always as identity primary key,
    company_id text not null references tw.company default current_setting('app.company_id'),
    title text not null,
    assignee_id bigint not null references tw.member,
    status text not null default 'OPEN' check (status in ('OPEN', 'CANCELLED'))
);

alter table tw.task enable row level security;
create policy own_company on tw.task to tw_app
    using (company_id = current_setting('app.company_id'));
grant select, insert, update on tw.task to tw_app;

insert into tw.company values ('acme', 'Acme'), ('globex', 'Globex');
insert into tw.member (company_id, name, email)
values ('acme', 'Anna', 'anna@acme.example'), ('acme', 'Ben', 'ben@acme.example'), ('globex', 'Chris', 'chris@globex.example');

-- What the connection layer of the application does at the start of each transaction.
create procedure tw.begin_request(company text, member bigint, request text, trace text default null)
language plpgsql
as $$
begin
    perform set_config('app.company_id', company, true),
            set_config('outbox.actor_type', 'member', true),
            set_config('outbox.actor_id', member::text, true),
            set_config('outbox.request_id', request, true),
            set_config('outbox.trace_id', coalesce(trace, ''), true),
            set_config('outbox.source', 'task-service', true);
end
$$;

-- Creating a task publishes an event in the same transaction.  The event says which task, and who is to do it,
-- by their ids: title, name and address stay in their tables, where the rules for them are.
-- A request that is repeated (its answer was lost) finds the task that it has made.
create function tw.create_task(title text, assignee bigint) returns bigint
language plpgsql
as $$
declare
    new_id bigint;
begin
    insert into tw.task (title, assignee_id)
    values (create_task.title, assignee)
    returning task_id into new_id;

    perform outbox.publish('task.created',
        payload => jsonb_build_object('taskId', new_id, 'assigneeId', assignee),
        aggregate_type => 'task',
        aggregate_id => new_id::text);
    return new_id;
end
$$;

create function tw.cancel_task(id bigint, reason_code text) returns bigint
language plpgsql
as $$
declare
    assignee bigint;
begin
    update tw.task set status = 'CANCELLED'
    where task_id = id and status = 'OPEN'
    returning assignee_id into strict assignee;

    perform outbox.publish('task.cancelled',
        payload => jsonb_build_object('taskId', id, 'assigneeId', assignee, 'reasonCode', reason_code),
        aggregate_type => 'task',
        aggregate_id => id::text);
    return id;
end
$$;
