# Statements that need a database, or the extension, for themselves find our processes
# gone, and get them back whether they succeed or not.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = new_server('main', "statement_timeout = '20s'\nmax_prepared_transactions = 5\n");
$node->safe_psql('postgres', 'create extension outbox');

sub quickly
{
	my ($limit, $name, @statements) = @_;
	my $start = time;
	$node->safe_psql('postgres', $_) for @statements;
	my $took = time - $start;
	cmp_ok($took, '<', $limit, $name);
}

sub make_served
{
	my ($database) = @_;
	$node->safe_psql('postgres', "create database $database");
	$node->safe_psql($database, 'create extension outbox');
	return is_served($node, $database, 2, 20, "$database is served");
}

# a database of strangers
quickly(10, 'an unrelated database is dropped at once', 'create database zz', 'drop database zz');
quickly(10, 'and copied by files', 'create database zz strategy file_copy', 'drop database zz with (force)');

# served databases
make_served('one');
quickly(12, 'DROP DATABASE of a served one', 'drop database one');
make_served('one');
quickly(12, 'with force', 'drop database one with (force)');
make_served('one');
quickly(12, 'renamed', 'alter database one rename to two');
is_served($node, 'two', 2, 20, 'and served under its new name');
ok($node->poll_query_until('postgres', q{select count(*) = 3 from pg_stat_activity where datname = 'two' and application_name ~ 'outbox.* two$'}), 'which the processes bear');
quickly(12, 'copied by WAL', 'create database three template two');
is_served($node, 'three', 2, 20, 'the copy is served');
is_served($node, 'two', 2, 20, 'and the original again');
quickly(15, 'copied by files', 'create database four template two strategy file_copy');
is_served($node, $_, 2, 20, "$_ is served") for qw(two four);
$node->safe_psql('postgres', "set allow_in_place_tablespaces = on;\ncreate tablespace elsewhere location ''");
quickly(15, 'moved to another tablespace', 'alter database four set tablespace elsewhere');
is_served($node, 'four', 2, 20, 'and served there');
quickly(12, 'renamed in a transaction that rolls back', 'begin; alter database two rename to zwei; rollback');
is_served($node, 'two', 2, 20, 'it has its processes back');

# statements that fail
my $blocker = $node->background_psql('two');
$blocker->query_safe('select 1');
isnt($node->psql('postgres', 'drop database two'), 0, 'somebody else is connected');
is_served($node, 'two', 2, 20, 'after a failed DROP DATABASE they are back');
$blocker->quit;

# strangers stop nothing
$node->safe_psql('postgres', 'create role stranger login createdb; create role owner login createdb');
my $before = $node->safe_psql('postgres', q{select string_agg(pid::text, ',' order by pid) from pg_stat_activity where datname = 'two' and backend_type like 'outbox %'});
for my $statement ('drop database two', 'drop database two with (force)', 'alter database two rename to mine', 'create database mine template two')
{
	isnt($node->psql('postgres', $statement, connstr => $node->connstr('postgres') . ' user=stranger'), 0, "a stranger may not: $statement");
}
for my $statement ('drop extension outbox', 'drop schema outbox cascade', 'drop owned by current_user', 'alter extension outbox update')
{
	$node->psql('two', $statement, connstr => $node->connstr('two') . ' user=stranger');
}
is( $node->safe_psql('postgres', q{select string_agg(pid::text, ',' order by pid) from pg_stat_activity where datname = 'two' and backend_type like 'outbox %'}),
	$before, 'and stops no process by trying');
$node->psql('postgres', 'begin; drop database two; rollback');
is( $node->safe_psql('postgres', q{select string_agg(pid::text, ',' order by pid) from pg_stat_activity where datname = 'two' and backend_type like 'outbox %'}),
	$before, 'nor does a statement that cannot run in a transaction block');
$node->safe_psql('postgres', 'alter database three owner to owner');
is($node->psql('postgres', 'drop database three', connstr => $node->connstr('postgres') . ' user=owner'), 0, 'its owner may drop a database');

# the extension
my $start = log_position($node);
for (1 .. 10)
{
	$node->safe_psql('two', 'drop extension outbox');
	$node->safe_psql('two', 'create extension outbox');
}
my $took = is_served($node, 'two', 2, 10, 'served after ten times DROP and CREATE EXTENSION');
$node->safe_psql('two', 'begin; drop extension outbox; create extension outbox; commit');
is_served($node, 'two', 2, 10, 'served after both in one transaction');
$node->safe_psql('two', 'begin; drop extension outbox; rollback');
is_served($node, 'two', 2, 10, 'served after a rolled-back DROP EXTENSION');
$node->safe_psql('two', 'begin; savepoint s; drop extension outbox; rollback to s; commit');
is_served($node, 'two', 2, 10, 'served after a DROP EXTENSION in a savepoint that rolled back');

my $dropper = $node->background_psql('two');
$dropper->query_safe('begin; drop extension outbox');
is(processes($node, 'two'), '', 'while a DROP EXTENSION is not over there is no process');
$node->safe_psql('postgres', 'select pg_sleep(1.2)');
is(processes($node, 'two'), '', 'and none comes');
$dropper->query_safe('rollback');
$dropper->quit;
is_served($node, 'two', 2, 10, 'afterwards they come');

$dropper = $node->background_psql('two');
$dropper->query_safe('begin; drop extension outbox');
$node->safe_psql('postgres', q{select pg_terminate_backend(pid) from pg_stat_activity where state = 'idle in transaction'});
is_served($node, 'two', 2, 10, 'they come too when its session is ended');
eval { $dropper->quit };

$node->safe_psql('two', q{begin; drop extension outbox; prepare transaction 'p'});
$node->safe_psql('two', q{select pg_sleep(1.2)});
$node->safe_psql('two', q{rollback prepared 'p'});
is_served($node, 'two', 2, 10, 'served after a prepared DROP EXTENSION that was rolled back');
$node->safe_psql('two', q{begin; drop extension outbox; prepare transaction 'p'});
$node->safe_psql('two', q{select pg_sleep(1.2)});
$node->safe_psql('two', q{commit prepared 'p'});
is_unserved($node, 'two', 10, 'and none after one that was committed');
$node->safe_psql('two', 'create extension outbox');
is_served($node, 'two', 2, 10, 'until the next CREATE EXTENSION');
$node->safe_psql('two', 'drop schema outbox cascade');
is_unserved($node, 'two', 10, 'DROP SCHEMA outbox CASCADE');
$node->safe_psql('two', 'create extension outbox');
is_served($node, 'two', 2, 10, 'and back');

log_is_quiet($node, $start, qr/(drop (cascades|extension)|terminating connection due to administrator command)/i, 'no noise from the extension\'s coming and going');
my $log = slurp_file($node->logfile);
unlike($log, qr/outbox (router|worker)/, 'and no word of a router or worker at all');
$node->stop;
done_testing();
