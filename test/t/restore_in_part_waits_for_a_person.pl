# A restore that failed in part may lack the rows that say how far a subscription is. They are made anew, what is
# known of elsewhere is not delivered again, and nothing is delivered until a person resumes it; the
# router does not go round in circles meanwhile.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxProcesses;
use OutboxStates;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('main', "outbox.poll_interval = '200ms'\noutbox.workers = 1\n");

$node->safe_psql('postgres', 'create database origin');
make_states($node, 'origin', sub { set_dispatch($node, 'off') });
my %lost = (
	state => 'delete from outbox.subscription_state',
	one => q{delete from outbox.subscription_state where subscription_id = (select subscription_id from outbox.subscription where subscription = 'notes')},
	lanes => 'delete from outbox.lane',
	lane => 'delete from outbox.lane where lane = 1',
	entries => 'delete from outbox.lane; delete from outbox.lane_entry; delete from outbox.lane_cursor; delete from outbox.tick',
);
for my $name (sort keys %lost)
{
	$node->safe_psql('postgres', "create database $name template origin");
	$node->safe_psql($name, $lost{$name});
	is($node->safe_psql($name, q{select count(*) from outbox.subscription_status}), '3', "$name: every subscription is shown");
}
$node->safe_psql('postgres', 'create database nameless template origin');
$node->safe_psql('nameless', 'delete from outbox.incarnation');
set_dispatch($node, 'on');
for my $name (sort keys %lost)
{
	is($node->safe_psql($name, 'select outbox.activate()'), 't', "$name: activated");
	ok($node->poll_query_until($name, q{select paused and stopped_code = 'incomplete' and stopped_reason ~ 'were missing' and not catching_up from outbox.subscription_status where subscription = 'notes'}),
		"$name: it stands still, and says why");
	is($node->safe_psql($name, q{select count(*) from outbox.status() s where s ~ 'Subscription "notes" waits for you.*outbox.resume'}), '1', "$name: on the page for a person too");
	my $publishing = $node->safe_psql($name, q{select outbox.publish('d.other')});
	ok($node->poll_query_until($name, qq{select count(*) = 1 from outbox.lane_entry where event_id = '$publishing'}), "$name: the router goes on with what is published");
	my $ticks = $node->safe_psql($name, 'select count(*) from outbox.tick');
	cmp_ok($ticks, '<', 20, "$name: with few ticks");
	is($node->safe_psql($name, 'select count(*) from effect'), '50', "$name: nothing is delivered");
	is($node->safe_psql($name, q{select stopped from outbox.metrics where subscription = 'notes'}), 't', "$name: stopped for monitoring");
	$node->safe_psql($name, q{select outbox.resume(subscription) from outbox.subscription where subscription <> 'paused'});
	is($node->safe_psql($name, q{select count(*) from outbox.subscription_status where stopped_code is not null and not paused}), '0', "$name: resumed");
	ok($node->poll_query_until($name, q{select count(*) = 1 from effect where event_type = 'd.other'}), "$name: it goes on");
	$node->safe_psql($name, q{delete from effect where event_type = 'd.other'});
	prove_it_goes_on($node, $name, $name);
	is($node->safe_psql($name, q{select string_agg(error_code, ' ') from outbox.review_required}), '', "$name: nothing came twice");
	is($node->safe_psql($name, q{select status from outbox.delivery join outbox.event using (event_id) where subscription = 'notes' and event_type = 'b.given_up'}), 'DISCARDED', "$name: what was given up stays so");
}

# whose transaction ids the log has is not known: not these
is($node->safe_psql('nameless', 'select outbox.is_held()'), 't', 'without its incarnation, a database is held');
$node->safe_psql('nameless', q{select outbox.publish('d.other')});
is($node->safe_psql('nameless', 'select outbox.is_held()'), 't', 'also once something is published');
is($node->safe_psql('nameless', 'select outbox.activate()'), 't', 'activated');
ok($node->poll_query_until('nameless', q{select count(*) = 1 from effect where event_type = 'd.other'}), 'what was published meanwhile is delivered');
$node->safe_psql('nameless', q{delete from effect where event_type = 'd.other'});
prove_it_goes_on($node, 'nameless', 'nameless');

# in a database that is at work: found out when the router starts
$node->safe_psql('lane', 'delete from outbox.subscription_state');
$node->restart;
ok($node->poll_query_until('lane', q{select bool_and(paused and stopped_code = 'incomplete' and not catching_up) from outbox.subscription_status}), 'rows that are lost later');
$node->safe_psql('lane', q{select outbox.resume('notes'); select outbox.publish('e.last')});
ok($node->poll_query_until('lane', q{select count(*) = 1 from effect where event_type = 'e.last'}), 'and all goes on');
is($node->safe_psql('lane', q{select string_agg(error_code, ' ') from outbox.review_required}), '', 'nothing came twice');
like(slurp_file($node->logfile), qr/LOG:  rows of subscription "notes" were missing: they were made anew, and it is paused/, 'it is in the log');
$node->stop;
done_testing();
