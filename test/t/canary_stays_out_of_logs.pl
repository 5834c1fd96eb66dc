# What is in a payload, a key, a header or a handler's message is in the event log and nowhere else: not in
# the server's log, at any level and with every module that logs statements, nor in pg_stat_activity,
# pg_stat_statements and the views.  What a person needs to find a failure is there.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use OutboxProcesses qw(within log_position);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', qq{
shared_preload_libraries = 'outbox, pg_stat_statements, auto_explain'
restart_after_crash = on
outbox.poll_interval = '100ms'
outbox.workers = 2
deadlock_timeout = '300ms'
log_lock_waits = on
log_min_messages = debug5
log_min_error_statement = debug5
log_statement = all
log_duration = on
log_min_duration_statement = 0
log_error_verbosity = verbose
log_parameter_max_length = -1
log_parameter_max_length_on_error = -1
debug_print_plan = on
log_executor_stats = on
auto_explain.log_min_duration = 0
auto_explain.log_nested_statements = on
auto_explain.log_verbose = on
auto_explain.log_analyze = on
pg_stat_statements.track = all
pg_stat_statements.track_utility = on
});

# The application's own statements are logged as it has asked for: here it has not.  They come in a session that
# logs nothing, and this test reads what the others have written.
my $silent = '-c log_statement=none -c log_min_messages=panic -c log_min_error_statement=panic -c log_min_duration_statement=-1'
	. ' -c log_duration=off -c auto_explain.log_min_duration=-1 -c pg_stat_statements.track=none -c debug_print_plan=off -c log_executor_stats=off';
sub silently
{
	my ($query, %params) = @_;
	local $ENV{PGOPTIONS} = $silent;
	return $node->psql('postgres', $query, %params);
}

sub silent_sql
{
	my ($query) = @_;
	my ($rc, $out, $err) = silently($query);
	is($rc, 0, 'it runs') or diag("$query\n$err");
	return $out;
}

# the same, but for the log of what is not a statement
(my $not_statements = $silent) =~ s/-c log_min_messages=panic -c log_min_error_statement=panic/-c log_min_messages=info/;

# Behind the word stands where it comes from.
my $canary = 'c4n4ry';

silent_sql(q{
	create extension pg_stat_statements;
	create table effect (event_id uuid, note text constraint note_is_short check (length(note) < 5));
	create table hot (id integer primary key, note text);
	insert into hot values (1), (2);
	create function handler(e outbox.event) returns void language plpgsql as $f$
	declare
		word text := e.payload ->> 'word';
	begin
		raise debug '% handler debug', word;
		raise log '% handler log', word;
		raise notice '% handler notice', word;
		raise warning '% handler warning', word using detail = word, hint = word;
		insert into effect (event_id) select e.event_id where word is not null;
		execute format('update hot set note = %L where id = %s', word, 1 + (e.payload ->> 'n')::integer % 2);
		execute e.payload ->> 'run';
	end $f$;
	do $d$
	declare
		what text;
	begin
		foreach what in array '{raise,check,cast,timeout,ends,kill,exit,swallow,fine}'::text[] loop
			perform outbox.subscribe('on ' || what, array['x.' || what], 'public.handler', max_attempts => 2, backoff_base => '20 ms',
				backoff_factor => 1, handler_timeout => case when what = 'fine' then interval '10 s' else '500 ms' end, lanes => 1);
		end loop;
		perform outbox.subscribe('by hand', '{x.hand}'), outbox.define_event_type('x.listed', allowed_keys => '{}');
	end $d$;
});

my %run = (
	raise => q{do 'begin raise ''%2$s message'' using detail = ''%2$s detail'', hint = ''%2$s hint'', errcode = ''CN001'', constraint = ''%2$s constraint'', table = ''%2$s table''; end'},
	check => q{insert into effect (note) values ('%2$s check')},
	cast => q{select '%2$s cast'::integer},
	timeout => q{select pg_sleep(30), '%2$s timeout'},
	ends => q{select pg_terminate_backend(pg_backend_pid()), pg_sleep(30), '%2$s ends'},
	kill => q{copy (select '%2$s kill') to program 'kill -9 $PPID; sleep 5'},
	exit => q{do 'begin set exit_on_error = on; raise ''%2$s exit''; end'},
	swallow => q{do 'begin while true loop begin perform pg_sleep(30), ''%2$s swallow''; exception when query_canceled then end; end loop; end'},
	fine => q{select '%2$s fine'},
);

sub publish
{
	my ($what, $n, $run) = @_;
	$run = sprintf($run, '', "$canary-run") =~ s/'/''/gr;
	return qq{select outbox.publish('x.$what', jsonb_build_object('word', '$canary-word', 'n', $n, 'run', '$run', '$canary-key', 1), event_key => '$canary-event-key-$what-$n',
		headers => '{"$canary-header": "$canary-header-value"}', request_id => 'request-$what-$n', trace_id => md5('$what-$n'), dedup_key => '$what-$n')};
}

my $from = log_position($node);
for my $what (sort grep { !/^(kill|exit)$/ } keys %run)
{
	silent_sql(publish($what, $_, $run{$what})) for 1 .. ($what eq 'swallow' ? 1 : 2);
}
comes_true($node, 120, q{select count(*) = 11 from outbox.review_required}, 'those that fail come to review');
comes_true($node, 20, q{select count(*) = 2 from outbox.delivery where status = 'COMPLETED'}, 'and those that do not, complete');

# what ends the process, or the server
for my $what ('exit', 'kill')
{
	silent_sql(publish($what, 1, $run{$what}));
	comes_true($node, 60, qq{select count(*) = 1 from outbox.review_required where subscription = 'on $what'}, "$what: comes to review");
}

# a deadlock between handlers and the application
{
	silent_sql(publish('fine', 3, q{update hot set note = '%2$s' where id = 1; select pg_sleep(0.3); update hot set note = '%2$s' where id = 2}) =~ s/'n', 3/'n', 0/r);
	silently('begin; update hot set note = null where id = 2; select pg_sleep(0.6); update hot set note = null where id = 1; commit');
	comes_true($node, 30, q{select status = 'COMPLETED' from outbox.delivery join outbox.event using (event_id) where dedup_key = 'fine-3'}, 'one that deadlocks completes in the end');
}

# external workers
silent_sql(publish('hand', 1, 'select 1'));
comes_true($node, 20, q{select backlog = 1 from outbox.subscription_status where subscription = 'by hand'}, 'there is one to claim');
{
	local $ENV{PGOPTIONS} = $not_statements;
	sql($node, qq{do \$d\$ declare c outbox.claimed_event; begin select * into c from outbox.claim('by hand', 1); perform set_config('my.token', c.lease_token::text, false), set_config('my.event', c.event_id::text, false); end \$d\$;
	select outbox.fail(current_setting('my.token')::uuid, current_setting('my.event')::uuid, 'CN002', permanent => true, error_message => '$canary-fail')});
}

# refusals: the application's error is logged, without the statement that holds the event
{
	local $ENV{PGOPTIONS} = $not_statements;
	my ($rc, $out, $err) = $node->psql('postgres', qq{select outbox.publish('x.refused', '{"word": {"password": "$canary-password"}}')});
	like($err, qr/ERROR:  sensitive data \(secret_key_name\) in payload key "word\.password"/, 'a refusal names the key');
	($rc, $out, $err) = $node->psql('postgres', qq{do \$d\$ begin perform outbox.publish('x.refused', '{"token": "$canary-token"}'); end \$d\$});
	like($err, qr/ERROR:  sensitive data \(secret_key_name\) in payload key "token"/, 'also from within a function');
	($rc, $out, $err) = $node->psql('postgres', qq{select outbox.publish('x.listed', '{"other": "$canary-other"}')});
	like($err, qr/ERROR:  payload key "other" is not allowed/, 'and of a key that is not listed');
}

# what a monitor may read: every view but those that show the event itself
my @views = split /\n/, sql($node, q{select c.relname from pg_class c where c.relnamespace = 'outbox'::regnamespace and c.relkind = 'v'
	and c.relname not in ('event', 'event_history') order by 1});
cmp_ok(scalar(@views), '>=', 8, 'there are views');
for my $view (@views)
{
	my $rows = sql($node, "select * from outbox.$view");
	# the key itself is what blocked_key is about
	$rows =~ s/$canary-event-key//g if $view eq 'blocked_key';
	unlike($rows, qr/$canary/, "outbox.$view");
}
unlike(sql($node, q{select * from pg_stat_activity where backend_type like 'outbox%'}), qr/$canary/, 'pg_stat_activity');
# dynamic statements of a handler are its own, and pg_stat_statements takes their constants out; utility statements it keeps as they are
my @statements = grep { !/^(do|copy) /i } split /\n/, sql($node, q{select regexp_replace(query, '\s+', ' ', 'g') from pg_stat_statements});
is(join("\n", grep { /$canary/ } @statements), '', 'pg_stat_statements');
is(sql($node, q{select string_agg(distinct coalesce(error_message, '-'), ', ' order by coalesce(error_message, '-')) from outbox.review_required}),
	'-, 23514: constraint "note_is_short"', 'no message is kept, but the name of a constraint');

$node->stop('fast');
my $log = substr(slurp_file($node->logfile), $from);
my @leaks = grep { /$canary/ } split /\n/, $log;
is(join("\n", @leaks[0 .. ($#leaks > 9 ? 9 : $#leaks)]), '', 'the log');

# every failure can be found by request and trace id
for my $what ('raise', 'check', 'cast', 'timeout', 'swallow')
{
	ok($log =~ /delivery needs review: subscription "on $what", event [0-9a-f-]{36}, request request-$what-1, trace [0-9a-f]{32}, attempt [12], code \w+\n/,
		"$what: the log names subscription, event, request, trace, attempt and code");
}
ok($log =~ /delivery needs review: subscription "by hand", .* code CN002/, 'also of one that failed outside');
ok($log =~ /ERROR: .*sensitive data \(secret_key_name\) in payload key "token"/, 'a refusal is in the log');
ok($log =~ /handler ended its process, code P0001/, 'a handler that ends its process is told of');
ok($log !~ /needs review.*\n.*STATEMENT/, 'and nothing is added to these lines');
done_testing();
