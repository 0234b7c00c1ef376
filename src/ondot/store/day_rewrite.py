"""The statements of a rewriting: the rows of a day that stay are copied, and the copy takes the day's place (O1).

The text of a step contains the names of tables, which are ours: those of `day_table`, of its partitions and of the
copy. `flow.history.rewrite` says in which order they run.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from uuid import UUID

import msgspec

from ondot.model.ids import DEFAULT_TENANT, TenantNo, first_id_at
from ondot.store.connection import Connection, Record
from ondot.store.newest import NO_ID
from ondot.store.queries import load_queries

_SQL = load_queries("day_rewrite")
_DAYS = load_queries("days")

DAY: Final = timedelta(days=1)
LONGEST_S: Final = 600.0
"""For one part of a day."""
PART_BYTES: Final = 32 * 1024 * 1024
MOST_PARTS: Final = 24 * 4
"""A day is copied in parts, so that no statement holds its snapshot for long: dead rows of the queue would pile up."""
KEYS_AT_ONCE: Final = 500

_DAY_NAME: Final = re.compile(r"_(\d{4})(\d{2})(\d{2})$")
_COPY_SOME: Final = """
WITH kept AS MATERIALIZED (
{keep}
), copied AS (
    INSERT INTO ondot.{copy} ({columns}) SELECT {columns} FROM ondot.{source}
    WHERE {id} >= $1::uuid AND {id} < $2::uuid AND {id} IN (SELECT id FROM kept)
    RETURNING {id} AS id
)
SELECT (SELECT count(*) FROM ondot.{source} WHERE {id} >= $1 AND {id} < $2) AS found,
       (SELECT coalesce(jsonb_object_agg(n.reason, n.count), '{{}}') FROM (
            SELECT k.reason, count(*) AS count FROM copied c JOIN kept k ON k.id = c.id GROUP BY k.reason
        ) n)::text AS reasons
"""
_OUTPUT: Final = ("attempt", "log", "object")


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The last rewriting of a partition. `days`: the retention that it applied. `reasons`: what stayed, and why."""

    days: int
    at: datetime
    took_s: float
    removed: int
    kept: int
    bytes_before: int
    bytes_after: int
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Partition:
    """A day of a table, or the catch-all of all days before the first. `about_rows`: -1 if nobody has counted."""

    parent: str
    name: str
    first_day: date
    today: date
    bytes: int
    is_empty: bool
    about_rows: int
    last: Rewritten | None

    @property
    def day(self) -> date | None:
        return day_of(self.name)


@dataclass(frozen=True, slots=True)
class DayCopy:
    """A rewriting under way. `place`: the number of the source that is copied now, its ids before `through_id` are."""

    parent: str
    sources: list[str]
    copy: str
    from_id: UUID | None
    before_id: UUID
    days: int
    cutoff: datetime
    tenant_nos: list[int]
    cutoffs: list[datetime]
    place: int
    through_id: UUID | None
    is_copied: bool
    started_at: datetime

    @property
    def source(self) -> str:
        return self.sources[self.place - 1]


@dataclass(frozen=True, slots=True)
class GoneObject:
    execution_id: UUID
    attempt_no: int
    kind: str
    key: str


def day_of(name: str) -> date | None:
    found = _DAY_NAME.search(name)
    return date(int(found[1]), int(found[2]), int(found[3])) if found else None


def start_of(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


async def list_partitions(connection: Connection, parent: str | None = None) -> list[Partition]:
    rows = await connection.fetch(_SQL["list_partitions"].text, parent)
    return [
        Partition(
            row["parent"],
            row["name"],
            row["first_day"],
            row["today"],
            row["bytes"],
            row["is_empty"],
            row["about_rows"],
            _rewritten(row),
        )
        for row in rows
    ]


def _rewritten(row: Record) -> Rewritten | None:
    if row["days"] is None:
        return None
    reasons = msgspec.json.decode(row["reasons"], type=dict[str, int])
    sizes = (row["removed"], row["kept"], row["bytes_before"], row["bytes_after"])
    return Rewritten(row["days"], row["at"], row["took_s"], *sizes, reasons)


async def list_retentions(connection: Connection) -> dict[TenantNo, int]:
    """Tenants with a retention of their own, in days."""
    rows = await connection.fetch(_SQL["list_retentions"].text)
    return {TenantNo(row["tenant_no"]): row["retention_days"] for row in rows}


async def list_copies(connection: Connection) -> list[DayCopy]:
    return [DayCopy(*row.values()) for row in await connection.fetch(_SQL["list_copies"].text)]


async def start_copy(
    connection: Connection,
    parent: str,
    sources: Sequence[str],
    days: int,
    cutoff: datetime,
    cutoffs: Mapping[TenantNo, datetime],
    *,
    wait_ms: int,
) -> bool:
    """False: another process was faster. Raises LOCKED if a source is in use for longer."""
    await connection.execute(_DAYS["give_way"].text, wait_ms)
    query, own = _SQL["start_copy"].text, (list(cutoffs), list(cutoffs.values()))
    return bool(await connection.fetchval(query, parent, sources, days, cutoff, *own))


async def lock_copy(connection: Connection, parent: str) -> DayCopy | None:
    """None: there is none, or another process works on it now."""
    row = await connection.fetchrow(_SQL["lock_copy"].text, parent)
    return DayCopy(*row.values()) if row else None


async def copy_some(connection: Connection, copy: DayCopy) -> None:
    """Copy the next part of a locked copy, and write the progress."""
    await connection.execute(_SQL["allow_long"].text, int(LONGEST_S * 1000))
    copy = replace(copy, place=await _next_place(connection, copy))
    if copy.place > len(copy.sources):
        await _advance(connection, copy, copy.place, None)
        return
    tables = {row["parent"]: row["id_column"] for row in await connection.fetch("SELECT * FROM ondot.day_table")}
    columns = ", ".join(row["name"] for row in await connection.fetch(_SQL["list_columns"].text, copy.parent))
    source = copy.source
    from_id, before_id, is_last = await _next_part(connection, copy)
    keep, arguments = _keep(copy, from_id, before_id)
    text = _COPY_SOME.format(
        keep=keep.replace(f"ondot.{copy.parent} s", f"ondot.{source} s"),
        copy=copy.copy,
        columns=columns,
        source=source,
        id=tables[copy.parent],
    )
    row = await connection.fetchrow(text, *arguments, timeout=LONGEST_S)
    assert row is not None
    through_id = None if is_last else before_id
    await _advance(connection, copy, copy.place + is_last, through_id, row["found"], row["reasons"])


async def _next_place(connection: Connection, copy: DayCopy) -> int:
    """The number of the next source with rows. Those that are written to an empty one meanwhile are entered."""
    row = await connection.fetchrow(_SQL["find_next_source"].text, copy.sources, copy.place)
    return len(copy.sources) + 1 if row is None else int(row["place"])


async def _advance(
    connection: Connection, copy: DayCopy, place: int, through_id: UUID | None, found: int = 0, reasons: str = "{}"
) -> None:
    is_copied = place > len(copy.sources)
    done = (min(place, len(copy.sources)), through_id, is_copied, found, reasons)
    await connection.execute(_SQL["advance_copy"].text, copy.parent, *done)
    if is_copied:
        await connection.execute(f"ANALYZE ondot.{copy.copy}")


async def _next_part(connection: Connection, copy: DayCopy) -> tuple[UUID, UUID, bool]:
    """The next ids to copy, and whether they are the last of their source. A small source is one part."""
    day = day_of(copy.source)
    if day is None:
        following = day_of(copy.sources[1]) if len(copy.sources) > 1 else None
        return NO_ID, copy.before_id if following is None else first_id_at(start_of(following)), True
    size = await connection.fetchval("SELECT pg_relation_size($1::text::regclass)", f"ondot.{copy.source}")
    width = DAY / min(max(size // PART_BYTES, 1), MOST_PARTS)
    from_id, end_at = copy.through_id or first_id_at(start_of(day)), start_of(day) + DAY
    until_at = min(_instant_of(from_id) + width, end_at)
    return from_id, first_id_at(until_at), until_at == end_at


def _instant_of(id_: UUID) -> datetime:
    return datetime.fromtimestamp((id_.int >> 80) / 1000, UTC)


def _keep(copy: DayCopy, from_id: UUID, before_id: UUID) -> tuple[str, tuple[object, ...]]:
    """The statement that selects what stays, and its arguments."""
    name = "keep_output" if copy.parent in _OUTPUT else f"keep_{copy.parent}"
    arguments: tuple[object, ...] = (from_id, before_id)
    if copy.parent not in _OUTPUT:
        arguments += (copy.tenant_nos, copy.cutoffs, copy.cutoff)
    if copy.parent in ("history", "job_once", "event_match"):
        arguments += (first_id_at(_instant_of(before_id) + DAY),)
    return _SQL[name].text, arguments


async def count_touched(connection: Connection, parent: str) -> int:
    """How many ids were written while a day was copied: the swap copies them again under its lock."""
    return int(await connection.fetchval(_SQL["count_touched"].text, parent))


async def swap_copy(connection: Connection, parent: str, *, wait_ms: int) -> int | None:
    """Put a complete copy in its place; returns how many rows went. Raises LOCKED if the table is in use for longer."""
    await connection.execute(_DAYS["give_way"].text, wait_ms)
    removed = await connection.fetchval(_SQL["swap_copy"].text, parent)
    return None if removed is None else int(removed)


async def drop_copy(connection: Connection, parent: str, *, wait_ms: int) -> bool:
    """Give up a rewriting; the sources are as they were. Raises LOCKED if one is in use for longer."""
    await connection.execute(_DAYS["give_way"].text, wait_ms)
    return bool(await connection.fetchval(_SQL["drop_copy"].text, parent))


async def note_rewritten(connection: Connection, partition: Partition, days: int) -> Rewritten | None:
    """A partition that has nothing to remove counts as rewritten."""
    row = await connection.fetchrow(_SQL["note_rewritten"].text, partition.parent, partition.name, days)
    assert row is not None
    return _rewritten(row)


async def has_rows_of(connection: Connection, name: str, tenants: Sequence[TenantNo]) -> bool:
    text = f"SELECT EXISTS (SELECT FROM ondot.{name} WHERE tenant_no = ANY ($1::integer[]))"  # noqa: S608 - ours
    return bool(await connection.fetchval(text, tenants))


async def find_gone(connection: Connection) -> list[str]:
    """Days of `object` that were replaced."""
    return [row["name"] for row in await connection.fetch(_SQL["find_gone"].text)]


async def list_gone_objects(connection: Connection, name: str, after: GoneObject | None) -> list[GoneObject]:
    """The next objects of a replaced day whose rows did not stay."""
    place = (NO_ID, 0, "") if after is None else (after.execution_id, after.attempt_no, after.kind)
    text = f"""
        SELECT g.execution_id, g.attempt_no, g.kind, g.key FROM ondot.{name} g
        WHERE (g.execution_id, g.attempt_no, g.kind) > ($1::uuid, $2::integer, $3::text)
          AND NOT EXISTS (SELECT FROM ondot.object o WHERE o.execution_id = g.execution_id
                          AND o.attempt_no = g.attempt_no AND o.kind = g.kind)
        ORDER BY g.execution_id, g.attempt_no, g.kind LIMIT {KEYS_AT_ONCE}
    """  # noqa: S608 - the name is one of find_gone
    return [GoneObject(*row.values()) for row in await connection.fetch(text, *place)]


async def drop_gone(connection: Connection, name: str) -> None:
    await connection.execute(f"DROP TABLE IF EXISTS ondot.{name}")


async def read_sizes(connection: Connection) -> tuple[datetime, int, datetime | None]:
    """The database's time and size, and since when the history of the first tenant is complete."""
    row = await connection.fetchrow(_SQL["read_sizes"].text, DEFAULT_TENANT)
    assert row is not None
    return row["now"], row["bytes"], row["kept_from"]


async def read_data_directory(connection: Connection) -> str | None:
    """Of a server on this machine; None: elsewhere, or not for us to know."""
    directory: str | None = await connection.fetchval(_SQL["read_data_directory"].text)
    return directory


async def list_kept_from(connection: Connection) -> dict[TenantNo, datetime]:
    return {TenantNo(row["tenant_no"]): row["at"] for row in await connection.fetch(_SQL["list_kept_from"].text)}


async def read_kept_from(connection: Connection, tenant_no: TenantNo) -> tuple[datetime | None, int | None]:
    """Since when a tenant's history is complete (None: always), and its own retention in days."""
    row = await connection.fetchrow(_SQL["read_kept_from"].text, tenant_no)
    assert row is not None
    return row["at"], row["days"]


async def hold_kept_from(connection: Connection, tenant_no: TenantNo) -> datetime | None:
    """As `read_kept_from`, and no rewriting starts until the transaction ends."""
    await connection.execute(_SQL["hold_kept_from"].text)
    return (await read_kept_from(connection, tenant_no))[0]
