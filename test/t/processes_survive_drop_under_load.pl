# DROP and CREATE EXTENSION in a loop while clients publish and a worker handles: no
# deadlock, no hang, no noise of ours, and served at once each time.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('main', "deadlock_timeout = '100ms'\n");
my $install = q{
	set client_min_messages = error;
	create extension outbox;
	create function note(e outbox.event) returns void language plpgsql as
		$$ begin insert into public.effect values (e.event_id); end $$;
	select outbox.subscribe('note', array['load.#'], 'public.note');};
$node->safe_psql('postgres', 'create table effect (event_id uuid)');
$node->safe_psql('postgres', $install);

# publishers that do not stop at errors
my $forever = PostgreSQL::Test::Utils::tempdir() . '/forever.sql';
append_to_file($forever, "select outbox.publish('load.event'), pg_sleep(0.003);\n" x 20000);
my @publishers;
for (1 .. 3)
{
	# (into a pipe that nobody reads they would write no more before long)
	push @publishers, IPC::Run::start([ 'psql', '-X', '-q', '-d', $node->connstr('postgres'), '-f', $forever ], '>', '/dev/null', '2>', '/dev/null');
}

my $failed = 0;
for (1 .. 25)
{
	my ($rc, undef, $err) = $node->psql('postgres', "set client_min_messages = error; set statement_timeout = '20s'; drop extension outbox cascade");
	if ($rc != 0) { $failed++; diag($err); }
	($rc, undef, $err) = $node->psql('postgres', $install, on_error_stop => 1);
	if ($rc != 0) { $failed++; diag($err); }
}
is($failed, 0, 'each DROP and each CREATE EXTENSION succeeds');
is_served($node, 'postgres', 2, 10, 'served within seconds');
$node->psql('postgres', "begin; drop extension outbox cascade; $install; commit", on_error_stop => 1);
is_served($node, 'postgres', 2, 10, 'also after both in one transaction');
$_->kill_kill for @publishers;

# one that is in the middle of a transaction, and has more to do in it
my $user = $node->background_psql('postgres', on_error_stop => 0);
$user->query_safe(q{select outbox.publish('load.event')});
$user->query_safe(q{begin; select outbox.publish('load.event')});
my $sink = '';
my $dropper = IPC::Run::start(
	[ 'psql', '-X', '-q', '-d', $node->connstr('postgres'), '-c', 'drop extension outbox cascade' ],
	'>', \$sink, '2>', \my $complaint);
ok( defined within(20, sub {
		$node->safe_psql('postgres', q{select count(*) from pg_stat_activity where query like 'drop extension%' and wait_event_type = 'Lock'}) eq '1' }),
	'DROP EXTENSION waits for a transaction that has published');
$user->query_safe("select count(*) from outbox.$_")
  for qw(incarnation segment subscription subscription_state lane lane_entry lane_cursor tick dedup gate parked batch event delivery_exception);
$user->query_safe('commit');
$user->quit;
$dropper->finish;
unlike($complaint, qr/ERROR/, 'which goes on and commits, and then it is dropped');
$node->psql('postgres', $install, on_error_stop => 1);

$node->safe_psql('postgres', q{select outbox.publish('load.last', '{}'::jsonb)});
ok( defined within(20, sub {
		$node->safe_psql('postgres', q{select count(*) from effect join outbox.event using (event_id) where event_type = 'load.last'}) eq '1' }),
	'an event is handled afterwards');
is(join("\n", complaints($node)), '', 'our processes have nothing to complain about');
unlike(slurp_file($node->logfile), qr/deadlock detected/, 'no deadlock');
unlike(slurp_file($node->logfile), qr/cache lookup failed|PANIC|TRAP|was terminated by signal/, 'and nothing worse');
$node->stop;
done_testing();
