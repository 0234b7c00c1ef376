"""The network of an address, for what is counted by sender."""

from ipaddress import ip_address


def network_of(address: str) -> str:
    """The /64 of an IPv6 address, because one machine has all of it; an IPv4 address as it is."""
    if ":" not in address:
        return address
    try:
        return str(ip_address(int(ip_address(address.partition("%")[0])) >> 64 << 64))
    except ValueError:
        return address
