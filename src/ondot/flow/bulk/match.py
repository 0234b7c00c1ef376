"""The items of an operation, in the order of their ids, of those that existed when it was requested (O8)."""

from time import monotonic
from typing import Final
from uuid import UUID

from ondot.model.ids import TenantNo, instant_of
from ondot.store.bulk import BulkTurn, NewBulk, count_changed, next_changed, next_selected
from ondot.store.connection import Connection
from ondot.store.dead_letters import count_letters, next_letters

COUNT_PAGE: Final = 10_000
COUNT_WITHIN_S: Final = 2.0


async def next_items(connection: Connection, turn: BulkTurn, limit: int) -> list[UUID]:
    """The next items that no turn has reached."""
    if turn.is_selection:
        return await next_selected(connection, turn, turn.through_id, limit)
    if turn.undo_of is not None:
        return await next_changed(connection, turn, turn.through_id, limit)
    return await next_letters(
        connection,
        turn.tenant_no,
        turn.filter,
        until_at=turn.created_at,
        before=turn.id,
        after=turn.through_id,
        limit=limit,
    )


async def first_items(connection: Connection, tenant_no: TenantNo, bulk: NewBulk, limit: int) -> list[UUID]:
    """Items that an operation would reach, for a dry run; of a selection all of them."""
    if bulk.ids is not None:
        return sorted(set(bulk.ids))
    return await _match(connection, tenant_no, bulk, None, limit)


async def count_items(connection: Connection, tenant_no: TenantNo, bulk: NewBulk) -> tuple[int, bool]:
    """How many items an operation would reach, and whether there are more than could be counted in time."""
    if bulk.ids is not None:
        return len(set(bulk.ids)), False
    if bulk.undo_of is not None:
        return await count_changed(connection, tenant_no, bulk.undo_of), False
    if bulk.q is None and bulk.kind == "dead_letters":
        count, _ = await count_letters(connection, tenant_no, bulk.filter, bulk_id=bulk.id)
        return count, False
    until_s, count, after = monotonic() + COUNT_WITHIN_S, 0, None
    while True:
        page = await _match(connection, tenant_no, bulk, after, COUNT_PAGE)
        count += len(page)
        if len(page) < COUNT_PAGE:
            return count, False
        if monotonic() > until_s:
            return count, True
        after = page[-1]


async def _match(
    connection: Connection, tenant_no: TenantNo, bulk: NewBulk, after: UUID | None, limit: int
) -> list[UUID]:
    return await next_letters(
        connection, tenant_no, bulk.filter, until_at=instant_of(bulk.id), before=bulk.id, after=after, limit=limit
    )
