"""Transactions that are done again when the server ends one of two that meet."""

import psycopg


def transaction(connection, work, tries=3):
    """Runs work() in a transaction; all that it does is committed, or nothing. After a serialization failure or a
    deadlock the whole of it is done again. The connection is in autocommit otherwise."""
    while True:
        try:
            with connection.transaction():  # commits at its end; rolls back when an exception leaves it
                return work()
        except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
            tries -= 1
            if tries == 0:
                raise
