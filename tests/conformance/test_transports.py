"""Every transport: a wake-up that arrives is the one that was sent, and one that does not does no harm (C4, C5)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from ondot.flow.dispatch import Dispatcher
from ondot.model.ids import PoolNo
from ondot.ports.transport import Transport, Wake
from ondot.store.database import Database, open_database
from ondot.transports.local import LocalTransport
from ondot.transports.polling import PollingTransport
from ondot.transports.postgres import CHANNEL, PostgresTransport, parse
from tests.proves import proves
from tests.servers import settings_for

AT = datetime(2026, 11, 15, 12, 0, 0, 250, tzinfo=UTC)
WITHIN_S = 20


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = await open_database(settings_for(database_url))
    yield database
    await database.close()


@asynccontextmanager
async def heard_by(transport: Transport) -> AsyncIterator["asyncio.Queue[Wake]"]:
    """What a listener hears, from the moment it does: it is sent wake-ups until one has arrived."""
    heard: asyncio.Queue[Wake] = asyncio.Queue()
    listening = asyncio.create_task(transport.listen(heard.put_nowait))
    try:
        yield heard
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def until_heard(transport: Transport, heard: "asyncio.Queue[Wake]", wake: Wake) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            await transport.publish([wake])
            try:
                async with asyncio.timeout(0.1):
                    while await heard.get() != wake:
                        pass
            except TimeoutError:
                continue
            return


@proves("C4")
@pytest.mark.parametrize("kind", ["postgres", "local", "polling"])
async def test_publishing_to_nobody_is_no_error(database: Database, kind: str) -> None:
    transports: dict[str, Transport] = {
        "postgres": PostgresTransport(database),
        "local": LocalTransport(),
        "polling": PollingTransport(),
    }
    transport = transports[kind]
    await transport.publish([Wake(PoolNo(1), AT), Wake(PoolNo(2), AT)])
    async with heard_by(transport):
        await transport.publish([])


@proves("C4")
@pytest.mark.parametrize("kind", ["postgres", "local"])
async def test_wake_ups_of_any_number_of_pools_arrive(database: Database, kind: str) -> None:
    """A message of PostgreSQL holds some 200 of them."""
    transport: Transport = PostgresTransport(database) if kind == "postgres" else LocalTransport()
    wakes = [Wake(PoolNo(2**31 - 1 - number), AT) for number in range(1000)]
    async with heard_by(transport) as heard:
        await until_heard(transport, heard, Wake(PoolNo(7), AT))
        await transport.publish(wakes)
        arrived: set[Wake] = set()
        async with asyncio.timeout(WITHIN_S):
            while not arrived >= set(wakes):
                arrived.add(await heard.get())


@proves("C4")
@pytest.mark.parametrize("kind", ["postgres", "local"])
async def test_wake_ups_arrive_as_they_were_sent(database: Database, kind: str) -> None:
    transport: Transport = PostgresTransport(database) if kind == "postgres" else LocalTransport()
    async with heard_by(transport) as heard:
        await until_heard(transport, heard, Wake(PoolNo(7), AT))
        await transport.publish([Wake(PoolNo(1), AT), Wake(PoolNo(2), AT)])
        async with asyncio.timeout(WITHIN_S):
            assert {(await heard.get()).pool_no, (await heard.get()).pool_no} == {1, 2}


@proves("C5", "L5")
async def test_a_listener_whose_connection_is_cut_comes_back_by_itself(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ondot.transports.postgres.CHECK_EVERY_S", 0.05)
    monkeypatch.setattr("ondot.transports.postgres.AGAIN_S", 0.05)
    transport = PostgresTransport(database)
    async with heard_by(transport) as heard:
        await until_heard(transport, heard, Wake(PoolNo(1), AT))
        async with database.connection() as connection:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        await until_heard(transport, heard, Wake(PoolNo(2), AT))


@proves("C4")
async def test_a_message_of_another_kind_is_passed_over(database: Database) -> None:
    transport = PostgresTransport(database)
    async with heard_by(transport) as heard:
        async with database.connection() as connection:
            for poison in ("", "nonsense", "1@yesterday", ";;", "x@2026-11-15T12:00:00+00:00", "9" * 7000):
                await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, poison)
        await until_heard(transport, heard, Wake(PoolNo(3), AT))


def test_what_can_be_read_of_a_message_is_read() -> None:
    assert parse(f"nonsense;4@{AT.isoformat()}") == [Wake(PoolNo(4), AT)]


@proves("C5")
async def test_a_transport_that_fails_does_not_stop_the_dispatcher() -> None:
    class Failing(PollingTransport):
        def __init__(self) -> None:
            self.tries = 0
            self.tried = asyncio.Event()

        async def publish(self, wakes: object) -> None:
            self.tries += 1
            self.tried.set()
            raise ConnectionError("the transport is gone")

    transport = Failing()
    dispatcher = Dispatcher(transport)
    sending = asyncio.create_task(dispatcher.run())
    async with asyncio.timeout(WITHIN_S):
        for n in (1, 2):
            dispatcher.wake([(PoolNo(1), AT)])
            await transport.tried.wait()
            transport.tried.clear()
            assert transport.tries == n
    sending.cancel()
