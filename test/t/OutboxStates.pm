# A database in which there is an event in every state, and what it looks like: for the tests of dumps,
# copies and upgrades.
package OutboxStates;

use strict;
use warnings;
use Exporter 'import';
use Test::More;

our @EXPORT = qw(set_dispatch make_states contents prove_it_goes_on);

# outbox.dispatch is on or off, and the processes are there or gone.
sub set_dispatch
{
	my ($node, $state) = @_;
	$node->append_conf('postgresql.conf', "outbox.dispatch = $state\n");
	$node->reload;
	$node->poll_query_until('postgres', q{select (count(*) > 0) = (current_setting('outbox.dispatch') = 'on') from pg_stat_activity where backend_type in ('outbox router', 'outbox worker')}) or die 'dispatch';
	return;
}

# The last events are not routed: the caller has dispatch switched off before, by the callback.
sub make_states
{
	my ($node, $database, $hold) = @_;
	$node->safe_psql($database, q{
		create extension outbox;
		create table effect (event_id uuid, event_type text, unique (event_id));
		create table healed ();
		create function note(e outbox.event) returns void language plpgsql as $f$
		begin
			if e.payload ? 'fails' and not exists (select from public.healed) then raise exception using errcode = e.payload ->> 'fails'; end if;
			insert into public.effect values (e.event_id, e.event_type);
		end $f$;
		select outbox.subscribe('notes', '{#}', 'public.note', lanes => 4, backoff_base => '1 day', backoff_max => '1 day');
		select outbox.subscribe('unworked', '{a.#}', lanes => 2);
		select outbox.subscribe('paused', '{a.#}', 'public.note', lanes => 2);
		select outbox.pause('paused');
		select count(outbox.publish('a.done', event_key => 'k' || n, dedup_key => 'd' || n)) from generate_series(1, 50) n;
		select outbox.publish('b.review', '{"fails": "22000"}', event_key => 'review', tenant_id => 't', headers => '{"h": 1}');
		select outbox.publish('b.parked', event_key => 'review', tenant_id => 't') from generate_series(1, 3);
		select outbox.publish('b.retry', '{"fails": "58000"}', event_key => 'retry');
		select outbox.publish('b.given_up', '{"fails": "22000"}', event_key => 'given up');
		select outbox.publish('b.delayed', deliver_at => clock_timestamp() + interval '1 day');
		create role nobody_special;
		grant select on outbox.event to nobody_special;
	});
	$node->poll_query_until($database, q{select count(*) = 2 from outbox.review_required}) or die 'no review';
	$node->poll_query_until($database, q{select count(*) = 50 from effect}) or die 'not delivered';
	$node->safe_psql($database, q{select outbox.discard('notes', event_id, 'a test') from outbox.review_required where event_type = 'b.given_up'});
	$node->poll_query_until($database, q{select (select bool_or(gate_released) from outbox.delivery_exception where status = 'DISCARDED')
		and (select count(*) = 3 from outbox.delivery where status = 'BLOCKED') and (select count(*) = 1 from outbox.delivery_exception where status = 'RETRY')}) or die 'not settled';
	$hold->();
	$node->safe_psql($database, q{select outbox.publish('c.unrouted', event_key => 'k1')});
	return;
}

# Each table's count and digest; not what is no state of events, or counted anew.
sub contents
{
	my ($node, $database) = @_;
	return $node->safe_psql($database, q{
		select format('select %L || count(*) || '' '' || md5(coalesce(string_agg(t::text, E''\n'' order by t::text), '''')) from only outbox.%I t', c.relname || ': ', c.relname)
		from pg_class c where c.relnamespace = 'outbox'::regnamespace and c.relkind = 'r' and c.relname not in ('maintenance', 'exception_count', 'run_as_role', 'run_as_gone')
		order by c.relname
		\gexec
	});
}

sub counts_of_effects
{
	my ($node, $database) = @_;
	return $node->safe_psql($database, q{select string_agg(event_type || ' ' || n, ', ' order by event_type) from (select event_type, count(*) as n from effect group by 1) e});
}

# What was open is delivered, once; what was done is not delivered again; new ids are higher.
sub prove_it_goes_on
{
	my ($node, $database, $name) = @_;
	my $highest = $node->safe_psql($database, 'select event_id from outbox.event order by event_id desc limit 1');
	ok($node->poll_query_until($database, q{select count(*) = 1 from effect where event_type = 'c.unrouted'}), "$name: what was not routed is delivered");
	is($node->safe_psql($database, "select outbox.publish('d.new', event_key => 'k1') > '$highest'"), 't', "$name: new ids are higher");
	is($node->safe_psql($database, q{select outbox.publish('a.done', event_key => 'k1', dedup_key => 'd1') in (select event_id from outbox.event where dedup_key = 'd1')}), 't', "$name: keys of deduplication are known");
	$node->safe_psql($database, q{insert into healed default values; select outbox.retry('notes', event_id) from outbox.review_required; update outbox.delivery_exception set next_attempt_at = outbox.clock() where status = 'RETRY'; update outbox.delayed set due_at = outbox.clock(); select outbox.alter_subscription('notes', max_attempts => 7)});
	ok($node->poll_query_until($database, q{select count(*) = 1 from effect where event_type = 'd.new'}), "$name: new events are delivered");
	ok($node->poll_query_until($database, q{select count(*) = 3 from effect where event_type = 'b.parked'}), "$name: what was blocked is delivered");
	ok($node->poll_query_until($database, q{select count(*) = 1 from effect where event_type = 'b.retry'}), "$name: what was to be retried is delivered");
	is(counts_of_effects($node, $database) =~ s/, b\.delayed 1//r, 'a.done 50, b.parked 3, b.retry 1, b.review 1, c.unrouted 1, d.new 1', "$name: each once");
	is($node->safe_psql($database, q{select count(*) from outbox.delivery where subscription in ('unworked', 'paused') and status = 'PENDING'}), '100', "$name: what waits still waits");
	is($node->safe_psql($database, q{select string_agg(action, ' ' order by entry_id) from outbox.operator_log where action in ('discard')}), 'discard', "$name: the log of operators is there");
	return;
}

1;
