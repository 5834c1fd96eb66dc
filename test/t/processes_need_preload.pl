# Without the library in shared_preload_libraries, CREATE EXTENSION says what to do.
use strict;
use warnings;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->start;

my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\ncreate extension outbox");
isnt($rc, 0, 'CREATE EXTENSION fails');
like($err, qr/ERROR:  55000: .*shared_preload_libraries/, 'and names the setting');
like($err, qr/HINT: .*shared_preload_libraries.*restart/, 'and says what to do');
is($node->safe_psql('postgres', q{select count(*) from pg_extension where extname = 'outbox'}), '0', 'nothing is left of it');
is($node->safe_psql('postgres', q{select count(*) from pg_stat_activity where backend_type like 'outbox%'}), '0', 'no process');

$node->append_conf('postgresql.conf', "shared_preload_libraries = 'outbox'\n");
$node->restart;
$node->safe_psql('postgres', 'create extension outbox');
ok(1, 'with the setting it works');
$node->stop;
done_testing();
