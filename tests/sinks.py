"""Sinks over a world: a receiver on this machine, and delivery stepped by hand."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ondot.app import open_sink_sender
from ondot.flow.sinks.deliver import SinkDelivery
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.sink import SinkSpec, WebhookPlace
from ondot.store.sinks import SinkRow, get_sink, put_sink, read_last_no
from tests.receiver import Receiver, open_receiver
from tests.world import World


@dataclass
class Sinks:
    world: World
    receiver: Receiver
    delivery: SinkDelivery

    async def add(
        self,
        *types: str,
        name: str = "all",
        tenant_no: TenantNo = DEFAULT_TENANT,
        path: str = "",
        batch: int = 1,
        **fields: Any,
    ) -> None:
        place = WebhookPlace(url=self.receiver.url + path, batch=batch)
        spec = SinkSpec(place=place, types=types or ("ondot.*",), **fields)
        async with self.world.database.transaction() as connection:
            await put_sink(connection, self.world.database.clock.new_id(), tenant_no, name, spec, by="test")

    async def deliver(self) -> list[dict[str, Any]]:
        """Deliver until nothing is due; returns the events that were received meanwhile."""
        before = len(self.receiver.received)
        await self._until_complete()
        while await self.delivery.one_pass():
            await self.delivery.drain()
        return self.events(before)

    async def _until_complete(self) -> None:
        """Tests beside this one have transactions of their own on the same server, which hold the horizon back."""
        async with asyncio.timeout(60), self.world.database.connection() as connection:
            last_no = await read_last_no(connection)
            while await self.delivery.horizon.advance(connection) < last_no:
                await asyncio.sleep(0.005)

    def events(self, after: int = 0) -> list[dict[str, Any]]:
        found = [json.loads(each.body) for each in self.receiver.received[after:]]
        return [event for body in found for event in (body if isinstance(body, list) else [body])]

    async def get(self, name: str = "all", tenant_no: TenantNo = DEFAULT_TENANT) -> SinkRow:
        async with self.world.database.connection() as connection:
            row = await get_sink(connection, tenant_no, name)
        assert row is not None
        return row


@asynccontextmanager
async def open_sinks(world: World) -> AsyncIterator[Sinks]:
    world.database.settings = world.database.settings.model_copy(update={"allow_private_targets": True})
    sender = open_sink_sender(world.database)
    async with open_receiver() as receiver:
        delivery = SinkDelivery(world.database, sender)
        try:
            yield Sinks(world, receiver, delivery)
        finally:
            await delivery.stop()
            await sender.close()
