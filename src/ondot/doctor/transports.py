"""Whether every transport that a pool uses takes a hint (C4, C5): one is sent, which wakes workers and nothing more."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ondot.doctor.checks import Finding
from ondot.model.errors import Misconfigured
from ondot.model.ids import PoolNo
from ondot.model.routes import WITHOUT_BEATS, pools_by_transport
from ondot.ports.transport import Transport, Wake

if TYPE_CHECKING:
    from datetime import datetime

    from ondot.store.connection import Connection
    from ondot.store.database import Database

CHECK: Final = "transports"
ANSWERS_WITHIN_S: Final = 5.0
FIRST_POOL: Final = PoolNo(1)
ADVICE: Final = "Workers poll each second meanwhile, and use it again by themselves: docs/guides/transports.md."

OpenTransport = Callable[[str, "Database"], Transport]


async def check_transports(connection: "Connection", database: "Database", open_transport: OpenTransport) -> Finding:
    await database.pools.read_routes(connection)
    now: datetime = await connection.fetchval("SELECT ondot.clock()")
    routes = database.pools.routes
    used = pools_by_transport([FIRST_POOL, *routes], routes, database.settings.transport, now)
    to_try = {name: pool_nos for name, pool_nos in sorted(used.items()) if name not in WITHOUT_BEATS}
    for name, pool_nos in to_try.items():
        if (why_not := await _try(name, Wake(pool_nos[0], now), database, open_transport)) is not None:
            return Finding(
                CHECK, "problem", f"The transport {name} takes no hints: {why_not.removesuffix('.')}.", ADVICE
            )
    if not to_try:
        return Finding(CHECK, "ok", "Wake-ups go through PostgreSQL, or stay within a process.")
    return Finding(CHECK, "ok", f"{', '.join(to_try)} took a hint.")


async def _try(name: str, wake: Wake, database: "Database", open_transport: OpenTransport) -> str | None:
    """Why not; None: it took one."""
    try:
        transport = open_transport(name, database)
    except Misconfigured as error:
        return error.message
    try:
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            await transport.publish([wake])
    except TimeoutError:
        return f"no answer within {ANSWERS_WITHIN_S:g} s"
    except Exception as error:  # noqa: BLE001 - whatever the client raises is the finding
        return str(error) or type(error).__name__
    finally:
        await transport.close()
    return None
