# Every database that has the extension is served by a router and its workers, no
# other one is, and the settings say how many.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_server('main');
$node->safe_psql('postgres', "create database $_") for qw(a b c plain);

$node->safe_psql($_, 'create extension outbox') for qw(a b c);
is_served($node, $_, 2, 20, "database $_ is served after CREATE EXTENSION") for qw(a b c);
is(processes($node, 'plain'), '', 'a database without the extension has no process');

# transactions that do not keep the extension
$node->safe_psql('plain', 'begin; create extension outbox; rollback');
$node->safe_psql('plain', 'select pg_sleep(0.5)');
is(processes($node, 'plain'), '', 'a rolled-back CREATE EXTENSION leaves no process');
$node->safe_psql('plain', 'begin; create extension outbox; commit');
is_served($node, 'plain', 2, 10, 'CREATE EXTENSION in a transaction block is seen at its commit');
$node->safe_psql('plain', 'drop extension outbox');
is_unserved($node, 'plain', 20, 'after DROP EXTENSION there is no process');

# what they show
ok( $node->poll_query_until('a',
		q{select string_agg(process || coalesce(number, 0) || state, ' ') = 'router0idle worker1idle worker2idle' from outbox.worker_status}),
	'worker_status shows them');
is( $node->safe_psql('a', q{select distinct workers_wanted, workers_running from outbox.worker_status}),
	'2|2', 'worker_status shows how many are wanted and there');
# a round of one of them may be under way
ok( $node->poll_query_until('postgres',
		q{select count(*) = 0 from pg_stat_activity where backend_type like 'outbox %'
		  and (backend_xmin is not null or backend_xid is not null or xact_start is not null)}),
	'idle processes hold no transaction');

# settings, by reload
$node->append_conf('postgresql.conf', "outbox.workers = 4\n");
$node->reload;
is_served($node, 'b', 4, 20, 'more workers after a reload');
$node->append_conf('postgresql.conf', "outbox.workers = 1\n");
$node->reload;
is_served($node, 'b', 1, 20, 'fewer workers after a reload');
$node->append_conf('postgresql.conf', "outbox.dispatch = off\n");
$node->reload;
is_unserved($node, $_, 20, "outbox.dispatch = off stops the processes of $_") for qw(a b c);
is($node->safe_psql('a', 'select process, state, workers_wanted from outbox.worker_status'),
	'router|off|0', 'worker_status says that dispatch is off');
$node->restart;
usleep(1_500_000);
is(processes($node, $_), '', "outbox.dispatch = off survives a restart ($_)") for qw(a b);
$node->append_conf('postgresql.conf', "outbox.dispatch = on\noutbox.workers = 2\n");
$node->reload;
is_served($node, $_, 2, 20, "outbox.dispatch = on starts them again ($_)") for qw(a b c);

# a restart finds them all
$node->restart;
is_served($node, $_, 2, 20, "served after a restart ($_)") for qw(a b c);

# a database that stops being open to connections, and comes back
$node->safe_psql('postgres', 'alter database c allow_connections false');
is_unserved($node, 'c', 20, 'a database closed to connections is left');
$node->safe_psql('postgres', 'alter database c allow_connections true');
is_served($node, 'c', 2, 20, 'and served again when it is open');

# many databases at once
$node->safe_psql('postgres', "create database many$_") for 1 .. 12;
$node->safe_psql('many12', 'create extension outbox');
is_served($node, 'many12', 2, 30, 'one among many new databases is found');

log_is_quiet($node, 0, undef, 'nothing of it is worth a warning');
$node->stop;
done_testing();
