# Clients behind a proxy that hands each of their transactions to another server connection: every call works, as
# does any number of clients over two connections, with the server and the proxy restarted in between; and
# what does not work behind such a proxy says so.
# packages: /usr/sbin/pgbouncer pgbouncer
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $connections = 2;
my $node = new_engine('main', "outbox.workers = 0\noutbox.poll_interval = '200ms'\n");
my $folder = PostgreSQL::Test::Utils::tempdir_short();
my $program = -x '/usr/sbin/pgbouncer' ? '/usr/sbin/pgbouncer' : ($ENV{OUTBOX_PACKAGES} // '') . '/usr/sbin/pgbouncer';

# The server as the clients see it, under two names, so that there are two pools: 'app', and 'waiters'.
my $proxy = bless { %$node, _host => $folder, _port => PostgreSQL::Test::Cluster::get_free_port() }, ref $node;
my $run;

# does a statement on a connection to the proxy answer this?  While there is none psql may end before it has read its query
sub answers
{
	my ($query, $expected) = @_;
	my ($rc, $out) = eval { $proxy->psql('app', $query) };
	return defined $rc && $rc == 0 && $out eq $expected;
}

sub start_proxy
{
	my $libraries = join(':', glob(($ENV{OUTBOX_PACKAGES} // '/nowhere') . '/usr/lib/*-linux-gnu*'));
	local $ENV{LD_LIBRARY_PATH} = $libraries if $libraries ne '';
	$run = IPC::Run::start([ $program, "$folder/pgbouncer.ini" ], '<', '/dev/null', '>', '/dev/null', '2>', "$folder/pgbouncer.err");
	ok(defined within(30, sub { return answers('select 1', '1') }), 'the proxy serves') or
		BAIL_OUT(join('', map { -e $_ ? slurp_file($_) : '' } "$folder/pgbouncer.err", "$folder/pgbouncer.log"));
}

sub kill_proxy
{
	$run->kill_kill(grace => 0);
}

ok(-x $program, "there is $program") or BAIL_OUT('no pgbouncer');
append_to_file("$folder/pgbouncer.ini", sprintf(<<'INI', map { ($node->host, $node->port, $connections) } 1 .. 2) . <<"INI");
[databases]
app = host=%s port=%s dbname=postgres user=app pool_size=%s
waiters = host=%s port=%s dbname=postgres user=app pool_size=%s
[pgbouncer]
pool_mode = transaction
server_round_robin = 1
auth_type = any
max_client_conn = 200
server_login_retry = 0.1
listen_addr =
INI
unix_socket_dir = $folder
listen_port = @{[ $proxy->port ]}
logfile = $folder/pgbouncer.log
INI

sql($node, q{
	select outbox.subscribe('work', '{work}', lanes => 4, max_attempts => 1000, backoff_base => '1 ms', backoff_factor => 1, backoff_max => '5 ms');
	select outbox.subscribe('calls', '{call}', ordering => 'none');
	create role app login;
	select outbox.grant_publisher('app', '{#}'), outbox.grant_worker('app', 'work'), outbox.grant_worker('app', 'calls');
	create table business (seq bigint generated always as identity primary key, key text);
	create table effect (n bigint generated always as identity, event_id uuid, event_key text, seq bigint, backend integer);
	grant select, insert on business, effect to app});
start_proxy();
my $version = (slurp_file("$folder/pgbouncer.log") =~ /PgBouncer (\d+)\.(\d+)/)[1] // 0;
note("pgbouncer 1.$version");

# one statement on a connection of its own to the proxy
sub ask
{
	my ($query, $pool) = @_;
	return $proxy->safe_psql($pool // 'app', $query);
}

sub publish
{
	my ($n, $more) = @_;
	ask(sprintf q{select count(outbox.publish('call'%s)) from generate_series(1, %d) n}, $more // '', $n);
	drain($node, 60, 'routed') or die;
}

subtest 'each call on another server connection' => sub {
	publish(20);
	# all connections of the pool are there, and take turns
	my @busy = map { $proxy->background_psql('app') } 1 .. $connections;
	$_->query_safe('begin; select 1') for @busy;
	$_->query_safe('commit') for @busy;
	$_->quit for @busy;
	my $client = $proxy->background_psql('app');
	my @backends;
	my $call = sub {
		my ($expression) = @_;
		my ($backend, $answer) = split /\|/, $client->query_safe("select pg_backend_pid(), $expression");
		push @backends, $backend;
		return $answer;
	};
	my $claim = sub { $call->(q{lease_token from outbox.claim('calls', 5, '1 min') limit 1}) };
	my $some = sub { my ($token, $n) = @_; return sprintf(q{array(select unnest(event_ids[%d:%d]) from outbox.lease where token = '%s')}, $n, $n, $token) };
	my $id = sub { my ($token, $n) = @_; return sql($node, "select event_ids[$n] from outbox.lease where token = '$token'") };

	my $token = $claim->();
	my @ids = map { $id->($token, $_) } 1 .. 5;
	is($call->("outbox.extend('$token', '1 hour') > clock_timestamp() + interval '50 min'"), 't', 'extend()');
	is($call->("outbox.ack('$token', array['$ids[0]']::uuid[])"), '1', 'ack()');
	is($call->("outbox.ack('$token', array['$ids[0]']::uuid[])"), '0', '  again');
	is($call->("outbox.ack_one('$token', '$ids[1]', 'm')"), 't', 'ack_one()');
	is($call->("outbox.fail('$token', '$ids[2]', 'E', retry_after => '1 hour')"), 'RETRY', 'fail()');
	is($call->("outbox.release('$token', array['$ids[3]']::uuid[])"), '1', 'release()');
	is($call->("outbox.release_all('$token')"), '1', 'release_all()');
	$token = $claim->();
	is($call->("outbox.ack_all('$token')"), '5', 'ack_all()');
	my $changes = grep { $backends[$_] != $backends[ $_ - 1 ] } 1 .. $#backends;
	cmp_ok($changes, '>', @backends / 2, 'the connection changed between them');

	$token = $claim->();
	my $first = $id->($token, 1);
	$client->query_safe("begin; select outbox.ack_one('$token', '$first'); insert into effect (event_id) values ('$first')");
	isnt($call->('1'), '', 'a transaction keeps its connection');
	is(scalar(grep { $_ == $backends[-1] } ($backends[-1], $client->query_safe('select pg_backend_pid()'))), 2, '  until its end');
	like(ask('select pg_backend_pid()'), qr/^(?!$backends[-1]$)\d+$/, '  while others have the other one');
	$client->query_safe('rollback');
	is($call->("outbox.ack_one('$token', '$first')"), 't', 'rolled back: it was not settled');
	is($call->("outbox.release_all('$token')"), '4', '  and the others are still held');
	my ($rc, $out, $err) = $proxy->psql('app', qq{\\set VERBOSITY sqlstate\nbegin; select lease_token as t from outbox.claim('calls', 1) limit 1 \\gset\nselect outbox.ack_all(:'t')});
	like($err, qr/55000/, 'settling in the transaction that claimed is refused');
	($rc, $out, $err) = $proxy->psql('app', qq{\\set VERBOSITY sqlstate\nselect outbox.ack_all(gen_random_uuid())});
	like($err, qr/OB001/, 'and so is an unknown token');
	$client->quit;
	sql($node, q{truncate effect});
};

subtest 'what a transaction has set goes with it' => sub {
	my $client = $proxy->background_psql('app');
	my $with = $client->query_safe(q{begin; set local outbox.request_id = 'request 1'; select set_config('outbox.trace_id', 'trace1', true) \g /dev/null
select outbox.publish('call', tenant_id => 't'); commit});
	my @without = map { ask(q{select outbox.publish('call')}) } 1 .. 2 * $connections;
	$client->quit;
	is_sql($node, "select request_id, trace_id from outbox.event where event_id = '$with'", 'request 1|trace1', 'it counts in its transaction');
	is_sql($node, sprintf(q{select count(*) from outbox.event where event_id in ('%s') and (request_id is not null or trace_id is not null)}, join(q{','}, @without)), '0',
		'and in nobody else\'s');
};

subtest 'consume_once()' => sub {
	is(ask(q{begin; select outbox.consume_once('r', 'm'); rollback}), 't', 'the first time');
	is(join(' ', map { ask(q{select outbox.consume_once('r', 'm')}) } 1 .. 4), 't f f f', 'once, when that is rolled back');
};

# A client of the proxy that waits, and what it says
sub start_wait
{
	my ($pool, $timeout) = @_;
	my $s = $proxy->background_psql($pool, on_error_stop => 0);
	$s->{stdin} .= "call outbox.wait('{calls}', '$timeout');\n\\echo done\n";
	$s->{run}->pump_nb;
	return $s;
}

sub waiting
{
	my ($n, $name) = @_;
	comes_true($node, 30, qq{select count(*) = $n from pg_stat_activity where query like 'call outbox.wait%' and state = 'active' and wait_event_type = 'Extension'}, $name);
}

sub ended
{
	my ($s, $limit) = @_;
	my $took = within($limit, sub { $s->{run}->pump_nb; return $s->{stdout} =~ /done\n/ });
	return defined $took ? $s->{stdout} . $s->{stderr} : 'still waits';
}

sub empty
{
	# what was published last is placed before
	sql($node, q{call outbox.drain('{calls}')});
	sql($node, q{do $$ declare t uuid; begin
		loop t := (select lease_token from outbox.claim('calls', 1000) limit 1); exit when t is null; commit; perform outbox.ack_all(t); commit; end loop; end $$});
}

subtest 'wait()' => sub {
	empty();
	my $s = start_wait('app', '30 s');
	waiting(1, 'it waits');
	# (but while it looks, once in a few seconds)
	comes_true($node, 30, q{select backend_xmin is null and not exists (select from pg_locks l where l.pid = a.pid and locktype <> 'virtualxid') from pg_stat_activity a where query like 'call outbox.wait%'},
		'and holds nothing but the server connection');
	my $begin = time;
	ask(q{select outbox.publish('call')});
	like(ended($s, 20), qr/^t$/m, sprintf('a commit by way of the proxy wakes it, after %.3f s', time - $begin));
	$s->quit;
	empty();
	is(ask(q{call outbox.wait('{calls}', '300 ms')}), 'f', 'and so does the timeout');
	my ($rc, $out, $err) = $proxy->psql('app', "\\set VERBOSITY sqlstate\nbegin; call outbox.wait('{calls}', '0')");
	like($err, qr/25001/, 'it refuses to wait in a transaction');

	# as many waiters as connections: the rest of the pool's clients have to be patient
	my $other = $proxy->background_psql('app');
	my @s = map { start_wait('app', '5 min') } 1 .. $connections;
	waiting($connections, 'each has a connection of the pool');
	$other->{stdin} .= "select 6 * 7;\n";
	my $answered = sub { $other->{run}->pump_nb; return $other->{stdout} =~ /^42$/m };
	ok(!defined within(1, $answered), 'with all connections of a pool in wait(), its other clients wait, too');
	sql($node, q{select outbox.publish('call') from generate_series(1, 2)});
	like(ended($_, 20), qr/^t$/m, 'it ends') for @s;
	ok(defined within(20, $answered), 'and the others go on');
	$_->quit for @s, $other;
	empty();

	# with a pool of their own they are in nobody's way
	@s = map { start_wait('waiters', '30 s') } 1 .. $connections;
	waiting($connections, 'waiters that have a pool of their own');
	$begin = time;
	is(ask('select count(*) from (select outbox.publish($$call$$) from generate_series(1, 2)) p'), '2', 'publishers are not held up');
	like(ended($_, 20), qr/^t$/m, sprintf('  and wake them, after %.3f s', time - $begin)) for @s;
	$_->quit for @s;
	empty();

	# a client that dies
	$s = start_wait('waiters', '1 hour');
	waiting(1, 'one waits for an hour');
	$s->{run}->kill_kill(grace => 0);
	waiting(0, 'its client is killed, and its connection is free');
};

subtest 'restarts' => sub {
	empty();
	publish(6);
	my $token = ask(q{select lease_token from outbox.claim('calls', 6, '10 min') limit 1});
	my @ids = split /\n/, sql($node, "select unnest(event_ids) from outbox.lease where token = '$token'");
	my $client = $proxy->background_psql('app', on_error_stop => 0);
	is($client->query('select 1'), '1', 'a client that is connected before ...');
	$node->stop('immediate');
	$node->start;
	# what was on a connection that the server has lost is told so; then there are new ones
	within(60, sub { return $client->query("select outbox.extend('$token', '10 min') > now()") eq 't' });
	is($client->query("select outbox.ack('$token', array['$ids[0]', '$ids[1]']::uuid[])"), '2', '... and after the server\'s restart settles what it claimed');
	eval { $client->quit };
	kill_proxy();
	start_proxy();
	is(ask("select outbox.ack('$token', array['$ids[2]']::uuid[])"), '1', 'and so does one after the proxy\'s restart');
	$node->restart;
	ok(defined within(60, sub { return answers("select outbox.ack_all('$token')", '3') }), 'and after another one of the server\'s');
};

# ------------------------------------------------------------ drivers and their prepared statements

# (a thread for each client: to prepare by name, pgbench waits, and a thread's other clients with it)
sub bench
{
	my ($clients, $transactions, $protocol, $script) = @_;
	append_to_file("$folder/$script.sql", $_[4]);
	my ($out, $err) = ('', '');
	my $ok = IPC::Run::run([ 'pgbench', '-n', '-M', $protocol, '-h', $proxy->host, '-p', $proxy->port, '-c', $clients, '-j', $clients, '-t', $transactions, '-f', "$folder/$script.sql", 'app' ],
		'>', \$out, '2>', \$err);
	return ($ok, $err);
}

subtest 'prepared statements' => sub {
	empty();
	my $script = q{select outbox.publish('call', jsonb_build_object('n', :client_id::integer)) from generate_series(1, 2);
select coalesce(max(lease_token::text), gen_random_uuid()::text) as token, count(*) as n from outbox.claim('calls', 3) \gset
\if :n > 0
begin;
select outbox.extend(:token::uuid);
select outbox.ack_all(:token::uuid);
commit;
\endif
};
	my ($ok, $err) = bench(8, 20, 'extended', 'unnamed', $script);
	ok($ok && $err !~ /ERROR/, 'a driver that prepares without names') or diag($err);
	is(ask(q{begin; prepare p (text) as select outbox.publish($1); execute p ('call') \g /dev/null
deallocate p; commit; select 'done'}), 'done', 'PREPARE and EXECUTE in one transaction');
	if ($version < 21)
	{
		my $before = sql($node, 'select count(*) from outbox.receipt_log');
		($ok, $err) = bench(8, 20, 'prepared', 'named', $script);
		like($err, qr/prepared statement .* (does not exist|already exists)/, 'one that prepares by name, with a proxy that does not know of it, is told so');
		# it may have been told so between its claim and what it wanted to do then
		sql($node, 'select outbox.release_all(token) from outbox.lease');
	}
	else
	{
		append_to_file("$folder/pgbouncer.ini", "max_prepared_statements = 100\n");
		kill_proxy();
		start_proxy();
		($ok, $err) = bench(8, 20, 'prepared', 'named', $script);
		ok($ok && $err !~ /ERROR/, 'a driver that prepares by name, with a proxy that knows of it') or diag($err);
	}
	empty();
	is_sql($node, q{select backlog, in_progress, retry from outbox.subscription_status where subscription = 'calls'}, '0|0|1', 'nothing is left but the failed one');
	is_sql($node, q{select count(*) from (select event_id from outbox.receipt_log group by 1 having count(*) > 1) d}, '0', 'and nothing has two receipts');
};

# ------------------------------------------------------------ many clients over two connections

append_to_file("$folder/publisher.sql", <<'SQL');
\set k random(0, 11)
begin;
select set_config('outbox.request_id', 'r' || :k, true);
select pg_advisory_xact_lock(1, :k);
insert into business (key) values ('k' || :k) returning seq \gset
select outbox.publish('work', jsonb_build_object('seq', :seq::bigint), event_key => 'k' || :k);
commit;
\sleep 20 ms
SQL
append_to_file("$folder/worker.sql", <<'SQL');
select count(*) as n, coalesce(min(lease_token::text), '') || ' ' as token,
	coalesce(jsonb_agg(jsonb_build_object('id', event_id, 'key', event_key, 'seq', payload -> 'seq') order by ordinality), '[]') as batch
from outbox.claim('work', 6, '1500 ms', 'w' || :who) with ordinality \gset
\set r random(1, 100)
\if :n = 0
call outbox.wait(array['work'], '10 ms');
\elif :r <= 70 or :calm = 1
begin;
select outbox.ack(trim(:token)::uuid, array(select (e ->> 'id')::uuid from jsonb_array_elements(:batch::jsonb) e));
insert into effect (event_id, event_key, seq, backend) select id, key, seq, pg_backend_pid() from jsonb_to_recordset(:batch::jsonb) as e (id uuid, key text, seq bigint);
commit;
\elif :r <= 80
select outbox.extend(trim(:token)::uuid, '2 s');
begin;
select outbox.ack_one(trim(:token)::uuid, (:batch::jsonb -> 0 ->> 'id')::uuid, 'm' || :who);
insert into effect (event_id, event_key, seq, backend) select id, key, seq, pg_backend_pid() from jsonb_to_record(:batch::jsonb -> 0) as e (id uuid, key text, seq bigint);
commit;
select outbox.release_all(trim(:token)::uuid);
\elif :r <= 88
select outbox.fail(trim(:token)::uuid, (:batch::jsonb -> 0 ->> 'id')::uuid, 'E', retry_after => interval '10 ms');
select outbox.release_all(trim(:token)::uuid);
\elif :r <= 94
select outbox.release_all(trim(:token)::uuid);
\elif :r <= 98
begin;
select outbox.ack_all(trim(:token)::uuid);
insert into effect (event_id, event_key, seq, backend) select id, key, seq, pg_backend_pid() from jsonb_to_recordset(:batch::jsonb) as e (id uuid, key text, seq bigint);
rollback;
select outbox.release(trim(:token)::uuid, array(select (e ->> 'id')::uuid from jsonb_array_elements(:batch::jsonb) e), interval '5 ms');
\endif
SQL

my @clients;

# A client that comes back whenever its connection breaks, as long as there is the file `go`.
sub start_client
{
	my ($script, $who, $calm) = @_;
	push @clients, IPC::Run::start(
		[ 'sh', '-c', 'while [ -e "$0" ]; do "$@" || sleep 0.1; done', "$folder/go", 'pgbench', '-n', '-M', 'extended', '-h', $proxy->host, '-p', $proxy->port,
			'-c', '1', '-t', '15', '-D', "who=$who", '-D', "calm=$calm", '-f', "$folder/$script.sql", 'app' ],
		'<', '/dev/null', '>', '/dev/null', '2>>', "$folder/clients.err");
}

sub stop_clients
{
	unlink "$folder/go";
	$_->finish for @clients;
	@clients = ();
}

subtest 'many clients over two connections' => sub {
	sql($node, 'truncate effect');
	append_to_file("$folder/go", '');
	start_client('publisher', $_, 0) for 1 .. 3;
	start_client('worker', $_, 0) for 1 .. 12;
	# one that the proxy has just closed, after an error in a transaction, may be there for a moment more
	my $most = 0;
	my $until = time + 3;
	my %seen_for;
	while (time < $until)
	{
		%seen_for = map { $_ => ($seen_for{$_} // 0) + 1 } split /\n/, sql($node, q{select pid from pg_stat_activity where usename = 'app'});
		my $stay = grep { $_ > 3 } values %seen_for;
		$most = $stay if $stay > $most;
		usleep(100_000);
	}
	# those of the pool 'waiters', which nobody uses now, may still be there
	my $idle = sql($node, q{select count(*) from pg_stat_activity where usename = 'app' and state = 'idle' and state_change < now() - interval '3 s'});
	cmp_ok($most - $idle, '<=', $connections, "15 clients on $connections connections");
	$node->stop('immediate');
	$node->start;
	usleep(2_000_000);
	kill_proxy();
	usleep(200_000);
	start_proxy();
	usleep(2_000_000);
	stop_clients();

	my $published = sql($node, q{select count(*) from outbox.event where event_type = 'work'});
	cmp_ok($published, '>', 100, "$published events were published");
	append_to_file("$folder/go", '');
	start_client('worker', $_, 1) for 1 .. 4;
	comes_true($node, 120, q{select count(*) = (select count(*) from outbox.event where event_type = 'work')
		from outbox.receipt_log join outbox.subscription using (subscription_id) where subscription = 'work'}, 'everything is settled in the end');
	stop_clients();

	is_sql($node, q{select count(*) from business b full join (select (payload ->> 'seq')::bigint as seq, event_key from outbox.event where event_type = 'work') e using (seq)
		where b.key is distinct from e.event_key}, '0', 'what was written was published, and nothing else');
	is_sql($node, q{select count(*) from outbox.event where event_type = 'work' and 'k' || substr(request_id, 2) is distinct from event_key}, '0', 'each with the context of its own transaction');
	is(reconcile($node, 'work', 'effect'), '', 'effects are receipts, exactly');
	is_sql($node, q{select count(*) from (select seq, lag(seq) over (partition by event_key order by n) as before from effect) o where seq < before}, '0', 'the order of keys holds');
	is_sql($node, q{select string_agg(concat_ws(' ', backlog, retry, in_progress, blocked, review_required), ', ') from outbox.subscription_status where subscription = 'work'}, '0 0 0 0 0', 'nothing is left');
	is_sql($node, q{select count(*) from outbox.lease_events()}, '0', 'nobody holds anything');
	my %seen;
	my $said = slurp_file("$folder/clients.err");
	$seen{$1}++ while $said =~ /(?:ERROR|FATAL):\s+([^\n]*)/g;
	# one that was kept waiting beyond its lease is told so
	my $lost = delete $seen{'the lease is lost'} // 0;
	cmp_ok($lost, '<=', sql($node, q{select count(*) from outbox.attempt where subscription = 'work' and error_code = 'lease_expired'}), "no lease was lost that had not expired ($lost were)");
	my @unexpected = grep { !/terminating connection|the database system|server (closed|login|conn)|shut/ } keys %seen;
	is(join(', ', @unexpected), '', 'no call failed in a way that its caller does not know');
	note("$_: $seen{$_}") for sort keys %seen;
};

is(join("\n", grep { !/terminating connection/ } complaints($node)), '', 'without a complaint');
kill_proxy();
$node->stop;
done_testing();
