# `make installcheck` does what it does for any extension that is built with PGXS: it tests what is installed on a server that
# runs, set as test/postgresql.conf says, from sources in which nothing was built; and it tells when something is wrong.
#
# Of what one session sees, a part that is over soon: `make check` runs all of it on a server of its own. OUTBOX_TEST_FULL=1 leaves nothing out.
use strict;
use warnings;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my @part = qw(consume constraints deliver_handlers event_type patterns publish publish_errors rights subscribe views);

sub names
{
	my ($folder, $suffix) = @_;
	return sort map { m{([^/]+)$suffix$} } glob("$folder/*$suffix");
}

# make in the folder, with its exit code and what it said
sub make
{
	my ($folder, @arguments) = @_;
	my $out = '';
	IPC::Run::run([ 'make', '-C', $folder, "PG_CONFIG=$ENV{PG_CONFIG}", @arguments ], '<', '/dev/null', '>', \$out, '2>&1');
	return ($? >> 8, $out);
}

my $node = PostgreSQL::Test::Cluster->new('running');
$node->init(extra => [ '-U', 'postgres', '-E', 'UTF8', '--locale=C.UTF-8' ]);
$node->append_conf('postgresql.conf', slurp_file("$ENV{top_builddir}/test/postgresql.conf"));
$ENV{PGUSER} = 'postgres';
$node->start;
# where psql and its like look without being told, as on a user's machine
$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;

my $source = "$ENV{TESTDATADIR}/source";
system('cp', '-r', $ENV{top_builddir}, $source) == 0 or die;
is((make($source, 'clean'))[0], 0, 'make clean');
is_deeply([ grep { -e } glob("$source/*.so $source/src/*.o $source/outbox--*.sql") ], [], 'nothing is built here');

my @regress = names("$source/sql", '.sql');
my @isolation = names("$source/test/isolation/specs", '.spec');
my @run = $ENV{OUTBOX_TEST_FULL} ? @regress : @part;
my ($rc, $out) = make($source, 'installcheck', $ENV{OUTBOX_TEST_FULL} ? () : "REGRESS=@part");
is($rc, 0, 'make installcheck') or diag($out);
is_deeply([ $out =~ /All (\d+) tests passed/g ], [ scalar @run, scalar @isolation ], 'it ran what there is for one session and for two');
my @ran = $out =~ /^(?:test|ok \d+\s+-)\s+(\w+)\s.*\bms\b/mg;
is_deeply([ sort @ran ], [ sort @run, @isolation ], 'by name');
is($node->safe_psql('contrib_regression', q{select count(*) from pg_extension where extname = 'outbox'}), '1', 'on the server that runs');

append_to_file("$source/expected/patterns.out", "and this\n");
($rc, $out) = make($source, 'installcheck', 'REGRESS=patterns', 'ISOLATION=');
isnt($rc, 0, 'what is not as expected makes it fail');
like($out, qr/1 of 1 tests failed/, 'and it says so');

$node->stop;
done_testing();
