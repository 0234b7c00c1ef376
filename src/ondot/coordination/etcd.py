"""Leases in etcd (C1, C2, C6): a node and its partitions are keys that are bound to the node's lease, so that all of
them go with it.

etcd decides who owns a partition: it is taken by a transaction that requires that no lease holds its key. PostgreSQL
records it, with a higher epoch, before the node plans; that row is what people see. A node compares both with each beat
and corrects PostgreSQL. A watch is a hint to beat now: a freed partition has an owner at once, and a watch that is lost
costs the time until the next beat.

While etcd is away, a node plans until its lease is no longer certain, `ONDOT_LEASE_S` after its last good beat was
sent. etcd counts from the arrival, and in whole seconds rounded up, so its lease never ends first.
"""

import asyncio
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypedDict

from ondot import __version__
from ondot.coordination import postgres
from ondot.coordination.etcd_client import EtcdClient, EtcdError, Json, decode
from ondot.coordination.etcd_keys import Keys, View, delete, holds, is_free, is_present, put, read_prefix
from ondot.model.etcd_url import parse_etcd_url
from ondot.model.ids import PARTITIONS, NodeId
from ondot.model.partition import bequeath
from ondot.ports.coordinator import CoordinatorAway, Standing
from ondot.settings import Settings
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.nodes import (
    beat_node,
    give_back_partitions,
    hand_over_partitions,
    leave_node,
    note_coordinator_away,
    record_partitions,
    retire_node,
)
from ondot.telemetry.log import get_logger

TRIES_A_LEASE: Final = 10.0
LEAST_TRY_S: Final = 0.25
BEAT_S: Final = 0.2
"""The share of a lease that the calls of one beat may take. PostgreSQL has the rest of the interval of 0.3."""
WATCH_S: Final = 60.0
"""A watch is opened again after this time: a half-open connection reports nothing."""
WATCH_AGAIN_S: Final = 0.5
GATHER_S: Final = 0.02
"""A hint waits this long for those of the same change, which arrive one by one."""
LEAVES_WITHIN_S: Final = 2.0

log = get_logger()


class EtcdCoordinator:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._settings = database.settings
        self.name = "etcd"
        self.node_id = NodeId(database.clock.new_id())
        self.on_change: Callable[[], None] = lambda: None
        lease_s = self._settings.lease_s
        self._ttl = math.ceil(lease_s)
        self._beat_s = max(lease_s * BEAT_S, LEAST_TRY_S * 2)
        self._try_s = max(lease_s / TRIES_A_LEASE, LEAST_TRY_S)
        self._prefix: str | None = None
        self._keys: Keys | None = None
        self._watching: asyncio.Task[None] | None = None
        self._lease: int | None = None
        self._view = View({}, {})

    # With each beat --------------------------------------------------------------------------------------------------

    async def beat(self, connection: Connection) -> Standing:
        sent_s = time.monotonic()
        if self._prefix is None:
            self._prefix = await read_prefix(connection, self._settings)
        if self._keys is None:
            self._keys = Keys(open_client(self._settings, self._try_s), self._prefix)
        try:
            with self._away():
                async with asyncio.timeout(self._beat_s):
                    lease = await self._renew(self._keys)
        except CoordinatorAway as away:
            await note_coordinator_away(connection, self.node_id, **_process(), coordination="etcd", why=away.message)
            raise
        self._watch_on(self._keys)
        mine = self._view.owned_by(self.node_id, lease)
        standing = await beat_node(
            connection,
            self.node_id,
            **_process(),
            lease_s=self._settings.lease_s - (time.monotonic() - sent_s),
            coordination="etcd",
        )
        recorded = standing.owned
        if recorded - mine:
            await give_back_partitions(connection, self.node_id, sorted(recorded - mine))
        if mine - recorded:
            recorded |= await record_partitions(connection, self.node_id, sorted(mine - recorded))
        nodes = sorted(self._view.nodes)
        return Standing(standing.now, mine & recorded, len(nodes), nodes.index(self.node_id), None)

    async def take(self, connection: Connection, at_most: int) -> frozenset[int]:
        free = [number for number in range(PARTITIONS) if number not in self._view.partitions][:at_most]
        keys, lease, mine = self._keys, self._lease, str(self.node_id)
        assert keys is not None
        assert lease is not None
        steps = [([is_free(key)], put(key, mine, lease)) for key in map(keys.partition, free)]
        won = await self._change_each(keys, steps)
        numbers = [number for number, is_won in zip(free, won, strict=True) if is_won]
        return await record_partitions(connection, self.node_id, numbers) if numbers else frozenset()

    async def give_back(self, connection: Connection, partitions: Sequence[int]) -> None:
        keys, mine = self._keys, str(self.node_id)
        assert keys is not None
        await self._change_each(keys, [([holds(key, mine)], delete(key)) for key in map(keys.partition, partitions)])
        await give_back_partitions(connection, self.node_id, partitions)

    async def _renew(self, keys: Keys) -> int:
        """Renew the lease, or get one; then read all keys. Returns the lease."""
        lease = self._lease
        if lease is not None:
            reply = await keys.client.call("lease/keepalive", {"ID": str(lease)})
            if not int(reply["result"].get("TTL", 0)):
                log.warning("lease.lost", coordinator="etcd", then="gets a new one")
                lease = self._lease = None
        if lease is None:
            reply = await keys.client.call("lease/grant", {"TTL": str(self._ttl)})
            lease = self._lease = int(reply["ID"])
            if int(reply["TTL"]) > self._ttl:
                log.warning("lease.longer", asked_s=self._ttl, granted_s=int(reply["TTL"]), then="takes over later")
        view = await keys.read()
        if view.nodes.get(self.node_id) != lease:
            await keys.change(put(keys.node(self.node_id), f"{socket.gethostname()} {os.getpid()}", lease))
            view = await keys.read()
        self._view = view
        return lease

    async def _change_each(self, keys: Keys, steps: Sequence[tuple[Sequence[Json], Json]]) -> list[bool]:
        with self._away():
            async with asyncio.timeout(self._beat_s):
                return await keys.change_each(steps)

    @contextmanager
    def _away(self) -> Iterator[None]:
        try:
            yield
        except (EtcdError, TimeoutError) as error:
            why = str(error) or f"it does not answer within {self._beat_s:g} s"
            raise CoordinatorAway(f"No lease from etcd: {why}") from error

    # Hints -----------------------------------------------------------------------------------------------------------

    def _watch_on(self, keys: Keys) -> None:
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(keys), name="etcd-watch")

    async def _watch(self, keys: Keys) -> None:
        """Until cancelled: beat when a node joins or goes, when a partition is free, or is handed over to this node."""
        revision: int | None = None
        may_have_missed = False
        loop = asyncio.get_running_loop()
        while True:
            since = {} if revision is None else {"start_revision": str(revision + 1)}
            try:
                async for message in keys.client.watch(keys.range | since, for_s=WATCH_S):
                    if message.get("canceled"):
                        # Compacted: a beat reads what was missed.
                        revision, may_have_missed = None, True
                        break
                    revision = int(message["header"]["revision"])
                    if may_have_missed or any(self._concerns(keys, event) for event in message.get("events", ())):
                        loop.call_later(GATHER_S, self.on_change)
                        may_have_missed = False
            except EtcdError as error:
                log.debug("watch.broken", error=str(error))
                revision, may_have_missed = None, True
                await asyncio.sleep(WATCH_AGAIN_S)

    def _concerns(self, keys: Keys, event: Json) -> bool:
        if event.get("type") == "DELETE":
            return True
        kind, name = keys.name(event["kv"])
        if kind == "nodes":
            return name != str(self.node_id)
        is_mine = decode(event["kv"].get("value", "")) == str(self.node_id)
        return is_mine and int(event["kv"].get("lease", 0)) == self._lease and event["kv"].get("version") != "1"

    async def disconnect(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        keys, self._keys = self._keys, None
        if keys is not None:
            await keys.client.close()

    # The end ---------------------------------------------------------------------------------------------------------

    async def leave(self) -> int:
        heirs = await self._leave_etcd()
        if not heirs:
            # To nodes that coordinate by PostgreSQL, if there are any.
            return await postgres.leave(self._database, self.node_id)
        async with self._database.connection() as connection:
            await retire_node(connection, self.node_id)
        async with self._database.transaction() as connection:
            await hand_over_partitions(connection, self.node_id, heirs)
            await leave_node(connection, self.node_id)
        return len(heirs)

    async def _leave_etcd(self) -> dict[int, NodeId]:
        """Returns the heir of each partition that was handed over."""
        if self._lease is None or self._prefix is None:
            return {}
        client = open_client(self._settings, LEAVES_WITHIN_S / 2)
        try:
            async with asyncio.timeout(LEAVES_WITHIN_S):
                heirs = await self._hand_over(Keys(client, self._prefix), self._lease)
                await client.call("lease/revoke", {"ID": str(self._lease)})
        except (EtcdError, TimeoutError) as error:
            log.warning("lease.left", coordinator="etcd", error=str(error), then="it ends by itself")
            return {}
        finally:
            await client.close()
        return heirs

    async def _hand_over(self, keys: Keys, lease: int) -> dict[int, NodeId]:
        """Bind each partition to the lease of its heir.

        The node's key goes first, and an heir's key must exist: nodes that leave together do not inherit from each
        other.
        """
        await keys.change(delete(keys.node(self.node_id)))
        view = await keys.read()
        counts = {id_: len(view.owned_by(id_, its)) for id_, its in view.nodes.items() if id_ != self.node_id}
        heirs = bequeath(view.owned_by(self.node_id, lease), counts)
        handed_over = await keys.change_each(
            (
                [holds(keys.partition(number), str(self.node_id)), is_present(keys.node(heir))],
                put(keys.partition(number), str(heir), view.nodes[heir]),
            )
            for number, heir in heirs.items()
        )
        return {number: heir for (number, heir), is_done in zip(heirs.items(), handed_over, strict=True) if is_done}


class _Process(TypedDict):
    host: str
    pid: int
    release: str


def _process() -> _Process:
    return {"host": socket.gethostname(), "pid": os.getpid(), "release": __version__}


def open_client(settings: Settings, try_s: float) -> EtcdClient:
    return EtcdClient(parse_etcd_url(settings.needs_etcd_url), ca=settings.etcd_ca, try_s=try_s)
