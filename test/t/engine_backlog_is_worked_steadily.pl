# A backlog that has come together while nothing was dispatched, a giant transaction in it, is
# routed and worked in order, soon from the start, within small memory and few locks.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(within log_position log_is_quiet);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $scale = $ENV{OUTBOX_TEST_FULL} ? 10 : 1;
my $node = new_engine('main', q{
outbox.dispatch = off
work_mem = '64kB'
max_locks_per_transaction = 64
max_connections = 20
max_wal_size = 8GB
log_min_messages = warning
});

sql($node, q{
	create table effect (n bigint generated always as identity, event_id uuid, k text, counted integer, at timestamptz default clock_timestamp());
	create function each(e outbox.event) returns void language sql as
	'insert into effect (event_id, k, counted) values (e.event_id, e.event_key, (e.payload ->> ''n'')::int)';
	create function nothing(e outbox.event[]) returns void language plpgsql as 'begin end';
	select outbox.subscribe('each', '{a}', 'public.each');
	select outbox.subscribe('none', '{a}', 'public.nothing')});

# three transactions; the keys come again in each
my $published = 0;
for my $n (50_000, 200_000, 50_000)
{
	my $events = $n * $scale;
	my $keys = 20_000 * $scale;
	sql($node, qq{select count(outbox.publish('a', jsonb_build_object('n', $published + n), event_key => (n % $keys)::text)) from generate_series(1, $events) n});
	$published += $events;
}
my $from = log_position($node);
my $start = sql($node, 'select clock_timestamp()');
$node->append_conf('postgresql.conf', 'outbox.dispatch = on');
$node->reload;

comes_true($node, 30, 'select count(*) > 0 from effect', 'the first result comes soon');
my %peak = (worker => 0, router => 0);
ok( defined within(
		300 * $scale,
		sub {
			for my $kind (keys %peak)
			{
				for my $pid (pids($node, "outbox $kind"))
				{
					my $status = -e "/proc/$pid/status" ? slurp_file("/proc/$pid/status") : '';
					$peak{$kind} = $1 if $status =~ /^RssAnon:\s+(\d+) kB/m && $1 > $peak{$kind};
				}
			}
			select(undef, undef, undef, 0.2);
			return sql($node, qq{select count(*) = $published from effect}) eq 't';
		}),
	'all of it is done');
drain($node, 120 * $scale, 'and settled');
is_sql($node, q{select max(routed) <= 2 * 5000 from outbox.tick}, 't', 'it was routed in chunks, each a transaction of its own');
is_sql($node, 'select count(*), count(distinct event_id) from effect', "$published|$published", 'each once');
is_sql($node, q{select count(*) from outbox.receipt_log}, 2 * $published, 'and a receipt for each subscription');
is_sql($node, q{select count(*) from (select counted, lag(counted) over (partition by k order by n) as before from effect) o where counted < before}, '0', 'in the order of the keys');
my $first = sql($node, qq{select round(extract(epoch from min(at) - '$start') * 1000) from effect});
my $all = sql($node, qq{select round(extract(epoch from max(at) - '$start') * 1000) from effect});
my $rate = sql($node, qq{select round(count(*) / extract(epoch from max(at) - min(at))) from effect});
diag("first result after $first ms, then $rate/s; at most $peak{router} kB for the router, $peak{worker} kB for a worker");
cmp_ok($first, '<', $all / 4, "the first result came after $first ms, the last one after $all");
cmp_ok($peak{$_}, '<', 48 * 1024, "the $_ needs less than 48 MB ($peak{$_} kB)") for sort keys %peak;
is(reconcile($node, 'each', 'effect'), '', 'receipts are effects');
log_is_quiet($node, $from, undef, 'without a word in the log');
$node->stop;
done_testing();
