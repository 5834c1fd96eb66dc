# ordering => 'none' counts at once, for what waits in the lanes too; what waits behind an event of its key
# goes on waiting for that one, and is never left behind. ordering => 'key' counts for what is routed afterwards, which
# waits until the lanes before are drained. With handlers and with external workers.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('main', "outbox.poll_interval = '100ms'\noutbox.workers = 2\n");
make_effects($node, 'effect', q{
	if e.payload ? 'bad' and not exists (select from mended) then raise division_by_zero; end if;});
sql($node, q{
	create table mended ();
	create table claimed (label text, name text, event_id uuid, token uuid, n integer generated always as identity);
	-- names of what is claimed, in order; kept under a label
	create function take(of text, as_label text, most integer = 100) returns text language plpgsql as $$
	begin
		insert into claimed (label, name, event_id, token) select as_label, c.payload ->> 'n', c.event_id, c.lease_token from outbox.claim(of, most) c;
		return (select coalesce(string_agg(name, ' ' order by n), '') from claimed where label = as_label);
	end $$;
	create function settle(of_label text) returns integer language sql as $$
		select coalesce(sum(outbox.ack(token, ids)), 0)::integer from (select token, array_agg(event_id) as ids from claimed where label = of_label group by token) c
	$$;
	-- in a transaction each
	create procedure publish(of text, key text, names text[]) language plpgsql as $$
	declare name text;
	begin
		foreach name in array names loop
			perform outbox.publish(of, jsonb_strip_nulls(jsonb_build_object('n', name, 'bad', case when name like 'bad%' then true end)), event_key => key);
			commit;
		end loop;
	end $$;
	create view generations as select subscription, count(distinct l.lane >= s.first_lane) as n, min(l.lane) as first from outbox.lane l join outbox.subscription s using (subscription_id) group by 1;
	create view waiting as select d.subscription, e.payload ->> 'n' as name, d.status from outbox.delivery d join outbox.event e using (event_id) where d.status <> 'COMPLETED';
});
sub routed
{
	my ($of) = @_;
	return comes_true($node, 20, q{select exists (select from outbox.lane_entry where event_id = (select event_id from outbox.event order by event_id desc limit 1))}, "$of: all is routed");
}
sub waits
{
	my ($of, $expected, $name) = @_;
	# another worker may be at one of them yet
	return comes_true($node, 20, qq{select coalesce(string_agg(name || ' ' || status, ', ' order by name), '') = '$expected' from waiting where subscription = '$of'}, $name)
		|| diag(sql($node, qq{select string_agg(name || ' ' || status, ', ' order by name) from waiting where subscription = '$of'}));
}

# from none to key, handlers: failures of before hold nobody up, one of afterwards holds its key
sql($node, q{select outbox.subscribe('handled', '{h}', 'public.effect_handler', ordering => 'none', lanes => 8), outbox.pause('handled')});
sql($node, sprintf q{call publish('h', 'k', '{%s}')}, join ',', map { ($_ % 2 ? 'bad' : 'old') . $_ } 1 .. 40);
routed('handled');
cmp_ok(sql($node, q{select count(distinct lane) from outbox.lane_entry}), '>', 3, 'a key without order is in many lanes');
sql($node, q{select outbox.alter_subscription('handled', ordering => 'key')});
sql($node, q{call publish('h', 'k', '{new1,new2,bad_new,new3,new4}')});
routed('handled');
sql($node, q{select outbox.resume('handled')});
comes_true($node, 30, q{select count(*) = 22 from effect}, 'what can be done is done');
comes_true($node, 30, q{select n = 1 and first = 8 from generations where subscription = 'handled'}, 'the lanes before are gone');
comes_true($node, 30, q{select count(*) filter (where status = 'REVIEW_REQUIRED') = 21 and string_agg(name, ' ' order by name) filter (where status = 'BLOCKED') = 'new3 new4' from waiting where subscription = 'handled'},
	'the one that fails holds those after it');
is_sql($node, q{select string_agg(payload ->> 'n', ' ' order by n) from effect where payload ->> 'n' like 'new%'}, 'new1 new2', 'new ones in order, up to that one');
sql($node, q{insert into mended default values; select count(outbox.retry(subscription, event_id)) from outbox.review_required});
drain($node, 30, 'all the rest, once it works');
is_sql($node, q{select string_agg(payload ->> 'n', ' ' order by n) from effect where payload ->> 'n' like '%new%'}, 'new1 new2 bad_new new3 new4', 'in order');
is(reconcile($node, 'handled', 'effect'), '', 'once each');
sql($node, q{truncate mended, effect});

# from key to none, handlers: at once, but for what waits already
sql($node, q{select outbox.subscribe('freed', '{f}', 'public.effect_handler', lanes => 4)});
sql($node, q{call publish('f', 'k', '{bad,a1,a2}')});
comes_true($node, 20, q{select count(*) = 2 from waiting where subscription = 'freed' and status = 'BLOCKED'}, 'two wait behind one');
sql($node, q{select outbox.pause('freed')});
sql($node, q{call publish('f', 'k', '{b1,bad_b,b2}')});
routed('freed');
sql($node, q{select outbox.alter_subscription('freed', ordering => 'none')});
sql($node, q{call publish('f', 'k', '{c1,c2}')});
routed('freed');
sql($node, q{select outbox.resume('freed')});
comes_true($node, 30, q{select count(*) = 4 from effect}, 'those in the lanes do not wait');
is_sql($node, q{select string_agg(payload ->> 'n', ' ' order by payload ->> 'n') from effect}, 'b1 b2 c1 c2', 'old ones and new ones');
waits('freed', 'a1 BLOCKED, a2 BLOCKED, bad REVIEW_REQUIRED, bad_b REVIEW_REQUIRED', 'those that waited wait on');
comes_true($node, 30, q{select n = 1 and first = 4 from generations where subscription = 'freed'}, 'the lanes before are gone');
sql($node, q{select outbox.discard('freed', event_id, 'a test') from outbox.review_required where subscription = 'freed'});
comes_true($node, 30, q{select count(*) = 6 from effect}, 'until it is settled');
waits('freed', 'bad DISCARDED, bad_b DISCARDED', 'and nothing is left');

# from none to key, external workers: what is claimed out of order ends before the order begins
sql($node, q{select outbox.subscribe('claimed', '{c}', ordering => 'none', lanes => 2)});
sql($node, q{call publish('c', 'k', '{o1,o2,o3}')});
routed('claimed');
is(length sql($node, q{select take('claimed', 'o-first', 1)}), 2, 'one is claimed');
sql($node, q{select outbox.alter_subscription('claimed', ordering => 'key')});
sql($node, q{call publish('c', 'k', '{n1,n2,n3}')});
routed('claimed');
is(length sql($node, q{select take('claimed', 'o-second', 1)}), 2, 'another one of the key meanwhile, of before');
is(length sql($node, q{select take('claimed', 'o-third')}), 2, 'and another one; none of afterwards');
is(sql($node, q{select take('claimed', 'early')}), '', 'nothing more while they are held');
is(sql($node, q{select settle('o-first') + settle('o-second')}), '2', 'two are settled');
is(sql($node, q{select take('claimed', 'early')}), '', 'nothing while one of before is held');
is(sql($node, q{select outbox.fail(token, event_id, 'later', retry_after => '1 hour') from claimed where label = 'o-third'}), 'RETRY', 'which fails, to be retried in an hour');
comes_true($node, 20, q{select n = 1 and first = 2 from generations where subscription = 'claimed'}, 'the lanes before are gone');
is(sql($node, q{select take('claimed', 'n-first', 1)}), 'n1', 'then the first of afterwards, whose key does not wait for those of before');
is(sql($node, q{select take('claimed', 'early')}), '', 'and no other one of the key');
is(sql($node, q{select outbox.fail(token, event_id, 'later', retry_after => '1 hour') from claimed where label = 'n-first'}), 'RETRY', 'it fails');
is(sql($node, q{select take('claimed', 'early')}), '', 'and holds its key');
set_offset($node, 3700);
comes_true($node, 20, q{select outbox.clock() > clock_timestamp() + interval '1 hour'}, 'an hour later');
like(sql($node, q{select take('claimed', 'late')}), qr/^(o\d n1|n1|n1 o\d|o\d)$/, 'both are due');
sql($node, q{select settle('late'); select take('claimed', 'late2'); select settle('late2'); select take('claimed', 'late3'); select settle('late3')});
is_sql($node, q{select string_agg(name, ' ' order by n) from claimed where label like 'late%' and name like 'n%'}, 'n1 n2 n3', 'in order');
waits('claimed', '', 'and nothing is left');

# from key to none, external workers
sql($node, q{select outbox.subscribe('let_go', '{l}', lanes => 2)});
sql($node, q{call publish('l', 'k', '{a1,a2,a3}')});
routed('let_go');
is(sql($node, q{select take('let_go', 'a', 2)}), 'a1 a2', 'two are claimed');
is(sql($node, q{select outbox.fail(token, event_id, 'later', retry_after => '1 hour') from claimed where label = 'a' and name = 'a1'}), 'RETRY', 'the first fails');
sql($node, q{call publish('l', 'k', '{b1,b2}')});
routed('let_go');
is(sql($node, q{select take('let_go', 'early')}), '', 'the others wait');
waits('let_go', 'a1 RETRY, a2 BLOCKED, a3 BLOCKED, b1 BLOCKED, b2 BLOCKED', 'behind it');
sql($node, q{call publish('l', 'k', '{c1,c2}')});
routed('let_go');
sql($node, q{select outbox.alter_subscription('let_go', ordering => 'none')});
sql($node, q{call publish('l', 'k', '{d1}')});
routed('let_go');
is(sql($node, q{select take('let_go', 'c', 1)}), 'c1', 'without order: the first that is in the lane');
is(sql($node, q{select take('let_go', 'c2', 1)}), 'c2', 'and the next meanwhile');
is(sql($node, q{select settle('c') + settle('c2')}), '2', 'settled');
comes_true($node, 20, q{select n = 1 and first = 2 from generations where subscription = 'let_go'}, 'the lanes before are gone');
is(sql($node, q{select take('let_go', 'd')}), 'd1', 'the new one');
is(sql($node, q{select settle('d')}), '1', 'settled');
waits('let_go', 'a1 RETRY, a2 BLOCKED, a3 BLOCKED, b1 BLOCKED, b2 BLOCKED', 'those that waited wait on');
set_offset($node, 8000);
comes_true($node, 20, q{select next_attempt_at <= outbox.clock() from outbox.delivery where subscription = 'let_go' and status = 'RETRY'}, 'the one that they wait for is due');
is(sql($node, q{select take('let_go', 'again')}), 'a1', 'and claimed');
is(sql($node, q{select settle('again')}), '1', 'and settled');
like(sql($node, q{call outbox.wait('{let_go}', '20 s')}), qr/^t$/, 'there is something to claim');
is(sql($node, q{select take('let_go', 'rest')}), 'a2 a3 b1 b2', 'what waited for it');
is(sql($node, q{select settle('rest')}), '4', 'settled');
waits('let_go', '', 'and nothing is left');

$node->stop;
done_testing();
