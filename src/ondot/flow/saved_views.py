"""Saved views (O1): queries with a name, of one user or key, or shared by the tenant.

Everyone who may read has views of their own, which no other user sees. A shared view is created, changed and deleted
with the right `jobs:write`. A view stores the text of a query: it shows each user what that user may see.
"""

from collections.abc import Callable
from typing import Final
from uuid import UUID

from ondot.flow.idempotency import Idempotency, find_response, store_response
from ondot.flow.work import begin
from ondot.model.access import LOCAL_NAME, Caller, Right
from ondot.model.errors import Conflict, NotFound
from ondot.model.query import Of, parse
from ondot.store.audit import By, record_change
from ondot.store.connection import TAKEN, Connection
from ondot.store.database import Database
from ondot.store.saved_views import (
    SHARED,
    ViewRow,
    add_view,
    change_view,
    count_views,
    delete_view,
    find_view,
    list_views,
    lock_view,
)

MOST: Final = 200
"""Views of one owner, and shared views of a tenant."""


def owner_of(caller: Caller) -> str:
    """How the views of a caller are marked as its own."""
    if caller.user_id is not None:
        return f"user {caller.user_id}"
    return LOCAL_NAME if caller.key_id is None else f"key {caller.key_id}"


def owners_seen_by(caller: Caller) -> list[str]:
    """A key that is limited to pools sees only its own: a shared query may name other pools and their jobs."""
    return [owner_of(caller)] if caller.pools is not None else [owner_of(caller), SHARED]


async def create_view(
    database: Database,
    caller: Caller,
    *,
    kind: Of,
    name: str,
    q: str,
    shared: bool,
    render: Callable[[ViewRow], str],
    idempotency: Idempotency | None,
    by: By,
) -> str:
    """Returns the response. Raises InvalidQuery."""
    parse(q, kind)
    _require_shared(caller, shared)
    owner = SHARED if shared else owner_of(caller)
    async with begin(database, caller.tenant_no) as work:
        if (stored := await find_response(work, idempotency)) is not None:
            return stored
        await _check_room(work.connection, caller, owner)
        id_ = database.clock.new_id()
        row = await add_view(
            work.connection, caller.tenant_no, id_, owner=owner, kind=kind, name=name, q=q, created_by=by.actor
        )
        if row is None:
            raise _taken(name, kind)
        await record_change(work.connection, caller.tenant_no, by, "view.create", id_, _detail(row))
        text = render(row)
        await store_response(work, idempotency, text)
    return text


async def update_view(
    database: Database, caller: Caller, id_: UUID, *, name: str | None, q: str | None, shared: bool | None, by: By
) -> ViewRow:
    """None: as it is. Raises InvalidQuery."""
    async with begin(database, caller.tenant_no) as work:
        row = await _lock_to_change(work.connection, caller, id_)
        if q is not None:
            parse(q, row.kind)
        owner = row.owner
        if shared is not None and shared != row.is_shared:
            _require_shared(caller, shared=True)
            owner = SHARED if shared else owner_of(caller)
            await _check_room(work.connection, caller, owner)
        try:
            changed = await change_view(
                work.connection, caller.tenant_no, id_, owner=owner, name=name or row.name, q=q or row.q
            )
        except TAKEN:
            raise _taken(name or row.name, row.kind) from None
        await record_change(work.connection, caller.tenant_no, by, "view.update", id_, _detail(changed))
    return changed


async def remove_view(database: Database, caller: Caller, id_: UUID, *, by: By) -> ViewRow:
    async with begin(database, caller.tenant_no) as work:
        row = await _lock_to_change(work.connection, caller, id_)
        await delete_view(work.connection, caller.tenant_no, id_)
        await record_change(work.connection, caller.tenant_no, by, "view.delete", id_, _detail(row))
    return row


async def get_view(database: Database, caller: Caller, id_: UUID) -> ViewRow:
    async with database.reading(caller.tenant_no) as connection:
        row = await find_view(connection, caller.tenant_no, id_)
    if row is None or row.owner not in owners_seen_by(caller):
        raise unknown_view(id_)
    return row


async def read_views(connection: Connection, caller: Caller, kind: Of) -> list[ViewRow]:
    """All views of a kind that a caller sees, by name."""
    rows = await list_views(connection, caller.tenant_no, owners_seen_by(caller), kind=kind, limit=2 * MOST)
    return sorted(rows, key=lambda row: (row.name.casefold(), row.id))


async def _lock_to_change(connection: Connection, caller: Caller, id_: UUID) -> ViewRow:
    row = await lock_view(connection, caller.tenant_no, id_)
    if row is None or row.owner not in owners_seen_by(caller):
        raise unknown_view(id_)
    _require_shared(caller, shared=row.is_shared)
    return row


def _require_shared(caller: Caller, shared: bool) -> None:
    if shared:
        caller.require(Right.JOBS_WRITE)
        caller.require_all_pools()


async def _check_room(connection: Connection, caller: Caller, owner: str) -> None:
    if await count_views(connection, caller.tenant_no, owner) >= MOST:
        whose = "shared views" if owner == SHARED else "views of your own"
        raise Conflict(f"There are {MOST} {whose}, which is the limit: delete some first.")


def _taken(name: str, kind: Of) -> Conflict:
    return Conflict(f"There is a view {name!r} of {kind.replace('_', ' ')} already. Choose another name, or change it.")


def _detail(row: ViewRow) -> dict[str, object]:
    return {"name": row.name, "of": row.kind, "q": row.q, "shared": row.is_shared}


def unknown_view(id_: object) -> NotFound:
    return NotFound(f"There is no view {id_}. List them with `ondot view list`.")
