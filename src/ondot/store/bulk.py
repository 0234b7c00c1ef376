"""Operations on many executions, jobs, dead letters or runs (O8): the row of each, its turn, its results by item.

A turn is leased (`take_bulk`), and each of its items is claimed in the transaction that acts on it (`claim_items`), so
that a crash repeats nothing and two processes never act on the same item.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ondot.model.bulk import KEPT_REFUSALS, MOST_UNDOABLE, UNDO, BulkAction, BulkState, Kind, Seen
from ondot.model.ids import TenantNo
from ondot.model.trace import parse_traceparent
from ondot.store.audit import By
from ondot.store.connection import Connection, Record
from ondot.store.dead_letters import LetterFilter
from ondot.store.queries import load_queries

_SQL = load_queries("bulk")
_ANY_LETTER = LetterFilter()


@dataclass(frozen=True, slots=True)
class NewBulk:
    """One of `ids`, `q` (empty: all), `filter` (of dead letters) and `undo_of` names the items."""

    id: UUID
    kind: Kind
    action: BulkAction
    per_s: float
    ids: Sequence[UUID] | None = None
    q: str | None = None
    filter: LetterFilter = _ANY_LETTER
    undo_of: UUID | None = None
    change: dict[str, Any] | None = None
    payload: str | None = None
    current_version: bool = False
    pools: frozenset[str] | None = None
    """The pools that the caller's key is limited to. They are read again in each turn, and not stored."""


@dataclass(frozen=True, slots=True)
class BulkRow:
    """An operation as it is shown. `total_is_least`: there were more than were counted in time."""

    id: UUID
    kind: Kind
    action: BulkAction
    filter: LetterFilter
    q: str | None
    selected: int | None
    change: dict[str, Any] | None
    current_version: bool
    own_payload: bool
    reason: str | None
    actor: str
    per_s: float
    total: int
    total_is_least: bool
    done: int
    refused: int
    unchanged: int
    state: BulkState
    stopped_because: str | None
    undo_of: UUID | None
    undone_by: UUID | None
    created_at: datetime
    ended_at: datetime | None

    @property
    def can_be_undone(self) -> bool:
        is_over = self.state != "RUNNING" and self.undone_by is None
        return self.action in UNDO and is_over and 0 < self.done <= MOST_UNDOABLE


@dataclass(frozen=True, slots=True)
class BulkTurn:
    """An operation that this process works on for a moment. `through_id`: the last item of it that was claimed."""

    id: UUID
    tenant_no: TenantNo
    kind: Kind
    action: BulkAction
    filter: LetterFilter
    q: str | None
    change: dict[str, Any] | None
    payload: str | None
    current_version: bool
    reason: str | None
    actor: str
    per_s: float
    total: int
    done: int
    refused: int
    through_id: UUID | None
    later: list[UUID]
    undo_of: UUID | None
    key_id: UUID | None
    user_id: UUID | None
    home_tenant_no: TenantNo | None
    address: str | None
    request_id: str | None
    traceparent: str | None
    tracestate: str | None
    created_at: datetime
    due_at: datetime
    is_selection: bool

    @property
    def by(self) -> By:
        """Its entry in the audit log stands for all its items."""
        return By(
            self.actor,
            self.reason,
            key_id=self.key_id,
            user_id=self.user_id,
            address=self.address,
            request_id=self.request_id,
            home_tenant_no=self.home_tenant_no,
            trace=None if self.traceparent is None else parse_traceparent(self.traceparent, self.tracestate),
            operation=self.id,
        )


@dataclass(frozen=True, slots=True)
class ItemRow:
    """The result for an item; `made`: the execution that was started for it."""

    id: UUID
    is_done: bool
    detail: str | None
    made: UUID | None


@dataclass(frozen=True, slots=True)
class Results:
    """What a transaction of an operation did to its items.

    `kept`: changed ones with what was before, as JSON text, if that can be undone, or with the execution that was made.
    `later`: those that others have locked.
    """

    done: int = 0
    unchanged: int = 0
    refused: Sequence[tuple[UUID, str]] = ()
    kept: Sequence[tuple[UUID, str | None, UUID | None]] = ()
    later: Sequence[UUID] = ()


async def insert_bulk(
    connection: Connection, tenant_no: TenantNo, bulk: NewBulk, by: By, *, total: int, total_is_least: bool = False
) -> None:
    await connection.execute(
        _SQL["insert_bulk"].text,
        tenant_no,
        bulk.id,
        bulk.kind,
        bulk.action,
        msgspec.json.encode(bulk.filter).decode(),
        bulk.q,
        None if bulk.ids is None else sorted(set(bulk.ids)),
        None if bulk.change is None else msgspec.json.encode(bulk.change).decode(),
        bulk.payload,
        bulk.current_version,
        by.reason,
        by.actor,
        bulk.per_s,
        total,
        total_is_least,
        bulk.undo_of,
        by.key_id,
        by.user_id,
        by.home_tenant_no,
        by.address,
        by.request_id,
        None if by.trace is None else by.trace.traceparent,
        None if by.trace is None else by.trace.state,
    )


async def list_bulks(
    connection: Connection,
    tenant_no: TenantNo,
    *,
    id_: UUID | None = None,
    kind: Kind | None = None,
    state: BulkState | None = None,
    before: UUID | None = None,
    limit: int = 1,
) -> list[BulkRow]:
    rows = await connection.fetch(_SQL["list_bulks"].text, tenant_no, id_, kind, before, limit, state)
    return [BulkRow(**_decoded(row)) for row in rows]


async def take_bulk(connection: Connection, lease_s: float, busy: Sequence[TenantNo] = ()) -> BulkTurn | None:
    """An operation that is due, of a tenant that is not in `busy`. No other process takes it until the lease ends."""
    row = await connection.fetchrow(_SQL["take_bulk"].text, lease_s, list(busy))
    return BulkTurn(**_decoded(row)) if row else None


async def next_selected(connection: Connection, turn: BulkTurn, after: UUID | None, limit: int) -> list[UUID]:
    rows = await connection.fetch(_SQL["next_selected"].text, turn.tenant_no, turn.id, after, limit)
    return [row["id"] for row in rows]


async def next_changed(connection: Connection, turn: BulkTurn, after: UUID | None, limit: int) -> list[UUID]:
    """The next items of an undo."""
    rows = await connection.fetch(_SQL["next_changed"].text, turn.tenant_no, turn.undo_of, after, limit)
    return [row["id"] for row in rows]


async def count_changed(connection: Connection, tenant_no: TenantNo, bulk_id: UUID) -> int:
    """How many items an undo would reach."""
    return int(await connection.fetchval(_SQL["count_changed"].text, tenant_no, bulk_id))


async def claim_items(
    connection: Connection, turn: BulkTurn, ids: Sequence[UUID], *, were_locked: bool, lock_timeout_ms: int
) -> bool:
    """Claim items for this transaction; False: another process has them, or the operation was stopped."""
    is_ours = await connection.fetchval(
        _SQL["claim_items"].text, turn.tenant_no, turn.id, list(ids), were_locked, f"{lock_timeout_ms}ms"
    )
    return is_ours is not None


async def record_items(connection: Connection, turn: BulkTurn, results: Results) -> None:
    """Record what this transaction did to the items that it has claimed."""
    rows: list[tuple[UUID, bool, str | None, str | None, UUID | None]]
    rows = [(id_, False, why, None, None) for id_, why in results.refused]
    rows += [(id_, True, None, before, made) for id_, before, made in results.kept]
    await connection.execute(
        _SQL["record_items"].text,
        turn.tenant_no,
        turn.id,
        results.done,
        len(results.refused),
        results.unchanged,
        list(results.later),
        *([row[column] for row in rows] for column in range(4)),
        KEPT_REFUSALS,
        MOST_UNDOABLE,
        [row[4] for row in rows],
    )


async def end_turn(connection: Connection, turn: BulkTurn, *, next_s: float, at_end: bool) -> BulkState | None:
    """Set when the operation continues; at the end it is done. Returns its state; None: it was stopped."""
    row = await connection.fetchrow(_SQL["end_turn"].text, turn.tenant_no, turn.id, turn.due_at, next_s, at_end)
    return row["state"] if row else None


async def fail_turn(connection: Connection, turn: BulkTurn, *, next_s: float, most: int, why: str) -> BulkState | None:
    state: BulkState | None = await connection.fetchval(
        _SQL["fail_turn"].text, turn.tenant_no, turn.id, next_s, most, why
    )
    return state


async def stop_bulk(connection: Connection, tenant_no: TenantNo, id_: UUID, because: str | None = None) -> bool:
    """False: it was not running. `because`: why ondot itself stops it."""
    return await connection.fetchval(_SQL["stop_bulk"].text, tenant_no, id_, because) is not None


async def mark_undone(connection: Connection, tenant_no: TenantNo, id_: UUID, undo_id: UUID) -> bool:
    """False: it runs, or is undone already."""
    return await connection.fetchval(_SQL["mark_undone"].text, tenant_no, id_, undo_id) is not None


async def list_bulk_items(
    connection: Connection,
    tenant_no: TenantNo,
    bulk_id: UUID,
    *,
    is_done: bool | None = None,
    after: UUID | None = None,
    limit: int,
) -> list[ItemRow]:
    rows = await connection.fetch(_SQL["list_bulk_items"].text, tenant_no, bulk_id, is_done, after, limit)
    return [ItemRow(*row.values()) for row in rows]


async def find_before(
    connection: Connection, tenant_no: TenantNo, bulk_id: UUID, ids: Sequence[UUID]
) -> dict[UUID, dict[str, Any]]:
    """What items were before an operation changed them."""
    rows = await connection.fetch(_SQL["find_before"].text, tenant_no, bulk_id, list(ids))
    return {row["id"]: msgspec.json.decode(row["before"]) for row in rows if row["before"] is not None}


async def see_items(connection: Connection, tenant_no: TenantNo, kind: Kind, ids: Sequence[UUID]) -> dict[UUID, Seen]:
    """These items as they are now; those that do not exist are left out."""
    rows = await connection.fetch(_SQL[f"see_{kind}"].text, tenant_no, list(ids))
    return {
        row["id"]: Seen(row["state"], row.get("pool"), row.get("name"), frozenset(row["hindrances"])) for row in rows
    }


def _decoded(row: Record) -> dict[str, Any]:
    values = dict(row) | {"filter": msgspec.json.decode(row["filter"], type=LetterFilter)}
    values["change"] = None if row["change"] is None else msgspec.json.decode(row["change"])
    return values
