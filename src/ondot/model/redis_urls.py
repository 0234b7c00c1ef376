"""The addresses of Redis that ondot takes (C4): one server, Sentinels that know which server it is, or a cluster.

`redis://user:password@host:6379/0`, `rediss://…` over TLS, `unix:///path?db=0`;
`redis+sentinel://host:26379,host2:26379/mymaster/0`; `redis+cluster://host:6379,host2:6379`. With `rediss+…` both go
over TLS. A user and a password are those of the server, not of the Sentinels.
"""

from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

KINDS: Final = {"redis": "server", "rediss": "server", "unix": "server"} | {
    f"{scheme}+{kind}": kind for scheme in ("redis", "rediss") for kind in ("sentinel", "cluster")
}
REDIS_PORT: Final = 6379
SENTINEL_PORT: Final = 26379


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """`url`: of one server. `hosts`: of Sentinels or of a cluster. `master`: the name that Sentinels know it by."""

    kind: Literal["server", "sentinel", "cluster"]
    url: str
    hosts: tuple[tuple[str, int], ...] = ()
    master: str = ""
    database: int = 0
    user: str | None = None
    password: str | None = None
    has_tls: bool = False


def parse_redis_url(url: str) -> RedisAddress:
    """Raises ValueError that says what to write."""
    scheme, found, rest = url.partition("://")
    kind = KINDS.get(scheme.lower())
    if not found or kind is None:
        raise ValueError(f"must begin with one of {', '.join(f'{known}://' for known in KINDS)}")
    has_tls = scheme.lower().startswith("rediss")
    if kind == "server":
        parts = urlsplit(url)
        if scheme.lower() == "unix":
            if not parts.path.strip("/"):
                raise ValueError("must name the socket: unix:///run/redis.sock")
        elif not parts.hostname or parts.port == 0:
            raise ValueError("must name a host: redis://host:6379/0")
        return RedisAddress("server", url, has_tls=has_tls)
    place, _, path = rest.partition("/")
    credentials, _, written = place.rpartition("@")
    user, _, password = credentials.partition(":")
    hosts = tuple(_host(part, SENTINEL_PORT if kind == "sentinel" else REDIS_PORT) for part in written.split(","))
    user_or_none, password_or_none = unquote(user) or None, unquote(password) or None
    names = [unquote(name) for name in path.split("/") if name]
    if kind == "cluster":
        if names and names != ["0"]:
            raise ValueError("names a database, but a cluster has only number 0: leave it out")
        return RedisAddress("cluster", url, hosts, "", 0, user_or_none, password_or_none, has_tls)
    if not 1 <= len(names) <= 2 or not all(name.isdecimal() for name in names[1:]):
        raise ValueError("must name the master and perhaps a database: redis+sentinel://host:26379/mymaster/0")
    database = int(names[1]) if len(names) == 2 else 0
    return RedisAddress("sentinel", url, hosts, names[0], database, user_or_none, password_or_none, has_tls)


def _host(written: str, default_port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{written}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"has a host that cannot be parsed, {written!r}: {error}") from error
    if not host or port == 0 or parts.path:
        raise ValueError("must name hosts separated by commas: redis+sentinel://host:26379,host2:26379/mymaster")
    return host, port or default_port
