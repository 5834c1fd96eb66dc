// publish.js - takes orders:  node publish.js CUSTOMER ITEM...
//
// The order, the stock and the event are written in one transaction: after the commit all of
// them are there, and if anything fails, none is. There is no moment in which
// an order is stored and its event is not, whatever crashes.
import { pool, transaction } from './database.js';

async function placeOrder(client, customer, item) {
  const { rows: [order] } = await client.query(
    'insert into shop.orders (customer, item) values ($1, $2) returning order_id',
    [customer, item]);

  // Arguments by name: those left out have defaults. Events with the same event_key are delivered in
  // order, one at a time: here the orders of one customer.
  // pg sends an object as JSON. (An array it would send as a PostgreSQL array: use JSON.stringify for one.)
  const { rows: [event] } = await client.query(
    `select outbox.publish('order.placed',
         payload => $1::jsonb,
         aggregate_type => 'order',
         aggregate_id => $2::text,
         event_key => $3::text) as id`,
    [{ orderId: order.order_id, customer, item }, order.order_id, `customer:${customer}`]);

  // Nothing left? The check constraint refuses it, and order and event are gone with it.
  await client.query('update shop.stock set available = available - 1 where item = $1', [item]);
  return { orderId: order.order_id, eventId: event.id };
}

const [customer, ...items] = process.argv.slice(2);
try {
  for (const item of items) {
    const placed = await transaction((client) => placeOrder(client, customer, item));
    console.log(`order ${placed.orderId}: event ${placed.eventId}`);
  }
} catch (error) {
  console.error(`no order: ${error.message}`);
  process.exitCode = 1;
} finally {
  await pool.end();
}
