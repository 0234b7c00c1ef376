"""The keys of an installation in etcd (C6): `nodes/<id>` and `partitions/<number>`, each bound to the lease of a node.

A partition's value is the id of its owner. A key without a lease is no node's: a person has put it there, and a node
that takes the partition replaces it. Otherwise it would never be free.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from ondot.coordination.etcd_client import EtcdClient, Json, decode, encode, end_of
from ondot.model.etcd_url import parse_etcd_url
from ondot.model.ids import NodeId
from ondot.settings import Settings
from ondot.store.connection import Connection
from ondot.store.nodes import read_installation


@dataclass(frozen=True, slots=True)
class View:
    """What etcd holds: the lease of each node, and the owner and lease of each partition."""

    nodes: Mapping[NodeId, int]
    partitions: Mapping[int, tuple[NodeId, int]]

    def owned_by(self, node_id: NodeId, lease: int) -> frozenset[int]:
        return frozenset(number for number, owner in self.partitions.items() if owner == (node_id, lease))


async def read_prefix(connection: Connection, settings: Settings) -> str:
    """The beginning of the installation's keys: several may share an etcd."""
    return f"{parse_etcd_url(settings.needs_etcd_url).prefix}/{await read_installation(connection)}/"


class Keys:
    def __init__(self, client: EtcdClient, prefix: str) -> None:
        self.client = client
        self._prefix = prefix

    @property
    def range(self) -> dict[str, str]:
        return {"key": encode(self._prefix), "range_end": encode(end_of(self._prefix))}

    def name(self, pair: Json) -> tuple[str, str]:
        """The kind of a key, and what it is about."""
        kind, _, name = decode(pair["key"]).removeprefix(self._prefix).partition("/")
        return kind, name

    def node(self, node_id: NodeId) -> str:
        return encode(f"{self._prefix}nodes/{node_id}")

    def partition(self, number: int) -> str:
        return encode(f"{self._prefix}partitions/{number}")

    async def change(self, *actions: Json) -> Json:
        return await self.client.call("kv/txn", {"success": actions})

    async def change_each(self, steps: Iterable[tuple[Sequence[Json], Json]]) -> list[bool]:
        """One transaction of many small ones, each with its own conditions; returns which of them held."""
        inner = [{"request_txn": {"compare": compare, "success": [action]}} for compare, action in steps]
        if not inner:
            return []
        reply = await self.change(*inner)
        return [bool(each["response_txn"].get("succeeded")) for each in reply["responses"]]

    async def read(self) -> View:
        reply = await self.change({"request_range": self.range})
        nodes: dict[NodeId, int] = {}
        partitions: dict[int, tuple[NodeId, int]] = {}
        for pair in reply["responses"][0]["response_range"].get("kvs", ()):
            kind, name = self.name(pair)
            lease = int(pair.get("lease", 0))
            with suppress(ValueError):
                if not lease:
                    continue
                if kind == "nodes":
                    nodes[NodeId(UUID(name))] = lease
                elif kind == "partitions":
                    partitions[int(name)] = NodeId(UUID(decode(pair["value"]))), lease
        return View(nodes, partitions)


def put(key: str, value: str, lease: int) -> Json:
    return {"request_put": {"key": key, "value": encode(value), "lease": str(lease)}}


def delete(key: str) -> Json:
    return {"request_delete_range": {"key": key}}


def is_free(key: str) -> Json:
    """It does not exist, or is bound to no lease."""
    return {"key": key, "target": "LEASE", "result": "EQUAL", "lease": "0"}


def is_present(key: str) -> Json:
    return {"key": key, "target": "CREATE", "result": "GREATER", "create_revision": "0"}


def holds(key: str, value: str) -> Json:
    return {"key": key, "target": "VALUE", "result": "EQUAL", "value": encode(value)}
