# A segment that is past its time and still needed as a whole stays, and the view says why: somebody may still write to it,
# a new subscription reads it, a subscription is far behind, a person's view is made of it. When the reason is gone it goes, and nothing
# of it was lost.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use OutboxRetention;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.poll_interval = '100ms'\noutbox.workers = 1\noutbox.retention = '1000d'\nmax_prepared_transactions = 2\nautovacuum = off\n");

sub dispatch
{
	my ($state) = @_;
	$node->append_conf('postgresql.conf', "outbox.dispatch = $state\n");
	$node->reload;
	return comes_true($node, 20, q{select count(*) = 0 from pg_stat_activity where backend_type ~ 'outbox (router|worker|archiver)'}, 'dispatch is off') if $state eq 'off';
}

# by hand: does it keep the segment, for this reason and no other?
sub keeps
{
	my ($why, $name) = @_;
	maintain($node);
	like(status($node, 'events', q{kept || ' ' || failing || ' ' || kept_why}), qr/^1 false \d{8}: $why/, $name);
	return is(sql($node, q{select string_agg(distinct tableoid::regclass::text, ' ') ~ '^outbox.event_log_\d{8}$' from outbox.event_log}), 't', "$name: it is there");
}

make_effects($node, 'effect', '');
sql($node, q{
	select outbox.subscribe('main', '{t.#}', 'public.effect_handler', lanes => 2);
	select outbox.subscribe('far', '{t.far}', lanes => 2);
	select outbox.subscribe('far too', '{t.one}', lanes => 2);
	select count(outbox.publish(case n when 1 then 't.one' else 't.far' end, jsonb_build_object('n', n))) from generate_series(1, 1001) n;
	begin;
	select outbox.publish('t.prepared', '{}');
	prepare transaction 'writer';
});
my $writer = $node->background_psql('postgres');
$writer->query_safe(q{begin; select outbox.publish('t.open', '{}')});
comes_true($node, 20, q{select count(*) = 1001 from effect}, 'delivered');
my $segment = sql($node, q{select distinct tableoid::regclass from outbox.event_log});
# past its time, it alone
pass_days($node, 31);
comes_true($node, 30, q{select outbox.clock() > clock_timestamp() + interval '30 days'}, 'the clock is moved');
dispatch('off');
$node->append_conf('postgresql.conf', "outbox.retention = '30d'\n");
$node->reload;

# somebody may still write to it
keeps('not sealed: a transaction that may write to it is open', 'two writers, one open and one prepared');
$writer->query_safe('commit');
$writer->quit;
keeps('not sealed: a transaction that may write to it is open', 'a prepared one');
sql($node, q{commit prepared 'writer'});
keeps('not sealed: .* its events are not routed yet', 'none, but the router has not seen what they have written');
$node->append_conf('postgresql.conf', "outbox.retention = '1000d'\n");
dispatch('on');
comes_true($node, 20, qq{select sealed from outbox.segment where 'outbox.event_log_' || name = '$segment'}, 'sealed');
comes_true($node, 20, q{select count(*) = 1003 from effect}, 'both are delivered');

# a subscription that has not read it yet
dispatch('off');
$node->append_conf('postgresql.conf', "outbox.retention = '30d'\n");
$node->reload;
make_effects($node, 'late', '');
sql($node, q{select outbox.subscribe('late', '{t.#}', 'public.late_handler', lanes => 2, start_at => '-infinity')});
keeps('a subscription reads it from the beginning', 'a new subscription from the beginning');
sql($node, q{select outbox.unsubscribe('late', force => true);
	select outbox.subscribe('late', '{t.#}', 'public.late_handler', lanes => 2, start_at => outbox.clock() - interval '40 days')});
keeps('a subscription reads it from the beginning', 'one from a time before it');
$node->append_conf('postgresql.conf', "outbox.retention = '1000d'\n");
dispatch('on');
comes_true($node, 30, q{select count(*) = 1003 and count(distinct event_id) = 1003 from late}, 'it gets all that is there');
sql($node, q{select outbox.subscribe('later', '{t.#}', lanes => 2, start_at => outbox.clock())});
comes_true($node, 20, q{select not catching_up from outbox.subscription_status where subscription = 'later'}, 'one from a time after it has joined');

# one that is far behind: 1,000 events stay without their segment, more of them keep it
dispatch('off');
$node->append_conf('postgresql.conf', "outbox.retention = '30d'\n");
$node->reload;
keeps('more than 1000 open deliveries$', '1,001 deliveries that nobody works');
sql($node, q{select outbox.unsubscribe('far too', force => true)});
sql($node, "create view reader as select event_id from $segment");
keeps('another object depends on it$', "a person's view");
sql($node, 'drop view reader');
maintain($node);
is(status($node, 'events', q{kept || ' ' || failing || ' ' || removed}), '0 false 1', 'without a reason it goes');
is(sql($node, "select to_regclass('$segment') is null"), 't', 'the table too');
is(sql($node, q{select count(*) || ' ' || count(distinct tableoid) || ' ' || min(tableoid::regclass::text) from outbox.event_log}), '1000 1 outbox.event_log_kept', 'what is open is kept');
is(sql($node, q{with c as materialized (select * from outbox.claim('far', 1000)) select count(*) from c}), '1000', 'and handed out');
$node->stop;
done_testing();
