# Thousands of deliveries that have failed, and the keys behind them, move to other lanes in steps: routing goes on meanwhile, a
# person's open transaction puts the end of it off and stops nothing, and a key that is held anew on the way is held once.
# So does a lease that an external worker holds for long, which is found once and not looked for again in each round.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(within);
use Test::More;

my $n = 2100;
my $node = new_engine('main', "outbox.poll_interval = '100ms'\noutbox.workers = 0\nautovacuum = off\n");
sql($node, q{
	select outbox.subscribe('s', '{t.#}', lanes => 4, on_review => 'continue'), outbox.subscribe('other', '{o.#}');
	create procedure work(of text, fails text) language plpgsql as $$
	declare
		t uuid;
		id uuid;
	begin
		loop
			t := (select lease_token from outbox.claim(of, 500) limit 1);
			exit when t is null;
			commit;
			for id in select l.id from unnest((select event_ids from outbox.lease where token = t)) with ordinality l (id, n)
					join outbox.event_log e on e.event_id = l.id where e.event_type = fails order by l.n loop
				perform outbox.fail(t, id, 'bad', permanent => true);
			end loop;
			perform outbox.ack_all(t);
			commit;
		end loop;
	end $$});
sql($node, qq{select count(outbox.publish('t.bad', event_key => 'k' || n)) from generate_series(1, $n) n});
drain($node, 60, 'all is routed');
sql($node, q{select outbox.alter_subscription('s', on_review => 'block')});
sql($node, q{call work('s', 't.bad')});
is_sql($node, q{select count(*) from outbox.gate where held_by is not null}, $n, 'as many keys wait for a person');
sql($node, qq{select count(outbox.publish('t.good', event_key => 'k' || n)) from generate_series(1, $n) n});
drain($node, 60, 'what is behind them is routed');
sql($node, q{call work('s', '')}) for 1 .. 3;
is_sql($node, q{select count(*) from outbox.parked}, $n, 'and is parked');

# an external worker has one of the old lanes, for long; leases of others come and go
sql($node, q{select outbox.publish('t.good', event_key => 'x')});
comes_true($node, 20, q{select count(*) = 1 from outbox.claim('s', 1, '1 day')}, 'a lease of an old lane');
sql($node, q{select outbox.alter_subscription('s', lanes => 3)});
sql($node, qq{insert into outbox.lease (token, subscription_id, incarnation, claim_xid, claimed_at, expires_at, events, event_ids, lanes, positions)
	select gen_random_uuid(), (select subscription_id from outbox.subscription where subscription = 'other'), 1, '1', clock_timestamp(), clock_timestamp() + interval '1 hour', 1, array[gen_random_uuid()], '{0}', '{1}' from generate_series(1, 1000)});
# it looks for expired leases in each round, where there are none
sub rounds { return split /\|/, sql($node, q{select idx_scan, idx_tup_read from pg_stat_user_indexes where indexrelname = 'lease_expires'}) }
my ($rounds, $read, $begun);
sub go_round { ($begun, $read) = rounds(); return within(60, sub { ($rounds) = rounds(); return $rounds >= $begun + 15 }) }
ok(defined go_round() && defined go_round(), 'the router goes round');
cmp_ok((rounds())[1] - $read, '<', 1000, 'and does not read all leases each time');
is_sql($node, q{select count(distinct base) from outbox.lane where subscription_id = (select subscription_id from outbox.subscription where subscription = 's')}, '2', 'the old lanes stay');

# a person has one of them open, and never mind the router
my $person = $node->background_psql('postgres');
$person->query_safe(q{begin; select outbox.retry('s', (select max(event_id::text)::uuid from outbox.review_required))});
sql($node, q{select outbox.ack_all(token) from outbox.lease where expires_at > clock_timestamp() + interval '2 hours'});
comes_true($node, 30, q{select count(*) = 1 from outbox.delivery_exception where lane < 4}, 'all but that one move');
is_sql($node, q{select count(distinct xmin::text) >= 3 and max(n) <= 1000 from (select xmin, count(*) over (partition by xmin::text) as n from outbox.delivery_exception where lane >= 4) x}, 't', '  a bounded number at a time');
is_sql($node, q{select count(*) from outbox.gate where lane >= 4}, '0', '  the keys stay until the last one has moved');
sql($node, q{select outbox.publish('o.x')});
comes_true($node, 30, q{select backlog = 1 from outbox.metrics where subscription = 'other'}, 'routing goes on');
# the lanes that are worked are the old ones
is_sql($node, q{select count(*) from outbox.claim('s', 10)}, '0', 'nothing is handed out of order');
sql($node, q{select outbox.alter_subscription('s', on_review => 'continue')});
sql($node, q{select outbox.alter_subscription('s', on_review => 'block')});
$person->query_safe('commit');
$person->quit;
comes_true($node, 30, q{select count(distinct base) = 1 and min(lane) = 4 from outbox.lane where subscription_id = (select subscription_id from outbox.subscription where subscription = 's')}, 'the old lanes are gone');
is_sql($node, q{select count(*) || ' ' || min(lane) || ' ' || count(distinct event_key) from outbox.gate}, "$n 4 $n", 'each key has its gate in the new ones');
is_sql($node, q{select count(*) || ' ' || min(lane) from outbox.delivery_exception}, "$n 4", 'and its delivery');
is_sql($node, q{select count(*) from outbox.gate g join outbox.delivery_exception x on x.event_id = g.held_by and x.lane = g.lane}, $n, '  which holds it');

# and all of it goes on, in order
sql($node, q{select outbox.retry_all('s')});
comes_true($node, 60, q{select (select count(*) from outbox.review_required) = 0 and count(*) = 0 from outbox.delivery_exception where next_attempt_at > outbox.clock()}, 'all are due');
ok(defined within(120, sub { sql($node, q{call work('s', '')}); return sql($node, q{select count(*) from outbox.delivery where subscription = 's' and status <> 'COMPLETED'}) eq '0' }), 'all is delivered') or diag(sql($node, q{select status, count(*) from outbox.delivery where subscription = 's' group by 1}));
is_sql($node, q{select count(*) from (select e.event_key, e.event_type, b.completed_at, e.event_id from outbox.receipt_log r join outbox.batch b using (batch_id) join outbox.event_log e on e.event_id = r.event_id) a
	join (select e.event_key, b.completed_at, e.event_id from outbox.receipt_log r join outbox.batch b using (batch_id) join outbox.event_log e on e.event_id = r.event_id) b using (event_key) where a.event_id < b.event_id and a.completed_at > b.completed_at},
	'0', '  in order');

$node->stop;
done_testing();
