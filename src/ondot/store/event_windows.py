"""Executions that collect events, and the values by which `cancel_on` finds executions (S11)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import Struct

from ondot.model.ids import ExecutionId, JobId, PoolNo, TenantNo
from ondot.store.connection import Connection
from ondot.store.endings import take_out
from ondot.store.queries import load_queries

_SQL = load_queries("event_windows")

TRIES: Final = 5
Marks = list[list[str]]
"""Of each event of a list: the keys by which cancel_on finds it."""


@dataclass(frozen=True, slots=True)
class Window:
    execution_id: ExecutionId
    job_id: JobId
    key: UUID
    opened_at: datetime
    events: int
    bytes: int
    marks: Marks | None
    is_new: bool
    now: datetime


class Filling(Struct, frozen=True):
    """What a window is after events were added to it."""

    execution_id: ExecutionId
    events: int
    bytes: int
    is_open: bool
    marks: Marks | None
    payload: str | None
    is_more: bool
    """The payload is more items of the list."""
    ready_at: datetime | None
    """None: it stays where it is in the queue."""


class Opening(Struct, frozen=True):
    """An execution to be made, for a window."""

    execution_id: ExecutionId
    job_id: JobId
    job_version: int
    pool_no: PoolNo
    priority_class: int
    stages: str | None
    start_within_s: float | None
    payload: str | None
    ready_at: datetime | None
    """None: now."""


class FullWindow(Struct, frozen=True):
    execution_id: ExecutionId
    job_id: JobId
    key: UUID
    events: int
    bytes: int
    marks: Marks | None


@dataclass(frozen=True, slots=True)
class Collected:
    """The events of a list."""

    marks: Marks
    is_open: bool


@dataclass(frozen=True, slots=True)
class ToCancel:
    execution_id: ExecutionId
    has_list: bool
    no: int
    """Which of the wanted ones, from 0."""


async def take_windows(
    connection: Connection, tenant_no: TenantNo, wanted: Mapping[tuple[JobId, UUID], ExecutionId]
) -> dict[tuple[JobId, UUID], Window]:
    """The open window of each (job, key), locked; new ones for those that have none."""
    ordered = sorted(wanted)
    rows = await connection.fetch(
        _SQL["take_windows"].text,
        tenant_no,
        [wanted[place] for place in ordered],
        [job_id for job_id, _ in ordered],
        [key for _, key in ordered],
    )
    windows = [
        Window(
            ExecutionId(row["execution_id"]),
            JobId(row["job_id"]),
            row["key"],
            row["opened_at"],
            row["events"],
            row["bytes"],
            _marks(row["marks"]),
            row["is_new"],
            row["now"],
        )
        for row in rows
    ]
    return {(window.job_id, window.key): window for window in windows}


async def add_full_windows(connection: Connection, tenant_no: TenantNo, windows: Sequence[FullWindow]) -> None:
    await connection.execute(
        _SQL["add_windows"].text,
        tenant_no,
        [window.execution_id for window in windows],
        [window.job_id for window in windows],
        [window.key for window in windows],
        [window.events for window in windows],
        [window.bytes for window in windows],
        [_text(window.marks) for window in windows],
    )


async def set_windows(connection: Connection, tenant_no: TenantNo, fillings: Sequence[Filling]) -> None:
    await connection.execute(
        _SQL["set_windows"].text,
        tenant_no,
        [filling.execution_id for filling in fillings],
        [filling.events for filling in fillings],
        [filling.bytes for filling in fillings],
        [filling.is_open for filling in fillings],
        [_text(filling.marks) for filling in fillings],
    )


async def close_windows(connection: Connection, tenant_no: TenantNo, ids: Collection[ExecutionId]) -> None:
    await connection.execute(_SQL["close_windows"].text, tenant_no, list(ids))


async def take_out_unstarted(
    connection: Connection, tenant_no: TenantNo, ids: Collection[ExecutionId]
) -> set[ExecutionId]:
    """Take executions out of the queue that wait for their first attempt; returns those. Waits for a worker that is
    leasing one, and leaves that one alone.

    Repeated while any is left: a row that a sweep moves is at another place that the statement does not see.
    """
    taken: set[ExecutionId] = set()
    left = set(ids)
    for _ in range(TRIES):
        if not left:
            break
        found = await connection.fetch(_SQL["find_unstarted"].text, tenant_no, list(left))
        left = {ExecutionId(row["id"]) for row in found}
        out = await take_out(connection, tenant_no, sorted(left)) if left else set()
        taken |= out
        left -= out
    return taken


async def fill_executions(
    connection: Connection, tenant_no: TenantNo, fillings: Sequence[Filling]
) -> dict[ExecutionId, tuple[PoolNo, datetime]]:
    """Give executions their new payload and place in the queue; returns those that had not started."""
    ordered = sorted(fillings, key=lambda filling: filling.execution_id)
    rows = await connection.fetch(
        _SQL["fill_executions"].text,
        tenant_no,
        [filling.execution_id for filling in ordered],
        [filling.payload for filling in ordered],
        [filling.is_more for filling in ordered],
        [filling.ready_at for filling in ordered],
    )
    if in_line := [row["id"] for row in rows if row["is_in_line"]]:
        await connection.execute(_SQL["move_in_line"].text, tenant_no, in_line)
    return {ExecutionId(row["id"]): (PoolNo(row["pool_no"]), row["ready_at"]) for row in rows}


async def open_executions(
    connection: Connection, tenant_no: TenantNo, openings: Sequence[Opening]
) -> list[tuple[PoolNo, datetime]]:
    """Make executions; returns the pools to wake."""
    rows = await connection.fetch(
        _SQL["open_executions"].text,
        tenant_no,
        [one.execution_id for one in openings],
        [one.job_id for one in openings],
        [one.job_version for one in openings],
        [one.pool_no for one in openings],
        [one.priority_class for one in openings],
        [one.stages for one in openings],
        [one.start_within_s for one in openings],
        [one.payload for one in openings],
        [one.ready_at for one in openings],
    )
    return [(PoolNo(row["pool_no"]), row["ready_at"]) for row in rows]


async def link_matches(
    connection: Connection, tenant_no: TenantNo, links: Sequence[tuple[UUID, JobId, ExecutionId]]
) -> None:
    """Which execution took each event."""
    ids = [event_id for event_id, _, _ in links]
    await connection.execute(
        _SQL["link_matches"].text,
        tenant_no,
        ids,
        [job_id for _, job_id, _ in links],
        [execution_id for _, _, execution_id in links],
        min(ids),
        max(ids),
    )


async def add_cancel_keys(
    connection: Connection, tenant_no: TenantNo, keys: Sequence[tuple[JobId, UUID, ExecutionId]]
) -> None:
    ordered = sorted(set(keys))
    await connection.execute(
        _SQL["add_cancel_keys"].text,
        tenant_no,
        [job_id for job_id, _, _ in ordered],
        [key for _, key, _ in ordered],
        [execution_id for _, _, execution_id in ordered],
    )


async def remove_cancel_keys(connection: Connection, tenant_no: TenantNo, ids: Collection[ExecutionId]) -> None:
    await connection.execute(_SQL["remove_cancel_keys"].text, tenant_no, list(ids))


async def find_to_cancel(
    connection: Connection, tenant_no: TenantNo, wanted: Sequence[tuple[JobId, UUID]]
) -> list[ToCancel]:
    """Live executions of jobs whose event had these values."""
    rows = await connection.fetch(
        _SQL["find_to_cancel"].text, tenant_no, [job_id for job_id, _ in wanted], [key for _, key in wanted]
    )
    return [ToCancel(ExecutionId(row["id"]), row["has_list"], row["no"] - 1) for row in rows]


async def lock_list(connection: Connection, tenant_no: TenantNo, id_: ExecutionId) -> Collected | None:
    """The window of an execution with a list, locked."""
    row = await connection.fetchrow(_SQL["lock_list"].text, tenant_no, id_)
    marks = None if row is None else _marks(row["marks"])
    return None if row is None or marks is None else Collected(marks, row["is_open"])


async def read_list(connection: Connection, tenant_no: TenantNo, id_: ExecutionId) -> list[Any] | None:
    """The list of an execution that has not started; None: it has, or has ended."""
    text = await connection.fetchval(_SQL["read_list"].text, tenant_no, id_)
    return None if text is None else msgspec.json.decode(text, type=list[Any])


async def forget_windows(connection: Connection, limit: int) -> int:
    """Housekeeping: remove what is kept for executions that have started or ended."""
    return int(await connection.fetchval(_SQL["forget_windows"].text, limit))


def _marks(text: str | None) -> Marks | None:
    return None if text is None else msgspec.json.decode(text, type=Marks)


def _text(marks: Marks | None) -> str | None:
    return None if marks is None else msgspec.json.encode(marks).decode()
