"""⑥ Outcome → SUCCEEDED | RETRYING | FAILED …, fenced, in batches (E11, P5, P6).

Outcomes are gathered for a few milliseconds and written in one statement. The completer keeps each until PostgreSQL
has it, however long the database is away. An outcome that changed nothing is looked up: it was recorded before (a reply
was lost), or is refused because its worker was stale. Both are counted, neither is an error. A batch whose content
PostgreSQL rejects is split until the bad row is alone, which then ends FAILED with that reason. A batch that does not
fit into the deadline is written again in smaller ones.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from ondot.flow.dispatch import Dispatcher
from ondot.flow.events.followed import Followed
from ondot.flow.lease import Assignment
from ondot.flow.measure import MEASURES, PoolSeries
from ondot.model.completion import Completion, fail_unstorable
from ondot.model.errors import Unavailable
from ondot.model.execution import State
from ondot.model.ids import ExecutionId, JobId, LeaseId, PoolNo, WorkerId
from ondot.store.adaptive_batch import AdaptiveBatch
from ondot.store.connection import DATABASE_ERROR, Connection, is_about_content
from ondot.store.database import Database
from ondot.store.outcomes import Unchanged, Written, complete_executions, find_outcomes, succeed_executions
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import REPEATED, STALE

GATHER_S = 0.003
GATHERS, MANY = 5, 40
BATCH = 1_000
BATCH_LENGTH = 4_000_000
"""Results and errors in one statement, in characters: a slow line carries them within the deadline."""
WRITERS = 2
AGAIN_S = 0.5
TRIES_A_WARNING = 60
"""While outcomes cannot be written, one try in this many logs a warning."""
LONGEST_MESSAGE = 500
"""PostgreSQL's message is cut here: some repeat the whole value that was rejected."""

OnArrivals = Callable[[Collection[UUID]], None]
"""Called after the commit with the runs that have new arrivals: `Advancer.request`."""

log = get_logger()


class Done(Struct, frozen=True, gc=False):
    """An outcome to be written, and what is measured of its attempt. Not the assignment itself: no spec
    and no payload is kept for outcomes that wait to be written."""

    completion: Completion
    lease_id: LeaseId
    series: PoolSeries | None = None
    started_s: float = 0.0
    """By the database's clock."""
    ended_s: float = 0.0
    """Monotonic."""
    trace_id: str | None = None
    """For the log, if the attempt is traced."""
    asking_job: JobId | None = None
    """The job, if it asked for series of its own."""


def end_attempt(assignment: Assignment, completion: Completion, trace_id: str | None = None) -> Done:
    """The outcome of an attempt that has just ended."""
    leased, spec = assignment.leased, assignment.spec
    return Done(
        completion,
        assignment.lease_id,
        MEASURES.find_series(spec),
        leased.started_s,
        time.monotonic(),
        trace_id,
        leased.job_id if spec is not None and spec.metrics else None,
    )


class Completer:
    """Writes the outcomes of one incarnation of a worker, and tracks the leases that it still holds."""

    def __init__(
        self,
        database: Database,
        dispatcher: Dispatcher,
        worker_id: WorkerId,
        on_written: Callable[[], None] = lambda: None,
        on_arrivals: OnArrivals = lambda _: None,
        followed: Followed | None = None,
    ) -> None:
        """`on_written`: called when `unwritten` has decreased. `followed`: shared with what leases."""
        self._database = database
        self._dispatcher = dispatcher
        self._worker_id = worker_id
        self._on_written = on_written
        self._on_arrivals = on_arrivals
        self._followed = followed or Followed()
        self._queue: deque[Done] = deque()
        self._arrived = asyncio.Event()
        self._open: Counter[LeaseId] = Counter()
        self._ended: list[LeaseId] = []
        self._measured: set[ExecutionId] = set()
        """Of a batch whose second statement has not succeeded: its outcomes are written again, and found recorded."""
        self._at_once = AdaptiveBatch(BATCH)
        self._writing = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def leases(self) -> tuple[LeaseId, ...]:
        """The leases held: every beat names them."""
        return tuple(self._open)

    @property
    def unwritten(self) -> int:
        """Outcomes that PostgreSQL does not have yet."""
        return len(self._queue) + self._writing

    def hold(self, lease_id: LeaseId, members: int) -> None:
        if members:
            self._open[lease_id] += members

    def add(self, done: Done) -> None:
        self._queue.append(done)
        self._idle.clear()
        self._arrived.set()

    async def drained(self) -> None:
        """Wait until every outcome that was added is written."""
        await self._idle.wait()

    async def run(self) -> None:
        """Write until cancelled, with two statements in flight: one commit at a time leaves the disk idle."""
        async with asyncio.TaskGroup() as group:
            for number in range(WRITERS):
                group.create_task(self._write_for_ever(), name=f"completer-{number}")

    async def _write_for_ever(self) -> None:
        while True:
            await self._arrived.wait()
            await self._gather()
            batch = self._next_batch()
            if not self._queue:
                self._arrived.clear()
            if not batch:
                continue
            self._writing += len(batch)
            try:
                await self._write_until_stored(batch)
            finally:
                self._writing -= len(batch)
            self._on_written()
            if not self._writing and not self._queue:
                self._idle.set()

    async def _gather(self) -> None:
        """Wait a few milliseconds, longer while many arrive: a statement for 1,000 costs little more than for 100."""
        seen = 0
        for _ in range(GATHERS):
            await asyncio.sleep(GATHER_S)
            waiting = len(self._queue)
            if waiting >= BATCH or waiting - seen < MANY:
                return
            seen = waiting

    def _next_batch(self) -> list[Done]:
        batch: list[Done] = []
        room = BATCH_LENGTH
        for _ in range(min(BATCH, len(self._queue))):
            done = self._queue.popleft()
            batch.append(done)
            room -= _length(done.completion)
            if room <= 0:
                break
        return batch

    async def _write_until_stored(self, batch: list[Done]) -> None:
        tries = 0
        while batch:
            portion = batch[: self._at_once.size]
            tries += 1
            try:
                with self._at_once.adapt(len(portion)):
                    await self.write(portion)
            except (DATABASE_ERROR, Unavailable, ValueError) as error:
                # ValueError: it cannot be encoded (half of a surrogate pair).
                if not is_about_content(error):
                    if tries % TRIES_A_WARNING == 1:
                        log.warning("outcomes.kept", count=len(batch), error=str(error))
                    await asyncio.sleep(AGAIN_S)
                    continue
                if len(portion) == 1:
                    batch = [replace(batch[0], completion=_unstorable(batch[0].completion, error)), *batch[1:]]
                    continue
                middle = len(portion) // 2
                await self._write_until_stored(portion[:middle])
                await self._write_until_stored(portion[middle:])
            tries = 0
            batch = batch[len(portion) :]

    async def write(self, batch: Sequence[Done]) -> list[Written]:
        """Write one batch of outcomes: one statement for plain successes, and one for the rest, if any."""
        members = Counter(done.lease_id for done in batch)
        ended = list(self._ended)
        last_of = [id_ for id_, count in members.items() if self._open[id_] <= count] + ended
        outcomes = [done.completion for done in batch]
        awaiting: set[UUID] = set()
        async with self._database.connection() as connection:
            written = await self._succeed(connection, outcomes, last_of)
            self._report(batch, written)
            if len(written) < len(outcomes) or not outcomes:
                self._measured.update(entry.execution_id for entry in written)
                rest = await self._complete(connection, batch, _missing(outcomes, written), last_of)
                self._measured.difference_update(entry.execution_id for entry in written)
                self._report(batch, rest)
                written += rest
                awaiting = runs_to_advance(rest)
        self._ended = [id_ for id_ in self._ended if id_ not in ended]
        self._release(members, set(last_of))
        if awaiting:
            self._on_arrivals(awaiting)
        self._dispatcher.wake(pools_to_wake(written, self._database.clock.now()))
        return written

    async def _succeed(
        self, connection: Connection, outcomes: Sequence[Completion], last_of: Sequence[LeaseId]
    ) -> list[Written]:
        """Write the plain successes among them. The statement for the rest, if any, removes the leases."""
        plain = [outcome for outcome in outcomes if outcome.is_plain]
        if not plain:
            return []
        followed = await self._followed.read(connection)
        if followed.start_jobs:
            return []
        ended = last_of if len(plain) == len(outcomes) else ()
        posts = followed.successes_are_sent
        return await succeed_executions(connection, self._worker_id, plain, ended, posts=posts)

    async def _complete(
        self,
        connection: Connection,
        batch: Sequence[Done],
        outcomes: Sequence[Completion],
        last_of: Sequence[LeaseId],
    ) -> list[Written]:
        """Write outcomes of any kind, and look up those that changed nothing."""
        written = await complete_executions(connection, self._worker_id, outcomes, last_of)
        while missing := _missing(outcomes, written):
            why = await self._why_unchanged(connection, missing)
            # An outcome that met a cancel which was being written is still this worker's, and is written again.
            outcomes = [outcome for outcome in missing if why[outcome.execution_id] is Unchanged.CURRENT]
            for outcome in missing:
                self._count_unchanged(outcome, why[outcome.execution_id])
            # Nobody has measured them: the reply that they were written was lost, or a child process wrote them.
            recorded = {id_ for id_, known in why.items() if known is Unchanged.RECORDED}
            self._measure([done for done in batch if done.completion.execution_id in recorded - self._measured])
            self._measured -= recorded
            written += await complete_executions(connection, self._worker_id, outcomes, last_of)
        return written

    def _report(self, batch: Sequence[Done], written: Sequence[Written]) -> None:
        if len(written) == len(batch) and all(entry.state is State.SUCCEEDED for entry in written):
            self._measure(batch)
            return
        states = {entry.execution_id: entry.state for entry in written}
        self._measure([done for done in batch if done.completion.execution_id in states])
        for done in batch:
            state = states.get(done.completion.execution_id, State.SUCCEEDED)
            if state is not State.SUCCEEDED:
                _log_transition(done, state)

    def _measure(self, ended: Sequence[Done]) -> None:
        if not ended:
            return
        offset_s = self._database.clock.now().timestamp() - time.monotonic()
        MEASURES.measure_ended(ended, offset_s)

    def release(self, lease_id: LeaseId, done: Done | None = None) -> None:
        """Drop one member of a lease that has no outcome to write. `done`: its handler has committed it itself."""
        self._release(Counter([lease_id]), set())
        if done is not None:
            self._measure([done])

    def _release(self, members: Counter[LeaseId], deleted: set[LeaseId]) -> None:
        """Forget leases whose last member was written. One that ended in two batches at once goes with the next."""
        for lease_id, count in members.items():
            self._open[lease_id] -= count
            if self._open[lease_id] <= 0:
                del self._open[lease_id]
                if lease_id not in deleted:
                    self._ended.append(lease_id)

    async def _why_unchanged(
        self, connection: Connection, missing: Sequence[Completion]
    ) -> dict[ExecutionId, Unchanged]:
        attempts = [(outcome.execution_id, outcome.attempt_no) for outcome in missing]
        return await find_outcomes(connection, self._worker_id, attempts)

    def _count_unchanged(self, completion: Completion, why: Unchanged) -> None:
        if why is Unchanged.CURRENT:
            return
        if why is Unchanged.RECORDED:
            REPEATED.inc()
            return
        STALE.inc()
        log.warning(
            "completion.refused",
            execution_id=str(completion.execution_id),
            attempt=completion.attempt_no,
            worker_id=str(self._worker_id),
            why="the execution belongs to another worker now, or has ended",
        )


def _length(completion: Completion) -> int:
    return len(completion.result or "") + len(completion.error or "")


def _unstorable(completion: Completion, error: Exception) -> Completion:
    message = f"PostgreSQL rejects the result or the error of the attempt: {error}"[:LONGEST_MESSAGE]
    log.error("outcome.unstorable", execution_id=str(completion.execution_id), error=str(error))
    return fail_unstorable(completion, message)


def _missing(outcomes: Sequence[Completion], written: Sequence[Written]) -> list[Completion]:
    changed = {entry.execution_id for entry in written}
    return [outcome for outcome in outcomes if outcome.execution_id not in changed]


def pools_to_wake(written: Iterable[Written], now: datetime) -> Iterator[tuple[PoolNo, datetime]]:
    """Which pools to wake, and when: for executions that go on, and for those that waited for a slot now free."""
    for entry in written:
        if entry.pool_no is None:
            continue
        if entry.ready_at is not None:
            yield entry.pool_no, entry.ready_at
        if entry.gated:
            yield entry.pool_no, now


def runs_to_advance(written: Iterable[Written]) -> set[UUID]:
    return {entry.awaited_by for entry in written if entry.awaited_by is not None}


def _log_transition(done: Done, state: State) -> None:
    completion = done.completion
    traced = {} if done.trace_id is None else {"trace_id": done.trace_id}
    log.info(
        f"execution.{state.value.lower()}",
        execution_id=str(completion.execution_id),
        attempt=completion.attempt_no,
        outcome=completion.outcome.value,
        again_in_s=round(completion.delay_s, 3) if state is State.RETRYING and not completion.retry_at else None,
        again_at=completion.retry_at.isoformat() if state is State.RETRYING and completion.retry_at else None,
        reason=completion.reason,
        **traced,
    )
