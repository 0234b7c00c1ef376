"""Headers of HTTP calls: those that a job may not set, because ondot or the connection sets them (E11, T3), and those
that carry credentials, which no output shows (T5).

Names are compared as a receiver may see them. CGI, WSGI and some proxies replace every character that is not a letter
or a digit by `_`, so they read `webhook_id` and `webhook.id` as the `webhook-id` that they trust. All such
characters are replaced by `-` before the comparison.
"""

import re
from functools import lru_cache
from typing import Final

_NOT_ALPHANUMERIC: Final = re.compile("[^0-9a-z]")

_OF_ONDOT: Final = frozenset({"traceparent", "tracestate"})
_OF_ONDOT_PREFIXES: Final = ("webhook-", "ondot-")

_OF_THE_CONNECTION: Final = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "te",
        "trailer",
        "trailers",
        "transfer-encoding",
        "upgrade",
    }
)
_OF_THE_CONNECTION_PREFIXES: Final = ("proxy-",)

SENSITIVE_SUFFIXES: Final = (
    "-access-key",
    "-api-key",
    "-apikey",
    "-auth",
    "-authentication",
    "-authorization",
    "-cookie",
    "-credential",
    "-credentials",
    "-functions-key",
    "-password",
    "-secret",
    "-secret-key",
    "-subscription-key",
    "-token",
    "-webhook-signature",
)
"""Ends of the names of headers with credentials, with a `-` before the whole name."""


@lru_cache(maxsize=4096)
def is_sensitive(name: str) -> bool:
    """Whether a header is known to carry credentials: `Authorization`, `Cookie`, `X-Api-Key`, `…-Token`."""
    folded = _NOT_ALPHANUMERIC.sub("-", name.lower())
    return f"-{folded}".endswith(SENSITIVE_SUFFIXES)


@lru_cache(maxsize=4096)
def why_reserved(name: str) -> str | None:
    """Why a job may not set this header, as a sentence that states what to do; None if it may."""
    folded = _NOT_ALPHANUMERIC.sub("-", name.lower())
    if folded in _OF_ONDOT or folded.startswith(_OF_ONDOT_PREFIXES):
        return f"ondot sets the header {name} itself, so that receivers can trust it: leave it out."
    if folded in _OF_THE_CONNECTION or folded.startswith(_OF_THE_CONNECTION_PREFIXES):
        return f"The header {name} belongs to the connection, which ondot manages: leave it out."
    return None
