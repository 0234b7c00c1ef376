"""The audit log (T6): who did what to what, and when. An entry is written in the transaction of the change that it
records, so that neither exists without the other. It is kept by day and never changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from ondot.model.ids import TenantNo, instant_of
from ondot.store.connection import Connection, Record
from ondot.store.newest import newest_first
from ondot.store.queries import load_queries

_SQL = load_queries("audit")

Action = Literal[
    "dead_letter.replay",
    "dead_letter.discard",
    "dead_letter.stop",
    "execution.retry",
    "execution.cancel",
    "pool.limits",
    "database.accept",
    "job.create",
    "job.update",
    "job.pause",
    "job.resume",
    "job.delete",
    "job.run",
    "job.backfill",
    "job.backfill_cancel",
    "key.create",
    "key.revoke",
    "key.rotate",
]
"""`dead_letter.stop`: an operation on many dead letters was cancelled."""

Detail = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class By:
    """The caller of a change, and the reason it gives. A change of ondot's own has none, and is not recorded."""

    actor: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class AuditRow:
    id: UUID
    actor: str
    action: str
    subject: UUID | None
    detail: Any

    @property
    def at(self) -> datetime:
        return instant_of(self.id)


async def record(
    connection: Connection,
    tenant_no: TenantNo,
    actor: str,
    action: Action,
    subject: UUID | None,
    detail: Detail | None = None,
) -> None:
    await record_all(connection, tenant_no, actor, action, [(subject, detail or {})])


async def record_change(
    connection: Connection,
    tenant_no: TenantNo,
    by: By | None,
    action: Action,
    subject: UUID | None,
    detail: Detail | None = None,
) -> None:
    """Record a change, in its transaction, if a caller asked for it."""
    if by is not None:
        await record(connection, tenant_no, by.actor, action, subject, {"reason": by.reason, **(detail or {})})


async def record_all(
    connection: Connection,
    tenant_no: TenantNo,
    actor: str,
    action: Action,
    entries: Sequence[tuple[UUID | None, Detail]],
) -> None:
    """Record the same action on many subjects, in one statement. Details without a value are left out."""
    if not entries:
        return
    details = [{name: value for name, value in detail.items() if value is not None} for _, detail in entries]
    await connection.execute(
        _SQL["record_audit"].text,
        tenant_no,
        actor,
        action,
        [subject for subject, _ in entries],
        [msgspec.json.encode(detail).decode() if detail else None for detail in details],
    )


async def list_audit(
    connection: Connection,
    tenant_no: TenantNo,
    *,
    subject: UUID | None = None,
    action: str | None = None,
    before: UUID | None = None,
    limit: int,
) -> list[AuditRow]:
    """Entries, newest first."""

    async def read(from_id: UUID, to_id: UUID, most: int) -> list[Record]:
        return await connection.fetch(_SQL["list_audit"].text, tenant_no, subject, action, from_id, most, to_id)

    rows = await newest_first(connection, read, limit=limit, before=before)
    return [
        AuditRow(
            row["id"],
            row["actor"],
            row["action"],
            row["subject"],
            None if row["detail"] is None else msgspec.json.decode(row["detail"]),
        )
        for row in rows
    ]
