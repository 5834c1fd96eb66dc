# A lease belongs to no session: it is claimed, extended and settled from different ones, and outlives a restart
# of the server; and any number of sessions may settle the same events in any order at once without a deadlock.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(within);
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.workers = 0\noutbox.poll_interval = '100ms'\ndeadlock_timeout = '200ms'\nmax_prepared_transactions = 2\n");

# a snapshot from before the claim
sql($node, q{select outbox.subscribe('s', '{e.#}', ordering => 'none')});
sql($node, q{select count(outbox.publish('e.x')) from generate_series(1, 520) n});
sql($node, q{call outbox.drain('{s}')});
for my $level ('repeatable read', 'serializable')
{
	my $old = $node->background_psql('postgres');
	$old->query_safe("begin isolation level $level; select count(*) from pg_class");
	my $token = sql($node, q{select distinct lease_token from outbox.claim('s', 5)});
	is($old->query_safe("select outbox.ack_all('$token')"), '5', "$level: a lease that the snapshot does not see is settled");
	$old->query_safe('commit');
	is(sql($node, "select outbox.ack_all('$token')"), '0', '  and once only');
	$old->quit;
}

# another session each, and a restart in between
my $token = sql($node, q{select distinct lease_token from outbox.claim('s', 10, '10 min')});
is(sql($node, "discard all; select outbox.extend('$token', '20 min') > clock_timestamp() + interval '19 min'"), 't', 'extended by another session');
$node->stop('immediate');
$node->start;
is(sql($node, "select outbox.ack('$token', array(select unnest(event_ids[1:4]) from outbox.lease where token = '$token'))"), '4', 'settled after a crash');
$node->restart;
is(sql($node, q{select count(*) from outbox.lease_events()}), '6', 'the rest is still held');
is(sql($node, "select outbox.release_all('$token')"), '6', 'and goes back');

# a token that somebody else has before the claim is committed: no call waits for that longer than it may
my $claimer = $node->background_psql('postgres');
my ($early, $events) = split /\|/, $claimer->query_safe(q{begin; select lease_token, array_agg(event_id) from outbox.claim('s', 2, '10 min') group by 1});
my @calls = ("outbox.ack('$early', '$events')", "outbox.ack_all('$early')", "outbox.extend('$early')", "outbox.release_all('$early')", "outbox.claim('s', ack => '$early')");
for my $call (@calls)
{
	my ($rc, $out, $err) = $node->psql('postgres', "set lock_timeout = '50ms'; set statement_timeout = '10s'; \\set VERBOSITY sqlstate\nselect $call");
	like($err, qr/55P03/, "$call, the claim being open");
}
$claimer->query_safe('commit');
is(sql($node, "select outbox.ack_all('$early')"), '2', 'settled once it is committed');
($early) = split /\|/, $claimer->query_safe(q{begin; select lease_token from outbox.claim('s', 1, '10 min')});
$claimer->query_safe('rollback');
my ($rc, undef, $refused) = $node->psql('postgres', "select outbox.ack_all('$early')");
like($refused, qr/the lease is lost/, 'lost when it is rolled back');
$claimer->quit;

# settled in a transaction that claims, too, and is rolled back after the lease has expired
sql($node, q{select outbox.subscribe('r', '{r.#}', ordering => 'none'); select count(outbox.publish('r.x')) from generate_series(1, 5) n});
sql($node, q{call outbox.drain('{r}')});
$token = sql($node, q{select distinct lease_token from outbox.claim('r', 3, '10 min')});
my $session = $node->background_psql('postgres');
$session->query_safe("begin; select outbox.ack_all('$token')");
set_offset($node, 900);
ok(defined within(30, sub { return $session->query_safe('show outbox.test_clock_offset') eq '15min' }), 'the lease has expired');
$session->query_safe(q{select count(*) from outbox.claim('r', 1)});
$session->query_safe('rollback');
$session->quit;
comes_true($node, 30, "select not exists (select from outbox.lease where token = '$token')", 'it is taken back');

# a storm
$token = sql($node, q{select distinct lease_token from outbox.claim('s', 500, '10 min')});
sql($node, "create table storm as select unnest(event_ids) as id from outbox.lease where token = '$token'; create table done (n integer)");
sql($node, qq{create function settle() returns integer language plpgsql as \$\$
	declare
		ids uuid[] := array(select id from storm order by random() limit 60);
		done integer;
	begin
		case (random() * 5)::integer
			when 0 then perform outbox.fail('$token', ids[1], 'E', retry_after => '0'); done := 0;
			when 1 then perform outbox.release('$token', ids[1:3]); done := 0;
			when 2 then perform outbox.extend('$token', '10 min'); done := 0;
			else done := outbox.ack('$token', ids || ids);
		end case;
		perform pg_sleep(random() * 0.02);
		insert into done values (done);
		return done;
	exception when sqlstate 'OB001' or sqlstate '55P03' then return 0;
	end \$\$});
my $folder = PostgreSQL::Test::Utils::tempdir();
append_to_file("$folder/storm", "begin;\nselect settle();\nselect settle();\n\\set r random(0, 3)\n\\if :r\ncommit;\n\\else\nrollback;\n\\endif\n");
my ($out, $err);
IPC::Run::run([ 'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-c', '8', '-T', '6', '-f', "$folder/storm", 'postgres' ], '>', \$out, '2>', \$err);
unlike($err, qr/ERROR|aborted/, 'no call fails in a way that its caller does not know') or diag($err);
ok(!$node->log_contains('deadlock detected'), 'nothing deadlocks');
is_sql($node, q{select sum(n) = (select count(*) from outbox.receipt_log) - 16 from done}, 't', 'each completion was told once');
is_sql($node, q{select count(*) from (select event_id from outbox.receipt_log group by 1 having count(*) > 1) d}, '0', 'and there is one of each');
is_sql($node, q{select count(*) from outbox.receipt_log r join outbox.delivery_exception x using (subscription_id, event_id)}, '0', 'none is completed and to be tried again');

# what has failed is not this lease's any more: at once, after a crash, and when that was prepared before a restart
sql($node, q{select outbox.subscribe('f', '{f.#}', ordering => 'none'); select count(outbox.publish('f.x')) from generate_series(1, 8) n});
sql($node, q{call outbox.drain('{f}')});
$token = sql($node, q{select distinct lease_token from outbox.claim('f', 8, '10 min')});
my @held = split /,/, sql($node, "select array_to_string(event_ids, ',') from outbox.lease where token = '$token'");
my $settled = sub {
	my ($call, $event) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY sqlstate\nselect outbox.$call('$token', '$event')");
	return $rc == 0 && $err eq '' ? $out : $err =~ /(\w{5})\s*$/ ? $1 : $err;
};
is($settled->('ack_one', $held[0]), 't', 'one is acknowledged');
is($settled->('fail', $held[1]), 'RETRY', 'one fails');
is($settled->('ack_one', $held[1]), 'OB001', '  and is not acknowledged');
is($settled->('ack_one', $held[2]), 't', '  but the next one is');
$node->stop('immediate');
$node->start;
is($settled->('ack_one', $held[3]), 't', 'after a crash another one is acknowledged');
is($settled->('ack_one', $held[1]), 'OB001', '  and not the one that has failed');
sql($node, "begin; select outbox.fail('$token', '$held[4]'); prepare transaction 'fails'");
$node->restart;
is($settled->('ack_one', $held[5]), 't', 'after a restart another one is acknowledged');
sql($node, "commit prepared 'fails'");
is($settled->('ack_one', $held[4]), 'OB001', '  and not the one whose failure was prepared before');
is(sql($node, "select outbox.ack_all('$token')"), '2', 'the rest is completed');

$node->stop;
done_testing();
