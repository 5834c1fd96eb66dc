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
$primary->safe_psql('postgres', q{select outbox.subscribe('s', '{s.#}', ordering => 'none'); select count(outbox.publish('s.x')) from generate_series(1, 4) n});
$primary->safe_psql('postgres', q{call outbox.drain('{s}')});
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

# claimed while there is the standby, and failed in part
my ($token, @events) = split /[|,]/, $primary->safe_psql('postgres', q{select lease_token, string_agg(event_id::text, ',') from outbox.claim('s', 4, '10 min') group by 1});
is($primary->safe_psql('postgres', "select outbox.ack_one('$token', '$events[0]'), outbox.fail('$token', '$events[1]')"), 't|RETRY', 'settled in part');
$primary->wait_for_catchup($standby, 'replay');
$standby->promote;
is_served($standby, 'postgres', 2, 20, 'served after the promotion');
log_is_quiet($standby, 0, qr{walreceiver}, 'nothing of it is worth a warning');
for my $turn ('first', 'second')
{
	my ($rc, $out, $err) = $standby->psql('postgres', "\\set VERBOSITY sqlstate\nselect outbox.ack_one('$token', '$events[1]')");
	like($err, qr/OB001/, "asked for the $turn time: what failed before the promotion is not this lease's any more");
}
is($standby->safe_psql('postgres', "select outbox.ack_all('$token')"), '2', 'the rest is');

$standby->stop;
$primary->stop;
done_testing();
