# A transaction that commits late is delivered when it has committed, a prepared one at most one poll interval
# afterwards, and nobody waits for it; what is rolled back is never seen.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(within);
use Test::More;

# what a commit wakes comes before the poll interval is over, also on a machine that has much else to do; and so it needs
# some seconds more than the poll interval
my $poll_interval = 8;
my $at_once = 6;
my $limit = $poll_interval + 6;
my $node = new_engine('main', "outbox.poll_interval = '${poll_interval}s'\nmax_prepared_transactions = 10\nstatement_timeout = '30s'\n");
make_effects($node, 'effect');
sql($node, q{select outbox.subscribe('s', '{a.#}', 'public.effect_handler')});

my $next = 0;
my $others = 0;

# Others publish, in subtransactions too, without waiting, and get theirs delivered.
sub others_go_on
{
	my ($name) = @_;
	for (1 .. 5)
	{
		sql($node, q{set statement_timeout = '10s'; begin; select outbox.publish('a.other', event_key => 'k');
			savepoint s; select outbox.publish('a.gone', event_key => 'k'); rollback to s;
			savepoint s; select outbox.publish('a.other', event_key => 'k'); release s; commit;
			begin; select outbox.publish('a.gone', event_key => 'k'); rollback;
			do $$ begin begin perform outbox.publish('a.gone', event_key => 'k'); raise exception 'x'; exception when others then null; end; end $$});
		$others += 2;
	}
	comes_true($node, 30, qq{select count(*) = $others from effect join outbox.event using (event_id) where event_type = 'a.other'}, "others go on $name");
}

# Whatever is meanwhile done to the processes, the transaction's events come when it commits.
sub is_delivered
{
	my ($n, $limit, $name) = @_;
	comes_true($node, $limit, qq{select count(*) = 2 from effect where payload ->> 'slow' = '$n'}, $name);
}

my $publish = q{select outbox.publish('a.slow', '{"slow": N}', event_key => 'k'); savepoint s; select outbox.publish('a.slow', '{"slow": N}'); release s;};

sub open_slow
{
	my $n = ++$next;
	my $session = $node->background_psql('postgres');
	(my $sql = $publish) =~ s/N/$n/g;
	$session->query_safe("begin; $sql");
	return ($n, $session);
}

my ($first, $slow) = open_slow();
others_go_on('beside an open transaction');
my ($second, $slower) = open_slow();
my ($third, $gone) = open_slow();
others_go_on('beside three');
is_sql($node, q{select count(*) from effect where payload ? 'slow'}, '0', 'nothing of them is delivered before they commit');
$slower->query_safe('commit');
is_delivered($second, $at_once, 'the later one that commits first is delivered at once');
$gone->query_safe('rollback');
sql($node, q{select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'outbox router'});
others_go_on('under a new router');
$slow->query_safe('commit');
is_delivered($first, $at_once, 'and the first one when it has committed');
$_->quit for $slow, $slower, $gone;

# prepared ones
sub prepare
{
	my $n = ++$next;
	(my $sql = $publish) =~ s/N/$n/g;
	sql($node, "begin; $sql; prepare transaction 'p$n'");
	return $n;
}

my @prepared = map { prepare() } 1 .. 4;
others_go_on('beside prepared transactions');
sql($node, "commit prepared 'p$prepared[0]'");
is_delivered($prepared[0], $limit, 'a prepared transaction is delivered within the poll interval');
sql($node, "rollback prepared 'p$prepared[1]'");
$node->restart;
others_go_on('after a restart');
sql($node, "commit prepared 'p$prepared[2]'");
is_delivered($prepared[2], $limit, 'and after a restart in between');
$node->stop('immediate');
$node->start;
# nothing else is published, and nobody else commits
sql($node, "commit prepared 'p$prepared[3]'");
is_delivered($prepared[3], 30, 'and after a crash, with nothing else going on');

others_go_on('in the end');
drain($node, 60, 'settled');
is_sql($node, q{select event_type, count(*) from effect join outbox.event using (event_id) group by 1 order by 1},
	"a.other|$others\na.slow|" . 2 * ($next - 2), 'each once, and nothing that was rolled back');
is(reconcile($node, 's', 'effect'), '', 'receipts are effects');
$node->stop;
done_testing();
