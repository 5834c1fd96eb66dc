# A subscription that floods, hangs or fails holds no other one up; an outage behind a handler uses
# up no event's attempts; and a handler may feed its own key.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(within is_served);
use Test::More;
use Time::HiRes qw(time usleep);

my $node = new_engine('main', "outbox.poll_interval = '500ms'\nlog_min_messages = error\n");
sql($node, q{
	create table effect (n bigint generated always as identity, subscription text, event_id uuid, event_key text, payload jsonb, at timestamptz default clock_timestamp());
	create table world (down boolean not null);
	insert into world values (false);
	create function note(e outbox.event) returns void language sql as
	'insert into effect (subscription, event_id, event_key, payload) values ((outbox.current_delivery()).subscription, e.event_id, e.event_key, e.payload)';
	create function slow(e outbox.event) returns void language plpgsql as 'begin perform pg_sleep(0.02); end';
	create function hang(e outbox.event) returns void language plpgsql as 'begin perform pg_sleep(30); end';
	create function failing(e outbox.event) returns void language plpgsql as 'begin raise exception ''x''; end';
	create function rest(e outbox.event) returns void language plpgsql as $f$
	begin
		if (select down from world) then raise exception 'down'; end if;
		perform note(e);
	end $f$;
	select outbox.subscribe('prompt', '{prompt}', 'public.note');
	select outbox.subscribe('flood', '{flood}', 'public.slow');
	select outbox.subscribe('hang', '{hang}', 'public.hang');
	select outbox.subscribe('failing', '{failing}', 'public.failing', max_attempts => 1000, backoff_base => '1 ms', backoff_factor => 1);
	select outbox.subscribe('rest', '{rest}', 'public.rest', max_attempts => 100, backoff_base => '20 ms', backoff_factor => 1.5, backoff_max => '200 ms');
});

# Publish a few, one after the other; the longest time one of them had to wait, in ms.
sub longest_wait
{
	my ($n) = @_;
	my $before = sql($node, q{select count(*) from effect where subscription = 'prompt'});
	for (1 .. $n)
	{
		sql($node, q{select outbox.publish('prompt', '{}', event_key => 'p')});
		usleep(100_000);
	}
	$before += $n;
	comes_true($node, 60, qq{select count(*) = $before from effect where subscription = 'prompt'}, 'the prompt one has got all');
	return sql($node, qq{select round(max(extract(epoch from at - published_at)) * 1000) from effect join outbox.event using (event_id)
		where subscription = 'prompt' and n > (select coalesce(max(n), 0) from (select n from effect where subscription = 'prompt' order by n desc offset $n) o)});
}

sub within_bound
{
	my ($bound, $name) = @_;
	my $wait = longest_wait(15);
	cmp_ok($wait, '<', $bound, "$name: waits for $wait ms at most");
}

for my $workers (1, 2)
{
	$node->append_conf('postgresql.conf', "outbox.workers = $workers");
	$node->reload;
	is_served($node, 'postgres', $workers, 30, "with $workers workers");
	sql($node, q{select count(outbox.publish('flood', event_key => n::text)) from generate_series(1, 4000) n});
	within_bound(5000, 'beside a flood of slow events');
	sql($node, q{select outbox.pause('flood'); select count(outbox.publish('failing', event_key => n::text)) from generate_series(1, 200) n});
	within_bound(5000, 'beside one that fails all the time');
	sql($node, q{select outbox.pause('failing')});
	sql($node, q{select outbox.resume('flood')}) if $workers == 1;
}
sql($node, q{select count(outbox.publish('hang', event_key => n::text)) from generate_series(1, 20) n});
comes_true($node, 30, q{select count(*) > 0 from pg_stat_activity where backend_type = 'outbox worker' and wait_event = 'PgSleep'}, 'a handler hangs');
within_bound(10000, 'beside one that hangs');
sql($node, q{select outbox.pause('hang')});
sql($node, q{select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'outbox worker'});
sql($node, q{select outbox.unsubscribe(s, force => true) from unnest('{hang,flood,failing}'::text[]) s});

# --- an outage

$node->append_conf('postgresql.conf', 'outbox.workers = 4');
$node->reload;
is_served($node, 'postgres', 4, 30, 'with 4 workers');
sql($node, q{update world set down = true});
sql($node, q{select count(outbox.publish('rest', jsonb_build_object('n', n), event_key => (n % 300)::text)) from generate_series(1, 3000) n});
comes_true($node, 30, q{select outage_until is not null from outbox.subscription_status where subscription = 'rest'}, 'the outage guard acts');
comes_true($node, 60, q{select count(*) >= 20 from outbox.attempt where subscription = 'rest'}, 'and goes on probing');
my $during = sql($node, q{select count(*) from outbox.attempt where subscription = 'rest'});
within_bound(5000, 'meanwhile another one');
cmp_ok($during, '<', 300, "$during attempts for 3000 events, whatever the number of workers");
sql($node, q{update world set down = false});
drain($node, 120, 'when it is over, all is delivered');
is_sql($node, q{select count(*) from outbox.review_required}, '0', 'and nothing needs a person');
is_sql($node, q{select count(*), count(distinct event_id) from effect where subscription = 'rest'}, '3000|3000', 'each once');
is_sql($node, q{select count(*) from (select (payload ->> 'n')::int as c, lag((payload ->> 'n')::int) over (partition by event_key order by n) as before from effect where subscription = 'rest') o
	where c < before}, '0', 'in the order of the keys');

# --- a chain

sql($node, q{
	create function chain(e outbox.event) returns void language plpgsql as $f$
	begin
		insert into effect (subscription, event_id, event_key, payload) values ('chain', e.event_id, e.event_key, e.payload);
		if (e.payload ->> 'n')::int < 300 then
			perform outbox.publish('chain', jsonb_build_object('n', (e.payload ->> 'n')::int + 1), event_key => e.event_key);
			begin
				perform outbox.publish('chain', '{"n": 0}', event_key => e.event_key);
				raise exception 'not this one';
			exception when others then null;
			end;
		end if;
	end $f$;
	select outbox.subscribe('chain', '{chain}', 'public.chain');
	select outbox.publish('chain', '{"n": 1}', event_key => 'c', trace_id => '0af7651916cd43dd8448eb211c80319c')});
comes_true($node, 120, q{select count(*) = 300 from effect where subscription = 'chain'}, 'a chain of 300 events comes to its end');
drain($node, 60, 'settled');
is_sql($node, q{select count(*) from (select (payload ->> 'n')::int as c, row_number() over (order by n) as r from effect where subscription = 'chain') o where c <> r}, '0', 'in order, and nothing of what was rolled back');
is_sql($node, q{select count(*) filter (where e.trace_id = '0af7651916cd43dd8448eb211c80319c'), count(c.event_id) from outbox.event e left join outbox.event c on c.event_id = e.causation_id
	where e.event_type = 'chain'}, '300|299', 'with the trace of the first, each caused by the one before');
$node->stop;
done_testing();
