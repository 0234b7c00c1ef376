"""Which addresses an HTTP call may go to (T3): those of the public internet, unless the operator allows the others.

The author of a job must not reach through a worker what only the worker can reach: loopback, private networks, the
metadata service of a cloud. So every address is checked, in any notation (decimal, octal, hex, IPv6 that contains
IPv4), and checked where the connection is made: the address that was checked is the address that is connected to, so a
name that changes its answer in between (DNS rebinding) gains nothing. A name with one private address is refused as a
whole.

Link-local and metadata addresses are refused even where private ones are allowed: on a machine in a cloud they return
its credentials to any caller, and users run no services there. A list of names such as metadata.google.internal is not
needed: the addresses that a name resolves to are checked.
"""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

_ADVICE: Final = "To allow them, set ONDOT_ALLOW_PRIVATE_TARGETS=1 for the worker."

# Beyond what Python's own tables call private; they differ from release to release.
_NOT_PUBLIC_4: Final = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "100.64.0.0/10",  # shared by carriers; one cloud has its metadata here
        "168.63.129.16/32",  # a public address that leads to the host of a virtual machine in Azure
        "192.0.0.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "224.0.0.0/3",
    )
)
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_NOT_PUBLIC_6: Final = tuple(
    IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "3ffe::/16")
)
_NAT64: Final = IPv6Network("64:ff9b::/96")

_NEVER_4: Final = tuple(
    IPv4Network(network)
    for network in (
        "169.254.0.0/16",  # link-local; the metadata of most clouds
        "100.100.100.200/32",  # metadata in Alibaba Cloud
        "168.63.129.16/32",  # the host of a virtual machine in Azure
        "192.0.0.192/32",  # metadata in older Oracle Cloud
    )
)
_NEVER_6: Final = tuple(
    IPv6Network(network)
    for network in (
        "fe80::/10",
        "fd00:ec2::/32",  # metadata in AWS
        "fd20:ce::254/128",  # metadata in Google Cloud
        "fd00:42::42/128",  # metadata in Scaleway
        "fd00:c1::a9fe:a9fe/128",  # metadata in Oracle Cloud
    )
)
_IPV4_IN_LAST_BITS: Final = tuple(
    IPv6Network(network) for network in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")
)
_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})


class PrivateAddress(Exception):
    """Not an OSError: aiohttp would treat that as a network failure and try the next address."""

    def __init__(self, host: str, address: str, why: str) -> None:
        place = host if host == address else f"{host} ({address})"
        super().__init__(f"{place} {why}")


_NOT_PUBLIC: Final = f"is not an address of the public internet, and those are refused. {_ADVICE}"
_NEVER: Final = "is a link-local or metadata address, which ondot never calls: no setting allows it. Call another host."


def is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in _NOT_PUBLIC_4)
    if address.ipv4_mapped is not None:
        return is_public(address.ipv4_mapped)
    if address in _NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
    # An allow-list: nothing that is not global unicast today (fc00::/7, fe80::/10, ::a.b.c.d, 5f00::/16 …) is public.
    # 6to4 and Teredo contain an IPv4 address that the author chose, and have no servers any more.
    return address in _GLOBAL_UNICAST and address.is_global and not any(address in net for net in _NOT_PUBLIC_6)


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


def is_never_called(address: IPv4Address | IPv6Address) -> bool:
    """Whether it is link-local or a cloud's metadata service, by itself or as IPv4 inside IPv6."""
    if isinstance(address, IPv4Address):
        return any(address in network for network in _NEVER_4)
    return any(address in network for network in _NEVER_6) or any(map(is_never_called, _ipv4_inside(address)))


def _ipv4_inside(address: IPv6Address) -> Iterator[IPv4Address]:
    """Every IPv4 address that a gateway may extract from it."""
    number = int(address)
    if any(address in network for network in _IPV4_IN_LAST_BITS) or number >> 32 & 0xFFFFFFFF in _ISATAP:
        yield IPv4Address(number & 0xFFFFFFFF)
    if address in IPv6Network("64:ff9b:1::/48"):
        # RFC 6052 with a prefix of 48 bits: two bytes, a zero byte, two bytes.
        yield IPv4Address((number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF)
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo


@dataclass(frozen=True, slots=True)
class Allowed:
    """Which addresses a worker may call."""

    private: bool

    def check(self, host: str, address: str | None = None) -> None:
        """Raises PrivateAddress if the host, or the address that it resolved to, may not be called."""
        found = literal(address or host)
        if found is None:
            return
        if is_never_called(found):
            raise PrivateAddress(host, str(found), _NEVER)
        if not self.private and not is_public(found):
            raise PrivateAddress(host, str(found), _NOT_PUBLIC)

    def open_socket(self, addr_info: tuple[Any, ...]) -> socket.socket:
        """A socket for the address that is about to be connected to, after a last check."""
        family, kind, protocol, _, sockaddr = addr_info
        host = str(sockaddr[0])
        if literal(host) is None:
            raise PrivateAddress(host, "no address", "cannot be checked, so it is not called.")
        self.check(host)
        return socket.socket(family=family, type=kind, proto=protocol)


class AllowedResolver(AbstractResolver):
    """Resolves a name only if all of its addresses may be called."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        for entry in found:
            self._allowed.check(host, entry["host"])
        return found

    async def close(self) -> None:
        await self._resolver.close()
