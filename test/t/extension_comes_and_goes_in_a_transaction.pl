# CREATE and DROP EXTENSION are statements like others: in a transaction with what uses the extension, taken back
# with it, and beside an external worker's open transaction, for which DROP EXTENSION waits as long as it may.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = new_server('main', "max_connections = 30\nclient_min_messages = error\noutbox.poll_interval = '200ms'\n");
my $start = log_position($node);
my $subscribe = q{select outbox.subscribe('s', '{a.#}', 'public.effect_handler')};

# the handler's type comes with the extension; plpgsql looks at it first when it is called
my $handler = q{create function effect_handler(e outbox.event) returns void language plpgsql as $$
	begin insert into public.effect (event_id, payload) values (e.event_id, e.payload); end $$};
sql($node, 'create table effect (event_id uuid not null, payload jsonb)');

sub has_effects
{
	my ($n, $count, $name) = @_;
	return comes_true($node, 30, "select count(*) = $count from effect where payload ->> 'n' = '$n'", $name);
}

# ---------------------------------------------------------------- CREATE EXTENSION

my ($rc, $out, $err) = $node->psql('postgres', q{begin; create extension outbox; select outbox.publish('a.b', '{"n": 0}') is not null; rollback}, on_error_stop => 1);
is($rc, 0, 'CREATE EXTENSION and a publish() that are rolled back');
# (a router that looks whether the extension is there may be about, as it is after the server's start)
ok(!defined within(1, sub { processes($node, 'postgres') =~ /worker/ }), 'start no worker');
is_unserved($node, 'postgres', 30, 'and leave no process');

$node->psql('postgres', qq{begin; create extension outbox; select outbox.publish('a.b', '{"n": 1}'); $handler; $subscribe; select outbox.publish('a.b', '{"n": 2}'); commit}, on_error_stop => 1);
is_served($node, 'postgres', 2, 20, 'served once that is committed');
has_effects(2, 1, 'published in the transaction of CREATE EXTENSION, and delivered');
has_effects(1, 1, 'also before subscribe(), since both commit together');

# ---------------------------------------------------------------- DROP EXTENSION that is taken back

my $before = sql($node, 'select count(*) from outbox.event');
my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query_safe(q{select outbox.publish('a.b', '{"n": 3}')});
has_effects(3, 1, 'a session that has published');
for my $end ('rollback', 'rollback to s; commit')
{
	($out, my $failed) = $session->query("begin; savepoint s; drop extension outbox cascade; select outbox.publish('a.b', '{}')");
	like($session->{stderr}, qr/ERROR:  function outbox\.publish\(.*\) does not exist/, 'publish() after DROP EXTENSION is an error');
	$session->{stderr} = '';
	$session->query_safe($end);
	is_served($node, 'postgres', 2, 20, "served after $end");
	$session->query_safe(q{select outbox.publish('a.b', '{"n": 4}')});
}
has_effects(4, 2, 'the session goes on, and what it publishes is delivered');
is_sql($node, 'select count(*) from outbox.event', $before + 3, 'nothing is lost');
is_sql($node, q{select subscription, status, count(*) from outbox.delivery group by 1, 2}, 's|COMPLETED|5', 'nor is a receipt');

# dropped and made again under a session that knows the old one
sql($node, "begin; drop extension outbox cascade; create extension outbox; $handler; $subscribe; commit");
$session->query_safe(q{select outbox.publish('a.b', '{"n": 5}')});
has_effects(5, 1, 'a session goes on with another extension of that name');

# ---------------------------------------------------------------- a publisher that waits for the DROP

my $dropper = $node->background_psql('postgres', on_error_stop => 0);
$dropper->query_safe('begin; drop extension outbox cascade');
my $publisher = IPC::Run::start([ 'psql', '-X', '-q', '-d', $node->connstr('postgres'), '-c', q{select outbox.publish('a.b')} ], '<', \undef, '>', \my $ignored, '2>', \my $complaint);
my $waits = q{select count(*) = 1 from pg_stat_activity where wait_event_type = 'Lock' and query like 'select outbox.publish%'};
comes_true($node, 30, $waits, 'publish() waits for a DROP EXTENSION that is not over');
$dropper->query_safe('rollback');
$publisher->finish;
is($complaint, '', 'and succeeds when that is rolled back');
$dropper->query_safe('begin; drop extension outbox cascade');
$publisher = IPC::Run::start([ 'psql', '-X', '-q', '-d', $node->connstr('postgres'), '-c', q{select outbox.publish('a.b')} ], '<', \undef, '>', \$ignored, '2>', \$complaint);
comes_true($node, 30, $waits, 'another one');
$dropper->query_safe("create extension outbox; $handler; $subscribe; commit");
$publisher->finish;
like($complaint, qr/^ERROR:  a table of extension "outbox" was dropped meanwhile\nHINT: /, 'has one clear error when it was committed');
$dropper->quit;

# ---------------------------------------------------------------- beside external workers

sql($node, q{select outbox.subscribe('ext', '{x}'); select outbox.publish('x', event_key => i::text) from generate_series(1, 20) i});
comes_true($node, 30, q{select backlog = 20 from outbox.subscription_status where subscription = 'ext'}, 'there is something to claim')
  or diag(sql($node, 'select * from outbox.subscription_status'));
$session->query_safe(q{begin; create temp table mine as select * from outbox.claim('ext', 10, '1 min', 'me')});
my $begin = time;
($rc, $out, $err) = $node->psql('postgres', q{set lock_timeout = '1s'; drop extension outbox cascade}, on_error_stop => 1);
my $took = time - $begin;
like($err, qr/ERROR:  canceling statement due to lock timeout/, 'beside a claim that has not committed, DROP EXTENSION fails by its lock_timeout');
cmp_ok($took, '<', 30, sprintf 'in time: %.1f s', $took);
is_served($node, 'postgres', 2, 20, 'served afterwards');
$session->query_safe(q{commit; begin; select outbox.ack(lease_token, array_agg(event_id)) from mine group by lease_token});
$begin = time;
($rc, $out, $err) = $node->psql('postgres', q{set statement_timeout = '1s'; drop extension outbox cascade}, on_error_stop => 1);
like($err, qr/ERROR:  canceling statement due to statement timeout/, 'beside an ack() that has not committed, by its statement_timeout');
$took = time - $begin;
cmp_ok($took, '<', 30, sprintf 'in time: %.1f s', $took);
$session->query_safe('commit');
is_sql($node, q{select status, count(*) from outbox.delivery where subscription = 'ext' group by 1 order by 1}, "COMPLETED|10\nPENDING|10", 'the work is whole');
$session->query_safe(q{begin; create temp table more as select * from outbox.claim('ext', 5, '1 min', 'me')});
my $drop = IPC::Run::start([ 'psql', '-X', '-q', '-d', $node->connstr('postgres'), '-c', 'drop extension outbox cascade' ], '<', \undef, '>', \$ignored, '2>', \$complaint);
comes_true($node, 30, q{select count(*) = 1 from pg_stat_activity where wait_event_type = 'Lock' and query like 'drop extension%'}, 'without one it waits');
$session->query_safe('commit');
$drop->finish;
is($complaint, '', 'until the claimer is done');
($out) = $session->query('select outbox.ack(lease_token, array_agg(event_id)) from more group by lease_token');
like($session->{stderr}, qr/ERROR:  function outbox\.ack\(.*\) does not exist/, 'for which the extension is gone then');
$session->{stderr} = '';
is_unserved($node, 'postgres', 20, 'and so are the processes');
$session->quit;

is(join("\n", complaints($node, $start)), '', 'our processes have nothing to complain about');
unlike(slurp_file($node->logfile), qr/could not open relation|cache lookup failed|deadlock detected|PANIC|TRAP|was terminated by signal/, 'nor has anybody else');
$node->stop;
done_testing();
