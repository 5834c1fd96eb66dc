-- What must agree in the end: the orders, the events, what the subscription says of them, and what was shipped.
-- One row for each promise that is not kept; no row when the books balance.

select promise
from (
    values
        ('every order has its event, and every event its order', not exists (
            select from shop.orders as o
            full join outbox.event as e on e.event_type = 'order.placed' and e.payload ->> 'orderId' = o.order_id::text
            where o.order_id is null or e.event_id is null)),
        ('what was sold left the stock', (
            select sum(case item when 'unicorn' then 0 else 100 end - available) from shop.stock) = (select count(*) from shop.orders)),
        ('every event is completed or was given up by a person', not exists (
            select from outbox.event as e
            where not exists (
                select from outbox.delivery as d
                where d.event_id = e.event_id and d.subscription = 'shipping' and d.status in ('COMPLETED', 'DISCARDED')))),
        ('what is completed was shipped, and what was shipped is completed', not exists (
            select from (select event_id from outbox.delivery where subscription = 'shipping' and status = 'COMPLETED') as d
            full join shop.shipment as s using (event_id)
            where d.event_id is null or s.event_id is null)),
        ('nothing was shipped twice', not exists (
            select from shop.shipment group by event_id having count(*) > 1)),
        ('a receipt keeps the booking of the carrier', not exists (
            select from shop.shipment as s join outbox.delivery as d using (event_id)
            where d.subscription = 'shipping' and d.message_id is distinct from s.booking)),
        ('the orders of a customer were shipped as they were placed', not exists (
            select from (select order_id, lag(order_id) over (partition by customer order by shipment_id) as before from shop.shipment) as s
            where order_id < before))
) as book (promise, kept)
where kept is not true;
