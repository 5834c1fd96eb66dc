# A claim, a look for expired leases, an idle poll and an acknowledgement cost the same whatever lies beside: events that are done,
# delayed, in review, parked behind a key, held by others; without statistics, and with generic plans forced.
# OUTBOX_TEST_FULL=1: a million of each.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use Test::More;

my $many = $ENV{OUTBOX_TEST_FULL} ? 1_000_000 : 100_000;
my $node = new_engine('main', "autovacuum = off\nfsync = off\noutbox.workers = 0\nmax_wal_size = '4GB'\noutbox.poll_interval = '200ms'\n");
sql($node, q{select outbox.subscribe('s', '{e.#}'), outbox.subscribe('idle', '{nothing.#}'), outbox.subscribe('other', '{nothing.#}', ordering => 'none')});
my $s = sql($node, q{select subscription_id from outbox.subscription where subscription = 's'});

# of a plan with buffers
sub buffers
{
	my ($plan) = @_;
	my ($first) = $plan =~ /Buffers: shared ([^\n]*)/;
	my $sum = 0;
	$sum += $1 while $first =~ /(?:hit|read)=(\d+)/g;
	return $sum;
}

# buffers that a statement touches
sub cost
{
	my ($statement) = @_;
	return buffers(sql($node, "set plan_cache_mode = force_generic_plan; $statement; begin; explain (analyze, buffers) $statement; rollback"));
}

sub is_cheap
{
	my ($beside) = @_;
	my $claim = cost("select * from outbox.claim('s', 10)");
	my $idle = cost("select * from outbox.claim('idle', 10)");
	ok($claim < 500 && $idle < 500, "beside $beside: a claim of 10 costs $claim buffers, an idle poll $idle");
	sql($node, q{update outbox.lease set expires_at = clock_timestamp() where subscription_id = (select subscription_id from outbox.subscription where subscription = 's')
		and not exists (select from outbox.lease_progress p where p.lease_id = lease.lease_id)});
}

sql($node, q{select count(outbox.publish('e.x', event_key => 'k' || n)) from generate_series(1, 400) n});
sql($node, q{call outbox.drain('{s}')});
is_cheap('nothing');

# in one session, so that nothing is read for the first time
my ($token, @ids) = split ' ', sql($node, q{select min(lease_token::text) || ' ' || string_agg(event_id::text, ' ') from outbox.claim('s', 20)});
my @costs = map { buffers($_) } split /QUERY PLAN/, sql($node, join ';', map { "select 'QUERY PLAN'; explain (analyze, buffers) select outbox.ack_one('$token', '$_')" } @ids);
cmp_ok($costs[-1], '<=', $costs[2] + 10, "acknowledging event $#ids of a lease costs $costs[-1] buffers, the second $costs[2]");

my %exception = (
	'deliveries in review' => q{'REVIEW_REQUIRED', null::timestamptz},
	'delayed deliveries' => q{'RETRY', clock_timestamp() + interval '1 day'});
for my $what (sort keys %exception)
{
	sql($node, qq{set session_replication_role = replica;
		insert into outbox.delivery_exception (subscription_id, event_id, lane, position, status, next_attempt_at, attempts, tenant_id, event_key)
		select $s, gen_random_uuid(), n % 16, 1, v.*, 1, '', 'x' || n from generate_series(1, $many) n, (values ($exception{$what})) v});
	is_cheap("$many $what");
}
sql($node, qq{with g as (insert into outbox.gate (subscription_id, lane, tenant_id, event_key, held_by, through, created_at)
	select $s, n % 16, '', 'x' || n, gen_random_uuid(), 0, now() from generate_series(1, 1000) n returning gate_id)
	insert into outbox.parked select gate_id, n, gen_random_uuid() from g, generate_series(1, $many / 1000) n});
is_cheap("$many parked behind keys");
sql($node, qq{insert into outbox.lease (token, subscription_id, incarnation, claim_xid, claimed_at, expires_at, events, event_ids, lanes, positions)
	select gen_random_uuid(), (select subscription_id from outbox.subscription where subscription = 'other'), 1, '1', clock_timestamp(), clock_timestamp() + interval '1 day', 100,
		array(select gen_random_uuid() from generate_series(1, 100) where n > 0), array_fill(0, array[100]), array_fill(1::bigint, array[100]) from generate_series(1, $many / 100) n});
is_cheap("$many held by others");
sql($node, qq{with l as (insert into outbox.lease (token, subscription_id, incarnation, claim_xid, claimed_at, expires_at, events, event_ids, lanes, positions)
	select gen_random_uuid(), (select subscription_id from outbox.subscription where subscription = 'other'), 1, '1', clock_timestamp(), clock_timestamp() - interval '10 min', 1,
		array[gen_random_uuid()], '{0}', '{1}' from generate_series(1, $many) n returning lease_id)
	insert into outbox.lease_progress select lease_id, 1, true, '{0}' from l;
	insert into outbox.lane_cursor select $s, lane, 0 - n from generate_series(0, 15) lane, generate_series(1, $many / 16) n});
# the router has passed over what has ended before it is looked at again
is_cheap("$many done");

$node->stop;
done_testing();
