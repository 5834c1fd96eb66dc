# A handler's error of hundreds of megabytes is a failure like any other: its code is on record, at most 1 kB of
# its message, and the worker goes on with the next event, none the larger for it.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.workers = 1\noutbox.poll_interval = '100ms'\noutbox.keep_error_message = primary\n");
# (a constant would be kept in the plan)
make_effects($node, 'effect', q{
	if e.payload ? 'message' then raise '%', repeat('m', (e.payload ->> 'message')::integer) using errcode = 'XL001'; end if;
	if e.payload ? 'detail' then raise 'short' using detail = repeat('d', (e.payload ->> 'detail')::integer), hint = repeat('h', (e.payload ->> 'detail')::integer / 3), errcode = 'XL002'; end if;});
sql($node, q{select outbox.subscribe('large', '{x}', 'public.effect_handler', max_attempts => 1, handler_timeout => '2 minutes', lanes => 1)});

sub size
{
	my ($pid) = pids($node, 'outbox worker');
	my ($kb) = slurp_file("/proc/$pid/status") =~ /^VmRSS:\s+(\d+) kB/m;
	return "$pid " . ($kb < 100_000 ? 'small' : $kb);
}

sql($node, q{select outbox.publish('x', '{"first": 1}')});
comes_true($node, 60, q{select count(*) = 1 from outbox.delivery where status = 'COMPLETED'}, 'one that goes well');
my $before = size();
sql($node, qq{select outbox.publish('x', '{"$_": 300000000}')}) for 'message', 'detail';
comes_true($node, 120, q{select count(*) = 2 from outbox.review_required}, 'those with large errors come to review');
is_sql($node, q{select string_agg(error_code || ' ' || attempts || ' ' || length(error_message), ', ' order by error_code) from outbox.review_required},
	'XL001 1 1024, XL002 1 5', 'with their codes, and what is kept of their messages');
sql($node, q{select outbox.publish('x', '{"last": 1}')});
comes_true($node, 60, q{select count(*) = 2 from outbox.delivery where status = 'COMPLETED'}, 'the worker goes on');
is(size(), $before, 'the same one, and as small as before');
$node->stop('fast');
done_testing();
