# outbox.report() is one HTML page: a browser draws all its charts, no script runs, nothing is loaded from elsewhere, and no payload is in it.
# outbox.status() is a page of text that says what to do next.
use strict;
use warnings;
use OutboxEngine;
use PostgreSQL::Test::Utils;
use Test::More;

my $canary = 'CANARY7f3a';
my $node = new_engine('report');
make_effects($node, 'effect', qq{if e.payload ->> 'do' = 'fail' then raise '$canary in a message' using errcode = 'check_violation'; end if;});

my $page = sql($node, 'select outbox.report()');
like($page, qr{^<!doctype html>.*</html>$}s, 'a database where nothing has happened has a report');
like(sql($node, 'select * from outbox.status()'), qr/There is no subscription yet/, 'and a status');

sql($node, q{select outbox.subscribe('<i>name</i> & "more"', '{r.#}', handler => 'public.effect_handler')});
sql($node, q{select outbox.subscribe('outside', '{r.#}')});
sql($node, qq{select count(outbox.publish('r.x', jsonb_build_object('do', case when n % 20 = 0 then 'fail' end, '$canary', '$canary'), headers => '{"h": "$canary"}', event_key => '$canary' || n))
	from generate_series(1, 200) n});
sql($node, q{select outbox.publish('nobody.wants')});
drain($node, 60, 'all is settled');

my $status = sql($node, 'select * from outbox.status()');
like($status, qr/^router running, 2 of 2 workers running$/m, 'the status says what runs');
like($status, qr/In review in ".*": \d+, the oldest since .*outbox\.retry_all/, 'what needs a person, since when, and what to do');
like($status, qr/No subscription took events of type nobody\.wants/, 'and what nobody listens to');
sql($node, q{select outbox.pause('outside')});
like(sql($node, 'select * from outbox.status()'), qr/Waiting for "outside", which is paused: 200, .*outbox\.resume\('outside'\)/, 'and what is paused');
unlike($status, qr/$canary/, 'and shows no payload, key or message');

# no worker is wanted
my $no_workers = q{select count(*) > 0 from outbox.status() as line where line ~ 'outbox\.workers is 0: no handler is run'};
is_sql($node, $no_workers, 'f', 'workers are wanted');
$node->append_conf('postgresql.conf', "outbox.workers = 0\n");
$node->reload;
comes_true($node, 10, $no_workers, 'none is wanted: the status says so');
$node->append_conf('postgresql.conf', "outbox.workers = 2\n");
$node->reload;
comes_true($node, 10, q{select workers_running = 2 from outbox.server_metrics}, 'two are wanted');

# whose workers outside do not run
my $unclaimed = q{select unclaimed from outbox.metrics where subscription = 'outside'};
sql($node, q{select outbox.resume('outside')});
is_sql($node, $unclaimed, 'f', 'what has waited for a moment only may be claimed yet');
set_offset($node, 61);
comes_true($node, 30, $unclaimed, 'after a minute nobody claims it');
my $nobody = qr/Waiting for "outside", which nobody claims: 200, the oldest since \d+ min\. Start its workers, .*outbox\.unsubscribe\('outside', force => true\)/;
like(sql($node, 'select * from outbox.status()'), $nobody, 'and the status says so');
sql($node, q{select count(*) from outbox.claim('outside')});
is_sql($node, $unclaimed, 'f', 'somebody claims');
unlike(sql($node, 'select * from outbox.status()'), qr/nobody claims/, 'which the status knows');
sql($node, q{select outbox.pause('outside')});
is_sql($node, q{select count(*) from outbox.metrics where unclaimed}, '0', 'one with a handler is not meant, nor one that is paused');
set_offset($node, 0);

$page = sql($node, q{select outbox.report(outbox.clock() - interval '10 minutes')});
unlike($page, qr/$canary/, 'no payload, header, key or message is in the report');
unlike($page, qr/<script|\bsrc=|\bhref=|url\(|<i>/i, 'no script, nothing from elsewhere, and names are text');
my $file = "$ENV{TMPDIR}/report.html";
append_to_file($file, $page);

# the servers of other versions stand in folders without a browser (test/tools/matrix); theirs is the same page
if (($ENV{OUTBOX_BROWSER} // '') eq 'no')
{
	is(() = $page =~ /<svg /g, 5, 'the page has five charts');
	$node->stop;
	done_testing();
	exit;
}

# a browser reads it: what it has made of the page comes back as a document
my $folder = PostgreSQL::Test::Utils::tempdir;
my ($browser) = grep { -x } qw(/usr/bin/chromium /usr/bin/google-chrome);
ok(defined $browser, 'a browser is there') or BAIL_OUT('install chromium');
my ($out, $err);
IPC::Run::run(
	[   'timeout', '60', $browser, qw(--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update --disable-sync
		--enable-logging=stderr --v=0 --dump-dom), "--user-data-dir=$folder", "file://$file"
	],
	'<', '/dev/null', '>', \$out, '2>', \$err);
is(() = $out =~ /<svg /g, 5, 'the browser has five charts');
is(() = $out =~ /<rect /g, 5 * 48, 'of 48 bars each');
like($out, qr{&lt;i&gt;name&lt;/i&gt; &amp; "more"}, 'a name with markup in it is shown as it is');
is(() = $out =~ m{<td>r\.x</td>}g, 10, 'the review list is there');
unlike($err, qr/CONSOLE|Uncaught|Failed to load/, 'no error in the page');
ok((() = $out =~ /height="(\d+\.\d)"/g) > 0 && grep({ $_ > 0 } $out =~ /height="(\d+\.\d)"/g) >= 4, 'bars have heights');
$node->stop;
done_testing();
