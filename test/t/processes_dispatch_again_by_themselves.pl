# Whatever ends the processes, or interrupts them, idle or in the middle of a handler: what is published right
# afterwards is handled within seconds, and nobody has to do anything for it.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(within complaints log_position);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = new_engine('main', "restart_after_crash = on\nlog_line_prefix = '%m [%p] %b %a '\n");
sql($node, q{create table weather (calm boolean); insert into weather values (true)});
make_effects($node, 'effect', q{while e.event_type = 't.slow' and not (select calm from weather) loop perform pg_sleep(0.02); end loop;});
sql($node, q{select outbox.subscribe('s', '{t.*}', 'public.effect_handler', max_attempts => 5, backoff_base => '100 ms')});

# the server accepts connections again, after the crash that took its checkpointer
my $checkpointer = q{select pid from pg_stat_activity where backend_type = 'checkpointer'};

sub kill_and_wait
{
	my ($pid) = @_;
	my $before = sql($node, $checkpointer);
	kill 'KILL', $pid;
	ok( defined within(60, sub { my ($rc, $out) = eval { $node->psql('postgres', $checkpointer) }; return defined $rc && $rc == 0 && $out ne '' && $out ne $before }),
		'the server has restarted') or BAIL_OUT('it does not come back');
	return;
}

my $n = 0;

# ten events at once, on other keys than the slow one's, and all lanes
sub is_dispatched
{
	my ($name) = @_;
	$n++;
	sql($node, qq{select outbox.publish('t.quick', jsonb_build_object('n', $n), event_key => 'k' || i) from generate_series(1, 10) i});
	my $took = comes_true($node, 20, qq{select count(*) = 10 from effect where payload ->> 'n' = '$n'}, "$name: ten effects within seconds");
	note sprintf '%s: %.1f s', $name, $took if defined $took;
	return;
}

my $workers = q{pid from pg_stat_activity where backend_type = 'outbox worker'};
my %all = (
	'pg_terminate_backend of the workers' => sub { sql($node, "select pg_terminate_backend(pid) from (select $workers) w") },
	'SIGTERM to the workers' => sub { kill 'TERM', pids($node, 'outbox worker') },
	'SIGTERM to all processes' => sub { kill 'TERM', map { pids($node, "outbox $_") } qw(launcher router worker) },
	'cancelled workers' => sub { sql($node, "select pg_cancel_backend(pid) from (select $workers) w") },
	'SIGINT to the workers' => sub { kill 'INT', pids($node, 'outbox worker') },
	'SIGHUP' => sub { set_offset($node, 0); kill 'HUP', map { pids($node, "outbox $_") } qw(launcher router worker) },
	'SIGKILL of a worker' => sub { kill_and_wait((pids($node, 'outbox worker'))[0]) },
	'restart' => sub { $node->restart },
	'immediate stop' => sub { $node->stop('immediate'); $node->start });
my %idle = (
	%all,
	'terminated router' => sub { sql($node, q{select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'outbox router'}) },
	'terminated launcher' => sub { sql($node, q{select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'outbox launcher'}) },
	'cancelled router' => sub { sql($node, q{select pg_cancel_backend(pid) from pg_stat_activity where backend_type = 'outbox router'}) },
	'SIGKILL of the router' => sub { kill_and_wait((pids($node, 'outbox router'))[0]) },
	'SIGKILL of the launcher' => sub { kill_and_wait((pids($node, 'outbox launcher'))[0]) });

my $slow = 0;

# While the handler of a slow event is at work, in the process that is hit; in it because the
# weather is calm again only afterwards.
sub busy
{
	my ($name, $way) = @_;
	$slow++;
	sql($node, qq{update weather set calm = false; select outbox.publish('t.slow', jsonb_build_object('slow', $slow), event_key => 'slow')});
	comes_true($node, 20, q{select count(*) = 1 from pg_stat_activity where backend_type = 'outbox worker' and wait_event = 'PgSleep'}, "$name: a handler is at work");
	$way->();
	sql($node, 'update weather set calm = true');
	is_dispatched("$name in the middle of a handler");
	comes_true($node, 20, qq{select count(*) = 1 from effect where payload ->> 'slow' = '$slow'}, "$name: and what was interrupted is done");
	return;
}

is_dispatched('at first');
for my $name (sort keys %idle)
{
	$idle{$name}->();
	is_dispatched($name);
}

# what is told to reload goes on with what it does
my $before = sql($node, q{select count(*) from outbox.attempt});
comes_true($node, 20, q{select count(*) = 2 from pg_stat_activity where backend_type = 'outbox worker'}, 'both workers are there');
my $victims = join ',', pids($node, 'outbox worker');
busy('SIGHUP', $all{SIGHUP});
is(join(',', pids($node, 'outbox worker')), $victims, 'which ends no worker');
is_sql($node, 'select count(*) from outbox.attempt', $before, 'and uses no attempt');
busy($_, $all{$_}) for grep { $_ ne 'SIGHUP' } sort keys %all;

drain($node, 60, 'all is settled');
is_sql($node, q{select status, count(*) from outbox.delivery group by 1}, 'COMPLETED|' . (10 * $n + $slow), 'each event is completed');
is(reconcile($node, 's', 'effect'), '', 'and has one effect');
$node->stop;
done_testing();
