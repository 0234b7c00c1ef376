"""Steps of workflows that wait for an event (S11, W8), by the token of their generation."""

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

import msgspec

from ondot.model.ids import ExecutionId, TenantNo
from ondot.model.schedule import OnEvent
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("event_waits")


@dataclass(frozen=True, slots=True)
class EventWaitRow:
    execution_id: ExecutionId
    run_id: ExecutionId
    rule: OnEvent


async def add_event_wait(
    connection: Connection, tenant_no: TenantNo, execution_id: ExecutionId, run_id: UUID, rule: OnEvent
) -> None:
    text = msgspec.json.encode(rule).decode()
    await connection.execute(_SQL["add_event_wait"].text, tenant_no, execution_id, run_id, rule.type, text)


async def find_event_waits(connection: Connection, tenant_no: TenantNo, types: Collection[str]) -> list[EventWaitRow]:
    rows = await connection.fetch(_SQL["find_event_waits"].text, tenant_no, list(types))
    return [
        EventWaitRow(
            ExecutionId(row["execution_id"]), ExecutionId(row["run_id"]), msgspec.json.decode(row["rule"], type=OnEvent)
        )
        for row in rows
    ]


async def remove_event_waits(connection: Connection, tenant_no: TenantNo, ids: Collection[ExecutionId]) -> None:
    await connection.execute(_SQL["remove_event_waits"].text, tenant_no, list(ids))


async def forget_event_waits(connection: Connection, limit: int) -> int:
    return int(await connection.fetchval(_SQL["forget_event_waits"].text, limit))
