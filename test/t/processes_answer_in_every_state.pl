# In whatever state a worker is - idle, in a long handler, in one that will not end,
# resting after an error - it lets others drop databases and ends when asked.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = new_server('main', "statement_timeout = '20s'\noutbox.workers = 1\n");

sub took
{
	my ($database, $statement) = @_;
	my $start = time;
	$node->safe_psql($database, $statement);
	return time - $start;
}

sub unrelated_drop
{
	my ($state) = @_;
	$node->safe_psql('postgres', 'create database zz');
	cmp_ok(took('postgres', 'drop database zz'), '<', 10, "an unrelated DROP DATABASE does not wait for a worker that is $state");
}

# a database with a subscription to "busy", whose handler counts its calls and then does this
sub make_database
{
	my ($database, $body) = @_;
	$node->safe_psql('postgres', "create database $database");
	$node->safe_psql($database, qq{
		set client_min_messages = error;
		create extension outbox;
		create sequence started;
		create function handle(e outbox.event) returns void language plpgsql as \$\$ begin perform nextval('public.started'); $body end \$\$;
		select outbox.subscribe('busy', array['busy'], 'public.handle', handler_timeout => '5 minutes');});
}

# one whose only worker is inside of the handler
sub make_busy
{
	my ($database, $body) = @_;
	make_database($database, $body);
	$node->safe_psql($database, q{select outbox.publish('busy')});
	ok(defined within(30, sub { $node->safe_psql($database, q{select is_called from started}) eq 't' }), "$database: the handler runs");
}
my $sleep = 'perform pg_sleep(60);';
my $stubborn = 'loop begin perform pg_sleep(60); exception when query_canceled then null; end; end loop;';

make_busy('sleeping', $sleep);
is( $node->safe_psql('sleeping', q{select state, subscription, role_name is not null, busy_since < clock_timestamp() from outbox.worker_status where process = 'worker'}),
	'running|busy|t|t',
	'worker_status shows what it does');
unrelated_drop('in a handler');
cmp_ok(took('postgres', q{select pg_terminate_backend(pid, 10000) from pg_stat_activity where backend_type = 'outbox worker' and datname = 'sleeping'}),
	'<', 8, 'a worker in a handler ends when asked');
is_served($node, 'sleeping', 1, 20, 'and comes back');
ok(defined within(20, sub { $node->safe_psql('sleeping', q{select last_value from started}) > 1 }), 'the event is tried again');
is($node->safe_psql('sleeping', q{select count(*) from outbox.attempt}), '0', 'without having used an attempt');
cmp_ok(took('postgres', 'alter database sleeping rename to renamed'), '<', 10, 'renamed while its worker is in a handler');
is_served($node, 'renamed', 1, 20, 'and served');
cmp_ok(took('postgres', 'drop database renamed with (force)'), '<', 10, 'and dropped by force');

make_busy('extension', $sleep);
cmp_ok(took('extension', 'drop extension outbox cascade'), '<', 10, 'DROP EXTENSION during a handler');
is_unserved($node, 'extension', 10, 'leaves no process');

# asked when it is about to call the handler: it holds its lanes, and waits to write the receipts
make_database('nearly', $sleep);
$node->safe_psql('nearly', q{select outbox.publish('makes.a.segment')});
my $locker = $node->background_psql('nearly');
$locker->query_safe('begin; lock table outbox.receipt_log in share mode');
$node->safe_psql('nearly', q{select outbox.publish('busy')});
my $pid;
ok(defined within(20, sub { $pid = $node->safe_psql('nearly', q{select pid from pg_stat_activity where backend_type = 'outbox worker' and wait_event_type = 'Lock'}); $pid ne '' }),
	'a worker is on its way to the handler');
$locker->query_safe("select pg_terminate_backend($pid); commit");
$locker->quit;
ok(defined within(10, sub { $node->safe_psql('postgres', "select count(*) from pg_stat_activity where pid = $pid") eq '0' }), 'it ends when asked there');
cmp_ok(took('postgres', 'drop database nearly with (force)'), '<', 10, 'and the database is dropped');
is(join("\n", complaints($node)), '', 'all this without a complaint');

make_busy('stubborn', $stubborn);
unrelated_drop('in a handler that will not end');
cmp_ok(took('postgres', 'drop database stubborn with (force)'), '<', 15, 'its database is dropped by force all the same');
make_busy('stubborn', $stubborn);
cmp_ok(took('postgres', 'drop database stubborn'), '<', 15, 'or just so');

# an error of our own: what a round needs is not there
my $start = log_position($node);
$node->safe_psql('postgres', 'create database broken');
$node->safe_psql('broken', 'create extension outbox');
is_served($node, 'broken', 1, 20, 'served');
$node->safe_psql('broken', q{select outbox.publish('before')});
$node->safe_psql('broken', 'alter table outbox.tick rename to tock; alter table outbox.subscription rename to subscribers');
ok(defined within(20, sub { scalar complaints($node, $start) >= 2 }), 'an error is logged');
$node->safe_psql('postgres', 'select pg_sleep(3)');
my @complaints = complaints($node, $start);
cmp_ok(scalar @complaints, '<=', 4, 'and not again and again') or diag(join "\n", @complaints);
is(processes($node, 'broken'), served(1), 'it does not end the processes');
unrelated_drop('resting after an error');
$node->safe_psql('broken', 'alter table outbox.tock rename to tick; alter table outbox.subscribers rename to subscription');
$node->safe_psql('broken', q{
	set client_min_messages = error;
	create table effect (event_id uuid);
	create function handle(e outbox.event) returns void language plpgsql as $$ begin insert into public.effect values (e.event_id); end $$;
	select outbox.subscribe('s', array['t'], 'public.handle');
	select outbox.publish('t');});
ok(defined within(30, sub { $node->safe_psql('broken', 'select count(*) from effect') eq '1' }), 'and work goes on when the cause is gone');
cmp_ok(took('postgres', 'drop database broken'), '<', 10, 'dropped');

$node->stop;
done_testing();
