# Names and keys are what the application gave, byte by byte: never cut off, never mixed up with one that looks alike,
# never read as SQL; in databases of every encoding and collation.
use strict;
use warnings;
use utf8;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.workers = 1\n");

# What is hard about them; the last ones cannot be written in LATIN1.
my @latin = (
	'x', 'X', 'x ', ' x', '0', 'null', 'NULL', '{}', '%I', '%s%L', '$1', '$$', 'select', 'public', '"', '""', "'", "''", q{';--}, q{"; drop table t; --},
	'\\', '\\n', 'a.b', 'a-b', 'a:b', 'a\\:b', 'a,b', '{a,b}', '*', '#', 'outbox', 'x' x 47, 'x' x 48, 'x' x 63, 'x' x 64, 'x' x 63 . 'y', 'x' x 64 . 'y', 'x' x 200,
	'é', 'É', 'ß', 'ss', 'ÿ', 'é' x 63, 'é' x 100);
my @unicode = ("e\x{301}", "\x{212b}", "\x{c5}", "A\x{30a}", "\x{1f600}", "\x{1f468}\x{200d}\x{1f469}", "\x{5e9}\x{5dc}", "\x{202e}abc", "\x{feff}x", "x\x{200b}", 'ı', 'İ', 'ﬁ', 'fi', 'Ⅷ');

# Control characters: allowed in ids and keys, not in names and context.
my @control = ("\n", "\t", "a\nb", "\x01", "a\r");

sub literal
{
	my ($text) = @_;
	$text =~ s/\\/\\\\/g;
	$text =~ s/'/\\'/g;
	return "E'$text'";
}

sub bytes
{
	my ($text) = @_;
	utf8::encode($text);
	return length $text;
}

sub in_database
{
	my ($database, $create, $length_of, @names) = @_;
	my $run = sub {
		my ($sql) = @_;
		utf8::encode($sql);
		return $node->safe_psql($database, "set client_encoding = 'UTF8'; set client_min_messages = error; $sql");
	};
	$node->safe_psql('postgres', $create);
	$run->(q{create extension outbox});

	# subscriptions: each name is another one, and gets its events once
	my $values = join(', ', map { sprintf('(%d, %s)', $_, literal($names[$_])) } 0 .. $#names);
	$run->("create table name (n integer, name text collate \"C\"); insert into name values $values");
	is($run->(q{select count(distinct name) from name}), scalar @names, "$database: so many names");
	$run->(q{
		create table seen (subscription text collate "C", event_key text collate "C", tenant_id text collate "C");
		create function see(e outbox.event) returns void language plpgsql as $f$
		begin
			insert into seen values ((outbox.current_delivery()).subscription, e.event_key, e.tenant_id);
			if e.event_type = 'fails' then perform outbox.fail_permanently('asked_for'); end if;
		end $f$;
		select count(outbox.subscribe(name, array['n.' || n], handler => 'public.see', lanes => 1)) from name;
		select count(outbox.publish('n.' || n, event_key => name)) from name;
		call outbox.drain(timeout => '60 s')});
	is($run->(q{select count(*) from name join outbox.subscription s on s.subscription = name.name}), scalar @names, "$database: each is a subscription");
	is($run->(q{select count(*), count(*) filter (where s.event_key = s.subscription), count(distinct s.subscription) from seen s join name on name.name = s.subscription}),
		join('|', (scalar @names) x 3), "$database: each has seen its event, and no other");
	is($run->(q{select count(*) from name, outbox.matching_subscriptions('n.' || n) as m where m = name.name}), scalar @names, "$database: and is found by its name");
	is($run->(q{select count(*) filter (where outbox.pause(name)), count(*) filter (where outbox.resume(name)), count(*) filter (where outbox.unsubscribe(name, force => true)) from name}),
		join('|', (scalar @names) x 3), "$database: paused, resumed and dropped by it");

	# every field that takes a text has it back
	my @ids = (@names, @control, map { substr($_ x 512, 0, int(512 / $length_of->($_))) } 'x', 'é');
	$values = join(', ', map { sprintf('(%s, %s)', literal($_), $_ =~ /[\x00-\x1f]/ || $length_of->($_) > 255 ? 'false' : 'true') } @ids);
	$run->(qq{
		create table given (name text collate "C", context boolean, id uuid);
		insert into given values $values;
		update given set id = outbox.publish('kept', to_jsonb(name), aggregate_type => case when context then name else 't' end, aggregate_id => name, event_key => name, dedup_key => name,
			tenant_id => case when context then name end, actor_type => case when context then name end, actor_id => case when context then name end,
			request_id => case when context then name end, trace_id => case when context then name end, correlation_id => case when context then name end,
			source => case when context then name end, payload_version => case when context then name end, headers => jsonb_build_object(name, name))});
	is($run->(q{select count(*) from given join outbox.event e on e.event_id = given.id
		where e.aggregate_id = name and e.event_key = name and e.dedup_key = name and e.payload #>> '{}' = name and e.headers ->> name = name
		and (not context or (e.tenant_id = name and e.actor_type = name and e.actor_id = name and e.request_id = name and e.trace_id = name and e.correlation_id = name
			and e.source = name and e.payload_version = name and e.aggregate_type = name))}), scalar @ids, "$database: every text is kept");
	is($run->(q{select count(*) from given join outbox.event e on e.event_id = given.id
		where outbox.envelope(e) ->> 'key' = name and outbox.envelope(e) ->> 'aggregateId' = name and outbox.envelope(e) ->> 'data' = name}), scalar @ids, "$database: in the envelope, too");
	is($run->(q{select count(distinct id) from given}), scalar @ids, "$database: different dedup keys are different");
	is($run->(q{select count(*) filter (where outbox.consume_once('r', name)), count(*) filter (where outbox.consume_once('r', name)) from given}),
		scalar(@ids) . '|0', "$database: and different messages");

	# keys and tenants that look alike do not wait for one another
	$run->(q{
		select outbox.subscribe('keys', array['fails', 'follows'], handler => 'public.see', lanes => 1);
		truncate seen;
		select count(outbox.publish('fails', event_key => name, tenant_id => case when n % 2 = 0 then name end)) from name where n % 3 = 0;
		select count(outbox.publish('follows', event_key => name, tenant_id => case when n % 2 = 0 then name end)) from name;
		call outbox.drain(timeout => '60 s')});
	is($run->(q{select count(*) from name where (n % 3 = 0) = exists (select from seen s where s.event_key = name.name and s.tenant_id is not distinct from case when n % 2 = 0 then name end)}),
		0, "$database: keys wait for their own, and for no other");
	is($run->(q{select count(*) from outbox.blocked_key b join name on name.name = b.event_key where n % 3 = 0}),
		$run->('select count(*) from name where n % 3 = 0'), "$database: and show as what they are");

	# a row's key, of a column whose collation takes different strings for the same
	$run->(q{
		create table item (name text);
		create trigger publish after insert on item for each row execute function outbox.publish_row('event_type=item', 'columns=name', 'key=name', 'aggregate_type=item', 'aggregate=name');
		insert into item select name from name});
	is($run->(q{select count(distinct e.event_key) from outbox.event e join name on name.name = e.event_key and e.payload ->> 'name' = name.name where e.event_type = 'item'}),
		scalar @names, "$database: keys of rows");
	is(join("\n", complaints($node)), '', "$database: without a complaint");
}

in_database('utf8', q{create database utf8 encoding 'UTF8' locale 'C' template template0}, \&bytes, @latin, @unicode);
in_database('latin1', q{create database latin1 encoding 'LATIN1' locale 'C' template template0}, sub { length $_[0] }, @latin);
in_database('sql_ascii', q{create database sql_ascii encoding 'SQL_ASCII' locale 'C' template template0}, \&bytes, @unicode);

SKIP:
{
	my ($rc) = $node->psql('postgres', q{create collation probe (provider = icu, locale = 'und')});
	skip 'this server has no ICU', 1 if $rc != 0;
	in_database('icu', q{create database icu encoding 'UTF8' locale_provider icu icu_locale 'und-u-ks-level1' locale 'C' template template0}, \&bytes, 'x', 'X', @unicode);

	# a collation for which upper and lower case are the same
	my $run = sub { return $node->safe_psql('icu', $_[0]) };
	$run->(q{create collation loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false)});
	is($run->(q{select 'A' collate loose = 'a'}), 't', 'the collation is loose');
	$run->(q{select outbox.subscribe('loose a' collate loose, array['loose' collate loose]); select outbox.subscribe('loose A' collate loose, array['loose' collate loose])});
	is($run->(q{select count(*) from outbox.subscription_status where subscription in ('loose a', 'loose A')}), '2', 'two subscriptions that differ in case');
	is($run->(q{select outbox.publish('loose', event_key => 'k' collate loose, dedup_key => 'd' collate loose) <> outbox.publish('loose', event_key => 'K' collate loose, dedup_key => 'D' collate loose)}),
		't', 'two dedup keys');
	is($run->(q{select outbox.consume_once('r' collate loose, 'cc' collate loose), outbox.consume_once('r' collate loose, 'CC' collate loose), outbox.consume_once('R' collate loose, 'cc' collate loose)}),
		't|t|t', 'three messages');
	$run->(q{create table loose_item (name text collate loose, n integer);
		create trigger publish after insert or update on loose_item for each row execute function outbox.publish_row('event_type=loose_item', 'columns=name', 'key=name', 'changed=name');
		insert into loose_item values ('a', 1); update loose_item set name = 'A'; update loose_item set n = 2});
	is($run->(q{select string_agg(event_key, ' ' order by event_id) from outbox.event where event_type = 'loose_item'}), 'a A', 'and a change of case is one');
}

done_testing();
