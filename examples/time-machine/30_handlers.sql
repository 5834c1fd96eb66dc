-- What the handlers write: the appointments of a user, moved by each change of its clock.  No unique
-- key on the event: were an event handled twice, it would show.

create table tm.move (
    move_id bigint generated always as identity primary key,
    event_id uuid not null,
    event_type text not null,
    user_id text not null,
    version integer not null
);

create table tm.alert (
    alert_id bigint generated always as identity primary key,
    about_event uuid not null,
    event_type text not null,
    importance text not null,
    error_code text not null,
    trace_id text
);

-- the calendar of a user, which lives elsewhere, may not answer
create table tm.calendar_down (user_id text primary key);

grant insert on tm.move, tm.alert to tm_worker;
grant select on tm.calendar_down to tm_worker;
grant usage on schema outbox to tm_worker;
grant execute on function outbox.fail_permanently to tm_worker;

-- Moves the appointments of the user.  A calendar that does not answer may answer later: an
-- error that is tried again, 5 times, and then needs a person.
create function tm.move_appointments(event outbox.event) returns void
language plpgsql
set search_path = tm, pg_temp
as $$
begin
    if exists (select from calendar_down where user_id = event.payload ->> 'userId') then
        raise exception 'the calendar does not answer' using errcode = 'connection_failure';
    end if;
    insert into move (event_id, event_type, user_id, version)
    values (event.event_id, event.event_type, event.payload ->> 'userId', (event.payload ->> 'version')::integer);
end
$$;

-- The clocks of all: one change of each, in the order of its user.  These events
-- carry the trace of the one that caused them.
create function tm.change_all(event outbox.event) returns void
language plpgsql
set search_path = tm, pg_temp
as $$
begin
    perform tm.change(user_id, 'time_changed_for_user', (event.payload ->> 'virtualTime')::timestamptz, null, 'FOR_ALL')
    from (select user_id from clock where enabled order by user_id) as users;
end
$$;

-- Rolls a clock back to an earlier setting.  Three ways to end: done; not to be done, which is an answer; and
-- an error that no waiting heals, which is given up at once.
create function tm.roll_back_now(event outbox.event) returns void
language plpgsql
set search_path = tm, pg_temp
as $$
declare
    wanted setting;
    before clock;
    after clock;
begin
    select * into strict before from clock where user_id = event.payload ->> 'userId' for update;
    if not event.payload ? 'rollbackTo' or (event.payload ->> 'rollbackTo')::integer < 0 then
        perform outbox.fail_permanently('rollback_to_nowhere');
    end if;
    select * into wanted from setting
    where user_id = before.user_id and version = (event.payload ->> 'rollbackTo')::integer;

    update clock set version = version + 1, virtual_time = case when wanted is null then virtual_time else wanted.virtual_time end
    where user_id = before.user_id
    returning * into after;
    perform tm.publish(case when wanted is null then 'rollback_failed' else 'rollback_completed' end,
        after, before.virtual_time, case when wanted is null then 'NO_SUCH_VERSION' else 'TEST' end);
end
$$;

-- What needs a person is an event of the server's own.
create function tm.raise_alert(event outbox.event) returns void
language sql
set search_path = tm, pg_temp
as $$
    insert into alert (about_event, event_type, importance, error_code, trace_id)
    select (event.payload ->> 'eventId')::uuid, event.payload ->> 'eventType',
           (select importance from outbox.event_type as t where t.event_type = event.payload ->> 'eventType'),
           event.payload ->> 'errorCode', event.trace_id
$$;
grant select on outbox.event_type to tm_worker;

select outbox.subscribe('calendar', array['time_machine.#'], handler => 'tm.move_appointments', run_as => 'tm_worker',
    max_attempts => 6, backoff_base => '50 milliseconds', backoff_factor => 2);
select outbox.subscribe('everybody', array['time_machine.time_changed_for_all'], handler => 'tm.change_all', run_as => 'tm_worker');
select outbox.subscribe('rollback', array['time_machine.rollback_initiated'], handler => 'tm.roll_back_now', run_as => 'tm_worker');
select outbox.subscribe('alert', array['outbox.review_required'], handler => 'tm.raise_alert', run_as => 'tm_worker');
