# Rights, and closed tables, are the same after a dump and a restore, within a server and in
# another one, and after pg_upgrade where there is an older server; an application's role can publish straight away.
# Default privileges, of whoever installs or of whose day it is, open nothing.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;

my $conf = "outbox.workers = 1\noutbox.poll_interval = 50ms\nmax_worker_processes = 32\n";
my $node = new_engine('old', $conf);
my $other = new_engine('new', $conf);

# ---------------------------------------------------------------- what there is

$node->safe_psql('postgres', q{
	create role app login; create role mailer login; create role on_call login; create role dashboard login; create role granted_by_hand login; create role "Odd ""role" login;
	create role runner;
	create database shop;
});
$node->safe_psql('shop', q{
	create extension outbox;
	select outbox.subscribe('mail', '{order.#}');
	select outbox.grant_publisher('app', '{order.*,refund.done}'), outbox.grant_worker('mailer', 'mail'), outbox.grant_operator('on_call'), outbox.grant_monitor('dashboard'),
		outbox.grant_publisher('Odd "role', '{odd.#}');
	create table ran (who text default current_user);
	create function note(outbox.event) returns void language sql as 'insert into ran default values';
	grant insert on ran to public;
	select outbox.subscribe('notes', '{note}', handler => 'public.note', run_as => 'runner');
	grant usage on schema outbox to granted_by_hand;
	grant select on outbox.event to app, granted_by_hand;
	revoke execute on function outbox.discard from on_call;
	set role app;
	select outbox.publish('order.placed', tenant_id => 'a');
});

# all that says who may do what; segments by number, as each has its own
my $rights = q{
	select 'function', p.oid::regprocedure::text, r.role, a.privilege_type from pg_proc p, aclexplode(p.proacl) a, lateral (select coalesce(g.rolname::text, 'PUBLIC') as role from (select 1) one left join pg_roles g on g.oid = a.grantee) r
	where p.pronamespace = 'outbox'::regnamespace and a.grantee <> p.proowner
	union all
	select 'relation', regexp_replace(c.relname, '_\d+$', '_n'), r.role, a.privilege_type from pg_class c, aclexplode(c.relacl) a, lateral (select coalesce(g.rolname::text, 'PUBLIC') as role from (select 1) one left join pg_roles g on g.oid = a.grantee) r
	where c.relnamespace = 'outbox'::regnamespace and a.grantee <> c.relowner
	union all
	select 'schema', n.nspname, r.role, a.privilege_type from pg_namespace n, aclexplode(n.nspacl) a, lateral (select coalesce(g.rolname::text, 'PUBLIC') as role from (select 1) one left join pg_roles g on g.oid = a.grantee) r
	where n.nspname = 'outbox' and a.grantee <> n.nspowner
	union all
	select distinct 'closed', regexp_replace(c.relname, '_\d+$', '_n'), c.relrowsecurity::text, c.relforcerowsecurity::text from pg_class c where c.relnamespace = 'outbox'::regnamespace and c.relkind = 'r'
	union all
	select 'policy', p.polname, '', '' from pg_policy p join pg_class c on c.oid = p.polrelid where c.relnamespace = 'outbox'::regnamespace
	union all
	select 'grant', role_name, kind, scope from outbox.role_grant
	order by 1, 2, 3, 4};
my $before = $node->safe_psql('shop', $rights);
like($before, qr/function\|outbox\.publish\(.*\|app\|EXECUTE/, 'there are rights to lose');
unlike($before, qr/PUBLIC/, 'none is PUBLIC\'s');
unlike($before, qr/outbox\.discard\(.*\|on_call/, 'one was taken away by hand');

sub role_may
{
	my ($of, $database, $role, $statement) = @_;
	my ($ret, $out, $err) = $of->psql($database, "set role $role; $statement");
	return $ret == 0 ? 'may' : $err =~ /permission denied/ ? 'may not' : $err;
}

sub check_rights
{
	my ($of, $database, $what) = @_;
	is($of->safe_psql($database, $rights), $before, "$what: the same rights");
	is(role_may($of, $database, 'app', "select outbox.publish('order.placed')"), 'may', "$what: the application can publish straight away");
	is(role_may($of, $database, 'app', "select outbox.publish('other.placed')"), 'may not', "$what: and nothing else");
	is(role_may($of, $database, '"Odd ""role"', "select outbox.publish('odd')"), 'may', "$what: so can a role of an odd name");
	is(role_may($of, $database, 'on_call', "select outbox.pause('mail'), outbox.resume('mail')"), 'may', "$what: the operator can pause");
	is(role_may($of, $database, 'dashboard', 'select count(*) from outbox.delivery'), 'may', "$what: the monitor can look");
	is(role_may($of, $database, 'dashboard', 'select count(*) from outbox.event'), 'may not', "$what: but not at payloads");
	is(role_may($of, $database, 'mailer', "call outbox.wait('{mail}', '0')"), 'may', "$what: the worker can wait") if $of->safe_psql($database, 'select outbox.is_held()') eq 'f';
	return;
}
check_rights($node, 'shop', 'at first');

# as whom the handler has run
sub runs_as
{
	my ($database, $role, $what) = @_;
	ok(defined within(30, sub { $other->safe_psql($database, "select coalesce(string_agg(distinct who, ' '), 'nobody') from ran") eq $role }), $what);
	return;
}

# ---------------------------------------------------------------- restored

my $dump = $node->basedir . '/shop.dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, $node->connstr('shop') ], 'dump');
sub restore
{
	my ($of, $database, $what) = @_;
	$of->safe_psql('postgres', "create database $database");
	my ($out, $err) = run_command([ 'pg_restore', '-d', $of->connstr($database), $dump ]);
	is($err, '', "$what: nothing to complain about");
	return;
}
restore($node, 'beside', 'restored beside');
check_rights($node, 'beside', 'restored beside');

$other->safe_psql('postgres', q{create role stranger; create role dashboard login; create role on_call login; create role "Odd ""role" login; create role mailer login; create role granted_by_hand; create role app login; create role runner});
restore($other, 'shop', 'in another server');
check_rights($other, 'shop', 'in another server');

# whose name it is, is settled by the first grant, or activate(): then another role that takes it has nothing
is($other->safe_psql('shop', 'select outbox.activate()'), 't', 'it is activated');
$other->safe_psql('shop', q{
	alter role app rename to app_1;
	alter role stranger rename to app;
	grant usage on schema outbox to app;
	grant execute on function outbox.publish to app;});
is(role_may($other, 'shop', 'app_1', "select outbox.publish('order.placed')"), 'may', 'a role that was renamed can publish');
is(role_may($other, 'shop', 'app', "select outbox.publish('order.placed')"), 'may not', 'one that has taken its name cannot');
ok(defined within(30, sub { $other->safe_psql('shop', "select count(*) from outbox.role_grant where role_name = 'app_1'") eq '2' }), 'upkeep follows the name, for the next dump');

# so with the role that a handler runs as
$other->safe_psql('shop', "alter role runner rename to runner_1; create role runner; select outbox.publish('note')");
runs_as('shop', 'runner_1', 'a handler runs as its role, which was renamed');
ok(defined within(30, sub { $other->safe_psql('shop', "select run_as from outbox.subscription_status where subscription = 'notes'") eq 'runner_1' }), 'upkeep follows this name, too');

# restored once more, of what was renamed
$other->command_ok([ 'pg_dump', '-Fc', '-f', $dump, $other->connstr('shop') ], 'dump after the renaming');
restore($other, 'again', 'renamed and restored');
is(role_may($other, 'again', 'app_1', "select outbox.publish('order.placed')"), 'may', 'renamed and restored: it can publish');
is(role_may($other, 'again', 'app', "select outbox.publish('order.placed')"), 'may not', 'renamed and restored: the other one cannot');

# a role that is dropped and made again, between a dump and its restore in the same server, is who the dump means
$other->safe_psql('shop', 'drop owned by dashboard');
$other->safe_psql('again', 'drop owned by dashboard');
$other->safe_psql('postgres', 'drop role dashboard; create role dashboard login');
$other->safe_psql('postgres', 'drop role runner_1; create role runner_1');
restore($other, 'once_more', 'with a role made anew');
is(role_may($other, 'once_more', 'dashboard', 'select count(*) from outbox.delivery'), 'may', 'a role made anew has what the dump gives it');
is(role_may($other, 'shop', 'dashboard', 'select count(*) from outbox.delivery'), 'may not', 'and nothing where it was dropped');

$other->safe_psql($_, "select outbox.publish('note')") for 'shop', 'once_more';
$other->safe_psql('once_more', 'truncate ran; select outbox.activate()');
runs_as('once_more', 'runner_1', 'a handler runs as the role that the dump means');
ok(defined within(30, sub { $other->safe_psql('shop', q{select stopped_code || ': ' || stopped_reason from outbox.subscription_status where subscription = 'notes'})
			=~ /^42704: its role "runner_1" was dropped \(another one has that name now\)/ }), 'and stands still where its role was dropped');

# a dump taken after the drop means nobody, in this server or another one, nor does a dump of what was restored from it
sub stands_still
{
	my ($database, $code, $what) = @_;
	is($other->safe_psql($database, 'truncate ran; select outbox.activate()'), 't', "$what: it is activated");
	$other->safe_psql($database, "select outbox.publish('note')");
	ok(defined within(30, sub { $other->safe_psql($database, q{select stopped_code || ': ' || stopped_reason from outbox.subscription_status where subscription = 'notes'})
				=~ /^42704: its role "$code" was dropped \(another one has that name now\)/ }), "$what: it stands still");
	is($other->safe_psql($database, 'select count(*) from ran'), '0', "$what: and has not run");
	return;
}
sub dump_and_restore
{
	my ($from, $to) = @_;
	$other->command_ok([ 'pg_dump', '-Fc', '-f', $dump, $other->connstr($from) ], "dump of $from");
	return restore($other, $to, "$from restored");
}
dump_and_restore('shop', 'of_dropped');
stands_still('of_dropped', 'runner_1', 'its role was dropped before the dump');
is($other->safe_psql('of_dropped', q{select count(*) from outbox.role_grant where role_name = 'dashboard'}), '0', 'nor has a dropped role left rights behind');
dump_and_restore('of_dropped', 'of_dropped_again');
stands_still('of_dropped_again', 'runner_1', 'dumped and restored once more');
is($other->safe_psql('of_dropped_again', "truncate ran; select outbox.alter_subscription('notes', run_as => 'runner_1')"), 't', 'a superuser names its role');
runs_as('of_dropped_again', 'runner_1', 'then it runs');
dump_and_restore('of_dropped_again', 'named_anew');
$other->safe_psql('named_anew', q{truncate ran; select outbox.activate(), outbox.publish('note')});
runs_as('named_anew', 'runner_1', 'also where it is restored after that');

# one that was renamed, and upkeep cannot follow: whoever has taken its name is not meant either
my $holder = $other->background_psql('named_anew');
$holder->query_safe(q{begin; select from outbox.subscription where subscription = 'notes' for update});
$other->safe_psql('postgres', 'alter role runner_1 rename to runner_2; create role runner_1');
dump_and_restore('named_anew', 'of_renamed');
$holder->quit;
stands_still('of_renamed', 'runner_1', 'its role was renamed just before the dump');
$other->safe_psql('postgres', 'drop role runner_1; alter role runner_2 rename to runner_1');

$other->safe_psql('shop', "truncate ran; select outbox.alter_subscription('notes', run_as => 'runner_1')");
runs_as('shop', 'runner_1', 'until a superuser says who it is');

# ---------------------------------------------------------------- default privileges

$node->safe_psql('postgres', 'create database opened');
$node->safe_psql('opened', q{
	alter default privileges grant all on tables to public, app;
	alter default privileges grant all on sequences to public, app;
	alter default privileges grant all on functions to public, app;
	alter default privileges grant all on schemas to public, app;
	create extension outbox;
	select outbox.publish('order.placed');
	alter default privileges in schema outbox grant all on tables to app;
});
my $open = q{
	select c.relname from pg_class c, aclexplode(c.relacl) a where c.relnamespace = 'outbox'::regnamespace and a.grantee <> c.relowner
	union select p.proname from pg_proc p, aclexplode(p.proacl) a where p.pronamespace = 'outbox'::regnamespace and a.grantee <> p.proowner
	union select n.nspname from pg_namespace n, aclexplode(n.nspacl) a where n.nspname = 'outbox' and a.grantee <> n.nspowner
	union select t.relname from pg_class c join pg_class t on t.oid = c.reltoastrelid, aclexplode(t.relacl) a where c.relnamespace = 'outbox'::regnamespace and a.grantee <> t.relowner};
is($node->safe_psql('opened', $open), '', 'default privileges open nothing at first');
ok(defined within(60, sub { $node->safe_psql('opened', 'select count(*) > 25 from outbox.segment') eq 't' }), 'segments are made ahead');
is($node->safe_psql('opened', $open), '', 'nor in new segments');
is($node->safe_psql('opened', q{select count(*) from pg_class c where c.relnamespace = 'outbox'::regnamespace and c.relkind = 'r' and not (c.relrowsecurity and c.relowner = (select oid from pg_roles where rolname = current_user))}),
	'0', 'all are closed, and the owner\'s');

done_testing();
