# A worker that has handled very many events, or failed very many times, has not grown since it
# was warm; nor has the router.
#
# OUTBOX_TEST_FULL=1 runs 1 M events and 100 k failures instead of a part of that.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use PostgreSQL::Test::Utils;
use Test::More;

my ($events, $failures) = $ENV{OUTBOX_TEST_FULL} ? (1_000_000, 100_000) : (240_000, 10_000);
my $rounds = 6;
my $limit = 5 * 1024;    # kB

my $node = new_engine('main', q{
outbox.workers = 1
autovacuum = off
max_wal_size = 8GB
log_min_messages = fatal
});

# what is the process's own, in kB: its shared pages come with use
sub own_memory
{
	my ($kind) = @_;
	my ($pid) = pids($node, "outbox $kind");
	my ($kb) = slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB/m;
	return ($pid, $kb);
}

plan skip_all => 'memory is read from /proc' unless -e '/proc/self/status' && slurp_file('/proc/self/status') =~ /^RssAnon:/m;

sql($node, q{
	create table sum (n bigint not null default 0);
	insert into sum default values;
	create function each(e outbox.event) returns void language plpgsql as 'begin perform e.event_id; end';
	create function several(e outbox.event[]) returns void language plpgsql as 'begin perform cardinality(e); end';
	create function failing(e outbox.event) returns void language plpgsql as 'begin raise exception ''%'', e.event_id; end';
	select outbox.subscribe('each', '{fine.#}', 'public.each');
	select outbox.subscribe('several', '{fine.#}', 'public.several');
	select outbox.subscribe('failing', '{bad}', 'public.failing', permanent_errors => '{P0001}');
	select outbox.subscribe('again', '{again}', 'public.failing', max_attempts => 2, backoff_base => '1 ms', backoff_factor => 1, backoff_max => '1 ms');
});

sub run_round
{
	my ($round, $type, $n) = @_;
	my $key = $type =~ /fine/ ? q{(n % 1000)::text} : 'null';
	sql($node, qq{select count(outbox.publish('$type', event_key => $key)) from generate_series(1, $n) n});
	sql($node, q{checkpoint});
	drain($node, 600, "$n of $type are settled");
}

sub stays_flat
{
	my ($what, $type, $n) = @_;
	my (%first, %last);
	for my $round (1 .. $rounds)
	{
		run_round($round, $type, int($n / $rounds));
		for my $kind (qw(worker router))
		{
			my ($pid, $kb) = own_memory($kind);
			diag("$what, round $round: $kind $kb kB") if $ENV{OUTBOX_TEST_FULL};
			$first{$kind} = [ $pid, $kb ] if $round == 2;
			$last{$kind} = [ $pid, $kb ];
		}
	}
	for my $kind (qw(worker router))
	{
		is($last{$kind}[0], $first{$kind}[0], "$what: it is the same $kind");
		cmp_ok($last{$kind}[1] - $first{$kind}[1], '<', $limit, "$what: the $kind has grown by less than $limit kB (from $first{$kind}[1])");
	}
}

stays_flat('events', 'fine.x', $events);
stays_flat('failures for good', 'bad', $failures * 0.9);
stays_flat('failures that are tried again', 'again', $failures * 0.05);
cmp_ok(sql($node, q{select count(*) from outbox.attempt}), '>=', $failures - 4 * $rounds, 'each failure is on record');
$node->stop;
done_testing();
