--
-- outbox.publish_row(): changes of rows as events.
--
set client_min_messages = warning;
create extension if not exists outbox;
create schema publish_row;
set search_path = publish_row, public;
reset client_min_messages;
set outbox.source = 'test publish_row';
create view published as select e.* from outbox.event e where e.source = 'test publish_row';
-- what is new since the last look
create table seen (event_id uuid primary key);
create function news(out event_type text, out event_key text, out aggregate text, out tenant_id text, out payload jsonb) returns setof record
language sql begin atomic
    with new as (insert into seen select p.event_id from published p where not exists (select from seen s where s.event_id = p.event_id) returning event_id)
    select p.event_type, p.event_key, p.aggregate_type || '/' || p.aggregate_id, p.tenant_id, p.payload
    from published p join new using (event_id) order by event_id;
end;

-- inserted, updated, deleted
create table task (id integer primary key, title text, due date, secret text);
create trigger publish after insert or update or delete on task for each row
    execute function outbox.publish_row('event_type=task.{op}', 'columns=id,title,due', 'aggregate_type=task', 'aggregate=id');
insert into task values (1, 'one', '2026-01-01', 'hidden'), (2, 'two', null, 'hidden');
update task set title = 'two and a half' where id = 2;
delete from task where id = 1;
select * from news();
-- a column that comes later stays in the table
alter table task add column note text default 'also hidden';
copy task (id, title) from stdin;
3	three
\.
insert into task (id, title) values (3, 'four') on conflict (id) do update set title = excluded.title;
merge into task using (values (3), (4)) as v (n) on v.n = id
    when matched then delete when not matched then insert (id, title) values (n, 'merged');
select * from news();
-- the transaction decides
begin;
insert into task values (9, 'never');
rollback;
begin;
savepoint s;
insert into task values (9, 'never');
rollback to s;
update task set id = 10 where id = 4;
commit;
select * from news();
truncate task;
select * from news();
drop trigger publish on task;

-- old and new
create trigger publish after insert or update or delete on task for each row
    execute function outbox.publish_row('event_type=task.changed', 'columns=id,title', 'old=true', 'payload_version=2');
insert into task values (1, 'one');
update task set title = 'uno';
delete from task;
select event_type, payload from news();
select distinct payload_version from published where event_type = 'task.changed';
drop trigger publish on task;

-- conditions: what has changed, and WHEN
create trigger publish after insert or update or delete on task for each row
    execute function outbox.publish_row('event_type=task.{op}', 'columns=title', 'changed=title,due');
insert into task values (1, 'one', null, 's');
update task set secret = 't';
update task set title = 'one';
update task set title = 'uno';
update task set due = '2026-01-01';
update task set due = null;
delete from task;
select event_type, payload from news();
drop trigger publish on task;
create trigger publish after update on task for each row when (new.title is distinct from old.title and new.due is not null)
    execute function outbox.publish_row('event_type=task.moved', 'columns=title');
insert into task values (1, 'one', null), (2, 'two', '2026-01-01');
update task set title = title || '!';
select event_type, payload from news();
drop trigger publish on task;

-- a large value that an update leaves alone is not changed, and is published whole
create table large (id integer, body text, n integer);
alter table large alter body set storage external;
create trigger publish after insert or update on large for each row
    execute function outbox.publish_row('event_type=large.{op}', 'columns=body,n', 'changed=body');
insert into large select 1, string_agg(md5(i::text), ''), 1 from generate_series(1, 1000) as i;
update large set n = 2;
update large set body = body || '.';
select event_type, length(payload ->> 'body') as length, payload -> 'n' as n from news();

-- key, aggregate, tenant
create table item (a text, b text, n bigint, tenant text);
create trigger one after insert on item for each row when (new.n = 1)
    execute function outbox.publish_row('event_type=item.one', 'columns=n', 'key=a', 'tenant=tenant');
create trigger two after insert on item for each row when (new.n = 2)
    execute function outbox.publish_row('event_type=item.two', 'columns=n', 'key=a,b', 'tenant=tenant', 'aggregate_type=item', 'aggregate=n');
set outbox.tenant_id = 'of the session';
insert into item values ('a', 'b', 1, 't1'), ('a:b', 'c', 1, null), (null, 'b', 1, 't1'),
    ('a', 'b', 2, 't1'), ('a:b', 'c', 2, 't1'), ('a', 'b:c', 2, null), (E'a\\', 'b', 2, 't1'), (null, 'b', 2, 't1');
reset outbox.tenant_id;
select * from news();
-- what publish() refuses is refused, with the row
insert into item values ('', 'b', 1);
insert into item values (repeat('k', 1025), 'b', 1);
drop table item;

-- values of all kinds, as to_jsonb() has them
create domain positive as integer check (value > 0);
create type pair as (x integer, "Y z" text);
create type mood as enum ('sad', 'happy');
create table kind (
    id bigint generated always as identity primary key, gone integer, "Quoted ""name""" text, "select" boolean,
    twice integer generated always as (5 * 2) stored, num numeric, f float8, ts timestamptz, d date, iv interval, bytes bytea,
    j json, jb jsonb, arr integer[], arr2 text[][], p pair, ps pair[], m mood, dom positive, r int4range, u uuid, c char(3), nothing text, ip inet);
alter table kind drop column gone;
create trigger publish after insert on kind for each row
    execute function outbox.publish_row('event_type=kind.{op}', 'columns=ID , "Quoted ""name""", "select",twice,num,f,ts,d,iv,bytes,j,jb,arr,arr2,p,ps,m,dom,r,u,c,nothing,ip', 'key=ts,f,bytes,iv,m');
set timezone = 'UTC';
set intervalstyle = 'postgres';
insert into kind ("Quoted ""name""", "select", num, f, ts, d, iv, bytes, j, jb, arr, arr2, p, ps, m, dom, r, u, c, ip)
values (E'tab\t"q" \\ ü', true, 1.50, 0.1::float8 + 0.2::float8, '2026-03-29 01:30:00+00', '2026-01-02', '1 day 2 hours', '\x00ff', '{"a" :  1}', '{"b": [null]}',
    '{1,null}', '{{a,b},{c,d}}', (1, 'z'), array[(1, 'a')::pair, null], 'happy', 7, '[1,5)', '01a228b6-27b7-7ad9-bcf4-106d98f189e4', 'x', '10.0.0.1/8');
select jsonb_pretty(payload), event_key, payload = to_jsonb(kind) as as_to_jsonb from news(), kind;
-- whatever the session's settings are
select payload as first, event_key as first_key from published where event_type = 'kind.created' \gset
set timezone = 'Asia/Tokyo';
set datestyle = 'German';
set intervalstyle = 'iso_8601';
set extra_float_digits = 0;
set bytea_output = 'escape';
insert into kind ("Quoted ""name""", "select", num, f, ts, d, iv, bytes, j, jb, arr, arr2, p, ps, m, dom, r, u, c, ip)
select "Quoted ""name""", "select", num, f, ts, d, iv, bytes, j, jb, arr, arr2, p, ps, m, dom, r, u, c, ip from kind;
select payload - 'id' = :'first'::jsonb - 'id' as same_payload, event_key = :'first_key' as same_key from news();
select current_setting('timezone') as timezone, current_setting('datestyle') as datestyle, current_setting('bytea_output') as bytea_output;
reset timezone;
reset datestyle;
reset intervalstyle;
reset extra_float_digits;
reset bytea_output;

-- what is generated when it is read has no value in a trigger (from PostgreSQL 18)
do $$
begin
    if current_setting('server_version_num')::integer < 180000 then
        return;
    end if;
    execute 'create table publish_row.virtual (a integer, b integer generated always as (a + 1) virtual)';
    execute $t$create trigger publish after insert on publish_row.virtual for each row
        execute function outbox.publish_row('event_type=virtual', 'columns=a,b')$t$;
    begin
        execute 'insert into publish_row.virtual values (1)';
        raise warning 'published';
    exception when feature_not_supported then
        null;
    end;
end $$;

-- partitions, whose columns may stand in another order
create table part (id integer, region text, title text) partition by list (region);
create table part_north partition of part for values in ('north');
create table part_south (title text, gone integer, region text, id integer);
alter table part_south drop column gone;
alter table part attach partition part_south for values in ('south');
create trigger publish after insert or update or delete on part for each row
    execute function outbox.publish_row('event_type=part.{op}', 'columns=id,region,title', 'key=id', 'old=true');
insert into part values (1, 'north', 'n'), (2, 'south', 's');
update part set title = title || '!';
update part set region = 'south' where id = 1;
select event_type, event_key, payload from news();

-- inheritance, and a deferred constraint trigger
create table base (id integer);
create table derived (extra text) inherits (base);
create constraint trigger publish after insert on derived deferrable initially deferred for each row
    execute function outbox.publish_row('event_type=derived.{op}', 'columns=id,extra');
begin;
insert into derived values (1, 'x');
select count(*) from news();
commit;
select event_type, payload from news();

-- a column that is renamed or dropped: an error that says which trigger, and the row is not changed
create table mutable (id integer, title text);
create trigger "Publish it" after insert on mutable for each row
    execute function outbox.publish_row('event_type=m.{op}', 'columns=id,title');
insert into mutable values (1, 'x');
alter table mutable rename title to name;
insert into mutable values (2, 'x');
\echo :SQLSTATE
alter table mutable rename name to title;
insert into mutable values (3, 'x');
alter table mutable drop column title;
insert into mutable values (4);
select event_type, payload from news();
drop table mutable;

-- where it does not belong
create table wrong (id integer);
create trigger t before insert on wrong for each row execute function outbox.publish_row('event_type=w', 'columns=id');
insert into wrong values (1);
\echo :SQLSTATE
drop trigger t on wrong;
create trigger t after insert on wrong execute function outbox.publish_row('event_type=w', 'columns=id');
insert into wrong values (1);
drop trigger t on wrong;
create trigger t after truncate on wrong execute function outbox.publish_row('event_type=w', 'columns=id');
truncate wrong;
drop trigger t on wrong;
create view wrong_view as select 1 as id;
create trigger t instead of insert on wrong_view for each row execute function outbox.publish_row('event_type=w', 'columns=id');
insert into wrong_view values (1);
select outbox.publish_row();

-- arguments, each in its turn
create procedure try(arguments text) language plpgsql as $$
declare
    hint text;
    detail text;
begin
    execute format('create or replace trigger t after insert on publish_row.wrong for each row execute function outbox.publish_row(%s)', arguments);
    begin
        insert into publish_row.wrong values (1);
        raise notice '% -> accepted', arguments;
    exception when others then
        get stacked diagnostics hint = pg_exception_hint, detail = pg_exception_detail;
        raise notice '% -> % % | % | %', arguments, sqlstate, sqlerrm, detail, hint;
    end;
end $$;
call try($$$$);
call try($$'event_type=w'$$);
call try($$'columns=id'$$);
call try($$'event_type=w', 'columns='$$);
call try($$'event_type=w', 'columns=id,'$$);
call try($$'event_type=w', 'columns=*'$$);
call try($$'event_type=w', 'columns=id,id'$$);
call try($$'event_type=w', 'columns=id,nowhere'$$);
call try($$'event_type=w', 'columns=ctid'$$);
call try($$'event_type=w', 'columns="ID"'$$);
call try($$'event_type=w', 'columns=ID'$$);
call try($$'event_type=w', 'columns="id'$$);
call try($$'event_type=w', 'columns=id; drop table wrong'$$);
call try($$'event_type', 'columns=id'$$);
call try($$'=w', 'columns=id'$$);
call try($$'Event_type=w', 'columns=id'$$);
call try($$'event_type=w', 'event_type=v', 'columns=id'$$);
call try($$'event_type=w', 'columns=id', 'what=ever'$$);
call try($$'event_type=w', 'columns=id', 'when=id > 1'$$);
call try($$'event_type=w', 'columns=id', 'old=perhaps'$$);
call try($$'event_type=w', 'columns=id', 'aggregate=id'$$);
call try($$'event_type=w', 'columns=id', 'aggregate_type=x', 'aggregate=id,id'$$);
call try($$'event_type=w', 'columns=id', 'key=nowhere'$$);
call try($$'event_type=w', 'columns=id', 'tenant=nowhere'$$);
call try($$'event_type=w', 'columns=id', 'changed=nowhere'$$);
call try($$'event_type=no such type', 'columns=id'$$);
call try($$'event_type=outbox.mine', 'columns=id'$$);
call try($$'event_type={op}.{op}.x', 'columns=id', 'old=no'$$);
select event_type, payload from news();

-- whoever changes the row needs no rights on anything of ours
create role outbox_test_writer;
grant usage on schema publish_row to outbox_test_writer;
grant insert on wrong to outbox_test_writer;
set role outbox_test_writer;
insert into publish_row.wrong values (5);
reset role;
select event_type, payload from news();

drop owned by outbox_test_writer;
drop role outbox_test_writer;
set client_min_messages = warning;
drop schema publish_row cascade;
