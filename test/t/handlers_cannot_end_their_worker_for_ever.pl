# SIGTERM uses no attempt, but a handler that sends it to its own worker is in review after
# max_attempts all the same, also when two do so in turn, and its neighbours complete. Nor does FATAL hold up the others. To be asked to make way costs nothing, however often.
# Leases are given back also when somebody has them locked for a moment.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use Test::More;

my $node = new_engine('main', "outbox.poll_interval = '200ms'\noutbox.workers = 1\n");
make_effects($node, 'effect', q{if e.event_type = 't.bad' then perform pg_terminate_backend(pg_backend_pid()), pg_sleep(10); end if;});
sql($node, q{select outbox.subscribe('s', '{t.*}', 'public.effect_handler', max_attempts => 2, backoff_base => '10 ms', lanes => 1)});
sql($node, q{select outbox.publish('t.good', event_key => 'a'), outbox.publish('t.bad', event_key => 'b'), outbox.publish('t.good', event_key => 'c')});
comes_true($node, 60, q{select count(*) = 2 from effect}, 'the good ones complete');
comes_true($node, 60, q{select count(*) = 1 from outbox.review_required where attempts = 2 and error_code = 'worker_died'}, 'the bad one is in review');

# two of them that are due at once take turns; each is counted by itself
make_effects($node, 'turn', q{
	if (outbox.current_delivery()).attempt = 1 and e.payload ? 'bad' then raise exception 'x'; end if;
	if e.payload ? 'bad' then perform pg_terminate_backend(pg_backend_pid()), pg_sleep(10); end if;});
sql($node, q{select outbox.subscribe('t', '{turn}', 'public.turn_handler', max_attempts => 3, backoff_base => '1 hour', backoff_max => '1 hour', lanes => 1), outbox.subscribe('behind', '{behind}', 'public.effect_handler');
	select count(outbox.publish('turn', '{"bad": 1}', event_key => 'k' || n)) from generate_series(1, 3) n});
comes_true($node, 20, q{select count(*) = 3 from outbox.delivery where subscription = 't' and status = 'RETRY' and attempts = 1}, 'three have failed, and wait');
sql($node, q{select outbox.alter_subscription('t', backoff_base => '10 ms', backoff_max => '10 ms'); select outbox.publish('turn', event_key => 'd'),
	outbox.publish('behind', deliver_at => outbox.clock() + interval '4000 s')});
set_offset($node, 5000);
comes_true($node, 120, q{select count(*) = 3 from outbox.review_required where subscription = 't' and attempts = 3 and error_code = 'worker_died'}, 'all three are in review')
	or diag(sql($node, q{select event_id, status, attempts, error_code, next_attempt_at from outbox.delivery where subscription = 't'}));
comes_true($node, 60, q{select count(*) = 1 from turn}, 'and another one is completed');
is_sql($node, q{select completed_at < (select max(failed_at) from outbox.review_required where subscription = 't') from outbox.delivery where subscription = 'behind'},
	't', 'other subscriptions have their turn meanwhile');

# one that ends it by FATAL pays each time, and does not keep the others waiting either
sql($node, q{
	create table told (attempts bigint);
	create function tell(e outbox.event) returns void language sql as $f$insert into public.told select count(*) from outbox.attempt where subscription = 'fatal'$f$;
	create function end_hard(e outbox.event) returns void language plpgsql as $f$begin execute 'do $x$begin set exit_on_error = on; raise exception ''x''; end$x$'; end$f$;
	select outbox.subscribe('fatal', '{both}', 'public.end_hard', max_attempts => 1, lanes => 1), outbox.subscribe('fellow', '{both}', 'public.tell', lanes => 1);
	select count(outbox.publish('both', event_key => n::text)) from generate_series(1, 4) n});
comes_true($node, 120, q{select count(*) = 4 from outbox.review_required where subscription = 'fatal'}, 'handlers that end their worker hard come to review');
is_sql($node, q{select min(attempts) <= 2 from told}, 't', 'the subscription behind them has its turn first');

my $at_work = q{select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock' and wait_event = 'advisory'};

# a single SIGTERM in mid-handler costs nothing
make_effects($node, 'patient', q{perform pg_advisory_xact_lock(1);});
my $holder = $node->background_psql('postgres');
$holder->query_safe('select pg_advisory_lock(1)');
sql($node, q{select outbox.subscribe('p', '{p}', 'public.patient_handler', max_attempts => 1); select outbox.publish('p')});
comes_true($node, 20, $at_work, 'a handler is at work');
sql($node, q{select pg_terminate_backend(pid) from outbox.worker_status where process = 'worker'});

# nor does it cost anything to make way again and again, which no handler can bring about
for my $time (1 .. 4)
{
	comes_true($node, 20, $at_work, "it is at work again, time $time");
	$node->append_conf('postgresql.conf', 'outbox.dispatch = off');
	$node->reload;
	comes_true($node, 20, q{select count(*) = 0 from pg_stat_activity where backend_type = 'outbox worker'}, 'and ends when dispatch is off');
	$node->append_conf('postgresql.conf', 'outbox.dispatch = on');
	$node->reload;
}
$holder->query_safe('select pg_advisory_unlock(1)');
$holder->quit;
comes_true($node, 20, q{select count(*) = 1 from patient}, 'the event completes');
is_sql($node, q{select count(*) from outbox.attempt where subscription = 'p'}, '0', 'no attempt was used');
is_sql($node, q{select count(*) from outbox.review_required where subscription = 'p'}, '0', 'and nobody has to review it');

# whoever looks at a lane locks its row for a moment, another worker for one; the lease is given back all the same
$holder = $node->background_psql('postgres');
$holder->query_safe('select pg_advisory_lock(1)');
sql($node, q{select outbox.publish('p')});
comes_true($node, 20, $at_work, 'a handler is at work again');
$node->append_conf('postgresql.conf', 'outbox.dispatch = off');
sql($node, q{do $$ begin
		perform from outbox.lane where holder is not null for no key update;
		perform pg_reload_conf(), pg_sleep(0.3);
	end $$});
comes_true($node, 20, q{select count(*) = 0 from pg_stat_activity where backend_type = 'outbox worker'}, 'the worker ends');
is_sql($node, q{select count(*) from outbox.lane join outbox.subscription using (subscription_id) where subscription = 'p' and holder is not null}, '0', 'it has given back what it had leased');
$holder->query_safe('select pg_advisory_unlock(1)');
$holder->quit;

$node->stop;
done_testing();
