"""Which caller the cookie of a browser stands for (T1). A change of role, a sign-out, a disabled user and a suspended
tenant hold within a second, in every process: sessions are looked up again after half a second."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.lookup import Lookup
from ondot.store.sessions import Session, find_sessions
from ondot.store.users import hash_secret

COOKIE: Final = "__Host-ondot"
_BEARER: Final = b"bearer "
_FORM: Final = re.compile(r"[A-Za-z0-9_-]{43}")


class KnownSessions:
    def __init__(self, database: Database) -> None:
        self._idle_s = database.settings.session_idle_s
        self._lookup: Lookup[bytes, Session] = Lookup(database, self._find, bytes, name="sessions")

    async def find(self, cookie: str) -> Session | None:
        """None: signed out, expired, unknown. Text that does not look like a session's cookie costs no statement."""
        return await self._lookup.get(hash_secret(cookie)) if _FORM.fullmatch(cookie) else None

    def forget(self, cookie: str) -> None:
        self._lookup.forget(hash_secret(cookie))

    async def _find(self, connection: Connection, hashes: Sequence[bytes]) -> Mapping[bytes, Session]:
        return await find_sessions(connection, hashes, self._idle_s)


def session_cookie(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """The cookie of the session that a request uses. A request with a key uses none, whatever cookies it has: the guard
    and the authentication must agree on that, so both ask here."""
    has_cookie = False
    for name, value in headers:
        if name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
            return None
        has_cookie = has_cookie or name == b"cookie"
    return read_cookies(headers).get(COOKIE) if has_cookie else None


def read_cookies(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """All cookies of a request. Of two with the same name the first counts, as browsers send the closest first."""
    found: dict[str, str] = {}
    for name, value in headers:
        if name == b"cookie":
            for part in value.decode("latin-1").split(";"):
                key, separator, text = part.strip().partition("=")
                if separator:
                    found.setdefault(key, text)
    return found


def write_cookie(name: str, value: str, lasts_s: int) -> str:
    """The `Set-Cookie` header. Without `Domain`, only this host gets it; `Lax`: links from other sites still work.
    `lasts_s` 0 removes it."""
    return f"{name}={value}; Path=/; Max-Age={lasts_s}; HttpOnly; Secure; SameSite=Lax"
