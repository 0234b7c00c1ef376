"""Where etcd is (C6): `http://user:password@one:2379,two:2379/prefix`, the form of `ONDOT_ETCD_URL`."""

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

DEFAULT_PORT: Final = 2379
DEFAULT_PREFIX: Final = "/ondot"
EXAMPLE: Final = "e.g. http://10.0.0.1:2379,http://10.0.0.2:2379"


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """`endpoints`: each an URL without a path. `prefix`: the beginning of all keys."""

    endpoints: tuple[str, ...]
    prefix: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)


def parse_etcd_url(url: str) -> EtcdAddress:
    """Raises ValueError, without the URL: it may hold a password."""
    endpoints, prefixes, credentials = [], set(), set()
    scheme = None
    for written in filter(None, (part.strip() for part in url.split(","))):
        # Only the first needs the scheme, as in the URLs of PostgreSQL and Redis.
        try:
            parts = urlsplit(written if "://" in written else f"{scheme or ''}://{written}")
            host, port = parts.hostname, DEFAULT_PORT if parts.port is None else parts.port
        except ValueError:
            raise ValueError(f"must name a host, and a port from 1 to 65535, {EXAMPLE}") from None
        if parts.scheme not in {"http", "https"} or not host or not port:
            raise ValueError(f"must begin with http:// or https:// and name a host, {EXAMPLE}")
        if parts.query or parts.fragment:
            raise ValueError("takes no options after ? or #")
        if scheme not in {None, parts.scheme}:
            raise ValueError("must use either http or https for all endpoints")
        scheme = parts.scheme
        endpoints.append(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
        if parts.path.strip("/"):
            prefixes.add("/" + parts.path.strip("/"))
        if parts.username or parts.password:
            credentials.add((unquote(parts.username or ""), unquote(parts.password or "")))
    if not endpoints:
        raise ValueError(f"must name at least one endpoint, {EXAMPLE}")
    if len(prefixes) > 1 or len(credentials) > 1:
        raise ValueError("must name the same user, password and path for all endpoints, or only once")
    user, password = next(iter(credentials), (None, None))
    return EtcdAddress(tuple(dict.fromkeys(endpoints)), next(iter(prefixes), DEFAULT_PREFIX), user, password)
