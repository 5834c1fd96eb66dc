# Events past outbox.retention go with their whole segment; the few that a delivery still needs stay, in
# whatever place the delivery is, and are delivered from where they are kept. Once settled they go too.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;

my $days = 86400;
my $node = new_engine('main', "outbox.poll_interval = '100ms'\noutbox.workers = 2\noutbox.receipt_retention = '40d'\nautovacuum = off\n");

sub sealed
{
	my ($name) = @_;
	return comes_true($node, 30, q{select count(*) > 0 and bool_and(sealed) from outbox.segment where name < to_char(outbox.clock() at time zone 'utc' - interval '1 day', 'YYYYMMDD')}, $name);
}

sub status
{
	my ($task, $what) = @_;
	return sql($node, "select $what from outbox.maintenance_status where task = '$task'");
}

make_effects($node, 'effect', q{if e.payload ? 'fails' and not exists (select from healed) then raise exception using errcode = '22000'; end if;});
sql($node, q{
	create table healed ();
	select outbox.subscribe('main', '{#}', 'public.effect_handler', lanes => 2);
	create function quiet(e outbox.event) returns void language sql begin atomic end;
	select outbox.subscribe('other', '{#}', 'public.quiet', lanes => 2);
	select outbox.subscribe('unworked', '{t.waits}', lanes => 2);
	select count(outbox.publish('t.done', jsonb_build_object('n', n), event_key => 'k' || n)) from generate_series(1, 200) n;
	select outbox.publish('t.review', jsonb_build_object('fails', repeat(md5('x'), 2000)), event_key => 'bad');
	select outbox.publish('t.parked', '{"n": 1}', event_key => 'bad');
	select outbox.publish('t.waits', '{"n": 2}', event_key => 'lane');
	select outbox.publish('t.discarded', '{"fails": 2}', event_key => 'given up');
	select outbox.publish('t.delayed', '{"n": 3}', event_key => 'later', deliver_at => clock_timestamp() + interval '35 days');
});
drain($node, 20, 'all that can be is delivered');
sql($node, q{select outbox.discard('main', event_id, 'test') from outbox.review_required where event_type = 't.discarded'});
drain($node, 20, 'settled');
sql($node, q{create table before as select l.*, tableoid::regclass::text as segment from outbox.event_log l});
my $segment = sql($node, 'select distinct segment from before');

sql($node, 'call outbox.maintain()');
is(status('events', 'removed_total'), '0', 'nothing is removed before its time');

set_offset($node, 31 * $days);
sealed('the past segments are sealed, with nothing published since');
sql($node, 'call outbox.maintain()');
is(status('events', "removed_total > 0 and not failing and last_success is not null"), 't', 'segments are dropped');
is(status('events', "kept_why"), '', 'none is kept');
is(sql($node, "select to_regclass('$segment') is null"), 't', 'the table is gone');
is(sql($node, q{select string_agg(event_type, ' ' order by event_type) from outbox.event}), 't.delayed t.parked t.review t.waits', 'what is needed is there');
is(sql($node, q{select count(*) from (select to_jsonb(l) from outbox.event_log l except select to_jsonb(b) - 'segment' from before b) d}), '0', 'unchanged');
is(sql($node, q{select count(*) from outbox.receipt_log r join before b using (event_id) where b.event_type = 't.done'}), '400', 'receipts are kept longer');
is(sql($node, q{select status from outbox.delivery join before b using (event_id) where subscription = 'main' and b.event_type = 't.discarded'}), 'DISCARDED', 'a discarded delivery is still on record');

# receipts: those of kept events stay
set_offset($node, 41 * $days);
sealed('sealed again');
sql($node, 'call outbox.maintain()');
is(status('receipts', "removed_total > 0"), 't', 'receipts are dropped');
is(sql($node, q{select string_agg(distinct b.event_type, ' ' order by b.event_type) from outbox.receipt_log r join before b using (event_id)}), 't.parked t.review t.waits', 'but for those of kept events');
is(sql($node, q{select string_agg(distinct (completed_at is not null)::text, ' ') from outbox.delivery where subscription = 'other' and status = 'COMPLETED'}), 'true', 'whose batches are still on record');

# heal: everything is delivered, from where it is kept; once
sql($node, q{insert into healed default values; select outbox.retry('main', event_id) from outbox.review_required});
sql($node, q{create function unworked(e outbox.event) returns void language sql begin atomic insert into effect (event_id, event_key) values (e.event_id, 'unworked'); end; select outbox.alter_subscription('unworked', handler => 'public.unworked')});
drain($node, 20, 'all is delivered');
is(sql($node, q{select string_agg(b.event_type || ' ' || n, ', ' order by b.event_type) from (select event_id, count(*) as n from effect group by 1) e join before b using (event_id) where b.event_type not in ('t.done')}),
	't.delayed 1, t.parked 1, t.review 1, t.waits 2', 'each once');
is(sql($node, q{select string_agg(e.payload ->> 'n', ' ' order by e.n) from effect e join before b using (event_id) where b.event_key = 'bad'}), '1', 'in order');
is(sql($node, q{select count(*) from outbox.receipt_log_kept r join outbox.event_log_kept k using (event_id)}), '7', 'their receipts lie beside the kept ones');
sql($node, 'call outbox.maintain()');
is(sql($node, q{select count(*) from outbox.event}), '0', 'what is settled goes');
is(sql($node, q{select count(*) from outbox.receipt_log_kept}), '0', 'with its receipts');
is(sql($node, q{select count(*) from outbox.attempt}), '2', 'failed attempts are kept longer');
# a batch tells of a lease that is still there what has been settled of it: without it that would be held again
sql($node, q{with l as (insert into outbox.lease (token, subscription_id, incarnation, claim_xid, claimed_at, expires_at, events, event_ids, lanes, positions)
		select gen_random_uuid(), subscription_id, 1, '1', outbox.clock(), 'infinity', 1, array[gen_random_uuid()], '{0}', '{1}' from outbox.subscription where subscription = 'main' returning lease_id)
	update outbox.batch set lease_id = l.lease_id, settled = '{0}' from l where batch_id = (select min(batch_id) from outbox.batch)});
set_offset($node, 190 * $days);
sealed('sealed');
sql($node, 'call outbox.maintain()');
is(sql($node, q{select count(*) from outbox.attempt_log}), '0', 'until their time is up');
is(sql($node, q{select count(*) from outbox.delivery_exception}), '0', 'discarded deliveries too');
is(sql($node, q{select count(*) from outbox.batch join outbox.lease using (lease_id)}), '1', 'a batch of a lease stays as long as that');
sql($node, 'delete from outbox.lease');
sql($node, 'call outbox.maintain()');
is(sql($node, q{select count(*) from outbox.batch}), '0', 'and then goes with the others');

# one that nobody decides about: kept for ever, and after a window of its own it is told of
sql($node, q{delete from healed; select outbox.publish('t.forgotten', '{"fails": 3}', event_key => 'forgotten')});
comes_true($node, 20, q{select count(*) = 1 from outbox.review_required}, 'in review');
my $overdue = qr/^\d+\. Waiting for a person too long: 1 deliveries have required a review for longer than outbox\.review_retention/m;
set_offset($node, (190 + 179) * $days);
sealed('sealed, 179 days later');
sql($node, 'call outbox.maintain()');
is(status('reviews', 'kept'), '0', 'not too long yet');
unlike(sql($node, 'select outbox.status()'), $overdue, 'nor by the page for a person');
is(sql($node, q{select string_agg(event_type || ' ' || tableoid::regclass, ', ') from outbox.event_log}), 't.forgotten outbox.event_log_kept', 'the event is there, its segment is not');
set_offset($node, (190 + 181) * $days);
comes_true($node, 30, "select outbox.clock() > clock_timestamp() + interval '370 days'", '181 days later');
sql($node, 'call outbox.maintain()');
is(status('reviews', q{kept || ' ' || kept_why}), '1 1 deliveries have required a review for longer than outbox.review_retention', 'longer than outbox.review_retention');
like(sql($node, 'select outbox.status()'), $overdue, 'the page for a person says so');
is(sql($node, q{select string_agg(d.status || ' ' || e.event_type, ', ') from outbox.delivery d join outbox.event e using (event_id) where d.subscription = 'main'}), 'REVIEW_REQUIRED t.forgotten', 'it stays, with its event');
is(sql($node, q{select count(*) from outbox.attempt}), '1', 'and with its attempt');
sql($node, q{insert into healed default values; select outbox.retry('main', event_id) from outbox.review_required});
drain($node, 20, 'a person decides');
is(sql($node, q{select count(*) from effect where payload @> '{"fails": 3}'}), '1', 'it is delivered');
is(sql($node, q{select string_agg(task || ' ' || last_error, ', ') from outbox.maintenance_status where last_error is not null}), '', 'no task has failed');
$node->stop;
done_testing();
