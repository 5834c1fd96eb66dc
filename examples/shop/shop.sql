-- A shop: whoever takes an order publishes `order.placed` in the same transaction; whoever
-- ships it works the subscription 'shipping'. Run by the owner of the database.

create extension if not exists outbox;
create schema shop;

-- What the application writes.
create table shop.stock (
    item text primary key,
    available integer not null check (available >= 0)
);
insert into shop.stock
values ('book', 100), ('lamp', 100), ('piano', 100), ('vase', 100), ('dragon', 100), ('unicorn', 0);

create table shop.orders (
    order_id bigint generated always as identity primary key,
    customer text not null,
    item text not null references shop.stock
);

-- What the worker writes: the effect of an event. No unique key on the event, so that an
-- event that were handled twice would show; outbox.ack_one() is what keeps it from that.
create table shop.shipment (
    shipment_id bigint generated always as identity primary key,
    event_id uuid not null,
    order_id bigint not null references shop.orders,
    customer text not null,
    booking text not null,
    worker text not null
);

-- No handler: the events wait until a worker outside of the database claims them.
-- The times are short, so that one can watch; the defaults (leases of 2 minutes, first retry after 5 seconds)
-- suit most applications better.
select outbox.subscribe('shipping', array['order.placed'],
    lease_duration => '3 seconds',
    max_attempts => 5,
    backoff_base => '500 milliseconds',
    backoff_factor => 2);

-- Rights on the tables of the shop, ...
grant usage on schema shop to shop_app, shop_worker;
grant select, update on shop.stock to shop_app;
grant select, insert on shop.orders to shop_app;
grant insert on shop.shipment to shop_worker;

-- ... and on the outbox: one publishes what has to do with orders, the other works one subscription.
select outbox.grant_publisher('shop_app', array['order.*']);
select outbox.grant_worker('shop_worker', 'shipping');
