# Every block of SQL in the manuals runs, in the order of its page, in a database of its own: what is printed there works, and what is
# printed to fail does so with that message. So do those of the README, on a server that has the one setting which it asks for. And what
# pages say of settings, and what they name, is so.
use strict;
use warnings;
use OutboxEngine;
use OutboxProcesses qw(within);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# a title of SQL blocks: "sql"; one without a title right after it that begins with "ERROR:" is what the block ends in
sub blocks_of
{
	my ($page) = @_;
	my (@blocks, $block, $after, $line);
	for (split /\n/, slurp_file($page))
	{
		$line++;
		if ($block && /^```$/) { $after = $block->{sql} ? $block : undef; push @blocks, $block if $block->{sql}; undef $block }
		elsif ($block) { $block->{text} .= "$_\n"; $after->{error} .= "$_\n" if $after && ($after->{error} || /^ERROR:/) }
		elsif (/^```(.*)$/) { $block = { line => $line + 1, text => '', sql => $1 eq 'sql' }; undef $after if $1 ne '' }
		elsif (/\S/) { undef $after }
	}
	return @blocks;
}

# Runs a page's blocks by one psql, with what is to be there before a block that matches.
sub run_page
{
	my ($node, $page, $blocks, @before) = @_;
	my $script = '';
	for my $block (@$blocks)
	{
		$script .= $_->[1] . ";\n" for grep { $block->{text} =~ $_->[0] } @before;
		$script .= "\\echo line $block->{line}\n\\warn line $block->{line}\n\\set ON_ERROR_STOP " . ($block->{error} ? 0 : 1) . "\n$block->{text}";
		# a session has the new setting a moment later, a new one at once
		$script .= "\\connect\n" if $block->{text} =~ /pg_reload_conf/;
	}
	my ($out, $err) = ('', '');
	IPC::Run::run([ 'timeout', '600', 'psql', '-X', '-q', '-d', $node->connstr('page') ], '<', \$script, '>', \$out, '2>', \$err);
	my ($last) = $out =~ /.*^line (\d+)$/ms;
	is($? >> 8, 0, scalar(@$blocks) . " blocks of $page run") or diag("in the block at line " . ($last // '?') . ": $err");
	my %said = $err =~ /^line (\d+)\n(.*?)(?=^line \d+$|\z)/msg;
	is($said{$_->{line}}, $_->{error}, "line $_->{line} of $page fails as it says") for grep { $_->{error} } @$blocks;
	return $out;
}

# ---------------------------------------------------------------- each page

my @pages = grep { $_ ne './README.md' && $_ ne './CHANGELOG.md' } glob '{.,doc,doc/ko,bench,examples/*}/*.md';
my %blocks = map { $_ => [ blocks_of($_) ] } @pages;
my $titled = () = map { slurp_file($_) =~ /^[ \t>]*(?:```|~~~)[ \t]*\w*sql\b/gmi } @pages;
my $run = () = map { @$_ } values %blocks;
is($run, $titled, "none of $titled blocks is left out");

# What the page about drivers leaves to the driver, and two events for what it does with them.
my %parameter = (
	payload => q{'{"orderId": 42}'}, order_id => q{'42'}, request_id => q{'req-1'}, trace_id => q{'4bf92f3577b34da6a3ce929d0e0e4736'},
	(map { $_->[0] => "(select $_->[1] from outbox.lease order by lease_id desc limit 1)" } [ token => 'token' ], [ ids => 'event_ids[:1]' ], [ id => 'event_ids[cardinality(event_ids)]' ]));
for my $block (map { @{ $blocks{$_} } } grep { /drivers\.md$/ } @pages)
{
	$block->{text} =~ s/\$(\w+)/$parameter{$1}/ge;
}
my @before = ([ qr/outbox\.claim\('shipping'/, q{select outbox.publish_batch('[{"event_type": "order.placed"}, {"event_type": "order.placed"}]')} ],
	[ qr/ack => /, q{call outbox.wait('{shipping}', '30 s')} ]);

# What the runbook is read about: two events in review, which go there again when they are tried again, and one that nobody has heard of.
my $id = '01a2290f-45d1-7c7e-bc17-aed2a54c10f7';
my $named = 0;
for my $block (map { @{ $blocks{$_} } } grep { /runbook\.md$/ } @pages)
{
	$named += $block->{text} =~ s/'$id'/:'in_review'/;
}
is($named, 4, 'two blocks of each runbook name an event');
push @before,
	[ qr/from outbox\.review_required order by failed_at/, q{create function fails(e outbox.event) returns void language plpgsql as $$ begin raise exception using errcode = '22000'; end $$;
		select outbox.subscribe('broken', array['broken.*'], handler => 'public.fails');
		select outbox.publish('broken.too');
		select outbox.publish('broken.once', request_id => 'req-1') as in_review \gset
		call outbox.drain()} ],
	[ qr/outbox\.(retry_all|discard)\(/, 'call outbox.drain()' ],
	[ qr/depends_on_it/, q{do $$ begin execute (select format('create view public.of_a_segment as select * from %s', tableoid::regclass) from outbox.event_log limit 1); end $$} ],
	[ qr/from outbox\.unmatched_event_type/, q{select outbox.publish('task.created');
		select outbox.subscribe('task-log', array['task.item.*'])} ];

# What blocks show that tell of it.
my %shows = (
	'first-steps' => [ qr/ invoices \n-+\n +1\n/, qr/ invoice .* order\.placed .* 3 .* 1 .* 23502\n/, qr/ 3 \| +0\n/, qr/ same_event \n-+\n t\n/, qr/ completed \n-+\n +1\n/ ],
	'testing' => [ qr/ amount \n-+\n +5\n/, qr/ amount \n-+\n +9\n/, qr/ order\.placed \| 23505\n/, qr/ worked_at_attempt \n-+\n +3\n/ ],
	'drivers' => [ qr/ ready \n-+\n t\n/, qr/ ack \n-+\n +1\n/, qr/ fail +\n-+\n RETRY\n/ ],
	'tenants' => [ qr/ count \n-+\n +0\n/, qr/ acme +\| Thank you/ ],
	'runbook' => [ qr/ broken +\| .* \| broken\.once \| req-1 +\| .* \| 22000 /, qr/ retry \n-+\n t\n/, qr/ retry_all \n-+\n +2\n/, qr/ discard \n-+\n t\n/, qr/ alter_subscription \n-+\n t\n/, qr/ replay \n-+\n +1\n/, qr/^ event_log_\d+ \| rule _RETURN on view of_a_segment\n\(1 row\)\n/m ],
	'rights' => [ qr/ shop +\| publisher \| order\.\*\n/, qr/revoke_publisher .* shop: refund/ ]);

my $node = new_engine('manuals', "max_worker_processes = 32\n");
for my $page (grep { @{ $blocks{$_} } } @pages)
{
	$node->safe_psql('postgres', 'create database page');
	# some begin without it, the others are about a server that has it
	$node->safe_psql('page', 'create extension outbox') unless grep { $_->{text} =~ /create extension/ } @{ $blocks{$page} };
	my $out = run_page($node, $page, $blocks{$page}, @before);
	like($out, $_, "$page shows it") for map { @{ $shows{$_} // [] } } $page =~ m{([^/]+)\.md$};
	$node->safe_psql('postgres', 'drop database page with (force)');
	my $roles = $node->safe_psql('postgres', q{select string_agg(format('drop role %I', rolname), '; ') from pg_roles where rolname !~ '^pg_' and rolname <> current_user});
	$node->safe_psql('postgres', $roles) if $roles;
	is($node->safe_psql('postgres', q{select count(*) from pg_file_settings where sourcefile ~ 'auto.conf'}), '0', "$page leaves the server's settings as they were");
}

# ---------------------------------------------------------------- in Korean as in English

# Headings, tables, lists and other paragraphs of a page, without its blocks.
sub shape_of
{
	my ($page) = @_;
	my $text = slurp_file($page) =~ s/^```.*?^```$//msgr;
	return [ map { my @lines = split /\n/; /^(#+)/ ? $1 : /^(\||- |\d+\. )/ ? scalar(@lines = grep { /^(\||- |\d+\. )/ } @lines) . ($1 eq '|' ? ' rows' : ' points') : 'text' }
		grep { /\S/ } split /\n{2,}/, $text ];
}

for my $page (grep { m{^doc/(?!architecture|reference)[^/]+$} } @pages)
{
	my $korean = $page =~ s{doc/}{doc/ko/}r;
	my ($here, $there) = map { [ map { ($_->{text} =~ s/\s*--.*//gr) . ($_->{error} // '') } @{ $blocks{$_} } ] } $korean, $page;
	is_deeply($here, $there, "$korean has the SQL of the page in English");
	is_deeply(shape_of($korean), shape_of($page), "$korean has the paragraphs of the page in English");
}

# ---------------------------------------------------------------- what they name

my %settings = map { $_ => 1 } split /\n/, $node->safe_psql('postgres', q{select name from pg_settings where name ~ '^outbox\.'});
my %known = map { $_ => 1 } map({ s/^outbox\.//r } keys %settings), split /\n/, $node->safe_psql('postgres', q{
	select proname from pg_proc where pronamespace = 'outbox'::regnamespace
	union select relname from pg_class where relnamespace = 'outbox'::regnamespace
	union select typname from pg_type where typnamespace = 'outbox'::regnamespace});
# types of events, a beginning of names, files
$known{$_} = 1 for qw(review_required subscription_stopped retired_ control c h);
for my $page ('README.md', grep { m{^doc/(ko/)?(?!reference)} || m{^examples/} } @pages)
{
	my @unknown = grep { !$known{$_} } slurp_file($page) =~ /(?<![-\w])outbox\.([a-z][a-z_]*)/g;
	is("@unknown", '', "$page names what is there");
	my $wrong = '';
	my %said = slurp_file($page) =~ /^\| `(outbox\.\w+)` \| ([^|]*?) \|/mg;
	for my $setting (grep { $settings{$_} && $said{$_} ne '' } sort keys %said)
	{
		my $is = $node->safe_psql('postgres', "show $setting") || 'none';
		my $says = $said{$setting} =~ s/`//gr =~ s/ days|일/d/r =~ s/ (?=[mk])//r =~ s/없음/none/r;
		$wrong .= "$setting: $says, not $is\n" if $says ne $is;
	}
	is($wrong, '', "$page has the defaults of settings");
}

# What it is that keeps a segment, in the words of the server.
my $source = join '', map { slurp_file($_) } glob 'src/*.[ch]';
for my $page (grep { /runbook\.md$/ } @pages)
{
	my @said = grep { $_ ne 'it says' } slurp_file($page) =~ /^\| ([a-z][a-z0-9 ._]+) \| .* \| .* \|$/mg;
	is(join(', ', map { "$_: " . ($source =~ /"[^"\n]*\Q$_\E/ ? 'said' : 'not said') } @said), join(', ', map { "$_: said" } @said), scalar(@said) . " reasons of $page are the server's");
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
ok(defined within(60, sub { $node->safe_psql('page', q{select string_agg(event_type || ' ' || data, ',') from audit}) eq 'task.created {"title": "Paint the fence"}' }), 'a moment later the audit is there');
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
