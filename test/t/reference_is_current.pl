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

# what each right lets one call, but for what only views call, and what the planner puts into them, stands in its row of the manual
sql($node, q{
	create role r_publisher; create role r_worker; create role r_operator; create role r_monitor;
	select outbox.subscribe('s', '{s.#}'), outbox.grant_publisher('r_publisher', '{s.#}'), outbox.grant_worker('r_worker', 's'),
		outbox.grant_operator('r_operator'), outbox.grant_monitor('r_monitor')});
my %row = slurp_file('doc/rights.md') =~ /^\| (\w+) \| (.*) \|$/gm;
my $settling = qr/^(ack|ack_all|ack_one|fail|extend|release|release_all)$/;
$row{operator} .= $row{monitor};
$row{worker} .= $row{publisher} =~ s/publish//r;
for my $right (qw(publisher worker operator monitor))
{
	my @may = split /\n/, sql($node, qq{
		select distinct p.proname from pg_proc p where p.pronamespace = 'outbox'::regnamespace and has_function_privilege('r_$right', p.oid, 'execute')
			and not exists (select from pg_depend d join pg_rewrite r on d.classid = 'pg_rewrite'::regclass and d.objid = r.oid
				where d.refclassid = 'pg_proc'::regclass and d.refobjid = p.oid)
			and p.proname !~ '_to_search\$'
		order by 1});
	cmp_ok(scalar @may, '>=', 2, "a $right may do something");
	my @untold = grep { my $verb = $_ =~ $settling ? 'settle' : /^(define|drop|alter|publish|matching|schedule)_/ ? $1 : $_; $row{$right} !~ /\b$verb/ } @may;
	is("@untold", '', 'and the manual tells of all of it');
}
$node->stop;
done_testing();
