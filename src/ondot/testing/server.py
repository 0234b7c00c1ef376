"""The PostgreSQL of worlds: one server for a process, with a database for each world (O7).

It is the embedded server, which starts with the first world, in a temporary directory, and is stopped and removed when
the process ends; it may lose everything in a crash, because nothing would be needed again. Or it is the server of the
URL in `ONDOT_TEST_DATABASE_URL`, whose role must be allowed to create databases; the database in the URL is only
connected to. A world is a clone of a template, which is migrated once for each release, and is dropped when the world
closes. Several processes (pytest-xdist) may use one server: the first creates the template, the others wait for it.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from ondot.embedded.server import EmbeddedPostgres
from ondot.model.errors import Misconfigured, Unavailable
from ondot.settings import Settings
from ondot.store.connection import AWAY, DATABASE_ERROR, OwnConnection
from ondot.store.database import connect, open_database
from ondot.store.migrate import migrate_up, migrations
from ondot.store.sql_functions import functions
from ondot.testing.clock import HAND_CLOCK

VARIABLE = "ONDOT_TEST_DATABASE_URL"
PREFIX = "ondot-testing-"
IN_USE = "in-use"
ROOM = 1024**3
FAST = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "checkpoint_flush_after": "0",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "shared_buffers": "64MB",
    "autovacuum": "off",  # no world lives long enough, and its workers would block cloning
    "log_min_messages": "panic",
    "log_min_error_statement": "panic",
}


@dataclass(slots=True)
class Server:
    url: str
    made: set[str] = field(default_factory=set)
    """The templates known to be there."""

    def of(self, database: str) -> str:
        return urlsplit(self.url)._replace(path=f"/{database}").geturl()


def server() -> Server:
    """The server of this process. Starting the embedded one takes a second or two."""
    url = os.environ.get(VARIABLE)
    return _use_url(url) if url else _find_embedded()


@cache
def _use_url(url: str) -> Server:
    if urlsplit(url).scheme not in {"postgresql", "postgres"}:
        raise Misconfigured(f"{VARIABLE} must start with postgresql://, e.g. postgresql://user:password@host/database.")
    return Server(url)


@cache
def _find_embedded() -> Server:
    """The only thing that outlives a world: a server for each world would cost each a second."""
    place = fastest_directory()
    _remove_leftovers(place)
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    directory.chmod(0o755)  # if we are root, the server's account must pass through
    _mark(directory)
    postgres = EmbeddedPostgres(directory / "home", settings=FAST)
    owner = os.getpid()

    def stop() -> None:
        if os.getpid() == owner:  # a fork inherits the exit handlers, but not the server
            postgres.stop()
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(stop)
    try:
        url = postgres.start()
    except Misconfigured as trouble:
        raise Misconfigured(
            f"A world needs a PostgreSQL, and the embedded one did not start. {trouble.message} "
            f"For worlds that variable is {VARIABLE}."
        ) from trouble
    return Server(url)


def fastest_directory() -> Path:
    """In memory if there is room: on a busy disk a clone took up to a second."""
    memory = Path("/dev/shm")  # noqa: S108 - with a directory of our own in it
    if memory.is_dir() and os.access(memory, os.W_OK):
        space = os.statvfs(memory)
        may_execute = not space.f_flag & os.ST_NOEXEC  # as root the server's programs may have to be copied there
        if may_execute and space.f_bavail * space.f_frsize > ROOM:
            return memory
    return Path(tempfile.gettempdir())


def _mark(directory: Path) -> None:
    """Mark it as in use by this process, with a lock that ends with the process. The mark never exists without it."""
    mark = os.open(directory / f"{IN_USE}.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(mark, fcntl.LOCK_EX)
    (directory / f"{IN_USE}.new").rename(directory / IN_USE)


def _remove_leftovers(place: Path) -> None:
    """Remove the directories of processes that were killed; the mark of a living one is locked."""
    for mark in place.glob(f"{PREFIX}*/{IN_USE}"):
        with suppress(OSError):
            descriptor = os.open(mark, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(mark.parent, ignore_errors=True)
            finally:
                os.close(descriptor)


@asynccontextmanager
async def new_database(on: Server) -> AsyncIterator[str]:
    """The URL of a migrated database whose clock the test turns; dropped at the end."""
    name = f"ondot_world_{uuid4().hex}"
    async with _admin(on) as admin:
        try:
            template = await _template(admin, on)
            quick = await admin.fetchval("SELECT current_setting('fsync') = 'off'")
            # Copying files needs checkpoints: 46 ms without fsync, where writing it all to the WAL took 280.
            strategy = "file_copy" if quick else "wal_log"
            await admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY {strategy}")
        except DATABASE_ERROR as error:
            raise Misconfigured(
                f"No database could be created for the world: {error}. "
                f"The role in {VARIABLE} must be allowed to create databases."
            ) from error
        try:
            yield on.of(name)
        finally:
            await admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@asynccontextmanager
async def _admin(on: Server) -> AsyncIterator[OwnConnection]:
    try:
        connection = await connect(settings_for(on.url), hurried=False)
    except (*AWAY, DATABASE_ERROR) as error:
        where = f"The PostgreSQL in {VARIABLE}" if os.environ.get(VARIABLE) else "The embedded PostgreSQL"
        raise Unavailable(f"{where} cannot be used: {error}.") from error
    try:
        yield connection
    finally:
        await connection.close()


async def _template(admin: OwnConnection, on: Server) -> str:
    """The template of this release, created on first use."""
    content = "\n".join(
        [HAND_CLOCK, *(each.checksum for each in migrations()), *(each.checksum for each in functions())]
    )
    name = f"ondot_world_template_{sha256(content.encode()).hexdigest()[:16]}"
    if name in on.made:
        return name
    lock = f"pg_advisory_lock(hashtext('{name}'))"
    await admin.execute(f"SELECT {lock}")
    try:
        if not await admin.fetchval("SELECT true FROM pg_database WHERE datname = $1", name):
            # Under another name until it is complete: a killed process leaves no partial template.
            fresh = f"ondot_world_fresh_{uuid4().hex}"
            await admin.execute(f"CREATE DATABASE {fresh}")
            await _fill(on.of(fresh))
            await admin.execute(f"ALTER DATABASE {fresh} WITH ALLOW_CONNECTIONS false")
            await admin.execute(f"ALTER DATABASE {fresh} RENAME TO {name}")
    finally:
        await admin.execute(f"SELECT {lock.replace('lock', 'unlock', 1)}")
    on.made.add(name)
    return name


async def _fill(url: str) -> None:
    database = await open_database(settings_for(url))
    try:
        await migrate_up(database)
        async with database.connection() as connection:
            await connection.execute(HAND_CLOCK)
    finally:
        await database.close()


def settings_for(url: str, *, allow_shell: bool = False) -> Settings:
    """As those of `ondot up` on a person's own machine; variables and files of the environment are ignored."""
    return Settings.model_construct(
        database_url=url, auth="off", allow_private_targets=True, allow_shell=allow_shell, allow_unsafe_database=True
    )
