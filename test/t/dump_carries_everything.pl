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
ok($node->poll_query_until('origin', 'select count(*) >= 31 from outbox.segment'), 'segments are made ahead');
$node->command_ok([ 'pg_dump', '--schema-only', '-f', "$folder/schema.sql", $node->connstr('origin') ], 'dumped: schema only');
$node->safe_psql('postgres', 'create database bare');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', "$folder/schema.sql", $node->connstr('bare') ], 'restored: schema only');
is($node->safe_psql('bare', q{select count(*) from outbox.event}), '0', 'which has no events');

# in which publishing goes on with the tables of segments that have come along: they are what would be made
my $tables = q{select count(*) from pg_inherits where inhparent in ('outbox.event_log'::regclass, 'outbox.receipt_log'::regclass)};
my $before = $node->safe_psql('bare', $tables);
cmp_ok($before, '>', 60, 'the tables of segments have come along');
is($node->safe_psql('bare', q{select count(*) from outbox.segment}), '0', 'without the rows that tell of them');
like($node->safe_psql('bare', q{select outbox.publish('a.done')}), qr/^[0-9a-f-]{36}$/, 'publishing does not mind');
is($node->safe_psql('bare', q{select outbox.subscribe('notes', '{#}', 'public.note'), outbox.is_held()}), 't|f', 'it is a database of its own');
$node->safe_psql('bare', q{select outbox.publish('b.done'); call outbox.maintain(); call outbox.drain()});
is($node->safe_psql('bare', q{select string_agg(event_type, ' ') from effect}), 'b.done', 'and delivered');
is($node->safe_psql('bare', $tables), $before, 'in the tables that were there');
is($node->safe_psql('bare', q{select count(*) >= 30 and bool_and(to_id > from_id) from outbox.segment}), 't', 'those of the next days too');
is($node->safe_psql('bare', q{
	select string_agg(c.relname, ' ') from outbox.segment s cross join (values ('event_log_'), ('receipt_log_')) as t (parent) join pg_class c on c.oid = ('outbox.' || parent || s.name)::regclass
	where c.relrowsecurity is not true or has_table_privilege('nobody_special', c.oid, 'select')
		or not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'a' and d.refobjid = ('outbox.' || rtrim(parent, '_'))::regclass)}), '', 'closed as any other');

# but one that is anything else is not touched: what it lacks or has, and what to do, is said
my $insert = q{insert into %1$s select (jsonb_populate_record(null::%1$s, jsonb_build_object('event_id', e.id, 'event_type', 'x.y', 'payload_version', '1', 'occurred_at', now(), 'published_at', now(), 'payload', '{}'::jsonb, 'xid', '1', 'incarnation', 1))).*
		from (select lpad(to_hex(floor(extract(epoch from now()) * 1000)::bigint), 12, '0') || '70008000000000000000' as id) e};
my %fault = (
	$insert => qr/has rows/,
	"$insert; delete from %1\$s" => qr/has had some/,
	'alter table %1$s owner to nobody_special' => qr/owner/,
	'alter table %1$s no inherit outbox.event_log' => qr/no child of outbox.event_log/,
	'alter table %1$s add column more text' => qr/columns/,
	'alter table %1$s alter source set default 1' => qr/columns/,
	'alter table %1$s drop constraint %2$s_range' => qr/check is not/,
	q{alter table %1$s drop constraint %2$s_range, add constraint %2$s_range check (event_id >= '00000000-0000-0000-0000-000000000000' and event_id < 'ffffffff-0000-0000-0000-000000000000')} => qr/check is not/,
	'alter table %1$s drop constraint %2$s_pkey' => qr/indexes/,
	'drop index outbox.%2$s_xid' => qr/indexes/,
	'create unique index on %1$s (event_type)' => qr/indexes/,
	'create rule r as on insert to %1$s do instead nothing' => qr/rules/,
	'alter table %1$s disable row level security' => qr/closed/,
	'drop table %1$s; create table %1$s ()' => qr/no child/,
	'drop table %1$s; create view %1$s as select 1' => qr/plain table/,
);
$node->safe_psql('postgres', 'create database spoilt');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', "$folder/schema.sql", $node->connstr('spoilt') ], 'restored again');
my $today = $node->safe_psql('spoilt', q{select 'event_log_' || to_char(now() at time zone 'UTC', 'YYYYMMDD')});
for my $spoil (sort keys %fault)
{
	my ($rc, $out, $err) = $node->psql('spoilt', sprintf("begin; $spoil; select outbox.publish('a.done')", "outbox.$today", $today));
	is($rc, 3, 'refused after: ' . ($spoil =~ s/\n\s*/ /r)) or diag($out);
	like($err, qr/ERROR:  relation "outbox.$today" already exists, and outbox.segment does not tell of it\nDETAIL:  .*$fault{$spoil}.*\nHINT:  .*drop table if exists outbox.$today, outbox.receipt_log/, 'and it is said why');
}
$node->safe_psql('spoilt', "alter table outbox.$today add column more text");
is($node->psql('spoilt', q{select outbox.publish('a.done')}), 3, 'refused');
$node->safe_psql('spoilt', sprintf('drop table if exists outbox.%1$s, outbox.%2$s', $today, $today =~ s/event/receipt/r));
like($node->safe_psql('spoilt', q{select outbox.publish('a.done')}), qr/^[0-9a-f-]{36}$/, 'until they are dropped');
$node->stop;
done_testing();
