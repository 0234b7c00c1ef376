"""A real worker that runs real functions on the real clock, for pages that follow it."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from ondot import Ondot
from ondot.app import open_targets
from ondot.flow.pool_transports import PoolTransports
from ondot.model.ids import PoolNo
from ondot.roles.worker import Worker
from ondot.store.database import Database, open_database
from ondot.targets.function.prints import capture_prints
from ondot.transports.postgres import PostgresTransport
from tests.servers import settings_for
from tests.ui.serving import Served


@asynccontextmanager
async def working(url: str, app: Ondot) -> AsyncIterator[Database]:
    database = await open_database(settings_for(url))
    await database.read_clock()
    stop = asyncio.Event()
    streams = sys.stdout, sys.stderr
    capture_prints()
    try:
        async with open_targets(database.settings, app, 10, None) as targets, asyncio.TaskGroup() as group:
            worker = Worker(
                database, PoolTransports.of(database, PostgresTransport(database)), targets, [PoolNo(1)], 10
            )
            group.create_task(worker.run(stop))
            try:
                yield database
            finally:
                stop.set()
    finally:
        sys.stdout, sys.stderr = streams
        await database.close()


async def run_function(page: Served, name: str, payload: object = None, **fields: object) -> UUID:
    """Submit a job that calls a function now. Returns its execution."""
    body = {"name": name, "target": {"function": {"name": name}}, "payload": payload, **fields}
    answer = await page.client.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    found = await page.client.get(f"/v1/jobs/{answer.json()['id']}/executions", params={"state": "PENDING"})
    if not found.json()["items"]:
        found = await page.client.get(f"/v1/jobs/{answer.json()['id']}/executions")
    return UUID(found.json()["items"][0]["id"])
