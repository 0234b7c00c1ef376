"""What the browser keeps while its user is at the OpenID provider (T1): one cookie for each attempt.

Several tabs may sign in at the same time, so an attempt has a cookie of its own, named after its `state`. The cookie
has the prefix `__Host-`: no other host, not even a subdomain, can set it. So its content needs no signature, and no
process has to remember anything. It ends with the attempt, or after ten minutes.
"""

import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping
from typing import Final

import msgspec

PREFIX: Final = "__Host-ondot-oidc-"
LASTS_S: Final = 600
MAX_ATTEMPTS: Final = 6
"""Cookies of abandoned attempts are removed when there are more: a request's headers are limited."""


class Attempt(msgspec.Struct, frozen=True):
    state: str
    nonce: str
    verifier: str
    next: str
    tenant: str
    started_s: int

    @property
    def cookie(self) -> str:
        return cookie_of(self.state)

    @property
    def challenge(self) -> str:
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def write(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).rstrip(b"=").decode()


def new_attempt(next_path: str, tenant: str, now_s: float) -> Attempt:
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    return Attempt(state, nonce, verifier, next_path, tenant, int(now_s))


def cookie_of(state: str) -> str:
    return PREFIX + hashlib.sha256(state.encode()).hexdigest()[:16]


def find_attempt(state: str, cookies: Mapping[str, str], now_s: float) -> Attempt | None:
    """The attempt that this browser started with this `state`; None if there is none, or it took too long."""
    attempt = _read(cookies.get(cookie_of(state), ""))
    if attempt is None or not secrets.compare_digest(attempt.state.encode(), state.encode()):
        return None
    return attempt if abs(now_s - attempt.started_s) <= LASTS_S else None


def abandoned(cookies: Mapping[str, str]) -> list[str]:
    """The names of the oldest attempts' cookies, if there are too many."""
    names = [name for name in cookies if name.startswith(PREFIX)]
    started = {name: attempt.started_s if (attempt := _read(cookies[name])) else 0 for name in names}
    return sorted(names, key=lambda name: started[name])[: max(len(names) - MAX_ATTEMPTS + 1, 0)]


def _read(text: str) -> Attempt | None:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=Attempt)
    except (msgspec.MsgspecError, binascii.Error, ValueError):
        return None
