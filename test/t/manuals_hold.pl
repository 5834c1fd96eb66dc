# Every block of SQL in the manuals runs, in the order of its page, in a database of its own: what is printed there works. So do those
# of the README, on a server that has the one setting which it asks for.
use strict;
use warnings;
use OutboxEngine;
use OutboxProcesses qw(within);
use PostgreSQL::Test::Cluster;
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

# Runs a page's blocks by one psql, with what is to be there before a block that matches.
sub run_page
{
	my ($node, $page, $blocks, @before) = @_;
	my $script = "$ENV{TMPDIR}/page.sql";
	unlink $script;
	for my $block (@$blocks)
	{
		append_to_file($script, $_->[1] . ";\n") for grep { $block->{text} =~ $_->[0] } @before;
		append_to_file($script, "\\echo line $block->{line}\n$block->{text}");
	}
	my ($out, $err) = ('', '');
	IPC::Run::run([ 'timeout', '120', 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('page'), '-f', $script ],
		'<', '/dev/null', '>', \$out, '2>', \$err);
	my ($last) = $out =~ /.*^line (\d+)$/ms;
	is($? >> 8, 0, scalar(@$blocks) . " blocks of $page run") or diag("in the block at line " . ($last // '?') . ": $err");
	return $out;
}

my $node = new_engine('manuals', "max_worker_processes = 32\n");
my @names = qw(first-steps testing running runbook);
my @pages = map { my $folder = $_; map { "$folder/$_.md" } @names } ('doc', 'doc/ko');
for my $page (@pages)
{
	my @blocks = blocks_of($page);
	$node->safe_psql('postgres', 'create database page');
	# the first one begins without it, the others are about a server that has it
	$node->safe_psql('page', 'create extension outbox') unless grep { $_->{text} =~ /create extension/ } @blocks;
	run_page($node, $page, \@blocks);
	$node->safe_psql('postgres', 'drop database page with (force)');
	my $roles = $node->safe_psql('postgres', q{select string_agg(format('drop role %I', rolname), '; ') from pg_roles where rolname !~ '^pg_' and rolname <> current_user});
	$node->safe_psql('postgres', $roles) if $roles;
}
$node->stop;

# ---------------------------------------------------------------- the README, as a newcomer has it

my ($setting) = slurp_file('README.md') =~ /^echo "(.+)" >> \S*postgresql\.conf/m;
my ($begin, @rest) = blocks_of('README.md');
$node = PostgreSQL::Test::Cluster->new('newcomer');
$node->init;
$node->append_conf('postgresql.conf', $setting);
$node->start;
$node->safe_psql('postgres', 'create database page');
run_page($node, 'README.md (quick start)', [$begin]);
ok(defined within(20, sub { $node->safe_psql('page', q{select string_agg(event_type || ' ' || data, ',') from audit}) eq 'task.created {"title": "Paint the fence"}' }), 'a moment later the audit is there');
is($node->safe_psql('page', 'select count(*) from outbox.review_required'), '0', 'and nothing needs a person');
is($node->safe_psql('page', q{select event_id = (select event_id from audit) from outbox.event}), 't', 'it is the one event');

# Its other blocks speak of an application that has its roles, tables and handlers, and of two deliveries in review.
my $prepared = 0;
for (@rest)
{
	$prepared += $_->{text} =~ s/(?<=retry\('invoice', )'[0-9a-f-]{36}'/:'first'/;
	$prepared += $_->{text} =~ s/(?<=discard\('invoice', )'[0-9a-f-]{36}'/:'second'/;
	$_->{text} =~ s/^(?=select)/call outbox.drain();\n/mg if $_->{text} =~ /:'first'/;
}
is($prepared, 2, 'ids stand in the two calls that take one');
run_page($node, 'README.md (the rest)', \@rest,
	[ qr/grant_publisher/, q{create role app; create role mailer; create role oncall; create role scraper; select outbox.subscribe('mail', array['task.*'])} ],
	[ qr/create trigger/, q{create table orders (id integer primary key, status text)} ],
	[ qr/'billing\.make_invoice'/, q{create role billing_app; create schema billing; grant usage on schema billing to billing_app;
		create function billing.make_invoice(e outbox.event) returns void language plpgsql as $$
		begin
			if e.payload @> '{"orderId": 1}' and not exists (select from billing.repaired) or e.payload @> '{"orderId": 2}' then
				raise exception using errcode = '22000';
			end if;
		end $$;
		create table billing.repaired as select where false; grant select on billing.repaired to billing_app} ],
	[ qr/:'first'/, q{select outbox.publish('order.placed', '{"orderId": 1}') as first, outbox.publish('order.placed', '{"orderId": 2}') as second \gset
		call outbox.drain();
		do $$ begin assert (select count(*) = 2 from outbox.review_required where subscription = 'invoice'); end $$;
		insert into billing.repaired default values} ]);
$node->safe_psql('page', q{insert into orders values (1, 'new')});
is($node->safe_psql('page', q{select string_agg(event_type || ' ' || payload, ', ' order by event_id) from outbox.event where aggregate_type = 'order' and payload ? 'id'}),
	'order.created {"id": 1, "status": "new"}', 'its trigger publishes');
is($node->safe_psql('page', q{select string_agg(d.status, ', ') from outbox.delivery d where subscription = 'mail'}), 'COMPLETED', 'its worker has acknowledged');
is($node->safe_psql('page', q{select string_agg(action, ' ' order by entry_id) from outbox.operator_log where subscription = 'invoice'}),
	'subscribe retry retry_all replay discard pause resume alter_subscription unsubscribe', 'each call of a person did something');
$node->stop;
done_testing();
