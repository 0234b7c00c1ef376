"""The items of an operation, of those that existed when it was requested (O8).

A selection and dead letters in the order of their ids, the items of a query newest first.
"""

from collections.abc import Collection
from datetime import datetime
from time import monotonic
from typing import Final
from uuid import UUID

from ondot.model.access import Caller
from ondot.model.bulk import Kind
from ondot.model.ids import TenantNo, instant_of
from ondot.model.query import parse
from ondot.store.bulk import BulkTurn, NewBulk, count_changed, next_changed, next_selected
from ondot.store.connection import Connection
from ondot.store.dead_letters import LetterFilter, count_letters, next_letters
from ondot.store.pools import find_pools
from ondot.store.search import match_executions
from ondot.store.search_jobs import match_jobs
from ondot.store.search_runs import match_runs

COUNT_PAGE: Final = 10_000
COUNT_WITHIN_S: Final = 2.0


async def next_items(connection: Connection, turn: BulkTurn, caller: Caller, limit: int) -> list[UUID]:
    """The next items that no turn has reached."""
    if turn.is_selection:
        return await next_selected(connection, turn, turn.through_id, limit)
    if turn.undo_of is not None:
        return await next_changed(connection, turn, turn.through_id, limit)
    if turn.q is not None and turn.kind != "dead_letters":
        after = turn.through_id or turn.id
        return await _match(
            connection, turn.tenant_no, turn.kind, turn.q, caller.pools, after, limit, now=instant_of(turn.id)
        )
    return await next_letters(
        connection,
        turn.tenant_no,
        turn.filter if turn.q is None else LetterFilter(q=turn.q),
        until_at=turn.created_at,
        before=turn.id,
        after=turn.through_id,
        limit=limit,
    )


async def first_items(connection: Connection, tenant_no: TenantNo, bulk: NewBulk, limit: int) -> list[UUID]:
    """Items that an operation would reach, for a dry run; of a selection all of them."""
    if bulk.ids is not None:
        return sorted(set(bulk.ids))
    if bulk.q is not None and bulk.kind != "dead_letters":
        return await _match(
            connection, tenant_no, bulk.kind, bulk.q, bulk.pools, bulk.id, limit, now=instant_of(bulk.id)
        )
    return await next_letters(
        connection, tenant_no, _filter(bulk), until_at=instant_of(bulk.id), before=bulk.id, after=None, limit=limit
    )


async def count_items(connection: Connection, tenant_no: TenantNo, bulk: NewBulk) -> tuple[int, bool]:
    """How many items an operation would reach, and whether there are more than could be counted in time."""
    if bulk.ids is not None:
        return len(set(bulk.ids)), False
    if bulk.undo_of is not None:
        return await count_changed(connection, tenant_no, bulk.undo_of), False
    if bulk.q is None or bulk.kind == "dead_letters":
        count, _ = await count_letters(connection, tenant_no, _filter(bulk), bulk_id=bulk.id)
        return count, False
    until_s, count, after = monotonic() + COUNT_WITHIN_S, 0, bulk.id
    while True:
        page = await _match(
            connection, tenant_no, bulk.kind, bulk.q, bulk.pools, after, COUNT_PAGE, now=instant_of(bulk.id)
        )
        count += len(page)
        if len(page) < COUNT_PAGE:
            return count, False
        if monotonic() > until_s:
            return count, True
        after = page[-1]


def _filter(bulk: NewBulk) -> LetterFilter:
    return bulk.filter if bulk.q is None else LetterFilter(q=bulk.q)


async def _match(
    connection: Connection,
    tenant_no: TenantNo,
    kind: Kind,
    q: str,
    pools: Collection[str] | None,
    after: UUID,
    limit: int,
    *,
    now: datetime,
) -> list[UUID]:
    """A page of the items that match a query, newest first, before `after`. `now`: when the operation was requested,
    because `since:1h` must mean the same in each turn."""
    if kind == "runs":
        return [*await match_runs(connection, tenant_no, parse(q, kind), after, limit, now=now)]
    pool_nos = None if pools is None else list((await find_pools(connection, sorted(pools))).values())
    if pool_nos == []:
        return []
    if kind == "jobs":
        return [*await match_jobs(connection, tenant_no, parse(q, kind), after, limit, pool_nos=pool_nos, now=now)]
    assert kind == "executions"
    return [*await match_executions(connection, tenant_no, parse(q, kind), after, limit, pool_nos=pool_nos, now=now)]
