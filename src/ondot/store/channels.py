"""Channels and deliveries as they are stored (O4). The execution of a delivery has the delivery's id."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from ondot.model.channel import (
    JOINED_FOR_S,
    ChannelSpec,
    DeliveryState,
    Joined,
    Message,
    decode_channel,
    decode_message,
    encode,
)
from ondot.model.ids import INSTALLATION, ExecutionId, JobId, PoolNo, TenantNo
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("channels")
JOINS: Final = timedelta(seconds=2 * JOINED_FOR_S)
"""A joined message may be older than an incident that it contains."""
_JOINED = msgspec.json.Decoder(list[Joined])


@dataclass(frozen=True, slots=True)
class ChannelRow:
    id: UUID
    tenant_no: TenantNo
    name: str
    job_id: JobId
    spec: ChannelSpec
    version: int
    created_at: datetime
    created_by: str
    updated_at: datetime | None
    updated_by: str | None


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """One message to one channel. `joined`: how many messages it stands for, 0 if it is a single one."""

    id: ExecutionId
    channel: str
    incident_id: UUID | None
    kind: str
    title: str
    state: DeliveryState
    attempts: int
    answer: str | None
    error: str | None
    created_at: datetime
    tried_at: datetime | None
    ended_at: datetime | None
    joined: int


@dataclass(frozen=True, slots=True)
class DatabaseAlert:
    """An alert of the kind `database`, and the channels that it names."""

    id: UUID
    tenant_no: TenantNo
    for_s: float
    notify: list[str]
    latest_incident: UUID | None


@dataclass(frozen=True, slots=True)
class StartedDelivery:
    """A delivery whose attempt starts. `is_over`, `is_beside`: see `start_delivery` in the SQL."""

    channel: ChannelRow
    message: Message
    joined: Sequence[Joined] | None
    joined_more: int
    state: DeliveryState
    has_ended: bool
    age_s: float
    is_over: bool
    is_beside: bool


async def add_channel(
    connection: Connection,
    id_: UUID,
    tenant_no: TenantNo,
    name: str,
    job_id: JobId,
    spec: ChannelSpec,
    *,
    created_by: str,
) -> ChannelRow | None:
    """None: the tenant has a channel with this name."""
    row = await connection.fetchrow(_SQL["add_channel"].text, id_, tenant_no, name, job_id, encode(spec), created_by)
    return None if row is None else _channel(row)


async def count_channels(connection: Connection, tenant_no: TenantNo) -> int:
    count: int = await connection.fetchval(_SQL["count_channels"].text, tenant_no)
    return count


async def list_channels(
    connection: Connection, tenant_no: TenantNo, *, after: str = "", limit: int
) -> list[ChannelRow]:
    """By name."""
    return [_channel(row) for row in await connection.fetch(_SQL["list_channels"].text, tenant_no, after, limit)]


async def find_channels(connection: Connection, tenant_no: TenantNo, names: Collection[str]) -> dict[str, ChannelRow]:
    """Those of these channels that exist."""
    rows = await connection.fetch(_SQL["find_channels"].text, tenant_no, sorted(names))
    return {row["name"]: _channel(row) for row in rows}


async def lock_channel(connection: Connection, tenant_no: TenantNo, name: str) -> ChannelRow | None:
    row = await connection.fetchrow(_SQL["lock_channel"].text, tenant_no, name)
    return None if row is None else _channel(row)


async def change_channel(
    connection: Connection, tenant_no: TenantNo, id_: UUID, spec: ChannelSpec, *, updated_by: str
) -> ChannelRow:
    row = await connection.fetchrow(_SQL["change_channel"].text, tenant_no, id_, encode(spec), updated_by)
    assert row is not None
    return _channel(row)


async def find_alerts_of_channel(connection: Connection, tenant_no: TenantNo, name: str) -> list[str]:
    """The names of alerts that notify it, ten at most."""
    return [row["name"] for row in await connection.fetch(_SQL["find_alerts_of_channel"].text, tenant_no, name)]


async def find_database_alerts(connection: Connection) -> list[DatabaseAlert]:
    """Of all tenants."""
    return [DatabaseAlert(*row.values()) for row in await connection.fetch(_SQL["find_database_alerts"].text)]


async def delete_channel(connection: Connection, tenant_no: TenantNo, id_: UUID) -> None:
    """And its deliveries."""
    await connection.execute(_SQL["delete_channel"].text, tenant_no, id_)


async def count_recent(
    connection: Connection, tenant_no: TenantNo, channel_ids: Sequence[UUID], within_s: float
) -> dict[UUID, tuple[ExecutionId, int]]:
    """The id of the next delivery of each channel, and how many single messages of it were queued lately."""
    rows = await connection.fetch(_SQL["count_recent"].text, tenant_no, channel_ids, within_s)
    return {row["id"]: (ExecutionId(row["delivery_id"]), row["count"]) for row in rows}


async def join_message(
    connection: Connection, tenant_no: TenantNo, channel_id: UUID, joined: Joined, most: int
) -> bool:
    """Add a message to the joined one that is open. False: there is none."""
    text = msgspec.json.encode(joined).decode()
    return await connection.fetchval(_SQL["join_message"].text, tenant_no, channel_id, text, most) is not None


async def add_delivery(
    connection: Connection,
    id_: ExecutionId,
    channel: ChannelRow,
    message: Message,
    joined: Sequence[Joined] | None = None,
) -> None:
    await connection.execute(
        _SQL["add_delivery"].text,
        id_,
        channel.tenant_no,
        channel.id,
        message.incident_id if joined is None else None,
        message.kind,
        encode(message),
        None if joined is None else msgspec.json.encode(joined).decode(),
    )


async def queue_delivery(
    connection: Connection, id_: ExecutionId, job_id: JobId, pool_no: PoolNo, priority_class: int, after_s: float
) -> datetime:
    """Make the execution of a delivery; returns when it may start."""
    row = await connection.fetchrow(
        _SQL["queue_delivery"].text, INSTALLATION, id_, job_id, pool_no, priority_class, after_s
    )
    assert row is not None
    ready_at: datetime = row["ready_at"]
    return ready_at


async def start_delivery(
    connection: Connection, id_: ExecutionId, attempt_no: int, attempt_s: float
) -> StartedDelivery | None:
    """None: it is gone, with its channel or its tenant."""
    row = await connection.fetchrow(_SQL["start_delivery"].text, id_, attempt_no, attempt_s)
    if row is None:
        return None
    return StartedDelivery(
        _channel(row),
        decode_message(row["message"]),
        None if row["joined"] is None else _JOINED.decode(row["joined"]),
        row["joined_more"],
        DeliveryState(row["state"]),
        row["has_ended"],
        row["age_s"],
        row["is_over"],
        row["is_beside"],
    )


async def end_attempt(
    connection: Connection,
    id_: ExecutionId,
    attempt_no: int,
    state: DeliveryState,
    *,
    answer: str | None = None,
    error: str | None = None,
    has_ended: bool,
) -> None:
    """Record how an attempt ended, unless a later one has started."""
    await connection.execute(_SQL["end_attempt"].text, id_, attempt_no, state, answer, error, has_ended)


async def list_deliveries(
    connection: Connection,
    tenant_no: TenantNo,
    *,
    channel_id: UUID | None = None,
    before: UUID | None = None,
    limit: int = 50,
) -> list[DeliveryRow]:
    """Of a channel, or of all; newest first."""
    rows = await connection.fetch(_SQL["list_deliveries"].text, tenant_no, channel_id, before, limit)
    return [_delivery(row) for row in rows]


async def list_deliveries_of_incident(
    connection: Connection, tenant_no: TenantNo, incident_id: UUID, opened_at: datetime, limit: int
) -> list[DeliveryRow]:
    """Newest first; also those that joined a message about it with others. None is older than the incident."""
    rows = await connection.fetch(
        _SQL["list_deliveries_of_incident"].text, tenant_no, incident_id, opened_at - JOINS, limit
    )
    return [_delivery(row) for row in rows]


async def get_delivery(connection: Connection, tenant_no: TenantNo, id_: UUID) -> DeliveryRow | None:
    row = await connection.fetchrow(_SQL["get_delivery"].text, tenant_no, id_)
    return None if row is None else _delivery(row)


async def has_due_deliveries(connection: Connection, within_s: float) -> bool:
    """Whether a delivery may start now, or within some seconds."""
    is_due: bool = await connection.fetchval(_SQL["has_due_deliveries"].text, within_s)
    return is_due


async def end_abandoned_deliveries(connection: Connection, error: str, limit: int) -> list[tuple[ChannelRow, Message]]:
    """Those whose execution has ended without a word about them, as failed."""
    rows = await connection.fetch(_SQL["end_abandoned_deliveries"].text, error, limit)
    return [(_channel(row), decode_message(row["message"])) for row in rows]


async def forget_deliveries(connection: Connection, days: int, limit: int) -> int:
    count: int = await connection.fetchval(_SQL["forget_deliveries"].text, days, limit)
    return count


async def retire_channel_jobs(connection: Connection) -> None:
    """Delete the jobs of channels that are gone, and discard the dead letters of deliveries."""
    await connection.execute(_SQL["retire_channel_jobs"].text, INSTALLATION)


def _channel(row: Record) -> ChannelRow:
    return ChannelRow(
        row["id"],
        TenantNo(row["tenant_no"]),
        row["name"],
        JobId(row["job_id"]),
        decode_channel(row["spec"]),
        row["version"],
        row["created_at"],
        row["created_by"],
        row["updated_at"],
        row["updated_by"],
    )


def _delivery(row: Record) -> DeliveryRow:
    return DeliveryRow(
        ExecutionId(row["id"]),
        row["channel"],
        row["incident_id"],
        row["kind"],
        row["title"],
        DeliveryState(row["state"]),
        row["attempts"],
        row["answer"],
        row["error"],
        row["created_at"],
        row["tried_at"],
        row["ended_at"],
        row["joined"],
    )
