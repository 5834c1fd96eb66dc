# What routing, dispatch and claims append does not grow for ever: behind the lanes' cursors it goes, a bounded number of rows in
# each transaction, and what is still needed stays. A run of outbox.maintain() that is ended in the middle has not lost
# what it has done.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.poll_interval = '50ms'\noutbox.workers = 1\n");

# a row for each table: how many rows it has
sub counts
{
	return sql($node, q{select string_agg(t || ' ' || n, ', ' order by t) from (values
		('lane_entry', (select count(*) from outbox.lane_entry)), ('lane_cursor', (select count(*) from outbox.lane_cursor)),
		('lane_lease', (select count(*) from outbox.lane_lease)), ('lease', (select count(*) from outbox.lease)),
		('lease_progress', (select count(*) from outbox.lease_progress)), ('parked', (select count(*) from outbox.parked)),
		('tick', (select count(*) from outbox.tick where tick < (select max(tick) from outbox.tick) - 100))) c (t, n)});
}

make_effects($node, 'effect', q{if e.payload ? 'fails' and not exists (select from healed) then raise exception using errcode = '22000'; end if;});
sql($node, q{
	create table healed ();
	select outbox.subscribe('main', '{t.#}', 'public.effect_handler', lanes => 2);
	select outbox.subscribe('by hand', '{h.#}', lanes => 2);
	select count(outbox.publish('t.x', jsonb_build_object('n', n), event_key => 'k' || n % 100)) from generate_series(1, 3000) n;
	select outbox.publish('t.x', '{"fails": 1}', event_key => 'bad');
	select count(outbox.publish('t.x', '{}', event_key => 'bad')) from generate_series(1, 3000) n;
	select count(outbox.publish('h.x', '{}', event_key => 'k' || n % 10)) from generate_series(1, 200) n;
	create procedure work() language plpgsql as $p$
	declare
		t uuid;
		id uuid;
		turn integer;
	begin
		for turn in 1 .. 1000 loop
			select c.lease_token into t from outbox.claim('by hand', 10) c limit 1;
			exit when t is null;
			commit;
			foreach id in array (select l.event_ids from outbox.lease l where l.token = t) loop
				perform outbox.ack_one(t, id);
			end loop;
			commit;
		end loop;
	end $p$;
});
comes_true($node, 30, q{select count(*) = 3000 and (select count(*) from outbox.parked) = 3000 from effect}, 'an event in review, and what waits behind it');
comes_true($node, 30, q{select backlog = 200 from outbox.metrics where subscription = 'by hand'}, 'and for workers of other kinds');
sql($node, 'call work()');
is(sql($node, q{select count(*) >= 20 and bool_and(events <= 10) from outbox.lease}), 't', 'which took them in many leases');
is(sql($node, q{select sum(cardinality(settled)) from outbox.batch where lease_id is not null having count(*) = 200}), '200', 'and settled them one by one');
ok(defined within(120, sub { sql($node, "select outbox.publish('nobody.x');\n" x 50); sql($node, 'select max(tick) > 150 from outbox.tick') eq 't' }), 'many ticks');
is(sql($node, q{select count(*) from outbox.parked}), '3000', 'what is parked is needed, and there');

# one lease is open for long, and an event waits in a lane
sql($node, q{select outbox.publish('h.x', '{"n": 1}', event_key => 'k1')});
sql($node, q{alter table outbox.lease alter column lease_id restart with 100000});
comes_true($node, 20, q{select count(*) > 0 from outbox.claim('by hand', 1, '1 day')}, 'a lease that lasts');
sql($node, q{select outbox.publish('h.x', '{"n": 2}', event_key => 'k1')});
sql($node, q{insert into healed default values; select outbox.retry('main', event_id) from outbox.review_required});
comes_true($node, 30, q{select count(*) = 6001 from effect}, 'all is delivered');
comes_true($node, 30, q{select count(*) = 0 from outbox.gate}, 'no key is blocked');
set_offset($node, 2 * 3600);
comes_true($node, 60, q{select (select count(*) from outbox.lane_entry) = 1 and (select count(*) from outbox.lane_lease) <= 2 and (select count(*) from outbox.lane_cursor) <= 4
	and (select count(*) from outbox.lease) = 1 and (select count(*) from outbox.lease_progress) = 0 and (select count(*) from outbox.parked) = 0 and (select count(*) from outbox.tick) <= 110}, 'the router trims it')
	or diag(counts());
is(sql($node, q{select backlog || ' ' || in_progress from outbox.metrics where subscription = 'by hand'}), '1 1', 'what is needed is there');

# by hand: as much as many days without upkeep would leave
$node->append_conf('postgresql.conf', "outbox.dispatch = off\n");
$node->reload;
comes_true($node, 20, q{select count(*) = 0 from pg_stat_activity where backend_type ~ 'outbox (router|worker|archiver)'}, 'dispatch is off');
my $needed = counts();
sql($node, q{
	set session_replication_role = replica;
	create temp table ends as select subscription_id, lane, max(position) as position from outbox.lane_cursor group by 1, 2;
	-- the lanes have come far
	update outbox.lane l set base = l.base + 100000;
	update outbox.lane_entry set position = position + 100000;
	update outbox.lane_cursor set position = position + 100000;
	insert into outbox.lane_entry select e.subscription_id, e.lane, p, gen_random_uuid(), '(0,1)' from ends e cross join generate_series(1, 50000) p;
	insert into outbox.lane_cursor select e.subscription_id, e.lane, p from ends e cross join generate_series(1, 3000) p;
	insert into outbox.lane_lease select distinct l.subscription_id, l.lane, n + 1000 from outbox.lane_lease l cross join generate_series(1, 3000) n;
	insert into outbox.lease (lease_id, token, subscription_id, incarnation, claim_xid, claimed_at, expires_at, events, event_ids, lanes, positions)
		overriding system value select n + 1000, gen_random_uuid(), l.subscription_id, l.incarnation, l.claim_xid, l.claimed_at - interval '1 day', l.claimed_at - interval '1 day', 1, l.event_ids, l.lanes, l.positions
		from outbox.lease l cross join generate_series(1, 3000) n;
	insert into outbox.lease_progress select n + 1000, 1, true, '{0}' from generate_series(1, 3000) n;
	insert into outbox.parked select g + 1000, p, gen_random_uuid() from generate_series(1, 300) g cross join generate_series(1, 10) p;
	insert into outbox.parked select 2000, p, gen_random_uuid() from generate_series(1, 5000) p;
	insert into outbox.tick select incarnation, -n, chunk, seen, target, through, routed, created_at from (select * from outbox.tick order by tick desc limit 1) t cross join generate_series(1, 3000) n;
});
my $full = sql($node, 'select count(*) from outbox.lane_entry');
cmp_ok($full, '>', 100_000, 'a large backlog of trimming');
sql($node, q{
	create table trimmed (xid xid8, entries bigint);
	create function count_trimmed() returns trigger language plpgsql as $f$
	begin
		insert into public.trimmed select pg_current_xact_id(), count(*) from gone;
		return null;
	end $f$;
	create trigger count_trimmed after delete on outbox.lane_entry referencing old table as gone for each statement execute function count_trimmed();
});
my $run = $node->background_psql('postgres', on_error_stop => 0);
my $pid = $run->query_safe('select pg_backend_pid()');
$run->query_until(qr/begun/, "\\echo begun\ncall outbox.maintain();\n");
# by the server itself: until somebody else has asked, it might be done
sql($node, qq{do \$\$ begin
	for i in 1 .. 6000 loop
		exit when (select count(*) from outbox.lane_entry) < $full - 6000;
		commit;
		perform pg_sleep(0.005);
	end loop;
	perform pg_terminate_backend($pid);
end \$\$});
comes_true($node, 30, "select count(*) = 0 from pg_stat_activity where pid = $pid", 'is ended');
eval { $run->quit };
my $left = sql($node, 'select count(*) from outbox.lane_entry');
cmp_ok($left, '>', 1000, 'in the middle');
cmp_ok($left, '<', $full - 2000, "and its progress is there: $left of $full are left");
sql($node, 'call outbox.maintain()');
is(counts(), $needed, 'the next run goes on to the end, and no further');
is(sql($node, q{select max(n) <= 2000 from (select sum(entries) as n from trimmed group by xid) t}), 't', 'by a bounded number of rows in each transaction');
is(sql($node, q{select string_agg(task || ' ' || last_error, ', ') from outbox.maintenance_status where last_error is not null}), '', 'no task has failed');
is(sql($node, q{select removed_total > 100000 from outbox.maintenance_status where task = 'lanes'}), 't', 'which the view tells of');
$node->stop;
done_testing();
