# One worker, two roles that always have work: each has its turns, in a process of its own.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('turns', "outbox.workers = 1\noutbox.poll_interval = 50ms\n");

sql($node, q{
	create role one; create role two;
	create table seen (n bigint generated always as identity, who text default current_user, pid integer default pg_backend_pid(), at timestamptz default clock_timestamp());
	grant insert on seen to public;
	create function handler(e outbox.event) returns void language plpgsql as $$
	begin
		insert into seen default values;
		perform pg_sleep(0.01);
	end $$;
	select outbox.subscribe('one', '{busy}', handler => 'public.handler', run_as => 'one');
	select outbox.subscribe('two', '{busy}', handler => 'public.handler', run_as => 'two');
	-- six seconds of work for each
	select count(outbox.publish('busy')) from generate_series(1, 600);
});
my $start = log_position($node);
drain($node, 60, 'both have done their work');
is_sql($node, q{select who || ' ' || count(*) from seen group by who order by who}, "one 600\ntwo 600", 'all of it, once');
is_sql($node, q{select count(*) from (select pid from seen group by pid having count(distinct who) > 1) p}, '0', 'no process served both');
my $turns = sql($node, q{select count(*) from (select who is distinct from lag(who) over (order by n) as change from seen) s where change});
cmp_ok($turns, '>=', 6, "they took turns ($turns)");
is_sql($node, q{select max(gap) < interval '8 s' from (select at - lag(at) over (partition by who order by n) as gap from seen) g}, 't', 'neither waited for long');
log_is_quiet($node, $start, undef, 'and nobody complains');

# with a worker for each, neither waits for the other at all
$node->append_conf('postgresql.conf', "outbox.workers = 2\n");
$node->reload;
is_served($node, 'postgres', 2, 30, 'two workers');
sql($node, q{truncate seen; select outbox.publish('busy')});
drain($node, 30, 'served');
sql($node, q{truncate seen; select count(outbox.publish('busy')) from generate_series(1, 100)});
drain($node, 30, 'served by both');
is_sql($node, q{select count(*) >= 2 and max(roles) = 1 from (select pid, count(distinct who) as roles from seen group by pid) p}, 't', 'each by its own');
$turns = sql($node, q{select count(*) from (select who is distinct from lag(who) over (order by at) as change from seen) s where change});
cmp_ok($turns, '>', 20, "at the same time ($turns)");

# three roles, two workers, a single event each: none waits for a turn that nobody uses
sql($node, q{create role three; select outbox.subscribe('three', '{busy}', handler => 'public.handler', run_as => 'three'); truncate seen; select outbox.publish('busy')});
drain($node, 30, 'three roles');
is_sql($node, q{select string_agg(who, ' ' order by who) from seen}, 'one three two', 'all are served');

# a role whose only process is in a long call: the other one, of another role and with nothing to do, makes room for it
sql($node, q{
	create function held(e outbox.event) returns void language plpgsql as $$ begin perform pg_advisory_xact_lock(1); end $$;
	select outbox.subscribe('held', '{held}', handler => 'public.held', run_as => 'one', handler_timeout => '10 min');
	select outbox.unsubscribe('three', force => true)});
my $holder = $node->background_psql('postgres');
$holder->query_safe('select pg_advisory_lock(1)');
sql($node, q{select outbox.publish('held')});
comes_true($node, 30, q{select exists (select from pg_locks where locktype = 'advisory' and not granted)}, 'one is in a long call');
sql($node, q{truncate seen; select outbox.publish('busy')});
comes_true($node, 30, q{select count(*) = 2 from seen}, 'both have their event meanwhile');
$holder->query_safe('select pg_advisory_unlock(1)');
drain($node, 30, 'and the call ends');
$holder->quit;

$node->stop;
done_testing();
