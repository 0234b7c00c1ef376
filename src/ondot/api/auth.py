"""Authentication (T1): by an API key in `Authorization: Bearer …`, by the session of a user who signed in to the pages,
or, without keys, by the account that connects.

A request with a key never uses a session: browsers do not send a key by themselves, so such a request is no page's
forgery. `sender` has already refused requests with a session that another site may have sent.

Without keys (`ondot up` on loopback, `ONDOT_AUTH=off`) a request is accepted if the kernel reports that its socket
belongs to the account of this process. Other accounts (also root, unless ondot runs as root), relays, and systems that
cannot look up a socket must send the token of the home directory, as a key or as the password of a browser. `sender`
has already refused requests that a web page or a proxy may have sent. This mode ends with the first user or the second
tenant.
"""

import asyncio
import base64
import binascii
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Final

from starlette.requests import HTTPConnection

from ondot.account.sockets import OwnerUnknown, ask_kernel, our_uid, read_tables
from ondot.api.known_keys import KnownKeys
from ondot.api.peer import Peer, peer_of
from ondot.api.wrong_keys import WrongKeys
from ondot.model.access import LOCAL, Caller
from ondot.model.errors import Forbidden, InvalidRequest, NotFound, Unauthorized
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.tenant import TenantState
from ondot.people.keyless import Keyless
from ondot.people.sessions import KnownSessions, session_cookie
from ondot.settings import Settings
from ondot.store.database import Database
from ondot.store.sessions import Session

TENANT_HEADER: Final = "ondot-tenant"
"""An owner names the tenant that it acts for."""


class Auth:
    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        token: str | None = None,
        token_path: Path | None = None,
        in_process: bool = False,
    ) -> None:
        """`token`: of the home directory, for callers of other accounts. `in_process`: tests call the application in
        their own process, without a connection."""
        self.is_open = settings.auth == "off"
        self._token = token
        self._token_path = token_path
        self._in_process = in_process
        self._keys = KnownKeys(database)
        self._tenants = database.tenants
        self._wrong = WrongKeys()
        self._database = database
        self._keyless = Keyless(database)
        self.sessions = KnownSessions(database)

    async def tenant(self, request: HTTPConnection) -> TenantNo:
        """The tenant of a request; raises if the caller is not authorized."""
        return (await self.caller(request)).tenant_no

    async def caller(self, request: HTTPConnection) -> Caller:
        """The caller of a request; raises if it is not authorized. Another call within half a second, or on the same
        connection, costs nothing."""
        peer = peer_of(request.scope)
        caller = await self._find(request, peer)
        if peer is not None:
            peer.prove()
        # The first tenant is never deleted, and pages that need no database still open for it without one.
        if caller.tenant_no != DEFAULT_TENANT and not await self._is_there(caller.tenant_no):
            raise Unauthorized("The tenant of this key is deleted. Use a key of another tenant.")
        names = request.headers.getlist(TENANT_HEADER)
        return caller if not names else await self._act_for(caller, names)

    async def _act_for(self, caller: Caller, names: list[str]) -> Caller:
        """The caller, on behalf of a tenant; its own stays on record."""
        if not caller.is_owner:
            raise Forbidden(
                f"Only an owner of the installation may send {TENANT_HEADER!r}. Leave it out: a key acts for its own"
                " tenant."
            )
        if len(names) > 1:
            # A proxy may look at one of them, and ondot at another.
            raise InvalidRequest(f"The request has several {TENANT_HEADER!r} headers. Send one.")
        [name] = names
        tenant = await self._tenants.by_name(name)
        if tenant is None:
            raise NotFound(f"There is no tenant {name[:64]!r}. List them with `ondot tenant list`.")
        if tenant.tenant_no == caller.tenant_no:
            return caller
        return replace(caller, tenant_no=tenant.tenant_no, home_tenant_no=caller.tenant_no)

    async def write_uses(self) -> int:
        """One pass: write when keys were last used."""
        return await self._keys.write_uses()

    async def session(self, request: HTTPConnection) -> Session | None:
        """The session of the user who sent the request; None if there is none, or the request has a key."""
        cookie = session_cookie(request.scope["headers"])
        session = None if cookie is None else await self.sessions.find(cookie)
        if session is None or await self._is_there(session.caller.tenant_no):
            return session
        # An owner acted for a tenant that is deleted by now: it is back in its own.
        is_home = session.caller.tenant_no == session.home_tenant_no
        own = replace(session.caller, tenant_no=session.home_tenant_no, home_tenant_no=None)
        return None if is_home else replace(session, caller=own)

    async def _find(self, request: HTTPConnection, peer: Peer | None) -> Caller:
        session = await self.session(request)
        if session is not None:
            return session.caller
        if not self.is_open:
            return await self._find_by_key(request)
        secret = _secret_in(request.headers.get("authorization", ""))
        if not await self._keyless.has_ended():
            # A key counts also where none is required: the first key of a second tenant may come before this process
            # has read that there is one, and must not act for the first.
            caller = None if secret is None or self._is_token(secret) else await self._keys.find(secret)
            return caller or await self._find_local(request, peer)
        if secret is not None and not self._is_token(secret):
            return await self._find_by_key(request)
        raise Unauthorized(
            f"ondot answers without a key only while it has one tenant and no users, and {self._keyless.why_ended} now."
            " In a browser, sign in at /sign-in. Elsewhere, send an API key; create one with `ondot key create`."
        )

    def _is_token(self, secret: str) -> bool:
        return self._token is not None and secrets.compare_digest(secret.encode(), self._token.encode())

    async def _is_there(self, tenant_no: TenantNo) -> bool:
        tenant = await self._database.tenants.get(tenant_no)
        return tenant is not None and tenant.state is not TenantState.DELETED

    async def _find_by_key(self, request: HTTPConnection) -> Caller:
        sent = request.headers.getlist("authorization")
        if len(sent) > 1:
            # A proxy may look at one of them, and ondot at another.
            raise InvalidRequest("The request has several Authorization headers. Send one.")
        scheme, _, key = sent[0].partition(" ") if sent else ("", "", "")
        if scheme.lower() != "bearer" or not key:
            raise Unauthorized("Send an API key as `Authorization: Bearer ondk_…`; create one with `ondot key create`.")
        caller = await self._keys.find(key.strip())
        if caller is None:
            self._wrong.count(_address(request))
            raise Unauthorized("Unknown, expired or revoked API key. Create one with `ondot key create`.")
        return caller

    async def _find_local(self, request: HTTPConnection, peer: Peer | None) -> Caller:
        if peer is None:
            if self._in_process:
                return LOCAL
        else:
            if peer.is_our_account is None:
                peer.is_our_account = await _is_our_account(peer)
            if peer.is_our_account:
                return LOCAL
        secret = _secret_in(request.headers.get("authorization", ""))
        if secret is not None:
            if self._is_token(secret):
                return LOCAL
            self._wrong.count(_address(request))
        token_file = {} if self._token is None else {"token_file": str(self._token_path)}
        raise Unauthorized(self._what_to_do(is_wrong=secret is not None), **token_file)

    @property
    def challenges(self) -> tuple[str, ...]:
        """The `WWW-Authenticate` headers of a 401. A browser asks for a password and sends it to this port only; it
        would send a cookie to every port of the machine, also to servers of other accounts."""
        is_keyless = self.is_open and self._token is not None and self._keyless.why_ended is None
        return ("Bearer", 'Basic realm="ondot", charset="UTF-8"') if is_keyless else ("Bearer",)

    def _what_to_do(self, *, is_wrong: bool) -> str:
        why = (
            "This is not the token of this server."
            if is_wrong
            else "Without an API key this server answers only the account that runs it, and this request is not known"
            " to come from that account."
        )
        if self._token is None:
            return f"{why} Run ondot with ONDOT_AUTH=on and send a key; create one with `ondot key create`."
        path = self._token_path
        return (
            f'{why} Send the token in {path} as a key: `curl -H "Authorization: Bearer $(cat {path})" …`, or'
            f" `ONDOT_API_KEY_FILE={path} ondot …`. In a browser, enter it as the password, with any user name."
        )


async def _is_our_account(peer: Peer) -> bool:
    """Looks up the peer's own socket: its local address is the peer's, its remote address is ours."""
    try:
        uid = our_uid()
        try:
            found = ask_kernel(peer.address, peer.ours)
        except OSError:
            # 10 ms if the kernel's table is large: other requests must not wait for it.
            found = await asyncio.to_thread(read_tables, peer.address, peer.ours)
    except (OwnerUnknown, ValueError):
        return False
    return found is not None and found.belongs_to(uid)


def _secret_in(authorization: str) -> str | None:
    """The key, or the password that a browser sends; None if there is neither."""
    scheme, _, secret = authorization.partition(" ")
    secret = secret.strip()
    if scheme.lower() == "bearer" and secret:
        return secret
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(secret, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return ""
    return None


def _address(request: HTTPConnection) -> str:
    return request.client.host if request.client else ""
