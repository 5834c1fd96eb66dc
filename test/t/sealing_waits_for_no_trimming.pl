# While workers are busy, the router puts off trimming. Segments are sealed all the same, day after day.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use OutboxRetention;
use Test::More;
use Time::HiRes qw(time);

my $node = new_engine('main', "outbox.poll_interval = '100ms'\noutbox.workers = 1\n");

sql($node, q{
	create function slow(e outbox.event) returns void language plpgsql as 'begin perform pg_sleep(0.02); end';
	select outbox.subscribe('main', '{#}', 'public.slow', lanes => 1);
	select count(outbox.publish('t.slow')) from generate_series(1, 5000);
});
comes_true($node, 20, q{select count(*) > 30 from outbox.segment}, 'there are segments');
comes_true($node, 20, q{select count(*) > 0 from outbox.receipt_log}, 'the worker is at work');

# rounds of the router begin every ten seconds, and wait a minute for a lull
my ($start, $days) = (time, 0);
while (time - $start < 15)
{
	pass_days($node, 1);
	$days++;
	comes_true($node, 15, q{select bool_and(sealed) from outbox.segment where name < to_char(outbox.clock() at time zone 'utc' - interval '1 day', 'YYYYMMDD')}, "day $days is sealed") or last
		if $days > 2;
}
cmp_ok(sql($node, q{select backlog from outbox.subscription_status where subscription = 'main'}), '>', 0, 'all the time there was work');
$node->stop;
done_testing();
