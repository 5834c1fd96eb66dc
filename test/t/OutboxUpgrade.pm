# What the tests of pg_upgrade share: a cluster of the old server and one of the new, and the upgrade between them.
# They are one server unless the old one's programs are named by OUTBOX_OLD_BINDIR.
package OutboxUpgrade;

use strict;
use warnings;
use Cwd qw(getcwd);
use Exporter 'import';
use File::Path qw(make_path);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(old_cluster new_cluster upgrade);

my $old_bindir = $ENV{OUTBOX_OLD_BINDIR};
my $preload = "shared_preload_libraries = 'outbox'\nmax_worker_processes = 20\noutbox.workers = 1\n";

sub make_cluster
{
	my ($name, $conf, @where) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name, @where);
	$node->init(extra => [ '-k', '--locale=C', '--encoding=UTF8' ]);
	$node->append_conf('postgresql.conf', $preload . $conf);
	return $node;
}

sub old_cluster
{
	my ($name, $conf) = @_;
	return make_cluster($name, $conf, defined $old_bindir ? (install_path => $old_bindir =~ s!/bin$!!r) : ());
}

sub new_cluster
{
	my ($name, $conf) = @_;
	return make_cluster($name, $conf);
}

# Both are stopped.
sub upgrade
{
	my ($old, $new, $name, @options) = @_;
	my ($new_bindir) = run_command([ 'pg_config', '--bindir' ]);
	my $folder = $new->basedir . '/upgrade';
	my $back = getcwd();
	make_path($folder);
	chdir $folder;
	command_ok([ 'pg_upgrade', '--no-sync', '-d', $old->data_dir, '-D', $new->data_dir, '-b', $old_bindir // $new_bindir, '-B', $new_bindir,
		'-s', $new->host, '-p', $old->port, '-P', $new->port, @options ], $name);
	chdir $back;
}

1;
