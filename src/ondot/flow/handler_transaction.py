"""⑤a A handler's effect and its completion in one transaction (E11, P6, P8), where both are in ondot's database.

    begin → is this attempt still the one that runs → the handler's statements → complete, fenced → COMMIT

The completion is written by the same fenced statement as any other. If the fence refuses it, the transaction is rolled
back and `Stale` is raised: the effect did not happen. Once committed, the execution is SUCCEEDED, whatever the handler
does afterwards. If the reply to COMMIT is lost, the database is asked about it for as long as it takes.
The worker has separate connections for it, where a handler may take its time (`Database.patient`): leasing and
completing never wait for handlers.
A function that runs in a child process opens its transaction there (`Attempt`, `roles.function_child`). Its worker then
writes an outcome of its own, and finds this one recorded.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from ondot.flow.complete import OnArrivals, pools_to_wake, runs_to_advance
from ondot.flow.dispatch import Dispatcher
from ondot.flow.lease import Assignment
from ondot.model.completion import Completion, succeed
from ondot.model.errors import Unavailable
from ondot.model.execution import State
from ondot.model.ids import ExecutionId, TenantNo, WorkerId
from ondot.model.job import JobSpec
from ondot.ports.target import OpenTransaction
from ondot.sdk.transaction import Opened, Stale
from ondot.store.attempts import is_running, wait_for_execution
from ondot.store.connection import DATABASE_ERROR, Connection, away_as_unavailable, drop, is_lost
from ondot.store.database import ACQUIRE_TIMEOUT_S, Database
from ondot.store.outcomes import Unchanged, Written, complete_executions, find_outcomes
from ondot.store.queue import Leased
from ondot.telemetry.log import get_logger

AGAIN_S = 0.5

log = get_logger()


class Attempt(Struct, frozen=True):
    """Which attempt a transaction completes, and in which database: all that another process needs to open it.

    The database as the worker connects to it: the URL may be from a flag, a file, or the home of an `ondot up`.
    """

    id: ExecutionId
    attempt_no: int
    tenant_no: TenantNo
    worker_id: WorkerId
    pause_after: int | None
    database_url: str
    pgbouncer: bool
    statement_timeout_s: float


class _Opener:
    """Few functions use their transaction, so its `Attempt` is built when one does.

    No repr: it would contain the database's password.
    """

    __slots__ = ("_attempt", "is_committed", "is_open", "transactor")

    def __init__(self, transactor: "Transactor", attempt: Callable[[], Attempt]) -> None:
        self.transactor = transactor
        self._attempt = attempt
        self.is_open = False
        self.is_committed = False

    @property
    def attempt(self) -> Attempt:
        return self._attempt()

    @property
    def elsewhere(self) -> str:
        return msgspec.json.encode(self.attempt).decode()

    def __call__(self, user_connection: Any) -> AbstractAsyncContextManager[Opened]:
        return self.transactor.open(self, user_connection)


class Transactor:
    """Opens the transactions of one incarnation of a worker, and tracks which attempts they have completed."""

    def __init__(
        self,
        database: Database,
        dispatcher: Dispatcher,
        worker_id: WorkerId,
        on_arrivals: OnArrivals = lambda _: None,
    ) -> None:
        self._database = database
        self._on_arrivals = on_arrivals
        self._pool = database.patient.pool
        self._dispatcher = dispatcher
        self._worker_id = worker_id
        self._loop = asyncio.get_running_loop()
        self._reached_by: dict[str, Any] = {
            "database_url": database.settings.needs_database_url,
            "pgbouncer": database.settings.pgbouncer,
            "statement_timeout_s": database.settings.statement_timeout_s,
        }
        self._room = asyncio.Semaphore(max(1, self._pool.get_max_size() // (1 if database.patient_pool else 2)))
        self._committed: dict[tuple[ExecutionId, int], str | None] = {}

    def opener(self, assignment: Assignment, spec: JobSpec) -> OpenTransaction:
        """The `Call.transaction` of this attempt. To be called in the worker's loop."""
        return _Opener(self, partial(self._attempt_of, assignment.leased, spec))

    def opener_of(self, attempt: Attempt) -> OpenTransaction:
        return _Opener(self, lambda: attempt)

    def _attempt_of(self, leased: Leased, spec: JobSpec) -> Attempt:
        return Attempt(
            id=leased.id,
            attempt_no=leased.attempt_no,
            tenant_no=leased.tenant_no,
            worker_id=self._worker_id,
            pause_after=spec.pause_after_failures,
            **self._reached_by,
        )

    def forget(self, attempt: Attempt) -> None:
        """Forget a commit that `settled` is never asked about: the worker is another process and reads the database."""
        self._committed.pop((attempt.id, attempt.attempt_no), None)

    def was_committed(self, execution_id: ExecutionId, attempt_no: int) -> bool:
        """Whether this attempt was completed by its own transaction, so that nothing is left to write."""
        return (execution_id, attempt_no) in self._committed

    def settled(self, completion: Completion) -> bool:
        """The same, asked once by the worker at the attempt's end. A handler whose own outcome differs is logged."""
        attempt = (completion.execution_id, completion.attempt_no)
        if attempt not in self._committed:
            return False
        result = self._committed.pop(attempt)
        about = {"execution_id": str(attempt[0]), "attempt": attempt[1]}
        if completion.state is not State.SUCCEEDED:
            log.warning(
                "handler.failed_after_commit",
                **about,
                outcome=completion.outcome.value,
                error=_message(completion),
                then="the execution is SUCCEEDED: its transaction was committed before",
            )
        elif completion.result not in {None, result}:
            log.warning(
                "handler.result_ignored",
                **about,
                then="the result is the one that ctx.set_result set before the commit",
            )
        return True

    @asynccontextmanager
    async def open(self, opener: _Opener, user_connection: Any) -> AsyncIterator[Opened]:
        check_loop(self._loop)
        if opener.is_committed:
            raise RuntimeError("This attempt is completed: ctx.transaction() commits once.")
        if opener.is_open:
            raise RuntimeError("A transaction of this attempt is open already: use its connection.")
        opener.is_open = True
        attempt = opener.attempt
        try:
            async with self._connection(user_connection) as connection:
                transaction = connection.transaction()
                with away_as_unavailable():
                    await transaction.start()
                try:
                    await self._check_current(attempt, connection, is_users=user_connection is not None)
                    opened = Opened(connection)
                    yield opened
                    written = await self._complete(attempt, connection, opened.result)
                except BaseException:
                    await _roll_back(connection, transaction)
                    raise
                await _finish(self._commit(opener, transaction, opened.result, written))
        finally:
            opener.is_open = False

    @asynccontextmanager
    async def _connection(self, user_connection: Any) -> AsyncIterator[Connection]:
        if user_connection is not None:
            yield _check_idle(user_connection)
            return
        async with self._room:
            with away_as_unavailable():
                connection = await self._pool.acquire(timeout=ACQUIRE_TIMEOUT_S)
            try:
                yield connection
            finally:
                await self._give_back(connection)

    async def _give_back(self, connection: Any) -> None:
        """Reset what the handler has set for the session, because ondot itself uses the connection next."""
        try:
            if not self._database.settings.pgbouncer and not is_lost(connection):
                await connection.reset(timeout=ACQUIRE_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - the commit stands: only the connection is unusable
            log.warning("connection.not_reset", error=str(error), then="it is closed")
            drop(connection)
        except BaseException:
            drop(connection)
            raise
        finally:
            await self._pool.release(connection)

    async def _check_current(self, attempt: Attempt, connection: Connection, *, is_users: bool) -> None:
        with away_as_unavailable():
            if await self._runs(attempt, connection, is_own=not is_users):
                return
        if is_users:
            async with self._database.connection() as own:
                if await self._runs(attempt, own, is_own=False):
                    raise ValueError(
                        "The connection passed to ctx.transaction() is to another database than ondot's, so the two "
                        "cannot commit together. Connect to the one that ONDOT_DATABASE_URL names."
                    )
        raise _stale(attempt)

    async def _runs(self, attempt: Attempt, connection: Connection, *, is_own: bool) -> bool:
        which = (attempt.tenant_no, attempt.id, attempt.attempt_no, self._worker_id)
        return await is_running(connection, *which, is_own=is_own)

    async def _complete(self, attempt: Attempt, connection: Connection, result: str | None) -> list[Written]:
        if not connection.is_in_transaction():
            raise RuntimeError(
                "The block of ctx.transaction() has ended the transaction itself, so its effect and its completion "
                "are not one. Leave COMMIT and ROLLBACK to ctx.transaction()."
            )
        completion = succeed(attempt, result, pause_after=attempt.pause_after)
        with away_as_unavailable():
            while True:
                written = await complete_executions(connection, self._worker_id, [completion], [])
                if written:
                    return written
                # A cancel or a new limit that was being written made a new version of the row, which is still ours.
                why = await find_outcomes(connection, self._worker_id, [(attempt.id, attempt.attempt_no)])
                if why.get(attempt.id) is not Unchanged.CURRENT:
                    raise _stale(attempt)

    async def _commit(self, opener: _Opener, transaction: Any, result: str | None, written: Sequence[Written]) -> None:
        attempt = opener.attempt
        try:
            with away_as_unavailable():
                await transaction.commit()
        except Unavailable as error:
            log.warning("transaction.in_doubt", execution_id=str(attempt.id), error=error.message)
            if not await self._did_commit(attempt):
                raise
        opener.is_committed = True
        self._committed[attempt.id, attempt.attempt_no] = result
        if awaiting := runs_to_advance(written):
            self._on_arrivals(awaiting)
        self._dispatcher.wake(pools_to_wake(written, self._database.clock.now()))

    async def _did_commit(self, attempt: Attempt) -> bool:
        """Whether a COMMIT without a reply was done: asked until the database answers, because only it knows."""
        while True:
            try:
                async with self._database.connection() as connection:
                    await wait_for_execution(connection, attempt.tenant_no, attempt.id)
                    outcomes = await find_outcomes(connection, self._worker_id, [(attempt.id, attempt.attempt_no)])
                return outcomes.get(attempt.id) is Unchanged.RECORDED
            except Unavailable as error:
                log.warning("transaction.in_doubt", execution_id=str(attempt.id), error=error.message)
                await asyncio.sleep(AGAIN_S)


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    if asyncio.get_running_loop() is not loop:
        raise RuntimeError("ctx.transaction() works in the worker's own event loop. Make the function `async def`.")


def _check_idle(user_connection: Any) -> Connection:
    if not all(
        callable(getattr(user_connection, name, None)) for name in ("fetch", "transaction", "is_in_transaction")
    ):
        raise TypeError(
            f"ctx.transaction() takes an asyncpg connection or nothing, got {type(user_connection).__name__}."
        )
    if user_connection.is_in_transaction():
        # The completion would be part of an outer transaction, which may still be rolled back.
        raise ValueError(
            "The connection passed to ctx.transaction() is in a transaction already. Pass one that is in none, because "
            "ctx.transaction() itself begins and commits."
        )
    connection: Connection = user_connection
    return connection


def _message(completion: Completion) -> str | None:
    return None if completion.error is None else msgspec.json.decode(completion.error).get("message")


def _stale(attempt: Attempt) -> Stale:
    return Stale(
        f"Attempt {attempt.attempt_no} of execution {attempt.id} no longer counts: it was recovered, cancelled or"
        " ended meanwhile. Its transaction is rolled back."
    )


async def _roll_back(connection: Connection, transaction: Any) -> None:
    """Never hides the reason: a connection that is lost has rolled back by itself."""
    try:
        with away_as_unavailable():
            if not is_lost(connection):
                await transaction.rollback()
    except (Unavailable, DATABASE_ERROR) as error:
        log.warning("transaction.not_rolled_back", error=str(error), then="the connection is closed")
        drop(connection)


async def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Await work that must not stop halfway, like a COMMIT: a cancellation meanwhile is raised after it."""
    task = asyncio.create_task(work, name="ondot commit")
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()
        raise
