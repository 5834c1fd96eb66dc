# Two router processes in one database: the second one routes nothing and keeps its hands off the lanes, the first one
# is still woken by commits; when the first one goes, one of those that are there takes its place, and commits wake that one.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(within log_position log_is_quiet);
use Test::More;

# the poll interval is longer than the test waits for what a commit wakes
my $node = new_engine('second', "outbox.workers = 1\noutbox.poll_interval = '12s'\n");
make_effects($node, 'effect');
sql($node, q{
	create function start_router() returns integer language c as '$libdir/outbox', 'outbox_test_start_router';
	create role worker; grant insert on effect to worker;
	select outbox.subscribe('s', '{a.#}', 'public.effect_handler', lanes => 2, run_as => 'worker')});
sql($node, q{select outbox.publish('a.b')});
drain($node, 60, 'delivered');
my $start = log_position($node);

sub routers
{
	return sql($node, q{select coalesce(string_agg(pid::text, ' ' order by backend_start), '') from pg_stat_activity where backend_type = 'outbox router'});
}

sub lock_holder
{
	return sql($node, q{select coalesce(string_agg(distinct pid::text, ' '), '') from pg_locks join pg_stat_activity using (pid)
		where locktype = 'advisory' and granted and backend_type = 'outbox router'});
}

sub publish
{
	my ($n) = @_;
	sql($node, "begin; select count(outbox.publish('a.b', event_key => 'k' || n % 7)) from generate_series(1, 10) n; commit") for 1 .. $n / 10;
}

my ($first) = split ' ', routers();
is(lock_holder(), $first, 'the router has its lock');
my $second;
ok(defined within(60, sub { $second = sql($node, 'select start_router()'); $second ne '' }), 'a second router is started');
ok(defined within(30, sub { routers() eq "$first $second" }), 'both are there') or diag(routers());

# woken by commits: not by the poll interval, and not the second one in its place
for (1 .. 3)
{
	my $id = sql($node, q{select outbox.publish('a.b')});
	comes_true($node, 8, "select count(*) = 1 from effect where event_id = '$id'", 'a commit still wakes the one that routes');
}
publish(500);
drain($node, 30, 'all is delivered');
is_sql($node, q{select count(*), count(distinct event_id) from effect}, '504|504', 'each once');
is(lock_holder(), $first, 'only the first one has the lock');

# the lanes change: the end of the old ones is for the one who appends to them
sql($node, qq{select outbox.alter_subscription('s', lanes => 3)});
publish(100);
drain($node, 120, 'new lanes');
is_sql($node, q{select count(*), count(distinct event_id) from effect}, '604|604', 'each once');

# the first one goes: the second one takes its place, or the one that the launcher starts; the other does nothing
sql($node, "select pg_terminate_backend($first)");
my @all;
ok(defined within(60, sub { @all = split ' ', routers(); @all == 2 && $all[0] eq $second && lock_holder() =~ /^\d+$/ }), 'there are two again, and one has the lock')
  or diag(routers() . ' / ' . lock_holder());
my $holder = lock_holder();
my ($idle) = grep { $_ ne $holder } @all;
publish(200);
drain($node, 120, 'all is delivered');
is(lock_holder(), $holder, 'by one of them');
my $id = sql($node, q{select outbox.publish('a.b')});
comes_true($node, 8, "select count(*) = 1 from effect where event_id = '$id'", 'whom commits wake now');
sql($node, "select pg_terminate_backend($idle)");
sql($node, "select pg_terminate_backend($holder)");
ok(defined within(60, sub { @all = split ' ', routers(); @all == 1 && lock_holder() eq $all[0] }), 'and at last a new one is alone') or diag(routers());
publish(100);
drain($node, 120, 'all is delivered');
is_sql($node, q{select count(*), count(distinct event_id) from effect}, '905|905', 'each once, whoever routed');
is(reconcile($node, 's', 'effect'), '', 'receipts are effects');
is_sql($node, q{select count(*) from (select tick, chunk from outbox.tick group by 1, 2 having count(*) > 1) t}, '0', 'no tick twice');
log_is_quiet($node, $start, undef, 'and nobody complains');
$node->stop;
done_testing();
