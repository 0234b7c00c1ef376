"""Sinks and the outbox as they are stored (E3): what happened, in order, and how far each sink has sent it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.model.sink import SinkSpec, decode_sink, encode_sink
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("sinks")


@dataclass(frozen=True, slots=True)
class SinkRow:
    id: UUID
    tenant_no: TenantNo
    name: str
    spec: SinkSpec
    is_paused: bool
    version: int
    created_at: datetime
    created_by: str
    updated_at: datetime | None
    updated_by: str | None
    position: int
    """The outbox up to this number is delivered."""
    sent: int
    shortened: int
    refused: int
    dropped: int
    sent_at: datetime | None
    error: str | None
    error_at: datetime | None
    failing_since: datetime | None
    tries: int
    retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class Lag:
    """`since`: of the oldest event that waits; None: none does."""

    events: int = 0
    since: datetime | None = None
    behind_s: float = 0.0
    tenant: str = ""
    """Its name."""


@dataclass(frozen=True, slots=True)
class OutboxRow:
    no: int
    at: datetime
    type: str
    job_ids: Sequence[JobId]
    execution_ids: Sequence[ExecutionId] | None
    attempt_nos: Sequence[int] | None
    retry_ats: Sequence[datetime] | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class LockedSink:
    id: UUID
    spec: SinkSpec
    is_paused: bool


async def put_sink(
    connection: Connection, id_: UUID, tenant_no: TenantNo, name: str, spec: SinkSpec, *, by: str
) -> tuple[UUID, int]:
    """Create or change a sink; returns its id and its version. `id_`: if it is new."""
    row = await connection.fetchrow(
        _SQL["put_sink"].text, id_, tenant_no, name, list(spec.all_types), encode_sink(spec), by
    )
    assert row is not None
    return row["id"], row["version"]


async def lock_sink(connection: Connection, tenant_no: TenantNo, name: str) -> LockedSink | None:
    row = await connection.fetchrow(_SQL["lock_sink"].text, tenant_no, name)
    return None if row is None else LockedSink(row["id"], decode_sink(row["spec"]), row["is_paused"])


async def count_sinks(connection: Connection, tenant_no: TenantNo) -> int:
    count: int = await connection.fetchval(_SQL["count_sinks"].text, tenant_no)
    return count


async def list_sinks(connection: Connection, tenant_no: TenantNo, *, after: str = "", limit: int) -> list[SinkRow]:
    """By name."""
    return [_sink(row) for row in await connection.fetch(_SQL["list_sinks"].text, tenant_no, after, limit, None)]


async def get_sink(connection: Connection, tenant_no: TenantNo, name: str) -> SinkRow | None:
    row = await connection.fetchrow(_SQL["list_sinks"].text, tenant_no, "", 1, name)
    return None if row is None else _sink(row)


async def list_all_sinks(connection: Connection, limit: int) -> list[SinkRow]:
    """Of all tenants; those that fail or are behind come first."""
    return [_sink(row) for row in await connection.fetch(_SQL["list_all_sinks"].text, limit)]


async def measure_lags(connection: Connection, sinks: Sequence[SinkRow], limit: int) -> dict[UUID, Lag]:
    """What waits for each sink, looked for in at most `limit` rows."""
    ids, tenants = [sink.id for sink in sinks], [sink.tenant_no for sink in sinks]
    rows = await connection.fetch(_SQL["measure_lags"].text, ids, tenants, limit) if sinks else []
    return {
        row["id"]: Lag(row["events"], row["since"], max(row["behind_s"] or 0.0, 0.0), row["tenant"]) for row in rows
    }


async def set_sink_paused(connection: Connection, tenant_no: TenantNo, id_: UUID, *, is_paused: bool, by: str) -> None:
    await connection.execute(_SQL["set_sink_paused"].text, tenant_no, id_, is_paused, by)


async def delete_sink(connection: Connection, tenant_no: TenantNo, id_: UUID) -> None:
    await connection.execute(_SQL["delete_sink"].text, tenant_no, id_)


async def post_job_events(
    connection: Connection, tenant_no: TenantNo, type_: str, details: Mapping[JobId, Mapping[str, Any]]
) -> None:
    """Write events of jobs to the outbox, if a sink wants them. In the transaction of their cause."""
    texts = [msgspec.json.encode(detail).decode() for detail in details.values()]
    await connection.execute(_SQL["post_job_events"].text, tenant_no, type_, list(details), texts)


async def post_test_event(connection: Connection, tenant_no: TenantNo, id_: UUID, detail: Mapping[str, Any]) -> int:
    """An event for this sink alone; returns its number."""
    text = msgspec.json.encode(detail).decode()
    number: int = await connection.fetchval(_SQL["post_test_event"].text, tenant_no, id_, text)
    return number


async def read_last_no(connection: Connection) -> int:
    number: int = await connection.fetchval(_SQL["read_last_no"].text)
    return number


async def read_snapshot(connection: Connection) -> tuple[int, int]:
    """The lowest transaction that has not ended, and the lowest that had not begun to write."""
    row = await connection.fetchrow(_SQL["read_snapshot"].text)
    assert row is not None
    return row["xmin"], row["xmax"]


async def find_due_sinks(connection: Connection, through: int, limit: int) -> list[SinkRow]:
    return [_sink(row) for row in await connection.fetch(_SQL["find_due_sinks"].text, through, limit)]


async def read_outbox(
    connection: Connection, tenant_no: TenantNo, *, after: int, through: int, events: int
) -> list[OutboxRow]:
    rows = await connection.fetch(_SQL["read_outbox"].text, tenant_no, after, through, events)
    return [OutboxRow(*row.values()) for row in rows]


async def advance_sink(
    connection: Connection,
    sink: SinkRow,
    position: int,
    *,
    sent: int,
    shortened: int = 0,
    refused: int = 0,
    error: str | None = None,
) -> bool:
    """Record what was acknowledged. False: the sink is gone."""
    values = (sink.tenant_no, sink.id, position, sent, shortened, refused, error)
    return await connection.fetchval(_SQL["advance_sink"].text, *values) is not None


async def fail_sink(connection: Connection, sink: SinkRow, error: str, again_s: float) -> datetime | None:
    """Record a failure; returns since when it fails. None: the sink is gone."""
    since: datetime | None = await connection.fetchval(_SQL["fail_sink"].text, sink.tenant_no, sink.id, error, again_s)
    return since


async def find_outbox_tenants(connection: Connection) -> list[TenantNo]:
    return [TenantNo(row["tenant_no"]) for row in await connection.fetch(_SQL["find_outbox_tenants"].text)]


async def remove_sent(connection: Connection, tenant_no: TenantNo, limit: int) -> int:
    count: int = await connection.fetchval(_SQL["remove_sent"].text, tenant_no, limit)
    return count


async def find_oldest(connection: Connection, tenant_no: TenantNo, kept_s: float) -> int | None:
    """The last row that is older than `kept_s`; None: there is none."""
    number: int | None = await connection.fetchval(_SQL["find_oldest"].text, tenant_no, kept_s)
    return number


async def drop_old(connection: Connection, tenant_no: TenantNo, through: int) -> list[tuple[UUID, str, int]]:
    """Move sinks past old rows; returns the id and name of each, and how many events it has missed so far."""
    return [tuple(row.values()) for row in await connection.fetch(_SQL["drop_old"].text, tenant_no, through)]


async def find_ended_facts(
    connection: Connection, tenant_no: TenantNo, ids: Collection[ExecutionId], longest_result: int
) -> dict[ExecutionId, dict[str, Any]]:
    if not ids:
        return {}
    rows = await connection.fetch(
        _SQL["find_ended_facts"].text, tenant_no, list(ids), min(ids), max(ids), longest_result
    )
    return {row["id"]: dict(row.items()) for row in rows}


async def find_attempt_facts(
    connection: Connection, tenant_no: TenantNo, attempts: Collection[tuple[ExecutionId, int]]
) -> dict[tuple[ExecutionId, int], dict[str, Any]]:
    if not attempts:
        return {}
    ids = [id_ for id_, _ in attempts]
    rows = await connection.fetch(
        _SQL["find_attempt_facts"].text, tenant_no, ids, [number for _, number in attempts], min(ids), max(ids)
    )
    return {(row["id"], row["attempt_no"]): dict(row.items()) for row in rows}


async def find_facts_of_jobs(
    connection: Connection, tenant_no: TenantNo, ids: Collection[JobId]
) -> dict[JobId, tuple[str, dict[str, str]]]:
    """The name and the labels of each job that exists."""
    if not ids:
        return {}
    rows = await connection.fetch(_SQL["find_facts_of_jobs"].text, tenant_no, list(ids))
    return {
        row["id"]: (row["name"], msgspec.json.decode(row["labels"] or "{}")) for row in rows if row["name"] is not None
    }


def _sink(row: Record) -> SinkRow:
    fields = dict(row.items())
    return SinkRow(**fields | {"spec": decode_sink(fields["spec"])})
