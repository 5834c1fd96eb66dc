# For each released version from which there is a path of upgrade scripts: updated, the catalogs are those of a
# fresh installation. That a difference would be seen is tried with versions made for it here.
# And a library beside an extension of another version: one clear message, and nothing lost.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('main', "outbox.poll_interval = '200ms'\noutbox.workers = 1\n");
my $folder = $node->config_data('--sharedir') . '/extension';
my ($version) = slurp_file("$folder/outbox.control") =~ /^default_version = '(.*)'/m;
my @made;

sub make_file
{
	my ($name, $text) = @_;
	open my $file, '>', "$folder/$name" or die "$name: $!";
	print $file $text;
	close $file;
	push @made, "$folder/$name";
	return;
}
END { unlink @made }

# Everything about the members of the extension, by name.
my $catalogs = q{
with member as (
	select d.classid, d.objid, i.type, i.identity
	from pg_depend d cross join lateral pg_identify_object(d.classid, d.objid, 0) i
	where d.refclassid = 'pg_extension'::regclass and d.refobjid = (select oid from pg_extension where extname = 'outbox') and d.deptype = 'e')
select m.type || ' ' || m.identity || ' ' || what from member m cross join lateral (
	select 'exists' as what
	union all select 'comment ' || coalesce(obj_description(m.objid, m.classid::regclass::text), '-')
	union all select format('function %s %s %s acl %s owner %s', pg_get_functiondef(p.oid), p.prosrc, p.probin, p.proacl, p.proowner::regrole) from pg_proc p where m.classid = 'pg_proc'::regclass and p.oid = m.objid
	union all select format('relation %s %s %s acl %s owner %s inherits %s', c.relkind, c.reloptions, c.relrowsecurity, c.relacl, c.relowner::regrole, (select inhparent::regclass from pg_inherits where inhrelid = c.oid)) from pg_class c where m.classid = 'pg_class'::regclass and c.oid = m.objid
	union all select format('view %s', pg_get_viewdef(c.oid)) from pg_class c where m.classid = 'pg_class'::regclass and c.oid = m.objid and c.relkind = 'v'
	union all select format('column %s %s %s %s %s %s %s %s %s', rank() over (order by a.attnum), a.attname, format_type(a.atttypid, a.atttypmod), a.attcollation::regcollation, a.attnotnull, a.attidentity, pg_get_expr(f.adbin, f.adrelid), a.attstorage, col_description(a.attrelid, a.attnum))
		from pg_attribute a left join pg_attrdef f on f.adrelid = a.attrelid and f.adnum = a.attnum where m.classid = 'pg_class'::regclass and a.attrelid = m.objid and a.attnum > 0 and not a.attisdropped
	union all select format('constraint %s %s', k.conname, pg_get_constraintdef(k.oid)) from pg_constraint k where m.classid = 'pg_class'::regclass and k.conrelid = m.objid
	union all select format('index %s', pg_get_indexdef(i.indexrelid)) from pg_index i where m.classid = 'pg_class'::regclass and i.indrelid = m.objid
	union all select format('policy %s', p.*) from pg_policies p where m.classid = 'pg_class'::regclass and format('%I.%I', p.schemaname, p.tablename)::regclass = m.objid
	union all select format('type %s', t.typtype) from pg_type t where m.classid = 'pg_type'::regclass and t.oid = m.objid
) d
union all
select 'dumped ' || c.oid::regclass || ' ' || c.condition from pg_extension e cross join lateral unnest(e.extconfig, e.extcondition) as c (oid, condition) where e.extname = 'outbox'
order by 1};

sub update_from
{
	my ($from, $database) = @_;
	$node->safe_psql('postgres', "create database $database");
	$node->safe_psql($database, "create extension outbox version '$from'; alter extension outbox update");
	return $node->safe_psql($database, $catalogs);
}

$node->safe_psql('postgres', 'create database fresh');
$node->safe_psql('fresh', 'create extension outbox');
my $fresh = $node->safe_psql('fresh', $catalogs);
cmp_ok(($fresh =~ tr/\n//), '>', 300, 'the catalogs say something');

# released ones
my @released = grep { $_ } map { m!/outbox--([^-]+)\.sql$! && $1 ne $version ? $1 : undef } glob "$folder/outbox--*.sql";
is(update_from($_, 'from_' . tr/./_/r), $fresh, "from $_: as a fresh installation") for @released;
note('no version has been released before this one') unless @released;

# an old version without a function, a column and an index of this one; and two ways from there, of which one forgets something
my $script = slurp_file("$folder/outbox--$version.sql");
my ($function) = $script =~ /\n(create function outbox\.schedule_maintenance\(.*?^comment on function outbox\.schedule_maintenance\(text\) is\n.*?';\n)/ms or die;
my ($index) = $script =~ /\n(create index receipt_log_kept_batch [^;]*;\n)/ or die;
my $old = $script;
$old =~ s/,\n    resume_at bigint not null default 0\n\)/\n)/ or die;
$old =~ s/\Q$_\E// or die for $function, $index;
my $column = "alter table outbox.maintenance add column resume_at bigint not null default 0;\n";
make_file('outbox--0.0.1.sql', $old);
make_file("outbox--0.0.1--$version.sql", $function . $index . $column);
make_file('outbox--0.0.2.sql', $old);
make_file("outbox--0.0.2--$version.sql", ($function =~ s/^comment on.*//msr) . $column);
is(update_from('0.0.1', 'right_way'), $fresh, 'a complete script: as a fresh installation');
my $wrong = update_from('0.0.2', 'wrong_way');
isnt($wrong, $fresh, 'an incomplete one is found out');
my %missing = map { $_ => 1 } split /\n/, $fresh;
delete @missing{ split /\n/, $wrong };
is((join "\n", sort keys %missing) =~ /comment Has pg_cron.*index CREATE INDEX receipt_log_kept_batch/s, 1, 'by an index and a comment');

# A library beside the extension of another version, older or newer: nothing is published, routed or delivered, one message says which of
# them is the newer one and what to do, the processes stay and say it once a minute; and when that is put right, nothing is lost.
$node->safe_psql('postgres', 'create database older');
$node->safe_psql('older', q{create extension outbox; create table effect (n int); create function note(e outbox.event) returns void language sql begin atomic insert into effect values (1); end;
	select outbox.subscribe('notes', '{#}', 'public.note', lanes => 1); select outbox.subscribe('queue', '{#}', lanes => 1); select outbox.publish('a.b')});
ok($node->poll_query_until('older', 'select count(*) = 1 from effect'), 'delivered');
my %says = (
	'0.0.9' => qr/ERROR:  extension "outbox" is of version 0\.0\.9, older than the library of version \Q$version\E that the server runs\nHINT:  Run ALTER EXTENSION outbox UPDATE in this database\.$/m,
	'99.0' => qr/ERROR:  extension "outbox" is of version 99\.0, newer than the library of version \Q$version\E that the server runs\nHINT:  Restart the server, which then loads the newer library; if its package has been replaced by an older one, install it again first\.$/m,
);
my $pids = q{select string_agg(backend_type || pid, ' ' order by pid) from pg_stat_activity where backend_type in ('outbox router', 'outbox worker') and datname = 'older'};
my $delivered = 1;
for my $other (sort keys %says)
{
	# routed, leased by a worker for one subscription, and not delivered for the other; then the library changes
	$node->safe_psql('older', q{select outbox.pause('notes'); select outbox.publish('a.b')});
	my $token = $node->safe_psql('older', q{call outbox.drain('{}'); select lease_token from outbox.claim('queue', 1)});
	$node->safe_psql('older', qq{begin; select outbox.resume('notes'); update pg_extension set extversion = '$other' where extname = 'outbox'; commit});
	$node->stop;
	my $position = -s $node->logfile;
	$node->start;
	for my $call (q{outbox.publish('a.b')}, q{outbox.publish('a.b')}, q{outbox.publish_batch('[{"event_type": "a.b"}]')}, q{outbox.claim('queue')}, "outbox.ack_all('$token')", q{outbox.subscribe('more', '{#}')})
	{
		my ($rc, $out, $err) = $node->psql('older', "select $call");
		is($rc, 3, "$other: $call fails");
		like($err, $says{$other}, '  with one clear message');
		is(() = $err =~ /ERROR|WARNING/g, 1, '  and no other');
	}
	ok($node->poll_query_until('older', q{select count(*) >= 1 from pg_stat_activity where backend_type = 'outbox router' and datname = 'older'}), "$other: the router is there");
	my $there = $node->safe_psql('older', $pids);
	ok(defined within(20, sub { slurp_file($node->logfile, $position) =~ /outbox router\s+LOG:  extension "outbox" is of version \Q$other\E/ }), "$other: and says so in the log");
	$node->safe_psql('postgres', 'select pg_sleep(1.5)'); # some poll intervals
	my $log = slurp_file($node->logfile, $position);
	is($node->safe_psql('older', $pids), $there, "$other: the processes stay");
	is(() = $log =~ /outbox router\s+LOG:  extension/g, 1, "$other: and do not say so each second");
	is(() = $log =~ /outbox (?:router|worker)\s+(?:ERROR|WARNING|FATAL)/g, 0, "$other: nor anything else");
	unlike($log, qr/PANIC|TRAP|terminated by signal/, "$other: nothing crashes");
	is($node->safe_psql('older', 'select count(*) from effect'), $delivered, "$other: nothing is delivered");
	$node->safe_psql('older', qq{update pg_extension set extversion = '$version' where extname = 'outbox'});
	$node->safe_psql('older', qq{select outbox.ack_all('$token'); select outbox.publish('a.b')});
	$delivered += 2;
	ok($node->poll_query_until('older', "select count(*) = $delivered from effect"), "$other: when they are of one version all goes on");
}

# newer files beside the library that is loaded
make_file("outbox--99.0.sql", $script);
make_file("outbox--$version--99.0.sql", '-- nothing');
$node->safe_psql('postgres', 'create database newer');
my ($rc, $out, $err) = $node->psql('newer', q{create extension outbox version '99.0'});
like($err, qr/is of version 99\.0, newer.*HINT:  Restart the server/s, 'CREATE EXTENSION of a newer version is refused until the restart');
is($node->safe_psql('newer', q{select count(*) from pg_extension where extname = 'outbox'}), '0', 'and leaves nothing');
($rc, $out, $err) = $node->psql('older', q{alter extension outbox update to '99.0'});
like($err, qr/is of version 99\.0, newer.*HINT:  Restart the server/s, 'ALTER EXTENSION too');
is($node->safe_psql('older', q{select outbox.publish('a.b') is not null}), 't', 'and publishing goes on');
$node->stop;
done_testing();
