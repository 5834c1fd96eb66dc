# Keys that wait for a person wait on over two changes of the lanes, the second while the first
# is under way; and they go on in order when the person has decided.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use Test::More;

my $node = new_engine('main', "outbox.poll_interval = '200ms'\noutbox.workers = 2\n");
make_effects($node, 'effect', q{
	if e.event_type = 't.bad' then raise division_by_zero; end if;
	if e.event_type = 't.slow' then perform pg_advisory_xact_lock(1); end if;});
sql($node, q{select outbox.subscribe('s', '{t.*}', 'public.effect_handler', lanes => 16)});
sql($node, q{select count(outbox.publish('t.bad', event_key => 'k' || n)) from generate_series(1, 30) n});
comes_true($node, 20, q{select count(*) = 30 from outbox.review_required}, 'thirty keys wait for a person');

my $holder = $node->background_psql('postgres');
$holder->query_safe('select pg_advisory_lock(1)');
sql($node, q{select outbox.publish('t.slow', event_key => 'slow')});
comes_true($node, 20, q{select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock' and wait_event = 'advisory'}, 'a handler is at work');
sql($node, q{select outbox.alter_subscription('s', lanes => 5)});
sql($node, q{select count(outbox.publish('t.ok', event_key => 'k' || n, payload => jsonb_build_object('n', n))) from generate_series(1, 30) n});
sql($node, q{select outbox.alter_subscription('s', lanes => 9)});
sql($node, q{select count(outbox.publish('t.ok', event_key => 'k' || n % 30 + 1, payload => jsonb_build_object('n', 30 + n))) from generate_series(1, 60) n});
sql($node, q{select outbox.publish('t.other', event_key => 'other')});
$holder->query_safe('select pg_advisory_unlock(1)');
$holder->quit;
comes_true($node, 30, q{select count(*) = 2 from effect}, 'what does not wait has gone through all three generations of lanes');
# in other lanes than theirs, of which another worker may have the turn
comes_true($node, 20, q{select count(*) = 90 from outbox.delivery where status = 'BLOCKED'}, 'what waits is blocked');
comes_true($node, 20, q{select count(distinct base) = 1 and count(*) = 9 from outbox.lane}, 'the last generation is left');
sql($node, q{select count(outbox.discard('s', event_id, 'tried')) from outbox.review_required});
comes_true($node, 20, q{select count(*) = 92 from effect}, 'and goes on when the person has decided');
is_sql($node, q{select count(*) from effect a join effect b using (event_key) where a.n < b.n and (a.payload ->> 'n')::int > (b.payload ->> 'n')::int}, '0',
	'in order, whichever lanes it was published for');

$node->stop;
done_testing();
