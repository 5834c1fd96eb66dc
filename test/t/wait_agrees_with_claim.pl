# When outbox.wait() says that there is something to claim, a claim gets it; when it says no, a claim gets nothing. And
# what others do with their leases wakes it.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $node = new_engine('main', "outbox.workers = 1\nautovacuum = off\n");

# wait(0) against a claim that is rolled back; perhaps right after something else, which is done in the same session
sub agrees
{
	my ($subscription, $expected, $state, $before) = @_;
	my @answers = split /\n/, sql($node, ($before // '') . "call outbox.wait('{$subscription}', '0'); begin; select count(*) > 0 from outbox.claim('$subscription', 1); rollback");
	is(join(', ', @answers[ -2, -1 ]), "$expected, $expected", "$subscription: $state");
}

sub claim
{
	my ($subscription, $events, $duration) = @_;
	return sql($node, "select lease_token from outbox.claim('$subscription', $events, '$duration') limit 1");
}

sub publish
{
	my ($type, @keys) = @_;
	sql($node, 'select ' . join(', ', map { "outbox.publish('$type', event_key => '$_')" } @keys));
	drain($node, 30, 'routed') or die;
}

# A session that waits, and what it says; perhaps right after something else, whose time may be over before it was seen to wait.
sub start
{
	my ($subscription, $before) = @_;
	my $s = $node->background_psql('postgres', on_error_stop => 0);
	$s->{stdin} .= ($before // '') . "call outbox.wait('{$subscription}', '60 s');\n\\echo done\n";
	$s->{run}->pump_nb;
	return $s if defined $before;
	comes_true($node, 10, q{select count(*) = 1 from pg_stat_activity where query like 'call outbox.wait%' and wait_event_type = 'Extension'}, 'waits');
	return $s;
}

# It wakes within so many seconds.
sub wakes
{
	my ($s, $what, $limit, $then) = @_;
	my $begin = time;
	my $took = within($limit, sub { $s->{run}->pump_nb; return $s->{stdout} =~ /done\n/ });
	$then->() if $then;
	ok(defined $took && $s->{stdout} =~ /^t$/m, sprintf('%s: wakes after %.3f s', $what, $took // -1));
	$s->quit;
}

for my $ordering ('key', 'none')
{
	my $name = "by_$ordering";
	sql($node, "select outbox.subscribe('$name', array['$name'], ordering => '$ordering', lanes => 1, max_attempts => 2, lease_duration => '1 hour')");
	agrees($name, 'f', 'empty');
	publish($name, 'a', 'b', 'c');
	agrees($name, 't', 'three events');
	my $token = claim($name, 1, '1 hour');
	agrees($name, $ordering eq 'key' ? 'f' : 't', 'one is leased, in the only lane');
	my $s;
	if ($ordering eq 'key')
	{
		$s = start($name);
		sql($node, "select outbox.ack_all('$token')");
		wakes($s, 'ack_all()', 4);
	}
	else
	{
		sql($node, "select outbox.ack_all('$token')");
	}
	agrees($name, 't', 'two are left');

	$token = claim($name, 10, '1 hour');
	agrees($name, 'f', 'all are leased');
	$s = start($name);
	sql($node, "select outbox.release_all('$token')");
	wakes($s, 'release_all()', 4);
	agrees($name, 't', 'released');

	$token = claim($name, 10, '1 hour');
	$s = start($name);
	agrees($name, 'f', 'released for later', "select outbox.release('$token', array(select event_id from outbox.delivery where subscription = '$name' and status = 'IN_PROGRESS'), '2 s');");
	my $due = sql($node, "select extract(epoch from min(next_attempt_at)) from outbox.delivery where subscription = '$name' and status = 'RETRY'");
	my $late;
	wakes($s, 'release() with a delay', 6, sub { $late = time - $due });
	cmp_ok($late, '>=', 0, sprintf('  not before it is over: %.3f s after that', $late));
	agrees($name, 't', 'the delay is over');

	# the router or a claim takes it back, at the poll interval, which is a second
	$s = start($name, "select distinct 'until ' || extract(epoch from lease_expires_at) from outbox.claim('$name', 10, '1500 milliseconds');\n");
	wakes($s, 'a lease that expires', 10, sub { $late = time - ($s->{stdout} =~ /^until ([\d.]+)$/m ? $1 : 0) });
	ok($late >= 0 && $late < 3, sprintf('  %.3f s after that', $late));
	comes_true($node, 20, q{select not exists (select from outbox.delivery where status = 'IN_PROGRESS')}, 'the router takes it back');
	agrees($name, 't', 'expired');
	$token = claim($name, 10, '1 hour');
	sql($node, "select outbox.fail('$token', event_id, permanent => true) from outbox.delivery where subscription = '$name' and status = 'IN_PROGRESS'");
	$token = claim($name, 10, '1 hour');
	sql($node, "select outbox.ack_all('$token')");
	agrees($name, 'f', 'one is in review, nothing else is left');
	$s = start($name);
	sql($node, "select outbox.retry('$name', event_id) from outbox.review_required where subscription = '$name'");
	wakes($s, 'retry()', 4);
	agrees($name, 't', 'retried');
	$token = claim($name, 10, '1 hour');
	sql($node, "select outbox.ack_all('$token')");
	agrees($name, 'f', 'all is done');
}

subtest 'behind a key' => sub {
	sql($node, q{select outbox.subscribe('gate', '{gate}', lanes => 1)});
	publish('gate', 'k', 'k', 'k');
	my $token = claim('gate', 1, '1 hour');
	sql($node, "select outbox.fail('$token', event_id, permanent => true) from outbox.delivery where subscription = 'gate' and status = 'IN_PROGRESS'");
	my $rows = sql($node, q{select count(*) from outbox.claim('gate', 10)});
	is($rows, '0', 'the others wait behind it');
	agrees('gate', 'f', 'blocked by a review');
	my $s = start('gate');
	sql($node, q{select outbox.discard('gate', event_id, 'test') from outbox.review_required where subscription = 'gate'});
	wakes($s, 'discard()', 4);
	agrees('gate', 't', 'the key is open');
	$token = claim('gate', 10, '1 hour');
	sql($node, "select outbox.ack_all('$token')");
	agrees('gate', 'f', 'done');
};

# what says that does not fit into a row; and a session that knows the catalogs has no snapshot of theirs
subtest 'a large lease of which most is acknowledged, in any order' => sub {
	sql($node, q{select outbox.subscribe('large', '{large}', lanes => 1)});
	publish('large', 1 .. 1000);
	my $token = claim('large', 1000, '1 hour');
	is(sql($node, qq{select outbox.ack('$token', array(select event_id from outbox.event where event_type = 'large' and event_key <> '7' order by md5(event_key)))}),
		'999', 'all but one are acknowledged');
	publish('large', 'another');
	agrees('large', 'f', 'one is leased, in the only lane');
	is(sql($node, "call outbox.wait('{large}', '0');\n" x 3), "f\nf\nf", 'also when a session asks again');
	sql($node, "select outbox.ack_all('$token')");
	agrees('large', 't', 'none is');
};

subtest 'an expired lease that cannot be had just now' => sub {
	sql($node, q{select outbox.subscribe('busy', '{busy}', lanes => 1)});
	publish('busy', 'k');
	# in a session that is there: by the time that another one is, the lease may have run out
	my $holder = $node->background_psql('postgres', on_error_stop => 0);
	my $token = $holder->query_safe(q{select lease_token from outbox.claim('busy', 1, '1 second')});
	$holder->query_safe("begin; select outbox.ack_all('$token')");
	usleep(1_200_000);
	my $s = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $s->query_safe('select pg_backend_pid()');
	my $cpu = sub { my @stat = split / /, slurp_file("/proc/$pid/stat"); return $stat[13] + $stat[14] };
	my $begin = time;
	is($s->query_safe("call outbox.wait('{busy}', '3 s')"), 't', 'a claim may take it back');
	is($s->query_safe("select count(*) from outbox.claim('busy')"), '0', 'but does not');
	my $before = $cpu->();
	$s->{stdin} .= "call outbox.wait('{busy}', '3 s');\n\\echo done\n";
	ok(defined within(20, sub { $s->{run}->pump_nb; return $s->{stdout} =~ /done\n/ }), 'it returns again');
	# a poll interval after the first one, which is a second
	cmp_ok(time - $begin, '>=', 0.99, 'but not at once, so that a client which waits and claims does not spin');
	cmp_ok($cpu->() - $before, '<', 50, 'nor does the server');
	$s->quit;
	$holder->query_safe('commit');
	$holder->quit;
	agrees('busy', 'f', 'it is done');
};

# Nothing can be claimed of it, so nobody is told to: a client that waits and claims would spin until that transaction ends.
subtest 'what an open transaction has locked' => sub {
	my $holder = $node->background_psql('postgres', on_error_stop => 0);
	for my $ordering ('key', 'none')
	{
		my $name = "locked_$ordering";
		sql($node, "select outbox.subscribe('$name', array['$name'], ordering => '$ordering', lanes => 1)");
		publish($name, 'a', 'b');
		$holder->query_safe("begin; select count(*) from outbox.claim('$name', 1)");
		agrees($name, 'f', 'an open claim has the only lane');
		my $s = start($name);
		$holder->query_safe('rollback');
		wakes($s, 'rolled back', 4);
		agrees($name, 't', 'the lane is free');

		my $token = claim($name, 2, '1 hour');
		my $first = sql($node, "select outbox.fail('$token', event_id, retry_after => '0') is not null, event_id from outbox.delivery where subscription = '$name' order by event_id limit 1");
		$first =~ s/^t\|//;
		sql($node, "select outbox.ack_all('$token')");
		agrees($name, 't', 'a retry is due');
		$holder->query_safe("begin; select outbox.discard('$name', '$first', 'test')");
		agrees($name, 'f', 'somebody is about to give it up');
		$s = start($name);
		$holder->query_safe('rollback');
		wakes($s, 'not given up', 4);
	}

	sql($node, q{select outbox.subscribe('outage', '{outage}', ordering => 'none', lanes => 1, max_attempts => 1, backoff_base => '100 ms', backoff_max => '100 ms')});
	publish('outage', 'a' .. 'h');
	for (1 .. 5)
	{
		my $token = claim('outage', 1, '1 hour');
		sql($node, "select outbox.fail('$token', event_id) from outbox.delivery where subscription = 'outage' and status = 'IN_PROGRESS'");
	}
	my $until = q{select outage_level > 0 and outage_until < clock_timestamp() from outbox.subscription_state join outbox.subscription using (subscription_id) where subscription = 'outage'};
	comes_true($node, 20, $until, 'an outage, and time for a probe');
	my $token = claim('outage', 1, '1 hour');
	$holder->query_safe("begin; select outbox.ack_all('$token')");
	comes_true($node, 20, $until, 'time for another one');
	agrees('outage', 'f', 'the first one is being acknowledged');
	my $s = start('outage');
	$holder->query_safe('commit');
	wakes($s, 'acknowledged', 4);
	agrees('outage', 't', 'the outage is over');
	$holder->quit;
};

is(join("\n", complaints($node)), '', 'without a complaint');
done_testing();
