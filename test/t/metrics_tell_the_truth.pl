# The numbers that are 0 while all is well, when it is not: each against what has been made to happen. Deliveries at work, leases
# that are taken over, a router that is behind, and who holds vacuum back.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.poll_interval = '100ms'\noutbox.workers = 1\nmax_prepared_transactions = 2\nwal_level = logical\nautovacuum = off\n");

sub metric
{
	my ($subscription, $what) = @_;
	return sql($node, "select $what from outbox.metrics where subscription = '$subscription'");
}

make_effects($node, 'effect', 'perform pg_advisory_xact_lock_shared(1);');
sql($node, q{
	select outbox.subscribe('main', '{t.#}', 'public.effect_handler', lanes => 1);
	select outbox.subscribe('by hand', '{h.#}', ordering => 'none', lanes => 1);
	create role scraper;
	select outbox.grant_monitor('scraper');
});
comes_true($node, 20, q{select router_running and workers_running = 1 from outbox.server_metrics}, 'all runs');

# at work
my $gate = $node->background_psql('postgres');
$gate->query_safe('select pg_advisory_lock(1)');
sql($node, q{select outbox.publish('t.x', '{}'); select count(outbox.publish('h.x', '{}')) from generate_series(1, 5)});
comes_true($node, 20, q{select in_progress = 1 from outbox.metrics where subscription = 'main'}, 'a handler has an event');
comes_true($node, 20, q{select count(*) = 1 from pg_stat_activity where backend_type = 'outbox worker' and wait_event = 'advisory'}, 'it waits');
comes_true($node, 20, q{select backlog = 5 and in_progress = 0 from outbox.metrics where subscription = 'by hand'}, 'five for another kind of worker');
my ($token) = split /\n/, sql($node, q{select lease_token from outbox.claim('by hand', 3, '1 minute')});
sql($node, q{select lease_token from outbox.claim('by hand', 1, '1 minute')});
is(metric('by hand', q{in_progress || ' ' || backlog}), '4 1', 'four are claimed');
is(sql($node, qq{select outbox.ack_one('$token', event_ids[1]) from outbox.lease where token = '$token'}), 't', 'one of them is done');
is(metric('by hand', q{in_progress || ' ' || backlog}), '3 1', 'three are at work');
is(sql($node, q{select string_agg(subscription || ' ' || in_progress, ', ' order by subscription) from outbox.subscription_status}), 'by hand 3, main 1', 'the other view agrees');

# leases that are not given back
is(sql($node, q{select sum(lease_recoveries_total) from outbox.metrics}), '0', 'no lease is lost so far');
$node->stop('immediate');
eval { $gate->quit };
$node->start;
comes_true($node, 30, q{select lease_recoveries_total = 1 from outbox.metrics where subscription = 'main'}, 'a crash in the middle: the lane of a worker that is no more is taken over');
comes_true($node, 20, q{select count(*) = 1 from effect}, 'the event is delivered');
comes_true($node, 20, q{select in_progress = 0 from outbox.metrics where subscription = 'main'}, 'and no more at work');
set_offset($node, 120);
comes_true($node, 20, q{select lease_recoveries_total = 2 and in_progress = 0 from outbox.metrics where subscription = 'by hand'}, 'two leases expire: taken back, their events not at work');
is(metric('by hand', 'backlog + retry + blocked'), '4', 'four are to be done');
is(metric('main', 'lease_recoveries_total'), '1', 'the other subscription has lost no more');

# a router that has done nothing yet
$node->safe_psql('postgres', 'create database fresh');
$node->safe_psql('fresh', q{begin; create extension outbox; select outbox.publish('t.first', '{}'); commit});
like($node->safe_psql('fresh', q{begin; lock table outbox.tick; delete from outbox.tick; select router_lag_seconds > 0 from outbox.server_metrics}), qr/^t$/m, 'before the first tick it is behind by the oldest event that there is');
$node->safe_psql('postgres', 'drop database fresh with (force)');

# a router that does not go on
is(sql($node, q{select router_lag_seconds from outbox.server_metrics}), '0', 'the router has looked at all');
my ($router) = pids($node, 'outbox router');
# (it is stopped where it waits for something to do, and not with a lock in its hands that everybody needs)
$node->append_conf('postgresql.conf', "outbox.poll_interval = '30s'\n");
$node->reload;
comes_true($node, 20, q{select setting = '30000' from pg_settings where name = 'outbox.poll_interval'}, 'the router looks seldom');
sql($node, q{select outbox.publish('t.before', '{}')});
comes_true($node, 20, q{select count(*) = 2 from effect}, 'and has looked');
comes_true($node, 20, qq{select state = 'idle' and state_change < clock_timestamp() - interval '1 second' from pg_stat_activity where pid = $router}, 'and rests');
kill 'STOP', $router or die;
sql($node, q{select outbox.publish('t.lag', '{}')});
set_offset($node, 420);
comes_true($node, 20, q{select outbox.clock() > clock_timestamp() + interval '400 seconds'}, 'minutes pass');
sql($node, q{select outbox.publish('t.later', '{}')});
is(sql($node, q{select router_lag_seconds between 300 and 400 and abs(router_lag_seconds - extract(epoch from outbox.clock() - published_at)) < 1
	from outbox.server_metrics, outbox.event where event_type = 't.lag'}), 't', 'it is behind by the age of the oldest event that it has not looked at');
my $behind = q{select count(*) from outbox.status() as line where line ~ '^\d+\. The router is \d+ min behind: '};
is(sql($node, $behind), '1', 'which the status says');
kill 'CONT', $router or die;
comes_true($node, 20, q{select router_lag_seconds = 0 from outbox.server_metrics}, 'until it goes on');
is(sql($node, $behind), '0', 'and then no more');

# who holds vacuum back, the worst first
my $worst = q{select concat_ws(' ', kind, name, pid, xids_behind >= 30) from outbox.snapshot_holder limit 1};
my $burn = "select outbox.publish('nobody.x', '{}');\n" x 30;
my $agrees = q{select oldest_snapshot_xids = (select max(xids_behind) from outbox.snapshot_holder) from outbox.server_metrics};
my $report = $node->background_psql('postgres');
my $pid = $report->query_safe(q{set application_name = 'nightly report'; begin isolation level repeatable read; select pg_backend_pid()});
sql($node, $burn);
is(sql($node, $worst), "session nightly report $pid t", 'a report');
is(sql($node, $agrees), 't', 'it is the worst');
is(sql($node, qq{select oldest_snapshot_seconds > 0 and abs(oldest_snapshot_seconds - extract(epoch from clock_timestamp() - xact_start)) < 1 from outbox.server_metrics, pg_stat_activity where pid = $pid}), 't', 'since it began');
is(sql($node, qq{set role scraper; $worst}), "session nightly report $pid t", 'a monitor is told its name too');
$report->query_safe('commit');
$report->quit;
sql($node, q{begin; select outbox.publish('nobody.x', '{}'); prepare transaction 'forgotten'});
sql($node, $burn);
is(sql($node, $worst), 'prepared transaction forgotten t', 'a prepared transaction');
is(sql($node, $agrees), 't', 'is the worst');
is(sql($node, q{select abs(oldest_snapshot_seconds - extract(epoch from clock_timestamp() - prepared)) < 1 from outbox.server_metrics, pg_prepared_xacts}), 't', 'since it was prepared');
sql($node, q{rollback prepared 'forgotten'});
sql($node, q{select slot_name from pg_create_logical_replication_slot('audit', 'pgoutput')});
unlike(sql($node, 'select * from outbox.status()'), qr/audit/, 'a slot is no fault');
sql($node, q{create table burnt (); do $$ begin for n in 1 .. 100001 loop begin insert into burnt default values; exception when division_by_zero then null; end; end loop; end $$});
sql($node, $burn);
like(sql($node, 'select * from outbox.status()'), qr/A replication slot \(audit\) keeps vacuum from removing dead rows\. When .*: select pg_drop_replication_slot\('audit'\);/, 'but one that nobody reads, the page for a person says');
is(sql($node, $worst), 'replication slot audit t', 'a replication slot');
sql($node, q{select pg_drop_replication_slot('audit')});
comes_true($node, 20, q{select coalesce(oldest_snapshot_xids, 0) < 30 and coalesce(oldest_snapshot_seconds, 0) < 5 from outbox.server_metrics}, 'nobody');
$node->stop;
done_testing();
