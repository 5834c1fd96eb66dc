# When the server's clock is set back, or was far ahead, ids stay unique and rising, routing
# exact, and nothing that is due gets stuck.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(log_position);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "max_prepared_transactions = 5\noutbox.poll_interval = '100ms'\n");
make_effects($node, 'effect', q{if e.payload ? 'fails' and (outbox.current_delivery()).attempt = 1 then raise exception 'x'; end if;});
# the order in which publish() was called
sql($node, q{
	create table called (n bigint generated always as identity, event_id uuid);
	select outbox.subscribe('s', '{a.#}', 'public.effect_handler', backoff_base => '1 hour', backoff_max => '1 hour')});

sub publish
{
	my ($n, $more) = @_;
	sql($node, "insert into called (event_id) select outbox.publish('a.b', event_key => (n % 7)::text" . ($more // '') . ") from generate_series(1, $n) n");
}

# Unique, and rising but for the one step, if any, that was announced.
sub ids_rise
{
	my ($steps, $name) = @_;
	is_sql($node, q{select count(*) - count(distinct event_id) || ' ' || count(*) filter (where event_id <= before)
		from (select event_id, lag(event_id) over (order by n) as before from called) o}, "0 $steps", $name);
}

sub settled
{
	my ($name) = @_;
	drain($node, 60, "$name: all is delivered");
	is(reconcile($node, 's', 'effect'), '', "$name: receipts are effects");
	is_sql($node, q{select count(*) from outbox.event e where not exists (select from effect f where f.event_id = e.event_id) and deliver_at is null and not payload ? 'fails'}, '0', "$name: none is missing");
}

publish(100);
settled('at first');

# --- an hour back, while the server runs and over restarts

set_offset($node, -3000);
publish(100);
settled('50 minutes back');
$node->restart;
publish(100);
settled('50 minutes back, and a restart');
# what is settled has numbers of the same clock: those after the last id are taken
sql($node, q{select outbox.subscribe('w', '{w}', ordering => 'none', lanes => 1)});
sql($node, q{select count(outbox.publish('w', '{"fails": "never"}')) from generate_series(1, 20)});
comes_true($node, 30, q{select count(*) = 20 from outbox.claim('w', 20)}, 'twenty are claimed');
my $ack = q{select count(outbox.ack_one(token, event_id)) from (select token, unnest(event_ids[%s]) as event_id from outbox.lease where events = 20) l};
is_sql($node, sprintf($ack, '1:10'), '10', '  and ten completed');
$node->restart;
sql($node, q{select outbox.publish('w', '{"fails": "never"}')});
is_sql($node, sprintf($ack, '11:20'), '10', '  and the others after a restart');
sql($node, q{select outbox.unsubscribe('w', force => true)});
set_offset($node, -5400);
publish(10);
$node->stop('immediate');
$node->start;
publish(10);
settled('90 minutes back, and a crash');
my $steps = sql($node, q{select count(*) from (select event_id, lag(event_id) over (order by n) as before from called) o where event_id <= before});
cmp_ok($steps, '<=', 2, 'ids go back only where they were more than an hour ahead');
like(slurp_file($node->logfile), qr/clock of event ids is set back/, 'and the log says so') if $steps > 0;
set_offset($node, 0);
publish(100);
settled('and forth');
$node->restart;
publish(100);
settled('and a restart');
ids_rise($steps, 'ids rise');

# --- the clock was days ahead; an id of then is prepared, another one committed

set_offset($node, 40 * 86400);
sql($node, q{insert into called (event_id) select outbox.publish('a.b', event_key => 'far')});
sql($node, q{begin; insert into called (event_id) select outbox.publish('a.b', event_key => 'far'); prepare transaction 'far'});
settled('40 days ahead');
my $from = log_position($node);
set_offset($node, 0);
publish(100);
settled('back from 40 days ahead');
$steps++;
ids_rise($steps, 'one step back, and then rising');
like(substr(slurp_file($node->logfile), $from), qr/LOG: .*clock of event ids is set back/, 'the log says so');
$node->restart;
publish(100);
settled('after a restart');
sql($node, q{commit prepared 'far'});
comes_true($node, 30, q{select count(*) = 2 from effect where event_key = 'far'}, 'the prepared event of the future is delivered');
publish(100);
settled('after it');
# by the order of calls, with those of the far future left out
is_sql($node, q{select count(*) from (select event_id, lag(event_id) over (order by called.n) as before from called
	where event_id not in (select event_id from effect where event_key = 'far') and called.n > (select min(called.n) from called join effect using (event_id) where event_key = 'far')) o where event_id <= before},
	'0', 'ids after the step rise');

# --- a prepared transaction holds the highest id

sql($node, q{begin; insert into called (event_id) select outbox.publish('a.b', event_key => 'high'); prepare transaction 'high'});
set_offset($node, -1800);
$node->stop('immediate');
$node->start;
publish(100);
settled('half an hour back, with the highest id prepared');
sql($node, q{commit prepared 'high'});
comes_true($node, 30, q{select count(*) = 1 from effect where event_key = 'high'}, 'it is delivered');
is_sql($node, q{select count(*) from called c, called h join effect f using (event_id) where f.event_key = 'high' and c.n > h.n and c.event_id < h.event_id}, '0', 'what was published after it has a higher id');
set_offset($node, 0);

# --- delayed events and retries

sql($node, q{select outbox.publish('a.b', '{"fails": 1}', event_key => 'retried'); select outbox.publish('a.b', '{"late": 1}', deliver_at => outbox.clock() + interval '1 hour')});
comes_true($node, 30, q{select array_agg(status order by status) = '{RETRY,RETRY}' from outbox.delivery where status <> 'COMPLETED'}, 'one waits for its retry, one for its time');
set_offset($node, -7200);
publish(10);
comes_true($node, 30, q{select count(*) = count(f.event_id) from outbox.event e left join effect f using (event_id) where e.deliver_at is null and not e.payload ? 'fails'},
	'two hours back others are delivered');
sql($node, q{select outbox.publish('a.b', '{"early": 1}', deliver_at => outbox.clock() + interval '1 hour')});
comes_true($node, 30, q{select count(*) = 3 from outbox.delivery where status = 'RETRY'}, 'two wait for their time');
set_offset($node, -3540);
comes_true($node, 30, q{select count(*) = 1 from effect where payload ? 'early'}, 'what is due by the clock that was set back is delivered');
is_sql($node, q{select count(*) from outbox.delivery where status = 'RETRY'}, '2', 'the others wait');
set_offset($node, 3660);
comes_true($node, 30, q{select count(*) = 1 from effect where payload ? 'late'}, 'the delayed event comes when its time has come');
set_offset($node, 4800);
comes_true($node, 15, q{select count(*) = 1 from effect where payload ? 'fails'}, 'and the retry when it is due');
is_sql($node, q{select count(*) from outbox.delivery where status <> 'COMPLETED'}, '0', 'nothing is left');

# --- days ahead, in a segment that the router knows for an empty one; what is committed after the clock is back

set_offset($node, 5 * 86400);
sql($node, q{begin; select outbox.publish('a.b', event_key => 'near'); prepare transaction 'near'});
sql($node, q{select outbox.publish('a.b', event_key => 'near')});
comes_true($node, 30, q{select count(*) = 1 from effect where event_key = 'near'}, 'days ahead');
set_offset($node, 4800);
sql($node, q{select outbox.publish('a.b', event_key => 'back')});
comes_true($node, 30, q{select count(*) = 1 from effect where event_key = 'back'}, 'back again');
sql($node, q{commit prepared 'near'});
comes_true($node, 30, q{select count(*) = 2 from effect where event_key = 'near'}, 'an event of the future that is committed then is delivered');
$node->stop;
done_testing();
