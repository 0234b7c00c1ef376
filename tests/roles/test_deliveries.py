"""Schedulers deliver messages without any worker, once in effect, also when one of them is killed in the middle."""

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from aiohttp import web

from ondot.app import open_deliveries
from ondot.flow.channels.manage import create_channel
from ondot.flow.channels.send import queue_message
from ondot.flow.pool_transports import PoolTransports
from ondot.flow.vault import Vault
from ondot.model.channel import Message, WebhookChannel
from ondot.model.ids import DEFAULT_TENANT
from ondot.roles import deliveries
from ondot.roles.deliveries import Deliveries
from ondot.roles.worker import Worker
from ondot.store.audit import By
from ondot.store.database import Database, open_database
from ondot.transports.polling import PollingTransport
from tests.faults.fleet import a_fleet
from tests.proves import proves
from tests.receiver import open_receiver
from tests.servers import settings_for


async def create(database: Database, name: str, url: str) -> None:
    await create_channel(
        database,
        Vault(database, None),
        DEFAULT_TENANT,
        name,
        WebhookChannel(url=url),
        render=lambda _: "",
        idempotency=None,
        by=By("me"),
    )


async def send(database: Database, channel: str) -> None:
    message = Message(kind="opened", title="it fails", text="", at=database.clock.now(), incident_id=UUID(int=1))
    async with database.transaction() as connection:
        await queue_message(connection, DEFAULT_TENANT, [channel], message)


async def remind(delivering: Deliveries) -> None:
    """As a housekeeper does that finds messages due."""
    while True:
        delivering.due.set()
        await asyncio.sleep(0.05)


@pytest.mark.timeout(180)
@proves("O4", "E6", "P7")
async def test_a_message_is_delivered_without_workers_and_again_when_its_scheduler_is_killed(
    database_url: str, tmp_path: Path
) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        if request.path == "/alive":
            return web.Response()
        await asyncio.Event().wait()
        raise AssertionError

    async with open_receiver() as receiver:
        database = await open_database(settings_for(database_url))
        await database.read_clock()
        settings = {"allow_private_targets": "1", "dead_man_url": f"{receiver.url}/alive", "lease_s": "1"}
        async with a_fleet(database_url, tmp_path, **settings) as fleet:
            first = fleet.scheduler()
            await create(database, "ops", f"{receiver.url}/ops")
            receiver.answering = never
            await send(database, "ops")
            async with asyncio.timeout(60):
                while not any(each.path == "/ops" for each in receiver.received):
                    await asyncio.sleep(0.05)
            await first.kill()
            receiver.answer(lambda: web.Response(text="ok"))
            second = fleet.scheduler()

            async def delivered() -> bool | None:
                sql = "SELECT count(*) FROM ondot.delivery d JOIN ondot.history h ON h.id = d.id AND h.tenant_no = 0"
                states = "d.state = 'DELIVERED' AND h.state = 'SUCCEEDED' AND h.losses = 1"
                return await fleet.connection.fetchval(f"{sql} WHERE {states}") == 1 or None

            await fleet.until(delivered, within_s=60, what="delivered")
            assert await second.stop() == 0
        await database.close()
        ids = {each.headers["webhook-id"] for each in receiver.received if each.path == "/ops"}
        assert len(ids) == 1
        assert any(each.path == "/alive" for each in receiver.received)


@proves("O4", "L6")
async def test_a_receiver_that_hangs_delays_no_other_channel(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that leaves because nothing is due would wait for the attempt that hangs, and lease nothing more."""
    monkeypatch.setattr(deliveries, "LOOK_EVERY_S", 0.01)
    has_looked, looks = asyncio.Event(), 0
    running = vars(Worker)["running"].fget

    def count_looks(worker: Worker) -> int:
        nonlocal looks
        looks += 1
        if looks == 3:
            has_looked.set()
        return int(running(worker))

    hangs, is_delivered = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/hangs":
            hangs.set()
            await asyncio.Event().wait()
        is_delivered.set()
        return web.Response()

    database = await open_database(settings_for(database_url, allow_private_targets=True))
    await database.read_clock()
    async with (
        open_receiver() as receiver,
        open_deliveries(database, PoolTransports.of(database, PollingTransport())) as delivering,
        asyncio.timeout(60),
    ):
        receiver.answering = answer
        for name in ("hangs", "works"):
            await create(database, name, f"{receiver.url}/{name}")
        tasks = [asyncio.create_task(delivering.run(asyncio.Event())), asyncio.create_task(remind(delivering))]
        await send(database, "hangs")
        await hangs.wait()
        monkeypatch.setattr(Worker, "running", property(count_looks))
        await has_looked.wait()
        await send(database, "works")
        await is_delivered.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await database.close()
