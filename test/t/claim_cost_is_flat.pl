# A claim, a look of wait(), an idle poll, a sweep of expired leases, a person's call and each step of upkeep cost the same
# whatever lies beside: events that are done, delayed, in review, to be tried again, parked behind one key and behind many,
# leased by live holders, leases that have ended, and an expired one that cannot be taken back; with statistics that are
# absent, of another time, or right, and with generic plans. A lease that expires does not wait for a look at all that have ended.
# OUTBOX_TEST_FULL=1: a million of each.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(is_unserved within);
use PostgreSQL::Test::Utils;
use Test::More;

my $many = $ENV{OUTBOX_TEST_FULL} ? 1_000_000 : 30_000;
my $buffers = 500;
my $milliseconds = 20;    # of the best of five, on a machine that may be busy
my $node = new_engine('main', <<CONF);
shared_preload_libraries = 'outbox, pg_stat_statements'
autovacuum = off
fsync = off
synchronous_commit = off
outbox.workers = 0
max_prepared_transactions = 2
max_wal_size = '8GB'
checkpoint_timeout = '1h'
outbox.poll_interval = '200ms'
CONF
sql($node, q{
	create extension pg_stat_statements;
	select outbox.subscribe('key', '{e.#}'), outbox.subscribe('none', '{e.#,done.#}', ordering => 'none'),
		outbox.subscribe('idle', '{nothing.#}'), outbox.subscribe('idle none', '{nothing.#}', ordering => 'none');
	-- what the claims that are measured have taken
	create table floor as select 0::bigint as floor;
	create function settle() returns void language plpgsql as $$
	declare
		t uuid;
	begin
		for t in select l.token from outbox.lease l, floor where l.lease_id > floor.floor loop
			begin
				perform outbox.ack_all(t);
			exception when sqlstate 'OB001' then
			end;
		end loop;
		update floor set floor = (select coalesce(max(lease_id), 0) from outbox.lease);
	end $$;
	-- one event each, for a moment
	create procedure let_expire(of text, n integer) language plpgsql as $$
	begin
		for i in 1 .. n loop
			perform outbox.claim(of, 1, '1 ms');
			commit;
		end loop;
		perform pg_sleep(0.005);
	end $$;
	create procedure work(of text, n integer) language plpgsql as $$
	declare
		t uuid;
	begin
		loop
			t := (select lease_token from outbox.claim(of, n) limit 1);
			exit when t is null;
			commit;
			perform outbox.ack_all(t);
			commit;
		end loop;
	end $$});
my %id = map { $_ => sql($node, "select subscription_id from outbox.subscription where subscription = '$_'") } ('key', 'none', 'idle', 'idle none');

# Buffers and milliseconds of a statement, in a session that knows the catalogs by then: of five times, the
# median of the buffers (once the router may have been quicker, or the catalogs be read), and the least time.
sub cost
{
	my ($statement, $before, $mode) = @_;
	my $once = join("\n", "$before;", q{select pg_stat_statements_reset() \g /dev/null}, "$statement \\g /dev/null",
		q{select shared_blks_hit + shared_blks_read, round(total_exec_time::numeric, 2) from pg_stat_statements where query ~ '^(select \* from outbox\.claim|call outbox\.wait)';}, '');
	my @times = map { [ split /\|/ ] } split /\n/, sql($node, "set client_min_messages = error; set plan_cache_mode = $mode;\n" . "$before;\n$statement \\g /dev/null\n" x 3 . $once x 5 . 'select settle() \g /dev/null' . "\n");
	return ((sort { $a <=> $b } map { $_->[0] } @times)[2], (sort { $a <=> $b } map { $_->[1] } @times)[0]);
}

my @statements = (
	[ 'a claim, keys in order', q{select * from outbox.claim('key', 10)} ],
	[ 'a claim, no order', q{select * from outbox.claim('none', 10)} ],
	[ 'a claim that finds nothing', q{select * from outbox.claim('idle', 10)} ],
	[ '  no order', q{select * from outbox.claim('idle none', 10)} ],
	[ 'wait() that is over at once', q{call outbox.wait('{none}', '0')} ],
	[ 'wait() for nothing', q{call outbox.wait('{idle,idle none}', '0')} ],
	[ 'a claim that takes back leases', q{select * from outbox.claim('idle', 10)}, q{call let_expire('none', 8)} ]);

sub is_cheap
{
	my ($beside) = @_;
	my (@told, $bad);
	for my $s (@statements)
	{
		my @costs = map { [ cost($s->[1], $s->[2] // 'do $$ begin end $$', $_) ] } qw(auto force_generic_plan);
		$bad = 1 if grep { $_->[0] >= $buffers || $_->[0] == 0 || $_->[1] >= $milliseconds } @costs;
		push @told, sprintf('%-36s %s', $s->[0], join('; ', map { "$_->[0] buffers, $_->[1] ms" } @costs));
	}
	ok(!$bad, "beside $beside") or diag(join("\n", @told));
	note(join("\n", @told));
}

# A person's calls, undone again; the subscription and the event that holds its key are told.
sub people_are_cheap
{
	my ($beside, $subscription, $event) = @_;
	my @calls = ("outbox.retry('$subscription', '$event')", "outbox.discard('$subscription', '$event', 'a test')", "outbox.replay('$subscription', array['$event']::uuid[])",
		"outbox.retry_all('$subscription', max_events => 5)", "outbox.pause('$subscription')", "outbox.alter_subscription('$subscription', max_attempts => 7)");
	my (@told, $bad);
	for my $call (@calls)
	{
		my $try = qq{begin; select pg_stat_statements_reset() \\g /dev/null
			select $call \\g /dev/null
			select shared_blks_hit + shared_blks_read from pg_stat_statements where query ~ '^select outbox'; rollback;\n};
		my @tries = sort { $a <=> $b } split /\n/, sql($node, "set client_min_messages = error;\n" . $try x 5);
		$bad = 1 if @tries != 5 || $tries[2] >= $buffers;
		push @told, sprintf('%-100s %s buffers', $call, join(' ', @tries));
	}
	ok(!$bad, "a person's calls beside $beside") or diag(join("\n", @told));
	note(join("\n", @told));
}

# Each statement of a round of upkeep, and of a worker that has nothing to do, once all is trimmed that is to go.
sub idle_is_cheap
{
	my ($beside) = @_;
	my $q = q{select round((shared_blks_hit + shared_blks_read) / calls) || ' buffers: ' || left(query, 150) from pg_stat_statements
		where query ~ 'outbox\.' and (shared_blks_hit + shared_blks_read) / calls >= 500};
	my @bad;
	my $took = within(90, sub {
		sql($node, 'select pg_stat_statements_reset()');
		within(20, sub { sql($node, q{select count(*) >= 3 from pg_stat_statements where calls > 0 and query ~ 'from outbox\.(parked p where p\.gate_id >|tick o where|lane l where l\.subscription_id = \$1 and \(l\.lane)'}) eq 't' }) or return 0;
		@bad = split /\n/, sql($node, $q);
		return !@bad });
	ok(defined $took, "a round of upkeep and a look for work beside $beside") or diag(join("\n", @bad ? @bad : 'no round was seen: ' . sql($node, q{select string_agg(left(query, 80), ' / ') from pg_stat_statements})));
}

# The router's own sweep: what it touches of the leases' tables for each one that it takes back. Upkeep, which comes when it
# comes, reads them too: the least of up to three times.
sub router_is_cheap
{
	my ($beside, $most) = @_;
	my $least = swept();
	for my $again (1 .. 2)
	{
		last if $least < $most;
		my $now = swept();
		$least = $now if $now < $least;
	}
	cmp_ok($least, '<', $most, sprintf('beside %s: %d buffers for each', $beside, $least));
	sql($node, 'select settle()');
}

sub swept
{
	my $touched = q{select sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read) from pg_statio_user_tables where relname in ('lease', 'lease_progress', 'batch')};
	my $n = 40;
	my $attempts = sql($node, 'select coalesce(max(attempt_id), 0) from outbox.attempt_log');
	sql($node, "call let_expire('none', $n)");
	my $before = sql($node, $touched);
	# not by a look at the tables that are measured
	comes_true($node, 20, "select count(*) = $n from outbox.attempt_log where attempt_id > $attempts and error_code = 'lease_expired'", 'the router takes back what has expired');
	my $after = 0;
	# it reports what it has touched a little later
	within(3, sub { my $now = sql($node, $touched); my $same = $now == $after && $now > $before; $after = $now; select(undef, undef, undef, 0.5); return $same });
	return ($after - $before) / $n;
}

# ------------------------------------------------------------ everything

sql($node, q{select count(outbox.publish('e.x', event_key => 'k' || n % 400)) from generate_series(1, 8000) n});
sql($node, q{call outbox.drain('{key,none}')});
is_cheap('nothing');

sql($node, 'analyze');

# a key in review, with all of its later events parked by the claims that came past
my $hot = $many;
sql($node, qq{select count(outbox.publish('e.x', event_key => 'hot')) from generate_series(1, $hot) n});
drain($node, 120, 'the hot key is routed');
sql($node, q{do $$ declare t uuid; e uuid; begin
	-- a claim that gets nothing may have parked a thousand
	while (select backlog > 0 from outbox.subscription_status where subscription = 'key') loop
		select lease_token, (array_agg(event_id) filter (where event_key = 'hot'))[1] into t, e from outbox.claim('key', 1000) group by 1;
		commit;
		continue when t is null;
		if e is not null then perform outbox.fail(t, e, permanent => true); end if;
		commit;
		perform outbox.ack_all(t);
		commit;
	end loop; end $$});
is(sql($node, q{select count(*) from outbox.parked}), $hot - 1, "$hot events of one key wait for a person");
my $holder = sql($node, q{select event_id from outbox.review_required where subscription = 'key'});
sql($node, q{call work('none', 1000)});
sql($node, q{select count(outbox.publish('e.x', event_key => 'k' || n % 400)) from generate_series(1, 20000) n});
sql($node, q{call outbox.drain('{key,none}')});
is_cheap("$hot parked behind one key");
people_are_cheap("$hot parked behind one key", 'key', $holder);

sql($node, qq{select count(outbox.publish('done.x', event_key => 'k' || n % 400)) from generate_series(1, $many) n});
sql($node, qq{select count(outbox.publish('e.x', deliver_at => '2100-01-01')) from generate_series(1, $many) n});
drain($node, 300, 'all is routed');
sql($node, q{call work('none', 1000); select settle()});
sql($node, q{select count(outbox.publish('e.x', event_key => 'k' || n % 400)) from generate_series(1, 20000) n});
sql($node, q{call outbox.drain('{key,none}')});
is_cheap("$many that are done, and $many that are to come");

for my $subscription ('key', 'none')
{
	sql($node, qq{set session_replication_role = replica;
		insert into outbox.delivery_exception (subscription_id, event_id, lane, position, status, next_attempt_at, attempts, tenant_id, event_key)
		select $id{$subscription}, lpad((n * 2 + kind)::text, 32, '0')::uuid, n % 16, 1, status, due, 1, '', 'x' || n from generate_series(1, $many) n,
			(values (0, 'REVIEW_REQUIRED', null::timestamptz), (1, 'RETRY', clock_timestamp() + interval '1 day')) v (kind, status, due)});
}
# and some keys of a subscription that is none of these, which are open
sql($node, qq{with g as (insert into outbox.gate (subscription_id, lane, tenant_id, event_key, held_by, through, created_at)
		select $id{key}, n % 16, '', 'y' || n, gen_random_uuid(), 0, now() from generate_series(1, $many / 10) n returning gate_id)
	insert into outbox.parked select gate_id, n, gen_random_uuid() from g, generate_series(1, 10) n;
	insert into outbox.gate (subscription_id, lane, tenant_id, event_key, through, created_at)
		select 1000, n % 16, '', 'z' || n, 0, now() from generate_series(1, $many / 10) n});
is_cheap("$many in review, to be tried again, and parked behind many keys");
people_are_cheap("$many in review, to be tried again, and parked behind many keys", 'key', $holder);

# held: by real claims where the order is kept, for of these there are no more than lanes
sql($node, q{do $$ begin for i in 1 .. 6 loop perform outbox.claim('key', 1, '1 day'); commit; end loop; end $$});
sql($node, qq{insert into outbox.lease (token, subscription_id, incarnation, claim_xid, claimed_at, expires_at, events, event_ids, lanes, positions)
	select gen_random_uuid(), $id{none}, 1, '1', clock_timestamp(), clock_timestamp() + interval '1 day', 100,
		array(select gen_random_uuid() from generate_series(1, 100) where n > 0), array_fill(0, array[100]), array_fill(1::bigint, array[100])
	from generate_series(1, $many / 100) n;
	update floor set floor = (select max(lease_id) from outbox.lease)});
is_cheap("$many held by others");

# leases that have ended, and of each lane a cursor for each step
sql($node, qq{with l as (insert into outbox.lease (token, subscription_id, incarnation, claim_xid, claimed_at, expires_at, events, event_ids, lanes, positions)
		select gen_random_uuid(), $id{none}, 1, '1', clock_timestamp(), clock_timestamp() - interval '10 min' + n * interval '1 us', 1,
			array[gen_random_uuid()], '{0}', '{1}' from generate_series(1, $many) n returning lease_id, event_ids[1] as id),
	p as (insert into outbox.lease_progress select lease_id, -1, false, '{0}' from l where lease_id % 2 = 0)
	insert into outbox.batch (batch_id, subscription_id, started_at, completed_at, events, processing_us, first_event, last_event, lease_id, settled)
		select lease_id, $id{none}, clock_timestamp(), clock_timestamp(), 1, '{1}', id, id, lease_id, '{0}' from l where lease_id % 2 = 1;
	insert into outbox.lane_cursor select $id{key}, lane, 0 - n from generate_series(0, 15) lane, generate_series(1, $many / 16) n;
	update floor set floor = (select max(lease_id) from outbox.lease)});
is_cheap("$many leases that have ended");
router_is_cheap('all of it', $buffers);

# ------------------------------------------------------------ statistics

sql($node, q{delete from pg_statistic where starelid in (select oid from pg_class where relnamespace = 'outbox'::regnamespace)});
sql($node, q{update pg_class set reltuples = -1, relpages = 0 where relnamespace = 'outbox'::regnamespace});
is_cheap('all of it, without statistics');
router_is_cheap('all of it, without statistics', $buffers);
sql($node, 'analyze');
is_cheap('all of it, with statistics');
people_are_cheap('all of it, with statistics', 'key', $holder);
# a worker looks for what there is to do: with plans made now, and for a subscription with a handler
sql($node, q{create function nothing(outbox.event) returns void language sql as ''; select outbox.subscribe('handler', '{nothing.#}', 'public.nothing')});
$node->append_conf('postgresql.conf', 'outbox.workers = 1');
$node->reload;
idle_is_cheap('all of it, with statistics');
$node->append_conf('postgresql.conf', 'outbox.workers = 0');

# ------------------------------------------------------------ a server that knows nothing of what has ended

# what expired while it was down, and one that did before; in between it passes over those that have ended
sql($node, q{do $$ begin for i in 1 .. 41 loop perform outbox.claim('none', 1, '1 day'); commit; end loop; end $$});
$node->append_conf('postgresql.conf', 'outbox.dispatch = off');
$node->reload;
is_unserved($node, 'postgres', 30, 'nobody takes leases back');
sql($node, q{with mine as (select lease_id, row_number() over (order by lease_id) as n from outbox.lease, floor where lease_id > floor.floor)
	update outbox.lease l set expires_at = clock_timestamp() - case when n = 1 then interval '9 min' else '0' end from mine where mine.lease_id = l.lease_id});
my $before = sql($node, 'select coalesce(max(attempt_id), 0) from outbox.attempt_log');
my $taken_back = "from outbox.attempt_log where attempt_id > $before and error_code = 'lease_expired'";
$node->append_conf('postgresql.conf', 'outbox.dispatch = on');
$node->restart;
comes_true($node, 120, "select count(*) = 41 $taken_back", 'after a start all are taken back');
is(sql($node, "select count(*) $taken_back and attempt_id > (select attempt_id $taken_back and event_id = (select event_ids[1] from outbox.lease, floor where lease_id > floor.floor order by lease_id limit 1))"),
	'0', '  those that expired last before those that did long ago');
sql($node, 'select settle()');
$node->restart;
is_cheap('all of it, while the router passes over what has ended');

# a lease from before all that has ended, whose settling is not committed
my $token = sql($node, q{select lease_token from outbox.claim('none', 1, '1 day') limit 1});
sql($node, "update outbox.lease set expires_at = clock_timestamp() - interval '30 min' where token = '$token'");
sql($node, "begin; select outbox.ack_all('$token'); prepare transaction 'holder'");
sql($node, 'update floor set floor = (select max(lease_id) from outbox.lease)');
$node->restart;
is_cheap('all of it, behind a lease that cannot be taken back');
# it looks once more at all that have ended, now and then
router_is_cheap('that', $many);
sql($node, q{rollback prepared 'holder'; select * from outbox.claim('idle')});
is(sql($node, "select count(*) from outbox.lease where token = '$token'"), '0', 'it is taken back by the first claim that comes');

# ------------------------------------------------------------ a key that opens

sql($node, "select settle(); select outbox.release_all(token) from outbox.lease where subscription_id = $id{key} and expires_at > clock_timestamp() + interval '1 hour'");
sql($node, q{call work('key', 100)});
sql($node, q{select outbox.retry('key', event_id) from outbox.delivery_exception where subscription_id = (select subscription_id from outbox.subscription where subscription = 'key') and event_key = 'hot'});
sql($node, q{do $$ declare t uuid; begin t := (select lease_token from outbox.claim('key', 1) limit 1); commit; perform outbox.ack_all(t); end $$});
is(sql($node, q{select count(*) from outbox.claim('key', 10) where event_key = 'hot'}), '10', 'the key is open, and its events come');
sql($node, 'select settle()');
is_cheap("$hot parked behind a key that is open");

$node->stop;
done_testing();
