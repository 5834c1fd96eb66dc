# outbox.wait() wakes soon after whatever brings something to claim, holds nothing meanwhile, and
# answers whoever wants something of it.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $node = new_engine('main', "max_prepared_transactions = 4\nautovacuum = off\noutbox.poll_interval = '40s'\n");
sql($node, q{select outbox.subscribe(name, array[name], lanes => 2) from unnest(array['one', 'two', 'three']) name});

# A session that runs the statement, and what it says; `{until}` of it is in seconds from now.
sub start
{
	my ($statement, $database) = @_;
	my $s = $node->background_psql($database // 'postgres', on_error_stop => 0);
	$s->{stdin} .= "$statement;\n\\echo done\n";
	$s->{run}->pump_nb;
	return $s;
}

# Has it ended within so many seconds?  With what?
sub ended
{
	my ($s, $limit) = @_;
	my $took = within($limit, sub { $s->{run}->pump_nb; return $s->{stdout} =~ /done\n/ });
	return defined $took ? $s->{stdout} . $s->{stderr} : undef;
}

sub sleeping
{
	my ($n, $name) = @_;
	comes_true($node, 10, qq{select count(*) = $n from pg_stat_activity where query like '%outbox.wait%' and backend_type = 'client backend'
		and wait_event_type = 'Extension'}, $name // 'waits');
}

# wakes "what": one session waits for the subscriptions, then it happens
sub wakes
{
	my ($what, $subscriptions, $happen, $limit) = @_;
	my $s = start(qq{call outbox.wait('{$subscriptions}', '60 s')});
	sleeping(1, "$what: waits");
	my $begin = time;
	$happen->();
	my $out = ended($s, $limit);
	like($out // '', qr/^t$/m, sprintf('%s: wakes, after %.3f s', $what, time - $begin));
	$s->quit;
}

# all that is in the lanes has been worked
sub take_all
{
	sql($node, q{insert into outbox.lane_cursor select e.subscription_id, e.lane, max(e.position) from outbox.lane_entry e
		group by 1, 2 on conflict do nothing});
}

subtest 'nothing is held' => sub {
	for my $statement (q{call outbox.wait('{one,two}', '60 s')}, q{call in_procedure()})
	{
		sql($node, q{create or replace procedure in_procedure() language plpgsql as $$
			declare ready boolean; begin perform 1 from pg_class limit 1; call outbox.wait('{one,two}', '60 s', ready); end $$});
		my $s = start("set default_transaction_isolation = 'serializable'; $statement");
		$node->poll_query_until('postgres', q{select count(*) = 1 from pg_stat_activity where query like '%call%' and wait_event_type = 'Extension' and backend_type = 'client backend'});
		# but for a moment when it looks
		comes_true($node, 20, q{select count(*) = 1 and bool_and(backend_xid is null and backend_xmin is null and
			not exists (select from pg_locks l where l.pid = a.pid and locktype <> 'virtualxid'))
			from pg_stat_activity a where query like '%call%' and wait_event_type = 'Extension' and backend_type = 'client backend'},
			"no xid, no xmin, no lock: $statement");
		is(sql($node, 'create table if not exists t (n int); create index concurrently on t (n); vacuum t; select 1'), '1', 'CREATE INDEX CONCURRENTLY and VACUUM pass');
		sql($node, q{select pg_cancel_backend(pid) from pg_stat_activity where query like '%call%' and wait_event_type = 'Extension' and backend_type = 'client backend'});
		like(ended($s, 20) // 'still waits', qr/canceling statement due to user request/, 'and a cancel ends it');
		$s->quit;
	}
};

subtest 'what wakes it' => sub {
	wakes('a commit', 'one', sub { sql($node, q{select outbox.publish('one')}) }, 20);
	take_all();
	wakes('a commit, for the second of two', 'one,two', sub { sql($node, q{select outbox.publish('two')}) }, 20);
	take_all();
	wakes('a delayed event', 'one', sub { sql($node, q{select outbox.publish('one', deliver_at => clock_timestamp() + interval '1 s')}) }, 20);
	take_all();
	sql($node, q{select outbox.pause('one'); select outbox.publish('one'); call outbox.drain()});
	wakes('resume()', 'one', sub { sql($node, q{select outbox.resume('one')}) }, 20);
	take_all();
	my $exception = q{insert into outbox.delivery_exception (subscription_id, event_id, lane, position, status, attempts, next_attempt_at, failed_at)
		select subscription_id, gen_random_uuid(), 0, 1, '%s', 1, %s, now() from outbox.subscription where subscription = 'one' returning event_id};
	my $id = sql($node, sprintf($exception, 'REVIEW_REQUIRED', 'null'));
	wakes('retry()', 'one', sub { sql($node, qq{select outbox.retry('one', '$id')}) }, 20);
	sql($node, 'delete from outbox.delivery_exception');
	sql($node, sprintf($exception, 'RETRY', q{clock_timestamp() + interval '2 s'}));
	wakes('a retry that falls due', 'one', sub { }, 20);
	sql($node, 'delete from outbox.delivery_exception');
};

subtest 'what does not' => sub {
	my $s = start(q{call outbox.wait('{one}', '5 s')});
	sleeping(1);
	sql($node, q{select outbox.publish('two')});
	like(ended($s, 20) // 'still waits', qr/^f$/m, 'an event of another subscription; at the timeout it says so');
	$s->quit;
	take_all();
};

subtest 'many wait' => sub {
	my @s = map { start(q{call outbox.wait('{one}', '60 s')}) } 1 .. 5;
	push @s, start(q{call outbox.wait('{two}', '60 s')});
	sleeping(6, 'six wait');
	sql($node, q{select outbox.publish('one') from generate_series(1, 5)});
	like(ended($_, 20) // 'still waits', qr/^t$/m, 'five events wake five') for @s[0 .. 4];
	sleeping(1, 'and not the one who waits for something else');
	sql($node, q{select outbox.publish('two')});
	like(ended($s[5], 20) // 'still waits', qr/^t$/m, 'which wakes for its own');
	$_->quit for @s;
	take_all();

};

$node->append_conf('postgresql.conf', "outbox.poll_interval = '500ms'\n");
$node->reload;
comes_true($node, 20, q{select current_setting('outbox.poll_interval') = '500ms'}, 'from here on with polls');

subtest 'what is found by a poll' => sub {
	my @s = map { start(q{call outbox.wait('{one}', '60 s')}) } 1 .. 2;
	sleeping(2, 'two wait');
	sql($node, q{select outbox.publish('one')});
	like(ended($_, 4) // 'still waits', qr/^t$/m, 'one event for two: the second one sees it too, for nobody has claimed it') for @s;
	$_->quit for @s;
	take_all();
	wakes('a prepared transaction', 'one', sub { sql($node, q{begin; select outbox.publish('one'); prepare transaction 'p'}); sql($node, q{commit prepared 'p'}) }, 5);
	take_all();
	wakes('a change of the definition, that gives it lanes anew', 'one', sub { sql($node, q{select outbox.alter_subscription('one', lanes => 3); select outbox.publish('one')}) }, 5);
	take_all();
};

subtest 'it ends when it must' => sub {
	my $s = start(q{set statement_timeout = '1 s'; call outbox.wait('{one}', '60 s')});
	like(ended($s, 20) // 'still waits', qr/canceling statement due to statement timeout/, 'statement_timeout');
	$s->quit;

	$s = start(q{call outbox.wait('{one}', '60 s')});
	sleeping(1);
	sql($node, q{create database barrier; drop database barrier});
	pass('an unrelated DROP DATABASE does not wait');
	is_sql($node, q{select pg_terminate_backend(pid, 20000) from pg_stat_activity where query like 'call outbox.wait%'}, 't', 'pg_terminate_backend()');
	within(20, sub { $s->{run}->pump_nb; $s->{stderr} =~ /terminating connection/ });
	$s->{run}->finish;

	# the slots of those who went are free: who comes next is woken
	wakes('after all that', 'one', sub { sql($node, q{select outbox.publish('one')}) }, 20);
	take_all();

	$s = start(q{call outbox.wait('{three}', '60 s')});
	sleeping(1);
	sql($node, q{select outbox.unsubscribe('three')});
	like(ended($s, 20) // 'still waits', qr/subscription "three" does not exist/, 'the subscription goes');
	$s->quit;

	$s = start(q{call outbox.wait('{one}', '60 s')});
	sleeping(1);
	sql($node, 'set client_min_messages = error; create table kept as select 1; drop extension outbox cascade');
	pass('DROP EXTENSION does not wait');
	like(ended($s, 20) // 'still waits', qr/is not installed|does not exist/, 'and ends it');
	$s->quit;
};

subtest 'in a copy of a database' => sub {
	sql($node, q{create extension outbox; select outbox.subscribe('one', '{one}'); select outbox.publish('one'); call outbox.drain()});
	sql($node, 'update outbox.incarnation set system_identifier = system_identifier + 1');
	my ($rc, $out, $err) = $node->psql('postgres', q{\set VERBOSITY verbose
call outbox.wait('{one}')});
	like($err, qr/OB006: routing and delivery are held/, 'it says that deliveries are held');
	sql($node, 'update outbox.incarnation set system_identifier = system_identifier - 1');
	is(sql($node, q{call outbox.wait('{one}', '0')}), 't', 'and no longer');
	take_all();
};

my $standby;
subtest 'on a standby' => sub {
	$node->backup('b');
	$standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'b', has_streaming => 1);
	$standby->start;
	my ($rc, $out, $err) = $standby->psql('postgres', q{\set VERBOSITY verbose
call outbox.wait('{one}')});
	like($err, qr/25006: cannot execute outbox\.wait\(\) during recovery/, 'it says that it cannot');
	$standby->stop;
};

subtest 'the server goes' => sub {
	my $s = start(q{call outbox.wait('{one}', '60 s')});
	sleeping(1);
	my $begin = time;
	$node->stop('fast');
	cmp_ok(time - $begin, '<', 30, 'a fast shutdown does not wait for it');
	within(20, sub { $s->{run}->pump_nb; $s->{stderr} =~ /terminating connection/ });
	eval { $s->{run}->finish };
	$node->start;
	$s = start(q{call outbox.wait('{one}', '60 s')});
	sleeping(1);
	my $pid = sql($node, q{select pid from pg_stat_activity where query like 'call outbox.wait%'});
	$node->stop('immediate');
	ok(defined within(20, sub { !kill 0, $pid }), 'nor an immediate one');
	eval { $s->{run}->finish };
};

done_testing();
