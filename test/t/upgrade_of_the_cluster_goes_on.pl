# pg_upgrade, by copy and by link, to this server's version: unattended; ids, states and grants are as they were,
# and dispatch goes on without outbox.activate(). OUTBOX_OLD_BINDIR: the binaries to come from, another
# version's perhaps (default: these).
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxProcesses;
use OutboxStates;
use OutboxUpgrade;
use PostgreSQL::Test::Utils;
use Test::More;

my $settings = "outbox.poll_interval = '200ms'\n";

for my $mode ('', '--link')
{
	my $name = $mode ? 'link' : 'copy';
	my $old = old_cluster("old_$name", $settings);
	$old->start;
	$old->safe_psql('postgres', 'create database origin');
	make_states($old, 'origin', sub { $old->append_conf('postgresql.conf', "outbox.dispatch = off\n"); $old->reload; $old->poll_query_until('postgres', q{select count(*) = 0 from pg_stat_activity where backend_type in ('outbox router', 'outbox worker')}) or die 'dispatch' });
	my $contents = contents($old, 'origin');
	$old->stop;

	my $new = new_cluster("new_$name", $settings);
	upgrade($old, $new, "$name: upgraded", $mode || ());
	$new->append_conf('postgresql.conf', "outbox.dispatch = off\n");
	$new->start;
	is(contents($new, 'origin'), $contents, "$name: every row of every table");
	is($new->safe_psql('origin', 'select outbox.is_held()'), 'f', "$name: not held");
	$new->append_conf('postgresql.conf', "outbox.dispatch = on\n");
	$new->reload;
	prove_it_goes_on($new, 'origin', $name);
	ok($new->poll_query_until('origin', q{select system_identifier = (select system_identifier from pg_control_system()) from outbox.incarnation}), "$name: the new identifier is on record");
	my ($rc, $out, $err) = $new->psql('origin', 'drop function note; drop extension outbox');
	is($rc, 0, "$name: DROP EXTENSION needs no CASCADE") or diag($err);
	$new->stop;
}
done_testing();
