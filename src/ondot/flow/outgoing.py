"""Where the HTTP calls of each tenant may go (T3): the public internet, and the private networks that it was given.

The first tenant's reach is the worker's setting (`ONDOT_ALLOW_PRIVATE_TARGETS`). That setting does not hold for other
tenants: they reach the private networks that their own row names, and never an endpoint of ondot or PostgreSQL, on any
node. Those are known from the database, from its URL and from the URL of the API; names are resolved again each time
they are read, so a name whose address changes is refused within seconds.
"""

import asyncio
import socket
import time
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from ondot.model.addresses import Endpoint, Reach, endpoint, parse_networks, parse_places
from ondot.model.errors import Unavailable
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.tenant import Tenant
from ondot.model.urls import hosts_in
from ondot.store.database import Database
from ondot.store.listeners import list_own_endpoints

READ_EVERY_S: Final = 5.0

ADVICE: Final = "An owner of the installation can allow networks: `targets.private_networks` of the tenant."

Place = tuple[str, int]
"""A host, by name or address, and a port."""


class Outgoing:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._first = database.settings.reach
        self._own: frozenset[Endpoint] = frozenset()
        self._read_s: float | None = None
        self._reading = asyncio.Lock()

    async def reach_of(self, tenant_no: TenantNo) -> Reach:
        if tenant_no == DEFAULT_TENANT:
            return self._first
        tenant = await self._database.tenants.get(tenant_no)
        own = await self._own_endpoints()
        return Reach(own=own, advice=ADVICE) if tenant is None else reach_of_row(tenant, own)

    async def _own_endpoints(self) -> frozenset[Endpoint]:
        if self._is_old():
            async with self._reading:
                if self._is_old():  # else another call has read them meanwhile
                    self._own = await self._read()
                    self._read_s = time.monotonic()
        return self._own

    def _is_old(self) -> bool:
        return self._read_s is None or time.monotonic() - self._read_s >= READ_EVERY_S

    async def _read(self) -> frozenset[Endpoint]:
        settings = self._database.settings
        async with self._database.connection() as connection:
            rows = await list_own_endpoints(connection)
        known = {(row.address, row.port) for row in rows if row.address is not None and row.port is not None}
        urls = {settings.url, *(row.url for row in rows if row.url is not None)}
        places = {*known, *hosts_in(settings.needs_database_url), *map(_place_of, urls)}
        found = await asyncio.gather(*(_resolve(host, port) for host, port in sorted(places)))
        return frozenset(each for endpoints in found for each in endpoints)


class RememberedReach:
    """The same while the database is away, as it was before: for messages that say so."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing
        self._known: dict[TenantNo, Reach] = {}

    async def reach_of(self, tenant_no: TenantNo) -> Reach:
        try:
            self._known[tenant_no] = await self._outgoing.reach_of(tenant_no)
        except Unavailable:
            if tenant_no not in self._known:
                raise
        return self._known[tenant_no]


def reach_of_row(tenant: Tenant, own: frozenset[Endpoint]) -> Reach:
    rules = tenant.targets
    return Reach(
        networks=parse_networks(rules.private_networks),
        own=own,
        only=parse_places(rules.allow),
        never=parse_places(rules.deny),
        advice=ADVICE,
    )


def _place_of(url: str) -> Place:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


async def _resolve(host: str, port: int) -> Iterable[Endpoint]:
    """The endpoints of a host. A name that cannot be resolved cannot be called either."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return [endpoint(ip_address(str(address[0]).partition("%")[0]), port) for *_, address in found]
