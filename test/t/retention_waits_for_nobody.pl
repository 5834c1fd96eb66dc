# Retention beside whoever uses the log: a report or a dump that is open, a retry and a reference in an open
# transaction, Nobody waits for it, and what becomes needed stays.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use OutboxRetention;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.poll_interval = '100ms'\noutbox.workers = 1\nclient_min_messages = notice\nautovacuum = off\n");

make_effects($node, 'effect', q{if e.payload ? 'fails' then raise exception using errcode = '22000'; end if;});
sql($node, q{select outbox.subscribe('main', '{#}', 'public.effect_handler', lanes => 1)});

# a report, or a dump, reads the whole log in an open transaction
age($node, q{select outbox.publish('t.first', '{"fails": 1}', event_key => 'a'), outbox.publish('t.done', event_key => 'b', dedup_key => 'd')});
my $report = $node->background_psql('postgres');
$report->query_safe('begin; select count(*) from outbox.event');
my $publisher = $node->background_psql('postgres');
$publisher->query_until(qr/begun/, "set lock_timeout = '100ms';\n\\echo begun\n"
	. join('', map { "select count(outbox.publish('t.meanwhile', event_key => 'c')); select pg_sleep(0.02);\n" } 1 .. 100));
my ($rc, $err) = maintain($node);
is($rc, 0, 'beside a report: an end, and no error');
$publisher->query_safe('select 1');
unlike($publisher->{stderr} // '', qr/lock timeout/, 'no publisher has waited');
$publisher->quit;
like(status($node, 'events', 'kept_why'), qr/^\d{8}: another session uses it/, 'the segment is kept, and why');
is(status($node, 'events', 'failing'), 'f', 'which is no failure');
$report->query_safe('commit');
is(sql($node, 'select count(*) from outbox.dedup'), '0', 'keys of deduplication are gone past their window');

# a retry that is not committed yet
my $person = $node->background_psql('postgres');
my $review = sql($node, 'select event_id from outbox.review_required');
is($person->query_safe(qq{begin; select outbox.retry('main', '$review')}), 't', 'a retry, not committed');
maintain($node);
is(sql($node, qq{select count(*) from outbox.event where event_id = '$review'}), '1', 'the event is there');
$person->query_safe('commit');
comes_true($node, 30, q{select count(*) = 2 from outbox.attempt}, 'it was tried again');
maintain($node);
is(sql($node, q{select count(*) from outbox.event_log_kept}), '1', 'and kept when its segment goes');
is(status($node, 'events', "kept || ' ' || coalesce(kept_why, '')"), '0 ', 'which it does');

# somebody reads an event that is long done, and makes it needed again
age($node, q{select outbox.publish('t.again', event_key => 'd')});
$person->query_safe(q{begin; insert into outbox.delivery_exception (subscription_id, event_id, replay_no, lane, position, status, attempts, next_attempt_at, event_key)
	select 1, event_id, 1, 0, 1, 'RETRY', 0, outbox.clock(), null from outbox.event where event_type = 't.again'});
maintain($node);
like(status($node, 'events', 'kept_why'), qr/another session uses it/, 'while that is open the segment stays');
my $effects = sql($node, 'select count(*) from effect');
$person->query_safe('commit');
maintain($node);
comes_true($node, 30, "select count(*) = $effects + 1 from effect", 'the event was delivered again');
is(sql($node, q{select to_regclass('outbox.event_log_' || name) is null from outbox.segment where events_dropped_at is not null limit 1}) || 't', 't', 'and the segment dropped');
$person->quit;

# an external worker: its claim is open, then committed, then acknowledged
sql($node, q{select outbox.subscribe('claims', '{t.claimed}', lanes => 1)});
age($node, q{select outbox.publish('t.claimed', event_key => 'e')});
my $worker = $node->background_psql('postgres');
my $token = $worker->query_safe(q{begin; select lease_token from outbox.claim('claims', lease_duration => '1 hour')});
maintain($node);
like(status($node, 'events', 'kept_why'), qr/another session uses it/, 'while a claim is open the segment stays');
$worker->query_safe('commit');
maintain($node);
is(sql($node, q{select e.tableoid::regclass from outbox.event_log e where event_type = 't.claimed'}), 'outbox.event_log_kept', 'while the lease is open the event is kept');
maintain($node);
is(sql($node, q{select count(*) from outbox.event_log e where event_type = 't.claimed'}), '1', 'again and again');
is($worker->query_safe("select outbox.ack_all('$token')"), '1', 'and can be acknowledged');
is(sql($node, q{select status from outbox.delivery where subscription = 'claims'}), 'COMPLETED', 'with a receipt');
$worker->quit;

# in a report's eyes: planned and begun while the segment is there, read while it goes
my $eager = $node->background_psql('postgres');
age($node, q{select count(outbox.publish('t.many', event_key => 'm' || n)) from generate_series(1, 100) n});
$eager->query_until(qr/begun/, "\\echo begun\ndo \$\$ begin for i in 1 .. 300 loop perform count(*) from outbox.event; commit; end loop; end \$\$;\n");
# a run that meets one of them leaves the segment to the next
ok(defined within(60, sub { maintain($node); return sql($node, q{select count(*) from outbox.event where event_type = 't.many'}) eq '0' }), 'dropped beside reports that come and go');
$eager->query_safe('select 1');
is($eager->{stderr} // '', '', 'none of which has failed');
$eager->quit;

# where it cannot run
($rc, $err) = $node->psql('postgres', 'begin; call outbox.maintain()', on_error_stop => 1) ? (1, '') : (0, '');
is($rc, 1, 'not in a transaction block');
is(sql($node, q{select count(*) from outbox.maintenance_status where failing}), '0', 'no task fails');
$node->stop;
unlike(slurp_file($node->logfile), qr/could not open relation|PANIC|TRAP/, 'no error of ours is in the log');
done_testing();
