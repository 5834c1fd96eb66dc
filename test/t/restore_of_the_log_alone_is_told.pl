# A restore that brought tables of the log, with rows, and nothing that tells of them: the page for a person says so
# before anybody publishes, and what to do.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(within);
use Test::More;

my $node = new_engine('main', "outbox.poll_interval = '200ms'\noutbox.workers = 1\n");
my $folder = $node->basedir;
my $page = sub { return $node->safe_psql($_[0], 'select * from outbox.status()') };

sql($node, q{select outbox.publish('a')});
comes_true($node, 20, 'select count(*) >= 31 from outbox.segment', 'segments are made ahead');
my $today = sql($node, q{select name from outbox.segment join outbox.event on event_id >= from_id and event_id < to_id});
unlike($page->('postgres'), qr/tells? of/, 'nothing to tell of');
$node->command_ok([ 'pg_dump', '-t', 'outbox.event_log*', '-f', "$folder/log.sql", $node->connstr('postgres') ], 'dumped: the log alone');
sql($node, 'create database part');
$node->safe_psql('part', 'create extension outbox');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', "$folder/log.sql", $node->connstr('part') ], 'restored');

my ($drop) = $page->('part') =~ /^1\. The log has tables with rows of 1 day \($today\) that outbox\.segment does not tell of.* fails with 42P07 .*restore again, .*: (drop table if exists outbox\.event_log_$today, outbox\.receipt_log_$today;)$/m;
ok(defined $drop, 'the page for a person tells of the day that has rows, and of no other') or diag($page->('part'));
my ($rc, $out, $err) = $node->psql('part', q{select outbox.publish('a')});
like($err, qr/relation "outbox\.event_log_$today" already exists/, 'publishing fails');
$node->safe_psql('part', $drop // 'select');
like($node->safe_psql('part', q{select outbox.publish('a')}), qr/^[0-9a-f-]{36}$/, 'and goes on after what the page says');
# once its processes are all there
ok(defined within(30, sub { return $page->('part') =~ /Nothing needs a person/ }), 'which has nothing to say then') or diag($page->('part'));
$node->stop;
done_testing();
