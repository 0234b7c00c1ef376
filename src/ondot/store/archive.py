"""What an archive reads of a day, and the list of its files (O1). Rows are read in pages by their primary key, each a
statement of its own: a snapshot that is held for minutes would keep dead rows of the queue."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

from ondot.model.ids import TenantNo
from ondot.store.connection import Connection, Record
from ondot.store.database import Database
from ondot.store.queries import load_queries

_SQL = load_queries("archive")

PAGE_BYTES: Final = 8 * 1024 * 1024
FIRST_PAGE: Final = 50
"""Rows may have megabytes: the next page is as long as the bytes of the last one allow."""
LARGEST_PAGE: Final = 5_000
LISTED_AT_ONCE: Final = 1_000
_AS_TEXT: Final = frozenset({"uuid", "json", "jsonb", "date", "numeric", "inet"})


@dataclass(frozen=True, slots=True)
class Column:
    """`key_place`: its place in the primary key, from 0, or None."""

    name: str
    type: str
    key_place: int | None

    @property
    def selected(self) -> str:
        name = f's."{self.name}"'
        return f"{name}::text" if self.type in _AS_TEXT or self.type.endswith("[]") else name


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    tenant_no: TenantNo
    key: str
    parent: str
    name: str
    day: date | None
    days: int
    at: datetime
    rows: int
    bytes: int
    digest: str


async def list_columns(connection: Connection, parent: str) -> list[Column]:
    return [Column(*row.values()) for row in await connection.fetch(_SQL["list_archived_columns"].text, parent)]


async def count_rows(connection: Connection, partition: str) -> dict[TenantNo, int]:
    """Of each tenant, without those that are deleted: their rows go for good."""
    deleted = {row["tenant_no"] for row in await connection.fetch(_SQL["list_deleted_tenants"].text)}
    rows = await connection.fetch(
        f'SELECT tenant_no, count(*) AS rows FROM ondot."{partition}" GROUP BY tenant_no ORDER BY tenant_no'  # noqa: S608
    )
    return {TenantNo(row["tenant_no"]): row["rows"] for row in rows if row["tenant_no"] not in deleted}


async def read_pages(
    database: Database, partition: str, columns: Sequence[Column], tenant_nos: Sequence[TenantNo]
) -> AsyncIterator[list[Record]]:
    """The rows of these tenants in the order of their keys. The name of the pool is added where there is its number."""
    keys = sorted(
        (column for column in columns if column.key_place is not None), key=lambda column: column.key_place or 0
    )
    selected = ", ".join(f'{column.selected} AS "{column.name}"' for column in columns)
    pool = any(column.name == "pool_no" for column in columns)
    if pool:
        selected += ", (SELECT p.name FROM ondot.pool p WHERE p.pool_no = s.pool_no) AS pool"
    names = ", ".join(f's."{column.name}"' for column in keys)
    place = ", ".join(f"${number}::text::{column.type}" for number, column in enumerate(keys, 3))
    start = f'SELECT {selected} FROM ondot."{partition}" s WHERE s.tenant_no = ANY ($1::integer[])'  # noqa: S608
    end = f" ORDER BY {names} LIMIT $2::integer"
    limit, after = FIRST_PAGE, None
    while True:
        async with database.connection() as connection:
            if after is None:
                rows = await connection.fetch(start + end, tenant_nos, limit)
            else:
                rows = await connection.fetch(f"{start} AND ({names}) > ({place}){end}", tenant_nos, limit, *after)
        if not rows:
            return
        yield rows
        if len(rows) < limit:
            return
        after = [str(rows[-1][column.name]) for column in keys]
        each = max(sum(map(_length, rows)) // len(rows), 1)
        limit = max(min(PAGE_BYTES // each, limit * 4, LARGEST_PAGE), 1)


def _length(row: Record) -> int:
    return sum(len(value) if isinstance(value, (str, bytes)) else 8 for value in row.values())


async def find_last_archived(connection: Connection, parent: str, name: str, days: int) -> datetime | None:
    at: datetime | None = await connection.fetchval(_SQL["find_last_archived"].text, parent, name, days)
    return at


async def insert_archive_files(
    connection: Connection,
    parent: str,
    name: str,
    day: date | None,
    days: int,
    files: Sequence[tuple[TenantNo, str, int, int, str]],
) -> None:
    """`files`: tenant, key, rows, bytes, digest."""
    columns: list[Any] = [list(column) for column in zip(*files, strict=True)] or [[], [], [], [], []]
    await connection.execute(_SQL["insert_archive_files"].text, *columns, parent, name, day, days)


async def list_archive_files(
    connection: Connection,
    *,
    parent: str | None = None,
    tenant_no: TenantNo | None = None,
    from_day: date | None = None,
    to_day: date | None = None,
) -> list[ArchiveFile]:
    found: list[ArchiveFile] = []
    while True:
        after = (found[-1].tenant_no, found[-1].key) if found else (-1, "")
        rows = await connection.fetch(
            _SQL["list_archive_files"].text, parent, tenant_no, from_day, to_day, *after, LISTED_AT_ONCE
        )
        found += [ArchiveFile(*row.values()) for row in rows]
        if len(rows) < LISTED_AT_ONCE:
            return found


async def delete_archive_files(connection: Connection, files: Sequence[ArchiveFile]) -> None:
    """Remove files from the list."""
    tenant_nos, keys = [file.tenant_no for file in files], [file.key for file in files]
    await connection.execute(_SQL["delete_archive_files"].text, tenant_nos, keys)
