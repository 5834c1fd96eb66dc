# A table that retention takes out of the log is out of everybody's reach at once, and then off the disk: a few MB a
# transaction, never waiting for a lock, and after a crash from where it was. What a person has built on it
# keeps it, and it alone.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use OutboxRetention;
use PostgreSQL::Test::Utils;
use Test::More;

my $step = 2048;    # blocks

# events of 10 kB each
sub publish
{
	my ($type, $n) = @_;
	return qq{select count(outbox.publish('$type', jsonb_build_object('text', (select string_agg(md5(n || ' ' || m), '') from generate_series(1, 300) m)))) from generate_series(1, $n) n};
}

my $node = new_engine('main', "outbox.poll_interval = '100ms'\noutbox.workers = 1\noutbox.retention = '1000d'\noutbox.sensitive_data = off\nautovacuum = off\nwal_keep_size = '1GB'\n");

sub hold
{
	my ($relation) = @_;
	my $session = $node->background_psql('postgres');
	$session->query_safe("begin; select count(*) from $relation");
	return $session;
}

# a segment before it, which somebody will have a view on
age($node, publish('t.first', 2500));
my $first = sql($node, q{select distinct tableoid::regclass from outbox.event_log});
sql($node, "create view reader as select event_id from $first");
age($node, publish('t.old', 6000));
my ($table, $toast) = split /\|/, sql($node, q{select c.oid::regclass, c.reltoastrelid::regclass from pg_class c where oid = (select tableoid from outbox.event_log where event_type = 't.old' limit 1)});
my @paths = split /\n/, sql($node, qq{select pg_relation_filepath(c.oid) from pg_class c where c.oid in ('$table'::regclass, '$toast'::regclass)
	or c.oid in (select indexrelid from pg_index where indrelid in ('$table'::regclass, '$toast'::regclass))});
is(scalar @paths, 5, 'a table with two indexes, and what it holds out of line');
cmp_ok(sql($node, "select pg_relation_size('$toast') / 8192"), '>', 2 * $step, 'of some size');

# by hand, so that nobody else does it
$node->append_conf('postgresql.conf', "outbox.dispatch = off\noutbox.retention = '30d'\n");
$node->reload;
comes_true($node, 20, q{select count(*) = 0 from pg_stat_activity where backend_type ~ 'outbox (router|worker|archiver)'}, 'dispatch is off');

# somebody uses a part of the table, but not the table
my $holder = hold($toast);
maintain($node);
is(status($node, 'events', q{last_error is null and not failing}), 't', 'retention goes on');
like(status($node, 'events', q{kept || ' ' || kept_why}), qr/^1 \d{8}: another object depends on it$/, 'a view on a segment keeps it');
is(sql($node, 'select count(*) from reader'), '2500', 'whole');
is(sql($node, 'select string_agg(distinct event_type, chr(32)) from outbox.event'), 't.first', 'and the later one is out of the log');
is(sql($node, q{select count(*) from pg_inherits where inhrelid::regclass::text like '%retired%'}), '0', 'nobody is its parent');
is(sql($node, "select to_regclass('$table') is null"), 't', 'its name is free');
is(sql($node, q{select string_agg(distinct i.indisvalid::text, '') from pg_index i where i.indrelid = (select oid from pg_class where relname ~ '^retired_' and relkind = 'r')}), 'false', 'its indexes are not used');
like(status($node, 'retired tables', 'kept_why'), qr/^retired_\d+: another session uses it$/, 'it is on the disk, and why');
is(status($node, 'retired tables', 'kept'), '1', 'it alone: those without rows are not');
like(sql($node, 'select * from outbox.status()'), qr/Past their time and still on the disk, task "retired tables": 1 \(retired_\d+: another session uses it\)/, 'the page for a person has it too');

# a crash
$node->stop('immediate');
eval { $holder->quit };
$node->start;
is(sql($node, q{select count(*) from pg_class where relname ~ '^retired_' and relkind = 'r'}), '1', 'after a crash it is still there');

my $from = sql($node, 'select pg_current_wal_insert_lsn()');
maintain($node);
my $to = sql($node, 'select pg_current_wal_flush_lsn()');
is(sql($node, q{select count(*) from pg_class where relname ~ '^retired_'}), '0', 'and then it goes');
is(status($node, 'retired tables', "kept || ' ' || failing"), '0 false', 'which the view knows');
sql($node, 'checkpoint');
is((grep { -e $node->data_dir . "/$_" } @paths), 0, 'nothing of it is left on the disk');

# what was given back in each transaction, by the log of the server; without a file to begin with pg_waldump looks at any, one made ahead too
my $file = sql($node, "select pg_walfile_name('$from'::pg_lsn + 1)");
my ($wal, $failure) = run_command([ 'pg_waldump', '-p', $node->data_dir . '/pg_wal', '-s', $from, '-e', $to, $file ]);
is($failure, '', 'the log of the server is there');
my ($largest, $steps, $now, %blocks) = (0, 0, 0);
foreach my $line (split /\n/, $wal)
{
	if ($line =~ /desc: TRUNCATE (\S+) to (\d+) blocks/)
	{
		$now += $blocks{$1} - $2 if defined $blocks{$1};
		$now += 1 unless defined $blocks{$1};
		$blocks{$1} = $2;
	}
	elsif ($line =~ /desc: COMMIT/)
	{
		$steps++ if $now > 0;
		$largest = $now if $now > $largest;
		$now = 0;
	}
}
cmp_ok($steps, '>=', 2, "in $steps transactions");
cmp_ok($largest, '<=', $step + 1, 'none of which gave back much');

# the router does it too, and tells of it before it has finished
$holder = hold(sql($node, qq{select reltoastrelid::regclass from pg_class where oid = '$first'::regclass}));
sql($node, q{drop view reader});
maintain($node);
is(sql($node, 'select count(*) from outbox.event'), '0', 'without the view its segment goes');
like(status($node, 'retired tables', 'kept_why'), qr/^retired_\d+: another session uses it$/, 'from the log');
sql($node, q{
	create table told (tables bigint);
	create function tell() returns trigger language plpgsql as $f$
	begin
		insert into public.told select count(*) from pg_class where relname ~ '^retired_' and relkind = 'r';
		return null;
	end $f$;
	create trigger tell after insert or update on outbox.maintenance for each row when (new.task = 'retired tables' and new.last_success > outbox.clock() - interval '10 seconds') execute function tell();
});
$holder->quit;
$node->append_conf('postgresql.conf', "outbox.dispatch = on\n");
$node->reload;
comes_true($node, 40, q{select count(*) = 0 from pg_class where relname ~ '^retired_'}, 'and with the router from the disk');
cmp_ok(sql($node, 'select count(*) from told where tables > 0'), '>', 0, 'which has told that all is well while it was not done');
comes_true($node, 30, q{select count(*) > 0 from told where tables = 0}, 'and when it was');
$node->stop;
unlike(slurp_file($node->logfile), qr/could not open relation|could not read block|PANIC|TRAP/, 'no error of ours is in the log');
done_testing();
