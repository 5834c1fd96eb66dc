# pg_upgrade of a cluster in which a retired table is shrunk so far that only some of its indexes are left:
# unattended, and in the new one it is removed. OUTBOX_OLD_BINDIR as in upgrade_of_the_cluster_goes_on.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxRetention;
use OutboxUpgrade;
use PostgreSQL::Test::Utils;
use Test::More;

my $settings = "outbox.poll_interval = '100ms'\noutbox.retention = '1000d'\noutbox.sensitive_data = off\nautovacuum = off\n";

my $old = old_cluster('old', $settings);
$old->start;
sql($old, 'create extension outbox');
my $table = make_old_events($old, q{select count(outbox.publish('t.new')) from generate_series(1, 50)});
# indexes of a person's, so that there is more than one step of them
sql($old, "create index on $table (left(payload ->> 'text', 400)) where length(payload ->> 'text') < 1000") for 1 .. 3;
retire($old, $table);
shrink_until($old, "pg_relation_size(c.oid) = 0 and pg_relation_size(c.reltoastrelid) = 0 from pg_class c where c.oid = $retired");
sql($old, "vacuum $_") for sql($old, "select ${retired}::regclass");
$old->stop;

my $new = new_cluster('new', $settings);
upgrade($old, $new, 'upgraded');
$new->append_conf('postgresql.conf', "outbox.test_clock_offset = @{[ clock_offset() ]}\noutbox.dispatch = off\n");
$new->start;
my $there = q{select count(*) from pg_class where relname ~ '^retired_' and relkind = 'r'};
is(sql($new, $there), '1', 'the table came along');
is(sql($new, 'select count(*) from outbox.event'), '50', 'none of its rows is an event');
$new->append_conf('postgresql.conf', "outbox.dispatch = on\noutbox.retention = '30d'\n");
$new->reload;
comes_true($new, 60, "select ($there) = 0", 'and it goes');
is(sql($new, 'select count(*) from outbox.event'), '50', 'and nothing else');
$new->stop;
done_testing();
