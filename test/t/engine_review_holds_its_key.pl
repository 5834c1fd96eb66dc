# What waits for a person holds its key, or lets it go on, as the subscription says; what a person
# decides takes effect, and the order of the key is kept.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use Test::More;

my $node = new_engine('main', "outbox.poll_interval = '200ms'\nlog_min_messages = error\n");
sql($node, q{
	create table world (down boolean not null);
	insert into world values (true);
	create table effect (n bigint generated always as identity, subscription text, event_id uuid, event_key text, name text);
	create function handle(e outbox.event) returns void language plpgsql as $f$
	begin
		if e.payload ? 'fails' and (select down from world) then
			raise exception 'x' using errcode = coalesce(e.payload ->> 'code', 'P0001');
		end if;
		insert into effect (subscription, event_id, event_key, name) values ((outbox.current_delivery()).subscription, e.event_id, e.event_key, e.payload ->> 'name');
	end $f$;
	select outbox.subscribe('block', '{block}', 'public.handle', max_attempts => 1, lanes => 2);
	select outbox.subscribe('continue', '{continue}', 'public.handle', max_attempts => 1, lanes => 2, on_review => 'continue');
	select outbox.subscribe('retried', '{retried}', 'public.handle', max_attempts => 5, lanes => 2, backoff_base => '1 hour', backoff_max => '1 hour')});

sub names
{
	my ($subscription, $key) = @_;
	return sql($node, "select coalesce(string_agg(name, ' ' order by n), '') from effect where subscription = '$subscription' and event_key = '$key'");
}

# names of a key, in this order; those in capitals fail
sub publish
{
	my ($type, $key, @names) = @_;
	sql($node, join('', map { "select outbox.publish('$type', '{\"name\": \"$_\"" . (/^[A-Z]/ ? ', "fails": 1' : '') . "}', event_key => '$key');" } @names));
}

sub status
{
	my ($type, $key) = @_;
	return sql($node, qq{select string_agg((payload ->> 'name') || ':' || d.status, ' ' order by event_id) from outbox.delivery d join outbox.event using (event_id)
		where event_type = '$type' and event_key = '$key'});
}

sub decide
{
	my ($what, $type, $name) = @_;
	sql($node, "select outbox.$what('$type', event_id" . ($what eq 'discard' ? ", 'why not'" : '') . ") from outbox.event where payload ->> 'name' = '$name' and event_type = '$type'");
}

# --- block

publish('block', 'k', 'a', 'B', 'c', 'D', 'e');
publish('block', 'other', 'x', 'y');
comes_true($node, 30, q{select count(*) = 1 from outbox.review_required where subscription = 'block'}, 'one in review');
comes_true($node, 30, q{select blocked_events = 3 from outbox.blocked_key where subscription = 'block'}, 'three behind it');
comes_true($node, 30, q{select string_agg(name, ' ' order by n) = 'x y' from effect where subscription = 'block' and event_key = 'other'}, 'another key goes on');
is(status('block', 'k'), 'a:COMPLETED B:REVIEW_REQUIRED c:BLOCKED D:BLOCKED e:BLOCKED', 'what waits says so');
is(names('block', 'k'), 'a', 'nothing behind it has run');
publish('block', 'k', 'f');
comes_true($node, 30, q{select blocked_events = 4 from outbox.blocked_key where subscription = 'block'}, 'a new one waits, too');
decide('discard', 'block', 'B');
comes_true($node, 30, q{select count(*) = 1 from outbox.review_required r join outbox.event e using (event_id) where e.payload ->> 'name' = 'D'}, 'given up: the key goes on to the next that fails');
is(names('block', 'k'), 'a c', 'in order');
is(status('block', 'k'), 'a:COMPLETED B:DISCARDED c:COMPLETED D:REVIEW_REQUIRED e:BLOCKED f:BLOCKED', 'and the rest waits again');
decide('retry', 'block', 'D');
comes_true($node, 30, q{select count(*) = 2 from outbox.attempt a join outbox.event e using (event_id) where e.payload ->> 'name' = 'D'}, 'tried again while it still fails: back in review');
comes_true($node, 30, q{select count(*) = 1 from outbox.review_required where subscription = 'block'}, 'in front of a person');
sql($node, 'update world set down = false');
decide('retry', 'block', 'D');
drain($node, 60, 'tried again when it is well: settled');
is(names('block', 'k'), 'a c D e f', 'in order');
is_sql($node, q{select outbox.retry('block', event_id) from outbox.event where payload ->> 'name' = 'D'}, 'f', 'a second retry does nothing');
is_sql($node, q{select outbox.discard('block', event_id, 'x') from outbox.event where payload ->> 'name' = 'D'}, 'f', 'nor does giving up what is completed');
is_sql($node, q{select outbox.retry('block', event_id) from outbox.event where payload ->> 'name' = 'B'}, 'f', 'nor a retry of what was given up');

# --- continue

sql($node, 'update world set down = true');
publish('continue', 'k', 'a', 'B', 'c', 'D', 'e');
drain($node, 60, 'with on_review of continue: settled');
is(names('continue', 'k'), 'a c e', 'the key goes on');
is(status('continue', 'k'), 'a:COMPLETED B:REVIEW_REQUIRED c:COMPLETED D:REVIEW_REQUIRED e:COMPLETED', 'past those in review');
sql($node, 'update world set down = false');
decide('retry', 'continue', 'D');
decide('retry', 'continue', 'B');
drain($node, 60, 'both tried again: settled');
is_sql($node, q{select string_agg(name, ' ' order by name) from effect where subscription = 'continue'}, 'B D a c e', 'all delivered');

# from one to the other
sql($node, 'update world set down = true');
publish('block', 'l', 'A', 'b');
comes_true($node, 30, q{select blocked_events = 1 from outbox.blocked_key where subscription = 'block' and event_key = 'l'}, 'one blocked');
sql($node, q{select outbox.alter_subscription('block', on_review => 'continue')});
comes_true($node, 30, q{select count(*) = 1 from effect where subscription = 'block' and event_key = 'l'}, 'on_review changed to continue: it goes on');

# --- a retry that is far away

publish('retried', 'k', 'a', 'B', 'c');
comes_true($node, 30, q{select blocked_events = 1 from outbox.blocked_key where subscription = 'retried'}, 'one behind a retry');
publish('retried', 'k', 'd');
sql($node, 'update world set down = false');
comes_true($node, 30, q{select blocked_events = 2 from outbox.blocked_key where subscription = 'retried'}, 'two');
is(names('retried', 'k'), 'a', 'nothing overtakes it');
set_offset($node, 4600);
drain($node, 60, 'an hour later: settled');
is(names('retried', 'k'), 'a B c d', 'in order');
is_sql($node, q{select count(*) from outbox.gate where held_by is not null and subscription_id = (select subscription_id from outbox.subscription where subscription = 'retried')}, '0', 'no key is blocked any more');
is_sql($node, q{select subscription, count(*) from outbox.delivery where status not in ('COMPLETED', 'DISCARDED') group by 1}, 'block|1', 'nothing but what is in review is left');
$node->stop;
done_testing();
