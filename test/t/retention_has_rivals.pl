# Retention among those who use old events while they go: a dump that runs through it, reports, replays of each
# event. Nobody fails, nothing that was promised is lost, and no strong lock is ever waited for. A run of
# outbox.maintain() that is out of time or killed keeps what it has done.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;

my $days = 86400;
my $node = new_engine('main', "outbox.poll_interval = '100ms'\noutbox.workers = 1\nclient_min_messages = notice\nautovacuum = off\n");
my $offset = 0;

sub status { return sql($node, "select $_[1] from outbox.maintenance_status where task = '$_[0]'") }
sub maintain { my ($rc, $out, $err) = $node->psql('postgres', ($_[0] // '') . 'call outbox.maintain()'); return ($rc, $err) }
sub is_there { return sql($node, "select count(*) from outbox.event_log where event_type = '$_[0]' and tableoid <> 'outbox.event_log_kept'::regclass") }

sub move_on
{
	my ($by) = @_;
	$offset += $by * $days;
	set_offset($node, $offset);
	return comes_true($node, 20, "select abs(extract(epoch from outbox.clock() - clock_timestamp()) - $offset) < 10", 'the clock is moved');
}

sub sealed
{
	return comes_true($node, 30, q{select count(*) > 0 and bool_and(sealed) from outbox.segment where name < to_char(outbox.clock() at time zone 'utc' - interval '1 day', 'YYYYMMDD')}, 'sealed');
}

make_effects($node, 'effect', '');
sql($node, q{
	select outbox.subscribe('main', '{#}', 'public.effect_handler', lanes => 4);
	create table waited (longest interval);
	create procedure watch() language plpgsql as $p$
	declare
		longest interval := '0';
	begin
		-- holds nothing but its snapshot of the moment
		while not pg_try_advisory_lock(99) loop
			longest := greatest(longest, (select max(clock_timestamp() - waitstart) from pg_locks where not granted and mode = 'AccessExclusiveLock'));
			perform pg_sleep(0.002);
			commit;
		end loop;
		insert into waited values (longest);
	end $p$;
	select count(outbox.publish('t.old', jsonb_build_object('n', n, 'long', (select string_agg(md5(n::text || m), '') from generate_series(1, 20) m)))) from generate_series(1, 400) n;
});
drain($node, 20, 'delivered');
move_on(32);
$node->append_conf('postgresql.conf', "outbox.retention = '1000d'\n");
$node->reload;
sealed();
my @old = split /\n/, sql($node, q{select event_id from outbox.event where event_type = 't.old' order by 1 limit 150});

my $stop = $node->background_psql('postgres');
$stop->query_safe('select pg_advisory_lock(99)');
my $watch = $node->background_psql('postgres');
$watch->query_until(qr/begun/, "\\echo begun\ncall watch();\n");

# a dump that has begun, whose reader is slow
open my $dump, '-|', 'pg_dump', $node->connstr('postgres') or die $!;
my $dumped = <$dump>;
$node->append_conf('postgresql.conf', "outbox.retention = '30d'\n");
$node->reload;
comes_true($node, 10, q{select current_setting('outbox.retention') = '30d'}, 'from now on they are past their time');
my $publisher = $node->background_psql('postgres');
$publisher->query_until(qr/begun/, "set lock_timeout = '100ms';\n\\echo begun\n"
	. join('', map { "select count(outbox.publish('t.new')); select pg_sleep(0.02);\n" } 1 .. 50));
my ($rc, $err) = maintain();
is($rc, 0, 'beside a dump: no error');
like(status('events', 'kept_why'), qr/another session uses it/, 'its segments stay');
is(is_there('t.old'), '400', 'with their events');
$publisher->query_safe('select 1');
is($publisher->{stderr}, '', 'no publisher has waited');
$publisher->quit;

# each old event is replayed, and reports are made, while the segment is tried to be dropped again and again
my $replayer = $node->background_psql('postgres');
my $reporter = $node->background_psql('postgres');
sql($node, q{
	create table replayed (event_id uuid, n bigint);
	-- of one that is gone there is none
	create function replay(id uuid) returns bigint language plpgsql as $f$
	begin
		return outbox.replay('main', array[id]);
	exception when undefined_object then
		return 0;
	end $f$});
$reporter->query_until(qr/begun/, "\\echo begun\ndo \$\$ begin for i in 1 .. 15 loop perform outbox.report(outbox.clock() - interval '40 days'), count(*) from outbox.event; commit; end loop; end \$\$;\n");
$replayer->query_until(qr/begun/, "\\echo begun\n"
	. join('', map { "begin; insert into replayed select '$_', replay('$_'); select pg_sleep(0.003); commit; select pg_sleep(0.003);\n" } @old));
# while the dump is open the segment stays, so some find their event
comes_true($node, 30, q{select count(*) > 5 from replayed}, 'some are asked for');
$dumped .= $_ while <$dump>;
ok(close $dump, 'the dump ends well');
is(() = $dumped =~ /\tt\.old\t/g, 400, 'and has them all');
maintain() for 1 .. 3;
comes_true($node, 60, q{select count(*) = 150 from replayed}, 'all were asked for');
$replayer->query_safe('select 1');
$reporter->query_safe('select 1');
is($replayer->{stderr} . $reporter->{stderr}, '', 'no replay and no report has failed');
# a worker that delivers one of them may have it open
ok(within(30, sub { maintain(); return is_there('t.old') eq '0' }), 'and the segment is gone');
$_->quit for $replayer, $reporter;
drain($node, 30, 'delivered');
comes_true($node, 30, q{select count(*) = (select 150 + sum(n) from replayed) from effect where event_id in (select event_id from replayed)}, 'what was promised was delivered once more');
my $promised = sql($node, 'select sum(n) from replayed');
cmp_ok($promised, '>', 0, "$promised of 150 were still there");
is(sql($node, q{select coalesce(max(c), 0) from (select count(*) as c from effect group by event_id) e}) <= 2 ? 1 : 0, 1, 'and none twice');
is(sql($node, q{select count(*) from outbox.review_required}), '0', 'and none has failed');

# a replay that begins when it has been looked who needs the events, and before the segment is locked
sql($node, q{select outbox.publish('t.late')});
drain($node, 20, 'delivered');
$node->append_conf('postgresql.conf', "outbox.retention = '1000d'\n");
$node->reload;
move_on(32);
sealed();
sub dispatch
{
	my ($state) = @_;
	$node->append_conf('postgresql.conf', "outbox.dispatch = $state\n");
	$node->reload;
	return comes_true($node, 20, "select current_setting('outbox.dispatch') = '$state' and ('$state' = 'on' or (select count(*) = 0 from pg_stat_activity where backend_type ~ 'outbox (router|worker|archiver)'))", "dispatch is $state");
}
dispatch('off');
$node->append_conf('postgresql.conf', "outbox.retention = '30d'\n");
$node->reload;
my ($late) = sql($node, q{select event_id from outbox.event where event_type = 't.late'});
my ($slow, $person, $eager) = map { $node->background_psql('postgres') } 1 .. 3;
my $segment = sql($node, "select tableoid::regclass from outbox.event_log where event_id = '$late'");
$person->query_safe("begin; select count(*) from $segment");
maintain();
is(status('events', 'kept'), '1', 'only one segment is left');
$person->query_safe('commit');
# each within the second that the run waits for a lock; when one of them came too late, the segment is still there, and it is done once more
my $pid = $eager->query_safe('select pg_backend_pid()');
$stop->query_safe(qq{create procedure soon(condition text) language plpgsql as \$p\$
	declare
		met boolean := false;
	begin
		for i in 1 .. 5000 loop
			perform pg_stat_clear_snapshot();
			execute 'select ' || condition into met;
			exit when met or (i > 500 and exists (select from pg_stat_activity where pid = $pid and state = 'idle'));
			perform pg_sleep(0.002);
		end loop;
	end \$p\$});
my $replays = 0;
do
{
	$slow->query_safe('begin; lock outbox.delayed in access exclusive mode');
	$eager->query_until(qr/begun/, "\\echo begun\ncall outbox.maintain();\n");
	$stop->query_safe("call soon(\$\$exists (select from pg_locks where pid = $pid and not granted and relation = 'outbox.delayed'::regclass)\$\$)");
	is($person->query_safe("begin; select outbox.replay('main', array['$late'::uuid])"), '1', 'a replay');
	$slow->query_safe('commit');
	$stop->query_safe("call soon('exists (select from pg_stat_activity where pid = $pid and wait_event_type = ''Extension'')')");
	$person->query_safe('commit');
	$eager->query_safe('select 1');
	$replays++;
} while (is_there('t.late') ne '0' && $replays < 10);
is(is_there('t.late'), '0', 'the segment is gone');
is(sql($node, "select tableoid::regclass from outbox.event_log where event_id = '$late'"), 'outbox.event_log_kept', 'and the event is kept');
dispatch('on');
comes_true($node, 30, "select count(*) = 1 + $replays from effect where event_id = '$late'", 'and delivered once more');
$_->quit for $slow, $person, $eager;

$stop->query_safe('select pg_advisory_unlock(99)');
$watch->query_safe('select 1');
is(sql($node, q{select longest < '1 second' from waited}), 't', 'a strong lock was never waited for as long as a second')
	or diag(sql($node, 'select longest from waited'));
$_->quit for $stop, $watch;

# three segments; archiving takes its time
sql($node, q{
	create table archived (segment text, at timestamptz);
	create schema archive;
	create function archive.keep(segment text, from_time timestamptz, to_time timestamptz) returns void language plpgsql as $f$
	begin
		insert into public.archived values (segment, clock_timestamp());
		if exists (select from outbox.event_log where event_type = 't.second' and tableoid = segment::regclass) then
			perform pg_advisory_xact_lock(7);
		end if;
		if exists (select from outbox.event_log where event_type like 't.%' and tableoid = segment::regclass) then
			perform pg_sleep(2.6);
		end if;
	end $f$});
for my $type (qw(first second third))
{
	sql($node, "select outbox.publish('t.$type')");
	drain($node, 20, "$type: delivered");
	move_on(1) if $type ne 'third';
}
move_on(32);
$node->append_conf('postgresql.conf', "outbox.archive_function = ''\noutbox.retention = '1000d'\n");
$node->reload;
sealed();
dispatch('off');
$node->append_conf('postgresql.conf', "outbox.archive_function = 'archive.keep'\noutbox.retention = '30d'\n");
$node->reload;
my $holder = $node->background_psql('postgres');
$holder->query_safe('select pg_advisory_lock(7)');
my $run = $node->background_psql('postgres');
$run->query_until(qr/begun/, "\\echo begun\ncall outbox.maintain();\n");
comes_true($node, 20, q{select count(*) = 1 from pg_locks where locktype = 'advisory' and not granted}, 'a run is in the middle of its work');
is(sql($node, q{select count(*) from archived a join outbox.segment s on a.segment = 'outbox.event_log_' || s.name where s.archived_at is not null}) > 0 ? 1 : 0, 1, 'some of it is done');
sql($node, q{select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and not granted});
$holder->query_safe('select pg_advisory_unlock(7)');
$holder->quit;
eval { $run->quit };
is(sql($node, q{select count(*) from outbox.event_log l join archived a on l.tableoid = a.segment::regclass where event_type = 't.first'}), '1', 'it is killed: the first segment is archived');

# 4.8 s of these: the second segment, and the third is begun; it is archived well before the eight are over
($rc, $err) = maintain("set statement_timeout = '8 s'; ");
is($rc, 0, 'a run with little time ends in time');
like($err, qr/the time for this run of outbox\.maintain\(\) is up, the next one goes on/, 'and says so');
is(is_there('t.third'), '1', 'something is left');
($rc, $err) = maintain();
is($err, '', 'the next one does the rest');
is(is_there("t.$_"), '0', "t.$_ is gone") for qw(first second third);
is(sql($node, q{select count(*) from (select segment from archived group by segment having count(*) > 1) twice}), '0', 'no segment was archived twice');
is(sql($node, q{select string_agg(task, ' ') from outbox.maintenance_status where failing}), '', 'no task fails');
$node->stop;
unlike(slurp_file($node->logfile), qr/could not open relation|PANIC|TRAP/, 'no error of ours is in the log');
done_testing();
