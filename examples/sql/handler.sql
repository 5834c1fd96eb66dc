-- A handler in the database: the simplest receiver, and nothing outside needs to run. The server calls it for each
-- event, as the role named by run_as, and commits what it writes together with the receipt: once.
--
-- Run by the owner of the database:  psql -f handler.sql

create table shop.confirmation (
    event_id uuid not null,
    customer text not null,
    message text not null
);
grant insert on shop.confirmation to shop_worker;

create function shop.confirm_order(event outbox.event) returns void
begin atomic
    insert into shop.confirmation
    values (event.event_id, event.payload ->> 'customer', 'We have your order of a ' || (event.payload ->> 'item'));
end;

select outbox.subscribe('confirmation', array['order.placed'],
    handler => 'shop.confirm_order',
    run_as => 'shop_worker');
