# When max_worker_processes leaves too few slots, the server says so once, goes on with
# fewer processes shared out over the databases, and recovers by itself.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;

# one for our launcher, one for logical replication's: three are left
my $node = new_server('main', "max_worker_processes = 5\nmax_parallel_workers = 8\noutbox.workers = 4\n");
my $shortage = qr/no background worker slot is free for an outbox process/;

sub warnings_logged
{
	my @found = slurp_file($node->logfile) =~ /$shortage/g;
	return scalar @found;
}

# Is there a warning that came within a minute of the one before? A slow machine may be at this test for longer.
sub warned_too_often
{
	my @times = map { $_->[0] * 3600 + $_->[1] * 60 + $_->[2] } map { [ split /:/ ] } slurp_file($node->logfile) =~ /^\S+ (\d+:\d+:\d+\.\d+) .*WARNING:  $shortage/mg;
	return grep { ($times[$_] - $times[ $_ - 1 ]) % 86400 < 59 } 1 .. $#times;
}

sub parallel_workers { return $node->safe_psql('postgres', q{select count(*) from pg_stat_activity where backend_type = 'parallel worker'}) }

$node->safe_psql('postgres', 'create extension outbox');
is_served($node, 'postgres', 2, 30, 'with three slots: the router and two of four workers');
ok(defined within(20, sub { warnings_logged() > 0 }), 'a warning is logged');
like(slurp_file($node->logfile), qr/Raise "max_worker_processes"/, 'it names the setting');
ok($node->poll_query_until('postgres', q{select count(*) filter (where state = 'missing') = 2 and max(workers_wanted) = 4 and max(workers_running) = 2 from outbox.worker_status}),
	'worker_status shows wanted and running');

# another database takes a share
$node->safe_psql('postgres', 'create database other');
$node->safe_psql('other', 'create extension outbox');
ok( defined within(
		40, sub { processes($node, 'postgres') eq 'router,worker' && processes($node, 'other') eq 'router' }),
	'a second database gets a router before the first one has two workers')
  or diag(processes($node, 'postgres') . ' / ' . processes($node, 'other'));
$node->safe_psql('postgres', 'drop database other');
is_served($node, 'postgres', 2, 30, 'what it had goes back');

# slots that others take, and give back
$node->append_conf('postgresql.conf', "outbox.workers = 1\noutbox.dispatch = off\n");
$node->reload;
is_unserved($node, 'postgres', 20, 'stopped');
my $force = $node->safe_psql('postgres', 'show server_version_num') >= 160000 ? 'debug_parallel_query' : 'force_parallel_mode';
my @hogs;
# one whose slot is not free yet does without, and another one comes in its place
for (1 .. 20)
{
	my $before = parallel_workers();
	last if $before == 3;
	my ($in, $out, $err) = ('', '', '');
	push @hogs, IPC::Run::start(
		[ 'psql', '-X', '-d', $node->connstr('postgres'), '-c', "set $force = on", '-c', 'select pg_sleep(600)' ],
		\$in, \$out, \$err);
	within(5, sub { parallel_workers() > $before });
}
is(parallel_workers(), '3', 'all slots are taken by others');
$node->append_conf('postgresql.conf', "outbox.dispatch = on\n");
$node->reload;
$node->safe_psql('postgres', 'select pg_sleep(4)');
is(processes($node, 'postgres'), '', 'no slot, no process');
$node->safe_psql('postgres', q{select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'client backend' and query like 'select pg_sleep(600)%'});
is_served($node, 'postgres', 1, 30, 'served again when slots are free');
$_->finish for @hogs;

is(scalar(warned_too_often()), 0, 'one warning within the minute');
log_is_quiet($node, 0, qr/$shortage|terminating (connection|background worker "parallel worker).*administrator command/, 'and no other');
$node->stop;
done_testing();
