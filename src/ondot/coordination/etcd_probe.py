"""What `ondot doctor` asks etcd (C6): whether it answers, how fast, how short its leases may be, and whether nodes of
another database share the keys."""

import math
import time
from collections.abc import Collection
from dataclasses import dataclass

from ondot.coordination.etcd import open_client
from ondot.coordination.etcd_client import EtcdClient, EtcdError
from ondot.coordination.etcd_keys import Keys
from ondot.model.ids import NodeId
from ondot.settings import Settings

TRY_S = 2.0
READS = 5


@dataclass(frozen=True, slots=True)
class Probe:
    """`why_not`: it does not answer, or refuses. `ttl_s`: the lease that it grants instead of `ONDOT_LEASE_S`."""

    why_not: str | None = None
    version: str = ""
    slowest_s: float = 0.0
    ttl_s: int = 0
    nodes: Collection[NodeId] = ()


async def probe_etcd(settings: Settings, prefix: str) -> Probe:
    """Changes nothing: the lease that it asks for is given back."""
    client = open_client(settings, TRY_S)
    try:
        return await _ask(client, prefix, math.ceil(settings.lease_s))
    except EtcdError as error:
        return Probe(why_not=str(error))
    finally:
        await client.close()


async def _ask(client: EtcdClient, prefix: str, ttl_s: int) -> Probe:
    version = str((await client.call("maintenance/status", {}))["version"])
    granted = await client.call("lease/grant", {"TTL": str(ttl_s)})
    await client.call("lease/revoke", {"ID": granted["ID"]})
    keys, slowest_s = Keys(client, prefix), 0.0
    for _ in range(READS):
        sent_s = time.monotonic()
        view = await keys.read()
        slowest_s = max(slowest_s, time.monotonic() - sent_s)
    return Probe(None, version, slowest_s, int(granted["TTL"]), frozenset(view.nodes))
