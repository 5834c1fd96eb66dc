# Events of a key have their effects one at a time and in the order in which their transactions
# held the row, whatever fails or ends in between.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(within);
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.workers = 4\noutbox.poll_interval = '100ms'\noutbox.batch_time = '30ms'\nlog_min_messages = warning\n");

# Sequences count what rolls back. Each key has a row that its handler locks: no two have it at once.
sql($node, q{
	create table counter (tenant text, k integer, n integer not null default 0, primary key (tenant, k));
	insert into counter select t, k, 0 from unnest('{north,south}'::text[]) t, generate_series(1, 12) k;
	create table guard as select s as subscription, tenant, k::text from counter, unnest('{single,several}'::text[]) s;
	create sequence failed;
	create sequence at_once;
	create table effect (n bigint generated always as identity, subscription text, event_id uuid, tenant text, k text, counted integer);
	create function stumble(e outbox.event, subscription text, chance float8) returns void language plpgsql as $f$
	begin
		perform from guard g where g.subscription = stumble.subscription and g.tenant = e.tenant_id and g.k = e.event_key
			for update skip locked;
		if not found then
			perform nextval('at_once');
		end if;
		insert into effect (subscription, event_id, tenant, k, counted)
			values (subscription, e.event_id, e.tenant_id, e.event_key, (e.payload ->> 'n')::int);
		if random() < chance then
			perform nextval('failed');
			raise exception 'stumbled';
		end if;
		if random() < 0.01 then perform pg_sleep(0.02); end if;
	end $f$;
	create function single(e outbox.event) returns void language sql as 'select stumble(e, ''single'', 0.03)';
});
sql($node, q{create function several(e outbox.event[]) returns void language plpgsql as $f$
	begin
		for i in 1 .. cardinality(e) loop perform stumble(e[i], 'several', 0.01); end loop;
	end $f$;
	select outbox.subscribe(name, '{counted}', 'public.' || name, max_attempts => 1000, backoff_base => '10 ms', backoff_factor => 1, lanes => 5)
	from unnest('{single,several}'::text[]) name});

my $script = PostgreSQL::Test::Utils::tempdir() . '/count';
append_to_file($script, q{
\set k random(1, 12)
\set t random(1, 2)
\set late random(1, 10)
begin;
select outbox.publish('other') \gset
with c as (update counter set n = n + 1 where k = :k and tenant = (array['north', 'south'])[:t] returning *)
select outbox.publish('counted', jsonb_build_object('n', n), event_key => k::text, tenant_id => tenant) from c;
\if :late = 1
rollback;
\else
commit;
\endif
});
my $writers = IPC::Run::start(
	[ 'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-c', '16', '-j', '2', '-t', '400', '-R', '900', '-f', $script, 'postgres' ],
	'>', '/dev/null', '2>', \my $complaints);

# workers come and go meanwhile
my $ended = 0;
within(60,
	sub {
		sql($node, q{select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'outbox worker' order by random() limit 1});
		$ended++;
		select(undef, undef, undef, 0.3);
		return !eval { $writers->pump_nb; $writers->pumpable };
	});
$writers->finish;
is(join('', grep { /error|abort/i } split /^/, $complaints), '', 'the writers had no trouble');

drain($node, 120, 'all is delivered');
my $events = sql($node, 'select sum(n) from counter');
cmp_ok($events, '>', 4000, "$events events, while $ended workers were ended");
is_sql($node, 'select subscription, count(*), count(distinct event_id) from effect group by 1 order by 1',
	"several|$events|$events\nsingle|$events|$events", 'each has its effect once');
is_sql($node, q{select count(*) from (select counted, lag(counted, 1, 0) over (partition by subscription, tenant, k order by n) as before from effect) o
	where counted <> before + 1}, '0', 'in the order of the rows');
is_sql($node, 'select is_called from at_once', 'f', 'never two of a key at once');
cmp_ok(sql($node, 'select last_value from failed'), '>', 100, 'with failures: ' . sql($node, 'select last_value from failed'));
is_sql($node, q{select count(*) from outbox.delivery where status <> 'COMPLETED'}, '0', 'nothing is left open');
$node->stop;
done_testing();
