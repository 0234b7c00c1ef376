"""Archives days before they are rewritten (O1): one Parquet file for each tenant, table and day.

A file is written to this machine's disk, stored, read back whole, and compared: its bytes, its rows and their keys.
When all files of a partition are right, they are recorded, and only then may a rewriting start. If the storage is away
or a file is not right, nothing is recorded and the day stays as it is: the condition `archive` says so, and it is tried
again. A rewriting removes only rows that were there before it started and were not written since, so all of them are in
the files. Rows that stay are archived again when they go: readers take the newest row of a key.

Memory is bounded by pages and row groups, and by how many tenants are written at once. Values that are encrypted are
not archived, and neither are deleted tenants.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from ondot import __version__
from ondot.archive.parquet import Broken, ParquetFiles, Written, check_file, hash_file
from ondot.flow.alerts.conditions import clear_condition, report_condition
from ondot.model.errors import Misconfigured, Unavailable
from ondot.model.ids import TenantNo
from ondot.model.secret import MASK
from ondot.ports.objects import Objects
from ondot.store.archive import (
    Column,
    count_rows,
    find_last_archived,
    insert_archive_files,
    list_columns,
    read_pages,
)
from ondot.store.connection import Record
from ondot.store.database import Database
from ondot.store.day_rewrite import Partition
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import ARCHIVED

TENANTS_AT_ONCE: Final = 16
FRESH_FOR: Final = timedelta(hours=12)
"""A partition that was archived within this time for the same retention is not archived again: its rewriting was put
off because its table was in use."""
CONDITION: Final = "archive"
PAST: Final = "past"
_SEALED: Final = '"$sealed"'

log = get_logger()


class Archive:
    def __init__(self, database: Database, files: Objects) -> None:
        self._database = database.patient
        self._files = files

    async def store(self, partitions: Sequence[Partition], days: int) -> bool:
        """Archive these partitions before a rewriting for a retention of `days`. False: they must stay."""
        try:
            for partition in partitions:
                if not partition.is_empty and not await self._is_fresh(partition, days):
                    await self._store(partition, days)
        except (Unavailable, Misconfigured, Broken, OSError) as error:
            message = error.message if isinstance(error, Unavailable | Misconfigured) else str(error)
            log.warning("archive.failed", table=partitions[0].parent, error=message, then="the day is kept")
            await self._report(partitions[0].parent, message)
            return False
        async with self._database.connection() as connection:
            await clear_condition(connection, CONDITION, subject=partitions[0].parent)
        return True

    async def _is_fresh(self, partition: Partition, days: int) -> bool:
        async with self._database.connection() as connection:
            at = await find_last_archived(connection, partition.parent, partition.name, days)
        is_later = at is not None and (partition.last is None or partition.last.at < at)
        return at is not None and is_later and at > self._database.clock.now() - FRESH_FOR

    async def _store(self, partition: Partition, days: int) -> None:
        async with self._database.connection() as connection:
            columns = await list_columns(connection, partition.parent)
            counts = await count_rows(connection, partition.name)
        at = self._database.clock.now()
        stored: list[tuple[TenantNo, str, int, int, str]] = []
        try:
            await self._store_files(partition, columns, counts, at, stored)
        except BaseException:
            # Best effort: one that is left is never listed, and has rows that the next one has, too.
            with suppress(Unavailable):
                await self._files.delete([file[1] for file in stored])
            raise
        async with self._database.transaction() as connection:
            await insert_archive_files(connection, partition.parent, partition.name, partition.day, days, stored)
        rows = sum(file[2] for file in stored)
        ARCHIVED.labels(partition.parent).inc(rows)
        log.info("history.archived", table=partition.parent, partition=partition.name, files=len(stored), rows=rows)

    async def _store_files(
        self,
        partition: Partition,
        columns: Sequence[Column],
        counts: Mapping[TenantNo, int],
        at: datetime,
        stored: list[tuple[TenantNo, str, int, int, str]],
    ) -> None:
        """A file for each tenant, some at a time. `stored`: gets each before it is sent."""
        tenant_nos = list(counts)
        for start in range(0, len(tenant_nos), TENANTS_AT_ONCE):
            some = tenant_nos[start : start + TENANTS_AT_ONCE]
            with _directory() as directory:
                written = await self._write(directory, partition, columns, some)
                for tenant_no in some:
                    file = written.get(tenant_no)
                    if file is None or file.rows < counts[tenant_no]:
                        got = 0 if file is None else file.rows
                        raise Broken(
                            f"{partition.name} had {counts[tenant_no]:,} rows of tenant {tenant_no}, {got:,} were read"
                        )
                    key = key_of(partition.parent, partition.day, tenant_no, at, file.rows)
                    stored.append((tenant_no, key, file.rows, file.path.stat().st_size, file.digest))
                    await self._put(key, file)

    async def _write(
        self, directory: Path, partition: Partition, columns: Sequence[Column], tenant_nos: Sequence[TenantNo]
    ) -> dict[int, Written]:
        keys = sorted((each for each in columns if each.key_place is not None), key=lambda each: each.key_place or 0)
        types = {column.name: column.type for column in columns}
        if "pool_no" in types:
            types["pool"] = "text"
        day = PAST if partition.day is None else partition.day.isoformat()
        facts = {"ondot.table": partition.parent, "ondot.day": day, "ondot.release": __version__}
        files = await asyncio.to_thread(ParquetFiles, directory, types, [key.name for key in keys], facts)
        is_masked = partition.parent == "job_once"
        async for rows in read_pages(self._database, partition.name, columns, tenant_nos):
            await asyncio.to_thread(files.add, map(_mask, rows) if is_masked else rows)
        return await asyncio.to_thread(files.close)

    async def _put(self, key: str, file: Written) -> None:
        """Store a file, and read it back: storage that lost or cut it must not be trusted with the only copy."""
        with file.path.open("rb") as content:
            await self._files.put(key, content)
        again = file.path.with_suffix(".again")
        await fetch_file(self._files, key, again)
        digest = await asyncio.to_thread(hash_file, again)
        rows, keys = await asyncio.to_thread(check_file, again)
        again.unlink()
        if (rows, keys, digest) != (file.rows, file.keys, file.digest):
            raise Broken(f"{key} is not what was written: it has {rows:,} rows of {file.rows:,}")

    async def _report(self, parent: str, message: str) -> None:
        async with self._database.connection() as connection:
            await report_condition(
                connection,
                CONDITION,
                subject=parent,
                message=f"Days of {parent} cannot be archived to {self._files.place}, and are kept: {message}",
                details={"table": parent, "place": self._files.place},
            )


async def fetch_file(files: Objects, key: str, path: Path) -> None:
    """Raises Broken if it is not there."""
    found = await files.get(key)
    if found is None:
        raise Broken(f"{key} is not in the archive")
    with path.open("wb") as file:
        async for chunk in found.chunks:
            await asyncio.to_thread(file.write, chunk)


def key_of(parent: str, day: date | None, tenant_no: TenantNo, at: datetime, rows: int) -> str:
    """`<table>/day=<day>/tenant=<number>/<when>-<rows>.parquet`: the newest of a day has the last name."""
    named = PAST if day is None else day.isoformat()
    return f"{parent}/day={named}/tenant={tenant_no}/{at:%Y%m%dT%H%M%S%f}Z-{rows}.parquet"


@contextmanager
def _directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="ondot-archive-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _mask(row: Record) -> dict[str, Any]:
    """A job without the headers that are stored encrypted: nobody could read them without the key of that time."""
    values = dict(row.items())
    if _SEALED in values["spec"]:
        values["spec"] = msgspec.json.encode(_without_sealed(msgspec.json.decode(values["spec"]))).decode()
    return values


def _without_sealed(value: Any) -> Any:
    match value:
        case {"$sealed": _}:
            return MASK
        case dict():
            return {name: _without_sealed(each) for name, each in value.items()}
        case list():
            return [_without_sealed(each) for each in value]
        case _:
            return value
