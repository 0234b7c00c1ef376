"""Hooks (S11): URLs with a secret token that turn plain webhooks into events.

A token is shown once, and stored as a hash; a signing secret is sealed in the vault. A rotation replaces one of them,
and the one before works until the overlap is over. A wrong token, a deleted hook and text that is no token get the same
answer. A request whose signature does not match, or was signed more than 5 minutes ago, starts nothing.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

from ondot.document.hooks import HookBody, RotateHookBody
from ondot.flow.idempotency import Idempotency, find_response, store_response
from ondot.flow.vault import Vault
from ondot.flow.work import begin
from ondot.model.errors import Conflict, Fault, InvalidBody, NotFound, Unauthorized
from ondot.model.hook import (
    ISSUED_BY_SENDER,
    Signature,
    find_forgery,
    hash_token,
    identify,
    is_token,
    new_signing_secret,
    new_token,
    why_bad_secret,
)
from ondot.model.ids import TenantNo
from ondot.store.audit import By, record_change
from ondot.store.database import Database
from ondot.store.hooks import (
    FoundHook,
    HookRow,
    Sealed,
    add_hook,
    count_hooks,
    delete_hook,
    find_hooks,
    lock_hook,
    record_hook_use,
    rotate_hook,
)
from ondot.store.lookup import Lookup

LONGEST_CHALLENGE: Final = 1_000
MOST: Final = 1_000
"""Hooks of a tenant."""
_PLACE: Final = "hook"


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown once: None in the stored answer of an Idempotency-Key."""

    token: str | None = None
    secret: str | None = None


Render = Callable[[HookRow, Shown | None], str]


class Hooks:
    """The hooks of an installation, as one process knows them."""

    def __init__(self, database: Database, vault: Vault) -> None:
        self._database = database
        self._vault = vault
        self._lookup: Lookup[bytes, FoundHook] = Lookup(
            database, find_hooks, bytes, name="hooks", valid_s=lambda found: found.left_s or math.inf
        )

    async def create(
        self, tenant_no: TenantNo, body: HookBody, *, render: Render, idempotency: Idempotency | None, by: By
    ) -> str:
        """Returns the answer with the token; for a repeated Idempotency-Key the stored one, without."""
        secret, is_ours = _signing_secret(body.signature, body.secret)
        id_ = self._database.clock.new_id()
        sealed = None if secret is None else await self._seal(tenant_no, id_, secret)
        token = new_token()
        async with begin(self._database, tenant_no) as work:
            if (stored := await find_response(work, idempotency)) is not None:
                return stored
            if await count_hooks(work.connection, tenant_no) >= MOST:
                raise Conflict(f"There are {MOST:,} hooks, which is the limit: delete those that nothing uses.")
            row = await add_hook(
                work.connection,
                id_,
                tenant_no,
                body.name,
                event_type=body.type,
                source=body.source or f"/hooks/{quote(body.name, safe='-._~')}",
                signature=body.signature,
                header=body.header,
                hash_=hash_token(token),
                sealed=sealed,
                created_by=by.actor,
            )
            if row is None:
                raise Conflict(f"There is a hook {body.name!r} already. Choose another name, or rotate its token.")
            detail = {"name": row.name, "type": row.type, "source": row.source, "signature": row.signature.value}
            await record_change(work.connection, tenant_no, by, "hook.create", id_, detail)
            await store_response(work, idempotency, render(row, None))
        return render(row, Shown(token, secret if is_ours else None))

    async def rotate(
        self,
        tenant_no: TenantNo,
        id_: UUID,
        body: RotateHookBody,
        *,
        render: Render,
        idempotency: Idempotency | None,
        by: By,
    ) -> str:
        """A new token; or, with a secret, a new signing secret."""
        sealed = None if body.secret is None else await self._seal(tenant_no, id_, body.secret)
        token = new_token() if sealed is None else None
        async with begin(self._database, tenant_no) as work:
            if (stored := await find_response(work, idempotency)) is not None:
                return stored
            before = await lock_hook(work.connection, tenant_no, id_)
            if before is None:
                raise unknown_hook(id_)
            if body.secret is not None:
                if before.signature is Signature.NONE:
                    raise _invalid("secret", "This hook checks no signature, so it has no signing secret.")
                if (why := why_bad_secret(before.signature, body.secret)) is not None:
                    raise _invalid("secret", f"The signing secret does not fit: {why}.")
            row = await rotate_hook(
                work.connection,
                tenant_no,
                id_,
                hash_=None if token is None else hash_token(token),
                sealed=sealed,
                overlap_s=body.overlap,
            )
            detail = {"name": row.name, "what": "token" if token else "secret", "overlap_s": body.overlap}
            await record_change(work.connection, tenant_no, by, "hook.rotate", id_, detail)
            await store_response(work, idempotency, render(row, None))
        self._lookup.clear()
        return render(row, Shown(token))

    async def delete(self, tenant_no: TenantNo, id_: UUID, *, by: By) -> HookRow:
        """Its token is refused: here at once, by other processes within half a second."""
        async with begin(self._database, tenant_no) as work:
            row = await delete_hook(work.connection, tenant_no, id_)
            if row is None:
                raise unknown_hook(id_)
            await record_change(work.connection, tenant_no, by, "hook.delete", id_, {"name": row.name})
        self._lookup.clear()
        return row

    async def find(self, token: str) -> HookRow | None:
        """The hook of a token. Text that is no token costs no statement."""
        if not is_token(token):
            return None
        found = await self._lookup.get(hash_token(token))
        return None if found is None else found.row

    async def verify(self, hook: HookRow, headers: Mapping[str, str], body: bytes) -> None:
        """Raises Unauthorized unless the request is signed as the hook demands. `headers`: by lower-case name."""
        keys = []
        for sealed in (hook.sealed, hook.sealed_before):
            if sealed is not None:
                data_key = await self._vault.key(hook.tenant_no, sealed.key_no)
                keys.append(data_key.open(sealed.content, _PLACE, hook.id))
        now_s = self._database.clock.now().timestamp()
        why = find_forgery(hook.signature, hook.header, keys, headers, body, now_s)
        if why is not None:
            raise Unauthorized(why)

    async def record_use(self, hook: HookRow) -> None:
        """Write that a hook was used, at most once a minute."""
        now = self._database.clock.now()
        if hook.last_used_at is None or (now - hook.last_used_at).total_seconds() > 60:
            async with self._database.connection() as connection:
                await record_hook_use(connection, hook.tenant_no, hook.id)

    async def _seal(self, tenant_no: TenantNo, id_: UUID, secret: str) -> Sealed:
        data_key = await self._vault.writing_key(tenant_no)
        return Sealed(data_key.number, data_key.seal(secret, _PLACE, id_))


def event_of(hook: HookRow, id_: str, headers: Mapping[str, str], data: Any) -> dict[str, Any]:
    """The webhook as a CloudEvent. `headers`: by lower-case name."""
    event = {"specversion": "1.0", "id": id_, "type": hook.type, "source": hook.source, "data": data}
    if hook.signature is Signature.GITHUB and (kind := headers.get("x-github-event", "")):
        event["githubevent"] = kind[:200]
    return event


def event_id(hook: HookRow, headers: Mapping[str, str], body: bytes, new_id: UUID) -> str:
    """By what was signed. Where nothing is, by the id that the sender gives, or a new one."""
    found = identify(hook.signature, hook.id, headers, body)
    if found is None:
        given = headers.get("webhook-id") or headers.get("idempotency-key")
        found = None if given is None else identify(Signature.STANDARD, hook.id, {"webhook-id": given}, body)
    return found or new_id.hex


def slack_challenge(hook: HookRow, data: Any) -> str | None:
    """What Slack wants back when its address is set; None: it is an event."""
    if hook.signature is not Signature.SLACK or not isinstance(data, dict) or data.get("type") != "url_verification":
        return None
    challenge = data.get("challenge")
    return challenge[:LONGEST_CHALLENGE] if isinstance(challenge, str) else None


def unknown_hook(id_: UUID) -> NotFound:
    return NotFound(f"There is no hook {id_}.")


def _signing_secret(signature: Signature, given: str | None) -> tuple[str | None, bool]:
    """The signing secret, and whether it was made here and must be shown."""
    if signature is Signature.NONE:
        if given is not None:
            raise _invalid("secret", "A signing secret needs a `signature`: github, stripe, slack, standard or hmac.")
        return None, False
    if given is None:
        if signature in ISSUED_BY_SENDER:
            name = signature.value.capitalize()
            raise _invalid("secret", f"{name} chooses the signing secret: copy it from its settings as `secret`.")
        return new_signing_secret(signature), True
    if (why := why_bad_secret(signature, given)) is not None:
        raise _invalid("secret", f"The signing secret does not fit: {why}.")
    return given, False


def _invalid(field: str, message: str) -> InvalidBody:
    return InvalidBody(message, faults=(Fault(f"/{field}", message),))
