# Every block of SQL in the manuals runs, in the order of its page, in a database of its own: what is printed there works.
use strict;
use warnings;
use OutboxEngine;
use PostgreSQL::Test::Utils;
use Test::More;

# a title of SQL blocks: "sql"; other blocks are for the shell or a file
sub blocks_of
{
	my ($page) = @_;
	my (@blocks, $block, $line);
	for (split /\n/, slurp_file($page))
	{
		$line++;
		if (/^```sql$/) { $block = { line => $line + 1, text => '' } }
		elsif (/^```/ && $block) { push @blocks, $block; undef $block }
		elsif ($block) { $block->{text} .= "$_\n" }
	}
	return @blocks;
}

my $node = new_engine('manuals', "max_worker_processes = 32\n");
my @names = qw(first-steps testing running runbook);
my @pages = map { my $folder = $_; map { "$folder/$_.md" } @names } ('doc', 'doc/ko');
for my $page (@pages)
{
	my @blocks = blocks_of($page);
	my $script = "$ENV{TMPDIR}/page.sql";
	my $n;
	$node->safe_psql('postgres', 'create database page');
	unlink $script;
	# the first one begins without it, the others are about a server that has it
	$node->safe_psql('page', 'create extension outbox') unless grep { $_->{text} =~ /create extension/ } @blocks;
	append_to_file($script, "\\echo line $_->{line}\n$_->{text}") for @blocks;
	my ($out, $err) = ('', '');
	IPC::Run::run([ 'timeout', '120', 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('page'), '-f', $script ],
		'<', '/dev/null', '>', \$out, '2>', \$err);
	my ($last) = (() = $out =~ /^line (\d+)/gm)[-1];
	is($? >> 8, 0, scalar(@blocks) . " blocks of $page run") or diag("in the block at line " . ($last // '?') . ": $err");
	$node->safe_psql('postgres', 'drop database page with (force)');
	my $roles = $node->safe_psql('postgres', q{select string_agg(format('drop role %I', rolname), '; ') from pg_roles where rolname !~ '^pg_' and rolname <> current_user});
	$node->safe_psql('postgres', $roles) if $roles;
}
$node->stop;
done_testing();
