"""Who asks (T1): an API key in `Authorization: Bearer …`, or, without keys, the account that runs this server.

Without keys (`ondot up` on loopback, `ONDOT_AUTH=off`) a request is answered if its socket belongs to the account of
this process: the kernel says so. Everybody else (other accounts, root too unless we are root, relays of others, systems
that cannot tell) shows the token of the home, as a key or as the password that a browser asks for. What a web page or a
proxy may have sent is refused before, by `sender`.
"""

import asyncio
import base64
import binascii
import secrets
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import HTTPConnection

from ondot.account.sockets import OwnerUnknown, ask_kernel, our_uid, read_tables
from ondot.api.known_keys import KnownKeys
from ondot.api.peer import Peer, peer_of
from ondot.api.wrong_keys import WrongKeys
from ondot.model.errors import Unauthorized
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.settings import Settings
from ondot.store.database import Database

LOCAL = "local"
"""The name of whoever asks where no key is asked for."""


@dataclass(frozen=True, slots=True)
class Caller:
    tenant_no: TenantNo
    name: str
    """As the audit log has it."""


_LOCAL_CALLER = Caller(DEFAULT_TENANT, LOCAL)


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
        """`token`: of the home, for those whose account is another. `in_process`: the application is called without a
        connection, by tests in the same process."""
        self.is_open = settings.auth == "off"
        self._token = token
        self._token_path = token_path
        self._in_process = in_process
        self._keys = KnownKeys(database)
        self._wrong = WrongKeys()

    async def tenant(self, request: HTTPConnection) -> TenantNo:
        """The tenant on whose behalf a request comes; raises if it may not."""
        return (await self.caller(request)).tenant_no

    async def caller(self, request: HTTPConnection) -> Caller:
        """Who asks; raises if they may not. Costs nothing again within half a second, or on the same connection."""
        peer = peer_of(request.scope)
        caller = await (self._local(request, peer) if self.is_open else self._keyed(request))
        if peer is not None:
            peer.prove()
        return caller

    async def _keyed(self, request: HTTPConnection) -> Caller:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise Unauthorized("Send an API key as `Authorization: Bearer ondot_…`; make one with `ondot key create`.")
        owner = await self._keys.find(key.strip())
        if owner is None:
            self._wrong.note(_address(request))
            raise Unauthorized("This API key is not known, or was revoked; make one with `ondot key create`.")
        return Caller(owner.tenant_no, owner.name)

    async def _local(self, request: HTTPConnection, peer: Peer | None) -> Caller:
        if peer is None:
            if self._in_process:
                return _LOCAL_CALLER
        else:
            if peer.is_our_account is None:
                peer.is_our_account = await _is_our_account(peer)
            if peer.is_our_account:
                return _LOCAL_CALLER
        shown = _shown_secret(request.headers.get("authorization", ""))
        if shown is not None:
            if self._token is not None and secrets.compare_digest(shown.encode(), self._token.encode()):
                return _LOCAL_CALLER
            self._wrong.note(_address(request))
        token_file = {} if self._token is None else {"token_file": str(self._token_path)}
        raise Unauthorized(self._what_to_do(wrong=shown is not None), **token_file)

    @property
    def challenges(self) -> tuple[str, ...]:
        """How to be let in, as the headers of a 401. A browser asks for a password and keeps it for this port alone: a
        cookie would be sent to every port of the machine, also to those of other accounts."""
        return ("Bearer", 'Basic realm="ondot", charset="UTF-8"') if self.is_open and self._token else ("Bearer",)

    def _what_to_do(self, *, wrong: bool) -> str:
        why = (
            "This is not the token of this server."
            if wrong
            else "This server asks for no API key of the account that runs it, and this request is not known to come"
            " from that account."
        )
        if self._token is None:
            return f"{why} Run ondot with ONDOT_AUTH=on and send a key, made by `ondot key create`."
        path = self._token_path
        return (
            f'{why} Send the token in {path} as a key: `curl -H "Authorization: Bearer $(cat {path})" …`, or'
            f" `ONDOT_API_KEY_FILE={path} ondot …`. A browser asks for it as a password, of any user."
        )


async def _is_our_account(peer: Peer) -> bool:
    """By the peer's own socket, which has its address first and ours second."""
    try:
        uid = our_uid()
        try:
            found = ask_kernel(peer.address, peer.ours)
        except OSError:
            # 10 ms where the kernel's table is large: others must not wait for it.
            found = await asyncio.to_thread(read_tables, peer.address, peer.ours)
    except (OwnerUnknown, ValueError):
        return False
    return found is not None and found.belongs_to(uid)


def _shown_secret(authorization: str) -> str | None:
    """What was sent to be let in: as a key, or as the password of a browser's question."""
    scheme, _, shown = authorization.partition(" ")
    shown = shown.strip()
    if scheme.lower() == "bearer" and shown:
        return shown
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(shown, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return ""
    return None


def _address(request: HTTPConnection) -> str:
    return request.client.host if request.client else ""
