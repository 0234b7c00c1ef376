"""Migrations: numbered SQL, forward only, safe when several processes start at once.

Each migration is one transaction under one advisory lock (of the transaction: a session's would not pass PgBouncer).
It may be applied under load: who waits for a table makes all others wait behind it, so it waits for a moment only, lets
them pass, and tries again.
A role runs on a schema that is not older than the one it needs and whose `oldest_release` is not newer than the role.
So an upgrade migrates first, with the new release, and then restarts the roles: those of the release before run on the
new schema, since it only adds; those of the new one refuse the old schema.
"""

import asyncio
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

import asyncpg

from ondot import __version__
from ondot.model.errors import Misconfigured, Unavailable
from ondot.store.connection import Connection
from ondot.store.database import Database

NEEDS = 14
"""The oldest schema this release can run on."""

TRIES = 60
LOCK_S = 0.5
"""At most half of the server's deadlock_timeout: where both wait for each other it is the migration that gives way,
before PostgreSQL looks for deadlocks and ends somebody's request."""
LET_PASS_S = 0.5
LONGEST_S = 6 * 3600.0

_LOCK = 0x6F6E646F74
"""The key of the advisory lock: the bytes of "ondot"."""

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


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Status:
    """What is applied, what waits, and what does not match the files of this release."""

    applied: tuple[int, ...]
    waiting: tuple[Migration, ...]
    changed: tuple[int, ...]
    oldest_release: str | None


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
        return Status((), tuple(known), (), None)
    checksums = {row["number"]: row["checksum"] for row in rows}
    return Status(
        applied=tuple(checksums),
        waiting=tuple(migration for migration in known if migration.number not in checksums),
        changed=tuple(m.number for m in known if checksums.get(m.number, m.checksum) != m.checksum),
        oldest_release=oldest,
    )


async def migrate_up(database: Database) -> list[Migration]:
    """Apply what waits. Twice at the same time: the second waits, and finds nothing to do."""
    return [migration for migration in migrations() if await apply(database, migration)]


async def apply(database: Database, migration: Migration) -> bool:
    """Apply one, unless it was; True: it was not."""
    for tries_left in reversed(range(TRIES)):
        try:
            async with database.transaction() as connection:
                return await _apply(connection, migration)
        except asyncpg.LockNotAvailableError as error:
            if not tries_left:
                raise Unavailable(
                    f"Migration {migration.number:04} got no lock on a table that it changes in {TRIES} tries: look for"
                    " a transaction that has been open for long (pg_stat_activity), end it, and try again."
                ) from error
            await asyncio.sleep(LET_PASS_S)
    raise AssertionError("the last try returns or raises")


async def _apply(connection: Connection, migration: Migration) -> bool:
    await connection.execute("SET LOCAL statement_timeout = 0")
    await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK, timeout=LONGEST_S)
    await connection.execute(_WAIT_FOR_A_MOMENT, int(LOCK_S * 1000))
    await connection.execute(_BOOKKEEPING)
    if await connection.fetchval("SELECT true FROM ondot.migration WHERE number = $1", migration.number):
        return False
    await connection.execute(migration.sql, timeout=LONGEST_S)
    await connection.execute(
        "INSERT INTO ondot.migration (number, name, checksum, release) VALUES ($1, $2, $3, $4)",
        migration.number,
        migration.name,
        migration.checksum,
        __version__,
    )
    return True


async def check_schema(connection: Connection) -> None:
    """Refuse to run on a schema that does not fit this release."""
    fits(await read_status(connection))


def fits(status: Status, *, release: str = __version__, needs: int = NEEDS) -> None:
    newest = max(status.applied, default=0)
    if newest < needs:
        found = f"schema {newest}" if newest else "no ondot schema"
        raise Misconfigured(f"The database has {found}, this release needs {needs}: run `ondot migrate up`.")
    if status.oldest_release and release_key(release) < release_key(status.oldest_release):
        raise Misconfigured(
            f"The database was migrated for ondot {status.oldest_release} and newer, this is {release}: upgrade ondot."
        )


def release_key(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release)[:3])
