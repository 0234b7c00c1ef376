"""`ondot archive`: list, check and query the days that were archived before they went. For operators: it reads the
database and the storage themselves."""

import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ondot.cli.calling import database_settings
from ondot.cli.errors import FAILED
from ondot.cli.options import Output, Yes
from ondot.cli.output import Format, show, show_error, show_items, show_line, table

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import date

    from ondot.ports.objects import Objects
    from ondot.settings import Settings
    from ondot.store.archive import ArchiveFile

app = typer.Typer(help="Days that were archived before they went.", no_args_is_help=True)

Table = Annotated[str | None, typer.Option("--table", help="Only of this table, such as history.")]
TenantName = Annotated[str | None, typer.Option("--of", metavar="TENANT", help="Only of this tenant, by name.")]
Since = Annotated[datetime | None, typer.Option("--since", formats=["%Y-%m-%d"], help="Only of this day or later.")]
Until = Annotated[datetime | None, typer.Option("--until", formats=["%Y-%m-%d"], help="Only of this day or earlier.")]


@app.command("list")
def list_files(
    of_table: Table = None,
    tenant: TenantName = None,
    since: Since = None,
    until: Until = None,
    output: Output = Format.TABLE,
) -> None:
    """List the files: their table, day, tenant, rows and size."""
    _, found = _find(of_table, tenant, since, until)
    rows = [
        {
            "table": file.parent,
            "day": None if file.day is None else file.day.isoformat(),
            "tenant_no": file.tenant_no,
            "rows": file.rows,
            "bytes": file.bytes,
            "archived_at": file.at.isoformat(),
            "key": file.key,
        }
        for file in found
    ]
    _show(rows, output, none="Nothing is archived.")


@app.command()
def verify(of_table: Table = None, tenant: TenantName = None, since: Since = None, until: Until = None) -> None:
    """Read files whole, and compare them with what was written. Exits with 1 if one is missing or broken."""
    import asyncio

    settings, found = _find(of_table, tenant, since, until)
    files = _open(settings)
    broken = 0
    with tempfile.TemporaryDirectory(prefix="ondot-archive-") as directory:
        for file in found:
            try:
                asyncio.run(_verify(files, file, Path(directory) / "file.parquet"))
            except _broken() as error:
                broken += 1
                show_error(f"{file.key}: {getattr(error, 'message', error)}")
    right = len(found) - broken
    show_line(f"{right} {'file is' if right == 1 else 'files are'} right, {broken} not.")
    if broken:
        raise typer.Exit(FAILED)


@app.command()
def query(
    sql: Annotated[str, typer.Argument(help="SQL over history, attempt, log, job_once, audit, event and others.")],
    tenant: TenantName = None,
    since: Since = None,
    until: Until = None,
    output: Output = Format.TABLE,
) -> None:
    """Run SQL over the archive with DuckDB: one view for each table, under its name.

    Files of the tables that the text names are fetched first; --since, --until and --of leave others out.
    """
    import asyncio

    from ondot.archive.parquet import Broken
    from ondot.archive.query import KEYS, query_files
    from ondot.model.errors import NotFound

    settings, found = _find(None, tenant, since, until)
    files = _open(settings)
    wanted = [file for file in found if file.parent in sql]
    with tempfile.TemporaryDirectory(prefix="ondot-archive-") as directory:
        paths: dict[str, list[Path]] = {name: [] for name in KEYS}
        for number, file in enumerate(wanted):
            # The time in the name decides which row is the newest.
            path = Path(directory) / f"{number}" / Path(file.key).name
            path.parent.mkdir()
            try:
                asyncio.run(_fetch_as_written(files, file, path))
            except Broken as error:
                raise NotFound(f"{error}. `ondot archive verify` lists all that is missing or broken.") from error
            paths[file.parent].append(path)
        names, rows = query_files(sql, paths)
    _show([dict(zip(names, map(_plain, row), strict=True)) for row in rows], output, none="No rows.")


@app.command()
def remove(
    until: Annotated[datetime, typer.Option("--until", formats=["%Y-%m-%d"], help="The last day to delete.")],
    of_table: Table = None,
    tenant: TenantName = None,
    yes: Yes = False,
) -> None:
    """Delete files of this day and earlier ones, from the storage and from the list. This cannot be undone."""
    import asyncio

    settings, listed = _find(of_table, tenant, None, until)
    # A file of the past has rows of many days: it counts by the day on which it was written.
    found = [file for file in listed if file.day is not None or file.at.date() <= until.date()]
    files = _open(settings)
    if not found:
        show_line("Nothing is archived of that time.")
        return
    count = f"{len(found):,} {'file' if len(found) == 1 else 'files'}"
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter(f"This deletes {count}. Confirm with --yes.", param_hint="--yes")
        typer.confirm(f"Delete {count}? This cannot be undone.", abort=True, err=True)
    asyncio.run(_remove(settings, files(), found))
    show_line(f"{count} deleted.")


async def _remove(settings: "Settings", files: "Objects", found: "list[ArchiveFile]") -> None:
    """From the storage first: a file that is still listed is found again if this is interrupted."""
    from ondot.store.archive import LISTED_AT_ONCE, delete_archive_files
    from ondot.store.database import open_database

    database = await open_database(settings)
    try:
        for start in range(0, len(found), LISTED_AT_ONCE):
            some = found[start : start + LISTED_AT_ONCE]
            await files.delete([file.key for file in some])
            async with database.connection() as connection:
                await delete_archive_files(connection, some)
    finally:
        await database.close()


def _find(
    of_table: str | None, tenant: str | None, since: datetime | None, until: datetime | None
) -> "tuple[Settings, list[ArchiveFile]]":
    import asyncio

    settings = database_settings()

    async def read() -> "list[ArchiveFile]":
        from ondot.model.errors import NotFound
        from ondot.store.archive import list_archive_files
        from ondot.store.database import open_database
        from ondot.store.tenants import find_tenant

        database = await open_database(settings)
        try:
            async with database.connection() as connection:
                found = None
                if tenant is not None and (found := await find_tenant(connection, tenant)) is None:
                    raise NotFound(f"There is no tenant {tenant!r}.")
                return await list_archive_files(
                    connection,
                    parent=of_table,
                    tenant_no=None if found is None else found.tenant.tenant_no,
                    from_day=_day(since),
                    to_day=_day(until),
                )
        finally:
            await database.close()

    return settings, asyncio.run(read())


def _day(at: datetime | None) -> "date | None":
    return None if at is None else at.date()


def _open(settings: "Settings") -> "Callable[[], Objects]":
    from ondot.model.errors import Misconfigured
    from ondot.objects import open_archive

    if settings.archive_url is None:
        raise Misconfigured("Where is the archive? Set ONDOT_ARCHIVE_URL as for the schedulers.")

    def opened() -> "Objects":
        files = open_archive(settings)
        assert files is not None
        return files

    return opened


async def _fetch(files: "Callable[[], Objects]", key: str, path: Path) -> None:
    from ondot.flow.history.archive import fetch_file

    await fetch_file(files(), key, path)


async def _fetch_as_written(files: "Callable[[], Objects]", file: "ArchiveFile", path: Path) -> None:
    from ondot.archive.parquet import Broken, hash_file

    await _fetch(files, file.key, path)
    if hash_file(path) != file.digest:
        raise Broken(f"{file.key} is not what was written")


async def _verify(files: "Callable[[], Objects]", file: "ArchiveFile", path: Path) -> None:
    from ondot.archive.parquet import Broken, check_file, hash_file

    await _fetch(files, file.key, path)
    rows, _ = check_file(path)
    if rows != file.rows or hash_file(path) != file.digest:
        raise Broken(f"is not what was written: it has {rows:,} rows of {file.rows:,}")


def _broken() -> tuple[type[Exception], ...]:
    from ondot.archive.parquet import Broken
    from ondot.model.errors import Unavailable

    return Broken, Unavailable


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _show(rows: list[dict[str, Any]], output: Format, *, none: str) -> None:
    if not output.is_table:
        return show_items(rows, rows, output)
    if not rows:
        return show_line(none)
    shown = table(*rows[0])
    for row in rows:
        shown.add_row(*("" if value is None else str(value) for value in row.values()))
    return show(shown, output)
