# A handler may call, for its own subscription and its own event, whatever its role may call: the event ends as
# that call and the handler's own success say, its neighbours are delivered, and nothing of a subscription that
# removed itself is left over.  The extension is not dropped from within.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses;
use PostgreSQL::Test::Utils;
use Test::More;

# a batch is not ended by the time in between, on a slow machine: what comes after an event that removes its subscription is in it, or is not delivered
my $node = new_engine('main', "outbox.workers = 2\noutbox.poll_interval = '100ms'\noutbox.batch_time = '10s'\ndeadlock_timeout = '60s'\n");
sql($node, q{
	create table seen (n bigint generated always as identity, event_id uuid, what text);
	create table near (event_id uuid);
	-- does what the event says: at the first attempt `first`, then `does`
	create function act(e outbox.event) returns void language plpgsql as $f$
	begin
		insert into seen (event_id, what) values (e.event_id, e.payload ->> 'what');
		execute case when (outbox.current_delivery()).attempt = 1 then coalesce(e.payload ->> 'first', e.payload ->> 'does', 'select 1')
			else coalesce(e.payload ->> 'does', 'select 1') end using e;
	end $f$;
	create function be_near(e outbox.event) returns void language sql as 'insert into near values (e.event_id)';
	select outbox.subscribe('near', '{act.#}', 'public.be_near', ordering => 'none', max_attempts => 1);
	create function begin_case(name text, type text) returns boolean language sql as
		$f$ select outbox.subscribe(name, array[type], 'public.act', lanes => 1, max_attempts => 2, backoff_base => '50 ms') $f$;
	create view outcome as select subscription, e.payload ->> 'what' as what,
		d.status || ' ' || d.attempts || coalesce(' ' || d.error_code, '') as came
		from outbox.delivery d join outbox.event e using (event_id) where subscription <> 'near';
	create function has_strays(name text) returns boolean language plpgsql as $f$
	declare
		found_one boolean;
	begin
		execute format('select exists (select from outbox.%I where subscription_id not in (select subscription_id from outbox.subscription))', name) into found_one;
		return found_one;
	end $f$;
	create view left_over as
	with tables as materialized (select c.relname from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'subscription_id'
		where c.relnamespace = 'outbox'::regnamespace and c.relkind = 'r' and c.relname !~ '^(receipt_log|batch|attempt_log|subscription$)')
	select relname as what from tables where has_strays(relname)
	union all select 'parked' from outbox.parked where gate_id not in (select gate_id from outbox.gate)
	union all select 'lease' from outbox.lease where subscription_id not in (select subscription_id from outbox.subscription)
});
my $start = log_position($node);
my $number = 0;

# A subscription of that name to a type of its own, and its events, each with its own key unless one is given.
# TYPE in what they do stands for that type.
sub run_case
{
	my ($name, @events) = @_;
	my $type = 'act.n' . ++$number;
	sql($node, "select begin_case('$name', '$type')");
	publish($type, @events);
	return $type;
}

sub publish
{
	my ($type, @events) = @_;
	sql($node, 'begin; ' . join('; ', map {
		my $key = $_->{key} // "k$_->{what}";
		sprintf(q{select outbox.publish('%s', jsonb_strip_nulls(jsonb_build_object('what', '%s', 'first', %s, 'does', %s)), event_key => '%s')},
			$type, $_->{what}, (map { defined $_ ? '$q$' . s/TYPE/$type/gr . '$q$' : 'null' } @$_{qw(first does)}), $key) } @events) . '; commit');
}

sub settle
{
	my ($name, $type) = @_;
	drain($node, 30, "$name: settled");
	is_sql($node, qq{select count(*) from outbox.event left join near using (event_id) where event_type = '$type' and near.event_id is null}, '0', "$name: the neighbour has had them all");
	is_sql($node, q{select string_agg(what, ', ') from left_over}, '', "$name: nothing is left over");
}

sub came
{
	my ($name, $expected) = @_;
	is_sql($node, qq{select string_agg(what || ': ' || came, ', ' order by what) from outcome where subscription = '$name'}, $expected, "$name: what came of them");
}

# ---------------------------------------------------------------- unsubscribes itself

my $leave = q{select outbox.unsubscribe('%s', force => true)};
my $type = run_case('leaves', { what => 'a' }, { what => 'b', does => sprintf($leave, 'leaves') }, { what => 'c' });
settle('leaves', $type);
is_sql($node, q{select count(*) from outbox.subscription where subscription = 'leaves'}, '0', 'it is gone');
is_sql($node, q{select string_agg(what, '' order by n) from seen}, 'abc', 'the batch at work was finished, once');

# with others of its key parked in the same batch, and in review
sql($node, 'delete from seen');
$type = run_case('leaves parked', { what => 'a', key => 'k', does => q{select 1 / 0} });
settle('leaves parked', $type);
came('leaves parked', 'a: REVIEW_REQUIRED 1 22012');
publish($type, { what => 'b', key => 'k' }, { what => 'c', does => sprintf($leave, 'leaves parked') }, { what => 'd', key => 'k' });
comes_true($node, 20, q{select not exists (select from outbox.subscription where subscription = 'leaves parked')}, 'leaves parked: it is gone');
settle('leaves parked', $type);

# at a retry
sql($node, 'delete from seen');
$type = run_case('leaves late', { what => 'a', key => 'k', first => q{do 'begin raise exception ''not yet''; end'}, does => sprintf($leave, 'leaves late') }, { what => 'b', key => 'k' });
comes_true($node, 20, q{select not exists (select from outbox.subscription where subscription = 'leaves late')}, 'leaves late: it is gone');
settle('leaves late', $type);
is_sql($node, q{select string_agg(what, '' order by n) from seen}, 'a', 'what was parked behind it was given up');

# behind a gate that has opened
sql($node, 'delete from seen');
$type = run_case('leaves from a gate', { what => 'a', key => 'k', first => q{do 'begin raise exception ''not yet''; end'} }, { what => 'b', key => 'k', does => sprintf($leave, 'leaves from a gate') }, { what => 'c', key => 'k' });
comes_true($node, 20, q{select not exists (select from outbox.subscription where subscription = 'leaves from a gate')}, 'leaves from a gate: it is gone');
settle('leaves from a gate', $type);
is_sql($node, q{select string_agg(what, '' order by n) from seen}, 'abc', 'in order, once');

# and then fails: it has not happened
$type = run_case('stays', { what => 'a', does => sprintf(q{do $d$ begin perform outbox.unsubscribe('%s', force => true); raise exception 'no' using errcode = 'XX777'; end $d$}, 'stays') }, { what => 'b' });
settle('stays', $type);
came('stays', 'a: REVIEW_REQUIRED 2 XX777, b: COMPLETED 1');

# removes itself, and is there again under its name
$type = run_case('comes back', { what => 'a', does => sprintf($leave, 'comes back') . q{; select begin_case('comes back', 'TYPE')} }, { what => 'b' });
settle('comes back', $type);
publish($type, { what => 'c' });
settle('comes back', $type);
came('comes back', 'c: COMPLETED 1');

# ---------------------------------------------------------------- changes its definition

$type = run_case('raises', { what => 'a', does => q{select outbox.alter_subscription('raises', max_attempts => 9)} }, { what => 'b' });
settle('raises', $type);
came('raises', 'a: COMPLETED 1, b: COMPLETED 1');
is_sql($node, q{select max_attempts from outbox.subscription where subscription = 'raises'}, '9', 'its max_attempts are raised');

$type = run_case('raises in vain', { what => 'a', does => q{do $d$ begin perform outbox.alter_subscription('raises in vain', max_attempts => 9); raise exception 'no' using errcode = 'XX777'; end $d$} });
settle('raises in vain', $type);
came('raises in vain', 'a: REVIEW_REQUIRED 2 XX777');
is_sql($node, q{select max_attempts from outbox.subscription where subscription = 'raises in vain'}, '2', 'rolled back with its attempt');

$type = run_case('hands over', { what => 'a', does => q{select outbox.alter_subscription('hands over', reset => '{handler}')} });
settle('hands over', $type);
came('hands over', 'a: COMPLETED 1');
publish($type, { what => 'b' });
settle('hands over', $type);
my $token = sql($node, q{select lease_token from outbox.claim('hands over')});
is_sql($node, "select outbox.ack_all('$token')", '1', 'what comes then is for external workers');
came('hands over', 'a: COMPLETED 1, b: COMPLETED 1');

$type = run_case('widens', { what => 'a', key => 'k', does => q{select outbox.alter_subscription('widens', lanes => 4)} }, { what => 'b', key => 'k' });
settle('widens', $type);
publish($type, { what => 'c', key => 'k' });
settle('widens', $type);
came('widens', 'a: COMPLETED 1, b: COMPLETED 1, c: COMPLETED 1');

# ---------------------------------------------------------------- pauses itself

$type = run_case('pauses', { what => 'a', does => q{select outbox.pause('pauses')} });
settle('pauses', $type);
came('pauses', 'a: COMPLETED 1');
publish($type, { what => 'b' });
settle('pauses', $type);
came('pauses', 'a: COMPLETED 1, b: PENDING 0');
sql($node, q{select outbox.resume('pauses')});
settle('pauses', $type);
came('pauses', 'a: COMPLETED 1, b: COMPLETED 1');

# ---------------------------------------------------------------- its own event

my $give_up = q{do $d$ begin insert into seen (what) values (outbox.discard('%1$s', (outbox.current_delivery()).event_id, 'no') || ' ' || outbox.retry('%1$s', (outbox.current_delivery()).event_id)); end $d$};
sql($node, 'delete from seen');
$type = run_case('gives up', { what => 'a', does => sprintf($give_up, 'gives up') }, { what => 'b', first => q{do 'begin raise exception ''not yet''; end'}, does => sprintf($give_up, 'gives up') });
settle('gives up', $type);
came('gives up', 'a: COMPLETED 1, b: COMPLETED 2');
is_sql($node, q{select string_agg(what, ', ' order by n) from seen where event_id is null}, 'false false, false false', 'what is under way can neither be given up nor tried again');

# one that is gone from the log before its handler returns
$type = run_case('deletes', { what => 'a', does => q{delete from outbox.event_log where event_id = (outbox.current_delivery()).event_id} }, { what => 'b' });
drain($node, 30, 'deletes: settled');
is_sql($node, q{select count(*) from outbox.receipt_log join outbox.subscription using (subscription_id) where subscription = 'deletes'}, '2', 'deletes: both have their receipt');

# ---------------------------------------------------------------- claims and settles for itself

$type = run_case('claims', { what => 'a', does => q{select outbox.claim('claims')} }, { what => 'b' });
settle('claims', $type);
came('claims', 'a: REVIEW_REQUIRED 2 55000, b: COMPLETED 1');
$type = run_case('settles', { what => 'a', does => q{select outbox.ack(gen_random_uuid(), array[($1).event_id])} },
	{ what => 'b', does => q{do 'begin perform outbox.ack_all(gen_random_uuid()); exception when others then insert into seen (what) values (sqlstate); end'} }, { what => 'c' });
settle('settles', $type);
came('settles', 'a: REVIEW_REQUIRED 2 OB001, b: COMPLETED 1, c: COMPLETED 1');
is_sql($node, q{select count(*) from seen where what = 'OB001'}, '1', 'it may be caught');

# ---------------------------------------------------------------- publishes for itself

sql($node, q{
	create function publish_next(type text, n integer) returns uuid language sql as $f$
		select outbox.publish(type, jsonb_build_object('what', 'n' || n, 'does', case when n < 40 then format('select publish_next(%L, %s)', type, n + 1) end), event_key => 'k')
	$f$;
	delete from seen});
$type = run_case('publishes', { what => 'n0', key => 'k', does => q{select publish_next('TYPE', 1)} });
comes_true($node, 30, qq{select count(*) = 41 from seen}, 'publishes: the chain comes to its end');
settle('publishes', $type);
is_sql($node, q{select string_agg(what, ' ' order by n) from seen}, join(' ', map { "n$_" } 0 .. 40), 'in order, each once');

# one that fails publishes nothing
$type = run_case('publishes in vain', { what => 'a', does => q{do $d$ begin perform outbox.publish('TYPE', '{"what": "never"}'); raise exception 'no' using errcode = 'XX777'; end $d$} },
	{ what => 'b', does => q{do $d$ begin begin perform outbox.publish('TYPE', '{"what": "never"}'); raise division_by_zero; exception when division_by_zero then end; perform outbox.publish('TYPE', '{"what": "c"}'); end $d$} });
# and again: what b has published came after the first call
settle('publishes in vain', $type) for 1 .. 2;
came('publishes in vain', 'a: REVIEW_REQUIRED 2 XX777, b: COMPLETED 1, c: COMPLETED 1');

# ---------------------------------------------------------------- the extension

my $pids = join(' ', sort(pids($node, 'outbox worker')), pids($node, 'outbox router'));
my @ways = ('drop extension outbox cascade', 'drop schema outbox cascade', 'alter extension outbox update', 'drop extension if exists outbox');
$type = run_case('drops', (map { { what => $ways[$_], key => 'k', does => $ways[$_] } } 0 .. $#ways), { what => 'z' });
sql($node, q{select outbox.alter_subscription('drops', on_review => 'continue')});
settle('drops', $type);
came('drops', join(', ', (map { "$_: REVIEW_REQUIRED 2 55006" } sort @ways), 'z: COMPLETED 1'));
is(join(' ', sort(pids($node, 'outbox worker')), pids($node, 'outbox router')), $pids, 'and no process ended for it');

# ---------------------------------------------------------------- no noise

log_is_quiet($node, $start, 'will run as superuser', 'the processes have nothing to complain about');
unlike(substr(slurp_file($node->logfile), $start), qr/was terminated by|exited with exit code/, 'and none has ended');
$node->stop;
done_testing();
