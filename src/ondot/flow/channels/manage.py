"""Creates, changes and deletes channels, and sends test messages (O4). Each change is in the audit log, without
credentials.

A channel has a job of its own, of the installation: its executions are the deliveries. It is created with the channel;
after the channel is deleted, housekeeping deletes it too (`roles.deliveries`).
"""

import asyncio
from collections.abc import Callable
from typing import Final

from ondot.flow.alerts.conditions import clear_condition
from ondot.flow.channels.credentials import check_references, find_references, keep_hidden, seal
from ondot.flow.channels.send import queue_message
from ondot.flow.idempotency import Idempotency, find_response, store_response
from ondot.flow.vault import Vault
from ondot.flow.work import begin
from ondot.model.channel import FAILED_DELIVERY, FUNCTION, POOL, ChannelSpec, Message, kind_of
from ondot.model.errors import Conflict, NotFound
from ondot.model.ids import INSTALLATION, JobId, TenantNo
from ondot.model.job import JobSpec
from ondot.model.retry import Retry
from ondot.model.schedule import OnEvent, Schedule
from ondot.model.target import FunctionTarget
from ondot.store.audit import By, record_change
from ondot.store.channels import (
    ChannelRow,
    DeliveryRow,
    add_channel,
    change_channel,
    count_channels,
    delete_channel,
    find_alerts_of_channel,
    find_channels,
    get_delivery,
    lock_channel,
)
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.jobs import NewJob, insert_jobs
from ondot.store.nodes import has_live_nodes

MOST: Final = 200
"""Channels of a tenant."""
TEST_LOOKS_S: Final = 0.25

RETRY: Final = Retry(max_retries=1_000, initial_s=5.0, factor=2.0, max_s=900.0, max_worker_losses=100)
"""The age of a message ends its retries (`flow.channels.deliver`), not their number."""

Render = Callable[[ChannelRow], str]


async def create_channel(
    database: Database,
    vault: Vault,
    tenant_no: TenantNo,
    name: str,
    spec: ChannelSpec,
    *,
    render: Render,
    idempotency: Idempotency | None,
    by: By,
) -> str:
    """The caller has checked the right to refer to secrets."""
    await check_references(vault, tenant_no, spec)
    sealed = await seal(vault, tenant_no, keep_hidden(spec, None))
    id_, job_id = database.clock.new_id(), JobId(database.clock.new_id())
    async with begin(database, tenant_no) as work:
        if (stored := await find_response(work, idempotency)) is not None:
            return stored
        if await count_channels(work.connection, tenant_no) >= MOST:
            raise Conflict(f"There are {MOST:,} channels, which is the limit: delete those that no alert names.")
        row = await add_channel(work.connection, id_, tenant_no, name, job_id, sealed, created_by=by.actor)
        if row is None:
            raise Conflict(f"There is a channel {name!r} already. Choose another name, or change that one.")
        await _add_job(database, work.connection, job_id)
        detail = {"name": name, "kind": kind_of(sealed), "secrets": sorted(find_references(sealed)) or None}
        await record_change(work.connection, tenant_no, by, "channel.create", id_, detail)
        text = render(row)
        await store_response(work, idempotency, text)
    return text


async def _add_job(database: Database, connection: Connection, job_id: JobId) -> None:
    """It starts by no schedule: a message makes its executions."""
    numbers = await database.pools.register(connection, [POOL])
    spec = JobSpec(
        name="delivery",
        target=FunctionTarget(name=FUNCTION),
        schedule=Schedule(when=OnEvent(type=FUNCTION)),
        pool=POOL,
        priority="high",
        retry=RETRY,
    )
    await insert_jobs(connection, INSTALLATION, [NewJob(job_id, spec, numbers[POOL], None, None)])


async def update_channel(
    database: Database,
    vault: Vault,
    tenant_no: TenantNo,
    name: str,
    change: Callable[[ChannelSpec], ChannelSpec],
    *,
    by: By,
) -> ChannelRow:
    """`change` computes the new content from the stored one; it may raise."""
    before = await get_channel(database, tenant_no, name)
    wanted = change(before.spec)
    await check_references(vault, tenant_no, wanted)
    sealed = await seal(vault, tenant_no, keep_hidden(wanted, before.spec))
    async with begin(database, tenant_no) as work:
        row = await lock_channel(work.connection, tenant_no, name)
        if row is None:
            raise unknown_channel(name)
        if row.version != before.version:
            raise Conflict(f"Another request has changed the channel {name!r} meanwhile: read it, and try again.")
        if sealed == row.spec:
            return row
        changed = await change_channel(work.connection, tenant_no, row.id, sealed, updated_by=by.actor)
        detail = {"name": name, "kind": kind_of(sealed), "secrets": sorted(find_references(sealed)) or None}
        await record_change(work.connection, tenant_no, by, "channel.update", row.id, detail)
    return changed


async def remove_channel(database: Database, tenant_no: TenantNo, name: str, *, by: By) -> ChannelRow:
    """Refused while an alert names it. Messages that wait are not sent any more."""
    async with begin(database, tenant_no) as work:
        row = await lock_channel(work.connection, tenant_no, name)
        if row is None:
            raise unknown_channel(name)
        if alerts := await find_alerts_of_channel(work.connection, tenant_no, name):
            message = f"Alerts name the channel {name!r}: {', '.join(alerts)}. Change or delete them first."
            raise Conflict(message, alerts=alerts)
        await delete_channel(work.connection, tenant_no, row.id)
        await clear_condition(work.connection, FAILED_DELIVERY, tenant_no, name)
        await record_change(work.connection, tenant_no, by, "channel.delete", row.id, {"name": name})
    return row


async def get_channel(database: Database, tenant_no: TenantNo, name: str) -> ChannelRow:
    async with database.connection() as connection:
        found = await find_channels(connection, tenant_no, [name])
    if name not in found:
        raise unknown_channel(name)
    return found[name]


async def send_test(database: Database, tenant_no: TenantNo, name: str, *, wait_s: float, by: By) -> DeliveryRow:
    """Send a test message, and wait a while for what comes back; not at all if no scheduler runs."""
    message = Message(
        kind="test",
        title="Test message from ondot",
        text=f"{by.actor} sent a test message to the channel {name!r}. Nothing is wrong.",
        at=database.clock.now(),
        links=_links(database),
    )
    async with begin(database, tenant_no) as work:
        row = await lock_channel(work.connection, tenant_no, name)
        if row is None:
            raise unknown_channel(name)
        [id_] = await queue_message(work.connection, tenant_no, [name], message)
        await record_change(work.connection, tenant_no, by, "channel.test", row.id, {"name": name})
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_s
    while True:
        async with database.connection() as connection:
            delivery = await get_delivery(connection, tenant_no, id_)
            is_over = delivery is None or delivery.ended_at is not None or not await has_live_nodes(connection)
        if delivery is None:
            raise unknown_channel(name)
        if is_over or loop.time() >= until_s:
            return delivery
        await asyncio.sleep(TEST_LOOKS_S)


def unknown_channel(name: str) -> NotFound:
    return NotFound(f"There is no channel {name!r}. List them with `ondot channel list`.")


def _links(database: Database) -> dict[str, str]:
    base = database.settings.public_url
    return {} if base is None else {"Channels": f"{base}/channels"}
