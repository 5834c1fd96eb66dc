// worker.js - ships orders:  node worker.js NAME
//
// Waits, claims events, handles each, and acknowledges it in the transaction that holds its effects, so that each
// event has its effects once, whatever crashes. Start as many as you like. SIGTERM: gives back what it
// holds, and ends. On any error of its own it ends too; let systemd or Kubernetes start it again.
import pg from 'pg';
import { pool, transaction } from './database.js';
import { book } from './carrier.js';

const worker = process.argv[2] ?? `node-${process.pid}`;
const leaseSeconds = 3; // short, so that one can watch it renewed

const stop = new AbortController();
process.on('SIGTERM', () => stop.abort());
process.on('SIGINT', () => stop.abort());

// Waiting takes a connection of its own, outside of any transaction; not one from a pool in transaction mode.
// The connection is idle while it waits. The short timeout is how soon we see a SIGTERM.
async function run() {
  const waiter = new pg.Client();
  await waiter.connect();
  while (!stop.signal.aborted) {
    const { rows: [{ ready }] } = await waiter.query(
      "call outbox.wait(array['shipping'], timeout => interval '2 seconds')");
    if (ready && !stop.signal.aborted) await workBatch(await claim());
  }
  await waiter.end();
}

// A transaction of its own, committed at once: from now on the events are leased to us, and their attempt counts.
async function claim() {
  const { rows } = await pool.query(
    `select * from outbox.claim('shipping',
         max_events => 10,
         lease_duration => make_interval(secs => $1),
         worker => $2)`,
    [leaseSeconds, worker]);
  return rows;
}

async function workBatch(events) {
  if (events.length === 0) return; // another worker was quicker
  const token = events[0].lease_token; // one for the whole batch

  // While we work, the lease is renewed, early enough to try again. An error here does no harm: if the lease
  // is lost, the next ack says so.
  const renewal = setInterval(() => {
    pool.query('select outbox.extend($1, make_interval(secs => $2))', [token, leaseSeconds])
      .catch((error) => console.log(`not extended: ${error.message}`));
  }, leaseSeconds * 1000 / 3);

  const waiting = new Set(); // keys of which an event has failed: their later events went back with it
  const key = (event) => event.event_key && JSON.stringify([event.tenant_id, event.event_key]);
  try {
    for (const event of events) {
      if (stop.signal.aborted) break;
      if (waiting.has(key(event))) continue;
      if (!await handle(event) && event.event_key) waiting.add(key(event));
    }
    if (stop.signal.aborted) {
      // What is not done goes back: no attempt is used up, and another worker has it at once.
      const { rows: [{ n }] } = await pool.query('select outbox.release_all($1) as n', [token]);
      console.log(`released ${n}`);
    }
  } catch (error) {
    if (error.code !== 'OB001') throw error;
    console.log('lease lost'); // too slow: another worker has these events now, and nothing of ours was committed
  } finally {
    clearInterval(renewal);
  }
}

// Returns whether the event is done; false when it has failed, or when we are to stop.
async function handle(event) {
  try {
    const { orderId, customer, item } = event.payload;
    // The slow part comes first, with no transaction open.
    const booking = await book(event.event_id, item, event.attempt, stop.signal);
    await transaction(async (client) => {
      // Acknowledge first: from here to the commit nobody can take the lease over. False: it was acknowledged
      // before (we had asked, and the answer to our COMMIT got lost), so its effects are there.
      const { rows: [{ first }] } = await client.query(
        'select outbox.ack_one($1, $2, message_id => $3) as first',
        [event.lease_token, event.event_id, booking]);
      if (!first) return;
      await client.query(
        'insert into shop.shipment (event_id, order_id, customer, booking, worker) values ($1, $2, $3, $4, $5)',
        [event.event_id, orderId, customer, booking, worker]);
    });
    console.log(`shipped ${event.event_id}`);
    return true;
  } catch (error) {
    if (error.code === 'OB001') throw error;
    if (stop.signal.aborted) return false;
    // The code of the carrier, or an SQLSTATE (the subscription knows which of them are permanent), or what it
    // is. By it people find, and retry, what failed for the same reason.
    const code = typeof error.code === 'string' ? error.code : error.name; // some have numbers, which are no codes here
    const { rows: [{ status }] } = await pool.query(
      'select outbox.fail($1, $2, error_code => $3, permanent => $4) as status',
      [event.lease_token, event.event_id, code, error.permanent ?? false]);
    console.log(`failed ${event.event_id}: ${code} -> ${status}`);
    return false;
  }
}

await run();
await pool.end();
