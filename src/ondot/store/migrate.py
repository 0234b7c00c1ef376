"""Migrations: numbered SQL for the tables, forward only, then the functions; safe when several processes start at once.

Each migration is one transaction under one advisory lock (of the transaction: a session's would not pass PgBouncer); so
are the functions, whose text is in `store/functions/`. It may be applied under load: a statement that waits for a table
makes all others wait behind it, so it waits for a moment only, lets them pass, and tries again.
A role runs on a schema that is not older than the one it needs and whose `oldest_release` is not newer than the role.
So an upgrade migrates first, with the new release, and then restarts the roles: those of the release before run on the
new schema, which only adds; those of the new one refuse the old schema.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import TypeVar

import asyncpg

from ondot import __version__
from ondot.model.errors import Misconfigured, Unavailable
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.row_security import is_row_security_on, set_row_security
from ondot.store.sql_functions import Function, functions

NEEDS = 36
"""The oldest schema this release can run on."""

TRIES = 60
LOCK_S = 0.5
"""At most half of the server's deadlock_timeout: in a deadlock the migration gives way, before PostgreSQL
looks for deadlocks and ends a request."""
LET_PASS_S = 0.5
LONGEST_S = 6 * 3600.0

Result = TypeVar("Result")

_LOCK = 0x6F6E646F74
"""The key of the advisory lock: the bytes of "ondot"."""

_FORMERLY = re.compile(r"^-- formerly ([0-9a-f]{64})$", re.MULTILINE)

_WAIT_FOR_A_MOMENT = """
SELECT set_config('lock_timeout', greatest(least($1::integer, setting::integer / 2), 1)::text, true)
FROM pg_settings WHERE name = 'deadlock_timeout'
"""

_BOOKKEEPING = """
CREATE SCHEMA IF NOT EXISTS ondot;
CREATE TABLE IF NOT EXISTS ondot.migration (
    number     integer PRIMARY KEY,
    tenant_no  integer NOT NULL DEFAULT 0,
    name       text NOT NULL,
    checksum   text NOT NULL,
    release    text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT statement_timestamp()
);
"""

_RECORD = "INSERT INTO ondot.migration (number, name, checksum, release) VALUES ($1, $2, $3, $4)"

_RECORD_FUNCTION = """
INSERT INTO ondot.function (name, checksum, release) VALUES ($1, $2, $3) ON CONFLICT (name) DO UPDATE
SET checksum = excluded.checksum, release = excluded.release, applied_at = statement_timestamp()
"""


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def checksums(self) -> set[str]:
        """Its own, and that of its text before functions moved to `functions/` and comments were edited."""
        return {self.checksum, *_FORMERLY.findall(self.sql)}


@dataclass(frozen=True, slots=True)
class Status:
    """What is applied, what waits, and what does not match the files of this release."""

    applied: tuple[int, ...]
    waiting: tuple[Migration, ...]
    changed: tuple[int, ...]
    oldest_release: str | None
    functions: tuple[str, ...] = ()
    """Those that are missing, or have another text than this release and are not of a newer one."""


@dataclass(frozen=True, slots=True)
class Applied:
    migrations: tuple[Migration, ...]
    functions: tuple[str, ...]


def migrations() -> list[Migration]:
    found = []
    for entry in files("ondot.store").joinpath("migrations").iterdir():
        if match := re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name):
            found.append(Migration(int(match[1]), match[2], entry.read_text()))
    return sorted(found, key=lambda migration: migration.number)


async def read_status(connection: Connection) -> Status:
    known = migrations()
    try:
        rows = await connection.fetch("SELECT number, checksum FROM ondot.migration ORDER BY number")
        oldest = await connection.fetchval("SELECT oldest_release FROM ondot.installation")
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return Status((), tuple(known), (), None, tuple(each.name for each in functions()))
    checksums = {row["number"]: row["checksum"] for row in rows}
    return Status(
        applied=tuple(checksums),
        waiting=tuple(migration for migration in known if migration.number not in checksums),
        changed=tuple(m.number for m in known if checksums.get(m.number, m.checksum) not in m.checksums),
        oldest_release=oldest,
        functions=tuple(each.name for each in await _functions_to_apply(connection)),
    )


async def migrate_up(database: Database, *, row_security: bool | None = None) -> Applied:
    """Apply what waits. Of two at the same time, the second waits and finds nothing to do.

    `row_security`: set up or remove row-level security. None: where it is on, new tables get it too.
    """
    applied = tuple([migration for migration in migrations() if await apply(database, migration)])
    functions = await apply_functions(database)

    async def secure(connection: Connection) -> None:
        if row_security is not None or await is_row_security_on(connection):
            await set_row_security(connection, on=row_security is not False)

    await _try_until_locked(database, "Row-level security", secure)
    return Applied(applied, functions)


async def apply(database: Database, migration: Migration) -> bool:
    """Apply one, unless it was applied before; returns whether it was not."""

    async def action(connection: Connection) -> bool:
        return await _apply(connection, migration)

    return await _try_until_locked(database, f"Migration {migration.number:04}", action)


async def apply_functions(database: Database) -> tuple[str, ...]:
    """Apply the functions whose text is not in force, all in one transaction, so that they fit each other."""
    return await _try_until_locked(database, "The change of the functions", _apply_functions)


async def _try_until_locked(database: Database, what: str, action: Callable[[Connection], Awaitable[Result]]) -> Result:
    for tries_left in reversed(range(TRIES)):
        try:
            async with database.transaction() as connection:
                await connection.execute("SET LOCAL statement_timeout = 0")
                await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK, timeout=LONGEST_S)
                await connection.execute(_WAIT_FOR_A_MOMENT, int(LOCK_S * 1000))
                # Functions call functions of later files, and on an empty database read tables of later migrations.
                await connection.execute("SET LOCAL check_function_bodies = off")
                return await action(connection)
        except asyncpg.ObjectInUseError as error:
            raise Misconfigured(f"{what} was not applied. {error.message}") from error
        except asyncpg.LockNotAvailableError as error:
            if not tries_left:
                raise Unavailable(
                    f"{what} got no lock on a table in {TRIES} tries: look for a transaction that has been open for"
                    " long (pg_stat_activity), end it, and try again."
                ) from error
            await asyncio.sleep(LET_PASS_S)
    raise AssertionError("the last try returns or raises")


async def _apply(connection: Connection, migration: Migration) -> bool:
    await connection.execute(_BOOKKEEPING)
    if await connection.fetchval("SELECT true FROM ondot.migration WHERE number = $1", migration.number):
        return False
    if migration.number == 1:
        for function in functions():
            await connection.execute(function.without_triggers)
    await connection.execute(migration.sql, timeout=LONGEST_S)
    await connection.execute(_RECORD, migration.number, migration.name, migration.checksum, __version__)
    return True


async def _apply_functions(connection: Connection) -> tuple[str, ...]:
    waiting = await _functions_to_apply(connection)
    for function in waiting:
        await connection.execute(function.sql, timeout=LONGEST_S)
        await connection.execute(_RECORD_FUNCTION, function.name, function.checksum, __version__)
    return tuple(function.name for function in waiting)


async def _functions_to_apply(connection: Connection) -> list[Function]:
    """Those without the text of this release; none if a newer release has been here, which wrote its own."""
    rows = []
    if await connection.fetchval("SELECT to_regclass('ondot.function')"):
        rows = await connection.fetch("SELECT name, checksum, release FROM ondot.function")
    newest = await connection.fetchval("SELECT max(number) FROM ondot.migration")
    if newest > migrations()[-1].number or any(release_key(row["release"]) > release_key(__version__) for row in rows):
        return []
    in_force = {row["name"]: row["checksum"] for row in rows}
    return [each for each in functions() if in_force.get(each.name) != each.checksum]


async def check_schema(connection: Connection) -> None:
    """Refuse to run on a schema that does not fit this release."""
    fits(await read_status(connection))


def fits(status: Status, *, release: str = __version__, needs: int = NEEDS) -> None:
    newest = max(status.applied, default=0)
    if newest < needs:
        found = f"schema {newest}" if newest else "no ondot schema"
        raise Misconfigured(f"The database has {found}, this release needs {needs}: run `ondot migrate up`.")
    if status.functions:
        names = ", ".join(status.functions[:3]) + (" …" if len(status.functions) > 3 else "")
        raise Misconfigured(f"The database has functions of an older release ({names}): run `ondot migrate up`.")
    if status.oldest_release and release_key(release) < release_key(status.oldest_release):
        raise Misconfigured(
            f"The database was migrated for ondot {status.oldest_release} and newer, this is {release}: upgrade ondot."
        )


def release_key(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release)[:3])
