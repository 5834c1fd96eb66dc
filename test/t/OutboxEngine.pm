# What the tests of routing and dispatch share: a server that has the extension, sessions beside the
# main one, and the reconciliation of what was published with what came of it.
package OutboxEngine;

use strict;
use warnings;
use Exporter 'import';
use OutboxProcesses qw(new_server within);
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(new_engine sql is_sql comes_true drain set_offset reconcile pids make_effects keep_lanes);

# A started server with the extension in database postgres.
sub new_engine
{
	my ($name, $conf) = @_;
	my $node = new_server($name, "max_connections = 40\nclient_min_messages = error\n" . ($conf // ''));
	$node->safe_psql('postgres', 'create extension outbox');
	return $node;
}

sub sql
{
	my ($node, $query) = @_;
	return $node->safe_psql('postgres', $query);
}

sub is_sql
{
	my ($node, $query, $expected, $name) = @_;
	return is($node->safe_psql('postgres', $query), $expected, $name);
}

# Does the query become "t" within so many seconds?
sub comes_true
{
	my ($node, $limit, $query, $name) = @_;
	# while a server starts, psql may end before it has read its query
	my $took = within($limit, sub { my ($rc, $out) = eval { $node->psql('postgres', $query) }; return defined $rc && $rc == 0 && $out eq 't' });
	ok(defined $took, $name) or diag("still not after $limit s: $query\n" . picture($node));
	return $took;
}

# All that is committed is settled within so many seconds.
sub drain
{
	my ($node, $limit, $name) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "call outbox.drain(timeout => '$limit s')");
	ok($rc == 0, $name) or diag($err . "\n" . picture($node));
	return $rc == 0;
}

# How the subscriptions stand, for a diagnosis.
sub picture
{
	my ($node) = @_;
	my ($rc, $out) = $node->psql('postgres', 'select subscription, backlog, delayed, retry, in_progress, blocked, review_required,
		outage_until, stopped_reason, catching_up from outbox.subscription_status');
	return $out // '';
}

# The extension's clock, moved by so many seconds.
sub set_offset
{
	my ($node, $seconds) = @_;
	$node->append_conf('postgresql.conf', "outbox.test_clock_offset = $seconds\n");
	$node->reload;
}

# pids of a backend type, perhaps of one application only; waits until there is one
sub pids
{
	my ($node, $kind, $application) = @_;
	my $which = "backend_type = '$kind'" . ($application ? " and application_name = '$application'" : '');
	my ($rc, $out);
	within(30,
		sub {
			($rc, $out) = eval { $node->psql('postgres', "select pid from pg_stat_activity where $which order by pid") };
			return defined $rc && $rc == 0 && $out ne '';
		});
	return defined $rc && $rc == 0 ? split /\n/, $out : ();
}

# A table of effects, which would hold a second one of the same event, and a handler that writes
# into it. `extra` is plpgsql that runs before.
sub make_effects
{
	my ($node, $table, $extra) = @_;
	sql($node, sprintf q{
		create table %1$s (n bigint generated always as identity, event_id uuid not null, event_key text, payload jsonb);
		create function %1$s_handler(e outbox.event) returns void language plpgsql as $f$
		begin
			%2$s
			insert into %1$s (event_id, event_key, payload) values (e.event_id, e.event_key, e.payload);
		end $f$;
	}, $table, $extra // '');
}

# From here on upkeep, which comes when it comes, trims nothing of the lanes' entries and cursors: who looks at what has been worked, or
# has it worked again, needs them. To delete them all the same: set session_replication_role = replica.
sub keep_lanes
{
	my ($node) = @_;
	sql($node, join "\n", q{create function keep_row() returns trigger language plpgsql as 'begin return null; end';},
		map { "create trigger keep_row before delete on outbox.$_ for each row execute function keep_row();" } qw(lane_entry lane_cursor));
}

# In one snapshot: effects are receipts, exactly; returns what differs, '' when nothing does.
sub reconcile
{
	my ($node, $subscription, $table) = @_;
	return sql($node, qq{
		select concat_ws(', ',
			case when twice > 0 then twice || ' events with two effects' end,
			case when no_effect > 0 then no_effect || ' receipts without an effect' end,
			case when no_receipt > 0 then no_receipt || ' effects without a receipt' end)
		from (
			select count(*) filter (where e.n > 1) as twice,
				   count(*) filter (where e.event_id is null) as no_effect,
				   count(*) filter (where r.event_id is null) as no_receipt
			from (select event_id, count(*) as n from $table group by event_id) e
			full join (select event_id from outbox.receipt_log join outbox.subscription using (subscription_id)
					   where subscription = '$subscription') r on r.event_id = e.event_id) d});
}

1;
