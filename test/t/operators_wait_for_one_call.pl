# Who changes what all lanes of a subscription rest on waits for the calls that are under way, and for no other; one who
# pauses waits for nobody, and no call begins afterwards.  Somebody who gives up the wait leaves nothing closed.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use Test::More;

my $node = new_engine('main', "outbox.workers = 2\noutbox.poll_interval = '100ms'\n");
sql($node, q{
	create sequence calls minvalue 0;
	-- each call waits for the lock of its number
	create function handler(e outbox.event) returns void language plpgsql as $f$
	begin
		perform pg_advisory_xact_lock_shared(nextval('calls'));
		if e.payload ? 'fails' and (outbox.current_delivery()).attempt = 1 then raise exception 'x'; end if;
	end $f$;
	create function other_handler(e outbox.event) returns void language sql as 'select pg_advisory_xact_lock_shared(nextval(''calls''))'});
my $holder = $node->background_psql('postgres');
my $operator = $node->background_psql('postgres', on_error_stop => 0);
my $asked = 0;

# a subscription with much to do, and so many calls under way, which wait
sub begin_calls
{
	my ($name, $n) = @_;
	$holder->query_safe('select pg_advisory_unlock_all(); select count(pg_advisory_lock(n)) from generate_series(1, 60) n');
	sql($node, qq{select setval('calls', 0); select outbox.subscribe('$name', '{$name}', 'public.handler', lanes => 8, batch_size => 1, on_review => 'continue', handler_timeout => '10 minutes')});
	sql($node, qq{select count(outbox.publish('$name')) from generate_series(1, 40)});
	calls_wait($n, "$name: $n calls are under way");
}

sub calls_wait
{
	my ($n, $name) = @_;
	return comes_true($node, 20, qq{select count(*) = $n from pg_locks where locktype = 'advisory' and objsubid = 1 and not granted}, $name);
}

sub release { return $holder->query_safe("select pg_advisory_unlock($_[0])") }

# what the operator asks for, without waiting for the answer
sub ask
{
	my ($query) = @_;
	$asked++;
	return $operator->query_until(qr/asked $asked/, "\\echo asked $asked\n$query;\n\\echo done $asked\n");
}

sub is_waiting { return comes_true($node, 20, q{select count(*) = 1 from pg_stat_activity where query like '%outbox.%subscri%' and wait_event_type = 'Lock' and backend_type = 'client backend'}, $_[0]) }

# What has come of it, within the time that a session of the tests waits for at most.
sub answered { my ($name) = @_; return ok(eval { $operator->query('select 1'); 1 }, $name) }

# the number of workers that have found nothing to do since
sub rests
{
	my ($n, $name) = @_;
	my $at = sql($node, 'select clock_timestamp()');
	return comes_true($node, 20, qq{select count(*) = $n from pg_stat_activity where backend_type = 'outbox worker' and state = 'idle' and state_change > '$at'}, $name);
}

my %change = (
	'a review holds its key' => q{select outbox.alter_subscription('%s', on_review => 'block')},
	'workers outside' => q{select outbox.alter_subscription('%s', reset => '{handler}')},
	'goes' => q{select outbox.unsubscribe('%s', force => true)},
);
for my $kind (sort keys %change)
{
	my $name = $kind =~ s/ /_/gr;
	begin_calls($name, 2);
	ask(sprintf $change{$kind}, $name);
	is_waiting("$kind: it waits for the calls under way");
	release(1);
	rests(1, '  one is over: the worker begins no other');
	is_sql($node, q{select last_value from calls}, '2', '  really');
	release(2);
	answered('  the other is over: it is done');
	is_sql($node, qq{select coalesce((select handler || ' ' || on_review from outbox.subscription where subscription = '$name'), '-')},
		{ a => 'public.handler block', w => '-', g => '-' }->{ substr $kind, 0, 1 }, '  really');
	calls_wait(2, '  and the others go on') if $kind =~ /review/;
	$holder->query_safe('select pg_advisory_unlock_all()');
	if ($kind =~ /review/)
	{
		drain($node, 60, '  to the end');
		comes_true($node, 30, qq{select completed_total = 40 from outbox.metrics where subscription = '$name'}, '  each once');
		is_sql($node, q{select count(*) from outbox.attempt}, '0', '  without an attempt that failed');
	}
	sql($node, "select outbox.unsubscribe('$name', force => true)");
}

# --- who dies or gives up waiting
for my $end ('pg_terminate_backend', 'pg_cancel_backend')
{
	begin_calls($end, 2);
	my $mortal = $node->background_psql('postgres', on_error_stop => 0);
	$mortal->query_until(qr/asked/, "\\echo asked\nselect outbox.alter_subscription('$end', on_review => 'block');\n");
	is_waiting("$end: somebody waits");
	release(1);
	rests(1, '  and is made way for');
	is_sql($node, qq{select $end(pid) from pg_stat_activity where query like '%alter_subscription%' and wait_event_type = 'Lock'}, 't', '  in vain');
	calls_wait(2, '  the worker goes on while the other call is under way');
	$holder->query_safe('select pg_advisory_unlock_all()');
	drain($node, 60, '  to the end');
	eval { $mortal->quit };
	sql($node, "select outbox.unsubscribe('$end', force => true)");
}

# --- a pause: of one worker, which has retries, replays and more events of its only lane in hand
$node->append_conf('postgresql.conf', "outbox.workers = 1\n");
$node->reload;
comes_true($node, 20, q{select count(*) = 1 from pg_stat_activity where backend_type = 'outbox worker'}, 'one worker');
$holder->query_safe('select count(pg_advisory_lock(n)) from generate_series(2, 60) n');
sql($node, q{select setval('calls', 0); select outbox.subscribe('pause', '{pause}', 'public.handler', lanes => 1, batch_size => 1, backoff_base => '3 s', handler_timeout => '10 minutes');
	begin; select outbox.publish('pause', '{"fails": 1}'); select count(outbox.publish('pause')) from generate_series(1, 20); commit});
calls_wait(1, 'the second event is at work, the first one has failed');
comes_true($node, 20, q{select next_attempt_at < clock_timestamp() from outbox.delivery where status = 'RETRY'}, 'and is due');
release(2);
comes_true($node, 20, q{select last_value = 3 from calls}, 'it is at work again');
sql($node, q{set statement_timeout = '60s'; select outbox.pause('pause')});
pass('a pause waits for nobody');
sql($node, q{select count(outbox.publish('pause')) from generate_series(1, 3)});
release(3);
rests(1, 'its call is over');
is_sql($node, q{select last_value from calls}, '3', 'and none begins afterwards');
is_sql($node, q{select count(*) from outbox.receipt_log join outbox.subscription using (subscription_id) where subscription = 'pause'}, '2', 'what was at work is completed');
$holder->query_safe('select pg_advisory_unlock_all()');
sql($node, q{select outbox.resume('pause')});
drain($node, 60, 'it goes on');
is_sql($node, q{select string_agg(attempts::text, ' ' order by attempts) from outbox.delivery join outbox.event using (event_id) where payload ? 'fails'}, '2', 'no attempt is lost or added');

# --- claims: an open one is waited for, meanwhile others get nothing, and nobody is called to it
sql($node, q{select outbox.subscribe('c', '{c}', lanes => 8, ordering => 'none'); select count(outbox.publish('c')) from generate_series(1, 40); call outbox.drain('{c}')});
my $claimer = $node->background_psql('postgres');
$claimer->query_safe(q{begin; select count(*) from outbox.claim('c', 1)});
is_sql($node, q{select count(*) from outbox.claim('c', 1)}, '1', 'beside an open claim others claim');
ask(q{select outbox.alter_subscription('c', on_review => 'continue')});
is_waiting('a change waits for the open claim');
is_sql($node, q{select count(*) from outbox.claim('c', 1)}, '0', 'which no other one follows');
is_sql($node, q{call outbox.wait('{c}', '300 ms')}, 'f', 'nor is anybody called');
$claimer->query_safe('commit');
answered('it is over: the change is made');
is_sql($node, q{call outbox.wait('{c}', '20 s')}, 't', 'and there is something to claim');
is_sql($node, q{select count(*) from outbox.claim('c', 1)}, '1', 'again');
$claimer->query_safe(q{begin; select count(*) from outbox.claim('c', 1)});
ask(q{set lock_timeout = '100 ms'; select outbox.alter_subscription('c', on_review => 'block')});
answered('one who waits no longer than he will');
is_sql($node, q{select count(*) from outbox.claim('c', 1)}, '1', 'leaves the passage open');
$claimer->query_safe('rollback');
$_->quit for $claimer, $operator, $holder;
$node->stop;
done_testing();
