# pg_upgrade, by copy and by link, to this server's version: unattended; ids, states and grants are as they were,
# and dispatch goes on without outbox.activate(). OUTBOX_OLD_BINDIR: the binaries to come from, another
# version's perhaps (default: these).
use strict;
use warnings;
use Cwd;
use File::Path qw(make_path);
use FindBin;
use lib $FindBin::RealBin;
use OutboxProcesses;
use OutboxStates;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $settings = "shared_preload_libraries = 'outbox'\nmax_worker_processes = 20\noutbox.poll_interval = '200ms'\noutbox.workers = 1\n";
my $old_bindir = $ENV{OUTBOX_OLD_BINDIR};
my ($new_bindir) = run_command([ 'pg_config', '--bindir' ]);

sub new_cluster
{
	my ($name, $bindir) = @_;
	my $install = $bindir ? ($bindir =~ s!/bin$!!r) : undef;
	my $node = PostgreSQL::Test::Cluster->new($name, $install ? (install_path => $install) : ());
	$node->init(extra => [ '-k', '--locale=C', '--encoding=UTF8' ]);
	$node->append_conf('postgresql.conf', $settings);
	return $node;
}

for my $mode ('', '--link')
{
	my $name = $mode ? 'link' : 'copy';
	my $old = new_cluster("old_$name", $old_bindir);
	$old->start;
	$old->safe_psql('postgres', 'create database origin');
	make_states($old, 'origin', sub { $old->append_conf('postgresql.conf', "outbox.dispatch = off\n"); $old->reload; $old->poll_query_until('postgres', q{select count(*) = 0 from pg_stat_activity where backend_type in ('outbox router', 'outbox worker')}) or die 'dispatch' });
	my $contents = contents($old, 'origin');
	$old->stop;

	my $new = new_cluster("new_$name");
	my $folder = $new->basedir . '/upgrade';
	make_path($folder);
	my $back = getcwd();
	chdir $folder;
	my @command = ('pg_upgrade', '--no-sync', '-d', $old->data_dir, '-D', $new->data_dir, '-b', $old_bindir // $new_bindir, '-B', $new_bindir,
		'-s', $new->host, '-p', $old->port, '-P', $new->port, $mode || ());
	command_ok(\@command, "$name: upgraded");
	chdir $back;
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
