# A second router can commit nothing; a person who gives an event up while a worker parks the next
# one of its key leaves nothing stuck.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(log_position);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.poll_interval = '200ms'\nlog_min_messages = warning\n");
make_effects($node, 'effect', q{
	if e.payload ? 'fails' and (select fail from world) then raise exception 'x'; end if;
	if e.payload ? 'waits' then perform pg_advisory_xact_lock(1); end if;});
sql($node, q{
	create table world (fail boolean not null);
	insert into world values (true);
	select outbox.subscribe('s', '{a.#}', 'public.effect_handler', lanes => 1, max_attempts => 1, backoff_base => '20 ms')});

my $rival = $node->background_psql('postgres');
my $holder = $node->background_psql('postgres');
my $n = 0;

sub publish
{
	my ($payload, $key) = @_;
	return sql($node, "select outbox.publish('a.b', '$payload'" . ($key ? ", event_key => '$key'" : '') . ')');
}

# --- the next tick is another router's

publish("{\"n\": 0}");
drain($node, 60, 'delivered');
my $next_tick = q{insert into outbox.tick select (jsonb_populate_record(t, jsonb_build_object('tick', tick + 1, 'seen', target::text, 'routed', 0))).*
	from outbox.tick t order by tick desc, chunk desc limit 1};

# committed: the router that meets it starts again from what is there
my $from = log_position($node);
for (1 .. 3)
{
	sql($node, $next_tick);
	publish('{"n": 1}') for 1 .. 3;
	$n += 3;
	drain($node, 60, 'the next tick was taken: all is delivered');
}
is_sql($node, q{select count(*), count(distinct event_id) from effect}, ($n + 1) . '|' . ($n + 1), 'each once');
like(substr(slurp_file($node->logfile), $from), qr/duplicate key value violates unique constraint "tick_pkey"/, 'it had met the other one');

# under way: it waits for what becomes of it, and routes nothing meanwhile
for my $end ('rollback', 'commit')
{
	$rival->query_safe("begin; $next_tick");
	publish('{"n": 2}') for 1 .. 3;
	$n += 3;
	comes_true($node, 30, q{select count(*) = 1 from pg_locks join pg_stat_activity using (pid)
		where locktype = 'transactionid' and not granted and backend_type = 'outbox router'}, "a rival that is at work: the router waits for it");
	is_sql($node, q{select count(*) from effect where payload ->> 'n' = '2'}, $end eq 'rollback' ? '0' : '3', 'and routes nothing meanwhile');
	$rival->query_safe($end);
	drain($node, 60, "$end of the rival: all is delivered");
}
is_sql($node, q{select count(*), count(distinct event_id) from effect}, ($n + 1) . '|' . ($n + 1), 'each once');

# a rival's lane entry stands where ours would
sql($node, q{insert into outbox.lane_entry select (jsonb_populate_record(e, jsonb_build_object('position', position + 1))).*
	from outbox.lane_entry e order by position desc limit 1});
publish('{"n": 3}') for 1 .. 3;
$n += 3;
drain($node, 60, 'a lane position was taken: all is delivered');
is_sql($node, q{select count(*), count(distinct event_id) from effect}, ($n + 1) . '|' . ($n + 1), 'each once');
is(reconcile($node, 's', 'effect'), '', 'receipts are effects');

# a second process finds the router's lock taken
# (it has begun anew, and may hold the lock of a step of upkeep, too)
comes_true($node, 30, q{select count(*) = 1 from pg_locks join pg_stat_activity using (pid) where locktype = 'advisory' and objsubid = 3 and backend_type = 'outbox router' and granted},
	'the router holds its lock');

# --- a delivery in review is given up, or tried again, while the next one of its key is being parked

my $key = 0;
for my $decision ('discard', 'retry')
{
	for my $when ('before the parking commits', 'after it', 'in a transaction that spans it')
	{
		$key++;
		sql($node, 'update world set fail = true');
		publish('{"fails": 1}', $key);
		comes_true($node, 30, qq{select count(*) = 1 from outbox.review_required join outbox.event using (event_id) where event_key = '$key'}, "$decision $when: an event in review");
		# one batch: the first event keeps it open, the second one waits behind the gate
		$holder->query_safe('select pg_advisory_lock(1)');
		sql($node, qq{begin; select outbox.publish('a.b', '{"waits": 1}'); select outbox.publish('a.b', '{"next": 1}', event_key => '$key'); commit});
		comes_true($node, 30, q{select count(*) = 1 from pg_locks where locktype = 'advisory' and not granted}, 'a batch is parking the next one');
		my $decide = qq{update world set fail = false; select outbox.$decision('s', event_id} . ($decision eq 'discard' ? ", 'why not'" : '') . qq{)
			from outbox.review_required join outbox.event using (event_id) where event_key = '$key'};
		if ($when =~ /before/)
		{
			sql($node, $decide);
			$holder->query_safe('select pg_advisory_unlock(1)');
		}
		elsif ($when =~ /after/)
		{
			$holder->query_safe('select pg_advisory_unlock(1)');
			comes_true($node, 30, qq{select blocked_events = 1 from outbox.blocked_key where event_key = '$key'}, 'it is parked');
			sql($node, $decide);
		}
		else
		{
			$rival->query_safe("begin; $decide");
			$holder->query_safe('select pg_advisory_unlock(1)');
			comes_true($node, 30, qq{select blocked_events = 1 from outbox.blocked_key where event_key = '$key'}, 'it is parked');
			# a round of the worker goes by
			my $witness = publish('{"n": 4}');
			comes_true($node, 30, "select count(*) = 1 from effect where event_id = '$witness'", 'another key goes on');
			$rival->query_safe('commit');
		}
		comes_true($node, 30, qq{select count(*) = 1 from effect where event_key = '$key' and payload ? 'next'}, 'the next one is delivered');
		drain($node, 60, 'nothing is stuck');
		is_sql($node, qq{select status from outbox.delivery join outbox.event using (event_id) where event_key = '$key' and payload ? 'fails'},
			$decision eq 'discard' ? 'DISCARDED' : 'COMPLETED', "$decision has done its work");
	}
}
is_sql($node, q{select count(*) from effect f join effect g using (event_key) where f.payload ? 'fails' and g.payload ? 'next' and f.n > g.n}, '0', 'in order');

# many at once: whoever comes first, nothing is stuck
sql($node, 'update world set fail = true');
sql($node, q{select count(outbox.publish('a.b', jsonb_build_object(case when n % 3 = 0 then 'fails' else 'next' end, n), event_key => 'm' || n % 40)) from generate_series(1, 600) n});
my $given_up = 0;
my $limit = time + 300;
while ($given_up < 200 && time < $limit)
{
	$given_up += sql($node, q{select count(*) filter (where done) from (select outbox.discard('s', event_id, 'why not') as done from outbox.review_required order by random() limit 10) d});
}
is($given_up, 200, 'all that fail are given up, one after the other');
drain($node, 60, 'all is settled');
is_sql($node, q{select status, count(*) from outbox.delivery join outbox.event using (event_id) where event_key like 'm%' group by 1 order by 1},
	"COMPLETED|400\nDISCARDED|200", 'and all others delivered');
is(reconcile($node, 's', 'effect'), '', 'receipts are effects');
$_->quit for $rival, $holder;
$node->stop;
done_testing();
