# Eight claimers that acknowledge, fail, release, extend, let leases expire and are killed, on a server that
# crashes: each delivery is completed once, the order of keys holds, no two of them ever work a key at the
# same time, and in the end everything is settled.  OUTBOX_TEST_FULL=1: for a minute.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(within);
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $seconds = $ENV{OUTBOX_TEST_FULL} ? 60 : 15;
my $events = $ENV{OUTBOX_TEST_FULL} ? 12000 : 2500;
my $node = new_engine('main', "restart_after_crash = on\nfsync = on\noutbox.poll_interval = '100ms'\noutbox.workers = 0\n");

sql($node, q{
	create table held (subscription text, token uuid, n integer, event_id uuid, event_key text, seq integer,
		started_at timestamptz, expires_at timestamptz, ended_at timestamptz);
	create index on held (token);
	create table weather (calm boolean);
	insert into weather values (false);
	create table effect (n bigint generated always as identity, subscription text, event_id uuid, event_key text, seq integer);
	-- the token of a lease, or nothing; from here on its events are being worked.  Half of the time the claim acknowledges what is
	-- left of the lease before, whichever subscription that was of.
	create function take(of text, before text) returns text language plpgsql as $$
	declare
		done uuid := case when before not in ('', 'none') and random() < 0.5 then before::uuid end;
		token text;
	begin
		begin
			insert into effect (subscription, event_id, event_key, seq)
			select subscription, event_id, event_key, seq from held h where h.token = done and ended_at is null order by n;
			update held h set ended_at = clock_timestamp() where h.token = done and ended_at is null;
			with c as materialized (select * from outbox.claim(of, 1 + (random() * 12)::integer,
				case when random() < 0.2 then interval '150 ms' else interval '400 ms' end, 'w', ack => done) with ordinality),
			noted as (insert into held select of, lease_token, ordinality, event_id, event_key, (payload ->> 'seq')::integer, clock_timestamp(), lease_expires_at from c)
			select coalesce(min(lease_token::text), '') into token from c;
		exception
			when sqlstate 'OB001' or sqlstate '55P03' then token := '';
		end;
		return token;
	end
	$$;
	-- what is done with one event; false: no more of this lease
	create function handle(h held) returns boolean language plpgsql as $$
	declare
		r float8 := case when (select calm from weather) then 0 else random() end;
	begin
		-- with one that fails or goes back the later ones of its key go too, where the order is kept
		update held set ended_at = clock_timestamp()
		where token = h.token and (n = h.n or h.subscription = 'ordered' and r between 0.70 and 0.86 and n > h.n and event_key = h.event_key);
		if r < 0.70 then
			insert into effect (subscription, event_id, event_key, seq) values (h.subscription, h.event_id, h.event_key, h.seq);
			perform outbox.ack(h.token, array[h.event_id]);
		elsif r < 0.80 then
			perform outbox.fail(h.token, h.event_id, 'E' || (random() * 3)::integer, retry_after => case when random() < 0.5 then interval '10 ms' end);
			return null;
		elsif r < 0.86 then
			perform outbox.release(h.token, array[h.event_id], case when random() < 0.5 then interval '20 ms' end);
			return null;
		elsif r < 0.92 then
			update held set ended_at = case when n <> h.n then ended_at end, expires_at = outbox.extend(h.token, interval '500 ms') where token = h.token and n >= h.n;
			insert into effect (subscription, event_id, event_key, seq) values (h.subscription, h.event_id, h.event_key, h.seq);
			update held set ended_at = clock_timestamp() where token = h.token and n = h.n;
			perform outbox.ack_one(h.token, h.event_id, 'm');
		elsif r < 0.96 then
			-- not at all: the lease expires
			update held set ended_at = null where token = h.token and n = h.n;
			return false;
		else
			insert into effect (subscription, event_id, event_key, seq) values (h.subscription, h.event_id, h.event_key, h.seq);
			perform outbox.ack(h.token, array[h.event_id]);
			raise 'rolled back' using errcode = 'ZZ001';
		end if;
		return true;
	exception
		when sqlstate 'OB001' then return false;
		when sqlstate '55P03' or sqlstate 'ZZ001' then return false;
	end
	$$;
	create procedure work(of_token text) language plpgsql as $$
	declare
		h held;
		gone text[] := '{}';
		answer boolean;
	begin
		for h in select * from held where token = nullif(of_token, '')::uuid order by n loop
			continue when h.event_key = any (gone);
			answer := handle(h);
			commit;
			exit when answer = false;
			if answer is null and h.event_key is not null then
				gone := gone || h.event_key;
			end if;
		end loop;
	end
	$$;
	select outbox.subscribe('ordered', '{e.#}', lanes => 6, max_attempts => 1000, backoff_base => '1 ms', backoff_factor => 1, backoff_max => '5 ms');
	select outbox.subscribe('none', '{e.#}', ordering => 'none', lanes => 3, max_attempts => 1000, backoff_base => '1 ms', backoff_factor => 1, backoff_max => '5 ms');
});
my $folder = PostgreSQL::Test::Utils::tempdir();
append_to_file("$folder/claimer", qq{\\set s random(0, 2)\n\\if :s\nselect take('ordered', :t) as t \\gset\n\\else\nselect take('none', :t) as t \\gset\n\\endif\ncall work(:t);\n});
append_to_file("$folder/publisher", qq{\\set k random(0, 25)\nselect outbox.publish('e.x', jsonb_build_object('seq', nextval('seq')), event_key => nullif('k' || :k, 'k0')) from pg_advisory_xact_lock(1, :k);\n});
sql($node, 'create sequence seq');

my %clients;
my $ignored;

sub start_client
{
	my ($number) = @_;
	$clients{$number} = IPC::Run::start(
		[ 'pgbench', '-n', '-M', 'prepared', '-h', $node->host, '-p', $node->port, '-c', '1', '-T', '1000', '-D', 't=none', '-f', "$folder/claimer\@1", 'postgres' ],
		'>', '/dev/null', '2>', \$ignored);
}

sub start_publisher
{
	return IPC::Run::start(
		[ 'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-c', '2', '-R', int($events / $seconds), '-T', '1000', '-f', "$folder/publisher", 'postgres' ],
		'>', '/dev/null', '2>', \$ignored);
}

sub kill_client
{
	my ($number) = @_;
	$clients{$number}->kill_kill(grace => 0);
	delete $clients{$number};
}

start_client($_) for 1 .. 8;
my $publisher = start_publisher();
my $until = time + $seconds;
my $crash_at = time + $seconds / 2;
my ($kills, $crashes, $crashed_at) = (0, 0);
while (time < $until)
{
	usleep(300_000);
	my $victim = 1 + int(rand(8));
	kill_client($victim);
	start_client($victim);
	$kills++;
	next unless $crash_at && time > $crash_at;
	$node->stop('immediate');
	$node->start;
	$crashed_at = sql($node, 'select pg_postmaster_start_time()');
	$crash_at = 0;
	$crashes++;
	$publisher->kill_kill(grace => 0);
	$publisher = start_publisher();
	for my $number (1 .. 8) { kill_client($number); start_client($number); }
}
$publisher->kill_kill(grace => 0);
sql($node, 'update weather set calm = true');
ok($kills > 10 && $crashes == 1, "$kills clients were killed, and the server once");

my $published = sql($node, q{select count(*) from outbox.event where event_type = 'e.x'});
ok($published > $events / 4, "$published events were published");
comes_true($node, 120, q{select count(*) = 2 * (select count(*) from outbox.event where event_type = 'e.x') from outbox.receipt_log}, 'everything is settled in the end');
kill_client($_) for keys %clients;

is_sql($node, q{select count(*) from (select subscription_id, event_id from outbox.receipt_log group by 1, 2 having count(*) > 1) d}, '0', 'each delivery has one receipt');
is(reconcile($node, $_, "(select * from effect where subscription = '$_') e"), '', "$_: effects are receipts, exactly") for qw(ordered none);
my $disordered = q{(select event_key as k, seq as s, before from (select event_key, seq, lag(seq) over (partition by event_key order by n) as before
	from effect where subscription = 'ordered' and event_key is not null) o where seq < before) d};
is_sql($node, "select count(*) from $disordered", '0', 'the order of keys holds') or diag("crashed at $crashed_at", sql($node, qq{
	select format('%s: %s after %s', k, s, before) from $disordered;
	select 'handed out', h.event_key, h.seq, token, h.n, started_at, expires_at, ended_at, e.n
	from held h join $disordered on event_key = k and h.seq between s - 50 and before + 50 left join effect e using (subscription, event_id)
	where subscription = 'ordered' order by started_at, h.n;
	select 'failed', h.event_key, h.seq, attempt, started_at, failed_at, error_code
	from outbox.attempt a join (select distinct event_id, event_key, seq from held) h using (event_id)
	join $disordered on event_key = k and h.seq between s - 50 and before + 50 where subscription = 'ordered' order by failed_at}));
# a holder has an event until it settled it, or until its lease ended
is_sql($node, q{select count(*) from held a join held b on a.subscription = b.subscription and a.event_key = b.event_key and a.token < b.token
	where a.subscription = 'ordered' and greatest(a.started_at, b.started_at) < least(coalesce(least(a.ended_at, a.expires_at), a.expires_at), coalesce(least(b.ended_at, b.expires_at), b.expires_at))},
	'0', 'no key is worked by two at a time');
is_sql($node, q{select count(*) from held a join held b on a.event_id = b.event_id and a.subscription = b.subscription and a.token < b.token
	where a.subscription = 'none' and greatest(a.started_at, b.started_at) < least(coalesce(least(a.ended_at, a.expires_at), a.expires_at), coalesce(least(b.ended_at, b.expires_at), b.expires_at))},
	'0', 'no event is worked by two at a time');
is_sql($node, q{select count(*) > 10 from outbox.attempt where error_code = 'lease_expired'}, 't', 'leases expired');
is_sql($node, q{select count(*) from outbox.lease_events()}, '0', 'nobody holds anything');
is_sql($node, q{select string_agg(concat_ws(' ', subscription, backlog, retry, in_progress, blocked, review_required), ', ' order by subscription) from outbox.subscription_status},
	'none 0 0 0 0 0, ordered 0 0 0 0 0', 'nothing is left');
ok(!$node->log_contains('ERROR:'), 'no call failed in a way that its caller does not know');
ok(!$node->log_contains('cannot be taken back'), 'every lease could be taken back');

$node->stop;
done_testing();
