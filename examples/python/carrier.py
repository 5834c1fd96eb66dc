"""Stands for the other system that the worker talks to, with its moods: a piano takes four seconds,
a vase times out twice, and dragons are not carried."""

import time


class CarrierError(Exception):
    def __init__(self, code, permanent):
        super().__init__(code)
        self.code = code  # letters, digits and _ . : - , so that outbox.fail() takes it
        self.permanent = permanent  # would trying again help?


class Stopped(Exception):
    pass


def book(event_id, item, attempt, is_stopping):
    """Returns the number of the booking. The carrier may be asked twice for one event (we may crash after the
    call and before our commit), so it is given the event's id, by which it can tell: the same id, the same booking."""
    if item == "piano":
        end = time.monotonic() + 4
        while time.monotonic() < end:
            if is_stopping():
                raise Stopped
            time.sleep(0.1)
    if item == "vase" and attempt <= 2:
        raise CarrierError("carrier_timeout", permanent=False)
    if item == "dragon":
        raise CarrierError("not_carried", permanent=True)
    return f"B-{event_id}"
