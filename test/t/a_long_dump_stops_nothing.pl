# A session holds a lock on each table for hours, as a dump does: everything goes on beside it, from the start of processes to upkeep, and
# nobody waits. Whoever asked for a stronger lock would wait, and all publishers behind it.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(processes served log_position within);
use OutboxRetention;
use OutboxStates qw(set_dispatch);
use PostgreSQL::Test::Utils;
use Test::More;

# a wait for a lock is in the log, whosever it is, if it lasts for a tenth of a second
my $node = new_engine('dumped', q{
outbox.workers = 2
outbox.poll_interval = 100ms
log_lock_waits = on
deadlock_timeout = 100ms
});
my $impatient = q{set lock_timeout = '1s';};

# no statement of ours may take longer than its locks allow
sub goes_on
{
	my ($what, $query, $expected) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "$impatient $query");
	is($rc, 0, $what) or diag($err);
	is($out, $expected, "$what: its result") if defined $expected;
	return $out;
}

make_effects($node, 'effect', q{if e.payload @> '{"fails": 1}' and not exists (select from healed) or e.payload @> '{"fails": 2}' then raise exception using errcode = '22000'; end if;});
sql($node, q{
	create table healed ();
	select outbox.subscribe('handled', '{a.#}', 'public.effect_handler'), outbox.subscribe('mail', '{a.#}');
});
# there is a segment that will be past its time during the dump, and nothing that upkeep has to do just before
sub days_later
{
	my ($days, $in_all) = @_;
	pass_days($node, $days);
	comes_true($node, 30, "select outbox.clock() > now() + interval '$in_all days' - interval '1 hour'", "$in_all days later");
}
sql($node, q{select outbox.publish('a.old', event_key => 'k'), outbox.publish('a.bad', '{"fails": 1}', event_key => 'b'), outbox.publish('a.worse', '{"fails": 2}', event_key => 'c')});
drain($node, 60, 'delivered');
sql($node, q{create table old as select * from outbox.claim('mail', max_events => 10)});
is_sql($node, q{select sum(outbox.ack_all(lease_token)) from (select distinct lease_token from old) m}, '3', 'before the dump: an old claim is settled');

days_later(20, 20);
goes_on('maintain', 'call outbox.maintain()');
my $dump = $node->background_psql('postgres');
$dump->query_safe(q{begin isolation level repeatable read; set client_min_messages = error;
	do $$ declare t regclass; begin
		for t in select c.oid from pg_class c where c.relnamespace = 'outbox'::regnamespace and c.relkind in ('r', 'p') order by c.oid loop
			execute format('lock table %s in access share mode', t);
		end loop;
	end $$});
is($dump->query_safe(q{
	select count(*) > 40 and count(*) = count(l.pid)
	from pg_class c left join pg_locks l on l.relation = c.oid and l.mode = 'AccessShareLock' and l.granted and l.pid = pg_backend_pid()
	where c.relnamespace = 'outbox'::regnamespace and c.relkind in ('r', 'p')}), 't', 'every table is held');
my $dump_pid = $dump->query_safe('select pg_backend_pid()');
my $start = log_position($node);

# an application goes on publishing meanwhile
my $publisher = $node->background_psql('postgres');
$publisher->query_until(qr/begun/, "$impatient\n\\echo begun\n"
	. join('', map { "select count(outbox.publish('a.meanwhile', event_key => 'm')); select pg_sleep(0.05);\n" } 1 .. 100));

# ---------------------------------------------------------------- processes

my @before = map { pids($node, "outbox $_") } 'router', 'worker';
goes_on('all processes end', q{select bool_and(pg_terminate_backend(pid)) from pg_stat_activity where backend_type in ('outbox router', 'outbox worker')}, 't');
ok(defined within(60, sub {
	my %now = map { $_ => 1 } map { pids($node, "outbox $_") } 'router', 'worker';
	return processes($node, 'postgres') eq served(2) && !grep { $now{$_} } @before }), 'and others take their place');
set_dispatch($node, 'off');
set_dispatch($node, 'on');
ok(defined within(60, sub { processes($node, 'postgres') eq served(2) }), 'or they are switched off and on');

# ---------------------------------------------------------------- who calls us

goes_on('subscribe', q{select count(outbox.subscribe(s, '{b.#}', h)) from (values ('new', 'public.effect_handler'), ('new_mail', null)) v (s, h)}, '2');
goes_on('define a type', q{select outbox.define_event_type('b.x', allowed_keys => '{n, fails}') is not null});
goes_on('publish', q{select count(outbox.publish('b.x', jsonb_build_object('n', n), event_key => n::text)) from generate_series(1, 20) n}, '20');
goes_on('publish a batch', q{select count(*) from outbox.publish_batch('[{"event_type": "b.x", "dedup_key": "d"}, {"event_type": "b.x"}]')}, '2');
comes_true($node, 20, q{select count(*) = 22 from effect join outbox.event using (event_id) where event_type = 'b.x'}, 'they are handled');
goes_on('wait', q{call outbox.wait('{new_mail}', timeout => '10s')});
goes_on('claim', q{create table mine as select * from outbox.claim('new_mail', max_events => 100); select count(*) > 0 from mine}, 't');
goes_on('extend', q{select count(outbox.extend(lease_token, '5 min')) from (select distinct lease_token from mine) m});
goes_on('ack', q{begin; select count(outbox.ack(lease_token, array[event_id])) from (select * from mine order by event_id limit 1) m; commit}, '1');
goes_on('fail', q{select count(outbox.fail(lease_token, event_id, 'X0001')) from (select * from mine order by event_id offset 1 limit 1) m}, '1');
goes_on('release', q{select count(outbox.release_all(lease_token)) from (select distinct lease_token from mine) m});
goes_on('alter_subscription', q{select count(outbox.alter_subscription(s, max_attempts => 3, lanes => 8)) from unnest('{new,new_mail}'::text[]) s}, '2');
goes_on('pause', q{select outbox.pause('new')});
goes_on('resume', q{select outbox.resume('new')});
goes_on('retry', q{insert into healed default values; select outbox.retry(subscription, event_id) from outbox.review_required where event_type = 'a.bad'}, 't');
comes_true($node, 20, q{select count(*) = 1 from effect join outbox.event using (event_id) where event_type = 'a.bad'}, 'it is tried again');
goes_on('discard', q{select outbox.discard(subscription, event_id, 'enough') from outbox.review_required where event_type = 'a.worse'}, 't');
goes_on('replay', q{select outbox.replay('handled', now() - interval '1 hour') is not null});
goes_on('grant', q{create role app; select count(outbox.grant_publisher('app', '{a.#}')), count(outbox.grant_worker('app', 'mail'))});
goes_on('revoke', q{select count(outbox.revoke_publisher('app', '{a.#}'))});
goes_on('look', q{select count(*) > 0 from outbox.status()});
goes_on('unsubscribe', q{select outbox.subscribe('short', '{never}'); select outbox.unsubscribe('short')});

# ---------------------------------------------------------------- upkeep

days_later(20, 40);
goes_on('maintain, of what is past its time', 'call outbox.maintain()');
my ($kept, $why) = split /: /, status($node, 'events', 'kept_why');
like($why, qr/^another session uses it/, 'what is past its time is kept while the dump reads it');
days_later(40, 80);
goes_on('publish on a day without a segment', q{select count(outbox.publish('b.x', event_key => 'new day'))}, '1');
goes_on('maintain, forty days later', 'call outbox.maintain()');
is_sql($node, q{select count(*) > 20 from outbox.segment where name > to_char(outbox.clock() at time zone 'utc', 'YYYYMMDD')}, 't', 'there are segments for the days ahead');
is_sql($node, q{select coalesce(string_agg(task || ' ' || last_error, ', '), '') from outbox.maintenance_status where failing}, '', 'no task of upkeep fails');
drain($node, 30, 'everything is settled');

# ---------------------------------------------------------------- nobody has waited

$publisher->query_safe('select 1');
unlike($publisher->{stderr} // '', qr/ERROR/, 'no publisher has failed');
$publisher->quit;
is_sql($node, q{select count(*) from outbox.event where event_type = 'a.meanwhile'}, '100', 'all is published');
# (whoever waited for the dump would wait as long as it is there)
comes_true($node, 30, q{select count(*) = 0 from pg_locks where not granted}, 'nobody waits');
my $log = substr(slurp_file($node->logfile), $start);
is(join("\n", grep { /canceling statement due to lock timeout/ } split /\n/, $log), '', 'nobody has waited in vain');
# two that make segments at once may wait for each other; the next line says who has the lock
is(join("\n", grep { !/\n.*DETAIL:  Process(?:es)? holding the lock: [\d, ]+\./ || /holding the lock: [^.]*\b$dump_pid\b/ } $log =~ /^[^\n]*still waiting for \w+ on relation[^\n]*\n[^\n]*/mg),
	'', 'nobody has waited for a table that the dump has');

$dump->query_safe('commit');
$dump->quit;
goes_on('maintain, after the dump', 'call outbox.maintain()');
is_sql($node, qq{select count(*) from outbox.segment where name = '$kept' and events_dropped_at is null}, '0', 'what was kept for the dump goes after it');
$node->stop;
done_testing();
