# A clock that was far ahead has had retention drop the segments of today and of days to come. Set back, it publishes to them
# again: no event is lost, those that a delivery needed and that were kept are still delivered, once, and what is in a segment
# that goes once more is archived once more.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use OutboxRetention;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.poll_interval = '100ms'\noutbox.retention = '7d'\noutbox.receipt_retention = '20d'\noutbox.archive_function = 'public.archive'\nautovacuum = off\n");
make_effects($node, 'effect', q{if e.payload ? 'fails' and not exists (select from healed) then raise exception using errcode = '22000'; end if;});
sql($node, q{
	create table healed ();
	create table archived (event_id uuid, event_type text);
	create function archive(segment text, from_time timestamptz, to_time timestamptz) returns void language plpgsql
		as $$ begin execute format('insert into public.archived select event_id, event_type from only %s', segment); end $$;
	select outbox.subscribe('s', '{#}', 'public.effect_handler', lanes => 2, backoff_base => '5 seconds');
	select outbox.subscribe('outside', '{t.claimed}', lanes => 2)});

sub publish
{
	my ($type, $more) = @_;
	sql($node, "select outbox.publish('t.$type'" . ($more // '') . ')');
}

# how many events are not settled as they should be
my $undone = q{select count(*) from outbox.event_log e where e.event_type in ('t.done', 't.again', 't.next_day') and (select count(*) from effect f where f.event_id = e.event_id) <> 1};

sub far_ahead
{
	my ($days) = @_;
	set_offset($node, $days * 86400);
	comes_true($node, 30, q{select count(*) > 0 and bool_and(sealed) from outbox.segment where name < to_char(outbox.clock() at time zone 'utc' - interval '1 day', 'YYYYMMDD')}, "$days days ahead: sealed");
	# archived by a process of its own, perhaps
	within(60, sub { sql($node, 'call outbox.maintain()'); return sql($node, q{select count(*) from outbox.event_log l where tableoid <> 'outbox.event_log_kept'::regclass}) eq '0' });
	is_sql($node, q{select count(*) from only outbox.event_log_kept}, '6', "$days days ahead: what is needed is kept");
}

publish('done') for 1 .. 3;
publish('review', q{, '{"fails": 1}', event_key => 'k'});
publish('parked', q{, event_key => 'k'});
publish('claimed', q{, '{"n": 1}'});
publish('claimed', q{, '{"n": 2}'});
publish('late', q{, deliver_at => clock_timestamp() + interval '30 days'});
publish('later', q{, deliver_at => clock_timestamp() + interval '31 days'});
drain($node, 20, 'what can be is delivered');

# --- the receipts of the segment are there yet

sql($node, 'alter table outbox.dedup rename to away');
far_ahead(12);
my $failing = q{select coalesce(string_agg(task, ', ' order by task) filter (where failing), '') from outbox.maintenance_status};
# by upkeep that is done by hand, once the process that archives is not at it
sub failing_are
{
	my ($expected, $name) = @_;
	my $found;
	return ok(defined within(60, sub { sql($node, 'call outbox.maintain()'); $found = sql($node, $failing); return $found eq $expected }), $name) || diag("failing: $found");
}
failing_are('deduplication', 'one task of upkeep fails');
set_offset($node, 0);
sql($node, 'alter table outbox.away rename to dedup; alter table outbox.consumed rename to away');
failing_are('consumed messages', 'set back, it is well again, and another one fails');
sql($node, 'alter table outbox.away rename to consumed');
failing_are('', 'all are well');
sql($node, 'create table published (event_id uuid)');
sql($node, q{insert into published select outbox.publish('t.again', event_key => n::text) from generate_series(1, 5) n});
drain($node, 20, 'set back');
is_sql($node, q{select count(*) from published join outbox.event using (event_id)}, '5', 'what is published is in the log');
is_sql($node, $undone, '0', 'and delivered');
sql($node, 'call outbox.maintain()');
is_sql($node, q{select count(*) from published join outbox.event using (event_id)}, '5', 'upkeep does not remove it');
is_sql($node, q{select count(*) from only outbox.event_log_kept}, '6', 'what was kept before is kept');
is_sql($node, q{select event_type from outbox.review_required}, 't.review', 'and found');
is_sql($node, q{select string_agg(payload ->> 'n', ' ' order by payload ->> 'n') from outbox.claim('outside')}, '1 2', 'and claimed');
sql($node, q{select outbox.release_all(token) from outbox.lease});

# --- once more, now with the receipts gone as well

sql($node, 'truncate archived');
far_ahead(25);
is_sql($node, q{select count(*) from published join archived using (event_id)}, '5', 'the segment is archived again');
is_sql($node, q{select count(*) from outbox.segment where events_dropped_at is not null and to_id <= (select event_id from published order by 1 limit 1)}, '0', 'its receipts are gone');
set_offset($node, 0);
publish('again');
sql($node, q{insert into healed default values; select outbox.retry('s', event_id) from outbox.review_required});
drain($node, 20, 'set back again, and healed');
is_sql($node, $undone, '0', 'what is published is delivered');
is_sql($node, q{select string_agg(event_type || ' ' || n, ', ' order by event_type) from (select e.event_type, count(*) as n from effect f join outbox.event_log e using (event_id) where e.event_type in ('t.review', 't.parked') group by 1) o},
	't.parked 1, t.review 1', 'what was kept is delivered once');
sql($node, q{create table claimed as select * from outbox.claim('outside')});
is_sql($node, q{select outbox.ack_all(lease_token) from claimed limit 1}, '2', 'by workers outside too');
set_offset($node, 86400);
publish('next_day');
set_offset($node, 32 * 86400);
comes_true($node, 20, q{select count(*) = 2 from effect f join outbox.event_log e using (event_id) where e.event_type in ('t.late', 't.later')}, 'and what was delayed, when its time has come');
drain($node, 20, 'all is done');
is_sql($node, q{select count(*) from outbox.delivery where status <> 'COMPLETED'}, '0', 'nothing is left');
$node->stop;
done_testing();
