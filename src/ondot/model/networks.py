"""The network of an address, for what is counted by sender."""

from ipaddress import IPv6Address


def network_of(address: str) -> str:
    """The /64 of an IPv6 address, because one machine has all of it; an IPv4 address as it is, also where a socket of
    both shows it as ::ffff:192.0.2.1."""
    if ":" not in address:
        return address
    try:
        found = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64))
