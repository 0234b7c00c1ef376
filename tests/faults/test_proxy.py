"""The fault proxy itself: each fault as a real asyncpg client on a real PostgreSQL sees it."""

import asyncio
import time
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.faults import netns
from tests.faults.postgres import a_postgres
from tests.faults.proxy import Proxy, a_proxy
from tests.proves import proves

LOST = (ConnectionError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError)
SOON_S = 0.3
"""A healthy answer takes much less."""
INSERT = "INSERT INTO thing /* a new thing */ VALUES ($1)"


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    direct = await asyncpg.connect(database_url)
    await direct.execute("CREATE TABLE thing (number integer)")
    await direct.close()
    async with a_proxy(database_url) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(proxy.url)
    yield connection
    connection.terminate()


async def things(url: str) -> list[int]:
    direct = await asyncpg.connect(url)
    try:
        return [row["number"] for row in await direct.fetch("SELECT number FROM thing ORDER BY number")]
    finally:
        await direct.close()


async def test_messages_pass_both_ways(proxy: Proxy, client: asyncpg.Connection) -> None:
    large = await client.fetchval("SELECT repeat('x', 3000000)")
    await client.executemany(INSERT, [(number,) for number in range(1000)])

    assert len(large) == 3_000_000
    assert await client.fetchval("SELECT count(*) FROM thing") == 1000
    assert proxy.happened == {"connections": 1}


async def test_a_server_can_be_reached_over_tcp() -> None:
    async with a_postgres() as postgres, a_proxy(postgres.url) as proxy:
        connection = await asyncpg.connect(proxy.url.replace("sslmode=disable", "sslmode=prefer"))
        assert await connection.fetchval("SELECT inet_server_port()") == postgres.port
        await connection.close()


@proves("P1", "P2")
async def test_a_statement_with_a_dropped_reply_is_committed(
    proxy: Proxy, client: asyncpg.Connection, database_url: str
) -> None:
    await client.execute(INSERT, 1)  # from now on only the statement's name is sent
    proxy.drop_reply_after("a new thing")
    await client.execute("SELECT 'another statement passes'")

    with pytest.raises(LOST):
        await client.execute(INSERT, 2)

    assert await things(database_url) == [1, 2]
    assert proxy.happened["replies dropped"] == 1
    assert proxy.was_struck


@proves("P1", "P2")
async def test_a_transaction_loses_the_reply_to_its_commit(
    proxy: Proxy, client: asyncpg.Connection, database_url: str
) -> None:
    proxy.drop_reply_after("a new thing")
    transaction = client.transaction()
    await transaction.start()
    await client.execute(INSERT, 1)
    assert await client.fetchval("SELECT count(*) FROM thing") == 1  # prepared inside, and answered
    with pytest.raises(LOST):
        await transaction.commit()
    assert await things(database_url) == [1]


async def test_statements_that_were_not_committed_are_answered_and_the_fault_waits(
    proxy: Proxy, client: asyncpg.Connection, database_url: str
) -> None:
    proxy.drop_reply_after("a new thing")
    transaction = client.transaction()
    await transaction.start()
    await client.execute(INSERT, 1)
    await transaction.rollback()
    with pytest.raises(asyncpg.UndefinedTableError):
        await client.execute("INSERT INTO nothing /* a new thing */ VALUES (1)")
    assert not proxy.was_struck

    with pytest.raises(LOST):
        await client.execute(f"{INSERT.replace('$1', '2')}; SELECT 1")  # a simple query
    assert await things(database_url) == [2]


async def test_a_cut_resets_and_refuses_every_connection_until_the_repair(
    proxy: Proxy, client: asyncpg.Connection
) -> None:
    proxy.cut()
    with pytest.raises(LOST):
        await client.fetchval("SELECT 1")
    with pytest.raises(LOST):
        await asyncpg.connect(proxy.url)

    proxy.repair()
    again = await asyncpg.connect(proxy.url)
    assert await again.fetchval("SELECT 1") == 1
    await again.close()
    assert proxy.happened == {"connections": 2, "cuts": 1, "refused": 1}


@proves("L4")
async def test_a_half_open_connection_is_neither_answered_nor_closed(
    proxy: Proxy, client: asyncpg.Connection, database_url: str
) -> None:
    proxy.half_open()
    asking = asyncio.create_task(client.execute(INSERT, 1))
    with pytest.raises(TimeoutError):
        await asyncpg.connect(proxy.url, timeout=SOON_S)
    assert not asking.done()
    assert await things(database_url) == []

    proxy.repair()
    await asking  # held back, not lost
    assert await things(database_url) == [1]


@pytest.mark.parametrize(("way", "arrives"), [("in", []), ("out", [1])])
async def test_one_direction_is_cut_and_the_other_is_not(
    proxy: Proxy, client: asyncpg.Connection, database_url: str, way: str, arrives: list[int]
) -> None:
    await client.execute(INSERT, 0)
    proxy.cut_one_way("in" if way == "in" else "out")
    asking = asyncio.create_task(client.execute(INSERT, 1))
    done, _ = await asyncio.wait([asking], timeout=SOON_S)
    assert not done
    assert await things(database_url) == [0, *arrives]

    proxy.repair()
    await asking
    assert await things(database_url) == [0, 1]


async def test_latency_is_added_each_way(proxy: Proxy, client: asyncpg.Connection) -> None:
    await client.fetchval("SELECT 1")
    proxy.latency(0.1)
    began_s = time.monotonic()
    await client.fetchval("SELECT 1")
    assert time.monotonic() - began_s >= 0.2


async def test_a_reply_is_reset_in_the_middle(proxy: Proxy, client: asyncpg.Connection, database_url: str) -> None:
    proxy.reset_in_the_middle()
    with pytest.raises(LOST):
        await client.fetchval("SELECT repeat('x', 100000)")
    await proxy.struck()
    assert proxy.happened["resets in the middle"] == 1


async def test_a_request_is_cut_off_before_it_arrives(
    proxy: Proxy, client: asyncpg.Connection, database_url: str
) -> None:
    proxy.cut_before_request("a new thing")
    with pytest.raises(LOST):
        await client.execute(INSERT, 1)
    assert await things(database_url) == []
    assert proxy.happened["requests cut"] == 1


async def test_a_test_can_wait_until_a_statement_was_sent(proxy: Proxy, client: asyncpg.Connection) -> None:
    sent = asyncio.create_task(proxy.sent("a new thing"))
    await client.execute("SELECT 1")
    assert not sent.done()
    await client.execute(INSERT, 1)
    async with asyncio.timeout(SOON_S):
        await sent


async def test_replies_can_be_held_from_a_statement_on(
    proxy: Proxy, client: asyncpg.Connection, database_url: str
) -> None:
    sent = asyncio.create_task(proxy.sent("a new thing", hold_replies=True))
    await client.execute("SELECT 1")
    asking = asyncio.create_task(client.execute(INSERT, 1))
    await sent
    done, _ = await asyncio.wait([asking], timeout=SOON_S)
    assert not done
    assert await things(database_url) == [1]

    proxy.repair()
    await asking


@proves("L4")
async def test_a_cut_namespace_drops_packets(database_url: str) -> None:
    if not netns.available():
        pytest.skip("network namespaces need root, ip and nft")
    script = "\n".join(
        [
            "import socket, sys",
            "link = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5)",
            "print('connected', flush=True)",
            "sys.stdin.readline()",
            "link.sendall(b'hello')",
            "link.settimeout(0.3)",
            "try: print(link.recv(5))",
            "except TimeoutError: print('nothing', flush=True)",
            "sys.stdin.readline()",
            "link.settimeout(10)",
            "print(link.recv(5).decode(), flush=True)",
        ]
    )

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(5))
        writer.close()

    with netns.a_namespace() as namespace:
        server = await asyncio.start_server(echo, namespace.outside)
        words = ["python3", "-c", script, namespace.outside, str(server.sockets[0].getsockname()[1])]
        inside = await asyncio.create_subprocess_exec(
            *namespace.command(words), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert inside.stdin is not None
        assert inside.stdout is not None
        try:
            assert await inside.stdout.readline() == b"connected\n"
            namespace.cut()
            inside.stdin.write(b"\n")
            assert await inside.stdout.readline() == b"nothing\n"
            namespace.repair()
            inside.stdin.write(b"\n")
            assert await inside.stdout.readline() == b"hello\n"
        finally:
            if inside.returncode is None:
                inside.kill()
            await inside.wait()
            server.close()
            await server.wait_closed()
    assert namespace.name not in netns.names()
