"""Alerts as they are stored, and the state that says which process evaluates them (O4).

Every change starts with `raise_generation`: it locks the one row of the state, so changes and the evaluation follow one
another, and the evaluation reads what changed before it decides again.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ondot.model.alerts.kinds import KINDS, Kind
from ondot.model.alerts.scope import Scope, scope_of
from ondot.model.ids import TenantNo
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("alerts")


@dataclass(frozen=True, slots=True)
class AlertRow:
    id: UUID
    tenant_no: TenantNo
    name: str
    when: dict[str, dict[str, Any]]
    scope: Scope
    for_s: float
    repeat_s: float | None
    notify: tuple[str, ...]
    muted_until: datetime | None
    version: int
    created_at: datetime
    created_by: str
    updated_at: datetime

    @property
    def kind(self) -> Kind:
        return KINDS[next(iter(self.when))]

    @property
    def thresholds(self) -> dict[str, Any]:
        return next(iter(self.when.values()))


@dataclass(frozen=True, slots=True)
class LoadedAlert:
    """An alert with its tenant, as the evaluation needs it."""

    row: AlertRow
    tenant: str
    is_active: bool
    """False: its tenant is suspended."""


@dataclass(frozen=True, slots=True)
class AlertState:
    generation: int
    evaluator: UUID | None
    now: datetime


async def raise_generation(connection: Connection) -> None:
    await connection.execute(_SQL["raise_alert_generation"].text)


async def read_state(connection: Connection) -> AlertState:
    row = await connection.fetchrow(_SQL["read_alert_state"].text)
    assert row is not None
    return AlertState(row["generation"], row["evaluator"], row["now"])


async def take_over(connection: Connection, evaluator: UUID) -> int:
    """Returns the generation. Writes of the evaluator before are refused from then on."""
    return int(await connection.fetchval(_SQL["take_over_alerts"].text, evaluator))


async def hold(connection: Connection, evaluator: UUID, generation: int) -> bool:
    """Whether this evaluator may write what it decided; the state stays locked until the transaction ends."""
    return bool(await connection.fetchval(_SQL["hold_alerts"].text, evaluator, generation))


async def load_alerts(connection: Connection) -> list[LoadedAlert]:
    """Of all tenants. A kind of a later release is left out."""
    rows = await connection.fetch(_SQL["load_alerts"].text)
    return [
        LoadedAlert(_row(row), row["tenant"], row["is_active"])
        for row in rows
        if next(iter(msgspec.json.decode(row["when"]))) in KINDS
    ]


async def add_alert(connection: Connection, alert: AlertRow) -> AlertRow | None:
    """None: the tenant has an alert with this name."""
    row = await connection.fetchrow(_SQL["add_alert"].text, *_values(alert), alert.created_by)
    return None if row is None else _row(row)


async def change_alert(connection: Connection, alert: AlertRow) -> AlertRow:
    row = await connection.fetchrow(_SQL["change_alert"].text, *_values(alert))
    assert row is not None
    return _row(row)


async def delete_alert(connection: Connection, tenant_no: TenantNo, id_: UUID) -> AlertRow | None:
    row = await connection.fetchrow(_SQL["delete_alert"].text, tenant_no, id_)
    return None if row is None else _row(row)


async def count_alerts(connection: Connection, tenant_no: TenantNo) -> int:
    return int(await connection.fetchval(_SQL["count_alerts"].text, tenant_no))


async def list_alerts(connection: Connection, tenant_no: TenantNo, *, after: str = "", limit: int) -> list[AlertRow]:
    return [_row(row) for row in await connection.fetch(_SQL["list_alerts"].text, tenant_no, after, limit)]


async def find_alert(
    connection: Connection, tenant_no: TenantNo, *, id_: UUID | None = None, name: str | None = None
) -> AlertRow | None:
    """By its id or its name."""
    row = await connection.fetchrow(_SQL["find_alert"].text, tenant_no, id_, name)
    return None if row is None else _row(row)


async def lock_alert(connection: Connection, tenant_no: TenantNo, id_: UUID) -> AlertRow | None:
    row = await connection.fetchrow(_SQL["lock_alert"].text, tenant_no, id_)
    return None if row is None else _row(row)


def _values(alert: AlertRow) -> tuple[object, ...]:
    return (
        alert.tenant_no,
        alert.id,
        alert.name,
        msgspec.json.encode(alert.when).decode(),
        msgspec.json.encode(alert.scope.as_json()).decode(),
        alert.for_s,
        alert.repeat_s,
        list(alert.notify),
        alert.muted_until,
    )


def _row(row: Record) -> AlertRow:
    return AlertRow(
        id=row["id"],
        tenant_no=TenantNo(row["tenant_no"]),
        name=row["name"],
        when=msgspec.json.decode(row["when"]),
        scope=scope_of(msgspec.json.decode(row["scope"])),
        for_s=row["for_s"],
        repeat_s=row["repeat_s"],
        notify=tuple(row["notify"]),
        muted_until=row["muted_until"],
        version=row["version"],
        created_at=row["created_at"],
        created_by=row["created_by"],
        updated_at=row["updated_at"],
    )
