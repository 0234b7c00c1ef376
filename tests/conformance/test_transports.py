"""Every transport: wake-ups arrive as they were sent, and one that is lost does no harm (C4, C5)."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from socket import socket
from typing import get_args
from uuid import uuid4

import pytest

from ondot.app import TRANSPORTS, open_transports
from ondot.flow.dispatch import Dispatcher
from ondot.model.beats import Beat
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
BEFORE = AT - timedelta(hours=1)
WITHIN_S = 20
WITHOUT_BEATS = {"postgres", "local"}
"""Their workers poll each second."""
SERVERS = {"redis": "redis_url", "kafka": "kafka_servers", "rabbitmq": "rabbitmq_url", "nats": "nats_url"}
"""The setting, and the fixture of the same name."""


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = await open_database(settings_for(database_url))
    await database.read_clock()
    yield database
    await database.close()


POOLS = tuple(PoolNo(number) for number in range(1, 11))


@dataclass
class Received:
    """What a listener receives."""

    wakes: "asyncio.Queue[Wake]" = field(default_factory=asyncio.Queue)
    beats: "asyncio.Queue[tuple[Beat, PoolNo]]" = field(default_factory=asyncio.Queue)


@asynccontextmanager
async def receiving(transport: Transport, pool_nos: Sequence[PoolNo] = POOLS) -> AsyncIterator[Received]:
    received = Received()
    listening = asyncio.create_task(
        transport.listen(
            pool_nos, received.wakes.put_nowait, lambda beat, pool_no: received.beats.put_nowait((beat, pool_no))
        )
    )
    try:
        yield received
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def until_received(transport: Transport, received: Received, wake: Wake) -> None:
    """Publish until it arrives: a listener needs a moment to connect. Then nothing else is on its way."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            with suppress(Exception):
                await transport.publish([wake])
            try:
                async with asyncio.timeout(0.1):
                    while await received.wakes.get() != wake:
                        pass
            except TimeoutError:
                continue
            return


async def take(received: Received, wakes: Collection[Wake]) -> None:
    """Until all of these have arrived."""
    async with asyncio.timeout(WITHIN_S):
        missing = set(wakes)
        while missing:
            missing.discard(await received.wakes.get())


def settings_of(request: pytest.FixtureRequest, name: str) -> dict[str, object]:
    """What a transport needs: its server, shared by the session, and a prefix of its own there."""
    server = SERVERS.get(name)
    of_server = {} if server is None else {server: request.getfixturevalue(server)}
    return {"transport": name, "transport_prefix": f"test-{uuid4()}", **of_server}


@pytest.fixture(params=TRANSPORTS)
async def transport(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[Transport]:
    url = database.settings.needs_database_url
    database.settings = settings_for(url, **settings_of(request, request.param))
    transport = TRANSPORTS[request.param](database)
    yield transport
    await transport.close()


@pytest.fixture
async def other(transport: Transport, database: Database) -> AsyncIterator[Transport]:
    """The same one, opened by another process."""
    other = TRANSPORTS[transport.name](database)
    yield other
    await other.close()


@proves("C4")
async def test_publishing_without_a_listener_is_no_error(transport: Transport) -> None:
    await transport.publish([Wake(PoolNo(1), AT), Wake(PoolNo(2), AT)])
    await transport.beat(Beat(uuid4(), 1), POOLS)
    await transport.publish([])
    await transport.beat(Beat(uuid4(), 1), [])


@proves("C4")
async def test_wake_ups_arrive_as_they_were_sent(transport: Transport) -> None:
    wakes = [Wake(pool_no, AT) for pool_no in POOLS]
    async with receiving(transport) as received:
        await until_received(transport, received, Wake(PoolNo(7), BEFORE))
        await transport.publish(wakes)
        await take(received, wakes)


@proves("C4")
async def test_every_process_that_listens_for_a_pool_is_hinted_and_no_other(
    transport: Transport, other: Transport
) -> None:
    if transport.name == "local":
        other = transport
    async with receiving(transport) as one, receiving(other) as two, receiving(other, [PoolNo(2)]) as third:
        for received, pool_no in ((one, 1), (two, 1), (third, 2)):
            await until_received(transport, received, Wake(PoolNo(pool_no), BEFORE))
        await transport.publish([Wake(PoolNo(1), AT), Wake(PoolNo(2), AT)])
        for received in (one, two):
            await take(received, [Wake(PoolNo(1), AT), Wake(PoolNo(2), AT)])
        await take(third, [Wake(PoolNo(2), AT)])
        assert third.wakes.empty()


@proves("C4", "L5")
@pytest.mark.parametrize("transport", sorted(TRANSPORTS.keys() - WITHOUT_BEATS), indirect=True)
async def test_beats_arrive_in_order_behind_the_hints_that_were_sent_before(transport: Transport) -> None:
    sender = uuid4()
    async with receiving(transport) as received:
        await until_received(transport, received, Wake(PoolNo(7), BEFORE))
        for number in range(1, 6):
            await transport.publish([Wake(PoolNo(1), AT + timedelta(seconds=number))])
            await transport.beat(Beat(sender, number), POOLS[:2])
        heard = defaultdict(list)
        async with asyncio.timeout(WITHIN_S):
            for _ in range(10):
                beat, pool_no = await received.beats.get()
                heard[pool_no].append(beat)
        assert heard == {pool_no: [Beat(sender, number) for number in range(1, 6)] for pool_no in POOLS[:2]}
        assert received.wakes.qsize() >= 5


async def test_a_transport_that_is_closed_twice_closes_quietly(transport: Transport) -> None:
    await transport.close()
    await transport.close()


@proves("C4")
async def test_wake_ups_of_more_pools_than_fit_into_a_message_of_postgresql_arrive(database: Database) -> None:
    """It holds some 200 of them."""
    transport = PostgresTransport(database)
    wakes = [Wake(PoolNo(2**31 - 1 - number), AT) for number in range(1000)]
    async with receiving(transport, [PoolNo(7), *(wake.pool_no for wake in wakes)]) as received:
        await until_received(transport, received, Wake(PoolNo(7), AT))
        await transport.publish(wakes)
        await take(received, wakes)


async def test_polling_sends_nothing_and_hears_nothing() -> None:
    transport = PollingTransport()
    async with receiving(transport) as received:
        await transport.publish([Wake(PoolNo(1), AT)])
        assert received.wakes.empty()


def test_the_setting_takes_the_names_of_all_transports_and_no_others() -> None:
    assert set(get_args(Settings.model_fields["transport"].annotation)) == set(TRANSPORTS)
    with pytest.raises(Misconfigured, match=r"ONDOT_TRANSPORT: Input should be 'postgres', .* \(got 'pigeon'\)"):
        load_settings(transport="pigeon")


@proves("C4", "C5")
@pytest.mark.parametrize(
    ("changed", "kind"),
    [({}, PostgresTransport), ({"transport": "local"}, LocalTransport), ({"pgbouncer": True}, LocalTransport)],
)
async def test_the_settings_choose_the_transport(
    database: Database, changed: dict[str, object], kind: type[Transport]
) -> None:
    database.settings = settings_for(database.settings.needs_database_url, **changed)
    async with open_transports(database) as transports:
        assert type(transports.open(transports.default)) is kind


@proves("C4")
def test_a_transport_without_the_address_of_its_server_is_rejected_with_what_to_do() -> None:
    with pytest.raises(Misconfigured, match="set ONDOT_REDIS_URL=redis://host:6379/0"):
        load_settings(transport="redis")
    with pytest.raises(Misconfigured, match="set ONDOT_KAFKA_SERVERS=host:9092"):
        load_settings(transport="kafka")
    with pytest.raises(Misconfigured, match="ONDOT_REDIS_URL: must begin with one of redis://"):
        load_settings(redis_url="http://host")


@proves("C4")
def test_listen_behind_pgbouncer_is_rejected_with_what_to_do() -> None:
    with pytest.raises(Misconfigured, match="leave ONDOT_TRANSPORT out, or set it to local"):
        load_settings(pgbouncer=True, transport="postgres")


@proves("C5", "L5")
async def test_a_listener_whose_connection_is_cut_reconnects(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ondot.transports.listening.CHECK_EVERY_S", 0.05)
    monkeypatch.setattr("ondot.transports.listening.RECONNECT_S", 0.05)
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
        monkeypatch.setattr(f"ondot.transports.listening.{name}", seconds)
    with socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen: connections are refused
        away = settings_for("postgresql://ondot@127.0.0.1:{1}/ondot".format(*closed.getsockname()))
        listening = asyncio.create_task(
            _Elsewhere(database, away).listen(POOLS, lambda _wake: None, lambda _beat, _pool_no: None)
        )
        try:
            async with asyncio.timeout(WITHIN_S):
                while not (rows := await _conditions(database)):
                    await asyncio.sleep(0)
        finally:
            listening.cancel()
    [row] = rows
    assert (row["kind"], row["tenant_no"], row["until_at"] > row["since"]) == ("transport", 0, True)
    assert "cannot listen for wake-ups through postgres, so its workers only poll" in row["message"]


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
            for poison in (
                "",
                "nonsense",
                "1@yesterday",
                ";;",
                "x@2026-11-15T12:00:00+00:00",
                "1@2026-11-15T12:00:00",
                "9" * 7000,
            ):
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
