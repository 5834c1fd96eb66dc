# pg_dump in each format, also with --jobs: the restored database has every row, is held, and goes on from
# there after outbox.activate(); DROP EXTENSION takes the restored segments along.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxProcesses;
use OutboxStates;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('main', "outbox.poll_interval = '200ms'\noutbox.workers = 1\n");
my $folder = $node->basedir;

$node->safe_psql('postgres', 'create database origin');
make_states($node, 'origin', sub { set_dispatch($node, 'off') });
my $contents = contents($node, 'origin');
like($contents, qr/^event_log_\d{8}: 58 /m, 'the log has what was published');

$node->command_ok([ 'pg_dump', '-F', $_->[0], '-f', "$folder/$_->[1]", @{ $_->[2] // [] }, $node->connstr('origin') ], "dumped: $_->[1]")
	for [ 'p', 'plain.sql' ], [ 'c', 'custom' ], [ 'd', 'directory', [ '--jobs=2' ] ], [ 't', 'archive.tar' ];
$node->safe_psql('postgres', "create database $_") for qw(plain custom directory tarred);
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', "$folder/plain.sql", $node->connstr('plain') ], 'restored: plain');
$node->command_ok([ 'pg_restore', '-d', $node->connstr('custom'), '--jobs=4', "$folder/custom" ], 'restored: custom, 4 jobs');
$node->command_ok([ 'pg_restore', '-d', $node->connstr('directory'), '--jobs=4', "$folder/directory" ], 'restored: directory, 4 jobs');
$node->command_ok([ 'pg_restore', '-d', $node->connstr('tarred'), "$folder/archive.tar" ], 'restored: tar');
is(contents($node, $_), $contents, "$_: every row of every table") for qw(plain custom directory tarred);
is($node->safe_psql('custom', q{select count(*) from outbox.segment s where has_table_privilege('nobody_special', 'outbox.event', 'select') and not has_table_privilege('nobody_special', 'outbox.event_log_' || s.name, 'select')}) > 0 ? 1 : 0, 1, 'grants are as they were');

# while the processes run, a restored database does nothing
set_dispatch($node, 'on');
$node->safe_psql('plain', q{call outbox.maintain()});
for my $database (qw(plain custom))
{
	is($node->safe_psql($database, 'select outbox.is_held()'), 't', "$database: held");
	is(contents($node, $database), $contents, "$database: nothing happens in it");
	is($node->safe_psql($database, 'select outbox.activate()'), 't', "$database: activated");
	prove_it_goes_on($node, $database, $database);
	$node->safe_psql($database, 'drop extension outbox cascade') if $database eq 'plain';
}
my ($rc, $out, $err) = $node->psql('custom', 'drop function note; drop extension outbox');
is($rc, 0, 'DROP EXTENSION needs no CASCADE for restored segments') or diag($err);
is($node->safe_psql('custom', q{select count(*) from pg_class where relname ~ '^(event|receipt)_log'}), '0', 'and takes them along');

# only what is the extension's, or only the schema
$node->command_ok([ 'pg_dump', '--schema-only', '-f', "$folder/schema.sql", $node->connstr('origin') ], 'dumped: schema only');
$node->safe_psql('postgres', 'create database bare');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', "$folder/schema.sql", $node->connstr('bare') ], 'restored: schema only');
is($node->safe_psql('bare', q{select count(*) from outbox.event}), '0', 'which has no events');
$node->stop;
done_testing();
