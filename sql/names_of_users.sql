-- Names in a user's schemas never change what our SQL does: functions, operators, types, tables, temporary and other ones,
-- that stand first in the search_path, called as a user and as the owner. What is caught raises an error of its own.
set client_min_messages = error;
create extension if not exists outbox;
drop schema if exists names_of_users, names_of_users_test cascade;
drop role if exists outbox_test_names;
create role outbox_test_names;
create schema names_of_users authorization outbox_test_names;
create schema names_of_users_test;
grant usage on schema names_of_users_test to outbox_test_names;
create function names_of_users_test.handler(outbox.event) returns void language sql as '';
select outbox.subscribe('nu handled', '{nu.#}', handler => 'names_of_users_test.handler');
select outbox.subscribe('nu claimed', '{nu.#}');
select outbox.grant_publisher('outbox_test_names', '{nu.#}'), outbox.grant_operator('outbox_test_names'), outbox.grant_worker('outbox_test_names', 'nu claimed');
grant select on outbox.event, outbox.event_history to outbox_test_names;

-- the calls: how each ends in a plain session, and in one that has all of the above first in its search_path
create table names_of_users_test.call (n integer generated always as identity, command text);
insert into names_of_users_test.call (command)
values ($$select outbox.publish('nu.a', '{"a": [1, "x", null]}', aggregate_type => 'a', aggregate_id => '1', headers => '{"h": 1}', deliver_at => '2100-01-01', dedup_key => 'k', trace_id => '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01')$$),
       ($$select outbox.publish('nu.a', '{"a": [1, "x", null]}', aggregate_type => 'a', aggregate_id => '1', dedup_key => 'k')$$),
       ($$select outbox.publish_batch('[{"event_type": "nu.b", "occurred_at": "2026-01-01"}, {"event_type": "nu.c", "dedup_key": "d"}]')$$),
       ($$select outbox.envelope(e) from outbox.event e where e.event_type operator(pg_catalog.=) 'nu.seen'$$),
       ($$select outbox.subscribe('nu new', '{nu.x,nu.*}', start_at => '-infinity', permanent_errors => '{23,OT001}')$$),
       ($$select outbox.subscribe('nu claimed', '{nu.#}')$$),
       ($$select outbox.alter_subscription('nu claimed', max_attempts => 3, lanes => 8, reset => '{batch_size}', run_as => 'outbox_test_names')$$),
       ($$select outbox.pause('nu claimed')$$), ($$select outbox.resume('nu claimed')$$),
       ($$select outbox.unsubscribe('nu claimed')$$), ($$select outbox.unsubscribe('nu claimed', force => true)$$),
       ($$select outbox.matching_subscriptions('nu.a')$$),
       ($$select outbox.retry('nu claimed', '01a2290f-45d1-7c7e-bc17-aed2a54c10f7')$$), ($$select outbox.retry_all('nu claimed')$$),
       ($$select outbox.discard('nu claimed', '01a2290f-45d1-7c7e-bc17-aed2a54c10f7', 'x')$$),
       ($$select outbox.replay('nu claimed', '2026-01-01'::pg_catalog.timestamptz)$$), ($$select outbox.replay('nu claimed', '{01a2290f-45d1-7c7e-bc17-aed2a54c10f7}'::pg_catalog.uuid[])$$),
       ($$select outbox.define_event_type('nu.t', allowed_keys => '{a,b[].c}', key_types => '{"a": "string"}', required_keys => '{a}')$$), ($$select outbox.drop_event_type('nu.t', '1')$$),
       ($$select outbox.claim('nu claimed')$$),
       ($$select outbox.ack_all(c.lease_token) from outbox.claim('nu claimed', max_events => 1) c$$),
       ($$select outbox.ack('01a2290f-45d1-7c7e-bc17-aed2a54c10f7', '{01a2290f-45d1-7c7e-bc17-aed2a54c10f7}')$$),
       ($$select outbox.fail('01a2290f-45d1-7c7e-bc17-aed2a54c10f7', '01a2290f-45d1-7c7e-bc17-aed2a54c10f7')$$),
       ($$select outbox.release_all('01a2290f-45d1-7c7e-bc17-aed2a54c10f7')$$),
       ($$select outbox.consume_once('nu', 'm')$$),
       ($$select outbox.activate()$$), ($$select outbox.tenant_of('01a2290f-45d1-7c7e-bc17-aed2a54c10f7')$$),
       ($$select outbox.status()$$), ($$select outbox.report()$$),
       ($$select outbox.grant_publisher('outbox_test_names', '{nu.y}')$$), ($$select outbox.revoke_monitor('outbox_test_names')$$), ($$select outbox.grant_worker('outbox_test_names', 'nu handled')$$),
       ($$select outbox.reassert_grants()$$);
insert into names_of_users_test.call (command)
select format('select * from outbox.%I limit 1', relname) from pg_class where relnamespace = 'outbox'::regnamespace and relkind = 'v' order by relname;

create function names_of_users_test.try(role_name pg_catalog.text, path pg_catalog.text, command pg_catalog.text) returns pg_catalog.text language plpgsql as $$
begin
    begin
        perform pg_catalog.set_config('role', role_name, true), pg_catalog.set_config('search_path', path, true);
        execute command;
        raise exception using errcode = 'OT000';
    exception when others then
        return sqlstate;
    end;
end
$$;
select outbox.publish('nu.seen') is not null as published;
call outbox.drain('{nu handled,nu claimed}');

-- every function of pg_catalog whose name is in our SQL, or may be: under the same name and arguments
set role outbox_test_names;
create function names_of_users.caught() returns integer language plpgsql as $$ begin raise exception 'caught' using errcode = 'OT999'; end $$;
do $$
declare
    f record;
    made integer := 0;
begin
    for f in
        select p.proname, pg_get_function_identity_arguments(p.oid) as arguments, format_type(p.prorettype, null) as result, p.proretset, p.pronargs
        from pg_proc p
        where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind in ('f', 'a', 'w') and p.provariadic = 0
          and not (p.proargtypes::oid[] && array['internal', 'anyarray', 'anyelement', 'anynonarray', 'anyrange', 'anycompatible', 'anycompatiblearray', 'cstring', '"any"', 'trigger', 'anyenum', 'anymultirange']::regtype[]::oid[])
          and p.prorettype not in (select oid from pg_type where typtype = 'p')
          and p.proname ~ '^(count|min|max|sum|avg|bool_and|bool_or|string_agg|array_agg|now|clock_timestamp|format|coalesce|nullif|greatest|unnest|generate_series|pg_snapshot_|pg_visible_in_snapshot|pg_current_|current_setting|set_config|extract|date_part|jsonb_|to_jsonb|to_char|replace|substr|round|ceil|chr|length|age|pg_has_role|quote_ident|cardinality|array_|uuid|text|int|timestamptz|interval|float8|least|width_bucket|percentile_cont|concat|upper|lower|trim|btrim|split_part|regexp_|pg_backend_pid|pg_is_in_recovery|pg_advisory|txid_|xid8)'
    loop
        begin
            execute format('create function names_of_users.%I(%s) returns %s %s language plpgsql as $f$ begin perform names_of_users.caught(); end $f$', f.proname, f.arguments, case when f.proretset then 'setof' end, f.result);
            made := made + 1;
        exception when others then
        end;
    end loop;
    raise log 'functions made: %', made;
    if made < 200 then
        raise exception 'only % functions', made;
    end if;
end
$$;
-- and every operator between the types of our columns
do $$
declare
    op record;
    made integer := 0;
begin
    for op in
        select o.oid, o.oprname, format_type(o.oprleft, null) as l, format_type(o.oprright, null) as r, format_type(o.oprresult, null) as result
        from pg_operator o
        where o.oprnamespace = 'pg_catalog'::regnamespace and o.oprkind = 'b'
          and o.oprleft in ('text'::regtype, 'uuid'::regtype, 'integer'::regtype, 'bigint'::regtype, 'smallint'::regtype, 'timestamptz'::regtype, 'interval'::regtype, 'xid8'::regtype, 'jsonb'::regtype, 'name'::regtype, 'oid'::regtype, 'boolean'::regtype, 'float8'::regtype, 'numeric'::regtype, 'tid'::regtype)
          and o.oprright in (select oid from pg_type where typtype <> 'p')
    loop
        execute format('create function names_of_users.operator_%s(%s, %s) returns %s language plpgsql as $f$ begin perform names_of_users.caught(); end $f$', op.oid, op.l, op.r, op.result);
        execute format('create operator names_of_users.%s (leftarg = %s, rightarg = %s, function = names_of_users.operator_%s)', op.oprname, op.l, op.r, op.oid);
        made := made + 1;
    end loop;
    if made < 200 then
        raise exception 'only % operators', made;
    end if;
end
$$;
-- types and tables, temporary and other ones, with the names of ours and of the catalogs
do $$
declare
    name text;
    place text;
begin
    foreach place in array array['names_of_users', 'pg_temp'] loop
        for name in
            select relname from pg_class where relnamespace = 'outbox'::regnamespace and relkind in ('r', 'v')
            union select unnest(array['pg_class', 'pg_proc', 'pg_type', 'pg_namespace', 'pg_roles', 'pg_authid', 'pg_extension', 'pg_stat_activity', 'pg_prepared_xacts', 'pg_replication_slots', 'pg_stat_replication', 'pg_db_role_setting', 'pg_attribute', 'pg_operator'])
        loop
            execute format('create table %s.%I (nothing integer)', place, name);
        end loop;
        for name in select unnest(array['text', 'uuid', 'jsonb', 'int4', 'int8', 'bool', 'timestamptz', 'interval', 'float8', 'name', 'xid8', 'oid', 'regclass', 'regrole']) loop
            execute format('create type %s.%I as (caught integer)', place, name);
        end loop;
    end loop;
end
$$;
create type names_of_users.other as (n integer);
create function names_of_users.to_other(pg_catalog.text) returns names_of_users.other language plpgsql as $$ begin perform names_of_users.caught(); end $$;
create cast (pg_catalog.text as names_of_users.other) with function names_of_users.to_other(pg_catalog.text) as implicit;
reset role;

-- the names are there to be found: what asks for them by name alone is caught
select names_of_users_test.try(r, 'pg_temp, names_of_users, pg_catalog', c) from pg_catalog.unnest(array['outbox_test_names', current_user::pg_catalog.text]) r, pg_catalog.unnest(array['select count(*) from outbox.event', 'select ''a''::pg_catalog.text = ''b''::pg_catalog.text', 'select max(1)']) c;
-- what is different; no statement of ours has been planned before
discard plans;
select r as role, c.command, plain.outcome as plain, shadowed.outcome as shadowed
from names_of_users_test.call c
cross join (values ('user', 'outbox_test_names'), ('owner', current_user::pg_catalog.text)) who (r, name)
cross join lateral (select names_of_users_test.try(who.name, 'pg_temp, names_of_users, pg_catalog', c.command) as outcome) shadowed
cross join lateral (select names_of_users_test.try(who.name, 'pg_catalog', c.command) as outcome) plain
where plain.outcome <> shadowed.outcome or shadowed.outcome = 'OT999'
order by c.n, 1;
-- and how the calls end at all
select c.n, pg_catalog.substring(c.command, 'outbox\.\w+') as call, names_of_users_test.try('outbox_test_names', 'pg_temp, names_of_users, pg_catalog', c.command) as user, names_of_users_test.try(current_user::pg_catalog.text, 'pg_temp, names_of_users, pg_catalog', c.command) as owner
from names_of_users_test.call c where c.command !~ '^select \*' order by n;

-- outside of functions: procedures, and cached plans that were made under the other search_path
set search_path = pg_temp, names_of_users, pg_catalog;
call outbox.drain('{nu handled}');
call outbox.wait('{nu claimed}', '0');
set role outbox_test_names;
select outbox.publish('nu.plain') operator(pg_catalog.<>) '01a2290f-45d1-7c7e-bc17-aed2a54c10f7' as published;
call outbox.wait('{nu claimed}', '0');
reset role;
reset search_path;

select outbox.unsubscribe('nu handled', force => true), outbox.unsubscribe('nu claimed', force => true);
drop schema names_of_users, names_of_users_test cascade;
drop owned by outbox_test_names;
drop role outbox_test_names;
