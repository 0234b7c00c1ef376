"""Wake-ups by LISTEN and NOTIFY (C4, C5): nothing to install, one more connection for each process that listens."""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from socket import gethostname
from time import monotonic

from ondot.model.ids import INSTALLATION, PoolNo
from ondot.ports.transport import Wake
from ondot.store.conditions import put_condition
from ondot.store.database import Database, connect
from ondot.telemetry.log import get_logger

CHANNEL = "ondot_wake"
POOLS_PER_MESSAGE = 150
"""A number has up to 10 digits and an instant 32 characters: 6,600 bytes at most."""
RECONNECT_S = 1.0
CHECK_EVERY_S = 5.0
"""A half-open connection delivers nothing and reports nothing, so it is queried this often."""
AWAY_S = 5.0
"""A listener that is away for this long is reported, for alerts."""
REPORT_EVERY_S = 10.0
LONGEST_MESSAGE = 1_000
REPORT_HOLDS_S = 30.0
"""The condition ends when no listener has reported it for this long."""

log = get_logger()


class PostgresTransport:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._settings = database.settings

    async def publish(self, wakes: Sequence[Wake]) -> None:
        async with self._database.connection() as connection:
            await connection.execute("SELECT pg_notify($1, m) FROM unnest($2::text[]) AS m", CHANNEL, messages(wakes))

    async def listen(self, on_wake: Callable[[Wake], None]) -> None:
        def receive(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            for wake in parse(str(payload)):
                on_wake(wake)

        is_away = False
        listened_s = reported_s = monotonic()
        while True:
            try:
                connection = await connect(self._settings)
                try:
                    lost = asyncio.Event()
                    connection.add_termination_listener(lambda _connection, lost=lost: lost.set())
                    await connection.add_listener(CHANNEL, receive)
                    if is_away:
                        log.info("transport.back", transport="postgres")
                    is_away = False
                    while not lost.is_set():
                        listened_s = monotonic()
                        with suppress(TimeoutError):
                            async with asyncio.timeout(CHECK_EVERY_S):
                                await lost.wait()
                        await connection.execute("SELECT 1")
                finally:
                    connection.terminate()
            except Exception as error:  # noqa: BLE001 - whatever the reason, workers poll meanwhile
                if not is_away:
                    log.warning("transport.away", transport="postgres", error=str(error), then="workers poll")
                is_away = True
                if monotonic() - max(listened_s + AWAY_S, reported_s + REPORT_EVERY_S) >= 0:
                    reported_s = monotonic()
                    await self._report_away(error)
                # Spread, so that a fleet does not reconnect in one moment.
                await asyncio.sleep(RECONNECT_S * random.uniform(0.5, 1.0))  # noqa: S311

    async def _report_away(self, error: Exception) -> None:
        """The database itself may be there: LISTEN needs a connection of its own, and the server may have no more."""
        why = str(error) or type(error).__name__
        message = f"{gethostname()} cannot listen for wake-ups, so its workers only poll: {why}"
        with suppress(Exception):
            async with self._database.connection() as connection:
                await put_condition(
                    connection,
                    INSTALLATION,
                    "transport",
                    "postgres",
                    job_id=None,
                    since=None,
                    holds_s=REPORT_HOLDS_S,
                    message=message[:LONGEST_MESSAGE],
                    details={"command": "ondot doctor", "path": "/fleet"},
                )

    async def close(self) -> None:
        """It holds nothing: it publishes over the database's pool, and `listen` closes its own connection."""


def messages(wakes: Sequence[Wake]) -> list[str]:
    """As messages short enough for NOTIFY, which refuses 8,000 bytes: some 200 pools."""
    texts = [f"{wake.pool_no}@{wake.ready_at.isoformat()}" for wake in wakes]
    return [";".join(texts[start : start + POOLS_PER_MESSAGE]) for start in range(0, len(texts), POOLS_PER_MESSAGE)]


def parse(payload: str) -> list[Wake]:
    """Parts that cannot be parsed are of another release: polling finds their work."""
    wakes = []
    for part in payload.split(";"):
        pool_no, _, instant = part.partition("@")
        try:
            wakes.append(Wake(PoolNo(int(pool_no)), datetime.fromisoformat(instant)))
        except ValueError:
            continue
    return wakes
