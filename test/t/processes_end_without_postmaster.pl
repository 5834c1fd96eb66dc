# When the postmaster is killed our processes end at once, however much there is to do: as long as one of them
# is there, PostgreSQL does not start another server on this data.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(within);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.workers = 2\nautovacuum = off\n");
# nothing in the handler looks whether there is a postmaster, as a wait would
sql($node, q{create table weather (calm boolean); insert into weather values (false)});
make_effects($node, 'effect', q{if not (select calm from weather) then perform count(*) from generate_series(1, 50000); end if;});
sql($node, q{select outbox.subscribe('s', '{t}', 'public.effect_handler', batch_size => 1, lanes => 2)});
sql($node, q{select outbox.publish('t', event_key => (i % 100)::text) from generate_series(1, 6000) i});
comes_true($node, 20, q{select count(*) > 20 from effect}, 'workers are busy');

my @children = split /\n/, sql($node, q{select pid from pg_stat_activity where pid <> pg_backend_pid()});
$node->kill9;
my $took = within(60, sub { !grep { kill 0, $_ } @children });
ok(defined $took && $took < 20, 'all processes end') or diag($took // 'they do not end');
ok(defined within(60, sub { $node->start(fail_ok => 1) }), 'the server starts again') or BAIL_OUT('it does not');

cmp_ok(sql($node, 'select count(*) from effect'), '<', 6000, 'with much left to do');
sql($node, 'update weather set calm = true');
drain($node, 60, 'which is done then');
is_sql($node, q{select count(*), count(distinct event_id) from effect}, '6000|6000', 'each event once');
is(reconcile($node, 's', 'effect'), '', 'receipts are effects');
$node->stop;
done_testing();
