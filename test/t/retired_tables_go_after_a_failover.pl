# A standby whose primary retires a table and shrinks it: queries there see the events before or after, whole, and never an
# error. Promoted meanwhile, it takes the rest off the disk.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run qw(start);
use OutboxEngine;
use OutboxProcesses;
use OutboxRetention;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = new_engine('primary', "outbox.poll_interval = '100ms'\noutbox.workers = 1\noutbox.retention = '1000d'\noutbox.sensitive_data = off\nautovacuum = off\nmax_standby_streaming_delay = -1\n");
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

my $table = make_old_events($primary, q{select count(outbox.publish('t.new')) from generate_series(1, 50)});
$standby->append_conf('postgresql.conf', "outbox.test_clock_offset = @{[ clock_offset() ]}\noutbox.retention = '30d'\n");
$standby->reload;
$primary->wait_for_catchup($standby, 'replay');
is(sql($standby, 'select count(*) from outbox.event'), '23050', 'the standby has all');

# somebody counts, as long as there is no file "stop"
my $folder = $standby->basedir;
append_to_file("$folder/count.sql", "select count(*) from outbox.event;\n" x 10);
my $counting = start([ 'sh', '-c', 'while [ ! -e "$1/stop" ]; do psql -X -A -t -v ON_ERROR_STOP=1 -d "$2" -f "$1/count.sql" || exit 1; echo >> "$1/batches"; done', 'sh', $folder, $standby->connstr('postgres') ],
	'>', "$folder/counts", '2>', "$folder/errors");

sub counted_on
{
	my ($state) = @_;
	$primary->wait_for_catchup($standby, 'replay');
	# the batch that is under way, and another one
	my $batches = -s "$folder/batches" // 0;
	ok(within(60, sub { (-s "$folder/batches" // 0) >= $batches + 2 }), "counted with the table $state");
}

counted_on('in the log');
retire($primary, $table);
counted_on('retired');
shrink_until($primary, "pg_relation_size($retired) / 8192 between 1 and 2000");
counted_on('without some rows');
shrink_until($primary, "pg_relation_size($retired) = 0 and pg_total_relation_size($retired) > 0");
counted_on('without any');
append_to_file("$folder/stop", '');
$counting->finish;
is(slurp_file("$folder/errors"), '', 'no query failed on the standby');
my %seen = map { $_ => 1 } split /\n/, slurp_file("$folder/counts");
is(scalar keys %seen, 2, 'all or none of the old events were counted') or diag(join "\n", sort keys %seen);

my $left = sql($primary, "select pg_total_relation_size($retired)");
cmp_ok($left, '>', 0, 'the primary has not finished');
is(sql($standby, "select pg_total_relation_size($retired)"), $left, 'nor has the standby');
$primary->stop('immediate');
$standby->promote;
comes_true($standby, 60, q{select count(*) = 0 from pg_class where relname ~ '^retired_'}, 'promoted, it finishes');
is(sql($standby, 'select count(*) from outbox.event'), '50', 'and has the new events');
$standby->stop;
unlike(slurp_file($standby->logfile), qr/could not (open|read)|PANIC|TRAP|invalid page/, 'no error of ours is in the log');
done_testing();
