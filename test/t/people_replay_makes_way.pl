# A great replay delays nothing that is live: not new events, not retries, not a change of lanes; and a
# live load does not keep the replay from its end.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('replay', "outbox.poll_interval = '200ms'\noutbox.workers = 1\n");
make_effects($node, 'effect', q{perform pg_sleep(0.005); if e.payload ? 'fails' and (outbox.current_delivery()).attempt = 1 then raise exception 'x'; end if;});
sql($node, q{
	alter table effect add at timestamptz default clock_timestamp();
	alter table effect add replay_no integer default (outbox.current_delivery()).replay_no;
	select outbox.subscribe('s', '{a.#}', 'public.effect_handler', run_as => 'postgres', lanes => 8, backoff_base => '50 ms', backoff_factor => 1)});
my $old = 20_000;

# a backlog of replays, all due: three minutes of work for the one worker
sql($node, q{select outbox.pause('s')});
sql($node, "select count(outbox.publish('b')) from generate_series(1, $old)");
drain($node, 30, 'they are routed, to nobody');
sql($node, q{select outbox.alter_subscription('s', event_types => '{a.#,b}')});
is_sql($node, q{select outbox.replay('s', from_time => '-infinity')}, $old, 'a great replay');
set_offset($node, 3600);
sql($node, q{select outbox.resume('s')});
comes_true($node, 30, q{select count(*) > 20 from effect where replay_no = 1}, 'it is under way');

# new events, one after the other
for my $n (1 .. 10)
{
	my $id = sql($node, qq{select outbox.publish('a.new', '{"n": $n}', event_key => 'k$n')});
	comes_true($node, 20, "select count(*) = 1 from effect where event_id = '$id'", "a new event is delivered");
}
# (whatever else a machine has to do for a moment: told by the replays that went before them, which take 5 ms each at least)
is_sql($node, q{select percentile_disc(0.8) within group (order by before) < 80 and max(before) < 600 from
	(select count(r.event_id) as before from effect f join outbox.event e using (event_id)
		left join effect r on r.replay_no = 1 and r.at between e.published_at - interval '1 hour' and f.at where f.replay_no = 0 group by f.event_id) b}, 't', 'each at once');

# many of them, and such that fail at first: they go first, and the replay goes on beside them
my $before = sql($node, q{select count(*) from effect where replay_no = 1});
sql($node, q{select count(outbox.publish('a.new', case when n % 10 = 0 then '{"fails": 1}' else '{}' end::jsonb, event_key => 'm' || n % 50)) from generate_series(1, 300) n});
comes_true($node, 60, q{select count(*) = 310 from effect where replay_no = 0}, 'a load of new events is delivered, with its retries');
my $after = sql($node, q{select count(*) from effect where replay_no = 1});
cmp_ok($after - $before, '>', 20, "and the replay went on ($before, then $after)");
cmp_ok($after, '<', $old / 2, 'long before the replay is at its end');

# the lanes change: what is new does not wait for the end of the replay, which moves along
sql($node, q{select outbox.alter_subscription('s', lanes => 4)});
my $id = sql($node, q{select outbox.publish('a.new', event_key => 'after')});
comes_true($node, 30, "select count(*) = 1 from effect where event_id = '$id'", 'the lanes have changed');
comes_true($node, 30, q{select count(*) = 4 from outbox.lane}, 'the old lanes are gone');
is_sql($node, q{select count(*) from outbox.delivery_exception x where not exists (select from outbox.lane l where l.lane = x.lane)}, '0', 'no replay was left in them');
$before = sql($node, q{select count(*) from effect where replay_no = 1});
comes_true($node, 30, "select count(*) > $before + 20 from effect where replay_no = 1", 'and it goes on');

# to its end, with a handler that is quick
sql($node, q{create or replace function effect_handler(e outbox.event) returns void language sql as 'insert into effect (event_id, event_key, payload) values (e.event_id, e.event_key, e.payload)'});
my $took = comes_true($node, 600, "select count(*) = $old from effect where replay_no = 1", 'it comes to its end');
diag(sprintf('%.0f replays a second', ($old - $before) / $took));
is_sql($node, q{select count(*) from effect where replay_no = 1 group by event_id having count(*) > 1}, '', 'each once');
drain($node, 30, 'nothing is left');
is_sql($node, q{select count(*) from outbox.delivery_exception}, '0', 'nothing at all');
$node->stop;
done_testing();
