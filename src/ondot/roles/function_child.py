"""The child process in which suspects run, with a database for their transactions (E6, E11).

`python -m ondot.roles.function_child MODULE:APP …` runs `function.child_main` with `ctx.transaction()` for its
functions. Most never open one, so the first that does connects to the database, with the address that the worker sends
with each call. The success is written in the worker's name, by the same fenced statement as everywhere; the worker,
which has an outcome to write too, finds it recorded. Closing is quick, because the worker waits for its children.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ondot.flow.dispatch import Dispatcher
from ondot.flow.handler_transaction import Attempt, Transactor, check_loop
from ondot.ports.target import OpenTransaction
from ondot.sdk.transaction import Opened
from ondot.settings import Settings
from ondot.store.database import Database, open_database
from ondot.targets.function.child_main import main
from ondot.transports.polling import PollingTransport

if TYPE_CHECKING:
    from ondot.model.ids import WorkerId

CONNECTIONS: Final = 4
"""Half of them for functions, as in a worker, which may have several children."""
CLOSES_WITHIN_S: Final = 0.5
"""A worker kills a child that has not exited after a second."""


class Transactions:
    """Opens the transactions of a child's calls, for one worker process, which may have several ids in turn."""

    def __init__(self) -> None:
        self._database: Database | None = None
        self._opening = asyncio.Lock()
        self._transactors: dict[WorkerId, Transactor] = {}

    def opener(self, elsewhere: str) -> OpenTransaction:
        return _Opener(self, elsewhere)

    async def transactor(self, attempt: Attempt) -> Transactor:
        """Raises Unavailable if the database is away; the next call tries again."""
        async with self._opening:
            if self._database is None:
                self._database = await _connect(attempt)
            worker_id = attempt.worker_id
            if worker_id not in self._transactors:
                # No wake-ups are sent: the next poll finds executions at a gate that this commit lets through.
                self._transactors[worker_id] = Transactor(self._database, Dispatcher(PollingTransport()), worker_id)
            return self._transactors[worker_id]

    async def close(self) -> None:
        if self._database is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSES_WITHIN_S):
                    await self._database.close()


class _Opener:
    """One attempt's transaction; opening it connects to the database if that has not happened yet."""

    def __init__(self, transactions: Transactions, elsewhere: str) -> None:
        self.elsewhere = elsewhere
        self._transactions = transactions
        self._loop = asyncio.get_running_loop()
        self._attempt = msgspec.json.decode(elsewhere, type=Attempt)
        self._inner: OpenTransaction | None = None

    @property
    def is_committed(self) -> bool:
        return self._inner is not None and self._inner.is_committed

    @asynccontextmanager
    async def __call__(self, given: Any, /) -> AsyncIterator[Opened]:
        check_loop(self._loop)
        transactor = await self._transactions.transactor(self._attempt)
        if self._inner is None:
            self._inner = transactor.opener_of(self._attempt)
        try:
            async with self._inner(given) as opened:
                yield opened
        finally:
            transactor.forget(self._attempt)


async def _connect(attempt: Attempt) -> Database:
    # Not from the environment or ondot.toml: the function may have changed its variables and its directory.
    settings = Settings.model_construct(
        database_url=attempt.database_url,
        pgbouncer=attempt.pgbouncer,
        statement_timeout_s=attempt.statement_timeout_s,
    )
    database = await open_database(settings, connections=CONNECTIONS)
    try:
        await database.read_clock()
    except BaseException:
        database.pool.terminate()
        raise
    return database


if __name__ == "__main__":
    main(*sys.argv[1:], transactions=Transactions())
