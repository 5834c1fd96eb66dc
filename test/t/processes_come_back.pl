# Nothing but outbox.dispatch stops the processes for good: whichever is ended in
# whichever way, it is back within seconds.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_server('main', "restart_after_crash = on\n");
$node->safe_psql('postgres', 'create extension outbox');
is_served($node, 'postgres', 2, 20, 'served');

sub pids
{
	my ($kind) = @_;
	return split /\n/, $node->safe_psql('postgres',
		"select pid from pg_stat_activity where backend_type = '$kind' order by pid");
}

# all four, none of the pids that were there
sub all_new
{
	my %old = map { $_ => 1 } @_;
	my @now = map { pids("outbox $_") } qw(launcher router worker);
	return @now == 4 && !grep { $old{$_} } @now;
}

my $start = log_position($node);

for my $kind (qw(router worker launcher))
{
	my @victims = pids("outbox $kind");
	$node->safe_psql('postgres', "select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'outbox $kind'");
	my $took = within(20,
		sub { my @now = pids("outbox $kind"); @now == @victims && !grep { my $p = $_; grep { $_ == $p } @victims } @now });
	ok(defined $took, "terminated $kind is back");
}
# the launcher that is back has adopted the others
is(processes($node, 'postgres'), served(2), 'no process twice');

my @all = map { pids("outbox $_") } qw(launcher router worker);
kill 'TERM', @all;
ok(defined within(20, sub { all_new(@all) }), 'all are back after SIGTERM to all');

# signals that do not end them
@all = map { pids("outbox $_") } qw(launcher router worker);
$node->safe_psql('postgres', "select pg_cancel_backend(pid) from pg_stat_activity where backend_type like 'outbox %'");
kill 'INT', @all;
kill 'HUP', @all;
kill 'USR1', @all;
is($node->safe_psql('postgres', "create table t (); drop table t; select pg_sleep(1.5)"), '', 'time passes');
is( join(',', sort { $a <=> $b } map { pids("outbox $_") } qw(launcher router worker)),
	join(',', sort { $a <=> $b } @all),
	'cancels and other signals end none of them');

# again and again, also while they start
for (1 .. 30)
{
	kill 'TERM', pids('outbox router'), pids('outbox worker');
	usleep(rand(20_000));
}
is_served($node, 'postgres', 2, 20, 'back after SIGTERM at any moment');

$node->restart;
is_served($node, 'postgres', 2, 20, 'back after a restart');
log_is_quiet($node, $start, qr/outbox launcher.*exit code 1/, 'none of it is worth a warning');

# a crash of one process restarts the server
for my $kind (qw(worker router launcher))
{
	@all = map { pids("outbox $_") } qw(launcher router worker);
	my ($victim) = pids("outbox $kind");
	kill 'KILL', $victim;
	ok( defined within(
			60,
			sub {
				# psql may find the server gone at any moment
				my ($rc, $out) = eval { $node->psql('postgres', "select count(*) from pg_stat_activity where backend_type like 'outbox %' and pid <> all (array[" . join(',', @all) . "])") };
				return defined $rc && $rc == 0 && $out eq '4';
			}),
		"all are back after SIGKILL of a $kind");
}
$node->stop('immediate');
$node->start;
is_served($node, 'postgres', 2, 20, 'back after an immediate stop');

$node->stop;
done_testing();
