# outbox.schedule_maintenance() with the real pg_cron: in this database and in another one, again and again,
# without it, without the right to it; and a dropped extension leaves no failing job.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# a job "@reboot" runs when the server has started: no minute to wait for
my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
if (!-e $node->config_data('--pkglibdir') . '/pg_cron.so')
{
	plan skip_all => 'this server has no pg_cron';
}
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'outbox'\noutbox.dispatch = off\nmax_worker_processes = 20\ncron.use_background_workers = on\n");
$node->start;

sub fails_with
{
	my ($database, $query, $pattern, $name) = @_;
	my ($rc, $out, $err) = $node->psql($database, "\\set VERBOSITY verbose\n$query");
	return like($err, $pattern, $name);
}

$node->safe_psql('postgres', "create database $_") for qw(app other);
$node->safe_psql($_, 'create extension outbox') for qw(postgres app);
fails_with('postgres', 'select outbox.schedule_maintenance()', qr/0A000: extension "pg_cron" is not installed.*CALL outbox\.maintain\(\)/s, 'pg_cron is not preloaded: says so, and what to do');

$node->append_conf('postgresql.conf', "shared_preload_libraries = 'outbox,pg_cron'\n");
$node->restart;
fails_with('postgres', 'select outbox.schedule_maintenance()', qr/0A000: extension "pg_cron" is not installed.*CREATE EXTENSION pg_cron has not been run/s, 'not created');
$node->safe_psql('postgres', q{create extension pg_cron});

# in the same database
my $job = $node->safe_psql('postgres', q{select outbox.schedule_maintenance()});
is($node->safe_psql('postgres', q{select jobid || ' ' || schedule || ' ' || database from cron.job}), "$job */5 * * * * postgres", 'scheduled');
is($node->safe_psql('postgres', q{select outbox.schedule_maintenance('@reboot')}), $job, 'again: the same job');
is($node->safe_psql('postgres', q{select count(*) || ' ' || min(schedule) from cron.job}), '1 @reboot', 'changed, not doubled');
fails_with('postgres', q{select outbox.schedule_maintenance('now and then')}, qr/invalid schedule/, "pg_cron refuses what it does not understand");
fails_with('postgres', q{select outbox.schedule_maintenance(null)}, qr/22004: schedule must not be null/, 'null');

# a role without the right: to outbox, then to pg_cron
$node->safe_psql('postgres', q{create role operator; grant usage on schema outbox to operator; grant execute on all functions in schema outbox to operator});
fails_with('postgres', q{set role operator; select outbox.schedule_maintenance()}, qr/42501: permission denied/, 'a role that may not');
$node->safe_psql('postgres', q{select outbox.grant_operator('operator')});
fails_with('postgres', q{set role operator; select outbox.schedule_maintenance()},
	qr/42501: permission denied for pg_cron\nHINT:  GRANT USAGE ON SCHEMA cron TO operator, or let a role that has it schedule the job\./, 'an operator without pg_cron: says so, and what to do');
is($node->safe_psql('postgres', q{select count(*) || ' ' || min(schedule) from cron.job}), '1 @reboot', 'no job came of it');
$node->safe_psql('postgres', q{grant usage on schema cron to operator});
fails_with('postgres', q{set role operator; select outbox.schedule_maintenance()}, qr/^$/, 'what the hint says is enough');
is($node->safe_psql('postgres', q{delete from cron.job where username = 'operator' returning jobname}), 'outbox maintenance', "the job is the operator's");

# in another database: the hint is the statement to run
my ($rc, $out, $err) = $node->psql('app', q{select outbox.schedule_maintenance('@reboot')});
like($err, qr/pg_cron lives in database "postgres"/, 'pg_cron lives elsewhere');
like($err, qr/HINT:  Run there: (select cron\.schedule_in_database\(.*\))/, 'the statement to run there');
my ($statement) = $err =~ /Run there: (.*)/;
$node->safe_psql('postgres', $statement) for 1 .. 2;
is($node->safe_psql('postgres', q{select jobname || ' ' || database from cron.job where database = 'app'}), 'outbox maintenance in app app', 'scheduled there, once');

# they run; and do nothing where the extension is not there (any more)
$node->safe_psql('postgres', (my $other = $statement) =~ s/'outbox maintenance in app'/'elsewhere'/r =~ s/'app'\)$/'other')/r);
$node->safe_psql($_, q{select outbox.publish('a.b')}) for qw(postgres app);
$node->restart;
ok($node->poll_query_until('postgres', q{select count(*) = 3 from cron.job_run_details where status = 'succeeded'}), 'all jobs have run')
	or diag($node->safe_psql('postgres', 'select * from cron.job_run_details'));
foreach my $database (qw(postgres app))
{
	my $done = q{select string_agg(task, ', ' order by task) from outbox.maintenance_status where last_success is not null and not failing};
	my $by_cron = $node->safe_psql($database, $done);
	$node->safe_psql($database, 'call outbox.maintain()');
	is($by_cron, $node->safe_psql($database, $done), "$database: every task was done, without dispatch");
}
$node->safe_psql('app', 'drop extension outbox cascade');
$node->safe_psql('postgres', 'truncate cron.job_run_details');
$node->restart;
ok($node->poll_query_until('postgres', q{select count(*) = 3 from cron.job_run_details where status not in ('starting', 'running', 'sending', 'connecting')}), 'they have run again');
is($node->safe_psql('postgres', q{select string_agg(distinct status, ' ') from cron.job_run_details}), 'succeeded', 'no job fails after the extension is dropped');
$node->stop;
done_testing();
