# What the tests of retention share: events that grow old, and what upkeep says of them.
package OutboxRetention;

use strict;
use warnings;
use Exporter 'import';
use OutboxEngine;
use Test::More;

our @EXPORT = qw(status maintain pass_days age grow_old clock_offset $retired make_old_events retire shrink_until);

# the largest retired table
our $retired = q{(select c.oid from pg_class c where c.relnamespace = 'outbox'::regnamespace and c.relname ~ '^retired_\d+$' and c.relkind = 'r' order by pg_total_relation_size(c.oid) desc limit 1)};

my $offset = 0;

# a column of outbox.maintenance_status
sub status
{
	my ($node, $task, $what) = @_;
	return sql($node, "select $what from outbox.maintenance_status where task = '$task'");
}

# upkeep by hand, perhaps after something else in the session: its exit code, and what it said
sub maintain
{
	my ($node, $before) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', ($before // '') . 'call outbox.maintain()');
	return ($rc, $err);
}

# moves the clock on
sub pass_days
{
	my ($node, $days) = @_;
	$offset += $days * 86400;
	set_offset($node, $offset);
}

sub clock_offset
{
	return $offset;
}

# publishes, delivers, and moves the clock on until it is past its time; for upkeep by hand, which no other gets ahead of
sub age
{
	my ($node, $publish) = @_;
	grow_old($node, $publish);
	# a router that has just begun leaves retention alone for 20 seconds
	my ($router) = pids($node, 'outbox router');
	sql($node, "select pg_terminate_backend($router)");
	comes_true($node, 60, "select count(*) = 1 from pg_stat_activity where backend_type = 'outbox router' and pid <> $router", 'under a new router');
}

# the same; the router sees to the rest
sub grow_old
{
	my ($node, $publish) = @_;
	sql($node, $publish);
	drain($node, 60, 'delivered');
	pass_days($node, 32);
	comes_true($node, 60, q{select count(*) > 0 and bool_and(sealed) from outbox.segment where name < to_char(outbox.clock() at time zone 'utc' - interval '1 day', 'YYYYMMDD')}, 'sealed');
}

# Events that are past their time, more than one step of rows and of what they hold out of line, in a server that keeps them for
# 1000 days until now; perhaps something else then, and until when to wait for what comes of it; afterwards upkeep is done by hand. Returns their table.
sub make_old_events
{
	my ($node, $after, $until) = @_;
	age($node, q{
		select count(outbox.publish('t.old', jsonb_build_object('text', (select string_agg(md5(n || ' ' || m), '') from generate_series(1, 300) m)))) from generate_series(1, 3000) n;
		select count(outbox.publish('t.old', jsonb_build_object('text', repeat(md5(n::text), 25)))) from generate_series(1, 20000) n});
	my $table = sql($node, 'select tableoid::regclass from outbox.event_log limit 1');
	sql($node, $after) if $after;
	comes_true($node, 60, $until, 'and newer ones') if $until;
	$node->append_conf('postgresql.conf', "outbox.dispatch = off\noutbox.retention = '30d'\n");
	$node->reload;
	comes_true($node, 60, q{select count(*) = 0 from pg_stat_activity where backend_type ~ 'outbox (router|worker|archiver)'}, 'dispatch is off');
	return $table;
}

# Retention takes the table out of the log, and it stays on the disk as it is.
sub retire
{
	my ($node, $table) = @_;
	my $toast = sql($node, "select reltoastrelid::regclass from pg_class where oid = '$table'::regclass");
	my $holder = $node->background_psql('postgres');
	$holder->query_safe("begin; select count(*) from $toast");
	maintain($node);
	$holder->query_safe('rollback');
	$holder->quit;
	like(sql($node, "select ${retired}::regclass"), qr/^outbox\.retired_\d+$/, 'retired');
}

# Upkeep with a little more time each time, until the condition is true, and not until the table is gone.
sub shrink_until
{
	my ($node, $condition) = @_;
	for (my $ms = 20; $ms < 3000; $ms += 5)
	{
		maintain($node, "set statement_timeout = $ms; ");
		last if sql($node, "select $condition") ne 'f';
	}
	is(sql($node, "select $condition"), 't', 'shrunk in part');
}

1;
