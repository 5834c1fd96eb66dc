# Databases are created, dropped, renamed and copied in a loop while clients publish and workers handle:
# each statement is done within seconds, nothing of ours complains, and the database beside them is exact.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $rounds = $ENV{OUTBOX_TEST_FULL} ? 50 : 10;
my $limit = 20;
my $node = new_server('main', "max_connections = 40\noutbox.workers = 1\nlog_lock_waits = on\ndeadlock_timeout = '200ms'\n");

my $install = q{
	set client_min_messages = error;
	create extension outbox;
	create table placed (n bigint generated always as identity, event_id uuid not null);
	create table effect (event_id uuid not null);
	create function note(e outbox.event) returns void language plpgsql as
		$$ begin insert into public.effect values (e.event_id); end $$;
	select outbox.subscribe('note', array['load.#'], 'public.note');};

for my $database (qw(a b))
{
	$node->safe_psql('postgres', "create database $database");
	$node->safe_psql($database, $install);
}

# in a: clients that stay, and must never meet an error
my $folder = PostgreSQL::Test::Utils::tempdir();
my $publish = q{insert into placed (event_id) select outbox.publish('load.event', event_key => (random() * 10)::integer::text);};
append_to_file("$folder/stay", "$publish\n");
my $stayers = IPC::Run::start(
	[ 'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-c', '2', '-R', '60', '-T', '3600', '-f', "$folder/stay", 'a' ],
	'>', \my $ignored, '2>', \my $complaint);

# in b: clients that come and go, whatever they find
append_to_file("$folder/visit", "$publish\nselect pg_sleep(0.02);\n" x 15);
append_to_file("$folder/open", '');
my @visitors = map {
	IPC::Run::start([ 'sh', '-c', 'while [ -e "$1/open" ]; do psql -X -q -d "$2" -f "$1/visit" > /dev/null 2>&1; sleep 0.1; done', 'sh', $folder, $node->connstr('b') ])
} 1 .. 2;

# PostgreSQL demands of anyone that the others' sessions are gone; ours are then too
my (@slow, @failed, %worst);

sub done_in_time
{
	my ($what, $statement, $database) = @_;
	my $start = time;
	my $took = within($limit,
		sub {
			my ($rc, undef, $err) = $node->psql($database // 'postgres', "set client_min_messages = error; set statement_timeout = '${limit}s';\n$statement", on_error_stop => 1);
			return 1 if $rc == 0;
			push @failed, "$what: $err" if $err !~ /is being accessed by other users/;
			$node->safe_psql('postgres', q{select pg_terminate_backend(pid) from pg_stat_activity where datname in ('b', 'bb') and backend_type = 'client backend'});
			return 0;
		});
	push @slow, $what if !defined $took;
	$took //= time - $start;
	$worst{$what} = $took if $took > ($worst{$what} // 0);
	return;
}

my $position = log_position($node);
for my $round (1 .. $rounds)
{
	done_in_time('create an unrelated one', 'create database zz');
	done_in_time('drop an unrelated one', 'drop database zz');
	done_in_time('copy', 'create database c template b' . ($round % 5 == 0 ? ' strategy file_copy' : ''));
	done_in_time('drop the copy', 'drop database c');
	done_in_time('rename', 'alter database b rename to bb');
	done_in_time('rename back', 'alter database bb rename to b');
	done_in_time('extension', 'begin; drop extension outbox cascade; create extension outbox; commit', 'b') if $round % 3 == 0;
	done_in_time('drop', 'drop database b with (force)');
	done_in_time('create', 'create database b');
	done_in_time('install', $install, 'b');
}
is(join("\n", @failed), '', 'no statement fails but for the sessions of others');
is(join(', ', @slow), '', "each is done within $limit seconds");
note join(', ', map { sprintf '%s %.1f s', $_, $worst{$_} } sort keys %worst);

# b, as it is now, is served; the visitors' events too
is_served($node, $_, 1, 20, "$_ is served") for qw(a b);
unlink "$folder/open";
$_->finish for @visitors;
$node->safe_psql('b', "call outbox.drain(timeout => '60 s')");
is($node->safe_psql('b', 'select (select count(*) from placed) = (select count(*) from outbox.event), (select count(*) from effect) = (select count(*) from outbox.event)'),
	't|t', 'b: each event has its effect');

ok($stayers->pumpable, 'the clients of a are there all the time');
$stayers->signal('INT');
eval { $stayers->finish };
unlike($complaint, qr/error|aborted/i, 'and met no error');
$node->safe_psql('a', "call outbox.drain(timeout => '60 s')");
my $events = $node->safe_psql('a', 'select count(*) from placed');
cmp_ok($events, '>', 10 * $rounds, "there was load: $events events");
is( $node->safe_psql('a', q{
		select count(*), count(distinct p.event_id), count(e.event_id), count(f.event_id), count(r.event_id)
		from placed p full join outbox.event e using (event_id) full join effect f using (event_id)
		full join outbox.receipt_log r using (event_id)}),
	join('|', ($events) x 5), 'a: each row is an event, and each event has one receipt and one effect');

my $log = substr(slurp_file($node->logfile), $position);
is(join("\n", complaints($node, $position)), '', 'our processes have nothing to complain about');
unlike($log, qr/could not open relation|cache lookup failed|deadlock detected/, 'nor do others because of us');
unlike($log, qr/PANIC|TRAP|was terminated by signal/, 'and nothing crashes');
$node->stop;
done_testing();
