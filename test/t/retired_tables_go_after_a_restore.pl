# A dump that is made while a retired table is on the disk, whole or shrunk in part, restores without an error. The restored
# database has the events and states of the origin, nothing of the retired rows is an event, and the
# table that came along is removed once the database is activated.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxRetention;
use OutboxStates;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.poll_interval = '100ms'\noutbox.workers = 1\noutbox.retention = '1000d'\noutbox.sensitive_data = off\nautovacuum = off\n");
my $folder = $node->basedir;
my $there = q{select count(*) from pg_class where relname ~ '^retired_' and relkind = 'r'};

sub state_of
{
	my ($database) = @_;
	return join "\n", grep { !/^retired_/ } split /\n/, contents($node, $database);
}

my $table = make_old_events($node, q{
	select outbox.subscribe('unworked', '{#}');
	select count(outbox.publish('t.new', event_key => 'k' || n)) from generate_series(1, 50) n}, 'select backlog = 50 from outbox.subscription_status');
retire($node, $table);
my $state = state_of('postgres');
like($state, qr/^event_log_\d{8}: 50 /m, 'the log has the new events');

$node->command_ok([ 'pg_dump', '--schema-only', '-f', "$folder/schema.sql", $node->connstr('postgres') ], 'dumped: schema only');
shrink_until($node, "pg_relation_size($retired) / 8192 between 1 and 2000");
is(sql($node, "select count(*) > 3000 from only outbox.@{[ sql($node, qq{select relname from pg_class where oid = $retired}) ]} where length(payload ->> 'text') > 0"), 't', 'what is left of it can be read');
$node->command_ok([ 'pg_dump', '-F', 'c', '--compress=0', '-f', "$folder/custom", $node->connstr('postgres') ], 'dumped: custom, of a part');
$node->command_ok([ 'pg_dump', '-f', "$folder/plain.sql", $node->connstr('postgres') ], 'dumped: plain, of a part');
shrink_until($node, "pg_relation_size($retired) = 0 and pg_total_relation_size($retired) > 0");
$node->command_ok([ 'pg_dump', '-F', 'd', '--jobs=2', '--compress=0', '-f', "$folder/directory", $node->connstr('postgres') ], 'dumped: directory, without rows');
is(state_of('postgres'), $state, 'the origin is as it was');

sql($node, "create database $_") for qw(plain custom directory bare);
my @psql = ('psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f');
$node->command_ok([ @psql, "$folder/plain.sql", $node->connstr('plain') ], 'restored: plain');
$node->command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr('custom'), "$folder/custom" ], 'restored: custom');
$node->command_ok([ 'pg_restore', '-d', $node->connstr('directory'), '--jobs=2', "$folder/directory" ], 'restored: directory');
$node->command_ok([ @psql, "$folder/schema.sql", $node->connstr('bare') ], 'restored: schema only');

for my $database (qw(plain custom directory))
{
	is($node->safe_psql($database, $there), '1', "$database: the table came along");
	$node->safe_psql($database, 'call outbox.maintain()');
	is($node->safe_psql($database, $there), '1', "$database: held, nothing is removed");
	is(state_of($database), $state, "$database: events and states are the origin's");
	is($node->safe_psql($database, 'select count(*) from outbox.event'), '50', "$database: none of its rows is an event");
	is($node->safe_psql($database, 'select outbox.activate()'), 't', "$database: activated");
	$node->safe_psql($database, 'call outbox.maintain()');
	is($node->safe_psql($database, $there), '0', "$database: then it goes");
	is($node->safe_psql($database, q{select count(*) || ' ' || (select backlog from outbox.subscription_status) from outbox.event}), '50 50', "$database: and nothing else");
}
is($node->safe_psql('bare', $there), '1', 'bare: the table came along');
$node->safe_psql('bare', q{select outbox.publish('t.first'); call outbox.maintain()});
is($node->safe_psql('bare', $there), '0', 'bare: and goes');
is($node->safe_psql('bare', 'select count(*) from outbox.event'), '1', 'bare: publishing goes on');
$node->stop;
done_testing();
