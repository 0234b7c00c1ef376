"""Who asks (T1): an API key in `Authorization: Bearer …`, or nobody in particular on a person's own machine.

Without keys (`ondot up` on loopback, `ONDOT_AUTH=off`) the browser is the danger: any web page could send requests to
127.0.0.1. So a foreign `Host` (DNS rebinding) or `Origin` (another site's script) is refused.
"""

import time
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from ondot.model.errors import Forbidden, Unauthorized
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.settings import Settings
from ondot.store.database import Database
from ondot.store.keys import find_tenant

REMEMBERED_S = 5.0
"""How long a key that was found is believed without asking again: a revoked one works no longer than this."""

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class Auth:
    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._open = settings.auth == "off"
        self._known: dict[str, tuple[TenantNo, float]] = {}

    async def tenant(self, request: HTTPConnection) -> TenantNo:
        """The tenant on whose behalf a request comes; raises if it may not."""
        if self._open:
            refuse_foreign(request)
            return DEFAULT_TENANT
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise Unauthorized("Send an API key as `Authorization: Bearer ondot_…`; make one with `ondot key create`.")
        known = self._known.get(key)
        if known and time.monotonic() - known[1] < REMEMBERED_S:
            return known[0]
        async with self._database.connection() as connection:
            tenant_no = await find_tenant(connection, key)
        if tenant_no is None:
            self._known.pop(key, None)
            raise Unauthorized("This API key is not known, or was revoked; make one with `ondot key create`.")
        if len(self._known) > 10_000:
            self._known.clear()
        self._known[key] = (tenant_no, time.monotonic())
        return tenant_no


def refuse_foreign(request: HTTPConnection) -> None:
    """Refuse requests that a web page of somebody else may have caused."""
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    if not _is_local(host):
        raise Forbidden(
            f"The Host header names {host!r}: without API keys ondot answers only to localhost. Open it as"
            " http://127.0.0.1, or run it with ONDOT_AUTH=on."
        )
    origin = request.headers.get("origin")
    if origin is not None and not _is_local(urlsplit(origin).hostname or ""):
        raise Forbidden(f"The request comes from a page of {origin}: without API keys other sites' pages are refused.")


def _is_local(host: str) -> bool:
    return host in LOCAL or host.endswith(".localhost")
