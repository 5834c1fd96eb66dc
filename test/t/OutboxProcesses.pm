# What the tests of the processes share: a server with the library preloaded,
# waiting for a condition with a limit, and the server's log without noise.
package OutboxProcesses;

use strict;
use warnings;
use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(new_server within processes served is_served is_unserved log_is_quiet log_position complaints);

my $kinds = q{'outbox router', 'outbox worker'};

# A started server; further lines for postgresql.conf may be given.
sub new_server
{
	my ($name, $conf) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init(allows_streaming => 1);
	$node->append_conf('postgresql.conf',
		"shared_preload_libraries = 'outbox'\nmax_worker_processes = 20\nmax_wal_senders = 4\nlog_statement = none\nlog_line_prefix = '%m [%p] %b %a '\n" . ($conf // ''));
	$node->start;
	return $node;
}

# Does the condition come true within so many seconds?  Returns the seconds it took, or undef.
sub within
{
	my ($limit, $condition) = @_;
	my $start = time;
	while (1)
	{
		return (time - $start) || 0.001 if $condition->();
		return undef if time - $start > $limit;
		usleep(50_000);
	}
}

# "router,worker,worker" of a database
sub processes
{
	my ($node, $database) = @_;
	return $node->safe_psql('postgres',
		qq{select coalesce(string_agg(replace(backend_type, 'outbox ', ''), ',' order by backend_type), '')
		   from pg_stat_activity where datname = '$database' and backend_type in ($kinds)});
}

sub served
{
	my ($workers) = @_;
	return join(',', 'router', ('worker') x $workers);
}

# The database gets its processes within the time.
sub is_served
{
	my ($node, $database, $workers, $limit, $name) = @_;
	my $took = within($limit, sub { processes($node, $database) eq served($workers) });
	ok(defined $took, $name) or diag("it has: " . processes($node, $database));
	return $took;
}

sub is_unserved
{
	my ($node, $database, $limit, $name) = @_;
	my $took = within($limit, sub { processes($node, $database) eq '' });
	ok(defined $took, $name) or diag("it has: " . processes($node, $database));
	return $took;
}

sub log_position
{
	my ($node) = @_;
	return -s $node->logfile;
}

# What our own processes have logged above LOG.
sub complaints
{
	my ($node, $from) = @_;
	my $log = substr(slurp_file($node->logfile), $from // 0);
	return grep { /outbox (launcher|router|worker)\b.*(WARNING|ERROR|FATAL|PANIC): / } split /\n/, $log;
}

# No errors in the log, and no warnings, apart from what is expected.  A client that
# the server's stop overtakes is no concern of ours, nor is an autovacuum that makes way, or that a busy machine starts late.
sub log_is_quiet
{
	my ($node, $from, $expected, $name) = @_;
	my $log = substr(slurp_file($node->logfile), $from);
	$expected = join('|', grep { defined } $expected, 'client backend .*terminating connection due to administrator command',
		'autovacuum worker .*canceling autovacuum task', 'autovacuum launcher .*worker took too long to start; canceled');
	my @noise = grep { /(WARNING|ERROR|FATAL|PANIC|TRAP):? / && !/$expected/ } split /\n/, $log;
	is(join("\n", @noise), '', $name);
}

1;
