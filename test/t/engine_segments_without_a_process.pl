# A publisher needs a segment, and no process can be had that makes it: then the router does, and without a router
# the publisher itself.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(within);
use Test::More;
use Time::HiRes qw(time);

# the launcher, logical replication's, a router and one of two workers
my $node = new_engine('slots', "max_worker_processes = 4\noutbox.workers = 2\nlog_min_messages = debug1\n");
sql($node, q{select outbox.publish('a')});
comes_true($node, 20, q{select count(*) >= 31 from outbox.segment}, 'segments are made ahead');
comes_true($node, 30, q{select count(*) = 1 from outbox.worker_status where state = 'missing'}, 'there is no slot left');
my ($router) = pids($node, 'outbox router');

sub segments
{
	return sql($node, 'select count(*) from outbox.segment');
}

# The router is held until the publisher has asked; in a transaction that is rolled back, so that only another process's segment stays.
my $before = segments();
my $publisher = $node->background_psql('postgres');
my $watch = $node->background_psql('postgres');
kill 'STOP', $router or die;
set_offset($node, 40 * 86400);
ok(defined within(30, sub { $publisher->query_safe('select outbox.clock() > now() + interval \'39 days\'') eq 't' }), 'forty days later');
$publisher->query_until(qr/asked/, "begin;\n\\echo asked\nselect outbox.publish('a');\n");
# in a session that is there: the publisher waits for five seconds, and then helps itself
ok(defined within(30, sub { $watch->query_safe(q{select count(*) = 1 from pg_stat_activity where backend_type = 'client backend' and wait_event_type in ('Extension') and query like '%publish%' and pid <> pg_backend_pid()}) eq 't' }),
	'the publisher waits for a segment');
my $start = time;
kill 'CONT', $router or die;
$publisher->query_safe('select 1');
cmp_ok(time - $start, '<', 4, 'it is told at once when there is one');
$publisher->query_safe('rollback');
cmp_ok(segments(), '>', $before, 'the router has made it');
unlike(PostgreSQL::Test::Utils::slurp_file($node->logfile), qr/starting background worker process "outbox segment maker"/, 'no process was there for it');
sql($node, q{select outbox.publish('a')});
$_->quit for $publisher, $watch;
$node->stop;

# no slot for a router either
$node = new_engine('none', "max_worker_processes = 2\n");
sql($node, q{select outbox.publish('a')});
is(segments(), '1', 'the publisher has made one');
set_offset($node, 40 * 86400);
$publisher = $node->background_psql('postgres');
ok(defined within(30, sub { $publisher->query_safe('select outbox.clock() > now() + interval \'39 days\'') eq 't' }), 'forty days later');
$publisher->query_safe(q{begin; select outbox.publish('a')});
my $other = $node->background_psql('postgres');
$other->query_until(qr/asked/, "\\echo asked\nselect outbox.publish('b');\n");
comes_true($node, 30, q{select count(*) = 1 from pg_locks where not granted}, 'another publisher waits for the open one');
$publisher->query_safe('rollback');
$other->query_safe('select 1');
is(segments(), '2', 'the first one took its segment back, the other one has made it');
is_sql($node, q{select string_agg(event_type, ' ' order by event_id) from outbox.event}, 'a b', 'all that was committed is there');
$_->quit for $publisher, $other;
$node->stop;
done_testing();
