# A handler runs no longer than its time limit, however it takes the cancellation; an
# administrator's cancel, and the end of the process, are told apart from it.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('limits', "outbox.poll_interval = 50ms\n");

sql($node, q{
	create table seen (way text, what text);
	create sequence calls;
	create function handler(e outbox.event) returns void language plpgsql as $$
	declare
		way text := e.payload ->> 'way';
	begin
		perform nextval('calls');
		insert into seen values (way, 'called');
		case way
		when 'sleeps' then
			perform pg_sleep(600);
		when 'sleeps once' then
			if (outbox.current_delivery()).attempt = 1 then
				perform pg_sleep(600);
			end if;
		when 'computes' then
			loop
				perform md5(way);
			end loop;
		when 'swallows' then
			-- takes the cancellation for an error of its own, and ends as if all were well
			begin
				perform pg_sleep(600);
			exception when query_canceled then
			end;
		when 'goes on' then
			loop
				begin
					perform pg_sleep(600);
				exception when query_canceled then
				end;
			end loop;
		when 'waits for a lock' then
			perform from locked for update;
		when 'quick' then
		end case;
	end $$;
	create table locked (n integer);
	insert into locked values (1);
	create function publish(way text) returns uuid language sql as $$ select outbox.publish('limit', jsonb_build_object('way', way)) $$;
	create view outcome as
	select e.payload ->> 'way' as way, d.status || ' ' || d.attempts || coalesce(' ' || d.error_code, '') || ', effects ' || (select count(*) from seen where way = e.payload ->> 'way') as what
	from outbox.delivery d join outbox.event e using (event_id);
	select outbox.subscribe('limits', '{limit}', handler => 'public.handler', handler_timeout => '1 s', max_attempts => 2, backoff_base => '10 ms', ordering => 'none');
});

# ---------------------------------------------------------------- our limit

my $start = log_position($node);
sql($node, q{select publish(way) from unnest('{sleeps,sleeps once,computes,swallows,quick}'::text[]) way});
drain($node, 60, 'all are over');
is_sql($node, q{select way || ': ' || what from outcome order by way}, join("\n",
	'computes: REVIEW_REQUIRED 2 handler_timeout, effects 0',
	'quick: COMPLETED 1, effects 1',
	'sleeps: REVIEW_REQUIRED 2 handler_timeout, effects 0',
	'sleeps once: COMPLETED 2, effects 1',
	'swallows: REVIEW_REQUIRED 2 handler_timeout, effects 0'), 'each costs its own event an attempt, and no other');
is_sql($node, q{select bool_and(extract(epoch from failed_at - started_at) between 0.9 and 60) from outbox.attempt where started_at is not null}, 't', 'in time');
log_is_quiet($node, $start, undef, 'the processes go on');

# one that waits for a lock is cancelled too
my $locker = $node->background_psql('postgres');
$locker->query_safe('begin');
$locker->query_safe('select from locked for update');
sql($node, q{select publish('waits for a lock')});
drain($node, 30, 'the lock is over');
is_sql($node, q{select what from outcome where way = 'waits for a lock'}, 'REVIEW_REQUIRED 2 handler_timeout, effects 0', 'a lock does not hold it longer');
$locker->query_safe('rollback');

# whoever goes on after being cancelled again and again loses the process, and is the one to pay
sql($node, q{select publish('goes on'); select publish('quick') from generate_series(1, 3)});
drain($node, 90, 'that which goes on is over');
is_sql($node, q{select what from outcome where way = 'goes on'}, 'REVIEW_REQUIRED 2 worker_died, effects 0', 'it went to a person');
is_sql($node, q{select string_agg(distinct what, ', ') from outcome where way = 'quick'}, 'COMPLETED 1, effects 4', 'the others did not pay');

# ---------------------------------------------------------------- an administrator's cancel

sql($node, q{select outbox.alter_subscription('limits', handler_timeout => '10 min', backoff_base => '1 min'); delete from seen});
my ($id) = sql($node, q{select publish('sleeps once')});
comes_true($node, 30, "select exists (select from outbox.delivery where event_id = '$id' and status = 'IN_PROGRESS')", 'it is in progress');
is_sql($node, q{select subscription || ' ' || state || ' ' || (event_id is not null) || ' ' || role_name from outbox.worker_status where process = 'worker' and event_id is not null},
	'limits running true ' . sql($node, 'select current_user'), 'worker_status shows it');
is_sql($node, q{select in_progress from outbox.subscription_status}, '1', 'and subscription_status');
sql($node, q{select pg_cancel_backend(pid) from outbox.worker_status where event_id is not null});
comes_true($node, 30, "select exists (select from outbox.delivery where event_id = '$id' and status = 'RETRY' and error_code = '57014' and attempts = 1)", 'a cancel is a failure like another');
is_sql($node, qq{select attempt || ' ' || error_code from outbox.attempt where event_id = '$id'}, '1 57014', 'and is told apart');
is_sql($node, qq{select next_attempt_at > failed_at + interval '30 s' from outbox.delivery join outbox.attempt using (event_id) where event_id = '$id'}, 't', 'it waits for its next attempt');

# ---------------------------------------------------------------- the end of the process

sql($node, q{select outbox.discard('limits', event_id, 'test') from outbox.delivery where status = 'RETRY'});
sql($node, q{create or replace function handler(e outbox.event) returns void language plpgsql as $$
	begin
		if nextval('calls_now') = 1 then
			perform pg_sleep(600);
		end if;
		insert into seen values ('after the end', 'called');
	end $$; create sequence calls_now});
($id) = sql($node, q{select publish('ended')});
comes_true($node, 30, "select exists (select from outbox.delivery where event_id = '$id' and status = 'IN_PROGRESS')", 'it is in progress');
sql($node, q{select pg_terminate_backend(pid) from outbox.worker_status where event_id is not null});
drain($node, 30, 'another one goes on');
is_sql($node, qq{select status || ' ' || attempts from outbox.delivery where event_id = '$id'}, 'COMPLETED 1', 'a clean end costs no attempt');
is_sql($node, qq{select count(*) from outbox.attempt where event_id = '$id'}, '0', 'and leaves no failure');
is_sql($node, q{select count(*) from seen where way = 'after the end'}, '1', 'one effect');

$node->stop;
done_testing();
