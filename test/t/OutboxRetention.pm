# What the tests of retention share: events that grow old, and what upkeep says of them.
package OutboxRetention;

use strict;
use warnings;
use Exporter 'import';
use OutboxEngine;

our @EXPORT = qw(status maintain pass_days age);

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

# publishes, delivers, and moves the clock on until it is past its time
sub age
{
	my ($node, $publish) = @_;
	sql($node, $publish);
	drain($node, 20, 'delivered');
	pass_days($node, 32);
	comes_true($node, 30, q{select count(*) > 0 and bool_and(sealed) from outbox.segment where name < to_char(outbox.clock() at time zone 'utc' - interval '1 day', 'YYYYMMDD')}, 'sealed');
}

1;
