# outbox.archive_function gets each segment before it is dropped, as its owner; when it fails nothing is
# dropped. Two runs at once, a killed run, a session with odd settings; and the router does it all by itself.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use OutboxRetention;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.poll_interval = '100ms'\noutbox.workers = 1\nclient_min_messages = notice\nautovacuum = off\n");

make_effects($node, 'effect', '');
sql($node, q{select outbox.subscribe('main', '{#}', 'public.effect_handler', lanes => 1)});

# the archive function: fails, then is mended
sql($node, q{
	create schema archive; create table archive.old (like outbox.event_log); create table archive.call (segment text, from_time timestamptz, to_time timestamptz, role_name text);
	create role keeper; grant usage on schema archive, outbox to keeper; grant insert on archive.old, archive.call to keeper; grant select on outbox.event to keeper; grant execute on function outbox.tenant_is_visible, outbox.event_is_visible, outbox.sees_all_tenants to keeper; grant create on schema archive to keeper;
	set role keeper;
	create function archive.keep(segment text, from_time timestamptz, to_time timestamptz) returns void language plpgsql as $f$
	begin
		insert into archive.call values (segment, from_time, to_time, current_user);
		perform pg_advisory_xact_lock(7);
		raise exception 'secret' using errcode = 'ZZ001';
	end $f$;
});
$node->append_conf('postgresql.conf', "outbox.archive_function = 'archive.keep'\n");
sub dispatch
{
	my ($state) = @_;
	$node->append_conf('postgresql.conf', "outbox.dispatch = $state\n");
	$node->reload;
	return comes_true($node, 30, "select (count(*) > 0) = ('$state' = 'on') from pg_stat_activity where backend_type ~ 'outbox (router|worker|archiver)'", "dispatch is $state");
}
age($node, q{select outbox.publish('t.archived', event_key => 'e')});
dispatch('off');
my ($rc, $err) = maintain($node);
is($rc, 0, 'the archive function fails: no error');
like($err, qr/WARNING:  upkeep task "archive" failed, code ZZ001/, 'but a warning');
unlike($err, qr/secret/, 'that tells nothing else');
is(status($node, 'archive', "failing and last_error = 'ZZ001'"), 't', 'which the view has too');
is(sql($node, q{select count(*) from outbox.event where event_type = 't.archived'}), '1', 'nothing is dropped');
like(status($node, 'events', 'kept_why'), qr/not archived yet/, 'and the view says why');
my $page = sql($node, 'select * from outbox.status()');
like($page, qr/Upkeep fails since .*task "archive", code ZZ001.*call outbox\.maintain\(\)/, 'the page for a person says so');
like($page, qr/Past their time and still on the disk, task "events": \d+ \(\d{8}: not archived yet/, 'and what stays on the disk, and why');
like(sql($node, 'select outbox.report()'), qr{<td>archive</td>.*<td>ZZ001</td>.*<td>events</td>.*not archived yet}s, 'the report too');
sql($node, q{create or replace function archive.keep(segment text, from_time timestamptz, to_time timestamptz) returns void language plpgsql as $f$
	begin
		insert into archive.call values (segment, from_time, to_time, current_user);
		perform pg_advisory_xact_lock(7);
		insert into archive.old (event_id, event_type, payload_version, occurred_at, published_at, payload, xid, incarnation)
		select e.event_id, e.event_type, e.payload_version, e.occurred_at, e.published_at, e.payload, '1', 1 from outbox.event e where e.published_at >= from_time and e.published_at < to_time;
	end $f$});

# a run that is at work; a second one; and the first is killed
my $holder = $node->background_psql('postgres');
$holder->query_safe('select pg_advisory_lock(7)');
my $run = $node->background_psql('postgres');
$run->query_until(qr/begun/, "\\echo begun\ncall outbox.maintain();\n");
comes_true($node, 30, q{select count(*) = 1 from pg_locks where locktype = 'advisory' and not granted}, 'a run is at work');
($rc, $err) = maintain($node);
is($rc, 0, 'a second one ends while the first is there');
like($err, qr/another run of outbox.maintain\(\) is under way/, 'and says so');
sql($node, q{select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and not granted});
$holder->query_safe('select pg_advisory_unlock(7)');
$holder->quit;
eval { $run->quit };
is(sql($node, q{select count(*) from archive.old}), '0', 'the first was killed');

($rc, $err) = maintain($node, "set statement_timeout = '60s'; set default_transaction_isolation = serializable; set default_transaction_read_only = on; ");
is($err, '', 'a third one, whatever its session is set to');
is(sql($node, q{select count(*) from archive.old where event_type = 't.archived'}), '1', 'archives');
is(sql($node, q{select count(*) from outbox.event where event_type = 't.archived'}), '0', 'and drops');
is(sql($node, q{select string_agg(distinct role_name, ' ') from archive.call}), 'keeper', 'as the owner of the function');
is(status($node, 'archive', "not failing and last_success > last_error_at"), 't', 'the view knows that it goes well again');

# the router does it by itself, 20 seconds after its start, and else every five minutes; the archive function in a process of its own
dispatch('on');
age($node, q{select outbox.publish('t.byitself', event_key => 'f')});
comes_true($node, 120, q{select count(*) = 1 from archive.old where event_type = 't.byitself'}, 'archived by itself');
comes_true($node, 120, q{select count(*) = 0 from outbox.event where event_type = 't.byitself'}, 'and dropped');

is(sql($node, q{select count(*) from outbox.maintenance_status where failing}), '0', 'no task fails in the end');
unlike(sql($node, 'select * from outbox.status()'), qr/Upkeep/, 'and the page for a person says nothing of it');
dispatch('off');
pass_days($node, 1);
comes_true($node, 30, q{select count(*) = 1 from outbox.status() line where line ~ 'Upkeep has not been done since.*outbox.schedule_maintenance'}, 'until nobody does it');
$node->stop;
unlike(slurp_file($node->logfile), qr/could not open relation|PANIC|TRAP/, 'no error of ours is in the log');
done_testing();
