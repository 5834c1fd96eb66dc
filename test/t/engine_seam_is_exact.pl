# A subscription made in a transaction gets exactly the events that were not committed when it
# subscribed, its own transaction's among them; with start_at the old ones too, before the new.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_engine('main', "outbox.poll_interval = '200ms'\nmax_prepared_transactions = 5\nlog_min_messages = error\n");

sql($node, q{
	create table effect (n bigint generated always as identity, subscription text, event_id uuid, event_key text, name text);
	create function note(e outbox.event) returns void language sql as
	'insert into effect (subscription, event_id, event_key, name)
	 values ((outbox.current_delivery()).subscription, e.event_id, e.event_key, e.payload ->> ''name'')'});

sub names
{
	my ($subscription) = @_;
	return sql($node, "select coalesce(string_agg(name, ' ' order by name), '') from effect where subscription = '$subscription'");
}

sub publish { return join(' ', map { "select outbox.publish('a.b', '{\"name\": \"$_\"}', event_key => 'k');" } @_) }
sub subscribe { my ($name, $more) = @_; return "select outbox.subscribe('$name', '{a.#}', 'public.note'" . ($more // '') . ");" }

# --- by hand, event by event

sql($node, publish('long-before'));
my %s = map { $_ => $node->background_psql('postgres') } qw(subscriber early late gone);
$s{early}->query_safe('begin;' . publish('open-before'));
$s{gone}->query_safe('begin;' . publish('rolled-back'));
sql($node, 'begin;' . publish('prepared-before') . q{prepare transaction 'p'});
$s{subscriber}->query_safe('begin;' . publish('own-before'));
sql($node, publish('committed-before'));
$s{subscriber}->query_safe(subscribe('s') . publish('own-after') . 'savepoint x;' . publish('own-gone') . 'rollback to x; savepoint x;' . publish('own-in-savepoint'));
sql($node, publish('committed-between'));
$s{late}->query_safe('begin;' . publish('open-between'));
comes_true($node, 30, q{select count(*) = 0 from outbox.delivery}, 'nothing is delivered yet');
$s{early}->query_safe('commit');
$s{gone}->query_safe('rollback');
sql($node, q{select outbox.publish('other.type')});
$s{subscriber}->query_safe('commit');
sql($node, publish('long-after'));
comes_true($node, 30, q{select count(*) = 6 from effect}, 'what is committed is delivered, in whatever order');
$s{late}->query_safe('commit');
sql($node, q{commit prepared 'p'});
drain($node, 60, 'all is delivered');
is(names('s'), 'committed-between long-after open-before open-between own-after own-before own-in-savepoint prepared-before', 'exactly those');
is(reconcile($node, 's', 'effect'), '', 'each once');

# a snapshot that is older than the subscription
$s{subscriber}->query_safe('begin isolation level repeatable read; select 1');
sql($node, publish('before-subscribe'));
$s{subscriber}->query_safe(subscribe('repeatable'));
sql($node, publish('after-subscribe'));
$s{subscriber}->query_safe('commit');
drain($node, 60, 'all is delivered');
is(names('repeatable'), 'after-subscribe', 'in REPEATABLE READ, too');

# rolled back, or in a savepoint
$s{subscriber}->query_safe('begin; savepoint x;' . subscribe('tried') . 'rollback to x;' . publish('without') . subscribe('tried') . publish('with') . 'commit');
drain($node, 60, 'all is delivered');
is(names('tried'), 'with without', 'subscribed again after a rolled-back savepoint');

# --- start_at

my $all = sql($node, q{select string_agg(payload ->> 'name', ' ' order by payload ->> 'name') from outbox.event where event_type = 'a.b'});
$s{subscriber}->query_safe('begin;' . subscribe('all', ", start_at => '-infinity'"));
sql($node, publish('n1', 'n2'));
$s{subscriber}->query_safe(publish('n3') . 'commit');
sql($node, publish('n4'));
drain($node, 60, 'all is delivered');
is(names('all'), join(' ', sort(split(/ /, $all), qw(n1 n2 n3 n4))), 'start_at of -infinity: everything there is');
is_sql($node, q{select count(*) from effect o join effect n using (subscription) where subscription = 'all' and o.name !~ '^n\d' and n.name ~ '^n\d' and o.n > n.n},
	'0', 'the old ones before the new');
sql($node, publish('t0'));
my $time = sql($node, 'select clock_timestamp()');
sql($node, publish('t1', 't2'));
sql($node, subscribe('timed', ", start_at => '$time'") . publish('t3'));
sql($node, publish('t4'));
drain($node, 60, 'all is delivered');
is(names('timed'), 't1 t2 t3 t4', 'start_at of a time: from then on');
$_->quit for values %s;

# --- at random, among writers

my $folder = PostgreSQL::Test::Utils::tempdir();
append_to_file("$folder/publish", "\\set k random(1, 5)\nselect outbox.publish('a.b', '{\"name\": \"random\"}', event_key => :k::text);\n");
append_to_file("$folder/slow", "begin;\nselect outbox.publish('a.b', '{\"name\": \"slow\"}', event_key => 's');\n\\sleep 30 ms\ncommit;\n");
append_to_file("$folder/two", "\\set k random(1, 5)\nbegin;\nsavepoint s;\nselect outbox.publish('a.b', event_key => :k::text);\nrelease s;\nselect outbox.publish('a.b', event_key => :k::text);\ncommit;\n");
my $writers = IPC::Run::start(
	[ 'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-c', '6', '-R', '250', '-T', '6', (map { ('-f', "$folder/$_") } qw(publish slow two)), 'postgres' ],
	'>', '/dev/null', '2>', '/dev/null');
for my $n (1 .. 12)
{
	usleep(rand(200_000));
	my $more = $n % 3 == 0 ? ", start_at => '-infinity'" : $n % 3 == 1 ? ", start_at => clock_timestamp() - interval '100 milliseconds'" : '';
	sql($node, 'begin;' . publish('own') . subscribe("r$n", $more) . ($n % 2 ? 'select pg_sleep(0.05);' : '') . publish('own') . 'commit');
}
$writers->finish;
drain($node, 120, 'all is delivered');
# what each one should have got, from its seam and the transactions of the events
is_sql($node, q{
	with due as (
		select s.subscription, l.event_id from outbox.subscription s join outbox.event_log l on l.event_type = 'a.b'
		where not pg_visible_in_snapshot(l.xid, s.seam) or l.xid = s.seam_xid or l.published_at >= s.start_at),
	done as (select subscription, event_id from outbox.delivery where status = 'COMPLETED')
	select (select count(*) > 1000 from due), (select count(*) from (select * from due except all select * from done) x),
		(select count(*) from (select * from done except all select * from due) x)}, 't|0|0', 'each subscription has what it should have, once');
is_sql($node, q{
	select count(*) from (
		select pg_visible_in_snapshot(l.xid, s.seam) and l.xid <> s.seam_xid as old,
			lag(pg_visible_in_snapshot(l.xid, s.seam) and l.xid <> s.seam_xid) over (partition by s.subscription, e.event_key order by e.n) as before
		from effect e join outbox.subscription s using (subscription) join outbox.event_log l using (event_id)) o where old and not before}, '0', 'the old ones before the new, in each key');
$node->stop;
done_testing();
