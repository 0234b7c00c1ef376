"""Which addresses an HTTP call may go to (T3): those of the public internet, and the private ones that are allowed.

A `Reach` states it for the calls of one tenant. Link-local and metadata addresses are in no reach, whatever it allows:
on a machine in a cloud they return its credentials to any caller, and users run no services there. A list of names such
as metadata.google.internal is not needed: the addresses that a name resolves to are checked.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

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

DENIED: Final = "is in `targets.deny` of this tenant, so it is not called. Call another host."
NOT_LISTED: Final = "is not in `targets.allow` of this tenant, which lists all that it may call. Call another host."
_NAME: Final = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_NUMERIC: Final = re.compile(r"[0-9.]+|0x[0-9a-f.x]+")

NEVER: Final = "is a link-local or metadata address, which ondot never calls: no setting allows it. Call another host."


def is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in _NOT_PUBLIC_4)
    if (inner := _as_ipv4(address)) is not None:
        return is_public(inner)
    # An allow-list: nothing that is not global unicast today (fc00::/7, fe80::/10, ::a.b.c.d, 5f00::/16 …) is public.
    # 6to4 and Teredo contain an IPv4 address that the author chose, and have no servers any more.
    return address in _GLOBAL_UNICAST and address.is_global and not any(address in net for net in _NOT_PUBLIC_6)


def is_never_called(address: Address) -> bool:
    """Whether it is link-local or a cloud's metadata service, by itself or as IPv4 inside IPv6."""
    if isinstance(address, IPv4Address):
        return any(address in network for network in _NEVER_4)
    return any(address in network for network in _NEVER_6) or any(map(is_never_called, _ipv4_inside(address)))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address and a port that must not be called. All loopback addresses are one: `LOOPBACK`."""

    address: Address
    port: int


LOOPBACK: Final = IPv4Address("127.0.0.1")


def endpoint(address: Address, port: int) -> Endpoint:
    """The endpoint that a connection to this address reaches: ::ffff:10.0.0.1 is 10.0.0.1, 0.0.0.0 is this machine."""
    if isinstance(address, IPv6Address):
        address = _as_ipv4(address) or address
    return Endpoint(LOOPBACK if address.is_loopback or address.is_unspecified else address, port)


@dataclass(frozen=True, slots=True)
class Places:
    """Hosts by name, also as `*.example.com`, and networks."""

    names: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.names or self.networks)

    def has_name(self, host: str) -> bool:
        host = host.lower().rstrip(".")
        return any(host.endswith(name[1:]) if name.startswith("*.") else host == name for name in self.names)

    def has_address(self, address: Address) -> bool:
        inner = _as_ipv4(address) if isinstance(address, IPv6Address) else None
        return any(address in network or (inner is not None and inner in network) for network in self.networks)


NOWHERE: Final = Places()


@dataclass(frozen=True, slots=True)
class Reach:
    """Where the calls of a tenant may go. Connections are shared only between calls with an equal reach."""

    any_private: bool = False
    networks: tuple[Network, ...] = ()
    """Private networks that may be called."""
    own: frozenset[Endpoint] = frozenset()
    """ondot's and PostgreSQL's own endpoints, which are refused even where their network is allowed."""
    only: Places = NOWHERE
    """If there are any, nothing else is called."""
    never: Places = NOWHERE
    advice: str = "To allow them, set ONDOT_ALLOW_PRIVATE_TARGETS=1 for the worker, or to the networks it may call."

    def why_not(self, address: Address, port: int | None = None) -> str | None:
        """Why a connection to this address is refused, as the end of a sentence about it. None: it is not."""
        if is_never_called(address):
            return NEVER
        if self.never.has_address(address):
            return DENIED
        if not (self.any_private or is_public(address) or Places(networks=self.networks).has_address(address)):
            return f"is not an address of the public internet, and those are refused. {self.advice}"
        # Last: who may not call a network must not find out where in it the API and PostgreSQL are.
        if port is not None and self.own and endpoint(address, port) in self.own:
            return f"with port {port} is ondot's own or its database's, which a tenant's jobs never call. Call another."
        return None

    def why_not_host(self, host: str, address: Address | None) -> str | None:
        """Why this host is refused by the tenant's lists. `address` None: it is a name that is not resolved yet."""
        if self.never.has_name(host):
            return DENIED
        if not self.only or self.only.has_name(host):
            return None
        is_allowed = bool(self.only.networks) if address is None else self.only.has_address(address)
        return None if is_allowed else NOT_LISTED

    def only_public(self, advice: str) -> "Reach":
        return replace(self, any_private=False, networks=(), advice=advice)


PUBLIC: Final = Reach()
EVERYWHERE: Final = Reach(any_private=True)


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Networks such as 10.1.0.0/16. Raises ValueError with the end of a sentence about the list."""
    return tuple(dict.fromkeys(map(_parse_network, texts)))


def parse_places(texts: Iterable[str]) -> Places:
    """Hosts and networks of a list. Raises ValueError with the end of a sentence about the list."""
    names, networks = [], []
    for text in texts:
        if _NAME.fullmatch(text) and not _NUMERIC.fullmatch(text):
            names.append(text)
            continue
        try:
            networks.append(ip_network(text))
        except ValueError:
            message = f"must be hosts such as api.example.com or *.example.com, or networks; {text[:100]!r} is neither"
            raise ValueError(message) from None
    return Places(tuple(names), tuple(networks))


def _parse_network(text: str) -> Network:
    try:
        network = ip_network(text.strip())
    except ValueError:
        message = f"must be networks such as 10.1.0.0/16 or fd12::/48, separated by commas; {text.strip()!r} is none"
        if "/" in text:
            message += " (has it bits set after its prefix?)"
        raise ValueError(message) from None
    never: tuple[Network, ...] = (*_NEVER_4, *_NEVER_6)
    if any(network.version == each.version and network.subnet_of(each) for each in never):  # type: ignore[arg-type]
        raise ValueError(f"must not name {network}: link-local and metadata addresses are never called")
    return network


def _as_ipv4(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that a connection to it reaches."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None


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
