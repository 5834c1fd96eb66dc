# Expired leases are taken back by claims alone, whatever their transactions do; and one that cannot be had keeps no other
# one waiting, nor does it make claims slow.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(is_unserved within);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "autovacuum = off\noutbox.workers = 0\noutbox.poll_interval = '100ms'\n");
my @names = qw(again settled late slow broken other);
sql($node, "select outbox.subscribe(s, array[s], lanes => 1) from unnest('{@{[join ',', @names]}}'::text[]) s");
sql($node, q{select outbox.subscribe('idle', '{idle}'), outbox.subscribe('many', '{many}', ordering => 'none', lanes => 1)});
sql($node, q{select count(outbox.publish('many')) from generate_series(1, 50) n});
sql($node, "select count(outbox.publish(s, event_key => 'k' || n)) from unnest('{@{[join ',', @names]}}'::text[]) s, generate_series(1, 1000) n");
sql($node, 'call outbox.drain()');
# from here on there is no router that would do it
$node->append_conf('postgresql.conf', 'outbox.dispatch = off');
$node->reload;
is_unserved($node, 'postgres', 30, 'nobody else is there');

# the token of one more lease, which expires at once when there is a duration
sub claim
{
	my ($name, $duration) = @_;
	return sql($node, "select lease_token from outbox.claim('$name', 1" . ($duration ? ", '$duration'" : '') . ')');
}

# Does a claim come by the first event once more?  (Retries have their turn most of the times.)
sub comes_back
{
	my ($name, $what) = @_;
	comes_true($node, 30, "select coalesce(bool_or(event_key = 'k1' and attempt > 1), false) from outbox.claim('$name', 1, '1 ms')", $what);
}

# taken back, seen as taken back by the same transaction, and rolled back
claim('again', '1 ms');
is(sql($node, q{begin; select count(*) from outbox.claim('again', 1); select count(*) from outbox.claim('other', 1); rollback}), "1\n1", 'taken back');
comes_back('again', '  and once more after a rollback');
is(sql($node, q{begin; savepoint s; select count(*) from outbox.claim('other', 1, '1 ms'); rollback to s; select count(*) from outbox.claim('other', 1, '1 ms'); commit}), "1\n1", 'a savepoint');

# settled just before it is taken back, and rolled back
my $token = claim('settled', '1 ms');
is(sql($node, qq{begin; select outbox.ack_all('$token'); select count(*) from outbox.claim('settled', 1); rollback}), "1\n1", 'settled too late');
comes_back('settled', '  which was rolled back');

# committed when it has expired, between the moments in which a sweep passes it and has ended
my %s = map { $_ => $node->background_psql('postgres', on_error_stop => 0) } qw(late sweep door);
sql($node, q{select outbox.claim('idle')}) for 1 .. 2;
$s{late}->query_safe(q{begin; select lease_token from outbox.claim('late', 1, '1 ms')});
sql($node, q{do $$ declare t uuid; begin select lease_token into t from outbox.claim('other', 1, '500 ms'); commit; perform outbox.ack_all(t); end $$});
comes_true($node, 30, q{select max(expires_at) < clock_timestamp() from outbox.lease}, 'all have expired');
$s{door}->query_safe('begin; lock table outbox.lease_progress in access exclusive mode');
$s{sweep}->{stdin} .= "select outbox.claim('idle');\n\\echo done\n";
my $ended = sub { $s{sweep}->{run}->pump_nb; return $s{sweep}->{stdout} =~ /done\n/ };
ok(defined within(30, sub { $ended->(); return sql($node, q{select count(*) from pg_locks where relation = 'outbox.lease_progress'::regclass and not granted}) eq '1' }),
	'a sweep has passed it');
$s{late}->query_safe('commit');
$s{door}->query_safe('commit');
ok(defined within(30, $ended), '  and ends');
comes_back('late', 'a lease that was committed meanwhile');
$_->quit for values %s;

# one that somebody is about to settle
sub cost
{
	my $plan = sql($node, q{begin; explain (analyze, buffers) select * from outbox.claim('other', 1); rollback});
	my ($first) = $plan =~ /Buffers: shared ([^\n]*)/;
	my $sum = 0;
	$sum += $1 while $first =~ /(?:hit|read)=(\d+)/g;
	return $sum;
}
my $before = cost();
$token = claim('slow', '1 ms');
my $holder = $node->background_psql('postgres');
$holder->query_safe("begin; select outbox.ack_all('$token')");
sql($node, q{do $$ declare t uuid; begin for i in 1 .. 500 loop
	select lease_token into t from outbox.claim('other', 1, '1 ms'); commit; if t is not null then perform outbox.ack_all(t); commit; end if; end loop; end $$});
cmp_ok(cost(), '<', $before + 300, 'a lease that cannot be had makes the claims of others no slower');
$holder->query_safe('rollback');
$holder->quit;
comes_back('slow', 'it can be had again');

# many that cannot be taken back, more than a claim looks at; each claim is on a connection of its own
is(sql($node, q{do $$ begin for i in 1 .. 40 loop perform from outbox.claim('many', 1, '10 s'); commit; end loop; end $$;
	with broken as (update outbox.lease set lanes = '{}' where expires_at > clock_timestamp() returning expires_at) select count(*) = 40 and min(expires_at) > clock_timestamp() from broken}), 't', 'forty broken leases');
comes_true($node, 30, q{select max(expires_at) < clock_timestamp() from outbox.lease}, '  have expired');
claim('again', '1 ms');
comes_back('again', '  and keep none behind them waiting');
sql($node, q{update outbox.lease set lanes = '{0}' where cardinality(lanes) = 0});
comes_true($node, 30, q{select count(*) >= 0 and not exists (select from outbox.lease_events() h join outbox.subscription using (subscription_id) where subscription = 'many') from outbox.claim('idle')},
	'  and are taken back when they are whole');

# one that cannot be taken back at all; the router goes past it
$node->append_conf('postgresql.conf', 'outbox.dispatch = on');
$node->reload;
my $from = -s $node->logfile;
# not before now: a sweep may have gone past that
sql($node, q{update outbox.lease set lanes = '{}', expires_at = clock_timestamp() + interval '1 s' where token = '} . claim('broken', '1 hour') . q{'});
comes_true($node, 30, q{select max(expires_at) < clock_timestamp() from outbox.lease where cardinality(lanes) = 0}, 'a lease that has expired is broken');
sql($node, q{do $$ begin for i in 1 .. 500 loop perform from outbox.claim('other', 1, '1 ms'); commit; end loop; end $$});
is(sql($node, q{select count(*) from outbox.claim('broken', 1)}), '0', '  and nothing of it comes');
claim('again', '1 ms');
comes_back('again', '  keeps no other one waiting');
my @lines = slurp_file($node->logfile, $from) =~ /cannot be taken back, code XX001/g;
ok(@lines > 0 && @lines < 100, '  is told, a line a second in a session at most: ' . @lines);
sql($node, q{update outbox.lease set lanes = '{0}' where cardinality(lanes) = 0});
comes_back('broken', '  and is taken back when it is whole');

$node->stop;
done_testing();
