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

$node->safe_psql('postgres', 'create extension outbox');
is_served($node, 'postgres', 2, 10, 'with three slots: the router and two of four workers');
ok(defined within(10, sub { warnings_logged() == 1 }), 'a warning is logged');
like(slurp_file($node->logfile), qr/Raise "max_worker_processes"/, 'it names the setting');
ok($node->poll_query_until('postgres', q{select count(*) filter (where state = 'missing') = 2 and max(workers_wanted) = 4 and max(workers_running) = 2 from outbox.worker_status}),
	'worker_status shows wanted and running');

# another database takes a share
$node->safe_psql('postgres', 'create database other');
$node->safe_psql('other', 'create extension outbox');
ok( defined within(
		15, sub { processes($node, 'postgres') eq 'router,worker' && processes($node, 'other') eq 'router' }),
	'a second database gets a router before the first one has two workers')
  or diag(processes($node, 'postgres') . ' / ' . processes($node, 'other'));
$node->safe_psql('postgres', 'drop database other');
is_served($node, 'postgres', 2, 10, 'what it had goes back');

# slots that others take, and give back
$node->append_conf('postgresql.conf', "outbox.workers = 1\noutbox.dispatch = off\n");
$node->reload;
is_unserved($node, 'postgres', 5, 'stopped');
my $force = $node->safe_psql('postgres', 'show server_version_num') >= 160000 ? 'debug_parallel_query' : 'force_parallel_mode';
my @hogs;
for (1 .. 3)
{
	my ($in, $out, $err) = ('', '', '');
	push @hogs, IPC::Run::start(
		[ 'psql', '-X', '-d', $node->connstr('postgres'), '-c', "set $force = on", '-c', 'select pg_sleep(60)' ],
		\$in, \$out, \$err);
}
ok(defined within(10, sub {
		$node->safe_psql('postgres', q{select count(*) from pg_stat_activity where backend_type = 'parallel worker'}) eq '3' }),
	'all slots are taken by others');
$node->append_conf('postgresql.conf', "outbox.dispatch = on\n");
$node->reload;
$node->safe_psql('postgres', 'select pg_sleep(4)');
is(processes($node, 'postgres'), '', 'no slot, no process');
$node->safe_psql('postgres', q{select pg_terminate_backend(leader_pid) from pg_stat_activity where backend_type = 'parallel worker'});
is_served($node, 'postgres', 1, 10, 'served again when slots are free');
$_->finish for @hogs;

is(warnings_logged(), 1, 'one warning within the minute');
log_is_quiet($node, 0, qr/$shortage|terminating (connection|background worker "parallel worker).*administrator command/, 'and no other');
$node->stop;
done_testing();
