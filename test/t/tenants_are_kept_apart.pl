# Handlers run with the tenant of their event, one call for one tenant, and leave nothing of it behind;
# policies of the application's tables hold in them. One worker, so that all meet in one process.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use OutboxEngine;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_engine('tenants', "outbox.workers = 1\noutbox.poll_interval = 50ms\noutbox.tenant_setting = 'app.tenant_id'\n");

sql($node, q{
	create role shop;
	create schema shop authorization shop;
	select outbox.grant_publisher('shop', '{order.#}');
	create table public.seen (n integer generated always as identity, who text, event_tenant text, setting text, context text, payload jsonb);
	grant insert, select on public.seen to shop;
	-- a table of the application, kept apart by a policy
	create table public.bill (tenant text not null, order_id integer);
	alter table public.bill enable row level security;
	create policy own on public.bill using (tenant = current_setting('app.tenant_id', true)) with check (tenant = current_setting('app.tenant_id', true));
	grant insert, select on public.bill to shop;

	set role shop;
	create function shop.each(e outbox.event) returns void language plpgsql as $$
	begin
		insert into public.seen (who, event_tenant, setting, context, payload) values ('each', e.tenant_id, current_setting('app.tenant_id'), current_setting('outbox.tenant_id'), e.payload);
		if e.payload ? 'bill' then
			insert into public.bill values (e.tenant_id, (e.payload ->> 'bill')::integer);
			perform outbox.publish('order.billed', jsonb_build_object('seen', (select count(*) from public.bill)));
		end if;
		if e.payload ? 'strays' then
			perform set_config('app.tenant_id', 'b', false);
		end if;
		if e.payload ? 'for b' then
			perform outbox.publish('order.stray', tenant_id => 'b');
		end if;
		if e.payload ? 'becomes b' then
			perform set_config('app.tenant_id', 'b', true);
			perform outbox.publish('order.stray');
		end if;
		if e.payload ? 'bills b' then
			insert into public.bill values ('b', 0);
		end if;
	end $$;
	create function shop.all(e outbox.event[]) returns void language plpgsql as $$
	begin
		insert into public.seen (who, event_tenant, setting) select 'all', string_agg(distinct coalesce(x.tenant_id, 'none'), '+') || ' ' || count(*), current_setting('app.tenant_id') from unnest(e) x;
	end $$;
	reset role;
	select outbox.subscribe('each', '{order.placed}', handler => 'shop.each', run_as => 'shop', lanes => 1, max_attempts => 1);
	select outbox.subscribe('all', '{order.many}', handler => 'shop.all', run_as => 'shop', lanes => 1);
});

# ---------------------------------------------------------------- one event, one tenant

sql($node, q{select outbox.publish('order.placed', tenant_id => t, payload => jsonb_build_object('n', n)) from (values (1, 'a'), (2, 'b'), (3, null), (4, 'a')) v (n, t)});
drain($node, 30, 'events of two tenants and of none');
is_sql($node, q{select string_agg(coalesce(event_tenant, '-') || ':' || setting || ':' || context, ' ' order by (payload ->> 'n')::integer) from seen where payload ? 'n'}, 'a:a:a b:b:b -:: a:a:a', 'each call has its event\'s tenant');

# policies hold, and what is published goes to the same tenant
sql($node, q{select outbox.publish('order.placed', tenant_id => t, payload => jsonb_build_object('bill', n)) from (values (1, 'a'), (2, 'b'), (3, 'a')) v (n, t)});
drain($node, 30, 'bills');
is_sql($node, q{select string_agg(tenant_id || (payload ->> 'seen'), ' ' order by event_id) from outbox.event where event_type = 'order.billed'}, 'a1 b1 a2', 'handlers see and publish what is their tenant\'s');

# what a handler does to the setting is gone with its call
sql($node, q{select outbox.publish('order.placed', tenant_id => 'a', payload => '{"strays": true}', event_key => 'k'), outbox.publish('order.placed', tenant_id => 'a', payload => '{"after": 1}', event_key => 'k');
	select outbox.publish('order.placed', payload => '{"after": 2}')});
drain($node, 30, 'a handler that strays');
is_sql($node, q{select string_agg(coalesce(event_tenant, '-') || ':' || setting, ' ' order by payload ->> 'after') from seen where payload ? 'after'}, 'a:a -:', 'the setting is the next event\'s');

# it cannot publish for another tenant, whether it says so or changes the setting, nor write rows of one; nor for nobody
for my $way ('for b', 'becomes b', 'bills b')
{
	sql($node, qq{select outbox.publish('order.placed', tenant_id => 'a', payload => '{"$way": true}')});
	drain($node, 30, $way);
	is_sql($node, qq{select string_agg(r.error_code, ' ') from outbox.review_required r join outbox.event e using (event_id) where e.payload ? '$way'}, $way eq 'bills b' ? '42501' : 'OB002', "$way: refused");
}
sql($node, q{select outbox.publish('order.placed', payload => '{"bill": 4}')});
drain($node, 30, 'an event of no tenant');
is_sql($node, q{select count(*) from bill where order_id = 4}, '0', 'what is of no tenant passes no policy');

# ---------------------------------------------------------------- a batch handler

sql($node, q{select outbox.publish('order.many', tenant_id => t, event_key => 'k' || n) from (values (1, 'a'), (2, 'a'), (3, 'b'), (4, null), (5, null), (6, 'a'), (7, 'b'), (8, 'b'), (9, 'b')) v (n, t)});
drain($node, 30, 'a batch of several tenants');
is_sql($node, q{select string_agg(event_tenant || ':' || setting, ', ' order by n) from seen where who = 'all'}, 'a 2:a, b 1:b, none 2:, a 1:a, b 3:b', 'one call has events of one tenant, in order');
is_sql($node, q{select count(*) from outbox.delivery where subscription = 'all' and status = 'COMPLETED'}, '9', 'all of them are done once');
# also over the chunks in which a batch is read
sql($node, q{truncate seen; select outbox.publish('order.many', tenant_id => case when n <= 300 then 'a' else 'b' end, event_key => 'k' || n) from generate_series(1, 600) n});
drain($node, 60, 'a large batch');
is_sql($node, q{select string_agg(distinct split_part(event_tenant, ' ', 1) || setting, ' ') || ' ' || sum(split_part(event_tenant, ' ', 2)::integer) from seen}, 'aa bb 600', 'all of a large one');

# ---------------------------------------------------------------- the session's own setting is not the worker's

sql($node, q{alter database postgres set app.tenant_id = 'z'});
sql($node, q{select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'outbox worker'});
sql($node, q{set app.tenant_id = ''; truncate seen; select outbox.publish('order.placed', payload => '{"z": 1}'), outbox.publish('order.placed', tenant_id => 'a', payload => '{"z": 2}')});
comes_true($node, 30, 'select count(*) = 2 from seen', 'delivered in a database that has a tenant itself');
is_sql($node, q{select string_agg(coalesce(event_tenant, '-') || ':' || setting, ' ' order by payload ->> 'z') from seen}, '-: a:a', 'a worker has the tenant of its event, or none');

done_testing();
