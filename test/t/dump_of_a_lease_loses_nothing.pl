# A dump taken while an external worker holds a lease: where it is restored, the worker's token is worth nothing, and what the
# worker had not settled by the dump is handed out again after outbox.activate(), once, in order and one by one; the attempt counts for
# the first of each key, which it may have begun. So it is when the lease had expired before it comes into its new database, which
# is served already.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $conf = "outbox.poll_interval = '200ms'\noutbox.workers = 1\n";
my $node = new_engine('main', $conf);
my $other = new_engine('other', $conf);
my $dump = $node->basedir . '/dump';

sub ask { return $_[0]->safe_psql($_[1], $_[2]) }

# k1 .. k4, three events each
ask($node, 'postgres', 'create database origin');
ask($node, 'origin', q{
	create extension outbox;
	select outbox.subscribe('queue', '{q.#}', lanes => 2, max_attempts => 3, lease_duration => '1 hour', backoff_base => '1 day', backoff_max => '1 day');
	select outbox.subscribe('unordered', '{q.#}', lanes => 1, ordering => 'none', lease_duration => '1 hour');
	select count(outbox.publish('q.' || n, '{}', event_key => 'k' || k)) from generate_series(1, 3) n, generate_series(1, 4) k;
	call outbox.drain('{}');
});
ok($node->poll_query_until('origin', q{select count(*) = 24 from outbox.lane_entry}), 'routed');
ask($node, 'origin', q{create table work as select c.* from outbox.claim('queue', 9, worker => 'w1') c});
my $token = ask($node, 'origin', 'select distinct lease_token from work');
is(ask($node, 'origin', q{select string_agg(event_key || event_type, ' ' order by event_key, event_type) from work}) =~ tr/k//, 9, 'nine are held');
# by the dump, an event is acknowledged, and the first of another key has failed; the second event of that key went back with it
ask($node, 'origin', qq{select outbox.ack('$token', array[event_id]) from work where event_key = (select min(event_key) from work) and event_type = 'q.1'});
ask($node, 'origin', qq{select outbox.fail('$token', event_id, 'x') from work where event_key = (select max(event_key) from work) and event_type = 'q.1'});
ask($node, 'origin', q{create table work2 as select c.* from outbox.claim('unordered', 12) c; select outbox.ack_all(lease_token) from work2 limit 1});
my $held = ask($node, 'origin', q{select string_agg(event_id::text, ' ' order by event_id) from outbox.lease_events()});
my $first = ask($node, 'origin', q{select string_agg(event_id::text, ' ' order by event_id) from (select distinct on (event_key) h.event_id from outbox.lease_events() h join outbox.event using (event_id) order by event_key, h.event_id) f});
cmp_ok(($held =~ tr/ //) + 1, '>=', 5, 'a lease is open') or diag($held);

$node->command_ok([ 'pg_dump', '-Fc', '-T', 'work*', '-f', $dump, $node->connstr('origin') ], 'dumped');
# the worker goes on where it was
ask($node, 'origin', qq{select outbox.ack_all('$token')});
is(ask($node, 'origin', q{select count(*) from outbox.lease_events()}), '0', 'and its lease ends there');

for ([ $node, 'same server' ], [ $other, 'another server' ])
{
	my ($server, $where) = @$_;
	ask($server, 'postgres', 'create database copy');
	$server->command_ok([ 'pg_restore', '-d', $server->connstr('copy'), $dump ], "$where: restored");
	is(ask($server, 'copy', q{select string_agg(event_id::text, ' ' order by event_id) from outbox.lease_events()}), $held, "$where: the lease is there");
	for my $activated (0, 1)
	{
		is(ask($server, 'copy', 'select outbox.activate()'), 't', "$where: activated") if $activated;
		for my $call ("outbox.ack_all('$token')", "outbox.ack('$token', array['" . (split / /, $held)[0] . "']::uuid[])", "outbox.ack_one('$token', '" . (split / /, $held)[0] . "')",
			"outbox.fail('$token', '" . (split / /, $held)[0] . "')", "outbox.extend('$token')", "outbox.release_all('$token')")
		{
			my ($rc, $out, $err) = $server->psql('copy', "\\set VERBOSITY sqlstate\nselect $call");
			like($err, qr/ERROR:  OB001$/, "$where: " . ($activated ? 'active' : 'held') . ', ' . ($call =~ s/\(.*//r) . ' is refused');
		}
	}
	# everything that comes, until nothing does
	ask($server, 'copy', q{
		create table work (n serial, event_id uuid, event_key text, event_type text, attempt int, alone boolean);
		update outbox.delivery_exception set next_attempt_at = outbox.clock() where status = 'RETRY' and next_attempt_at > outbox.clock();
		do $$
		declare
			token uuid;
			idle integer := 0;
		begin
			while idle < 100 loop
				with c as materialized (select * from outbox.claim('queue', 100)),
				kept as (insert into work (event_id, event_key, event_type, attempt, alone) select event_id, event_key, event_type, attempt, count(*) over () = 1 from c returning 1)
				select max(lease_token::text)::uuid into token from c;
				commit;
				if token is null then
					idle := idle + 1;
					perform pg_sleep(0.02);
				else
					idle := 0;
					perform outbox.ack_all(token);
				end if;
				commit;
			end loop;
		end $$});
	is(ask($server, 'copy', q{select string_agg(event_key || ' ' || what, ', ' order by event_key) from (select event_key, string_agg(event_type, ' ' order by n) as what from work group by 1) w}),
		'k1 q.2 q.3, k2 q.1 q.2 q.3, k3 q.1 q.2 q.3, k4 q.1 q.2 q.3', "$where: all that was not acknowledged comes, once, in order");
	is(ask($server, 'copy', qq{select coalesce(string_agg(event_id::text, ' ' order by event_id), '') from work where attempt = 2 and event_key || event_type <> 'k4q.1'}), $first, "$where: that was an attempt of the first held of each key, and of no other");
	is(ask($server, 'copy', q{select attempt from work where event_key || event_type = 'k4q.1'}), '2', "$where: what had failed is tried again");
	is(ask($server, 'copy', qq{select bool_and(alone) from work where event_id = any (string_to_array('$held', ' ')::uuid[])}), 't', "$where: all that were held come one by one");
	is(ask($server, 'copy', q{select status || ' ' || count(*) || ' ' || count(distinct event_id) from outbox.delivery where subscription = 'queue' group by status}), 'COMPLETED 12 12', "$where: each is completed once");
	is(ask($server, 'copy', q{select count(*) from outbox.claim('unordered', 100)}), '0', "$where: what was done is not handed out");
	is(ask($server, 'copy', q{select count(*) from outbox.lease_events()}) , '0', "$where: nobody holds anything");
}

# the dump is a day old, and its rows come to a database whose router has looked for expired leases before
set_offset($other, 86400);
ask($other, 'postgres', 'create database late');
$other->command_ok([ 'pg_restore', '--section=pre-data', '-d', $other->connstr('late'), $dump ], 'late: the extension is there');
comes_true($other, 60, q{select count(*) = 1 from pg_stat_activity where backend_type = 'outbox router' and datname = 'late'}, 'late: it has a router');
my $commits = q{select xact_commit from pg_stat_database where datname = 'late'};
my $before = ask($other, 'postgres', $commits);
comes_true($other, 60, "select ($commits) > $before + 20", 'late: which looks for work');
$other->command_ok([ 'pg_restore', '--section=data', '--section=post-data', '-d', $other->connstr('late'), $dump ], 'late: the rows are there');
is(ask($other, 'late', q{select string_agg(event_id::text, ' ' order by event_id) from outbox.lease_events()}), $held, 'late: the lease is there');
ask($other, 'late', 'select outbox.activate()');
ok($other->poll_query_until('late', q{select count(*) = 0 from outbox.lease_events()}), 'late: it is taken back');
is(ask($other, 'late', q{select string_agg(event_id::text, ' ' order by event_id) from outbox.delivery where subscription = 'queue'
	and event_id = any (string_to_array('} . $held . q{', ' ')::uuid[]) and status in ('RETRY', 'BLOCKED')}), $held, 'late: all that were held wait to be handed out');
$_->stop for $node, $other;
done_testing();
