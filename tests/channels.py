"""Channels over a world: the API on a hand-turned clock, and schedulers' deliveries stepped by hand."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ondot.app import open_channel_caller
from ondot.flow.channels.deliver import ChannelCaller
from ondot.flow.channels.send import queue_message
from ondot.flow.complete import Done
from ondot.flow.run import run_attempt
from ondot.kms import generate_key
from ondot.model.channel import POOL, Message
from ondot.model.ids import DEFAULT_TENANT, ExecutionId, TenantNo
from ondot.model.target import FunctionTarget
from ondot.ports.target import Call
from ondot.store.pools import find_pools
from tests.api.conftest import Caller
from tests.api.test_secrets import caller_with
from tests.world import World


@dataclass
class Channels:
    world: World
    api: Caller
    caller: ChannelCaller

    async def create(self, name: str = "ops", **kind: Any) -> dict[str, Any]:
        answer = await self.api.http.post("/v1/channels", json={"name": name, **kind})
        assert answer.status_code == 201, answer.text
        created: dict[str, Any] = answer.json()
        return created

    async def send(self, message: Message, *names: str, tenant_no: TenantNo = DEFAULT_TENANT) -> Sequence[ExecutionId]:
        async with self.world.database.transaction() as connection:
            return await queue_message(connection, tenant_no, names or ["ops"], message)

    async def deliver(self, slots: int = 100) -> int:
        """Run all deliveries that are due, at the same time, as a scheduler does; returns how many."""
        async with self.world.database.connection() as connection:
            pool_nos = list((await find_pools(connection, [POOL])).values())
        worker = await self.world.worker(pool_nos=pool_nos)
        assignments = await worker.lease(slots)

        async def run(assignment: Any) -> Any:
            return await run_attempt(assignment, {FunctionTarget: self.caller}, build_call, lambda: None)

        completions = await asyncio.gather(*(run(each) for each in assignments))
        done = [Done(each, one.lease_id) for each, one in zip(completions, assignments, strict=True)]
        await worker.completer.write(done)
        return len(assignments)

    async def deliveries(self, name: str = "ops") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.api.get(f"/v1/channels/{name}/deliveries"))["items"]
        return found


def build_call(assignment: Any, spec: Any, **_: Any) -> Call:
    leased = assignment.leased
    return Call(
        execution_id=leased.id,
        job_id=leased.job_id,
        job_name=spec.name,
        attempt_no=leased.attempt_no,
        fire_s=leased.fire_s,
        payload=b"null",
        timeout_s=None,
        say=lambda _stream, _line: None,
        progress=lambda *_: None,
    )


@asynccontextmanager
async def open_channels(world: World, *, has_key: bool = True, **settings: Any) -> AsyncIterator[Channels]:
    secret_key = generate_key() if has_key else None
    changed = {"allow_private_targets": True, "secret_key": secret_key, **settings}
    world.database.settings = world.database.settings.model_copy(update=changed)
    api = caller_with(world, secret_key=secret_key)
    caller = open_channel_caller(world.database)
    try:
        async with api.http:
            yield Channels(world, api, caller)
    finally:
        await caller.close()
