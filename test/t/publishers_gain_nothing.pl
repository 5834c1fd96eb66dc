# A role that may publish one kind of event, and create objects of its own, tries each way to more:
# logged in as itself, one attempt a session. Whatever code of its own runs, runs as itself.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('gain', "outbox.workers = 1\noutbox.poll_interval = 50ms\noutbox.tenant_setting = 'app.tenant_id'\n");

sql($node, q{
	create role low login; create role other login;
	create schema low authorization low;
	grant create, temporary on database postgres to low;
	select outbox.subscribe('secrets', '{secret.#}'), outbox.subscribe('queue', '{low.#}');
	create function public.handler(e outbox.event) returns void language sql as '';
	select outbox.subscribe('handled', '{low.#}', handler => 'public.handler');
	select outbox.grant_publisher('low', '{low.#}'), outbox.grant_worker('other', 'queue'), outbox.grant_publisher('other', '{secret.#}');
	grant select on outbox.event to low;
	set role other; set app.tenant_id = ''; select outbox.publish('secret.one', tenant_id => 'b');
	reset role;
	set role low;
	-- as whom does its code run?
	create table low.ran (who text, way text);
	grant insert on low.ran to public; grant usage on schema low to public;
	create function low.note(way text) returns boolean language plpgsql as $$ begin insert into low.ran values (current_user, way); return true; end $$;
	create function low.note_row() returns trigger language plpgsql as $$ begin perform low.note(tg_argv[0]); return new; end $$;
	create domain low.word as text check (low.note('domain'));
	create type low.thing as (a text);
	create function low.thing_to_jsonb(low.thing) returns jsonb language plpgsql as $$ begin perform low.note('cast to jsonb'); return '{"a": 1}'; end $$;
	create cast (low.thing as jsonb) with function low.thing_to_jsonb(low.thing) as implicit;
	create function low.thing_to_text(low.thing) returns text language plpgsql as $$ begin perform low.note('cast to text'); return 'k'; end $$;
	create cast (low.thing as text) with function low.thing_to_text(low.thing) as implicit;
});

# what it tries, and how that ends: an SQLSTATE, or ok
my @attempts = (
	# somebody else's rights
	["set role postgres", '42501'], ["set role other", '42501'], ["set session authorization postgres", '42501'], ["set app.tenant_id = 'a'; reset session authorization; select outbox.publish('secret.x')", '42501'],
	["set app.tenant_id = 'a'; set role none; reset role; select outbox.publish('secret.x')", '42501'], ["select set_config('role', 'postgres', false)", '42501'], ["select set_config('session_authorization', 'postgres', false)", '42501'],
	["alter role low superuser", '42501'], ["grant other to low", '42501'], ["grant execute on function outbox.subscribe to low", '42501'], ["alter function outbox.publish owner to low", '42501'],
	["create function low.f() returns boolean language sql set role = postgres as 'select true'; select low.f()", '42501'], ["create event trigger e on ddl_command_end execute function low.note_row()", '42501'],
	["load 'outbox'", '42501'], ["load '\$libdir/plpgsql'", '42501'], ["create function low.c() returns boolean language c as 'outbox', 'outbox_reassert_grants'", '42501'], ["create extension outbox", '42710'], ["alter extension outbox update", '42501'],
	["alter extension outbox add function low.note(text)", '42501'], ["drop extension outbox", '42501'], ["comment on extension outbox is 'x'", '42501'],
	# other rights of ours
	["set app.tenant_id = 'a'; select outbox.publish('secret.x')", '42501'], ["set app.tenant_id = 'a'; prepare p as select outbox.publish('secret.x'); execute p", '42501'], ["set app.tenant_id = 'a'; do \$\$ begin perform outbox.publish('secret.x'); end \$\$", '42501'], ["set app.tenant_id = 'a'; select outbox.publish('outbox.review_required')", '42939'],
	["select outbox.grant_operator('low')", '42501'], ["select outbox.grant_publisher('low', '{#}')", '42501'], ["select outbox.reassert_grants()", '42501'], ["select outbox.announce_database()", '42501'],
	["select outbox.subscribe('mine', '{#}', handler => 'low.steal')", '42501'], ["select outbox.claim('queue')", '42501'], ["call outbox.wait('{queue}')", '42501'], ["select outbox.ack_all(gen_random_uuid())", '42501'],
	["select outbox.retry('queue', gen_random_uuid())", '42501'], ["select outbox.replay('queue', now())", '42501'], ["select outbox.activate()", '42501'], ["select outbox.status()", '42501'], ["select outbox.process_list()", '42501'], ["select outbox.lease_events()", '42501'],
	["select outbox.tenant_support(null)", '42883|42501|22P02|0A000'], ["select outbox.fail_permanently('x')", '55000'], ["select outbox.current_delivery()", 'ok'],
	# tables, and ways to have code run where a worker runs it
	(map { my $t = $_; map { ["$_", '42501'] } "select * from outbox.$t", "insert into outbox.$t select * from outbox.$t", "update outbox.$t set event_id = null", "delete from outbox.$t", "truncate outbox.$t", "create trigger t before insert on outbox.$t for each row execute function low.note_row('trigger')",
		"create rule r as on insert to outbox.$t do also select low.note('rule')", "create policy p on outbox.$t using (low.note('policy'))", "alter table outbox.$t disable row level security", "alter table outbox.$t add check (low.note('check'))", "create index on outbox.$t ((low.note('index')))",
		"alter table outbox.$t add column extra boolean default low.note('default')", "create table low.child () inherits (outbox.$t)", "begin; lock table outbox.$t in access exclusive mode", "create statistics low.s on event_id, replay_no from outbox.$t" }
		qw(receipt_log delivery_exception)),
	["copy outbox.role_grant from program 'echo'", '42501'], ["insert into outbox.role_grant values ('low', 'operator', '', now(), 'x')", '42501'], ["insert into outbox.granted_role values (10, 'low')", '42501'], ["create table outbox.mine (n integer)", '42501'], ["create function outbox.mine() returns integer language sql as 'select 1'", '42501'],
	["create view outbox.mine as select 1", '42501'], ["create type outbox.mine as (n integer)", '42501'], ["create or replace view outbox.event as select * from outbox.event", '42501'], ["alter view outbox.event set (security_invoker = true)", '42501'],
	["create rule r as on insert to outbox.event do instead select low.note('rule')", '42501'], ["create trigger t instead of insert on outbox.event for each row execute function low.note_row('instead')", '42501'], ["select nextval('outbox.gate_number_seq')", '42501'],
	["create table low.fk (event_id uuid references outbox.segment)", '42501'], ["create publication p for table outbox.event_log", '42501'], ["alter default privileges for role postgres grant all on tables to low", '42501'], ["create cast (outbox.event as text) with inout", '42501'],
	["create operator low.= (leftarg = uuid, rightarg = uuid, function = uuid_eq); set search_path = low, pg_catalog; set app.tenant_id = 'a'; select outbox.publish('low.x')", 'ok'],
	# settings
	(map { ["set outbox.$_", '42501'] } "tenant_setting = ''", "sensitive_data = off", "require_event_type = off", "max_payload_bytes = '10MB'", "keep_error_message = 'primary'"), (map { ["set outbox.$_", '55P02'] } "dispatch = off", "test_clock_offset = 1", "workers = 64"),
	["set outbox.nothing = 1", '42602|42501'], ["alter role low set outbox.tenant_setting = ''", '42501'], ["select set_config('outbox.tenant_setting', '', false)", '42501'], ["create function low.g() returns boolean language sql set outbox.tenant_setting = '' as 'select true'; select low.g()", '42501'],
	["set session_replication_role = replica", '42501'], ["set row_security = off; select count(*) from outbox.event", 'ok'],
	# another tenant's
	["set app.tenant_id = 'a'; select outbox.publish('low.x', tenant_id => 'b')", 'OB002'], ["set app.tenant_id = 'a'; set outbox.tenant_id = 'b'; select outbox.publish('low.x')", 'OB002'], ["reset app.tenant_id; select outbox.publish('low.x', tenant_id => 'b')", 'OB002'],
	["set app.tenant_id = 'a'; do \$\$ begin if exists (select from outbox.event where tenant_id = 'b') then raise 'seen' using errcode = 'OT001'; end if; end \$\$", 'ok'],
	["set app.tenant_id = ''; do \$\$ begin if exists (select from outbox.event) then raise 'seen' using errcode = 'OT001'; end if; end \$\$", 'ok'],
	# types of its own in the arguments: their code runs as itself, and none of it is in the event
	["set app.tenant_id = 'a'; select outbox.publish('low.x', payload => row('x')::low.thing)", 'ok'], ["set app.tenant_id = 'a'; select outbox.publish('low.x', payload => to_jsonb(row('x')::low.thing))", 'ok'], ["set app.tenant_id = 'a'; select outbox.publish('low.x', dedup_key => row('x')::low.thing)", 'ok'],
	["set app.tenant_id = 'a'; select outbox.publish('low.x', dedup_key => 'x'::low.word)", 'ok'], ["set app.tenant_id = 'a'; select outbox.publish('low.x'::low.word)", 'ok'],
	# what is left for the commit
	["set app.tenant_id = 'a'; create table low.later (n integer); create constraint trigger t after insert on low.later deferrable initially deferred for each row execute function low.note_row('deferred'); begin; insert into low.later values (1); select outbox.publish('low.x'); commit", 'ok'],
	["set app.tenant_id = 'a'; begin; declare c cursor with hold for select low.note('cursor'); select outbox.publish('low.x'); commit", 'ok'],
	["create temp table event_log (n integer); create temp table role_grant (role_name text, kind text, scope text); insert into role_grant values ('low', 'publisher', '#'); create temp view granted_role as select 1; set search_path = pg_temp; set app.tenant_id = 'a'; select outbox.publish('secret.x')", '42501'],
);

for my $attempt (@attempts)
{
	my ($command, $expected) = @$attempt;
	my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n\\set ON_ERROR_STOP on\n$command;", extra_params => [ '-U', 'low' ], on_error_stop => 0);
	my ($state) = $err =~ /ERROR:  (\w{5}):/;
	like($state // 'ok', qr/^(?:$expected)$/, $command) or diag($err);
}

is_sql($node, q{select coalesce(string_agg(distinct who, ' '), 'nobody') from low.ran}, 'low', 'its code ran as itself');
is_sql($node, q{select string_agg(distinct way, ', ' order by way) from low.ran}, 'cast to jsonb, cast to text, cursor, deferred, domain', 'these did run');
is_sql($node, q{select count(*) from outbox.role_grant}, '3', 'nobody has a right more');
is_sql($node, q{select rolsuper from pg_roles where rolname = 'low'}, 'f', 'nor is it more than it was');
sql($node, q{set app.tenant_id = ''; call outbox.drain('{handled}', '30 s')});
is_sql($node, q{select count(*) from outbox.delivery where subscription = 'handled' and status <> 'COMPLETED'}, '0', 'what it published is delivered');

# ---------------------------------------------------------------- what is there before CREATE EXTENSION is not adopted

my $install = sub {
	my ($database, @before) = @_;
	sql($node, "create database $database");
	sql($node, "grant create on database $database to low");
	$node->safe_psql($database, $_) for @before;
	my ($rc, $out, $err) = $node->psql($database, "\\set VERBOSITY verbose\ncreate extension outbox;");
	my ($state) = $err =~ /ERROR:  (\w{5}):/;
	return $state // 'ok';
};
is($install->('theirs', 'set role low; create schema outbox'), '42P06', 'a schema of somebody else');
is($install->('a_function', 'create schema outbox', "create function outbox.publish(text) returns uuid language sql as 'select null::uuid'"), '42710', 'a function of the name');
is($install->('a_table', 'create schema outbox', 'create table outbox.event_log (n integer)'), '42710', 'a table');
is($install->('a_type', 'create schema outbox', 'create type outbox.claimed_event as (n integer)'), '42710', 'a type');
is($install->('given', 'create schema outbox', 'grant all on schema outbox to low, public', 'alter default privileges in schema outbox grant all on tables to low'), 'ok', 'an empty one of one\'s own will do');
is($node->safe_psql('given', q{select count(*) from pg_namespace n, aclexplode(n.nspacl) a where n.nspname = 'outbox' and a.grantee <> n.nspowner}), '0', 'and nobody else may create in it any more');
is($node->safe_psql('given', q{select count(*) from pg_class c, aclexplode(c.relacl) a where c.relnamespace = 'outbox'::regnamespace and a.grantee <> c.relowner}), '0', 'nor read');

done_testing();
