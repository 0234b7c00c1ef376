"""Wake-ups by LISTEN and NOTIFY (C4, C5): nothing to install, one more connection for each process that listens."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from ondot.model.beats import Beat
from ondot.model.ids import PoolNo
from ondot.ports.transport import OnBeat, OnWake, Wake
from ondot.store.database import Database, connect
from ondot.telemetry.metrics import HINTS_RECEIVED
from ondot.transports import listening
from ondot.transports.listening import OnAnswer, keep_listening
from ondot.transports.wire import parse_instant, parse_pool_no

CHANNEL = "ondot_wake"
POOLS_PER_MESSAGE = 150
"""A number has up to 10 digits and an instant 32 characters: 6,600 bytes at most."""


class PostgresTransport:
    name = "postgres"

    def __init__(self, database: Database) -> None:
        self._database = database
        self._settings = database.settings

    async def publish(self, wakes: Sequence[Wake]) -> None:
        async with self._database.connection() as connection:
            await connection.execute("SELECT pg_notify($1, m) FROM unnest($2::text[]) AS m", CHANNEL, messages(wakes))

    async def beat(self, beat: Beat, pool_nos: Sequence[PoolNo]) -> None:
        """It carries none: its workers ask PostgreSQL each second, which a beat through PostgreSQL would not save."""

    async def listen(self, pool_nos: Sequence[PoolNo], on_wake: OnWake, on_beat: OnBeat) -> None:
        wanted = frozenset(pool_nos)

        def receive(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            for wake in parse(str(payload)):
                if wake.pool_no in wanted:
                    HINTS_RECEIVED.labels("postgres").inc()
                    on_wake(wake)

        async def listen_once(on_answer: OnAnswer) -> None:
            connection = await connect(self._settings)
            try:
                lost = asyncio.Event()
                connection.add_termination_listener(lambda _connection: lost.set())
                await connection.add_listener(CHANNEL, receive)
                while not lost.is_set():
                    on_answer()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(listening.CHECK_EVERY_S):
                            await lost.wait()
                    await connection.execute("SELECT 1")
            finally:
                connection.terminate()

        await keep_listening(self.name, self._database, listen_once)

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
            wakes.append(Wake(parse_pool_no(pool_no), parse_instant(instant)))
        except ValueError:
            continue
    return wakes
