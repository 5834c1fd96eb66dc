# What waits for a retry in a subscription that is paused, or gone, is not due: the workers sleep.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.workers = 1\noutbox.poll_interval = '20s'\nautovacuum = off\n");
sql($node, q{
	create function fails(e outbox.event) returns void language plpgsql as $f$ begin raise exception 'x'; end $f$;
	select outbox.subscribe(name, '{a}', 'public.fails', backoff_base => '2 s') from unnest('{paused,gone}'::text[]) name;
	select outbox.publish('a')});
comes_true($node, 20, q{select count(*) = 2 from outbox.delivery where status = 'RETRY'}, 'two wait for a retry');
sql($node, q{select outbox.pause('paused'); select outbox.unsubscribe('gone', force => true)});
comes_true($node, 20, q{select next_attempt_at < clock_timestamp() - interval '0.5 s' from outbox.delivery where status = 'RETRY'}, 'the time of the retry has come');

# how often the worker has gone to sleep
my ($pid) = pids($node, 'outbox worker');
my $sleeps = sub { (slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m)[0] };
my $before = $sleeps->();
sql($node, 'select pg_sleep(3)');
cmp_ok($sleeps->() - $before, '<', 40, 'the worker does not look again and again');

sql($node, q{select outbox.resume('paused')});
comes_true($node, 20, q{select attempts > 1 from outbox.delivery where subscription = 'paused'}, 'and it is tried again when its subscription goes on');
$node->stop;
done_testing();
