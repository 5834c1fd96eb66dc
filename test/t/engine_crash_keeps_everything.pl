# Wherever a crash strikes, be it of the postmaster, a committed business row has its event, an event has its receipt
# or is still open for each subscription, and a receipt has exactly one effect.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(within);
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $crashes = $ENV{OUTBOX_TEST_CRASHES} // 21;
my $node = new_engine('main', "restart_after_crash = on\nfsync = on\noutbox.poll_interval = '200ms'\ncheckpoint_timeout = '30s'\n");

sql($node, q{create table placed (id bigint generated always as identity primary key, k integer)});
make_effects($node, 'single', q{if random() < 0.02 then raise exception 'bad luck'; end if;});
make_effects($node, 'careful');
sql($node, q{
	create function several(e outbox.event[]) returns void language sql as
	'insert into careful (event_id, event_key, payload) select event_id, event_key, payload from unnest(e)';
	select outbox.subscribe('single', '{order.#}', 'public.single_handler', max_attempts => 1000,
		backoff_base => '20 ms', backoff_factor => 1, lanes => 4);
	select outbox.subscribe('several', '{order.#}', 'public.several', max_attempts => 1000,
		backoff_base => '20 ms', backoff_factor => 1, lanes => 4);
});

# writers: most keep their row and its event, some give up both, or an event in a savepoint
my $folder = PostgreSQL::Test::Utils::tempdir();
my $publish = q{select outbox.publish('order.placed', jsonb_build_object('id', id), aggregate_type => 'order', aggregate_id => k::text)};
my %scripts = (
	keep => qq{\\set k random(1, 30)\nbegin;\nwith o as (insert into placed (k) values (:k) returning id, k) $publish from o;\ncommit;\n},
	drop => qq{\\set k random(1, 30)\nbegin;\nwith o as (insert into placed (k) values (:k) returning id, k) $publish from o;\nrollback;\n},
	part => qq{\\set k random(1, 30)\nbegin;\nsavepoint s;\n$publish from (values (-1, 0)) o (id, k);\nrollback to s;\n}
	  . qq{with o as (insert into placed (k) values (:k) returning id, k) $publish from o;\ncommit;\n});
append_to_file("$folder/$_", $scripts{$_}) for keys %scripts;

my $complaints;

sub start_writers
{
	$complaints = '';
	local $ENV{PGAPPNAME} = 'pgbench';
	return IPC::Run::start(
		[
			'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-c', '4', '-R', '600', '-T', '100',
			'-f', "$folder/keep\@8", '-f', "$folder/drop\@1", '-f', "$folder/part\@1", 'postgres'
		],
		'>', '/dev/null', '2>', \$complaints);
}

sub is_up
{
	# psql may end before it has read its query
	return within(60, sub { my ($rc) = eval { $node->psql('postgres', 'select 1') }; return defined $rc && $rc == 0 });
}

# rows without an event, and events without a row
my $unmatched = q{
	select count(*) filter (where p.id is null) || ' ' || count(*) filter (where e.event_id is null)
	from placed p full join outbox.event e on (e.payload ->> 'id')::bigint = p.id};

# receipts and what is open: as many as events times subscriptions, each once
my $deliveries = q{
	select count(*) = 2 * (select count(*) from outbox.event)
		and count(*) = count(distinct (event_id, subscription))
		and count(*) filter (where status = 'COMPLETED') = (select count(*) from outbox.receipt_log)
	from outbox.delivery};

# The postmaster is killed: its children notice by themselves, and once they are gone the server can start.
sub kill_postmaster
{
	my @children = split /\n/, sql($node, 'select pid from pg_stat_activity');
	$node->kill9;
	ok(defined within(60, sub { !grep { kill 0, $_ } @children }), 'without a postmaster all processes end');
	ok(defined within(60, sub { $node->start(fail_ok => 1) }), 'and the server starts again') or BAIL_OUT('it does not');
	return;
}

my @ways = ('outbox worker', 'outbox router', 'client backend', 'immediate', 'postmaster', 'outbox worker', 'immediate', 'outbox launcher');
my $wrong = 0;
for my $n (1 .. $crashes)
{
	my $way = $ways[ $n % @ways ];
	my $writers = start_writers();
	pids($node, 'client backend', 'pgbench') or diag("no writers: $complaints");
	usleep(200_000 + rand(900_000));    # a random moment
	if ($way eq 'immediate')
	{
		$node->stop('immediate');
		$node->start;
	}
	elsif ($way eq 'postmaster')
	{
		kill_postmaster();
	}
	else
	{
		my @victims = $way eq 'client backend' ? pids($node, $way, 'pgbench') : pids($node, $way);
		kill 'KILL', $victims[ rand @victims ];
	}
	# its clients lose their connections with the crash
	ok(defined within(30, sub { !eval { $writers->pump_nb; $writers->pumpable } }), "crash $n: $way") or $writers->signal('TERM');
	eval { $writers->finish };
	is_up() or BAIL_OUT('the server does not come back');
	is(sql($node, $unmatched), '0 0', "crash $n: rows are events");
	comes_true($node, 60, $deliveries, "crash $n: receipts and open deliveries are events times subscriptions");
	is(reconcile($node, 'single', 'single') . reconcile($node, 'several', 'careful'), '', "crash $n: receipts are effects");
}

drain($node, 120, 'all is settled in the end');
is_sql($node, $unmatched, '0 0', 'rows are events');
my $events = sql($node, 'select count(*) from outbox.event');
cmp_ok($events, '>', 100 * $crashes / 4, "there was load: $events events");
is_sql($node, "select subscription, status, count(*) from outbox.delivery group by 1, 2 order by 1",
	"several|COMPLETED|$events\nsingle|COMPLETED|$events", 'each event has its receipt');
is(reconcile($node, 'single', 'single'), '', 'and one effect of the single handler');
is(reconcile($node, 'several', 'careful'), '', 'and one effect of the batch handler');
$node->stop;
done_testing();
