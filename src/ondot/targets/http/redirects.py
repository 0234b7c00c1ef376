"""Where a redirect leads, if the job follows redirects (T3).

Each hop is a request of its own through the same checks of its address. A hop to another host gets the facts of the
attempt, and nothing that belongs to the job's own host: no headers of the job, no signature, and no body. So a redirect
that keeps its body (307, 308) is not followed to another host. Another port counts as another host, and so does http
after https.
"""

from dataclasses import dataclass
from typing import Final

from yarl import URL

from ondot.targets.http.answer import Answer

MAX_REDIRECTS: Final = 5

_WITH_BODY: Final = frozenset({307, 308})
_FOLLOWED: Final = frozenset({301, 302, 303}) | _WITH_BODY


class NotFollowed(Exception):
    """Why a redirect is not followed, as the end of a sentence about it."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One request of a call. `is_own_host`: the job names this host, or it was led to from there alone."""

    method: str
    url: URL
    is_own_host: bool = True


def is_redirect(answer: Answer) -> bool:
    return answer.status in _FOLLOWED


def follow(hop: Hop, answer: Answer) -> Hop:
    """The next hop. Raises NotFollowed."""
    location = answer.headers.get("location", "").strip()
    if not location:
        raise NotFollowed("names no address")
    try:
        url = hop.url.join(URL(location)).with_fragment(None)
    except ValueError:
        raise NotFollowed("names an address that cannot be called") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise NotFollowed("names an address that is not http:// or https://")
    if url.user is not None or url.password is not None:
        raise NotFollowed("names an address with a user name or a password")
    is_same_host = url.host == hop.url.host and (url.scheme, url.port) in {
        (hop.url.scheme, hop.url.port),
        ("https", 443 if hop.url.port == 80 else hop.url.port),
    }
    method = hop.method
    if answer.status not in _WITH_BODY and method != "HEAD":
        method = "GET"
    if method not in {"GET", "HEAD"} and not is_same_host:
        raise NotFollowed("would send the job's payload to another host")
    return Hop(method, url, hop.is_own_host and is_same_host)
