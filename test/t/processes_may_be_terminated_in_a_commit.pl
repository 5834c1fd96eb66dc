# The process that makes a segment may be terminated at any moment, in the middle of its commit too, where an error would
# end the whole server: commit_delay holds it there, for a tenth of a second.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

# no router: each new day's segment is made when a publisher asks for it
my $node = new_engine('main', "outbox.dispatch = off\nfsync = on\ncommit_delay = 100000\ncommit_siblings = 0\nlog_min_messages = debug1\nautovacuum = off\n");
my $started = sql($node, 'select pg_postmaster_start_time()');
my $position = -s $node->logfile;
my $log = sub { return substr(slurp_file($node->logfile), $position) };

# The process that has just said that it made the segment, and commits.
sub committing
{
	my ($limit) = @_;
	my $until = time + $limit;
	while (time < $until)
	{
		return $1 if $log->() =~ /\[(\d+)\] outbox segment maker .*made segment/;
		usleep(1000);
	}
	return undef;
}

my $publisher = $node->background_psql('postgres', on_error_stop => 0);
# until three were: on a machine that has something else to do just then a commit may be over before
my ($days, $terminated) = (0, 0);
while ($terminated < 3 && $days < 20)
{
	my $day = ++$days;
	$node->append_conf('postgresql.conf', 'outbox.test_clock_offset = ' . 86400 * $day . "\n");
	$node->reload;
	ok(defined OutboxProcesses::within(10, sub { $publisher->query('show outbox.test_clock_offset') eq "${day}d" }), "day $day");
	$position = -s $node->logfile;
	$publisher->query_until(qr/asked $day/, "\\echo asked $day\nselect outbox.publish('a');\n");
	my $pid = committing(20);
	my $there = defined $pid && kill('TERM', $pid) == 1;
	$terminated++ if $there && $log->() !~ /made segment.*exited with exit code/s;
	ok(eval { $publisher->query('select 1'); 1 }, '  the publisher is answered');
}
is($terminated, 3, "three were terminated in their commit, in $days days");
eval { $publisher->quit };
is(sql($node, 'select pg_postmaster_start_time()'), $started, 'the server has not ended its sessions');
$position = 0;
unlike($log->(), qr/PANIC|terminating any other active server processes/, 'nor wanted to');
is_sql($node, q{select count(*) from outbox.event}, $days, 'and each event is there');
$node->stop;
done_testing();
