# A handler of a low-privilege role tries each way to have code run as another role, in its
# own transaction, at its commit, after it, or in whoever is served next by the same process.
# One worker serves a role that attacks, a role that is attacked, and a superuser.
#
# Attacks end in attack.probe(), which tells as whom it runs, in attack.caught; it never may
# be anybody but the attacker.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('roles', "outbox.workers = 1\noutbox.poll_interval = 50ms\n");

sql($node, q{
	create role attacker; create role victim;
	create schema attack authorization attacker;
	create schema home authorization victim;
	grant create, temporary on database postgres to attacker, victim;
	grant usage, create on schema public to attacker;
	select outbox.grant_publisher('attacker', '{attack.#}'), outbox.grant_publisher('victim', '{attack.#}');
	create table public.secret (s text);
	insert into public.secret values ('secret');
	create table public.report (n integer generated always as identity, of text, what text);
	grant insert, select on public.report to public;

	set role attacker;
	-- as whom does the attacker's code run?
	create table attack.caught (n integer generated always as identity, way text, who text, reads_secret boolean);
	grant all on attack.caught to public;
	grant usage on schema attack to public;
	create function attack.probe(way text) returns integer language plpgsql as $$
	declare
		reads boolean := false;
	begin
		begin
			perform from public.secret;
			reads := true;
		exception when others then
		end;
		insert into attack.caught (way, who, reads_secret) values (way, current_user, reads);
		return 1;
	end $$;
	create function attack.probe_trigger() returns trigger language plpgsql as $$
	begin
		perform attack.probe(tg_argv[0]);
		return new;
	end $$;
	-- runs a command, and tells how it ended
	create function attack.try(way text, command text) returns void language plpgsql as $$
	begin
		execute command;
		insert into public.report (of, what) values (way, 'done');
	exception when others then
		insert into public.report (of, what) values (way, sqlstate);
	end $$;
});

# ---------------------------------------------------------------- the ways

my %attacks = (
	deferred_trigger => q{
		insert into attack.deferred values (1);},
	# fires at commit again and again, and tries to be somebody else there
	deferred_in_deferred => q{
		insert into attack.deferred_again values (1);},
	held_cursor => q{
		execute 'declare held cursor with hold for select attack.probe(''held_cursor'')';
		execute 'declare held_too scroll cursor with hold for select attack.probe(''held_cursor'') from generate_series(1, 3)';
		execute 'move 1 in held_too';},
	cursor_in_deferred => q{
		insert into attack.deferred_cursor values (1);},
	temp_trigger => q{
		create temp table mine (n integer);
		create trigger t before insert on mine for each row execute function attack.probe_trigger('temp_trigger');
		create temp table lane as select 1 as lane;
		create temp table report (of text, what text);
		create trigger t before insert on report for each row execute function attack.probe_trigger('temp_trigger');
		create function pg_temp.now() returns timestamptz language sql as $f$ select attack.probe('temp_function'); select pg_catalog.now() $f$;
		create view pg_temp.pg_class as select attack.probe('temp_view') as oid;},
	set_role => q{
		perform attack.try('set role', 'set role postgres');
		perform attack.try('set role', 'set role victim');
		perform attack.try('set local role', 'set local role postgres');
		perform attack.try('set role', 'set role none');
		perform attack.try('reset role', 'reset role');
		perform attack.try('set_config role', $c$select set_config('role', 'postgres', false)$c$);
		perform attack.try('set_config role', $c$select set_config('role', 'none', true)$c$);
		perform attack.try('session authorization', 'set session authorization postgres');
		perform attack.try('session authorization', 'set session authorization default');
		perform attack.try('session authorization', 'set local session authorization default');
		perform attack.try('session authorization', 'reset session authorization');
		perform attack.try('session authorization', $c$select set_config('session_authorization', 'postgres', false)$c$);
		perform attack.try('function with role', 'create function attack.f() returns integer language sql set role = postgres as ''select attack.probe(''''function set role'''')''');
		perform attack.try('call of it', 'select attack.f()');
		perform attack.try('reset all', 'reset all');
		perform attack.probe('set_role');},
	discard => q{
		perform attack.try('discard all', 'discard all');
		perform attack.try('commit', 'commit');
		perform attack.try('rollback', 'rollback');
		perform attack.try('rollback prepared', 'prepare transaction ''x''');
		perform attack.try('procedure', 'call attack.commits()');
		perform attack.probe('discard');},
	search_path => q{
		set search_path = attack, public, pg_catalog;
		perform set_config('search_path', 'pg_temp, attack, pg_catalog', false);
		insert into attack.deferred_path values (1);},
	language_global => q{
		insert into public.report (of, what) values ('language_global', attack.leave_global());},
	session_state => q{
		perform pg_advisory_lock(815);
		perform pg_advisory_lock_shared(816, 1);
		execute 'prepare left_behind as select attack.probe(''prepared'')';
		perform attack.try('listen', 'listen left_behind');
		set work_mem = '64kB';
		set statement_timeout = '1ms';
		set lock_timeout = '1ms';
		set idle_in_transaction_session_timeout = '1ms';
		set default_transaction_read_only = on;
		set default_transaction_isolation = serializable;
		set default_transaction_deferrable = on;
		set application_name = 'left behind';
		set client_min_messages = debug5;
		set enable_indexscan = off;
		set plan_cache_mode = force_custom_plan;
		set synchronous_commit = off;
		set default_table_access_method = heap;
		set outbox.tenant_id = 'left behind';
		set attack.variable = 'left behind';
		set timezone = 'Asia/Tokyo';
		set row_security = off;
		set constraints all deferred;
		perform attack.try('session_replication_role', 'set session_replication_role = replica');
		set transaction read only;},
	superuser_ways => q{
		perform attack.try('program', 'copy (select 1) to program ''true''');
		perform attack.try('file', 'select pg_read_file(''postgresql.conf'')');
		perform attack.try('alter system', 'alter system set work_mem = ''1MB''');
		perform attack.try('superuser', 'alter role attacker superuser');
		perform attack.try('event trigger', 'create event trigger e on ddl_command_end execute function attack.probe_event()');
		perform attack.try('untrusted', 'create function attack.c() returns integer language c as ''x''');
		perform attack.try('secret', 'select * from public.secret');
		perform attack.try('receipts', 'delete from outbox.receipt_log');
		perform attack.try('lanes', 'update outbox.lane set token = null');
		perform attack.try('log', 'insert into outbox.event_log (event_id) values (gen_random_uuid())');
		perform attack.try('superuser settings', 'set outbox.keep_error_message = primary');
		perform attack.try('terminate', 'select pg_terminate_backend(pg_backend_pid())');
		perform attack.try('superuser settings', 'set log_statement = none');},
	our_functions => q{
		perform attack.try('grant', 'select outbox.grant_operator(''attacker'')');
		perform attack.try('grant', 'insert into outbox.role_grant values (''attacker'', ''operator'', '''', now(), ''x'')');
		perform attack.try('reassert', 'select outbox.reassert_grants()');
		perform attack.try('other type', 'select outbox.publish(''next'')');
		perform attack.try('subscribe', 'select outbox.subscribe(''mine'', ''{#}'', handler => ''attack.handler'')');
		perform attack.try('subscription', 'select outbox.alter_subscription(''super'', handler => ''attack.handler'')');
		perform attack.try('subscription', 'select outbox.pause(''victim'')');
		perform attack.try('claim', 'select outbox.claim(''victim'')');
		perform attack.try('retry', 'select outbox.retry_all(''victim'')');
		perform attack.try('load', 'load ''$libdir/plpgsql''');
		perform attack.try('sensitive', 'set outbox.sensitive_data = off');
		perform attack.try('tenant', 'select set_config(''outbox.tenant_setting'', ''x.y'', false)');
		execute 'prepare as_owner as select outbox.publish(''next'')';
		perform attack.try('prepared', 'execute as_owner');},
	own_objects => q{
		-- what the worker may look up: operators, functions, types and tables with the names that it uses
		perform attack.try('shadow', 'create or replace function attack.gen_random_uuid() returns uuid language sql as $f$ select attack.probe(''shadow''); select pg_catalog.gen_random_uuid() $f$');
		perform attack.try('alter role', 'alter role attacker set search_path = attack, public, pg_catalog');
		perform attack.try('alter role', 'alter role attacker set default_transaction_read_only = on');
		perform attack.try('alter role', 'alter role attacker set role = postgres');
		perform attack.try('alter role', 'alter role attacker set session_replication_role = replica');},
	parallel => q{
		set max_parallel_workers_per_gather = 2; set parallel_setup_cost = 0; set parallel_tuple_cost = 0; set min_parallel_table_scan_size = 0;
		insert into attack.parallel select distinct attack.who(n) from attack.numbers;},
	fails_late => q{
		insert into attack.deferred values (1);
		execute 'declare held cursor with hold for select attack.probe(''held_cursor'')';
		create temp table leftover (n integer);
		perform pg_advisory_lock(817);
		raise 'fails' using errcode = 'OT001';},
);

my $attack_code = join "\n", map { "when '$_' then $attacks{$_}" } sort keys %attacks;
sql($node, q{
	set role attacker;
	create table attack.deferred (n integer);
	create constraint trigger t after insert on attack.deferred deferrable initially deferred
		for each row execute function attack.probe_trigger('deferred_trigger');

	create table attack.deferred_again (n integer);
	create function attack.again() returns trigger language plpgsql as $$
	begin
		perform attack.try('in deferred: set role', 'set role postgres');
		perform attack.try('in deferred: session authorization', 'reset session authorization');
		perform attack.try('in deferred: reset role', 'reset role');
		perform attack.probe('deferred_in_deferred');
		if new.n < 3 then
			insert into attack.deferred_again values (new.n + 1);
		end if;
		return null;
	end $$;
	create constraint trigger t after insert on attack.deferred_again deferrable initially deferred for each row execute function attack.again();

	create table attack.deferred_cursor (n integer);
	create function attack.opens() returns trigger language plpgsql as $$
	begin
		execute 'declare late cursor with hold for select attack.probe(''cursor_in_deferred'')';
		create temp table late (n integer) on commit delete rows;
		execute 'create trigger t before delete on late for each row execute function attack.probe_trigger(''on commit'')';
		insert into late values (1);
		return null;
	end $$;
	create constraint trigger t after insert on attack.deferred_cursor deferrable initially deferred for each row execute function attack.opens();

	create table attack.deferred_path (n integer);
	create function attack.sets_path() returns trigger language plpgsql as $$
	begin
		perform set_config('search_path', 'attack, public, pg_catalog', false);
		perform set_config('statement_timeout', '1ms', false);
		return null;
	end $$;
	create constraint trigger t after insert on attack.deferred_path deferrable initially deferred for each row execute function attack.sets_path();

	create procedure attack.commits() language plpgsql as $$ begin commit; end $$;
	create function attack.probe_event() returns void language sql as 'select';
	create table attack.numbers as select n from generate_series(1, 1000) n;
	create table attack.parallel (who text);
	create function attack.who(n integer) returns text language sql stable parallel safe as $$ select current_user::text || ' ' || (n % 1)::text $$;

	-- the same names as in the worker's own statements, ready to be found by a search_path
	create function attack.now() returns timestamptz language sql as $$ select attack.probe('shadow'); select pg_catalog.now() $$;
	create function attack.gen_random_uuid() returns uuid language sql as $$ select attack.probe('shadow'); select pg_catalog.gen_random_uuid() $$;
	create function attack.count(integer) returns bigint language sql as $$ select attack.probe('shadow'); select 1::bigint $$;
	create function attack.substr(text, integer) returns text language sql as $$ select attack.probe('shadow'); select pg_catalog.substr($1, $2) $$;
	create function attack.power(double precision, integer) returns double precision language sql as $$ select attack.probe('shadow'); select pg_catalog.power($1, $2) $$;
	create function attack.equals(integer, bigint) returns boolean language sql as $$ select attack.probe('shadow') = 1 $$;
	create function attack.equals(integer, integer) returns boolean language sql as $$ select attack.probe('shadow') = 1 $$;
	create operator attack.= (leftarg = integer, rightarg = integer, function = attack.equals);
	create operator public.= (leftarg = integer, rightarg = integer, function = attack.equals);
	create type attack.interval as (x integer);
	create table attack.lane as select attack.probe('shadow') as lane where false;
	create function public.victims() returns integer language sql as $$ select attack.probe('shadow') $$;
});

# ---------------------------------------------------------------- language globals

# A trusted language keeps the globals of roles apart by itself; an untrusted one has one set of them for the whole process,
# which a low role gets at through a function that it is allowed to call.
is($node->psql('postgres', 'create extension plperl; create extension plperlu'), 0, 'plperl is there (package postgresql-plperl-<version>)')
	or BAIL_OUT('language globals could not be tested');
sql($node, q{
	create function public.remember() returns void language plperlu as $$
		$_SHARED{left_behind} = 1;
		$main::left_behind = 1;
	$$;
	create function public.remembered() returns text language plperlu as $$
		return defined $_SHARED{left_behind} || defined $main::left_behind ? 'found' : 'nothing';
	$$;
	set role attacker;
	create function attack.leave_global() returns text language plperl as $$
		$_SHARED{left_behind} = sub { spi_exec_query("select attack.probe('language_global')") };
		$main::left_behind = 1;
		spi_exec_query('select public.remember()');
		return spi_exec_query('select public.remembered() as found')->{rows}[0]{found};
	$$;
	set role victim;
	create function home.global() returns text language plperl as $$
		&{$_SHARED{left_behind}}() if $_SHARED{left_behind};
		return defined $_SHARED{left_behind} || defined $main::left_behind ? 'found' : 'nothing';
	$$;
	reset role;
	create function public.super_global() returns text language plperl as $$
		&{$_SHARED{left_behind}}() if $_SHARED{left_behind};
		return defined $_SHARED{left_behind} || defined $main::left_behind ? 'found' : 'nothing';
	$$;
	revoke all on function public.super_global from public;
});

# ---------------------------------------------------------------- those who are served next

my $looks_around = q{
	insert into report (of, what) values
		('%1$s', 'user ' || current_user || ', session ' || session_user || ', superuser ' || current_setting('is_superuser')),
		('%1$s', 'search_path ' || current_setting('search_path')),
		('%1$s', 'advisory ' || (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid() and granted and objsubid in (1, 2))),
		('%1$s', 'prepared ' || (select count(*) from pg_prepared_statements)),
		('%1$s', 'cursors ' || (select count(*) from pg_cursors where name in ('held', 'held_too', 'late'))),
		('%1$s', 'listens ' || (select count(*) from pg_listening_channels())),
		('%1$s', 'temporary ' || (select count(*) from pg_class where relpersistence = 't' and relnamespace = pg_my_temp_schema())),
		('%1$s', 'temporary functions ' || (select count(*) from pg_proc where pronamespace = pg_my_temp_schema())),
		('%1$s', 'settings ' || (select string_agg(s || ' ' || coalesce(nullif(current_setting(s, true), ''), '-'), ', ') from unnest(array['work_mem', 'statement_timeout', 'lock_timeout',
			'idle_in_transaction_session_timeout', 'default_transaction_read_only', 'default_transaction_isolation', 'default_transaction_deferrable', 'transaction_read_only', 'client_min_messages',
			'enable_indexscan', 'plan_cache_mode', 'synchronous_commit', 'session_replication_role', 'row_security', 'outbox.tenant_id', 'attack.variable']) s)),
		('%1$s', 'application ' || (current_setting('application_name') <> 'left behind') || ', zone ' || (current_setting('timezone') <> 'Asia/Tokyo'));
};
sql($node, qq{
	grant usage on schema home to public;
	set role attacker;
	create function attack.handler(e outbox.event) returns void language plpgsql as \$h\$
	begin
		case e.payload ->> 'way'
		$attack_code
		end case;
	end \$h\$;
	set role victim;
	create table home.mine (n integer);
	create function home.handler(e outbox.event) returns void language plpgsql as \$h\$
	begin
		insert into home.mine values (1);
		insert into report (of, what) values ('victim', 'global ' || home.global() || ', ' || public.remembered());
		@{[sprintf $looks_around, 'victim']}
	end \$h\$;
	alter role victim set search_path = home, public;
	reset role;
	create function public.super_handler(e outbox.event) returns void language plpgsql as \$h\$
	begin
		insert into report (of, what) values ('super', 'global ' || public.super_global() || ', ' || public.remembered());
		@{[sprintf $looks_around, 'super']}
	end \$h\$;
	revoke all on function public.super_handler from public;
	create function attack.own_look(e outbox.event) returns void language plpgsql as \$h\$
	begin
		@{[sprintf $looks_around, 'own']}
	end \$h\$;
	select outbox.subscribe('attack', '{attack}', handler => 'attack.handler', run_as => 'attacker', max_attempts => 1, lanes => 1);
	select outbox.subscribe('own', '{next}', handler => 'attack.own_look', run_as => 'attacker');
	select outbox.subscribe('victim', '{next}', handler => 'home.handler', run_as => 'victim');
	select outbox.subscribe('super', '{next}', handler => 'public.super_handler', run_as => 'postgres');
});

# what they find before there was any attack
sub next_ones_find
{
	sql($node, q{delete from report where of in ('own', 'victim', 'super'); select outbox.publish('next')});
	drain($node, 30, 'the next ones are served') or return '';
	return sql($node, q{select of || ': ' || what from report where of in ('own', 'victim', 'super') order by n, 1});
}
sub sorted { return join "\n", sort split /\n/, $_[0] }

my $undisturbed = sorted(next_ones_find());
like($undisturbed, qr/^own: user attacker, session attacker, superuser off$/m, 'a handler is its role');
like($undisturbed, qr/^victim: user victim, session victim, superuser off$/m, 'another is another');
like($undisturbed, qr/^super: user postgres, session postgres, superuser on$/m, 'a superuser is one');
like($undisturbed, qr/^$_: global nothing, nothing$/m, "$_: no global of a language") for 'victim', 'super';
like($undisturbed, qr/^victim: search_path home, public$/m, q{the role's own search_path});

# ---------------------------------------------------------------- attack

for my $way (sort keys %attacks)
{
	my $start = log_position($node);
	sql($node, "select outbox.publish('attack', '{\"way\": \"$way\"}')");
	drain($node, 30, "$way: the attack is over") or last;
	my $status = sql($node, "select d.status || coalesce(' ' || d.error_code, '') from outbox.delivery d join outbox.event e using (event_id) where d.subscription = 'attack' and e.payload ->> 'way' = '$way'");
	is($status, $way eq 'fails_late' ? 'REVIEW_REQUIRED OT001' : 'COMPLETED', "$way: it had its try");
	# own_objects: from here on its role has another search_path
	my $after = sorted(next_ones_find());
	$after =~ s/^(own: search_path ).*$/$1"\$user", public/m if $way gt 'own_objects' || $way eq 'own_objects';
	is($after, $undisturbed, "$way: who is served next finds nothing of it");
	log_is_quiet($node, $start, undef, "$way: and the log is quiet");
}

is_sql($node, q{select string_agg(distinct who || ' ' || reads_secret, ', ') from attack.caught}, 'attacker false', 'all of it ran as the attacker, or not at all');
# those that must have run: otherwise the test tells nothing
is_sql($node, q{select string_agg(distinct way, ', ' order by way) from attack.caught where way !~ 'shadow'},
	'deferred_in_deferred, deferred_trigger, discard, held_cursor, set_role', 'these did run');
is_sql($node, q{select count(*) from attack.caught where way = 'cursor_in_deferred'}, '0', 'no query of a held cursor runs at commit');
is_sql($node, q{select string_agg(what, ', ') from report where of = 'language_global'}, 'found', 'a global was left behind');
is_sql($node, q{select string_agg(distinct who, ', ') from attack.parallel}, 'attacker 0', 'parallel workers are the role');
is_sql($node, q{select coalesce(string_agg(distinct of || ': ' || what, ', '), '') from report where what = 'done' and of not in ('alter role', 'shadow', 'reset all')},
	'', 'nothing that was refused elsewhere was allowed here');
is_sql($node, q{select string_agg(distinct what, ', ' order by what) from report where of ~ '^(in deferred: )?(set|reset|session|set_config|set local|function with) ?(role|authorization)' and what <> 'done'},
	'42501', 'to change the role is refused');
is_sql($node, q{select count(*) from pg_locks where locktype = 'advisory' and objid in (815, 816, 817)}, '0', 'no lock is left');
is_sql($node, q{select count(*) from outbox.review_required}, '1', 'no other event paid for it');
is_sql($node, q{select rolsuper from pg_roles where rolname = 'attacker'}, 'f', 'the attacker is who it was');

$node->stop;
done_testing();
