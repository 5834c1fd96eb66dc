// carrier.js - stands for the other system that the worker talks to, with its moods: a piano takes four
// seconds, a vase times out twice, and dragons are not carried.
import { setTimeout as sleep } from 'node:timers/promises';

export class CarrierError extends Error {
  constructor(code, permanent) {
    super(code);
    this.code = code; // letters, digits and _ . : - , so that outbox.fail() takes it
    this.permanent = permanent; // would trying again help?
  }
}

// Returns the number of the booking. The carrier may be asked twice for one event (we may crash after the call and before
// our commit), so it is given the event's id, by which it can tell: the same id, the same booking.
export async function book(eventId, item, attempt, signal) {
  if (item === 'piano') await sleep(4000, undefined, { signal });
  if (item === 'vase' && attempt <= 2) throw new CarrierError('carrier_timeout', false);
  if (item === 'dragon') throw new CarrierError('not_carried', true);
  return `B-${eventId}`;
}
