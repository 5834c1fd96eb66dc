# A batch whose events lie in several segments, and that ends before its last event, has receipts for
# those that ran and no others; and an event that stands in a batch twice runs once.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(is_served is_unserved);
use Test::More;

my $node = new_engine('main', "outbox.poll_interval = '200ms'\noutbox.workers = 1\noutbox.batch_time = '10ms'\noutbox.segment_interval = '1h'\nlog_min_messages = error\n");

sub set_dispatch
{
	my ($on) = @_;
	$node->append_conf('postgresql.conf', "outbox.dispatch = $on\n");
	$node->reload;
	return $on eq 'on' ? is_served($node, 'postgres', 1, 30, 'dispatch is on') : is_unserved($node, 'postgres', 30, 'dispatch is off');
}

make_effects($node, 'effect', q{if (e.payload ->> 'n')::int % 10 = 3 then perform pg_sleep(0.011); end if;});
make_effects($node, 'together');
sql($node, q{
	create function several(e outbox.event[]) returns void language sql as
	'insert into together (event_id, event_key, payload) select event_id, event_key, payload from unnest(e)';
	select outbox.subscribe('single', '{a}', 'public.effect_handler', lanes => 8);
	select outbox.subscribe('several', '{a}', 'public.several', lanes => 8)});
keep_lanes($node);
set_dispatch('off');
# lane by lane a batch goes from the old segment to the new one, and back
for my $round (0 .. 2)
{
	set_offset($node, 7200 * $round);
	sql($node, "select count(outbox.publish('a', jsonb_build_object('n', n), event_key => (n % 40)::text)) from generate_series(1, 400) n");
}
cmp_ok(sql($node, 'select count(distinct tableoid) from outbox.event_log'), '>=', 3, 'the events lie in several segments');
set_dispatch('on');
drain($node, 40, 'delivered');
is_sql($node, q{select count(*) from (select row(subscription_id, lane) is distinct from lag(row(subscription_id, lane)) over (order by ctid) as begins from outbox.lane_entry) e where begins},
	'16', 'the entries of a lane, routed together, lie side by side');
is_sql($node, 'select count(*), count(distinct event_id) from effect', '1200|1200', 'one effect each');
is(reconcile($node, 'single', 'effect') . reconcile($node, 'several', 'together'), '', 'receipts are effects');
is_sql($node, q{select sum(events) = (select count(*) from outbox.receipt_log) from outbox.batch}, 't', 'batches know how many they were');
is_sql($node, q{select count(*) from outbox.delivery where status <> 'COMPLETED' or processing_ms is null}, '0', 'and how long each took');

# the same event twice in one lane, as nobody should put it there
set_dispatch('off');
sql($node, q{select count(outbox.publish('a', jsonb_build_object('n', n), event_key => n::text)) from generate_series(1, 50) n});
set_dispatch('on');
drain($node, 60, 'delivered');
set_dispatch('off');
sql($node, q{
	delete from outbox.receipt_log r using outbox.event_log e where e.event_id = r.event_id and e.event_id in (select event_id from outbox.event order by event_id desc limit 20);
	delete from effect where event_id in (select event_id from outbox.event order by event_id desc limit 20);
	delete from together where event_id in (select event_id from outbox.event order by event_id desc limit 20);
	do $$
	declare
		e outbox.lane_entry;
	begin
		for e in select distinct on (subscription_id, lane) x.* from outbox.lane_entry x order by subscription_id, lane, position desc loop
			for n in 1 .. 3 loop
				e.position := e.position + 1;
				insert into outbox.lane_entry select e.*;
			end loop;
		end loop;
	end $$});
cmp_ok(sql($node, 'select sum(backlog) from outbox.subscription_status'), '>', 20, 'lanes hold an event three times');
set_dispatch('on');
drain($node, 60, 'a lane that holds an event three times is worked');
is_sql($node, q{select max(n) from (select count(*) as n from effect group by event_id union all select count(*) from together group by event_id) o}, '1', 'one effect each');
is(reconcile($node, 'single', 'effect') . reconcile($node, 'several', 'together'), '', 'receipts are effects');
$node->stop;
done_testing();
