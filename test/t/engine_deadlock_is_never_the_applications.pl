# A batch lets its row locks go before an application that waits for them looks for a deadlock; and of a
# batch whose constraints fail, only the guilty event pays an attempt.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use Test::More;
use Time::HiRes qw(time);

# a batch has a quarter of deadlock_timeout to let go in: enough for a machine that has much else to do
my $node = new_engine('main', "outbox.poll_interval = '100ms'\nlog_min_messages = warning\ndeadlock_timeout = '2s'\n");

# --- opposite orders

sql($node, q{
	create table account (id integer primary key, v integer not null);
	insert into account select n, 0 from generate_series(1, 40) n;
	create function touch(e outbox.event) returns void language sql as
	'update account set v = v + 1 where id = (e.payload ->> ''id'')::int';
	create function touch_all(e outbox.event[]) returns void language plpgsql as $f$
	begin
		for i in 1 .. cardinality(e) loop
			update account set v = v + 1 where id = (e[i].payload ->> 'id')::int;
		end loop;
	end $f$;
	select outbox.subscribe('each', '{each.#}', 'public.touch', ordering => 'none', lanes => 1);
	select outbox.subscribe('all', '{all.#}', 'public.touch_all', ordering => 'none', lanes => 1);
	create procedure backwards(wait float8) language plpgsql as $p$
	begin
		for i in reverse 40 .. 1 loop
			update account set v = v + 1 where id = i;
			if i = 20 then perform pg_sleep(wait); end if;
		end loop;
	end $p$;
});

my ($rounds, $refused, $longest) = (0, 0, 0);
for my $type ('each', 'all')
{
	for my $round (1 .. 8)
	{
		my $app = $node->background_psql('postgres');
		# the application has the upper half, then comes the batch, then it wants the lower half
		$app->query_until(qr/begins/, "\\echo begins\ncall backwards(0.3);\n");
		sql($node, "select count(outbox.publish('$type.x', jsonb_build_object('id', n))) from generate_series(1, 40) n");
		my $start = time;
		my $out = $app->query('select 1');
		$refused++ if ($app->{stderr} // '') =~ /deadlock/;
		$longest = time - $start if time - $start > $longest;
		$app->quit;
		$rounds++;
	}
}
drain($node, 30, 'all is delivered');
is($refused, 0, "in $rounds rounds the application never was the victim");
is_sql($node, q{select deadlocks from pg_stat_database where datname = 'postgres'}, '0', 'there was no deadlock at all');
is_sql($node, q{select sum(v) from account}, 2 * $rounds * 40, 'each event and each transaction has had its effect');
is_sql($node, q{select count(*) from outbox.attempt}, '0', 'it has cost no attempt');
cmp_ok($longest, '<', 20, "the application waited $longest s at most");

# --- deferred constraints

sql($node, q{
	create table parent (id integer primary key);
	insert into parent select n from generate_series(1, 1000) n;
	create table child (event_id uuid, n integer, parent integer references parent deferrable initially deferred,
		single integer unique deferrable initially deferred);
	insert into child (single) values (77);
	create function insert_child(e outbox.event) returns void language sql as
	'insert into child values (e.event_id, (e.payload ->> ''n'')::int, (e.payload ->> ''parent'')::int, (e.payload ->> ''single'')::int)';
	create function insert_children(e outbox.event[]) returns void language sql as
	'insert into child select x.event_id, (x.payload ->> ''n'')::int, (x.payload ->> ''parent'')::int, (x.payload ->> ''single'')::int from unnest(e) x';
	select outbox.subscribe('child', '{child.#}', 'public.insert_child', max_attempts => 2, backoff_base => '50 ms');
	select outbox.subscribe('children', '{children.#}', 'public.insert_children', max_attempts => 2, backoff_base => '50 ms');
	-- fails at the commit, after everything else has been checked
	create function refuse() returns trigger language plpgsql as $f$
	begin
		if new.n = 150 then
			raise exception 'refused at commit';
		end if;
		return null;
	end $f$;
	create constraint trigger refuse after insert on child deferrable initially deferred for each row execute function refuse();
});
for my $type ('child', 'children')
{
	sql($node, qq{select count(outbox.publish('$type.x', jsonb_build_object('n', n,
		'parent', case when n = 50 then -1 else n end, 'single', case when n = 100 then 77 end), event_key => n::text)) from generate_series(1, 200) n});
	drain($node, 30, "$type: settled");
	is_sql($node, qq{select string_agg((v.payload ->> 'n') || ' ' || r.error_code || ' ' || r.attempts, ', ' order by (v.payload ->> 'n')::int)
		from outbox.review_required r join outbox.event v using (event_id) where r.subscription = '$type'},
		'50 23503 2, 100 23505 1, 150 P0001 2', 'the guilty come to review');
	is_sql($node, qq{select count(*), count(distinct event_id) from outbox.attempt where subscription = '$type'}, '5|3', 'and they alone have used attempts');
	is_sql($node, qq{select count(*), count(distinct event_id) from child join outbox.event v using (event_id) where v.event_type = '$type.x'}, '197|197', 'all others have their effect');
}
$node->stop;
done_testing();
