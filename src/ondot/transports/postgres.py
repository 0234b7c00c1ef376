"""Wake-ups by LISTEN and NOTIFY: nothing to install, one connection for each listening process (C4, C5)."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime

from ondot.model.ids import PoolNo
from ondot.ports.transport import Wake
from ondot.store.connection import AWAY, REFUSED
from ondot.store.database import Database, connect
from ondot.telemetry.log import get_logger

CHANNEL = "ondot_wake"
AGAIN_S = 1.0
CHECK_EVERY_S = 15.0
"""A half-open connection hears nothing and says nothing: it is asked this often."""

log = get_logger()


class PostgresTransport:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def publish(self, wakes: Sequence[Wake]) -> None:
        payload = ";".join(f"{wake.pool_no}@{wake.ready_at.isoformat()}" for wake in wakes)
        async with self._database.connection() as connection:
            await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, payload)

    async def listen(self, on_wake: Callable[[Wake], None]) -> None:
        def heard(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            for wake in parse(str(payload)):
                on_wake(wake)

        away = False
        while True:
            try:
                connection = await connect(self._database.settings)
                try:
                    await connection.add_listener(CHANNEL, heard)
                    if away:
                        log.info("transport.back", transport="postgres")
                    away = False
                    while True:
                        await asyncio.sleep(CHECK_EVERY_S)
                        await connection.execute("SELECT 1")
                finally:
                    connection.terminate()
            except (*AWAY, REFUSED) as error:
                if not away:
                    log.warning("transport.away", transport="postgres", error=str(error), then="polling goes on")
                away = True
                await asyncio.sleep(AGAIN_S)


def parse(payload: str) -> list[Wake]:
    """Read a message; one that cannot be read is another release's, and polling does its work."""
    wakes = []
    for part in payload.split(";"):
        pool_no, _, instant = part.partition("@")
        try:
            wakes.append(Wake(PoolNo(int(pool_no)), datetime.fromisoformat(instant)))
        except ValueError:
            continue
    return wakes
