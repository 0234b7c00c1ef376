"""What attempts write while they run: log lines, captured output, progress and checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from ondot.model.ids import ExecutionId, TenantNo, WorkerId
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("logs")

Stream = Literal["log", "stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class LogLine:
    execution_id: ExecutionId
    attempt_no: int
    line_no: int
    tenant_no: TenantNo
    at: datetime
    stream: Stream
    line: str


@dataclass(frozen=True, slots=True)
class LogRow:
    attempt_no: int
    line_no: int
    at: datetime
    stream: Stream
    line: str


@dataclass(frozen=True, slots=True)
class Progress:
    """The latest progress of an attempt. A checkpoint is JSON text."""

    execution_id: ExecutionId
    attempt_no: int
    checkpoint: str | None
    progress: float | None
    message: str | None


async def add_log_lines(connection: Connection, lines: Sequence[LogLine]) -> None:
    await connection.execute(
        _SQL["add_log_lines"].text,
        [line.execution_id for line in lines],
        [line.attempt_no for line in lines],
        [line.line_no for line in lines],
        [line.tenant_no for line in lines],
        [line.at for line in lines],
        [line.stream for line in lines],
        [line.line for line in lines],
    )


async def list_log_lines(
    connection: Connection,
    tenant_no: TenantNo,
    id_: ExecutionId,
    *,
    after: tuple[int, int] = (0, 0),
    limit: int,
    attempt_no: int | None = None,
    part: str | None = None,
) -> list[LogRow]:
    """Lines after a position, of one attempt or of all, that contain `part`; case is ignored."""
    rows = await connection.fetch(
        _SQL["list_log_lines"].text, tenant_no, id_, *after, limit, attempt_no, part.lower() if part else None
    )
    return [LogRow(*row.values()) for row in rows]


async def is_under_way(connection: Connection, tenant_no: TenantNo, id_: ExecutionId) -> bool:
    """Whether it has not ended, so that more lines may follow."""
    return bool(await connection.fetchval(_SQL["is_under_way"].text, tenant_no, id_))


async def save_progress(connection: Connection, worker_id: WorkerId, progress: Sequence[Progress]) -> None:
    await connection.execute(
        _SQL["save_progress"].text,
        worker_id,
        [entry.execution_id for entry in progress],
        [entry.attempt_no for entry in progress],
        [entry.checkpoint for entry in progress],
        [entry.progress for entry in progress],
        [entry.message for entry in progress],
    )


async def find_checkpoint(connection: Connection, id_: ExecutionId) -> str | None:
    text: str | None = await connection.fetchval(_SQL["find_checkpoint"].text, id_)
    return text


async def forget_checkpoints(connection: Connection, after: UUID, limit: int) -> UUID | None:
    """Remove checkpoints of ended executions, of the next `limit` after this id. Returns the last id (None: end)."""
    row = await connection.fetchrow(_SQL["forget_checkpoints"].text, after, limit)
    assert row is not None
    through: UUID | None = row["through"] if row["count"] == limit else None
    return through
