"""Takes orders:  python3 publish.py CUSTOMER ITEM...

The order, the stock and the event are written in one transaction: after the commit all of
them are there, and if anything fails, none is. There is no moment in which an
order is stored and its event is not, whatever crashes.
"""

import sys

import psycopg
from psycopg.types.json import Jsonb

from database import transaction


def place_order(connection, customer, item):
    order_id = connection.execute(
        "insert into shop.orders (customer, item) values (%s, %s) returning order_id",
        [customer, item],
    ).fetchone()[0]

    # Arguments by name: those left out have defaults. Events with the same event_key are
    # delivered in order, one at a time: here the orders of one customer.
    event_id = connection.execute(
        """
        select outbox.publish('order.placed',
            payload => %s,
            aggregate_type => 'order',
            aggregate_id => %s,
            event_key => %s)
        """,
        [Jsonb({"orderId": order_id, "customer": customer, "item": item}), str(order_id), f"customer:{customer}"],
    ).fetchone()[0]

    # Nothing left? The check constraint refuses it, and order and event are gone with it.
    connection.execute("update shop.stock set available = available - 1 where item = %s", [item])
    return order_id, event_id


def main(customer, *items):
    # Where: PGHOST, PGPORT, PGDATABASE, PGUSER, PGPASSWORD.
    with psycopg.connect(autocommit=True) as connection:
        for item in items:
            try:
                order_id, event_id = transaction(connection, lambda: place_order(connection, customer, item))
            except psycopg.IntegrityError as error:
                sys.exit(f"no order: {error.diag.message_primary}")
            print(f"order {order_id}: event {event_id}")


main(*sys.argv[1:])
