# A process that was registered and does not start, because the server cannot fork or does not get to it, is given up, and
# started again; none of it needs a person, none is started twice, and the log is not flooded.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(is_served within log_position);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('starts', "outbox.workers = 1\noutbox.poll_interval = '200ms'\noutbox.test_start_timeout = '2s'\n");
is_served($node, 'postgres', 1, 20, 'one worker');
my $postmaster = (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
my $launcher = sql($node, q{select pid from pg_stat_activity where backend_type = 'outbox launcher'});
# while the postmaster is held nobody can log in
my $watcher = $node->background_psql('postgres');
my $watcher_pid = $watcher->query_safe('select pg_backend_pid()');

sub state_of
{
	my ($number) = @_;
	return $watcher->query_safe("select coalesce(max(state), 'none') from outbox.worker_status where process = 'worker' and number = $number");
}

# --- the postmaster does not get to it

kill 'STOP', $postmaster or die;
$node->append_conf('postgresql.conf', "outbox.workers = 2\n");
kill 'HUP', $launcher, $watcher_pid or die;
ok(defined within(20, sub { state_of(2) eq 'starting' }), 'a second worker is registered');
# (for longer each time, and at first for no longer than it takes to try again)
ok(defined within(40, sub { state_of(2) eq 'missing' }), 'it does not start, and is given up') or diag(state_of(2));
ok(defined within(30, sub { state_of(2) eq 'starting' }), 'another one is registered');
kill 'CONT', $postmaster or die;
is_served($node, 'postgres', 2, 30, 'two workers, as soon as they can be had');

# --- the server cannot fork

my $from = log_position($node);
system('prlimit', "--pid=$postmaster", '--nproc=1:') == 0 or die;
$node->append_conf('postgresql.conf', "outbox.workers = 3\n");
kill 'HUP', $postmaster or die;
ok(defined within(20, sub { substr(slurp_file($node->logfile), $from) =~ /could not fork/ }), 'the server cannot fork');
ok(defined within(20, sub { state_of(3) =~ /missing|starting/ }), 'a worker is missing');
# some looks of the launcher later
$watcher->query_safe('select pg_sleep(4)');
my $log = substr(slurp_file($node->logfile), $from);
my $complaints = () = $log =~ /could not fork/g;
cmp_ok($complaints, '<', 30, "it is tried again at growing distance ($complaints times)");
my $hard = `prlimit --pid=$postmaster --nproc --noheadings --raw --output HARD`;
chomp $hard;
system('prlimit', "--pid=$postmaster", "--nproc=$hard:") == 0 or die;
is_served($node, 'postgres', 3, 30, 'three workers, as soon as they can be had');
is($watcher->query_safe('select count(*) from outbox.worker_status'), '4', 'and no more');
ok(defined within(20, sub { $watcher->query_safe(q{select count(*) from outbox.worker_status where state not in ('idle', 'running')}) eq '0' }), 'all of them at work');
$watcher->quit;
$node->stop;
done_testing();
