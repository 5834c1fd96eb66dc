# Handlers that use subtransactions (exception blocks that write) do not fill a transaction with more of them than every
# backend of the server can look at cheaply (64): a batch ends before, from lanes and from gates, and between the calls
# of a batch handler.  Each event has one effect, in order.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use PostgreSQL::Test::Utils;
use Test::More;

# neither time nor the deadline ends a batch
my $node = new_engine('main', "outbox.workers = 1\noutbox.poll_interval = '100ms'\noutbox.batch_time = '10s'\ndeadlock_timeout = '60s'\n");
sql($node, q{
	create table effect (n bigint generated always as identity, event_id uuid not null, event_key text, payload jsonb);
	create table world (fail boolean not null);
	insert into world values (true);
	create table note (n integer);
	-- one subtransaction with a transaction id of its own for each note
	create function write_notes(count integer) returns void language plpgsql as $f$
	begin
		for i in 1 .. count loop
			begin
				insert into note values (i);
			exception when division_by_zero then
			end;
		end loop;
	end $f$;
	create function one(e outbox.event) returns void language plpgsql as $f$
	begin
		if e.payload ? 'first' and (select fail from world) then raise exception 'x'; end if;
		perform write_notes((e.payload ->> 'notes')::integer);
		insert into effect (event_id, event_key, payload) values (e.event_id, e.event_key, e.payload);
	end $f$;
	create function many(e outbox.event[]) returns void language plpgsql as $f$
	begin
		for i in 1 .. cardinality(e) loop perform one(e[i]); end loop;
	end $f$;
	create function publish(type text, notes integer, count integer, key text default null) returns bigint language sql as $f$
		select count(outbox.publish(type, jsonb_build_object('notes', notes), event_key => coalesce(key, n::text))) from generate_series(1, count) n
	$f$;
	create view largest as select s.subscription, max(b.events) as events, sum(b.events) as all_events
		from outbox.batch b join outbox.subscription s using (subscription_id) group by 1});

# How many events the largest batch had, of how many; each once and in order.
sub is_bounded
{
	my ($name, $subscription, $most, $all) = @_;
	drain($node, 120, "$name: settled");
	my ($largest, $sum) = split /\|/, sql($node, "select events, all_events from largest where subscription = '$subscription'");
	cmp_ok($largest, '<=', $most, "$name: no batch has more than $most events");
	is($sum, $all, "$name: together they have all");
	is(reconcile($node, $subscription, 'effect'), '', "$name: one effect each") if $subscription;
	is_sql($node, q{select count(*) from (select event_id < lag(event_id) over (partition by event_key order by n) as before from effect) o where before}, '0', "$name: in order");
	sql($node, 'delete from effect');
}

sql($node, q{select outbox.subscribe('lanes', '{lanes}', 'public.one', lanes => 1); select publish('lanes', 1, 200)});
is_bounded('one an event', 'lanes', 48, 200);

# a last event may go beyond 48 by what it uses itself
sql($node, q{select outbox.subscribe('more', '{more}', 'public.one', lanes => 1); select publish('more', 5, 100)});
is_bounded('five an event', 'more', 10, 100);

sql($node, q{select outbox.subscribe('gate', '{gate}', 'public.one', lanes => 1, backoff_base => '1 s');
	begin; select outbox.publish('gate', '{"first": 1, "notes": 0}', event_key => 'k'); select publish('gate', 4, 100, 'k'); commit});
comes_true($node, 20, q{select blocked_events = 100 from outbox.blocked_key}, 'a hundred events are parked');
sql($node, 'update world set fail = false');
is_bounded('from a gate', 'gate', 12, 101);
is_sql($node, q{select count(*) from outbox.gate}, '0', 'and the gate is gone');

# calls of 20: the third one goes beyond
sql($node, q{select outbox.subscribe('calls', '{calls}', 'public.many', lanes => 1, batch_size => 20); select publish('calls', 1, 200)});
is_bounded('a batch handler', 'calls', 60, 200);

$node->stop;
done_testing();
