# A database restored from a dump, or cloned, routes and delivers nothing until outbox.activate(); from
# then on what was not delivered before is, once, and what is published too.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(is_served);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.poll_interval = '200ms'\noutbox.workers = 1\n");
my $dump = $node->basedir . '/dump';

sub ask { return $node->safe_psql($_[0], $_[1]) }

sub comes
{
	my ($database, $query, $expected, $name) = @_;
	return ok($node->poll_query_until($database, "select ($query)::text = '$expected'"), $name);
}

sub one_each
{
	my ($database, $types) = @_;
	return comes($database, q{select string_agg(event_type || ' ' || n, ', ' order by event_type) from (select event_type, count(*) as n from effect group by 1) x},
		join(', ', map { "$_ 1" } @$types), "$database: one effect for each of @$types");
}

$node->safe_psql('postgres', 'create database origin');
ask('origin', q{
	create extension outbox;
	create table effect (event_id uuid, event_type text);
	create function note(e outbox.event) returns void language sql begin atomic insert into effect values (e.event_id, e.event_type); end;
	create function fail(e outbox.event) returns void language plpgsql as 'begin raise division_by_zero; end';
	select outbox.subscribe('notes', '{#}', 'public.note', lanes => 4);
	select outbox.subscribe('fails', '{a.done}', 'public.fail');
	select outbox.publish('a.done', event_key => 'k')});
ask('origin', 'call outbox.drain()');
# leased, as every lane that was worked is for some seconds; delayed; and not routed yet
ask('origin', q{select outbox.publish('b.delayed', event_key => 'k', deliver_at => outbox.clock() + interval '1 hour')});
comes('origin', 'select count(*) from outbox.delayed', '1', 'a delayed event waits');

$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, $node->connstr('origin') ], 'dumped');
$node->safe_psql('postgres', 'create database copy');
$node->command_ok([ 'pg_restore', '-d', $node->connstr('copy'), $dump ], 'restored, while the processes of the copy run');
is(ask('copy', q{select distinct held || ' ' || (stopped_reason like '%outbox.activate()%') from outbox.subscription_status}), 'true true', 'the copy is held and says so');
ask('copy', q{select outbox.publish('c.held', event_key => 'k')});
# the delayed event comes due, in both; the copy's processes have long looked
set_offset($node, 3700);
one_each('origin', [qw(a.done b.delayed)]);
is(ask('copy', 'select count(*) from effect'), '1', 'nothing is delivered in the copy');

# by two persons at once
my ($first, $second) = map { $node->background_psql('copy') } 1, 2;
is($first->query_safe('begin; select outbox.activate()'), 't', 'activated');
$second->query_until(qr/asked/, "\\echo asked\nselect outbox.activate();\n");
comes('copy', q{select count(*) from pg_locks where not granted and database = (select oid from pg_database where datname = 'copy')}, '1', 'the second one waits');
$first->query_safe('commit');
is($second->query_safe('select 1'), "f\n1", 'and finds that it is done');
$_->quit for $first, $second;
ask('copy', q{select outbox.publish('d.live', event_key => 'k')});
ask('copy', 'call outbox.drain()');
one_each('copy', [qw(a.done b.delayed c.held d.live)]);
is(ask('copy', q{select string_agg(status, ',' order by event_type) from outbox.delivery join outbox.event using (event_id) where subscription = 'notes'}),
	'COMPLETED,COMPLETED,COMPLETED,COMPLETED', 'all are completed');
is(ask('copy', q{select count(*) from outbox.review_required}), '1', 'what was in review still is');
is(ask('copy', 'select outbox.activate()'), 'f', 'a second time there is nothing to activate');

# a clone: its leases name living processes of the origin
ask('origin', q{select outbox.publish('e.before', event_key => 'k')});
ask('origin', 'call outbox.drain()');
$node->safe_psql('postgres', 'create database clone template origin');
ask('clone', q{select outbox.publish('f.held', event_key => 'k')});
is(ask('clone', 'select outbox.activate()'), 't', 'the clone is activated');
ask('clone', 'call outbox.drain()');
one_each('clone', [qw(a.done b.delayed e.before f.held)]);
ask('origin', q{select outbox.publish('g.after', event_key => 'k')});
ask('origin', 'call outbox.drain()');
one_each('origin', [qw(a.done b.delayed e.before g.after)]);

# rows that came without their sequences: their numbers are not given out again
ask('origin', q{select outbox.subscribe('by hand', '{h.#}', lanes => 1), outbox.publish('h.first'); call outbox.drain('{by hand}')});
ask('origin', q{create table held as select * from outbox.claim('by hand')});
is(ask('origin', q{select outbox.ack_one(lease_token, event_id) from held}), 't', 'an external worker of the origin was at it');
# so was one at a subscription that is gone since
ask('origin', q{select outbox.subscribe('gone', '{h.#}', lanes => 1), outbox.publish('h.gone'); call outbox.drain('{gone}')});
my $gone = ask('origin', q{select subscription_id from outbox.subscription where subscription = 'gone'});
ask('origin', q{create table held_too as select * from outbox.claim('gone') union all select * from outbox.claim('by hand')});
ask('origin', q{select outbox.ack_one(lease_token, event_id) from held_too; select outbox.unsubscribe('gone')});
ask('origin', q{delete from outbox.lease; delete from outbox.operator_entry where entry_id < (select max(entry_id) from outbox.operator_entry)});
$node->safe_psql('postgres', 'create database replica template origin');
my @identities = split /\n/, ask('replica', q{select attrelid::regclass || ' alter column ' || attname from pg_attribute join pg_class on pg_class.oid = attrelid where relnamespace = 'outbox'::regnamespace and relkind = 'r' and attidentity <> ''});
is(@identities, 5, 'tables with numbers');
ask('replica', "alter table $_ restart") for @identities;
is(ask('replica', 'select outbox.activate()'), 't', 'the replica is activated');
is(ask('replica', q{select outbox.pause('notes'), outbox.resume('notes')}), 't|t', 'and people go on');
ask('replica', q{select outbox.subscribe('new', '{h.#}'), outbox.publish('h.second'); call outbox.drain('{by hand}')});
is(ask('replica', q{select subscription_id from outbox.subscription where subscription = 'new'}), $gone + 1, 'a new subscription is not taken for one that is gone');
ask('replica', q{create table mine as select * from outbox.claim('by hand')});
is(ask('replica', q{select string_agg(d.status || ' ' || d.subscription, ', ' order by d.subscription) from outbox.delivery d join mine using (event_id) where d.subscription <> 'notes'}),
	'IN_PROGRESS by hand, PENDING new', 'an event that is claimed is not completed already');
is(ask('replica', q{select outbox.ack_one(lease_token, event_id) from mine}), 't', 'and is acknowledged');

$node->stop;
done_testing();
