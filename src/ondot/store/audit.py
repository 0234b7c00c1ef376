"""The audit log (T6): who did what to what, and when. An entry is written in the transaction of the change that it
records, so that neither exists without the other. It is kept by day and never changed; `flow.audit_seal` seals it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal, TypedDict, Unpack
from uuid import UUID

import msgspec

from ondot.model.ids import TenantNo, first_id_at, instant_of
from ondot.model.trace import TraceContext
from ondot.store.connection import Connection, Record
from ondot.store.day_bounds import LAST_ID
from ondot.store.newest import NO_ID, newest_first
from ondot.store.queries import load_queries

_SQL = load_queries("audit")

_JSON: Final = ("detail", "before", "after")
Action = Literal[
    "dead_letter.replay",
    "dead_letter.discard",
    "dead_letter.stop",
    "bulk.start",
    "bulk.stop",
    "bulk.undo",
    "view.create",
    "view.update",
    "view.delete",
    "execution.retry",
    "execution.cancel",
    "pool.limits",
    "pool.transport",
    "database.accept",
    "job.create",
    "job.update",
    "job.declare",
    "job.adopt",
    "job.pause",
    "job.resume",
    "job.delete",
    "job.run",
    "job.backfill",
    "job.backfill_cancel",
    "run.retry",
    "run.rerun",
    "run.skip",
    "run.result",
    "run.give_up",
    "run.pause",
    "run.resume",
    "run.cancel",
    "key.create",
    "key.revoke",
    "key.rotate",
    "step.approve",
    "step.reject",
    "step.link",
    "step.limits",
    "event.replay",
    "connection.set",
    "connection.delete",
    "connection.test",
    "channel.create",
    "channel.update",
    "channel.delete",
    "channel.test",
    "sink.create",
    "sink.update",
    "sink.delete",
    "sink.pause",
    "sink.resume",
    "sink.test",
    "ping.create",
    "ping.rotate",
    "ping.delete",
    "alert.create",
    "alert.update",
    "alert.mute",
    "alert.delete",
    "incident.acknowledge",
    "incident.resolve",
    "hook.create",
    "hook.rotate",
    "hook.delete",
    "tenant.create",
    "tenant.update",
    "tenant.suspend",
    "tenant.resume",
    "tenant.delete",
    "secret.set",
    "secret.delete",
    "secret.rotate_master",
    "user.create",
    "user.change",
    "user.reset",
    "user.delete",
    "user.password",
    "user.sign_in",
    "webhook.read_secret",
    "webhook.rotate",
]
"""`dead_letter.stop`: an operation on many dead letters was cancelled."""

ONDOT: Final = "ondot"
"""The actor of a change that ondot itself decides on: it pauses a job that keeps failing."""

Detail = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class By:
    """The caller of a change, and the reason it gives. A change without one is not recorded."""

    actor: str
    reason: str | None = None
    key_id: UUID | None = None
    user_id: UUID | None = None
    address: str | None = None
    """Where the request came from."""
    request_id: str | None = None
    home_tenant_no: TenantNo | None = None
    """The tenant of an owner who acts for another one; None: its own."""
    trace: TraceContext | None = None
    """The span that sent the request: what the change starts belongs to its trace (`store.traces`)."""
    operation: UUID | None = None
    """The change is a part of this operation on many (`flow.bulk`), and the operation's one entry stands for it."""

    def because(self, reason: str | None) -> "By":
        return replace(self, reason=reason)


@dataclass(frozen=True, slots=True)
class AuditRow:
    id: UUID
    actor: str
    action: str
    subject: UUID | None
    detail: Any
    key_id: UUID | None
    user_id: UUID | None
    address: str | None
    request_id: str | None
    home_tenant_no: TenantNo | None
    before: Any
    after: Any

    @property
    def at(self) -> datetime:
        return instant_of(self.id)

    @property
    def reason(self) -> str | None:
        """Why, as the caller stated it; kept with the detail."""
        return self.detail.get("reason") if isinstance(self.detail, dict) else None


class AuditFilter(TypedDict, total=False):
    """Which entries: None or absent is any. `from_at` is included, `to_at` is not."""

    subject: UUID | None
    action: str | None
    actor: str | None
    key_id: UUID | None
    user_id: UUID | None
    request_id: str | None
    from_at: datetime | None
    to_at: datetime | None


async def record(
    connection: Connection,
    tenant_no: TenantNo,
    by: By | str,
    action: Action,
    subject: UUID | None,
    detail: Detail | None = None,
    *,
    before: Detail | None = None,
    after: Detail | None = None,
) -> None:
    """Record a change, in its transaction. `before`, `after`: the values that changed; never a secret."""
    await record_all(connection, tenant_no, by, action, [(subject, detail or {})], before=before, after=after)


async def record_change(
    connection: Connection,
    tenant_no: TenantNo,
    by: By | None,
    action: Action,
    subject: UUID | None,
    detail: Detail | None = None,
    *,
    before: Detail | None = None,
    after: Detail | None = None,
) -> None:
    """Record a change, in its transaction, if a caller asked for it."""
    if by is not None:
        await record(connection, tenant_no, by, action, subject, detail, before=before, after=after)


async def record_all(
    connection: Connection,
    tenant_no: TenantNo,
    by: By | str,
    action: Action,
    entries: Sequence[tuple[UUID | None, Detail]],
    *,
    before: Detail | None = None,
    after: Detail | None = None,
) -> None:
    """Record the same action on many subjects, in one statement. Details without a value are left out."""
    by = By(by) if isinstance(by, str) else by
    if not entries or by.operation is not None:
        return
    details = [
        {name: value for name, value in {"reason": by.reason, **detail}.items() if value is not None}
        for _, detail in entries
    ]
    await connection.execute(
        _SQL["record_audit"].text,
        tenant_no,
        by.actor,
        action,
        [subject for subject, _ in entries],
        [_json(detail) if detail else None for detail in details],
        by.key_id,
        by.user_id,
        by.address,
        by.request_id,
        by.home_tenant_no,
        None if before is None else _json(before),
        None if after is None else _json(after),
    )


async def list_audit(
    connection: Connection,
    tenant_no: TenantNo,
    *,
    before: UUID | None = None,
    limit: int,
    **where: Unpack[AuditFilter],
) -> list[AuditRow]:
    """Entries, newest first."""
    from_at, to_at = where.get("from_at"), where.get("to_at")
    to_id = LAST_ID if to_at is None else first_id_at(to_at)
    down_to = NO_ID if from_at is None else first_id_at(from_at)

    async def read(from_id: UUID, to_id: UUID, most: int) -> list[Record]:
        return await connection.fetch(
            _SQL["list_audit"].text,
            tenant_no,
            where.get("subject"),
            where.get("action"),
            from_id,
            most,
            to_id,
            where.get("actor"),
            where.get("key_id"),
            where.get("user_id"),
            where.get("request_id"),
        )

    starts = min(to_id, before or LAST_ID)
    if starts <= down_to:
        return []
    rows = await newest_first(
        connection, read, limit=limit, before=None if starts == LAST_ID else starts, down_to=down_to
    )
    return [_row(row) for row in rows]


def _row(row: Record) -> AuditRow:
    values = dict(row)
    for name in _JSON:
        values[name] = None if row[name] is None else msgspec.json.decode(row[name])
    return AuditRow(**values)


def _json(value: Detail) -> str:
    return msgspec.json.encode(value).decode()
