# A handler that takes the server down uses up its event's attempts and no other's, and the event
# ends in front of a person; a worker that is asked to end costs no attempt.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(within);
use Test::More;

my $node = new_engine('main', "restart_after_crash = on\noutbox.poll_interval = '200ms'\n");

# the shell's parent is the worker
make_effects($node, 'effect', q{
	if e.payload ? 'kill' then execute 'copy (select 1) to program ''kill -9 $PPID; sleep 5'''; end if;
	if e.payload ? 'wait' then perform pg_sleep(60); end if;});
sql($node, q{
	create function batch_handler(e outbox.event[]) returns void language plpgsql as $f$
	begin
		if exists (select from unnest(e) as one where one.payload ? 'kill') then
			execute 'copy (select 1) to program ''kill -9 $PPID; sleep 5''';
		end if;
		insert into effect (event_id, event_key, payload) select event_id, event_key, payload from unnest(e);
	end $f$;
	select outbox.subscribe('single', '{a.#}', 'public.effect_handler', max_attempts => 3, backoff_base => '50 ms', backoff_factor => 1, lanes => 4);
	select outbox.subscribe('batch', '{b.#}', 'public.batch_handler', max_attempts => 3, backoff_base => '50 ms', backoff_factor => 1, lanes => 4);
});

for my $case (['single', 'a.b'], ['batch', 'b.c'])
{
	my ($subscription, $type) = @$case;
	sql($node, qq{
		begin;
		select count(outbox.publish('$type', jsonb_build_object('n', n), event_key => (n % 10)::text)) from generate_series(1, 100) n;
		select outbox.publish('$type', '{"kill": 1}', event_key => '5', request_id => 'guilty');
		select count(outbox.publish('$type', jsonb_build_object('n', n), event_key => (n % 10)::text)) from generate_series(101, 200) n;
		commit});
	comes_true($node, 120, qq{select count(*) = 1 from outbox.review_required where subscription = '$subscription'}, "$subscription: it comes to review");
	comes_true($node, 60, qq{select count(*) = 190 from outbox.delivery where subscription = '$subscription' and status = 'COMPLETED'}, 'the good ones around it complete');
	is_sql($node, qq{select request_id, error_code, attempts from outbox.review_required where subscription = '$subscription'}, 'guilty|worker_died|3', 'after three attempts');
	comes_true($node, 30, qq{select blocked_events = 10 from outbox.review_required where subscription = '$subscription'}, 'with the later ones of its key behind it');
	is_sql($node, qq{select string_agg(attempt || ' ' || error_code, ', ' order by attempt) from outbox.attempt where subscription = '$subscription'
		and event_id = (select event_id from outbox.review_required where subscription = '$subscription')},
		'1 worker_died, 2 worker_died, 3 worker_died', 'each of which is on record');
	is_sql($node, qq{select count(*) from outbox.review_required where subscription = '$subscription' and event_id not in
		(select event_id from outbox.event where payload ? 'kill')}, '0', 'no other event comes to review');
	sql($node, qq{select outbox.discard('$subscription', event_id, 'kills the server') from outbox.review_required where subscription = '$subscription'});
	drain($node, 60, 'the rest of its key goes on');
	sql($node, "create view effect_of_$subscription as select f.* from effect f join outbox.event v using (event_id) where v.event_type = '$type'");
	is(reconcile($node, $subscription, "effect_of_$subscription"), '', 'receipts are effects');
	is_sql($node, qq{select count(*) from outbox.delivery where subscription = '$subscription' and status = 'COMPLETED'}, '200', 'all of them');
	is_sql($node, qq{select count(*) from (select (payload ->> 'n')::int as n, lag((payload ->> 'n')::int) over (partition by event_key order by effect.n) as before
		from effect join outbox.event v using (event_id, event_key, payload) where v.event_type = '$type') o where n < before}, '0', 'in the order of their keys');
}

# --- ends that are no event's fault

# one worker: a second one, not yet asked, takes the event up and is asked too, and the third time in a row uses an attempt
$node->append_conf('postgresql.conf', 'outbox.workers = 1');
$node->reload;
comes_true($node, 20, q{select count(*) = 1 from pg_stat_activity where backend_type = 'outbox worker'}, 'one worker is left');
sql($node, q{select outbox.publish('a.b', '{"wait": 1}', event_key => 'w')});
my %ways = (
	'terminated' => sub { sql($node, q{select pg_terminate_backend(pid, 10000) from pg_stat_activity where backend_type = 'outbox worker'}) },
	'restarted' => sub { $node->restart },
	'switched off and on' => sub {
		$node->append_conf('postgresql.conf', "outbox.dispatch = off");
		$node->reload;
		within(30, sub { sql($node, q{select count(*) from pg_stat_activity where backend_type = 'outbox worker'}) eq '0' });
		$node->append_conf('postgresql.conf', "outbox.dispatch = on");
		$node->reload;
	});
my $attempts = sql($node, 'select count(*) from outbox.attempt');
for my $way (sort keys %ways)
{
	comes_true($node, 30, q{select count(*) = 1 from pg_stat_activity where backend_type = 'outbox worker' and wait_event = 'PgSleep'}, 'the handler is at work');
	$ways{$way}->();
}
comes_true($node, 30, q{select count(*) = 1 from pg_stat_activity where backend_type = 'outbox worker' and wait_event = 'PgSleep'}, 'the handler is at work again');
is_sql($node, 'select count(*) from outbox.attempt', $attempts, 'no attempt was used');
is_sql($node, q{select attempts, status from outbox.delivery where event_id = (select event_id from outbox.event where payload ? 'wait')}, '1|IN_PROGRESS', 'it is still its first');
$node->stop;
done_testing();
