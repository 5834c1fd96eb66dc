# Hundreds of subscriptions made at once join the ticks at a cost that grows with their number, not with its square;
# those that were there get their events meanwhile.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use Test::More;

my $n = 300;
my $node = new_engine('main', "outbox.workers = 1\noutbox.poll_interval = '100ms'\n");
sql($node, q{
	-- how many subscriptions have not begun to catch up when it is delivered
	create table effect (event_id uuid, waiting bigint);
	create function note(e outbox.event) returns void language sql as $$
		insert into effect select e.event_id, count(*) from outbox.subscription_state where not joined and catch_up_from is null and catch_up_to is null $$;
	select outbox.subscribe('there', '{there}', 'public.note');
	select count(outbox.publish('old')) from generate_series(1, 2000)});
drain($node, 30, 'one that was there');

my $looks = sub { return sql($node, q{select sum(idx_scan) from pg_stat_all_indexes where schemaname = 'outbox' and indexrelname in ('subscription_state_pkey', 'lane_pkey')}) };
my $before = $looks->();
sql($node, "select count(outbox.subscribe('s ' || n, '{new}', lanes => 2)) from generate_series(1, $n) n");
comes_true($node, 60, q{select bool_and(joined) from outbox.subscription_state}, 'they have joined');
sql($node, q{select outbox.publish('new')});
comes_true($node, 60, qq{select count(*) = $n from outbox.lane_entry}, 'and get what is published');
# what the router has counted is seen once it rests
comes_true($node, 20, qq{select sum(idx_scan) > $before + $n from pg_stat_all_indexes where schemaname = 'outbox' and indexrelname in ('subscription_state_pkey', 'lane_pkey')}, 'it was counted');
cmp_ok($looks->() - $before, '<', 40 * $n, 'for a few looks each');

# with all of the log to go through, for each
sql($node, "select count(outbox.subscribe('h ' || n, '{old}', lanes => 1, start_at => '-infinity')) from generate_series(1, $n) n");
comes_true($node, 60, q{select count(*) > 0 from outbox.subscription_state where catch_up_from is not null or catch_up_to is not null}, 'others go through the log');
sql($node, q{select outbox.publish('there')});
comes_true($node, 60, q{select count(*) = 1 from effect}, 'an event of one that was there is delivered');
is_sql($node, q{select waiting > 0 from effect}, 't', 'before each of them has had its turn');
comes_true($node, 120, qq{select count(*) = $n * 2000 from outbox.lane_entry e join outbox.subscription s using (subscription_id) where s.subscription like 'h %'}, 'these get all that there was');
comes_true($node, 20, q{select bool_and(joined) from outbox.subscription_state}, 'and join');
sql($node, q{select outbox.publish('old')});
comes_true($node, 60, qq{select count(*) = $n * 2001 from outbox.lane_entry e join outbox.subscription s using (subscription_id) where s.subscription like 'h %'}, 'and what comes afterwards, once');
$node->stop;
done_testing();
