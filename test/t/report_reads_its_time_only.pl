# The numbers of outbox.report() are those of the plain query over the whole log, also at the edges of its time, whatever the clock did and wherever
# a row is; and however much else there is, that is not read.
use strict;
use warnings;
use OutboxEngine;
use OutboxProcesses qw(within);
use Test::More;

my $day = 86400;
my $node = new_engine('report_time', "outbox.retention = '3d'\noutbox.receipt_retention = '3d'\n");
make_effects($node, 'effect', q{if e.payload ->> 'do' = 'fail' and not exists (select from mended) then raise 'no' using errcode = 'check_violation'; end if;});
sql($node, 'create table mended ()');
sql($node, q{select outbox.subscribe('inside', '{r.#}', handler => 'public.effect_handler')});
sql($node, q{select outbox.subscribe('outside', '{r.#}')});

# Each part of the time as the plain query has it; of an event that is gone, its id tells when it was published.
sql($node, q{
	create function time_of(id uuid) returns timestamptz language sql as $f$
		select timestamptz 'epoch' + (('x' || left(hex, 12))::bit(48)::bigint * 1000 + (('x' || substr(hex, 14, 3))::bit(12)::integer * 1000 + 4095) / 4096) * interval '1 microsecond'
		from (select replace(id::text, '-', '') as hex) h
	$f$;
	create function plain(from_at timestamptz, until_at timestamptz)
	returns table (n integer, published bigint, completed bigint, waiting bigint, p50_ms float8, p95_ms float8) language sql as $f$
		with event as (
			select event_id, published_at, width_bucket(extract(epoch from published_at), extract(epoch from from_at), extract(epoch from until_at), 48) as n from outbox.event_log
		), done as (
			select width_bucket(extract(epoch from b.completed_at), extract(epoch from from_at), extract(epoch from until_at), 48) as n,
				   width_bucket(extract(epoch from t.published_at), extract(epoch from from_at), extract(epoch from until_at), 48) as published_n,
				   extract(epoch from b.completed_at - t.published_at) * 1000 as delay_ms
			from outbox.receipt_log r
			join outbox.batch b using (batch_id)
			left join event e using (event_id)
			cross join lateral (select coalesce(e.published_at, time_of(r.event_id)) as published_at) t
			where b.completed_at >= from_at and b.completed_at < until_at
		)
		select n,
			   (select count(*) from event e where e.n = k.n),
			   (select count(*) from done d where d.n = k.n),
			   (select count(*) from done d where d.published_n < k.n and d.n >= k.n),
			   (select percentile_cont(0.5) within group (order by delay_ms) from done d where d.n = k.n),
			   (select percentile_cont(0.95) within group (order by delay_ms) from done d where d.n = k.n)
		from generate_series(1, 48) k (n)
	$f$;
});

# What differs in that time; '' when nothing does.
sub differences_are
{
	my ($from, $to, $name) = @_;
	return is_sql($node, qq{
		select coalesce(string_agg(format('%s: %s instead of %s', p.n, t, p), ', ' order by p.n), '')
		from plain($from, $to) p join outbox.traffic($from, $to, interval '1 hour') t on t.n = p.n
		where (t.published, t.completed, t.waiting) is distinct from (p.published, p.completed, p.waiting)
		   or (t.p50_ms is null) <> (p.p50_ms is null) or abs(t.p50_ms - p.p50_ms) > 0.0001 or abs(t.p95_ms - p.p95_ms) > 0.0001}, '', $name);
}

# Times of all lengths, and with edges at what happened.
sub times_agree
{
	differences_are('outbox.clock()', "outbox.clock() + interval '1 hour'", 'in a time where nothing was');
	differences_are("outbox.clock() - interval '1 hour'", 'outbox.clock()', 'the last hour');
	differences_are("outbox.clock() - interval '1 day'", 'outbox.clock()', 'the last day');
	differences_are("outbox.clock() - interval '30 days'", "outbox.clock() + interval '1 day'", 'all of it');
	differences_are("outbox.clock() - interval '40 years'", "outbox.clock() + interval '40 years'", 'and far beyond');
	for my $edge (['published_at', 'event_log'], ['completed_at', 'batch'])
	{
		for my $which (map { "(select $edge->[0] from outbox.$edge->[1] order by 1 $_ limit 1)" } '', 'offset 3', 'offset 7', 'desc')
		{
			differences_are($which, "$which + interval '1 hour'", "from an edge on: $which");
			differences_are("$which - interval '1 hour'", $which, "up to an edge: $which");
			differences_are("$which - interval '1 minute'", "$which + interval '1 microsecond'", "with an edge: $which");
		}
	}
}

# Publishes, and waits until all is delivered inside, and placed outside.
sub publish
{
	my ($count, $key, $payload) = @_;
	sql($node, "select count(outbox.publish('r.x', '$payload', event_key => '$key' || n % 7)) from generate_series(1, $count) n");
	settle("$count events");
}
sub settle { my ($name) = @_; sql($node, q{call outbox.drain(array['inside'], timeout => '60 s')}); pass("$name are settled") }

# an external worker takes all there is
sub work_outside
{
	sql($node, q{
		do $$
		declare
			token uuid;
		begin
			loop
				select max(lease_token::text) into token from outbox.claim('outside', 40);
				exit when token is null;
				commit;
				perform outbox.ack_all(token);
				commit;
			end loop;
		end $$});
}

# the events of a day are completed by external workers a day later, and some wait for a person for days
publish(300, 'k', '{}');
publish(5, 'review', '{"do": "fail"}');
set_offset($node, $day);
comes_true($node, 20, "select outbox.clock() > clock_timestamp() + interval '23 hours'", 'a day later');
publish(100, 'k', '{}');
work_outside();
# ids go on from where they are, or begin anew when they are more than an hour ahead; what was published before, is completed before it was published
publish(20, 'k', '{}');
for my $back (1800, 3600 * 3)
{
	set_offset($node, $day - $back);
	comes_true($node, 20, "select outbox.clock() < clock_timestamp() + interval '1 day' - interval '$back s'", "the clock is set back by $back s");
	publish(60, 'k', '{}');
	work_outside();
}
times_agree();
set_offset($node, 6 * $day);
comes_true($node, 20, "select outbox.clock() > clock_timestamp() + interval '5 days'", 'some days later');
publish(50, 'k', '{}');
work_outside();
sql($node, 'insert into mended default values');
ok(defined within(60, sub { sql($node, q{call outbox.maintain()}); return sql($node, 'select count(*) from outbox.event_log_kept') == 5 }), 'retention has passed, and has kept what is in review');
sql($node, q{select outbox.retry_all('inside')});
sql($node, q{select outbox.replay('inside', outbox.clock() - interval '1 hour')});
comes_true($node, 60, q{select not exists (select from outbox.delivery_exception)}, 'what was kept is delivered, and once more what is new');
is_sql($node, 'select count(*) > 0 from outbox.receipt_log_kept', 't', 'receipts of what was kept');

times_agree();
is_sql($node, "select sum(published) || ' ' || sum(completed) from outbox.traffic(outbox.clock() - interval '30 days', outbox.clock() + interval '1 hour', '1 hour')",
	sql($node, q{select (select count(*) from outbox.event_log) || ' ' || (select count(*) from outbox.receipt_log)}), 'and nothing is left out');

# Blocks that a report of the last hour reads, in a session that has made one before.
sub blocks_read
{
	my ($from) = @_;
	my $explain = "explain (analyze, buffers, timing off, summary off) select outbox.report(outbox.clock() - interval '$from')";
	my $plan = sql($node, "select outbox.report(outbox.clock() - interval '$from') is null; $explain");
	my %blocks = $plan =~ /Buffers: shared .*?(hit|read)=(\d+)(?: (read)=(\d+))?/ ? ($1 => $2, $3 ? ($3 => $4) : ()) : ();
	return ($blocks{hit} // 0) + ($blocks{read} // 0);
}

my $before = blocks_read('1 hour');
my $all_before = blocks_read('4 days');
sql($node, q{select outbox.pause('outside')});
set_offset($node, 4 * $day);
comes_true($node, 20, "select outbox.clock() < clock_timestamp() + interval '5 days'", 'back by two days');
publish(20000, 'k', '{}');
sql($node, q{insert into outbox.attempt_log (subscription_id, event_id, replay_no, attempt, started_at, failed_at, error_code)
	select 1, gen_random_uuid(), 0, 1, outbox.clock(), outbox.clock(), 'x' from generate_series(1, 20000)});
sql($node, 'vacuum analyze');
set_offset($node, 6 * $day);
comes_true($node, 20, "select outbox.clock() > clock_timestamp() + interval '5 days'", 'and on again');
my $after = blocks_read('1 hour');
my $all_after = blocks_read('4 days');
note("$before, and $after beside 20000 events more; $all_before and $all_after of four days");
cmp_ok($after, '<', $before + 300, 'a report of the last hour does not read what is older');
cmp_ok($all_after, '>', $all_before + 1000, 'which one of that time does');
$node->stop;
done_testing();
