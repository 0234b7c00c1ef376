"""Outcomes of attempts, written by their workers, or in the name of one that is lost: fenced, in batches (E11, P6)."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from uuid import UUID

import msgspec
from msgspec import Struct

from ondot.model.completion import Completion
from ondot.model.execution import State
from ondot.model.ids import ExecutionId, LeaseId, PoolNo, WorkerId
from ondot.store.columns import collapse_equal
from ondot.store.connection import Connection
from ondot.store.day_bounds import with_day_bounds
from ondot.store.queries import load_queries

_SQL = load_queries("outcomes")
_labels_of = attrgetter("labels")


class Written(Struct, frozen=True, gc=False):
    """A completion that counted, and the state it led to.

    `pool_no`: the pool to wake: at `ready_at`, and now if slots of gates or of the pool are free (`gated`).
    `awaited_by`: the run to advance, or the job whose dependents are to be looked at: it has an arrival.
    """

    execution_id: ExecutionId
    state: State
    pool_no: PoolNo | None = None
    ready_at: datetime | None = None
    gated: bool = False
    awaited_by: UUID | None = None


class Unchanged(StrEnum):
    """Why an outcome changed nothing: it was recorded before, its worker is stale, or it met a cancel and its attempt
    is current (write again)."""

    RECORDED = "recorded"
    STALE = "stale"
    CURRENT = "current"


async def complete_executions(
    connection: Connection, worker_id: WorkerId, completions: Sequence[Completion], last_of: Sequence[LeaseId]
) -> list[Written]:
    """Write outcomes, fenced; those that are missing from the answer changed nothing."""
    ordered = sorted(completions, key=attrgetter("execution_id"))
    rows = await connection.fetch(
        _SQL["complete_executions"].text,
        worker_id,
        [completion.execution_id for completion in ordered],
        [completion.attempt_no for completion in ordered],
        [completion.state.value for completion in ordered],
        [completion.outcome.value for completion in ordered],
        [completion.result for completion in ordered],
        [completion.error for completion in ordered],
        [completion.reason for completion in ordered],
        [completion.delay_s for completion in ordered],
        [completion.priority_class for completion in ordered],
        last_of,
        [completion.pause_after for completion in ordered],
        [completion.retry_at for completion in ordered],
        _labels(ordered),
    )
    return [Written(id_, State(state), *wakes) for id_, state, *wakes in rows]


async def succeed_executions(
    connection: Connection,
    worker_id: WorkerId,
    completions: Sequence[Completion],
    last_of: Sequence[LeaseId],
    *,
    posts: bool = False,
) -> list[Written]:
    """Write plain successes, fenced; those that are missing from the answer changed nothing, or are plain no more.
    `posts`: sinks send successes, so they go to the outbox too."""
    ordered = sorted(completions, key=attrgetter("execution_id"))
    ids = [completion.execution_id for completion in ordered]
    labels = _labels(ordered)
    counted: list[ExecutionId] | None = await connection.fetchval(
        _SQL["succeed_and_post" if posts else "succeed_labelled" if labels else "succeed_executions"].text,
        worker_id,
        ids,
        collapse_equal([completion.attempt_no for completion in ordered]),
        collapse_equal([completion.result for completion in ordered]),
        last_of,
        *([collapse_equal(labels)] if labels or posts else []),
    )
    return [Written(id_, State.SUCCEEDED) for id_ in (ids if counted is None else counted)]


def _labels(completions: Sequence[Completion]) -> list[str | None]:
    """The labels of each as JSON; empty if none has any, as in most batches."""
    if not any(map(_labels_of, completions)):
        return []
    return [
        msgspec.json.encode(completion.labels).decode() if completion.labels else None for completion in completions
    ]


async def find_outcomes(
    connection: Connection, worker_id: WorkerId, attempts: Sequence[tuple[ExecutionId, int]]
) -> dict[ExecutionId, Unchanged]:
    """Of outcomes that changed nothing, why."""
    if not attempts:
        return {}
    rows = await connection.fetch(
        with_day_bounds(_SQL["find_outcomes"], [id_ for id_, _ in attempts], from_id="$4", before_id="$5"),
        worker_id,
        [id_ for id_, _ in attempts],
        [number for _, number in attempts],
    )
    return {
        row["id"]: Unchanged.RECORDED
        if row["recorded"]
        else Unchanged.CURRENT
        if row["is_current"]
        else Unchanged.STALE
        for row in rows
    }
