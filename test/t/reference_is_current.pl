# doc/reference.md is what the comments in the database say, and everything public has a comment.
use strict;
use warnings;
use OutboxEngine;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('reference');
my ($out, $err) = ('', '');
IPC::Run::run([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-f', 'doc/reference.sql' ], '<', '/dev/null', '>', \$out, '2>', \$err);
is($err, '', 'the page is made');
ok($out eq slurp_file('doc/reference.md'), 'and is the one in the manuals') or diag('make it again: make reference');

is_sql($node, q{
	select string_agg(what, ', ') from (
		select p.oid::regprocedure::text as what from pg_proc p where p.pronamespace = 'outbox'::regnamespace and obj_description(p.oid, 'pg_proc') is null
		union all
		select c.oid::regclass::text from pg_class c where c.relnamespace = 'outbox'::regnamespace and c.relkind in ('v', 'r', 'c') and c.relname !~ '_log_\d+$'
			and obj_description(c.oid, 'pg_class') is null and not exists (select from pg_type t where t.typrelid = c.oid and obj_description(t.oid, 'pg_type') is not null)
	) without}, '', 'everything has a comment');
is_sql($node, q{select string_agg(name, ', ') from pg_settings where name like 'outbox.%' and coalesce(short_desc, '') = ''}, '', 'so has every setting');
$node->stop;
done_testing();
