# Rights, closed tables and events are the same after pg_upgrade, and an application's role can publish straight away.
# From the same version to itself here; what pg_upgrade does with them is the same for others.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;

my $conf = "outbox.workers = 1\noutbox.poll_interval = 50ms\n";
my $old = new_engine('old', $conf);
my $new = new_server('upgraded', $conf);

sql($old, q{
	create role app login; create role renamed login; create role on_call login;
	select outbox.subscribe('mail', '{order.#}');
	select outbox.grant_publisher('app', '{order.#}'), outbox.grant_publisher('renamed', '{refund.#}'), outbox.grant_operator('on_call');
	revoke execute on function outbox.discard from on_call;
	alter role renamed rename to renamed_1;
	create role renamed;
	grant usage on schema outbox to renamed; grant execute on function outbox.publish to renamed;
	set role app;
	select outbox.publish('order.placed');
});
my $rights = q{
	select p.oid::regprocedure::text, a.grantee || a.privilege_type from pg_proc p, aclexplode(p.proacl) a where p.pronamespace = 'outbox'::regnamespace and a.grantee <> p.proowner
	union select regexp_replace(c.relname, '_\d+$', '_n'), a.grantee || a.privilege_type from pg_class c, aclexplode(c.relacl) a where c.relnamespace = 'outbox'::regnamespace and a.grantee <> c.relowner
	union select regexp_replace(c.relname, '_\d+$', '_n'), c.relrowsecurity::text from pg_class c where c.relnamespace = 'outbox'::regnamespace and c.relkind = 'r'
	union select 'schema', a.grantee || a.privilege_type from pg_namespace n, aclexplode(n.nspacl) a where n.nspname = 'outbox' and a.grantee <> n.nspowner
	union select 'runs as', r.role_id || s.subscription from outbox.run_as_role r join outbox.subscription s using (subscription_id)
	union select 'grant', r.role_id || g.kind || g.scope from outbox.role_grant g join outbox.granted_role r using (role_name)
	order by 1, 2};
my $before = sql($old, $rights);
is_sql($old, q{select count(*) from outbox.event}, '1', 'there is an event');
like($before, qr/^runs as\|\d+mail$/m, 'and a subscription that belongs to a role');
$_->stop for $old, $new;

chdir ${PostgreSQL::Test::Utils::tmp_check};
command_ok([ 'pg_upgrade', '--no-sync', '-d', $old->data_dir, '-D', $new->data_dir, '-b', $old->config_data('--bindir'), '-B', $new->config_data('--bindir'),
		'-s', $new->host, '-p', $old->port, '-P', $new->port ], 'pg_upgrade');
$new->start;

sub role_may
{
	my ($role, $statement) = @_;
	my ($ret, $out, $err) = $new->psql('postgres', "set role $role; $statement");
	return $ret == 0 ? 'may' : $err =~ /permission denied/ ? 'may not' : $err;
}
is(sql($new, $rights), $before, 'the same rights');
is_sql($new, q{select count(*) from outbox.event}, '1', 'the event is there');
is(role_may('app', "select outbox.publish('order.placed')"), 'may', 'the application can publish straight away');
is(role_may('app', "select outbox.publish('refund.x')"), 'may not', 'and nothing else');
is(role_may('renamed_1', "select outbox.publish('refund.x')"), 'may', 'so can one that was renamed');
is(role_may('renamed', "select outbox.publish('refund.x')"), 'may not', 'and not who took its name');
is(role_may('on_call', "select outbox.discard('mail', gen_random_uuid(), 'x')"), 'may not', 'what was taken away by hand stays away');
is(role_may('on_call', "select outbox.activate()"), 'may', 'an operator lets it live');

done_testing();
