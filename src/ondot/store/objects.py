"""References to output in object storage, and results of ended executions (E14)."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from ondot.model.ids import ExecutionId, TenantNo
from ondot.ports.objects import Kind
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("objects")


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """One object. `cut`: the rest was cut off."""

    execution_id: ExecutionId
    attempt_no: int
    kind: Kind
    tenant_no: TenantNo
    key: str
    bytes: int
    cut: bool = False


@dataclass(frozen=True, slots=True)
class ResultRow:
    """The result as JSON text; with a key it is only a summary, and the result is in object storage."""

    attempt_no: int
    result: str | None
    key: str | None


@dataclass(frozen=True, slots=True)
class WriterRow:
    worker_id: UUID | None
    host: str | None


async def add_objects(connection: Connection, objects: Sequence[ObjectRow]) -> None:
    await connection.execute(
        _SQL["add_objects"].text,
        [entry.execution_id for entry in objects],
        [entry.attempt_no for entry in objects],
        [entry.kind for entry in objects],
        [entry.tenant_no for entry in objects],
        [entry.key for entry in objects],
        [entry.bytes for entry in objects],
        [entry.cut for entry in objects],
    )


async def find_object(
    connection: Connection, tenant_no: TenantNo, id_: ExecutionId, attempt_no: int, kind: Kind
) -> ObjectRow | None:
    row = await connection.fetchrow(_SQL["find_object"].text, tenant_no, id_, attempt_no, kind)
    return ObjectRow(*row.values()) if row else None


async def find_result(connection: Connection, tenant_no: TenantNo, id_: ExecutionId) -> ResultRow | None:
    """None: it has not ended."""
    row = await connection.fetchrow(_SQL["find_result"].text, tenant_no, id_)
    return ResultRow(*row.values()) if row else None


async def find_writer(
    connection: Connection, tenant_no: TenantNo, id_: ExecutionId, attempt_no: int
) -> WriterRow | None:
    row = await connection.fetchrow(_SQL["find_writer"].text, tenant_no, id_, attempt_no)
    return WriterRow(*row.values()) if row else None
