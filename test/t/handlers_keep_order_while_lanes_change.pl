# The number of lanes changes again and again under load, with failures thrown in: each key
# keeps its order, and each event has one effect.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('lanes', "outbox.workers = 3\noutbox.poll_interval = 50ms\n");

sql($node, q{create sequence failures});
make_effects($node, 'effects', q{
	-- one call in twenty fails
	if nextval('failures') % 20 = 0 then
		raise 'thrown in' using errcode = 'OT001';
	end if;});
sql($node, q{
	-- a writer's number of a key is taken under the key's row lock, so that order is that of the numbers
	create table key (event_key text primary key, last integer not null);
	insert into key select 'k' || n, 0 from generate_series(1, 40) n;
	create function write_one() returns void language plpgsql as $$
	declare
		k text := 'k' || (1 + floor(random() * 40))::integer;
		number integer;
	begin
		update key set last = last + 1 where event_key = k returning last into number;
		perform outbox.publish('lanes', jsonb_build_object('number', number), event_key => k);
	end $$;
	select outbox.subscribe('lanes', '{lanes}', handler => 'public.effects_handler', lanes => 4, backoff_base => '5 ms', backoff_factor => 1, max_attempts => 50);
});
my $script = $node->basedir . '/write.sql';
append_to_file($script, "select write_one();\n");
my $writers = IPC::Run::start([ 'pgbench', '-n', '-c', '4', '-T', '8', '-f', $script, $node->connstr('postgres') ], '>', \my $out, '2>', \my $err);

my $changes = 0;
for my $lanes (1, 16, 3, 64, 2, 7)
{
	sql($node, "select outbox.alter_subscription('lanes', lanes => $lanes)");
	# not before the last change has come into effect
	comes_true($node, 30, q{select count(*) = 1 from (select lane >= first_lane from outbox.lane join outbox.subscription using (subscription_id) where subscription = 'lanes' group by 1) generations}, "$lanes lanes at work");
	$changes++;
}
# two changes at once, and one that is rolled back
sql($node, q{select outbox.alter_subscription('lanes', lanes => 11); select outbox.alter_subscription('lanes', lanes => 5); begin; select outbox.alter_subscription('lanes', lanes => 9); rollback});
$writers->finish;
drain($node, 60, 'all is delivered');
is(reconcile($node, 'lanes', 'effects'), '', 'effects are receipts');
is_sql($node, q{select (select count(*) from effects) = (select sum(last) from key)}, 't', 'everything that was written, once');
cmp_ok(sql($node, q{select count(*) from effects}), '>', 500, 'enough of it');
cmp_ok(sql($node, q{select count(*) from outbox.attempt}), '>', 20, 'with failures');
is_sql($node, q{select count(*) from (select (payload ->> 'number')::integer - lag((payload ->> 'number')::integer, 1, 0) over (partition by event_key order by n) as step from effects) s where step <> 1}, '0',
	'each key in its order');
# the router takes them away, be there an event for the new ones or not
comes_true($node, 20, q{select lanes = 5 and (select count(*) from outbox.lane l where l.subscription_id = s.subscription_id) = 5 from outbox.subscription s where subscription = 'lanes'}, 'the old lanes are gone');

$node->stop;
done_testing();
