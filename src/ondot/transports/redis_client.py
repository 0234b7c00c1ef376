"""Opens a client of Redis by its address: of one server, of the master that Sentinels name, or of a cluster (C4).

No client retries by itself, and each has timeouts: a frozen server costs the caller its deadline and nothing more.
"""

from typing import TYPE_CHECKING, Any

from ondot.extras import needs_extra
from ondot.model.redis_urls import RedisAddress

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.cluster import RedisCluster

PURPOSE = "The transport redis"


def open_redis(address: RedisAddress, *, timeout_s: float) -> "Redis | RedisCluster":
    """`timeout_s`: to connect, and for each answer."""
    with needs_extra("redis", PURPOSE):
        from redis.asyncio import Redis
        from redis.asyncio.cluster import ClusterNode, RedisCluster
        from redis.asyncio.retry import Retry
        from redis.asyncio.sentinel import Sentinel
        from redis.backoff import NoBackoff
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
    known: dict[str, Any] = {"username": address.user, "password": address.password, "ssl": address.has_tls}
    match address.kind:
        case "server":
            client: Redis = Redis.from_url(address.url, **options)
            return client
        case "sentinel":
            of_sentinels = options | {"ssl": address.has_tls}
            of_master = options | known
            sentinel = Sentinel(list(address.hosts), sentinel_kwargs=of_sentinels, **of_master)  # type: ignore[no-untyped-call]
            master: Redis = sentinel.master_for(address.master, db=address.database)
            return master
        case "cluster":
            nodes = [ClusterNode(host, port) for host, port in address.hosts]
            return RedisCluster(startup_nodes=nodes, **options, **known)


async def close_redis(client: Any) -> None:
    """With the clients of the Sentinels, which it leaves open."""
    await client.aclose()
    manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    for sentinel in getattr(manager, "sentinels", ()):
        await sentinel.aclose()
