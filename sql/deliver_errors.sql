-- What is kept of a handler's failure: its code, and the name of a constraint that exists; the
-- primary message only when it is asked for, cut; and nothing that cannot be stored is in the way.
set client_min_messages = warning;
create extension if not exists outbox;
drop schema if exists deliver_errors cascade;
create schema deliver_errors;
create domain deliver_errors.positive as integer constraint must_be_positive check (value > 0);
create table deliver_errors.parent (id integer constraint parent_key primary key);
create table deliver_errors.child (
    id integer constraint child_key primary key,
    parent integer constraint child_parent references deliver_errors.parent deferrable initially deferred,
    name text not null constraint name_is_short check (length(name) < 10),
    amount deliver_errors.positive,
    span int4range,
    constraint spans_lie_apart exclude using gist (span with &&)
);
create unique index child_name on deliver_errors.child (name);
insert into deliver_errors.child (id, name, span) values (1, 'first', '[1,10)');
-- bytes that are no text
create cast (bytea as text) without function;
reset client_min_messages;

create function deliver_errors.handler(e outbox.event) returns void language plpgsql as $$
begin
    execute e.payload ->> 'run';
end
$$;
set client_min_messages = error; -- it runs as a superuser
select outbox.subscribe('de', '{de}', handler => 'deliver_errors.handler', backoff_base => '1 ms', backoff_factor => 1, max_attempts => 1, lanes => 1);
reset client_min_messages;

create table deliver_errors.trial (n integer, what text, run text);
insert into deliver_errors.trial values
    (1, 'unique', $$insert into deliver_errors.child (id, name) values (1, 'canary')$$),
    (2, 'unique index', $$insert into deliver_errors.child (id, name) values (2, 'first')$$),
    (3, 'check', $$insert into deliver_errors.child (id, name) values (2, 'canary canary')$$),
    (4, 'not null', $$insert into deliver_errors.child (id) values (2)$$),
    (5, 'foreign key', $$insert into deliver_errors.child (id, name, parent) values (2, 'canary', 7)$$),
    (6, 'exclusion', $$insert into deliver_errors.child (id, name, span) values (2, 'canary', '[5,6)')$$),
    (7, 'domain', $$select (-1)::deliver_errors.positive$$),
    (8, 'no such constraint', $$do 'begin raise unique_violation using message = ''canary'', schema = ''deliver_errors'', table = ''child'', constraint = ''canary''; end'$$),
    (9, 'no such table', $$do 'begin raise unique_violation using schema = ''canary'', table = ''canary'', constraint = ''child_key''; end'$$),
    (10, 'a table''s name', $$do 'begin raise unique_violation using schema = ''deliver_errors'', table = ''child'', constraint = ''parent''; end'$$),
    (11, 'another table''s', $$do 'begin raise unique_violation using schema = ''deliver_errors'', table = ''child'', constraint = ''parent_key''; end'$$),
    (12, 'a long name', $$do 'begin raise unique_violation using schema = ''deliver_errors'', table = ''child'', constraint = repeat(''x'', 1000); end'$$),
    (13, 'a temporary table', $$create temp table t (i int constraint canary check (i > 0)); insert into t values (0)$$),
    (14, 'a message', $$do 'begin raise ''canary'' using detail = ''canary'', hint = ''canary'', errcode = ''DE001''; end'$$),
    (15, 'long', $$do 'begin raise ''%'', repeat(''x'', 1023) || ''ää'' using errcode = ''DE001''; end'$$),
    (16, 'bad bytes', $$do 'begin raise ''%'', (''\xff80'' || convert_to(''canary'', ''UTF8''))::text using errcode = ''DE001''; end'$$),
    (17, 'bad bytes behind the cut', $$do 'begin raise ''%'', repeat(''y'', 1024) || (''\xff'')::text using errcode = ''DE001''; end'$$),
    (18, 'a zero byte', $$do 'begin raise ''%'', (''\x6100'' || convert_to(''canary'', ''UTF8''))::text using errcode = ''DE001''; end'$$),
    (19, 'bad bytes in a name', $$do 'begin raise unique_violation using schema = ''deliver_errors'', table = ''child'', constraint = (''\xff80'')::text; end'$$),
    (20, '30 MB', $$do 'begin raise ''%'', repeat(''z'', 30000000) using errcode = ''DE001''; end'$$),
    (21, '30 MB of detail', $$do 'begin raise ''canary'' using detail = repeat(''z'', 30000000), errcode = ''DE001''; end'$$);

create procedure deliver_errors.try(numbers integer[]) language plpgsql as $$
begin
    perform outbox.publish('de', jsonb_build_object('what', what, 'run', run)) from deliver_errors.trial where n = any (numbers) order by n;
    commit;
    call outbox.drain('{de}', timeout => '60 s');
end
$$;
-- until the worker has read the setting
create procedure deliver_errors.until_kept() language plpgsql as $$
declare
    kept boolean := false;
begin
    while not kept loop
        call deliver_errors.try('{14}');
        select bool_or(error_message is not null) into kept from outbox.review_required where subscription = 'de';
        perform outbox.discard(subscription, event_id, 'seen') from outbox.review_required where subscription = 'de';
        commit;
    end loop;
end
$$;
create view deliver_errors.outcome as
select t.n, t.what, r.error_code, left(r.error_message, 50) as error_message, octet_length(r.error_message) as bytes, r.attempts
from outbox.review_required r join outbox.event e using (event_id) join deliver_errors.trial t on t.what = e.payload ->> 'what'
where r.subscription = 'de';

call deliver_errors.try('{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,21}');
select * from deliver_errors.outcome order by n;
select count(outbox.discard(subscription, event_id, 'seen')) from outbox.review_required where subscription = 'de';

-- with messages
alter system set outbox.keep_error_message = 'primary';
select pg_reload_conf();
call deliver_errors.until_kept();
call deliver_errors.try('{8,9,10,11,12,13,14,15,16,17,18,19,20}');
select * from deliver_errors.outcome order by n;
alter system reset outbox.keep_error_message;
select pg_reload_conf();

select outbox.unsubscribe('de', force => true);
set client_min_messages = warning;
drop cast (bytea as text);
drop schema deliver_errors cascade;
