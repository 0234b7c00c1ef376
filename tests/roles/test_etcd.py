"""Schedulers whose etcd stops, freezes, forgets and takes leases away: they plan only while their lease is certain, and
go on by themselves (C6, L2, L4)."""

import asyncio
import json
import shutil
import socket
import ssl
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from brokers import Etcd, Missing
from ondot.coordination import etcd as coordination
from ondot.coordination.etcd import EtcdCoordinator
from ondot.coordination.etcd_client import EtcdClient, EtcdError, decode, encode
from ondot.coordination.etcd_keys import read_prefix
from ondot.coordination.postgres import PostgresCoordinator
from ondot.flow.pool_transports import PoolTransports
from ondot.model.etcd_url import parse_etcd_url
from ondot.model.ids import PARTITIONS
from ondot.roles.scheduler import Scheduler
from ondot.store.database import Database, open_database
from ondot.transports.polling import PollingTransport
from tests.conformance.test_coordinators import Node
from tests.proves import proves
from tests.servers import connected, settings_for

LEASE_S = 2.0
WITHIN_S = 60


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    """An etcd that tests may harm. Each leaves it running."""
    try:
        with Etcd.running() as etcd:
            yield etcd
    except Missing as missing:
        pytest.skip(str(missing))


class Fleet:
    """Schedulers in this process, each with its own thread that beats."""

    def __init__(self, database: Database, group: asyncio.TaskGroup) -> None:
        self.database = database
        self._group = group
        self.stop = asyncio.Event()

    def start(self, stop: asyncio.Event | None = None) -> Scheduler:
        transports = PoolTransports.of(self.database, PollingTransport())
        scheduler = Scheduler(self.database, transports, EtcdCoordinator(self.database))
        self._group.create_task(scheduler.run(stop or self.stop))
        return scheduler

    async def value(self, sql: str) -> Any:
        async with self.database.connection() as connection:
            return await connection.fetchval(sql)


@asynccontextmanager
async def open_fleet(url: str, etcd_url: str) -> AsyncIterator[Fleet]:
    settings = settings_for(url, lease_s=LEASE_S, coordination="etcd", etcd_url=etcd_url)
    database = await open_database(settings)
    await database.read_clock()
    try:
        async with asyncio.TaskGroup() as group:
            fleet = Fleet(database, group)
            try:
                yield fleet
            finally:
                fleet.stop.set()
    finally:
        await database.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not is_so():
            await asyncio.sleep(0.01)


def ask(etcd_url: str, path: str, ca: Path | None = None, **body: object) -> dict[str, Any]:
    """As an operator would, by HTTP."""
    trust = ssl.create_default_context(cafile=ca) if ca else None
    url, data = f"{etcd_url}/v3/{path}", json.dumps(body).encode()
    with urllib.request.urlopen(url, data, timeout=10, context=trust) as answer:
        reply: dict[str, Any] = json.load(answer)
        return reply


def owners(*schedulers: Scheduler) -> Callable[[], bool]:
    """Whether each partition has one owner among them, and each of them some."""

    def is_so() -> bool:
        owned = [scheduler.owned for scheduler in schedulers]
        return all(owned) and sum(map(len, owned)) == len(frozenset().union(*owned)) == PARTITIONS

    return is_so


@proves("C2", "C6", "L4")
async def test_while_etcd_is_frozen_nodes_plan_only_as_long_as_their_lease_is_certain(
    database_url: str, etcd: Etcd
) -> None:
    async with open_fleet(database_url, etcd.url) as fleet:
        one, other = fleet.start(), fleet.start()
        await until(owners(one, other))
        frozen_s = time.monotonic()
        etcd.freeze()
        try:
            await until(lambda: not one.owned and not other.owned)
            assert time.monotonic() - frozen_s < LEASE_S * 2
            away = (
                "SELECT count(*) FROM ondot.node WHERE away_why LIKE 'No lease from etcd: %' AND beat_at > expires_at"
            )
            async with asyncio.timeout(WITHIN_S):
                while await fleet.value(away) != 2:
                    await asyncio.sleep(0.05)
        finally:
            etcd.thaw()
        await until(owners(one, other))
        assert await fleet.value("SELECT count(*) FROM ondot.node WHERE away_why IS NOT NULL") == 0


@proves("C6", "L2")
@pytest.mark.parametrize("data", ["kept", "wiped"])
async def test_nodes_go_on_by_themselves_when_etcd_was_killed(database_url: str, etcd: Etcd, data: str) -> None:
    async with open_fleet(database_url, etcd.url) as fleet:
        one, other = fleet.start(), fleet.start()
        await until(owners(one, other))
        etcd.kill()
        if data == "wiped":
            etcd.wipe()
        await until(lambda: not one.owned and not other.owned)
        etcd.start()
        await until(owners(one, other))


@proves("C6", "L2", "L4")
async def test_a_node_whose_lease_was_revoked_gets_another_and_owns_with_a_higher_epoch(
    database_url: str, etcd_url: str
) -> None:
    async with open_fleet(database_url, etcd_url) as fleet:
        node = fleet.start()
        await until(owners(node))
        before = await fleet.value("SELECT min(epoch) FROM ondot.partition")
        node_id = str(await fleet.value("SELECT id FROM ondot.node"))
        everything = ask(etcd_url, "kv/range", key="AA==", range_end="AA==")["kvs"]
        [lease] = [pair["lease"] for pair in everything if decode(pair["key"]).endswith(node_id)]
        ask(etcd_url, "lease/revoke", ID=lease)
        async with asyncio.timeout(WITHIN_S):
            while await fleet.value("SELECT min(epoch) FROM ondot.partition") <= before:
                await asyncio.sleep(0.01)
        await until(owners(node))


@proves("C1", "C6", "L2")
async def test_a_stopping_node_hands_its_partitions_over_and_leaves_nothing_behind(
    database_url: str, etcd_url: str
) -> None:
    async with open_fleet(database_url, etcd_url) as fleet:
        stop = asyncio.Event()
        leaving, stays = fleet.start(stop), fleet.start()
        await until(owners(leaving, stays))
        stop.set()
        await until(owners(stays))
        async with asyncio.timeout(WITHIN_S):
            while await fleet.value("SELECT count(*) FROM ondot.node") != 1:
                await asyncio.sleep(0.01)


@proves("C6")
async def test_a_watch_that_was_compacted_starts_again_with_a_beat(
    database_url: str, etcd_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "WATCH_S", 0.3)
    settings = settings_for(database_url, lease_s=LEASE_S, coordination="etcd", etcd_url=etcd_url)
    database = await open_database(settings)
    await database.read_clock()
    hinted = asyncio.Event()
    coordinator = EtcdCoordinator(database)
    coordinator.on_change = hinted.set
    try:
        async with connected(database_url) as connection, asyncio.timeout(WITHIN_S):
            await coordinator.beat(connection)
            while not hinted.is_set():
                # Of other keys, so that the watch does not see them.
                for _ in range(3):
                    revision = ask(etcd_url, "kv/put", key="b3RoZXI=", value="MQ==")["header"]["revision"]
                ask(etcd_url, "kv/compaction", revision=revision)
                await asyncio.sleep(0.1)
    finally:
        await coordinator.disconnect()
        await database.close()


@proves("C6")
async def test_keys_that_a_person_has_put_there_keep_no_partition_from_its_owner(
    database_url: str, etcd_url: str
) -> None:
    settings = settings_for(database_url, lease_s=LEASE_S, coordination="etcd", etcd_url=etcd_url)
    database = await open_database(settings)
    await database.read_clock()
    coordinator = EtcdCoordinator(database)
    try:
        async with connected(database_url) as connection:
            prefix = await read_prefix(connection, settings)
            for name, value in (
                ("partitions/3", "mine"),
                ("partitions/4", str(uuid4())),
                ("partitions/many", ""),
                ("nodes/me", "\u2603" * 1000),
                (f"nodes/{uuid4()}", "without a lease"),
                ("", ""),
            ):
                ask(etcd_url, "kv/put", key=encode(prefix + name), value=encode(value))
            assert len(await Node(coordinator, connection).step()) == PARTITIONS
    finally:
        await coordinator.disconnect()
        await database.close()


@proves("C6")
async def test_an_installation_moves_to_etcd_and_back_while_it_runs(database_url: str, etcd_url: str) -> None:
    settings = settings_for(database_url, lease_s=LEASE_S, coordination="etcd", etcd_url=etcd_url)
    database = await open_database(settings)
    await database.read_clock()
    try:
        async with connected(database_url) as connection:
            by_postgres, by_etcd = PostgresCoordinator(database), EtcdCoordinator(database)
            old, new = Node(by_postgres, connection), Node(by_etcd, connection)
            try:
                assert len(await old.step()) == PARTITIONS
                assert len(await new.step()) == PARTITIONS
                assert len(await old.step()) == 0
                # And back: the last one by etcd hands over to those by PostgreSQL.
                assert await by_etcd.leave() == PARTITIONS
                assert len(await old.beat()) == PARTITIONS
            finally:
                await by_etcd.disconnect()
    finally:
        await database.close()


@proves("C6")
async def test_an_endpoint_that_does_not_answer_is_left_for_the_next(etcd_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = parse_etcd_url(f"http://127.0.0.1:{silent.getsockname()[1]},127.0.0.1:1,{etcd_url}")
        client = EtcdClient(address, ca=None, try_s=0.5)
        try:
            assert (await client.call("maintenance/status", {}))["version"]
            asked_s = time.monotonic()
            await client.call("maintenance/status", {})
            assert time.monotonic() - asked_s < 0.5, "the one that answered is asked first"
        finally:
            await client.close()


@proves("C6")
async def test_a_user_with_a_password_speaks_tls_and_signs_in_again_when_its_token_is_gone(tmp_path: Path) -> None:
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl is not here to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = [
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=etcd",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]
    made = await asyncio.create_subprocess_exec(
        openssl, *make, "-keyout", str(key), "-out", str(certificate), stderr=asyncio.subprocess.DEVNULL
    )
    assert await made.wait() == 0
    etcd = Etcd("--cert-file", str(certificate), "--key-file", str(key))
    etcd.scheme = "https"
    try:
        await asyncio.to_thread(etcd.start)
        for name, rights in (("root", "root"), ("ondot", "keys")):
            ask(etcd.url, "auth/role/add", certificate, name=rights)
            ask(etcd.url, "auth/user/add", certificate, name=name, password="p@ss,word")
            ask(etcd.url, "auth/user/grant", certificate, user=name, role=rights)
        may = {"permType": "READWRITE", "key": encode("/ondot/"), "range_end": encode("/ondot0")}
        ask(etcd.url, "auth/role/grant", certificate, name="keys", perm=may)
        ask(etcd.url, "auth/enable", certificate)
        with_user = etcd.url.replace("https://", "https://ondot:p%40ss%2Cword@")
        client = EtcdClient(parse_etcd_url(with_user), ca=certificate, try_s=10)
        wrong = EtcdClient(parse_etcd_url(with_user.replace("ss%2C", "")), ca=certificate, try_s=10)
        stranger = EtcdClient(parse_etcd_url(with_user), ca=None, try_s=10)
        try:
            write = {"key": encode("/ondot/a"), "value": ""}
            await client.call("kv/put", write)
            await asyncio.to_thread(etcd.restart)  # which forgets tokens
            await client.call("kv/put", write)
            with pytest.raises(EtcdError, match="permission denied"):
                await client.call("kv/put", write | {"key": encode("/other")})
            with pytest.raises(EtcdError, match=r"refuses the user ondot: .*invalid user ID or password"):
                await wrong.call("kv/put", write)
            with pytest.raises(EtcdError, match="certificate verify failed"):
                await stranger.call("kv/put", write)
        finally:
            for each in (client, wrong, stranger):
                await each.close()
    except Missing as missing:
        pytest.skip(str(missing))
    finally:
        etcd.kill()
        shutil.rmtree(etcd.directory, ignore_errors=True)


@proves("C6")
async def test_a_server_that_is_no_etcd_is_reported_as_such() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\nConnection: close\r\n\r\nNot Found")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        client = EtcdClient(parse_etcd_url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), ca=None, try_s=5)
        try:
            with pytest.raises(EtcdError, match="enable-grpc-gateway"):
                await client.call("maintenance/status", {})
        finally:
            await client.close()
