# Whatever delivers an event a second time, it has one effect: entries read again, a lane taken over,
# two workers with the same event.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(is_served is_unserved);
use Test::More;

my $node = new_engine('main', "outbox.workers = 3\noutbox.poll_interval = '200ms'\nlog_min_messages = warning\n");

sub set_dispatch
{
	my ($on) = @_;
	$node->append_conf('postgresql.conf', "outbox.dispatch = $on\n");
	$node->reload;
	return $on eq 'on' ? is_served($node, 'postgres', 3, 30, 'dispatch is on') : is_unserved($node, 'postgres', 30, 'dispatch is off');
}

# --- entries that were worked are read again

keep_lanes($node);
make_effects($node, 'single');
make_effects($node, 'together');
sql($node, q{
	create function several(e outbox.event[]) returns void language sql as
	'insert into together (event_id, event_key, payload) select event_id, event_key, payload from unnest(e)';
	select outbox.subscribe('single', '{a.#}', 'public.single_handler', lanes => 4);
	select outbox.subscribe('several', '{a.#}', 'public.several', lanes => 4);
	select count(outbox.publish('a.b', jsonb_build_object('n', n), event_key => (n % 17)::text)) from generate_series(1, 700) n;
});
drain($node, 60, 'delivered');
set_dispatch('off');
# some lanes from the start, some from the middle; the newest events are not delivered yet
sql($node, q{
	set session_replication_role = replica;
	delete from outbox.lane_cursor where lane < 2;
	delete from outbox.lane_cursor c where lane >= 2 and position > (select min(position) from outbox.lane_cursor o
		where o.subscription_id = c.subscription_id and o.lane = c.lane);
	reset session_replication_role;
	select count(outbox.publish('a.b', jsonb_build_object('n', n), event_key => (n % 17)::text)) from generate_series(701, 800) n;
});
cmp_ok(sql($node, 'select sum(backlog) from outbox.subscription_status'), '>', 100, 'there is something to read again');
set_dispatch('on');
drain($node, 60, 'read again');
is_sql($node, q{select count(*), count(distinct event_id) from single}, '800|800', 'one effect each, of the single handler');
is_sql($node, q{select count(*), count(distinct event_id) from together}, '800|800', 'one effect each, of the batch handler');
is(reconcile($node, 'single', 'single') . reconcile($node, 'several', 'together'), '', 'receipts are effects');
is_sql($node, q{select count(*) from outbox.attempt}, '0', 'and it counts as no failure');
is_sql($node, q{select sum(backlog + retry + blocked + review_required) from outbox.subscription_status}, '0', 'nothing is left');
is_sql($node, q{select count(*) from outbox.batch b where b.events > 0 and not exists (select from outbox.receipt_log r where r.batch_id = b.batch_id)},
	'0', 'no batch is on record without receipts');

# --- the same where a lane must be worked one by one

set_dispatch('off');
sql($node, q{
	set session_replication_role = replica;
	delete from outbox.lane_cursor c where position > (select min(position) from outbox.lane_cursor o
		where o.subscription_id = c.subscription_id and o.lane = c.lane);
	reset session_replication_role;
	update outbox.lane set careful_through = 1000000 where lane >= 2;
	select count(outbox.publish('a.b', jsonb_build_object('n', n), event_key => (n % 17)::text)) from generate_series(801, 850) n;
});
set_dispatch('on');
drain($node, 60, 'read again with care, and at once');
is_sql($node, q{select count(*), count(distinct event_id) from single}, '850|850', 'one effect each');
is(reconcile($node, 'single', 'single') . reconcile($node, 'several', 'together'), '', 'receipts are effects');
is_sql($node, q{select count(*) from outbox.attempt}, '0', 'and none is counted as failed');
sql($node, q{update outbox.lane set careful_through = null});

# --- a takeover in the middle of a batch

make_effects($node, 'held', 'perform pg_advisory_xact_lock(1);');
sql($node, q{select outbox.subscribe('held', '{b.#}', 'public.held_handler', lanes => 1, handler_timeout => '5 min')});
my $holder = $node->background_psql('postgres');
my $lane = q{(select subscription_id from outbox.subscription where subscription = 'held')};
for my $round (1 .. 3)
{
	$holder->query_safe('select pg_advisory_lock(1)');
	sql($node, q{select outbox.publish('b.c', event_key => 'k')});
	comes_true($node, 30, q{select count(*) = 1 from pg_locks where locktype = 'advisory' and not granted}, "round $round: a batch is at work");
	is_sql($node, "select count(*) from (select from outbox.lane where subscription_id = $lane for update skip locked) l",
		'0', 'a takeover passes over its lane');
	my ($rc, $out, $err) = $node->psql('postgres', "set lock_timeout = '300ms'; update outbox.lane set token = gen_random_uuid() where subscription_id = $lane");
	like($err, qr/lock timeout/, 'its token cannot be changed');
	# somebody waits for the row, gets it the moment the batch commits, and is the holder from then on
	my $thief = $node->background_psql('postgres');
	$thief->query_until(qr/waits/, "\\echo waits\nupdate outbox.lane set token = '00000000-0000-0000-0000-00000000000$round', holder = $round where subscription_id = $lane;\n");
	comes_true($node, 30, q{select count(*) = 1 from pg_locks where locktype = 'transactionid' and not granted}, 'a thief waits');
	sql($node, q{select outbox.publish('b.c', event_key => 'k') from generate_series(1, 3)});
	$holder->query_safe('select pg_advisory_unlock(1)');
	$thief->quit;
	sql($node, q{select outbox.publish('b.c', event_key => 'k')});
	drain($node, 60, 'all is delivered by whoever holds it');
	is_sql($node, "select token <> '00000000-0000-0000-0000-00000000000$round' from outbox.lane where subscription_id = $lane and token is not null union all select true limit 1",
		't', 'under a third token');
	is(reconcile($node, 'held', 'held'), '', 'receipts are effects');
	is_sql($node, 'select count(*) from held', 5 * $round, 'one effect each');
}

# --- a lease that is lost between two batches: its old token finds nothing
sql($node, "update outbox.lane set token = gen_random_uuid(), holder = 1 where subscription_id = $lane");
sql($node, q{select outbox.publish('b.c', event_key => 'k') from generate_series(1, 5)});
drain($node, 60, 'the lane goes on after its lease was lost');
is_sql($node, 'select count(*) from held', '20', 'one effect each');
is_sql($node, q{select count(*) from outbox.attempt}, '0', 'no attempt was used');

# --- two workers race for one event

sql($node, q{create sequence calls; create sequence give_up});
make_effects($node, 'raced', q{perform nextval('calls'); perform pg_advisory_xact_lock(2);
	if e.payload ? 'fails' and nextval('give_up') = 1 then raise exception 'once'; end if;});
sql($node, q{select outbox.subscribe('raced', '{c.#}', 'public.raced_handler', lanes => 2, backoff_base => '100 ms', handler_timeout => '5 min')});

# The event stands in both lanes; each worker has one.
sub race
{
	my ($payload) = @_;
	my $calls = sql($node, 'select last_value from calls');
	$holder->query_safe('select pg_advisory_lock(2)');
	sql($node, "select outbox.publish('c.d', '$payload')");
	comes_true($node, 30, q{select count(*) = 1 from pg_locks where locktype = 'advisory' and not granted}, 'one worker has the event');
	sql($node, q{insert into outbox.lane_entry
		select (jsonb_populate_record(e, jsonb_build_object('lane', 1 - lane, 'position', 1000000 + position))).*
		from outbox.lane_entry e join outbox.subscription s using (subscription_id)
		where s.subscription = 'raced' and e.event_id = (select event_id from outbox.event order by event_id desc limit 1)});
	comes_true($node, 30, q{select count(*) = 1 from pg_locks l join pg_stat_activity a using (pid)
		where l.locktype = 'transactionid' and not l.granted and a.backend_type = 'outbox worker'}, 'another one meets it at the receipt');
	$holder->query_safe('select pg_advisory_unlock(2)');
	drain($node, 60, 'the race is over');
	is(reconcile($node, 'raced', 'raced'), '', 'receipts are effects');
}

race('{"n": 1}');
is_sql($node, 'select count(*) from raced', '1', 'one effect');
is_sql($node, 'select last_value from calls', '1', 'one call');
is_sql($node, q{select count(*) from outbox.attempt}, '0', 'losing the race is no failure');
race('{"fails": 1}');
is_sql($node, 'select count(*) from raced', '2', 'one effect when the first one fails');
is_sql($node, q{select count(*) from outbox.delivery_exception}, '0', 'and nothing is left to be tried again');
$holder->quit;
$node->stop;
done_testing();
