# The server's log says that a delivery needs review once that is committed, and says nothing of what was rolled back; of a
# prepared transaction it says so before, in other words.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(log_position within);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.workers = 1\noutbox.poll_interval = '100ms'\nmax_prepared_transactions = 5\n");
sql($node, q{
	create function fails(e outbox.event) returns void language plpgsql as $f$ begin perform outbox.fail_permanently('HANDLER'); end $f$;
	select outbox.subscribe('s', '{e}', ordering => 'none', lanes => 1);
	select outbox.subscribe('h', '{h}', 'public.fails');
	select count(outbox.publish('e', request_id => 'request ' || n)) from generate_series(1, 20) n;
	call outbox.drain('{s}');
	create table claimed as select row_number() over () as n, event_id, lease_token from outbox.claim('s', 20)});
my $from = log_position($node);

# The requests whose deliveries are told to need review since the last call.
sub told
{
	my $log = substr(slurp_file($node->logfile), $from);
	$from += length $log;
	return join(', ', map { s/.*delivery needs review(.*): subscription "s",.* request request (\d+),.*code (\w+)$/$2$1/r } grep { /needs? review/ } split /\n/, $log);
}
sub fail { return join(' ', map { "select outbox.fail(lease_token, event_id, 'CODE', permanent => true) from claimed where n = $_;" } @_) }

sql($node, 'begin; ' . fail(1) . ' rollback');
is(told(), '', 'nothing of one that was rolled back');
sql($node, fail(1));
is(told(), '1', 'of one that was committed');
my $session = $node->background_psql('postgres');
$session->query_safe('begin; ' . fail(2) . ' savepoint a; ' . fail(3) . ' savepoint b; ' . fail(4) . ' release b; rollback to a; ' . fail(5));
is(told(), '', 'nothing of one that is open');
$session->query_safe('commit');
is(told(), '2, 5', 'then in order, without what a savepoint has taken back');
$session->query_safe('begin; ' . fail(6) . " prepare transaction 'p'");
is(told(), '6 once its prepared transaction commits', 'of a prepared one before');
$session->query_safe("commit prepared 'p'");
is(told(), '', 'and not twice');
$session->query_safe('begin; ' . fail(7) . ' commit; begin; ' . fail(8) . ' rollback; begin; ' . fail(9) . ' commit');
is(told(), '7, 9', 'one transaction after the other');
$session->quit;

sql($node, q{select outbox.publish('h', request_id => 'of a handler')});
comes_true($node, 20, q{select count(*) = 1 from outbox.review_required where subscription = 'h'}, 'a handler fails');
my $line = qr/delivery needs review: subscription "h", event [0-9a-f-]{36}, request of a handler, trace -, attempt 1, code HANDLER\n/;
ok(defined within(10, sub { substr(slurp_file($node->logfile), $from) =~ $line }), 'and is told, too, once it is committed') or diag(substr(slurp_file($node->logfile), $from));

# more than a minute may have
$from = log_position($node);
sql($node, q{select count(outbox.publish('e', request_id => 'request ' || n)) from generate_series(100, 199) n; call outbox.drain('{s}');
	create table more as select event_id, lease_token from outbox.claim('s', 200)});
sql($node, q{select count(outbox.fail(lease_token, event_id, 'CODE', permanent => true)) from more});
my $log = substr(slurp_file($node->logfile), $from);
is(scalar(() = $log =~ /delivery needs review:/g), 60, 'of very many in one transaction as many as in several');
is(scalar(() = $log =~ /need review faster than they are logged/g), 1, 'and that it is so');
$node->stop;
done_testing();
