"""Requests of ondot's own clients to a server of this machine go to it directly.

A proxy from the environment (`HTTP_PROXY`) cannot reach this machine's loopback: with one set, `ondot up` would wait
for its own server until it gives up. For any other host the proxy is used as usual.
"""

from http.client import HTTPResponse
from ipaddress import ip_address
from typing import cast
from urllib.parse import urlsplit
from urllib.request import OpenerDirector, ProxyHandler, Request, build_opener


def is_this_machine(url: str) -> bool:
    """Whether a URL names this machine: loopback in any spelling, or "all addresses" as a server listens on them."""
    host = (urlsplit(url).hostname or "").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_unspecified)


def open_url(request: str | Request, timeout_s: float) -> HTTPResponse:
    """As `urlopen`, without a proxy where the URL names this machine. The caller has checked that it is http(s)."""
    url = request if isinstance(request, str) else request.full_url
    return cast("HTTPResponse", _opener(direct=is_this_machine(url)).open(request, timeout=timeout_s))


def _opener(*, direct: bool) -> OpenerDirector:
    return build_opener(ProxyHandler({})) if direct else build_opener()
