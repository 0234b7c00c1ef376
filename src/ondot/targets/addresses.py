"""Checks each address where the connection is made (T3); `model.addresses` states which ones may be called.

The author of a job must not reach through a worker what only the worker can reach: loopback, private networks, the
metadata service of a cloud. So every address is checked, in any notation (decimal, octal, hex, IPv6 that contains
IPv4), and checked where the connection is made: the address that was checked is the address that is connected to, so a
name that changes its answer in between (DNS rebinding) gains nothing. A name with one private address is refused as a
whole.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address
from typing import Any, Final

from ondot.model.addresses import Reach
from ondot.model.ids import TenantNo

ReachOf = Callable[[TenantNo], Awaitable[Reach]]
"""Where the calls of a tenant may go."""

NO_RIGHT: Final = (
    "This job was written by a caller without the scope private-targets: write it with a key that has the scope."
)


class PrivateAddress(Exception):
    """Not an OSError: aiohttp would treat that as a network failure and try the next address."""

    def __init__(self, host: str, address: str, why: str) -> None:
        place = host if host == address else f"{host} ({address})"
        super().__init__(f"{place} {why}")


class UnknownHost(Exception):
    """A name that could not be resolved."""


def literal(host: str) -> IPv4Address | IPv6Address | None:
    """The address, if the host is one in any notation that some library accepts."""
    bare = host.strip("[]").split("%", 1)[0].rstrip(".")
    try:
        return ip_address(bare)
    except ValueError:
        pass
    try:
        # 2130706433, 0x7f000001, 0177.0.0.1, 127.1
        return IPv4Address(socket.inet_aton(bare))
    except (OSError, AddressValueError, UnicodeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Allowed:
    """The addresses that calls with one reach may go to."""

    reach: Reach

    def check(self, host: str, address: str | None = None, port: int | None = None) -> None:
        """Raises PrivateAddress if the host, or the address that it resolved to, may not be called."""
        found = literal(address or host)
        why = self.reach.why_not_host(host, found)
        if why is None and found is not None:
            why = self.reach.why_not(found, port)
        if why is not None:
            raise PrivateAddress(host, host if found is None else str(found), why)

    def open_socket(self, addr_info: tuple[Any, ...]) -> socket.socket:
        """A socket for the address that is about to be connected to, after a last check."""
        family, kind, protocol, _, sockaddr = addr_info
        host, port = str(sockaddr[0]), int(sockaddr[1])
        address = literal(host)
        why = "cannot be checked, so it is not called." if address is None else self.reach.why_not(address, port)
        if why is not None:
            raise PrivateAddress(host, str(address or "no address"), why)
        return socket.socket(family=family, type=kind, proto=protocol)


async def resolve_allowed(reach: Reach, host: str, port: int) -> list[str]:
    """The addresses of a host, all checked: for a client that is to connect to one of them and to resolve nothing.

    Raises PrivateAddress or UnknownHost. The caller sets the deadline.
    """
    allowed = Allowed(reach)
    allowed.check(host, port=port)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise UnknownHost(f"The name {host} could not be resolved: {reason or error}") from error
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
    for address in addresses:
        allowed.check(host, address, port)
    return addresses
