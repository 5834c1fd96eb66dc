# A standby runs none of our processes; a promoted one does, within seconds.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxProcesses;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = new_server('primary');
$primary->safe_psql('postgres', 'create extension outbox');
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;
$primary->wait_for_catchup($standby, 'replay');

my $count = q{select count(*) from pg_stat_activity where backend_type like 'outbox %'};
$standby->safe_psql('postgres', 'select pg_sleep(1.5)');
is($standby->safe_psql('postgres', $count), '0', 'no process on a standby');
is($standby->safe_psql('postgres', q{select string_agg(process || state, ' ') from outbox.worker_status}),
	'routermissing workermissing workermissing', 'worker_status can be read there');

$standby->promote;
is_served($standby, 'postgres', 2, 5, 'served after the promotion');
log_is_quiet($standby, 0, qr{walreceiver}, 'nothing of it is worth a warning');

$standby->stop;
$primary->stop;
done_testing();
