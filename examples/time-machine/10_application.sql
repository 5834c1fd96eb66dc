-- The application: a time machine for testers of a system.  Each user has a clock that may be set, reset,
-- switched on and off, and rolled back to an earlier setting; one call sets the clocks of all.

create role tm_app;         -- the application
create role tm_worker;      -- owns what the handlers may do

create schema tm;
grant usage on schema tm to tm_app, tm_worker;

create table tm.clock (
    user_id text primary key,
    enabled boolean not null default true,
    virtual_time timestamptz,           -- null: the real time
    version integer not null default 0  -- counts the changes of this user's clock
);

create table tm.setting (               -- what a clock was set to, for rolling back
    user_id text not null references tm.clock,
    version integer not null,
    virtual_time timestamptz,
    primary key (user_id, version)
);

insert into tm.clock (user_id) values ('user-1'), ('user-2'), ('user-3'), ('user-4');
insert into tm.setting select user_id, version, virtual_time from tm.clock;
grant select, update on tm.clock to tm_app, tm_worker;
grant select, insert on tm.setting to tm_app, tm_worker;

-- Every change publishes one event of the same structure.  Its key is the user: what happens to
-- one clock is handled in order; those of other users do not wait for it.
create function tm.publish(event_type text, clock tm.clock, previous timestamptz, reason_code text, rollback_to integer default null)
returns uuid
language sql
set search_path = tm, pg_temp
as $$
    select outbox.publish('time_machine.' || event_type,
        payload => jsonb_strip_nulls(jsonb_build_object(
            'userId', clock.user_id,
            'version', clock.version,
            'virtualTime', clock.virtual_time,
            'previousTime', previous,
            'reasonCode', reason_code,
            'rollbackTo', rollback_to)),
        aggregate_type => 'clock',
        aggregate_id => clock.user_id)
$$;

create function tm.change(for_user text, event_type text, new_time timestamptz, new_enabled boolean, reason_code text)
returns uuid
language plpgsql
set search_path = tm, pg_temp
as $$
declare
    before clock;
    after clock;
begin
    -- the lock of this row is the order of the events of the user
    select * into strict before from clock where user_id = for_user for update;
    update clock set virtual_time = new_time, enabled = coalesce(new_enabled, enabled), version = version + 1
    where user_id = for_user
    returning * into after;
    insert into setting values (after.user_id, after.version, after.virtual_time);
    return tm.publish(event_type, after, before.virtual_time, reason_code);
end
$$;

create function tm.set_time(for_user text, new_time timestamptz) returns uuid
return tm.change(for_user, 'time_changed_for_user', new_time, null, 'TEST');
create function tm.reset(for_user text) returns uuid
return tm.change(for_user, 'time_reset', null, null, 'TEST');
create function tm.enable(for_user text) returns uuid
return tm.change(for_user, 'enabled', null, true, 'TEST');
create function tm.disable(for_user text) returns uuid
return tm.change(for_user, 'disabled', null, false, 'TEST');

-- One event for all users: a handler passes it on to each of them.
create function tm.set_time_for_all(new_time timestamptz) returns uuid
return outbox.publish('time_machine.time_changed_for_all',
    payload => jsonb_build_object('userId', '*', 'version', 0, 'virtualTime', new_time, 'reasonCode', 'TEST'),
    aggregate_type => 'clock', aggregate_id => '*');

-- A rollback is only asked for here; a handler does it, and tells with one of two events what came of it.
create function tm.roll_back(for_user text, to_version integer) returns uuid
language plpgsql
set search_path = tm, pg_temp
as $$
declare
    after clock;
begin
    update clock set version = version + 1 where user_id = for_user returning * into strict after;
    return tm.publish('rollback_initiated', after, after.virtual_time, 'TEST', to_version);
end
$$;
