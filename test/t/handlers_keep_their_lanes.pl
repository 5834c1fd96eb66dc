# A lane belongs to the batch at work on it for as long as that takes, however short the subscription's lease_duration
# and whatever the handler rolls back: no other worker takes it over, and each event has one effect.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use PostgreSQL::Test::Utils;
use Test::More;

# (a call after a batch's first one has its time until others would look for a deadlock: one cut off on a slow machine is made again)
my $node = new_engine('main', "outbox.workers = 2\noutbox.poll_interval = '100ms'\ndeadlock_timeout = '60s'\n");
sql($node, q{
	create sequence calls;
	create table other (n integer);
	create table effect (n bigint generated always as identity, event_id uuid not null, event_key text, payload jsonb);
	create function handler(e outbox.event) returns void language plpgsql as $f$
	begin
		perform nextval('calls');
		insert into effect (event_id, event_key, payload) values (e.event_id, e.event_key, e.payload);
		if e.payload ? 'works on' then
			while not pg_try_advisory_xact_lock(1) loop
				perform pg_sleep(0.05);
			end loop;
		elsif e.payload ? 'rolls back' then
			-- what the block has locked and written is undone before the wait
			begin
				perform count(*) from (select from outbox.lane for key share) l;
				insert into other values (1);
				perform outbox.publish('other');
				raise exception 'undone';
			exception when raise_exception then
			end;
			perform pg_advisory_xact_lock(1);
		end if;
	end $f$;
	select outbox.subscribe('s', '{a}', 'public.handler', lanes => 1, lease_duration => '1 s', max_attempts => 1);
	-- could the lane be taken over just now?
	create function is_free() returns boolean language sql as
		$f$ select exists (select from outbox.lane join outbox.subscription using (subscription_id) where subscription = 's' for update of lane skip locked) $f$;
});
my $holder = $node->background_psql('postgres');

sub settle
{
	my ($name, $events) = @_;
	drain($node, 30, "$name: all is settled");
	is_sql($node, q{select count(*), count(distinct event_id) from effect}, "$events|$events", "$name: one effect each");
	is_sql($node, q{select last_value from calls}, $events, "$name: one call each");
	is(reconcile($node, 's', 'effect'), '', "$name: receipts are effects");
	is_sql($node, q{select count(*) from outbox.attempt}, '0', "$name: no attempt has failed");
	is_sql($node, q{select sum(lease_recoveries_total) from outbox.metrics}, '0', "$name: nobody has taken it for dead");
}

# --- longer than its lease_duration; another worker has nothing else to do than to take over the next event
$holder->query_safe('select pg_advisory_lock(1)');
sql($node, q{select outbox.publish('a', '{"works on": 1}')});
comes_true($node, 30, q{select in_progress = 1 from outbox.subscription_status where subscription = 's'}, 'a handler is at work');
my $token = sql($node, q{select token from outbox.lane});
sql($node, q{select outbox.publish('a') from generate_series(1, 5)});
comes_true($node, 30, q{select expires_at < clock_timestamp() - interval '1 s' from outbox.lane}, 'its lease is over');
is_sql($node, q{select in_progress from outbox.subscription_status where subscription = 's'}, '1', 'and it is at work still');
is_sql($node, q{select is_free()}, 'f', 'the lane cannot be taken');
is_sql($node, q{select token from outbox.lane}, $token, 'and has not been');
$holder->query_safe('select pg_advisory_unlock(1)');
settle('longer than the lease', 6);

# --- a block of its own rolled back; the clock says that the lease is long over
$holder->query_safe('select pg_advisory_lock(1)');
sql($node, q{select outbox.publish('a', '{"rolls back": 1}')});
comes_true($node, 30, q{select count(*) = 1 from pg_locks where locktype = 'advisory' and not granted}, 'a handler waits after it has rolled back a block');
$token = sql($node, q{select token from outbox.lane});
set_offset($node, 3600);
sql($node, q{select outbox.publish('a') from generate_series(1, 5)});
comes_true($node, 30, q{select backlog = 6 from outbox.subscription_status where subscription = 's'}, 'more events are in the lane');
my $at = sql($node, 'select clock_timestamp()');
comes_true($node, 30, qq{select count(*) = 1 from pg_stat_activity where backend_type = 'outbox worker' and state = 'idle' and state_change > '$at'}, 'another worker has looked at them since');
is_sql($node, q{select is_free()}, 'f', 'the lane cannot be taken');
is_sql($node, q{select token from outbox.lane}, $token, 'and has not been');
$holder->query_safe('select pg_advisory_unlock(1)');
settle('a block rolled back', 12);

$holder->quit;
$node->stop;
done_testing();
