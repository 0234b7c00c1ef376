"""Queues messages for channels (O4). A delivery is an execution of ondot's own, in the transaction of its cause.

A storm is bounded: a channel gets `MOST_A_MINUTE` messages of its own in a minute, and further ones are joined into one
that is sent when the minute is over. A message about a channel that fails does not go through that channel.
"""

from collections.abc import Collection

from ondot.model.channel import JOINED_FOR_S, MOST_A_MINUTE, MOST_JOINED, POOL, Joined, Message
from ondot.model.execution import PriorityClass
from ondot.model.ids import ExecutionId, PoolNo, TenantNo
from ondot.store.channels import (
    ChannelRow,
    add_delivery,
    count_recent,
    find_channels,
    join_message,
    queue_delivery,
)
from ondot.store.connection import Connection
from ondot.store.pools import find_pools


async def queue_message(
    connection: Connection, tenant_no: TenantNo, channel_names: Collection[str], message: Message
) -> list[ExecutionId]:
    """Queue a message for each of these channels, in the caller's transaction; returns the ids of the deliveries.

    Channels that do not exist any more are left out, and so are those that the message says fail.
    """
    wanted = set(channel_names) - message.failing_channels
    channels = await find_channels(connection, tenant_no, wanted) if wanted else {}
    if not channels:
        return []
    [pool_no] = (await find_pools(connection, [POOL])).values()
    ids = [channel.id for channel in channels.values()]
    recent = await count_recent(connection, tenant_no, ids, JOINED_FOR_S)
    queued = []
    for _, channel in sorted(channels.items()):
        id_, before = recent[channel.id]
        is_single = message.kind == "test" or before < MOST_A_MINUTE
        queue = _queue if is_single else _join
        if await queue(connection, id_, channel, pool_no, message):
            queued.append(id_)
    return queued


async def _queue(
    connection: Connection, id_: ExecutionId, channel: ChannelRow, pool_no: PoolNo, message: Message
) -> bool:
    await add_delivery(connection, id_, channel, message)
    await queue_delivery(connection, id_, channel.job_id, pool_no, int(PriorityClass.HIGH), 0.0)
    return True


async def _join(
    connection: Connection, id_: ExecutionId, channel: ChannelRow, pool_no: PoolNo, message: Message
) -> bool:
    """Whether it starts a joined message; otherwise it was added to the one that is open."""
    joined = Joined(message.kind, message.title, message.incident_id)
    if await join_message(connection, channel.tenant_no, channel.id, joined, MOST_JOINED):
        return False
    await add_delivery(connection, id_, channel, message, [joined])
    await queue_delivery(connection, id_, channel.job_id, pool_no, int(PriorityClass.HIGH), JOINED_FOR_S)
    return True
