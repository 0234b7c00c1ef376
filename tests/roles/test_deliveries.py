"""Schedulers deliver messages without any worker, once in effect, also when one of them is killed in the middle."""

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from aiohttp import web

from ondot.flow.channels.manage import create_channel
from ondot.flow.channels.send import queue_message
from ondot.flow.vault import Vault
from ondot.model.channel import Message, WebhookChannel
from ondot.model.ids import DEFAULT_TENANT
from ondot.store.audit import By
from ondot.store.database import open_database
from tests.faults.fleet import a_fleet
from tests.proves import proves
from tests.receiver import open_receiver
from tests.servers import settings_for


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
            await create_channel(
                database,
                Vault(database, None),
                DEFAULT_TENANT,
                "ops",
                WebhookChannel(url=f"{receiver.url}/ops"),
                render=lambda _: "",
                idempotency=None,
                by=By("me"),
            )
            receiver.answering = never
            message = Message(
                kind="opened", title="it fails", text="", at=database.clock.now(), incident_id=UUID(int=1)
            )
            async with database.transaction() as connection:
                await queue_message(connection, DEFAULT_TENANT, ["ops"], message)
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
