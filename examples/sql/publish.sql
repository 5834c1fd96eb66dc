-- Takes an order:  psql -v ON_ERROR_STOP=1 -v customer=anna -v item=book -f publish.sql
--
-- The order, the stock and the event are written in one transaction: after the commit all of
-- them are there, and if anything fails, none is.

begin;

insert into shop.orders (customer, item)
values (:'customer', :'item')
returning order_id \gset

-- Arguments by name: those left out have defaults. Events with the same event_key are delivered
-- in order, one at a time: here the orders of one customer.
select outbox.publish('order.placed',
    payload => jsonb_build_object('orderId', :order_id, 'customer', :'customer', 'item', :'item'),
    aggregate_type => 'order',
    aggregate_id => :'order_id',
    event_key => 'customer:' || :'customer') as event_id \gset

-- Nothing left? The check constraint refuses it, and order and event are gone with it.
update shop.stock set available = available - 1 where item = :'item';

commit;

\echo order :order_id: event :event_id
