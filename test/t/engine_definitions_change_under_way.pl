# A definition that changes, or a subscription that goes, while a handler is at work: what the worker does in that round
# is done for the subscription whose turn it was.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.workers = 1\noutbox.poll_interval = '100ms'\n");
sql($node, q{
	create table effect (n bigint generated always as identity, event_id uuid, subscription text);
	create function handler(e outbox.event) returns void language plpgsql as $f$
	begin
		if e.payload ? 'waits' then perform pg_advisory_xact_lock(1); end if;
		-- reads the definitions anew
		if e.payload ? 'claims' then perform outbox.claim('external'); end if;
		if e.payload ? 'fails' then raise exception 'x'; end if;
		insert into effect (event_id, subscription) values (e.event_id, (outbox.current_delivery()).subscription);
	end $f$;
	-- by the number of the subscription: those that go, the one at work, and others behind it
	select outbox.subscribe('before ' || n, '{none}', 'public.handler') from generate_series(1, 3) n;
	select outbox.subscribe('at work', '{work}', 'public.handler', lanes => 1, max_attempts => 1);
	select outbox.subscribe('behind ' || n, '{other}', 'public.handler', lanes => 4, max_attempts => 5, batch_size => 3) from generate_series(1, 3) n;
	select outbox.subscribe('external', '{none}');
	select outbox.subscribe('alerts', '{outbox.#}')});

my $holder = $node->background_psql('postgres');

# The first event waits in its handler, and goes on as the payload says, when the definitions have changed.
sub change_under_way
{
	my ($name, $payload, $change) = @_;
	$holder->query_safe('select pg_advisory_lock(1)');
	sql($node, qq{begin; select outbox.publish('work', '$payload'); select count(outbox.publish('work', event_key => n::text)) from generate_series(1, 100) n; commit});
	comes_true($node, 30, q{select count(*) = 1 from pg_locks where locktype = 'advisory' and not granted}, "$name: a handler is at work");
	sql($node, $change);
	$holder->query_safe('select pg_advisory_unlock(1)');
	drain($node, 60, "$name: all is settled");
	is_sql($node, q{select count(*) from outbox.receipt_log join outbox.subscription using (subscription_id) where subscription <> 'at work'},
		'0', "$name: all receipts are those of the subscription whose events they are");
	is(reconcile($node, 'at work', 'effect'), '', "$name: receipts are effects");
	is_sql($node, q{select string_agg(distinct subscription, ', ') from effect}, 'at work', "$name: the handlers were told so too");
}

change_under_way('an alert', '{"waits": 1, "fails": 1}', q{select outbox.unsubscribe('before 1')});
change_under_way('a claim', '{"waits": 1, "claims": 1}', q{select outbox.unsubscribe('before 2')});
change_under_way('a claim that fails', '{"waits": 1, "claims": 1, "fails": 1}', q{select outbox.unsubscribe('before 3')});
is_sql($node, q{select string_agg(subscription || ' ' || error_code, ', ') from outbox.review_required}, 'at work P0001, at work P0001', 'what failed is in review for it');
is_sql($node, q{select count(*), string_agg(distinct payload ->> 'subscription', ', ') from outbox.event where event_type = 'outbox.review_required'}, '2|at work', 'and the alerts say so');
$holder->quit;
$node->stop;
done_testing();
