# A server started by pg_upgrade runs none of our processes, and DROP EXTENSION and DROP
# DATABASE work there without them.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('main');
$node->safe_psql('postgres', 'create extension outbox');
is_served($node, 'postgres', 2, 20, 'served');
$node->stop;

my @server = ('--pgdata' => $node->data_dir, '--log' => $node->logfile, '--wait', '--silent');
command_ok([ 'pg_ctl', @server, '--options' => "-b --cluster-name=main", 'start' ], 'started as pg_upgrade does');
$node->_update_pid(1);
$node->safe_psql('postgres', 'select pg_sleep(1.5)');
is($node->safe_psql('postgres', q{select count(*) from pg_stat_activity where backend_type like 'outbox %'}), '0', 'no process of ours');
$node->safe_psql('postgres', $_) for 'create database zz', 'drop database zz', 'drop extension outbox';
is($node->safe_psql('postgres', q{select count(*) from pg_stat_activity where backend_type like 'outbox %'}), '0', 'still none');
$node->stop;

$node->start;
$node->safe_psql('postgres', 'create extension outbox');
is_served($node, 'postgres', 2, 20, 'served again afterwards');
$node->stop;
done_testing();
