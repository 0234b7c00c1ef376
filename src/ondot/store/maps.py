"""Maps of runs (W7): their counts, their lists in portions, and their items.

Only who has the run locked changes them, so that nothing here locks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec
from msgspec import Raw

from ondot.model.ids import ExecutionId, TenantNo
from ondot.model.workflow.maps import MapCounts
from ondot.model.workflow.spec import Tolerate
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("maps")
_LIST = msgspec.json.Decoder(list[Raw])


@dataclass(frozen=True, slots=True)
class MapRow:
    """`concurrency` and `tolerate` as they were set while it runs; None: as the workflow has them."""

    step_no: int
    counts: MapCounts
    concurrency: int | None
    tolerate: Tolerate | None
    is_open: bool
    """Its other parents have ended, so that its items may run."""


@dataclass(frozen=True, slots=True)
class Added:
    """What is added to the counts of a map."""

    cursor: int = 0
    waiting: int = 0
    active: int = 0
    stuck: int = 0
    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class ItemRow:
    item_no: int
    execution_id: ExecutionId | None
    generation: int
    state: str


@dataclass(frozen=True, slots=True)
class ItemEnd:
    """An item that an arrival has changed, from a state to another."""

    step_no: int
    item_no: int
    before: str
    after: str


async def insert_maps(
    connection: Connection, tenant_no: TenantNo, run_id: UUID, totals: Mapping[int, int], *, with_cursor: int
) -> None:
    """Maps of these steps. Only that of `with_cursor` has a list of its own: the others get items from theirs."""
    cursors = [0 if step_no == with_cursor else total for step_no, total in totals.items()]
    await connection.execute(_SQL["insert_maps"].text, tenant_no, run_id, list(totals), list(totals.values()), cursors)


async def insert_portions(
    connection: Connection, tenant_no: TenantNo, run_id: UUID, step_no: int, portions: Mapping[int, str]
) -> None:
    await connection.execute(
        _SQL["insert_portions"].text, tenant_no, run_id, step_no, list(portions), list(portions.values())
    )


async def read_portions(
    connection: Connection, tenant_no: TenantNo, run_id: UUID, step_no: int, first_nos: Sequence[int]
) -> dict[int, list[Raw]]:
    """The items of these portions, each as JSON, by the number of the first."""
    rows = await connection.fetch(_SQL["read_portions"].text, tenant_no, run_id, step_no, first_nos)
    return {row["first_no"]: _LIST.decode(row["items"]) for row in rows}


async def find_maps(
    connection: Connection, tenant_no: TenantNo, run_id: UUID, step_nos: Sequence[int] | None = None
) -> dict[int, MapRow]:
    """By the number of the step; `step_nos` None: all of the run."""
    rows = await connection.fetch(_SQL["find_maps"].text, tenant_no, run_id, step_nos)
    return {
        row["step_no"]: MapRow(
            row["step_no"],
            MapCounts(
                total=row["total"],
                cursor=row["cursor"],
                waiting=row["waiting"],
                active=row["active"],
                stuck=row["stuck"],
                succeeded=row["succeeded"],
                failed=row["failed"],
            ),
            row["concurrency"],
            None
            if row["tolerate_count"] is None and row["tolerate_percent"] is None
            else Tolerate(count=row["tolerate_count"], percent=row["tolerate_percent"]),
            row["is_open"],
        )
        for row in rows
    }


async def open_map(connection: Connection, tenant_no: TenantNo, run_id: UUID, step_no: int) -> None:
    await connection.execute(_SQL["open_map"].text, tenant_no, run_id, step_no)


async def change_counts(connection: Connection, tenant_no: TenantNo, run_id: UUID, added: Mapping[int, Added]) -> None:
    changes = list(added.values())
    await connection.execute(
        _SQL["change_counts"].text,
        tenant_no,
        run_id,
        list(added),
        [change.cursor for change in changes],
        [change.waiting for change in changes],
        [change.active for change in changes],
        [change.stuck for change in changes],
        [change.succeeded for change in changes],
        [change.failed for change in changes],
    )


async def set_map(
    connection: Connection,
    tenant_no: TenantNo,
    run_id: UUID,
    step_no: int,
    *,
    concurrency: int | None,
    tolerate: Tolerate | None,
    sets_concurrency: bool,
    sets_tolerate: bool,
) -> bool:
    """False: the map has not started."""
    found = await connection.fetchval(
        _SQL["set_map"].text,
        tenant_no,
        run_id,
        step_no,
        concurrency,
        tolerate.count if tolerate else None,
        tolerate.percent if tolerate else None,
        sets_concurrency,
        sets_tolerate,
    )
    return found is not None


async def make_items(
    connection: Connection, tenant_no: TenantNo, run_id: UUID, step_no: int, items: Mapping[int, ExecutionId]
) -> None:
    await connection.execute(_SQL["make_items"].text, tenant_no, run_id, step_no, list(items), list(items.values()))


async def find_waiting_items(
    connection: Connection, tenant_no: TenantNo, run_id: UUID, step_no: int, limit: int
) -> list[int]:
    rows = await connection.fetch(_SQL["find_waiting_items"].text, tenant_no, run_id, step_no, limit)
    return [row["item_no"] for row in rows]


async def end_items(
    connection: Connection, tenant_no: TenantNo, run_id: UUID, ends: Sequence[tuple[int, int, ExecutionId, str]]
) -> list[ItemEnd]:
    """`ends`: step_no, item_no, execution, state. Those whose item names another execution by now are left out."""
    columns = list(zip(*ends, strict=True)) or [(), (), (), ()]
    rows = await connection.fetch(_SQL["end_items"].text, tenant_no, run_id, *map(list, columns))
    return [ItemEnd(*row.values()) for row in rows]


async def offer_items(
    connection: Connection, tenant_no: TenantNo, run_id: UUID, step_no: int, item_nos: Sequence[int]
) -> int:
    """Returns how many of these did not wait or run before."""
    count: int = await connection.fetchval(_SQL["offer_items"].text, tenant_no, run_id, step_no, item_nos)
    return count


async def reset_failed_items(
    connection: Connection, tenant_no: TenantNo, run_id: UUID, step_nos: Sequence[int]
) -> dict[int, int]:
    """Failed items of these steps run again, once the steps are released again; returns how many of each."""
    rows = await connection.fetch(_SQL["reset_failed_items"].text, tenant_no, run_id, step_nos)
    return {row["step_no"]: row["count"] for row in rows}


async def forget_maps(connection: Connection, tenant_no: TenantNo, run_id: UUID, step_nos: Sequence[int]) -> None:
    """These steps start from scratch when they are released again."""
    await connection.execute(_SQL["forget_maps"].text, tenant_no, run_id, step_nos)


async def find_item_executions(
    connection: Connection, tenant_no: TenantNo, run_id: UUID, step_no: int, item_nos: Sequence[int]
) -> dict[int, ExecutionId]:
    rows = await connection.fetch(_SQL["find_item_executions"].text, tenant_no, run_id, step_no, item_nos)
    return {row["item_no"]: row["execution_id"] for row in rows if row["execution_id"] is not None}


async def list_items(
    connection: Connection,
    tenant_no: TenantNo,
    run_id: UUID,
    step_no: int,
    *,
    state: str | None = None,
    after: int = -1,
    limit: int,
) -> list[ItemRow]:
    rows = await connection.fetch(_SQL["list_items"].text, tenant_no, run_id, step_no, state, after, limit)
    return [ItemRow(*row.values()) for row in rows]
