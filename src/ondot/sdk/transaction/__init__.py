"""Transactions that a program shares with ondot (E11, D3): a job that it enqueues exists if and only if it commits.

    with Session.begin() as session, app.transaction(session):
        session.add(Invoice(customer=7))
        send_invoice.sync.enqueue(customer=7)

Inside the block, the app's handlers send no request. They write through the caller's own connection, with the SQL
functions `ondot.submit_spec` and, for many jobs in one statement, `ondot.submit_specs`, which reject what the API would
reject.

    block.py        `app.transaction(…)`: which transaction is open here, and one statement at a time
    connections.py  asyncpg, psycopg, SQLAlchemy and Django behind one interface
    refusals.py     errors of the drivers as those of the API
    specs.py        the body of a job as the database stores it
    attempt.py      the transaction of an attempt, `ctx.transaction()`
"""

from ondot.sdk.transaction.attempt import Opened, Stale
from ondot.sdk.transaction.block import Block, CallersTransaction, open_transaction

__all__ = ["Block", "CallersTransaction", "Opened", "Stale", "open_transaction"]
