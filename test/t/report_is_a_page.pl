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

my @captions = ('Events published', 'Deliveries completed', 'From publish to done, median', 'From publish to done, 95th percentile', 'Deliveries that wait');

# The charts of a page, by caption: the svg, its bars and its other texts.
sub charts_of
{
	my ($html) = @_;
	my %charts;
	while ($html =~ m{<figure><figcaption>([^<]*)</figcaption><svg ([^>]*)>(.*?)</svg></figure>}gs)
	{
		my ($caption, $attributes, $content) = ($1, $2, $3);
		my @bars = map { my %bar = /(x|y|width|height)="([^"]*)"/g; @bar{qw(at value unit)} = m{<title>(.*): (\S+) ([^<]*)</title>}; \%bar } $content =~ m{<rect .*?</rect>}gs;
		my %labels;
		$labels{"$1,$2"} = $3 while $content =~ m{<text x="(\d+)" y="(\d+)"[^>]*>([^<]*)</text>}g;
		$charts{$caption} = { attributes => $attributes, content => $content, bars => \@bars, labels => \%labels };
	}
	return \%charts;
}

# Each chart by itself: it is there, named, with the time it is of below it; and its bars fit their values and the frame, or it says that there are none.
sub charts_are_whole
{
	my ($html, $from, $to, $name) = @_;
	my $charts = charts_of($html);
	is_deeply([ sort keys %$charts ], [ sort @captions ], "$name: the charts are there");
	for my $caption (@captions)
	{
		my ($chart, @faults) = ($charts->{$caption});
		my @bars = @{ $chart->{bars} };
		my ($top) = sort { $b <=> $a } map { $_->{value} } @bars;
		push @faults, 'a number that is none' if $chart->{content} =~ /NaN|Inf|null|undefined|""/i;
		push @faults, 'no name' if $chart->{attributes} !~ /viewBox="0 0 720 160" role="img" aria-label="\Q$caption\E"/;
		push @faults, 'begin ' . ($chart->{labels}{'0,155'} // '') if ($chart->{labels}{'0,155'} // '') !~ $from;
		push @faults, 'end ' . ($chart->{labels}{'720,155'} // '') if ($chart->{labels}{'720,155'} // '') !~ $to;
		if (!@bars)
		{
			push @faults, 'not a word' if ($chart->{labels}{'360,85'} // '') ne 'nothing in this time';
		}
		else
		{
			push @faults, scalar(@bars) . ' bars' if @bars != 48;
			push @faults, 'no value at the axis' if ($chart->{labels}{'4,12'} // '') !~ /^[\d.]+ \Q$bars[0]{unit}\E$/;
			push @faults, 'nothing reaches the top' if !grep { $_->{height} == 120 } @bars;
			for my $n (0 .. $#bars)
			{
				my $bar = $bars[$n];
				push @faults, "bar $n out of its place" if abs($bar->{x} - 15 * $n) > 0.1 || $bar->{width} <= 0 || $bar->{width} > 15 || abs($bar->{y} + $bar->{height} - 140) > 0.11;
				push @faults, "bar $n of height $bar->{height} for $bar->{value} of $top" if abs($bar->{height} - 120 * $bar->{value} / $top) > 120 * 0.01 / $top + 0.1;
				push @faults, "bar $n is of no time" if $bar->{at} !~ $from;
			}
		}
		is(join(', ', @faults), '', "$name: $caption");
	}
	return $charts;
}
sub sum { my $sum = 0; $sum += $_ for @_; return $sum }
sub values_of { my ($charts, $n) = @_; return map { $_->{value} } @{ $charts->{ $captions[$n] }{bars} } }

my $minute = qr/^\d\d:\d\d:\d\d$/;
my $day = qr/^\d{4}-\d\d-\d\d \d\d:\d\d$/;
my $page = sql($node, 'select outbox.report()');
like($page, qr{^<!doctype html>.*</html>$}s, 'a database where nothing has happened has a report');
is(scalar(map { @{ $_->{bars} } } values %{ charts_are_whole($page, $day, $day, 'empty') }), 0, 'without bars');
like(sql($node, 'select * from outbox.status()'), qr/There is no subscription yet/, 'and a status');

sql($node, q{select outbox.subscribe('<i>name</i> & "more"', '{r.#}', handler => 'public.effect_handler')});
sql($node, q{select outbox.subscribe('outside', '{r.#}')});
sql($node, qq{select count(outbox.publish('r.x', jsonb_build_object('do', case when n % 20 = 0 then 'fail' end, '$canary', '$canary'), headers => '{"h": "$canary"}', event_key => '$canary' || n))
	from generate_series(1, 200) n});
sql($node, q{select outbox.publish('nobody.wants')});
drain($node, 60, 'all is settled');

my $unclaimed = q{select unclaimed from outbox.metrics where subscription = 'outside'};
is_sql($node, $unclaimed, 'f', 'what has waited for a moment only may be claimed yet');
comes_true($node, 30, q{select workers_running = 2 from outbox.server_metrics}, 'all workers are there');
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
comes_true($node, 30, $no_workers, 'none is wanted: the status says so');
$node->append_conf('postgresql.conf', "outbox.workers = 2\n");
$node->reload;
comes_true($node, 30, q{select workers_running = 2 from outbox.server_metrics}, 'two are wanted');

# a template is served by nobody
my @template = (q{select string_agg(line, ' ') ~ '1\. This database is a template.*alter database postgres is_template false;' from outbox.status() as line},
	q{select string_agg(line, ' ') ~ 'template|max_worker_processes' from outbox.status() as line});
sql($node, 'alter database postgres is_template true');
comes_true($node, 30, q{select not router_running from outbox.server_metrics}, 'a template is not served');
is_sql($node, $template[0], 't', 'which the status says');
unlike(sql($node, 'select * from outbox.status()'), qr/max_worker_processes/, 'and nothing of free slots');
sql($node, 'alter database postgres is_template false');
comes_true($node, 30, q{select workers_running = 2 and router_running from outbox.server_metrics}, 'no template is');
is_sql($node, $template[1], 'f', 'and the status has nothing more to say');

# whose workers outside do not run
sql($node, q{select outbox.resume('outside')});
set_offset($node, 61);
comes_true($node, 30, $unclaimed, 'after a minute nobody claims it');
my $nobody = qr/Waiting for "outside", which nobody claims: 200, the oldest since \d+ min\. Start its workers, .*outbox\.unsubscribe\('outside', force => true\)/;
like(sql($node, 'select * from outbox.status()'), $nobody, 'and the status says so');
sql($node, q{select count(*) from outbox.claim('outside')});
is_sql($node, $unclaimed, 'f', 'somebody claims');
unlike(sql($node, 'select * from outbox.status()'), qr/nobody claims/, 'which the status knows');
sql($node, q{select outbox.pause('outside')});
is_sql($node, q{select count(*) from outbox.metrics where unclaimed}, '0', 'one with a handler is not meant, nor one that is paused');

# each chart against what has happened
$page = sql($node, q{select outbox.report(outbox.clock() - interval '10 minutes')});
my $charts = charts_are_whole($page, $minute, $minute, 'ten minutes');
my $seconds = 600 / 48;
ok(abs($seconds * sum(values_of($charts, 0)) - sql($node, 'select count(*) from outbox.event')) < 1, 'as many were published') or diag(join ' ', values_of($charts, 0));
ok(abs($seconds * sum(values_of($charts, 1)) - sql($node, q{select count(*) from outbox.delivery where status = 'COMPLETED'})) < 1, 'and completed') or diag(join ' ', values_of($charts, 1));
my @median = values_of($charts, 2);
my @p95 = values_of($charts, 3);
is(scalar(grep { $median[$_] > $p95[$_] } 0 .. 47), 0, 'the median is never above the 95th percentile');
cmp_ok(sum(@median), '>', 0, 'and is one');
is((values_of($charts, 4))[$_], $_ ? 190 : 0, 'what waits, ' . ($_ ? 'at the end' : 'at the begin')) for 0, 47;
# short, long, and beyond the log
my %unit;
for ([ '1 minute', $minute ], [ '60 minutes', $minute ], [ '3 hours', $day ], [ '30 days', $day ], [ '40 years', $day ])
{
	my $other = charts_are_whole(sql($node, "select outbox.report(outbox.clock() - interval '$_->[0]')"), $_->[1], $_->[1], $_->[0]);
	$unit{ $_->[0] } = $other->{ $captions[0] }{bars}[0]{unit} // '';
}
is_deeply([ @unit{ '60 minutes', '3 hours', '30 days', '40 years' } ], [ 'a second', 'a minute', 'an hour', 'a day' ], 'rates are in a unit that makes them readable') or diag(join ', ', %unit);
set_offset($node, 0);
unlike($page, qr/$canary/, 'no payload, header, key or message is in the report');
unlike($page, qr/<script|\bsrc=|\bhref=|url\(|<i>/i, 'no script, nothing from elsewhere, and names are text');
my $file = "$ENV{TMPDIR}/report.html";
append_to_file($file, $page);

# the servers of other versions stand in folders without a browser (test/tools/matrix); theirs is the same page
if (($ENV{OUTBOX_BROWSER} // '') eq 'no')
{
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
charts_are_whole($out, $minute, $minute, 'in the browser');
like($out, qr{&lt;i&gt;name&lt;/i&gt; &amp; "more"}, 'a name with markup in it is shown as it is');
is(() = $out =~ m{<td class="w">r\.x</td>}g, 10, 'the review list is there');
unlike($err, qr/CONSOLE|Uncaught|Failed to load/, 'no error in the page');
is_sql($node, q{select count(outbox.subscribe(repeat('n', n) || ' ' || n, '{s.#}')) from generate_series(1, 60, 2) n}, '30', 'many subscriptions, with names of all lengths');
my @lines = split /\n/, sql($node, 'select * from outbox.status()');
my ($header) = grep { /^subscription +backlog/ } @lines;
my @rows = grep { /^(?:n+ \d+|outside|<i>)/ } @lines;
is(scalar(@rows), 32, 'each has a line');
is(scalar(grep { substr($_, index($header, 'state')) !~ /^(?:works|claimed by workers outside|paused|catching up)$/ || substr($_, index($header, 'review'), 8) !~ /^ *\d+ +$/ } @rows), 0, 'in columns') or diag(join "\n", @lines);
$node->stop;
done_testing();
