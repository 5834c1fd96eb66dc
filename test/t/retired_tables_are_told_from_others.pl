# Upkeep removes what retention has retired and no other table, whatever that is called. What a person builds on a retired table, or
# makes an extension's, stays and stops nothing else. Databases are copied and dropped with it, and the
# extension takes it along.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxRetention;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.poll_interval = '100ms'\noutbox.workers = 1\noutbox.retention = '1000d'\noutbox.sensitive_data = off\nautovacuum = off\n");
my $table = make_old_events($node);
my $oid = sql($node, "select '$table'::regclass::oid");

# tables of the administrator's; the last but one is one that a retired table's name is taken by
my @theirs = ('retired_note', 'retired_1', 'retired_2', 'retired_3', "retired_$oid", 'retired_4_old');
sql($node, qq{
	create table outbox.retired_note as select 'theirs' as note;
	create table outbox.retired_1 as select 'theirs' as note;
	create table outbox.retired_2 (like outbox.event_log including all);
	create table outbox.retired_3 (like $table including all);
	create table outbox.retired_$oid (note text);
	create table outbox.retired_4_old (like $table including all);
	alter table outbox.retired_4_old enable row level security;
	alter table outbox.retired_2 drop constraint event_log_is_segmented;
	insert into outbox.retired_2 select * from $table limit 5;
	insert into outbox.retired_3 select * from $table limit 5;
	create role nobody_special;
	grant usage on schema outbox to nobody_special});
my $contents = join ' union all ', map { "select '$_', md5(coalesce(string_agg(t::text, '' order by t::text), '')) from outbox.$_ t" } @theirs;
my $before = sql($node, $contents);

my ($rc, $out, $err) = $node->psql('postgres', 'set role nobody_special; create table outbox.retired_5 (note text)');
like($err, qr/permission denied for schema outbox/, 'others make no table there');

my $holder = $node->background_psql('postgres');
$holder->query_safe("begin; select 1 from $table limit 1");
my $toast = sql($node, "select reltoastrelid::regclass from pg_class where oid = '$table'::regclass");
$holder->query_safe('rollback');
$holder->query_safe("begin; select count(*) from $toast");
maintain($node);
my $ours = sql($node, qq{select oid::regclass from pg_class where oid = $oid});
like($ours, qr/^outbox\.retired_\d+$/, 'retired under another name, when its own is taken');
$holder->query_safe('rollback');
$holder->quit;
is(sql($node, $contents), $before, 'tables of others stay');

# views, extensions
($rc, $out, $err) = $node->psql('postgres', "alter extension outbox drop table $ours");
like($err, qr/is not a member of extension/, 'it is no member that could be dropped from the extension');
sql($node, "create view reader as select event_id from $ours");
maintain($node);
is(status($node, 'retired tables', "failing || ' ' || kept_why"), "false @{[ $ours =~ s/outbox\.//r ]}: another object depends on it", 'a view keeps it');
is(sql($node, 'select count(*) from reader'), '23000', 'as it was');
sql($node, "drop view reader; alter extension outbox add table $ours");
maintain($node);
is(status($node, 'retired tables', 'failing'), 'f', "a member of an extension is not upkeep's");
is(sql($node, "select count(*) from $ours"), '23000', 'and stays');
sql($node, "alter extension outbox drop table $ours");
shrink_until($node, "pg_relation_size('$ours') / 8192 between 1 and 2000");
is(sql($node, $contents), $before, 'tables of others stay');

# databases
$node->safe_psql('template1', $_) for 'create database copy template postgres', 'create database gone template postgres', 'drop database gone';
is($node->safe_psql('copy', "select pg_relation_size('$ours') / 8192 between 1 and 2000"), 't', 'a copy has it too');
$node->safe_psql('copy', "select outbox.activate(); call outbox.maintain()");
is($node->safe_psql('copy', "select to_regclass('$ours') is null"), 't', 'and removes it');
is($node->safe_psql('copy', $contents), $before, 'but not the others');

# the extension
sql($node, 'drop table ' . join(', ', map { "outbox.$_" } @theirs));
is(sql($node, "select to_regclass('$ours') is not null"), 't', 'here it is still there');
sql($node, 'drop extension outbox');
is(sql($node, q{select count(*) from pg_class where relname ~ '^retired_'}), '0', 'the extension takes it along');
$node->stop;
unlike(slurp_file($node->logfile), qr/could not open relation|could not read block|PANIC|TRAP/, 'no error of ours is in the log');
done_testing();
