"""The sender of a request, according to its headers: checked for every path, before anything else (T1).

`Host` must always be well-formed. Without API keys the browser is the danger: any web page can send requests to
127.0.0.1. So only requests to local names are accepted (DNS rebinding), only pages of this server may send anything
(`Origin`, `Sec-Fetch-Site`), as JSON, and no request may come through a proxy: it would be another user's request in
the name of the account that runs the proxy.

A browser sends the session of a user with every request to this server, also with those that a page of another site
causes. So a request with a session must come from ondot's own pages, unless it follows a link; and so must every form,
also the one that signs in (`refuse_other_sites`).
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from ondot.model.errors import Forbidden, InvalidRequest

HOSTS_KEPT: Final = 64
"""Results are cached: a server has few names."""

Headers = Iterable[tuple[bytes, bytes]]

_HOST: Final = re.compile(rb"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._~-]{1,255})(?::([0-9]{0,5}))?")
_LOCAL: Final = frozenset({b"localhost", b"127.0.0.1", b"[::1]"})
_FORWARDED: Final = frozenset(
    {
        b"forwarded",
        b"via",
        b"x-forwarded",
        b"x-real-ip",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"x-envoy-external-address",
        b"x-original-forwarded-for",
        b"x-original-host",
        b"x-originating-ip",
        b"x-remote-addr",
        b"x-remote-ip",
        b"x-proxyuser-ip",
        b"true-client-ip",
        b"cf-connecting-ip",
        b"fastly-client-ip",
        b"client-ip",
    }
)
_READ: Final = frozenset({b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"content-type"})
_OF_THIS_SERVER: Final = frozenset({b"same-origin", b"none"})
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_JSON: Final = re.compile(rb"application/(?:[a-z0-9.-]+\+)?json\s*(?:;.*)?", re.IGNORECASE)


def check_host(headers: Headers) -> None:
    """A request has at most one host, and it is well-formed: URLs are built from it, and a second one hides the
    first."""
    host = None
    for name, value in headers:
        if name == b"host":
            if host is not None:
                raise InvalidRequest("The request has several Host headers. Send one.")
            host = value
    if host and not _well_formed(host):
        raise InvalidRequest(f"The Host header {_quote(host)} is not valid. Send NAME, NAME:PORT or [IPV6]:PORT.")


def refuse_foreign(method: str, headers: Headers, *, may_be_form: bool = False) -> None:
    """Refuse requests that another user or site may have caused, where no API key is required. After `check_host`.
    `may_be_form`: the path takes what a form sends; `refuse_other_sites` checks it."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _READ:
            found[name] = value
        elif name in _FORWARDED or name.startswith(b"x-forwarded-"):
            raise Forbidden(
                f"The request came through a proxy ({name.decode('ascii', 'replace')}), and without API keys ondot"
                " answers only the account that runs it. Run it with ONDOT_AUTH=on and send a key; create one with"
                " `ondot key create`."
            )
    host = found.get(b"host", b"").lower()
    if not _is_local(host):
        raise Forbidden(
            f"The Host header is {_quote(host)}, and without API keys ondot answers only to localhost. Open it as"
            " http://127.0.0.1, or run it with ONDOT_AUTH=on."
        )
    origin = found.get(b"origin")
    if origin is not None and _without_port_80(origin.lower()) != b"http://" + _without_port_80(host):
        raise Forbidden(
            f"The request comes from a page of {_quote(origin)}, and without API keys ondot answers only its own"
            " pages, under the same name and port."
        )
    site = found.get(b"sec-fetch-site")
    if site is not None and site not in _OF_THIS_SERVER and not _is_a_link(method, found):
        raise Forbidden(
            f"The request comes from a page of another site (Sec-Fetch-Site: {_quote(site)}), and without API keys"
            " ondot answers only its own pages."
        )
    kind = found.get(b"content-type")
    is_changing = method not in READING and not may_be_form
    if (origin or site) and kind is not None and is_changing and not _JSON.fullmatch(kind):
        raise Forbidden(
            f"A page sent {_quote(kind)}, which a browser lets any site send. Send JSON as application/json."
        )


def refuse_other_sites(method: str, headers: Headers, public_url: str | None) -> None:
    """Refuse a request with a session, or a form, that a page of another site may have sent. After `check_host`.

    A browser states where a request comes from in `Sec-Fetch-Site`, and for a change in `Origin`. What a change states
    must be this server; a change that states neither comes from no browser that we can trust with a session.
    """
    found = {name: value for name, value in headers if name in _READ}
    site, origin = found.get(b"sec-fetch-site"), found.get(b"origin")
    is_reading = method in READING
    if site is not None and site not in (_OF_THIS_SERVER if is_reading else {b"same-origin"}):
        if is_reading and _is_a_link(method, found):
            return
        raise Forbidden(
            f"The request comes from a page of another site (Sec-Fetch-Site: {_quote(site)}), and what you sign in to"
            " is changed by ondot's own pages only. Open ondot itself, or send an API key."
        )
    if origin is not None and origin.lower() not in _own_origins(found.get(b"host", b"").lower(), public_url):
        expected = public_url or "http://127.0.0.1, with its port"
        raise Forbidden(
            f"The request comes from a page of {_quote(origin)}, and people open ondot at {expected}. Open it there;"
            " or, if that address is wrong, set ONDOT_PUBLIC_URL to the right one."
        )
    if not is_reading and origin is None and site is None:
        raise Forbidden(
            "The request does not state which page sent it (Origin). Outside of a browser, send an API key."
        )


@lru_cache(maxsize=HOSTS_KEPT)
def _own_origins(host: bytes, public_url: str | None) -> frozenset[bytes]:
    """Over plain http only this machine: elsewhere a browser keeps no session."""
    own = {b"http://" + _without_port_80(host)} if _is_local(host) else set()
    if public_url is not None:
        parts = urlsplit(public_url)
        default = {"http": 80, "https": 443}[parts.scheme]
        host_and_port = parts.netloc.removesuffix(f":{default}")
        own.add(f"{parts.scheme}://{host_and_port}".encode())
    return frozenset(own)


def _is_a_link(method: str, found: dict[bytes, bytes]) -> bool:
    """A person follows a link to a page: only the person sees the page, the linking site does not."""
    return method == "GET" and (found.get(b"sec-fetch-mode"), found.get(b"sec-fetch-dest")) == (
        b"navigate",
        b"document",
    )


@lru_cache(maxsize=HOSTS_KEPT)
def _well_formed(host: bytes) -> bool:
    match = _HOST.fullmatch(host)
    return match is not None and int(match[2] or 0) <= 65535


@lru_cache(maxsize=HOSTS_KEPT)
def _is_local(host: bytes) -> bool:
    match = _HOST.fullmatch(host)
    return match is not None and (match[1] in _LOCAL or match[1].endswith(b".localhost"))


def _without_port_80(written: bytes) -> bytes:
    return written.removesuffix(b":80").removesuffix(b":")


def _quote(value: bytes) -> str:
    """A value of the request, short and harmless: responses and pages show it."""
    return repr(value[:100].decode("ascii", "backslashreplace"))
