"""Count, start, stop and undo an operation on many (O8). `turns` works it off."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from ondot.flow.bulk.items import as_written_by, change_spec
from ondot.flow.bulk.match import count_items, first_items
from ondot.flow.idempotency import Idempotency, find_response, store_response
from ondot.flow.work import begin
from ondot.model.access import Caller
from ondot.model.bulk import (
    MOST_IDS,
    MOST_UNDOABLE,
    RIGHTS,
    STARTS,
    UNDO,
    BulkAction,
    Kind,
    Seen,
    why_missing,
    why_refused,
)
from ondot.model.errors import Conflict, NotFound, OndotError
from ondot.model.ids import JobId, TenantNo
from ondot.model.job import JobState, is_same_spec
from ondot.model.tenant import Tenant
from ondot.store.audit import Action, By, record_change
from ondot.store.bulk import BulkRow, NewBulk, insert_bulk, list_bulks, mark_undone, see_items, stop_bulk
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.jobs import get_jobs
from ondot.telemetry.log import get_logger

LOOKED_AT: Final = MOST_IDS
"""Items that a dry run looks at: all of a selection, the newest of a query. Of more it counts no refusals."""
SPECS_AT_ONCE: Final = 500
SHOWN: Final = 20

log = get_logger()


@dataclass(frozen=True, slots=True)
class Preview:
    """What an operation would do. `refused`: of the `looked_at` items; `sample` and `refusals`: some of them."""

    count: int
    count_is_least: bool
    looked_at: int
    refused: int
    sample: Sequence[tuple[UUID, Seen]]
    refusals: Sequence[tuple[UUID, str]]


async def preview(connection: Connection, caller: Caller, bulk: NewBulk) -> Preview:
    """Count the items, and say which would be refused now. Nothing changes."""
    tenant_no = caller.tenant_no
    ids = await first_items(connection, tenant_no, bulk, LOOKED_AT)
    seen = _visible(caller, await see_items(connection, tenant_no, bulk.kind, ids))
    why_not = await _why_not_updated(connection, caller, bulk, ids) if bulk.action == "update" else {}
    refusals = []
    for id_ in ids:
        item = seen.get(id_)
        why = why_missing(bulk.kind, id_) if item is None else why_not.get(id_, _why(bulk, id_, item))
        if why is not None:
            refusals.append((id_, why))
    if bulk.ids is None and len(ids) < LOOKED_AT:
        count, is_least = len(ids), False
    else:
        count, is_least = await count_items(connection, tenant_no, bulk)
    sample = [(id_, seen[id_]) for id_ in ids if id_ in seen][:SHOWN]
    return Preview(count, is_least, len(ids), len(refusals), sample, refusals[:SHOWN])


def _why(bulk: NewBulk, id_: UUID, item: Seen) -> str | None:
    return why_refused(
        bulk.kind,
        bulk.action,
        id_,
        item,
        current_version=bulk.current_version,
        own_payload=bulk.payload is not None,
    )


async def _why_not_updated(
    connection: Connection, caller: Caller, bulk: NewBulk, ids: Sequence[UUID]
) -> dict[UUID, str | None]:
    """Jobs that the caller may not write, each with the reason; and with None those that have nothing to change: such
    an update is not refused, also if the job can no longer be changed."""
    found: dict[UUID, str | None] = {}
    for first in range(0, len(ids), SPECS_AT_ONCE):
        jobs = await get_jobs(connection, caller.tenant_no, [JobId(id_) for id_ in ids[first : first + SPECS_AT_ONCE]])
        for row in jobs.values():
            if row.state is JobState.DELETED:
                continue
            try:
                spec = as_written_by(caller, change_spec(row.spec, bulk.change or {}))
            except OndotError as refusal:
                found[row.id] = refusal.message
            else:
                if is_same_spec(spec, row.spec):
                    found[row.id] = None
    return found


def _visible(caller: Caller, seen: Mapping[UUID, Seen]) -> dict[UUID, Seen]:
    return {id_: item for id_, item in seen.items() if item.pool is None or caller.sees(item.pool)}


async def start_bulk(
    database: Database,
    tenant_no: TenantNo,
    bulk: NewBulk,
    *,
    by: By,
    render: Callable[[BulkRow], str],
    idempotency: Idempotency | None = None,
) -> str:
    """Register an operation on all items that match now. Returns the response."""
    async with begin(database, tenant_no) as work:
        if (earlier := await find_response(work, idempotency)) is not None:
            return earlier
        if bulk.undo_of is not None:
            # After the stored response: a repeated request finds the operation undone, by itself.
            [undone] = await list_bulks(work.connection, tenant_no, id_=bulk.undo_of)
            check_undo(undone)
        total, is_least = await count_items(work.connection, tenant_no, bulk)
        await insert_bulk(work.connection, tenant_no, bulk, by, total=total, total_is_least=is_least)
        detail = {
            "of": bulk.kind,
            "action": bulk.action,
            "filter": None if bulk.filter.is_empty else bulk.filter,
            "q": bulk.q,
            "ids": None if bulk.ids is None else len(bulk.ids),
            "set": bulk.change,
            "total": total,
            "undo_of": bulk.undo_of,
        }
        await record_change(work.connection, tenant_no, by, _entry(bulk), bulk.id, detail)
        if bulk.undo_of is not None and not await mark_undone(work.connection, tenant_no, bulk.undo_of, bulk.id):
            raise Conflict(f"The operation {bulk.undo_of} was undone at this moment, by another request.")
        [row] = await list_bulks(work.connection, tenant_no, id_=bulk.id)
        text = render(row)
        await store_response(work, idempotency, text)
    log.info("bulk.started", bulk_id=str(bulk.id), kind=bulk.kind, action=bulk.action, total=total, actor=by.actor)
    return text


async def stop(database: Database, tenant_no: TenantNo, id_: UUID, *, by: By, kind: Kind | None = None) -> BulkRow:
    """Reach no further items; changed ones stay changed. Stopping an ended operation changes nothing."""
    async with database.transaction() as connection:
        rows = await list_bulks(connection, tenant_no, id_=id_, kind=kind)
        if not rows:
            raise missing(id_)
        if await stop_bulk(connection, tenant_no, id_):
            rows = await list_bulks(connection, tenant_no, id_=id_)
            detail = {"done": rows[0].done, "total": rows[0].total}
            entry: Action = "dead_letter.stop" if rows[0].kind == "dead_letters" else "bulk.stop"
            await record_change(connection, tenant_no, by, entry, id_, detail)
            log.info("bulk.cancelled", bulk_id=str(id_), done=rows[0].done, total=rows[0].total, actor=by.actor)
    return rows[0]


def undo_of(row: BulkRow, id_: UUID) -> NewBulk:
    """The operation that undoes another; raises Conflict if its action cannot be undone."""
    action = UNDO.get(row.action)
    if action is None:
        able = ", ".join(sorted(UNDO))
        raise Conflict(f"An operation of the action {row.action!r} cannot be undone; only: {able}.")
    return NewBulk(id_, row.kind, action, row.per_s, undo_of=row.id)


def check_undo(row: BulkRow) -> None:
    """Raises Conflict if an operation runs, is undone, or has changed more than is remembered."""
    if row.state == "RUNNING":
        raise Conflict(f"The operation {row.id} is still running. Stop it first: POST /v1/bulk/{row.id}/stop.")
    if row.undone_by is not None:
        raise Conflict(f"The operation {row.id} was undone already, by {row.undone_by}.")
    if row.done > MOST_UNDOABLE:
        raise Conflict(
            f"The operation {row.id} changed {row.done:,} items, and only {MOST_UNDOABLE:,} are remembered for an undo."
            f" Start the opposite operation with the same query."
        )


def require_rights(caller: Caller, kind: Kind, action: BulkAction) -> None:
    """Raises `Forbidden` if the caller may not do this to any item."""
    caller.require(RIGHTS[kind][action])
    if kind in {"dead_letters", "runs"}:
        caller.require_all_pools()


def bound_rate(tenant: Tenant | None, action: BulkAction, per_s: float) -> float:
    """The rate, and no more than the tenant may create in a second if the items start executions."""
    quota = None if tenant is None or action not in STARTS else tenant.quotas.creates
    return per_s if quota is None else min(per_s, quota.limit / quota.per_s)


def missing(id_: UUID) -> NotFound:
    return NotFound(f"There is no operation {id_}.")


def _entry(bulk: NewBulk) -> Action:
    if bulk.undo_of is not None:
        return "bulk.undo"
    if bulk.kind == "dead_letters":
        return "dead_letter.replay" if bulk.action == "replay" else "dead_letter.discard"
    return "bulk.start"
