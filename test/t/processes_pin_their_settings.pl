# Whatever ALTER DATABASE and ALTER ROLE set for the database and the role that our processes run in, routing, dispatch,
# retries and upkeep go on as they should, durably, and without a parallel worker.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(within log_position complaints);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('settings', "outbox.poll_interval = '200ms'\noutbox.workers = 1\nlog_min_messages = debug1\n");
my $version = sql($node, 'show server_version_num');
my $force = $version >= 160000 ? 'debug_parallel_query' : 'force_parallel_mode';
make_effects($node, 'effect', q{
	insert into seen select name, current_setting(name) from unnest('{session_replication_role,default_transaction_isolation,transaction_read_only,statement_timeout}'::text[]) name;
	if e.payload ? 'fails' and (outbox.current_delivery()).attempt < 3 then raise exception 'x'; end if;});
sql($node, q{
	create role worker; alter role worker set search_path = public; create role nobody;
	create table seen (name text, value text);
	grant insert on effect, seen to worker;
	grant usage on schema outbox to worker;
	grant execute on function outbox.current_delivery() to worker;
	select outbox.subscribe('s', '{a.#}', 'public.effect_handler', run_as => 'worker', lanes => 4, backoff_base => '50 ms', backoff_factor => 1);
	select outbox.subscribe('reviews', '{b}', 'public.effect_handler', run_as => 'worker', max_attempts => 1)});
my $user = sql($node, 'select current_user');

my %hostile = (
	role => 'nobody', search_path => 'nowhere', default_transaction_isolation => 'serializable', default_transaction_read_only => 'on',
	default_transaction_deferrable => 'on', statement_timeout => '1ms', lock_timeout => '1ms', idle_in_transaction_session_timeout => '1ms',
	idle_session_timeout => '1ms', synchronous_commit => 'off', row_security => 'off', session_replication_role => 'replica',
	$force => 'on', parallel_setup_cost => '0', parallel_tuple_cost => '0', min_parallel_table_scan_size => '0', max_parallel_workers_per_gather => '4',
	plan_cache_mode => 'force_custom_plan', jit => 'on', jit_above_cost => '0', transform_null_equals => 'on', array_nulls => 'off',
	DateStyle => 'SQL, DMY', IntervalStyle => 'sql_standard', bytea_output => 'escape', extra_float_digits => '-15',
	standard_conforming_strings => 'off', quote_all_identifiers => 'on', client_min_messages => 'debug5', exit_on_error => 'on', work_mem => '64kB',
	check_function_bodies => 'off', backslash_quote => 'on', application_name => 'somebody', TimeZone => 'Asia/Kathmandu', lc_messages => 'C',
	($version >= 170000 ? (transaction_timeout => '1ms') : ()),
	map { ("enable_$_" => 'off') } qw(indexscan indexonlyscan nestloop hashagg sort material memoize hashjoin mergejoin));

# our sessions are not what is tested
$ENV{PGOPTIONS} = join ' ', map { "-c $_" } 'role=none', 'search_path=public', 'default_transaction_isolation=read\ committed', 'default_transaction_read_only=off',
	'default_transaction_deferrable=off', 'statement_timeout=0', 'lock_timeout=0', 'idle_in_transaction_session_timeout=0', 'idle_session_timeout=0',
	'session_replication_role=origin', 'client_min_messages=warning', 'exit_on_error=off', 'jit=off', 'max_parallel_maintenance_workers=0', 'DateStyle=ISO', "$force=off",
	'max_parallel_workers_per_gather=0', ($version >= 170000 ? 'transaction_timeout=0' : ());

for my $where ('database postgres', "role \"$user\"", "role \"$user\" in database postgres")
{
	my ($rest) = $where =~ /in (.*)/;
	my $target = $rest ? ("role \"$user\" in $rest") : $where;
	my $n = 0;
	sql($node, join(';', map { "alter $target set $_ = '" . $hostile{$_} . "'" } grep { $_ ne 'search_path' } sort keys %hostile) . "; alter $target set search_path = nowhere");
	# new processes find them
	my ($router) = pids($node, 'outbox router');
	my ($worker) = pids($node, 'outbox worker');
	sql($node, "select pg_terminate_backend(pid) from pg_stat_activity where backend_type in ('outbox router', 'outbox worker')");
	comes_true($node, 30, "select count(*) = 2 from pg_stat_activity where backend_type in ('outbox router', 'outbox worker') and pid not in ($router, $worker) and application_name like 'outbox %'", "$where: new processes");
	my $start = log_position($node);
	sql($node, q{truncate effect, seen;
		select count(outbox.publish('a.b', case when n % 50 = 0 then '{"fails": 1}' else '{}' end::jsonb, event_key => 'k' || n % 20)) from generate_series(1, 100) n;
		select outbox.publish('b', '{"fails": 1}');
		select outbox.publish('a.later', deliver_at => now() + interval '500 ms')});
	drain($node, 30, 'all is settled');
	comes_true($node, 30, q{select count(*) = 101 and count(distinct event_id) = 101 from effect}, 'all that could be is delivered, the delayed one too');
	is_sql($node, q{select count(*) from outbox.review_required}, '1', 'one waits for a person');
	sql($node, q{select outbox.retry_all('reviews'); select outbox.replay('s', from_time => now() - interval '1 day'); select outbox.alter_subscription('s', lanes => 5 - lanes) from outbox.subscription where subscription = 's'});
	comes_true($node, 30, q{select count(*) >= 202 from effect}, 'a replay, and a change of lanes');
	drain($node, 30, 'settled again');
	sql($node, q{select outbox.discard('reviews', event_id, 'test') from outbox.review_required});
	is_sql($node, q{select name || ' ' || value from seen where name like 'session%' or name like 'default%' or name like '%timeout' or name like '%read_only' group by 1 order by 1},
		"default_transaction_isolation read committed\nsession_replication_role origin\nstatement_timeout 0\ntransaction_read_only off", 'handlers find what they may rely on');
	is_sql($node, q{select count(*) from pg_stat_activity where backend_type = 'parallel worker'}, '0', 'no parallel worker');
	my $log = substr(slurp_file($node->logfile), $start);
	unlike($log, qr/registering background worker "parallel worker/, 'none was ever started');
	is(join("\n", grep { !/is stopped|delivery/ } complaints($node, $start)), '', 'and nobody complains');
	sql($node, "alter $target reset all");
}
$node->stop;
done_testing();
