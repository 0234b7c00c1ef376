"""Wake-ups by LISTEN and NOTIFY: nothing to install, one connection for each listening process (C4, C5)."""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime

from ondot.model.ids import PoolNo
from ondot.ports.transport import Wake
from ondot.store.database import Database, connect
from ondot.telemetry.log import get_logger

CHANNEL = "ondot_wake"
POOLS_A_MESSAGE = 150
"""A number has up to 10 digits and an instant 32 characters: 6,600 bytes at most."""
AGAIN_S = 1.0
CHECK_EVERY_S = 5.0
"""A half-open connection hears nothing and says nothing: it is asked this often."""

log = get_logger()


class PostgresTransport:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def publish(self, wakes: Sequence[Wake]) -> None:
        async with self._database.connection() as connection:
            await connection.execute("SELECT pg_notify($1, m) FROM unnest($2::text[]) AS m", CHANNEL, messages(wakes))

    async def listen(self, on_wake: Callable[[Wake], None]) -> None:
        def heard(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            for wake in parse(str(payload)):
                on_wake(wake)

        away = False
        while True:
            try:
                connection = await connect(self._database.settings)
                try:
                    lost = asyncio.Event()
                    connection.add_termination_listener(lambda _connection, lost=lost: lost.set())
                    await connection.add_listener(CHANNEL, heard)
                    if away:
                        log.info("transport.back", transport="postgres")
                    away = False
                    while not lost.is_set():
                        with suppress(TimeoutError):
                            async with asyncio.timeout(CHECK_EVERY_S):
                                await lost.wait()
                        await connection.execute("SELECT 1")
                finally:
                    connection.terminate()
            except Exception as error:  # noqa: BLE001 - without it polling goes on, whatever the reason
                if not away:
                    log.warning("transport.away", transport="postgres", error=str(error), then="polling goes on")
                away = True
                await asyncio.sleep(AGAIN_S * random.uniform(0.5, 1.0))  # noqa: S311 - a fleet comes back one by one


def messages(wakes: Sequence[Wake]) -> list[str]:
    """As many messages as it takes: NOTIFY refuses one of 8,000 bytes, which some 200 pools are."""
    texts = [f"{wake.pool_no}@{wake.ready_at.isoformat()}" for wake in wakes]
    return [";".join(texts[start : start + POOLS_A_MESSAGE]) for start in range(0, len(texts), POOLS_A_MESSAGE)]


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
