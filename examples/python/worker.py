"""Ships orders:  python3 worker.py NAME

Waits, claims events, handles each, and acknowledges it in the transaction that holds its effects, so that
each event has its effects once, whatever crashes. Start as many as you like. SIGTERM: gives back
what it holds, and ends. On any error of its own it ends too; let systemd or Kubernetes start it again.
"""

import contextlib
import os
import signal
import sys
import threading
from datetime import timedelta

import psycopg
from psycopg.rows import namedtuple_row

from carrier import Stopped, book
from database import transaction

LEASE = timedelta(seconds=3)  # short, so that one can watch it renewed
worker = sys.argv[1] if len(sys.argv) > 1 else f"python-{os.getpid()}"
stopping = False


def stop(*_):
    global stopping
    stopping = True


def connect():
    # autocommit: a transaction is open only inside of `transaction()`. Without it the first
    # statement would begin one, and outbox.wait() refuses to wait inside of a transaction.
    # Where: PGHOST, PGPORT, PGDATABASE, PGUSER, PGPASSWORD.
    return psycopg.connect(autocommit=True, row_factory=namedtuple_row)


def run():
    with connect() as connection, connect() as renewing:
        while not stopping:
            # The connection is idle while it waits. The short timeout is how soon we see a SIGTERM.
            ready = connection.execute(
                "call outbox.wait(array['shipping'], timeout => interval '2 seconds')"
            ).fetchone().ready
            if ready and not stopping:
                work_batch(connection, renewing, claim(connection))


def claim(connection):
    """A transaction of its own, committed at once: from now on the events are leased to us, and their attempt counts."""
    return connection.execute(
        "select * from outbox.claim('shipping', max_events => 10, lease_duration => %s, worker => %s)",
        [LEASE, worker],
    ).fetchall()


@contextlib.contextmanager
def renewed(connection, token):
    """While the block runs, a thread renews the lease, early enough to try again. It has a connection of its own."""
    done = threading.Event()

    def renew():
        while not done.wait(LEASE.total_seconds() / 3):
            try:
                connection.execute("select outbox.extend(%s, %s)", [token, LEASE])
            except psycopg.Error as error:  # no harm: if the lease is lost, the next ack says so
                print(f"not extended: {error.diag.message_primary}", flush=True)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def work_batch(connection, renewing, events):
    if not events:
        return  # another worker was quicker
    token = events[0].lease_token  # one for the whole batch
    waiting = set()  # keys of which an event has failed: their later events went back with it
    try:
        with renewed(renewing, token):
            for event in events:
                key = (event.tenant_id, event.event_key)
                if stopping:
                    break
                if key in waiting:
                    continue
                if not handle(connection, event) and event.event_key is not None:
                    waiting.add(key)
            if stopping:
                # What is not done goes back: no attempt is used up, and another worker has it at once.
                n = connection.execute("select outbox.release_all(%s)", [token]).fetchone()[0]
                print(f"released {n}", flush=True)
    except psycopg.Error as error:
        if error.sqlstate != "OB001":
            raise
        # Too slow: another worker has these events now, and nothing of ours was committed.
        print("lease lost", flush=True)


def ship(connection, event, booking):
    # Acknowledge first: from here to the commit nobody can take the lease over. False: it was acknowledged
    # before (we had asked, and the answer to our COMMIT got lost), so its effects are there.
    first = connection.execute(
        "select outbox.ack_one(%s, %s, message_id => %s)",
        [event.lease_token, event.event_id, booking],
    ).fetchone()[0]
    if first:
        connection.execute(
            "insert into shop.shipment (event_id, order_id, customer, booking, worker) values (%s, %s, %s, %s, %s)",
            [event.event_id, event.payload["orderId"], event.payload["customer"], booking, worker],
        )


def handle(connection, event):
    """Returns whether the event is done; False when it has failed, or when we are to stop."""
    try:
        # The slow part comes first, with no transaction open.
        booking = book(event.event_id, event.payload["item"], event.attempt, lambda: stopping)
        transaction(connection, lambda: ship(connection, event, booking))
        print(f"shipped {event.event_id}", flush=True)
        return True
    except Stopped:
        return False
    except Exception as error:
        if getattr(error, "sqlstate", None) == "OB001":
            raise
        # The code of the carrier, or an SQLSTATE (the subscription knows which of them are permanent), or what it
        # is. By it people find, and retry, what failed for the same reason.
        code = getattr(error, "code", None) or getattr(error, "sqlstate", None)
        if not isinstance(code, str):  # some have numbers, which are no codes here
            code = type(error).__name__
        status = connection.execute(
            "select outbox.fail(%s, %s, error_code => %s, permanent => %s)",
            [event.lease_token, event.event_id, code, getattr(error, "permanent", False)],
        ).fetchone()[0]
        print(f"failed {event.event_id}: {code} -> {status}", flush=True)
        return False


signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
run()
