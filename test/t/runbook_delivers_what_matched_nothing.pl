# What the runbook prints for events that match no subscription does what it says: the pattern is mended, what went by is delivered,
# and nothing twice.
use strict;
use warnings;
use OutboxEngine;
use OutboxProcesses qw(within);
use PostgreSQL::Test::Utils;
use Test::More;

my @pages = ([ 'doc/runbook.md', 'Events match no subscription' ], [ 'doc/ko/runbook.md', '이벤트가 어느 구독에도 맞지 않는다' ]);
my $node = new_engine('unmatched', "outbox.poll_interval = '100ms'\n");
for (@pages)
{
	my ($page, $title) = @$_;
	my ($entry) = slurp_file($page) =~ /^## \Q$title\E\n(.*?)^## /ms;
	my @blocks = $entry =~ /```sql\n(.*?)```/gs;
	is(scalar @blocks, 3, "$page: a look, a mended pattern, what went by") or next;

	make_effects($node, 'effect');
	sql($node, q{select outbox.subscribe('task-log', '{task.craeted, task.other}', handler => 'public.effect_handler')});
	my $published = sql($node, q{select outbox.publish('task.created'), outbox.publish('task.other')});
	drain($node, 60, 'it is routed');
	# counted once that is committed
	within(20, sub { return sql($node, $blocks[0]) ne '' });
	like(sql($node, $blocks[0]), qr/^task\.created\|\d+\|.*task-log\|\{task\.craeted,task\.other\}$/s, 'what matched nothing is seen, and nobody gets it');
	is(sql($node, $blocks[1]), 't', 'the pattern is mended');
	sql($node, q{select outbox.publish('task.created')});
	drain($node, 60, 'it is at work');
	is_sql($node, q{select count(*) from effect}, '2', 'and takes what comes from then on');
	my ($went_by) = split /\|/, $published;
	sql($node, $blocks[2]);
	comes_true($node, 60, qq{select count(*) = 1 from effect where event_id = '$went_by'}, 'what went by is delivered');
	drain($node, 60, 'all is settled');
	is_sql($node, q{select count(*) = count(distinct event_id) from effect}, 't', 'and nothing twice');

	sql($node, q{select outbox.unsubscribe('task-log'); drop function effect_handler; drop table effect});
}
$node->stop;
done_testing();
