"""Every transport: wake-ups arrive as they were sent, and one that is lost does no harm (C4, C5)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from socket import socket
from typing import get_args

import pytest

from ondot.app import TRANSPORTS, open_transport
from ondot.flow.dispatch import Dispatcher
from ondot.model.errors import Misconfigured
from ondot.model.ids import PoolNo
from ondot.ports.transport import Transport, Wake
from ondot.settings import Settings, load_settings
from ondot.store.connection import Record
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
async def receiving(transport: Transport) -> AsyncIterator["asyncio.Queue[Wake]"]:
    """The wake-ups that a listener receives."""
    received: asyncio.Queue[Wake] = asyncio.Queue()
    listening = asyncio.create_task(transport.listen(received.put_nowait))
    try:
        yield received
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def until_received(transport: Transport, received: "asyncio.Queue[Wake]", wake: Wake) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            await transport.publish([wake])
            try:
                async with asyncio.timeout(0.1):
                    while await received.get() != wake:
                        pass
            except TimeoutError:
                continue
            return


@pytest.fixture(params=TRANSPORTS)
async def transport(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[Transport]:
    transport = TRANSPORTS[request.param](database)
    yield transport
    await transport.close()


@proves("C4")
async def test_publishing_without_a_listener_is_no_error(transport: Transport) -> None:
    await transport.publish([Wake(PoolNo(1), AT), Wake(PoolNo(2), AT)])
    async with receiving(transport):
        await transport.publish([])


@proves("C4")
async def test_wake_ups_of_any_number_of_pools_arrive(transport: Transport) -> None:
    """A message of PostgreSQL holds some 200 of them."""
    wakes = [Wake(PoolNo(2**31 - 1 - number), AT) for number in range(1000)]
    async with receiving(transport) as received:
        await until_received(transport, received, Wake(PoolNo(7), AT))
        await transport.publish(wakes)
        arrived: set[Wake] = set()
        async with asyncio.timeout(WITHIN_S):
            while not arrived >= set(wakes):
                arrived.add(await received.get())


@proves("C4")
async def test_wake_ups_arrive_as_they_were_sent(transport: Transport) -> None:
    async with receiving(transport) as received:
        await until_received(transport, received, Wake(PoolNo(7), AT))
        await transport.publish([Wake(PoolNo(1), AT), Wake(PoolNo(2), AT)])
        async with asyncio.timeout(WITHIN_S):
            assert {(await received.get()).pool_no, (await received.get()).pool_no} == {1, 2}


async def test_a_transport_that_is_closed_twice_closes_quietly(transport: Transport) -> None:
    await transport.close()
    await transport.close()


async def test_polling_sends_nothing_and_hears_nothing() -> None:
    transport = PollingTransport()
    async with receiving(transport) as received:
        await transport.publish([Wake(PoolNo(1), AT)])
        assert received.empty()


def test_the_setting_takes_the_names_of_all_transports_and_no_others() -> None:
    assert set(get_args(Settings.model_fields["transport"].annotation)) == set(TRANSPORTS)
    with pytest.raises(Misconfigured, match=r"ONDOT_TRANSPORT: Input should be 'postgres' or 'local' \(got 'redis'\)"):
        load_settings(transport="redis")


@proves("C4", "C5")
@pytest.mark.parametrize(
    ("changed", "kind"),
    [({}, PostgresTransport), ({"transport": "local"}, LocalTransport), ({"pgbouncer": True}, LocalTransport)],
)
async def test_the_settings_choose_the_transport(
    database: Database, changed: dict[str, object], kind: type[Transport]
) -> None:
    database.settings = settings_for(database.settings.needs_database_url, **changed)
    async with open_transport(database) as transport:
        assert type(transport) is kind


@proves("C4")
def test_listen_behind_pgbouncer_is_rejected_with_what_to_do() -> None:
    with pytest.raises(Misconfigured, match="leave ONDOT_TRANSPORT out, or set it to local"):
        load_settings(pgbouncer=True, transport="postgres")


@proves("C5", "L5")
async def test_a_listener_whose_connection_is_cut_reconnects(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ondot.transports.postgres.CHECK_EVERY_S", 0.05)
    monkeypatch.setattr("ondot.transports.postgres.RECONNECT_S", 0.05)
    transport = PostgresTransport(database)
    async with receiving(transport) as received:
        await until_received(transport, received, Wake(PoolNo(1), AT))
        async with database.connection() as connection:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        await until_received(transport, received, Wake(PoolNo(2), AT))


@proves("O4", "C5")
async def test_a_listener_that_stays_away_while_the_database_answers_is_reported_for_alerts(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("AWAY_S", 0.0), ("REPORT_EVERY_S", 0.0), ("RECONNECT_S", 0.01)):
        monkeypatch.setattr(f"ondot.transports.postgres.{name}", seconds)
    with socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen: connections are refused
        away = settings_for("postgresql://ondot@127.0.0.1:{1}/ondot".format(*closed.getsockname()))
        listening = asyncio.create_task(_Elsewhere(database, away).listen(lambda _wake: None))
        try:
            async with asyncio.timeout(WITHIN_S):
                while not (rows := await _conditions(database)):
                    await asyncio.sleep(0)
        finally:
            listening.cancel()
    [row] = rows
    assert (row["kind"], row["tenant_no"], row["until_at"] > row["since"]) == ("transport", 0, True)
    assert "cannot listen for wake-ups, so its workers only poll" in row["message"]


class _Elsewhere(PostgresTransport):
    """Its own connection goes to another address; the database answers."""

    def __init__(self, database: Database, settings: Settings) -> None:
        super().__init__(database)
        self._settings = settings


async def _conditions(database: Database) -> list[Record]:
    async with database.connection() as connection:
        return await connection.fetch("SELECT * FROM ondot.condition")


@proves("C4")
async def test_an_invalid_message_is_ignored(database: Database) -> None:
    transport = PostgresTransport(database)
    async with receiving(transport) as received:
        async with database.connection() as connection:
            for poison in ("", "nonsense", "1@yesterday", ";;", "x@2026-11-15T12:00:00+00:00", "9" * 7000):
                await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, poison)
        await until_received(transport, received, Wake(PoolNo(3), AT))


def test_the_valid_parts_of_a_message_are_read() -> None:
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
