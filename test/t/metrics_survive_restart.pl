# What is counted is kept over a restart, as the server's own statistics are, and begins at nothing after a crash; gauges
# are read from the rows, and are right in both cases and on a standby.
use strict;
use warnings;
use OutboxEngine;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('metrics_survive', "wal_level = replica\nmax_wal_senders = 4\nhot_standby = on\nrestart_after_crash = on\n");
make_effects($node, 'effect', q{if e.payload ->> 'do' = 'fail' then raise 'no' using errcode = 'check_violation'; end if;});
sql($node, q{select outbox.subscribe('metrics', '{m.#}', handler => 'public.effect_handler')});
sql($node, q{select count(outbox.publish('m.x', jsonb_build_object('do', case when n % 10 = 0 then 'fail' end))) from generate_series(1, 100) n});
sql($node, q{select outbox.publish('nobody.x')});
drain($node, 60, 'all is settled');

my $totals = q{select completed_total, failed_total, review_total, review_required, publish_to_done_ms_p99 > 0 from outbox.metrics};
my $types = q{select event_type, events from outbox.unmatched_event_type};
my $codes = q{select error_code, failed_total from outbox.failure_metrics};
# by the workers, once it is committed
comes_true($node, 30, "select t::text = '(90,10,10,10,t)' from ($totals) t", 'what has happened is counted');

$node->restart;
is_sql($node, $totals, '90|10|10|10|t', 'after a restart the totals and the times are there');
is_sql($node, $types, 'nobody.x|1', 'so are the types that nobody wants');
is_sql($node, $codes, '23514|10', 'and the failures by code');
sql($node, q{select outbox.publish('m.x')});
drain($node, 60, 'one more is settled');
comes_true($node, 30, q{select completed_total = 91 from outbox.metrics}, 'counting goes on');

# a standby shows what the rows tell
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('metrics_standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
# every view of a monitor's, and each of its columns: to count the rows computes none of them
my @views = map { "outbox.$_" } qw(metrics server_metrics review_metrics failure_metrics unmatched_event_type snapshot_holder subscription_status worker_status maintenance_status
	review_required blocked_key delivery attempt operator_log event_type);
my @looks = ((map { "select * from $_" } @views), 'select outbox.status()', 'select outbox.report()');
sql($node, q{create role scraper; select outbox.grant_monitor('scraper'); call outbox.maintain()});
is_sql($node, q{select string_agg(oid::regclass::text, ' ' order by oid::regclass::text collate "C") from pg_class
	where relnamespace = 'outbox'::regnamespace and relkind = 'v' and has_table_privilege('scraper', oid, 'select')}, join(' ', sort @views), 'these are a monitor\'s views');
$node->wait_for_catchup($standby);
for my $look (@looks)
{
	for my $where ([ $node, 'read only' ], [ $node, 'isolation level serializable, read only, deferrable' ], [ $standby, 'isolation level repeatable read' ])
	{
		my ($rc, $out, $err) = $where->[0]->psql('postgres', "set role scraper; begin transaction $where->[1]; $look; commit", on_error_stop => 1);
		is($rc, 0, $where->[0]->name . ", $where->[1]: a monitor may $look") or diag($err);
		isnt($out, '', 'and sees rows') if $where->[0] == $node && $look !~ /snapshot_holder|blocked_key|operator_log|event_type$/;
	}
}
is_sql($standby, q{select count(*) > 10 from outbox.maintenance_status where last_success is not null}, 't', 'what upkeep did can be seen on a standby');
unlike($standby->safe_psql('postgres', 'select outbox.status()'), qr/Upkeep has not been done/, 'where nobody is asked to do it');
like($standby->safe_psql('postgres', 'select outbox.status()'), qr/^1\. This server is a standby: nothing runs here/m, 'and the page for a person says what it is');
is_sql($standby, q{select backlog, review_required, retry from outbox.metrics}, '0|10|0', 'a standby shows the gauges');
is_sql($standby, q{select held, router_running from outbox.server_metrics}, 'f|f', 'and that nothing runs there');
is_sql($standby, q{select count(*) from outbox.review_metrics}, '1', 'and what is in review');
$standby->stop;

my ($worker) = pids($node, 'outbox worker');
kill 'KILL', $worker;
comes_true($node, 60, q{select completed_total + failed_total = 0 and review_required = 10 from outbox.metrics}, 'after a crash the totals begin at nothing, the gauges do not');
is_sql($node, $types, '', 'no type is remembered after a crash');

# a subscription that goes takes its numbers along
sql($node, q{select outbox.publish('m.x')});
drain($node, 60, 'another one is settled');
sql($node, q{select outbox.unsubscribe('metrics', force => true)});
comes_true($node, 60, q{select not exists (select from outbox.counters() where subscription_id <> 0)}, 'a subscription that is gone is forgotten');

# many differences are folded into few
sql($node, q{insert into outbox.exception_count select (extract(epoch from clock_timestamp()) * 4096000)::bigint + n, 1, 'RETRY', '', 1 from generate_series(1, 5000) n});
comes_true($node, 60, q{select count(*) = 1 and sum(n) = 5000 from outbox.exception_count}, 'upkeep folds the differences');
$node->stop;
done_testing();
