"""`ondot migrate`, and the migration that `ondot up` runs before its roles start (O9)."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import uvloop

from ondot.flow.days import make_days
from ondot.model.errors import Unavailable
from ondot.model.urls import place_of
from ondot.settings import Settings
from ondot.store.database import Database, check_server, open_database
from ondot.store.migrate import Applied, Status, migrate_up, read_status

Result = TypeVar("Result")


def migrate(settings: Settings, *, row_security: bool | None = None) -> Applied:
    """Bring the schema up to this release and create the coming day tables; return what was applied."""

    async def up(database: Database) -> Applied:
        applied = await migrate_up(database, row_security=row_security)
        await make_days(database)
        return applied

    return _with_database(settings, up)


def read_schema_status(settings: Settings) -> Status:
    async def read(database: Database) -> Status:
        async with database.connection() as connection:
            return await read_status(connection)

    return _with_database(settings, read)


def _with_database(settings: Settings, action: Callable[[Database], Awaitable[Result]]) -> Result:
    async def main() -> Result:
        database = await open_database(settings)
        try:
            await check_server(database)
            return await action(database)
        except Unavailable as error:
            raise Unavailable(f"{error.message} Is it running at {place_of(settings.needs_database_url)}?") from error
        finally:
            await database.close()

    return uvloop.run(main())
