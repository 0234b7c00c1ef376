"""API keys (T1): create, rotate, revoke. Nobody grants, prolongs or takes away more than they have.

A key is shown once. The stored answer to an Idempotency-Key has it not: a repeated request gets the key's id, and the
advice to rotate it. Rotation makes a new key with the same rights; the old one works until the overlap is over. The
rights of a key never change.
"""

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import UUID

from ondot.document.key_body import KeyBody
from ondot.flow.idempotency import Idempotency, find_response, store_response
from ondot.flow.work import begin
from ondot.model.access import Caller, Right, Role, rights_of
from ondot.model.errors import Conflict, Fault, Forbidden, InvalidBody, NotFound
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.keys import new_key
from ondot.store.audit import By, record_change
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.keys import KeyRow, KeyState, add_key, get_key, lock_key, lock_owner_keys, replace_key, revoke_key

DEFAULT_OVERLAP_S: Final = 24 * 3600.0

Render = Callable[[KeyRow, str | None], str]
"""The answer for a key; its secret is None in the answer that is stored."""


@dataclass(frozen=True, slots=True)
class WantedKey:
    """`scopes` and `pools` None: all of the role, and all that the tenant may name."""

    name: str
    role: Role
    scopes: frozenset[Right] | None = None
    pools: frozenset[str] | None = None
    expires_in_s: float | None = None


def wanted_key(body: KeyBody) -> WantedKey:
    return WantedKey(
        body.name,
        body.role,
        None if body.scopes is None else frozenset(body.scopes),
        None if body.pools is None else frozenset(body.pools),
        body.expires_in,
    )


async def create_key(
    database: Database,
    caller: Caller,
    wanted: WantedKey,
    *,
    render: Render,
    idempotency: Idempotency | None = None,
    by: By,
) -> str:
    """Returns the answer, with the key in it; for a repeated Idempotency-Key the stored one, without."""
    _check_scopes(wanted)
    _check_grant(caller, wanted.role, wanted.scopes, wanted.pools)
    if wanted.role is Role.OWNER and caller.tenant_no != DEFAULT_TENANT:
        raise _invalid("role", "An owner belongs to the installation, so its key belongs to the first tenant.")
    await _check_pools(database, caller.tenant_no, wanted.pools)
    async with begin(database, caller.tenant_no) as work:
        if (stored := await find_response(work, idempotency)) is not None:
            return stored
        id_ = database.clock.new_id()
        key = new_key(id_)
        row = await add_key(
            work.connection,
            id_,
            caller.tenant_no,
            wanted.name,
            key,
            role=wanted.role,
            scopes=wanted.scopes,
            pools=wanted.pools,
            expires_in_s=wanted.expires_in_s,
            created_by=by.actor,
        )
        await _check_life(work.connection, caller, row)
        await record_change(work.connection, caller.tenant_no, by, "key.create", id_, _recorded(row))
        await store_response(work, idempotency, render(row, None))
    return render(row, key)


async def rotate_key(
    database: Database,
    caller: Caller,
    id_: UUID,
    *,
    overlap_s: float = DEFAULT_OVERLAP_S,
    render: Render,
    idempotency: Idempotency | None = None,
    by: By,
) -> str:
    """A new key with the rights of an old one, which works until the overlap is over. A key that expires is followed by
    one that lives as long again."""
    async with begin(database, caller.tenant_no) as work:
        if (stored := await find_response(work, idempotency)) is not None:
            return stored
        old = await _lock(work.connection, caller, id_)
        if old.replaced_by is not None:
            raise Conflict(f"The key {id_} was rotated already: rotate its successor {old.replaced_by}.")
        if old.state is not KeyState.ACTIVE:
            raise Conflict(f"The key {id_} is {old.state.lower()}: create a new one with POST /v1/keys.")
        lived_s = None if old.expires_at is None else (old.expires_at - old.created_at).total_seconds()
        new_id = database.clock.new_id()
        key = new_key(new_id)
        row = await add_key(
            work.connection,
            new_id,
            caller.tenant_no,
            old.name,
            key,
            role=old.role,
            scopes=old.scopes,
            pools=old.pools,
            expires_in_s=lived_s,
            created_by=by.actor,
        )
        await _check_life(work.connection, caller, row)
        await replace_key(work.connection, caller.tenant_no, id_, new_id, overlap_s)
        changes = {"name": old.name, "new_key": str(new_id), "overlap_s": overlap_s}
        await record_change(work.connection, caller.tenant_no, by, "key.rotate", id_, changes)
        await store_response(work, idempotency, render(row, None))
    return render(row, key)


async def revoke(database: Database, caller: Caller, id_: UUID, *, force: bool = False, by: By) -> KeyRow:
    """Revoke a key; one that is revoked stays so. `force`: also the last key of an owner."""
    async with begin(database, caller.tenant_no) as work:
        if not force:
            owners = await lock_owner_keys(work.connection, caller.tenant_no)
            if owners == [id_]:
                raise Conflict(
                    "This is the last key of an owner. Create another one first, or send ?force=true; after that, only"
                    " `ondot key create --role owner` with access to the database makes an owner again."
                )
        row = await _lock(work.connection, caller, id_)
        if row.revoked_at is None:
            await revoke_key(work.connection, caller.tenant_no, id_)
            await record_change(work.connection, caller.tenant_no, by, "key.revoke", id_, {"name": row.name})
        return await _lock(work.connection, caller, id_)


async def _lock(connection: Connection, caller: Caller, id_: UUID) -> KeyRow:
    row = await lock_key(connection, caller.tenant_no, id_)
    if row is None:
        raise NotFound(f"There is no key {id_}.")
    _check_grant(caller, row.role, row.scopes, row.pools)
    return row


def _check_grant(
    caller: Caller,
    role: Role,
    scopes: Collection[Right] | None,
    pools: Collection[str] | None,
) -> None:
    if caller.may_grant(role, scopes, pools):
        return
    lacking = sorted(rights_of(role, scopes) - caller.rights - {Right.WORK})
    if role is Role.OWNER and not caller.is_owner:
        why = "Only an owner manages the keys of owners; with access to the database, `ondot key create --role owner`."
    elif lacking:
        why = f"You have not: {', '.join(lacking)}. Choose a smaller role, or list fewer scopes."
    else:
        why = f"Your key is limited to the pools {', '.join(sorted(caller.pools or ()))}: name only these."
    raise Forbidden(f"Nobody grants or changes a key with more than they have. {why}")


async def _check_life(connection: Connection, caller: Caller, new: KeyRow) -> None:
    """A key that expires makes none that outlives it, else it would never end: also not one that was rotated because
    it leaked, during its overlap. Read here, because a cached caller may be half a second old."""
    if caller.key_id is None:
        return
    own = await get_key(connection, caller.home_tenant_no or caller.tenant_no, caller.key_id)
    ends_at = None if own is None else own.expires_at
    if ends_at is not None and (new.expires_at is None or new.expires_at > ends_at):
        raise Forbidden(
            f"Nobody grants more than they have, and your own key expires at {ends_at:%Y-%m-%dT%H:%M:%SZ}: the new one"
            " would outlive it. Choose a shorter `expires_in`, or use a key that lives longer."
        )


def _check_scopes(wanted: WantedKey) -> None:
    if wanted.scopes is None:
        return
    extra = sorted(wanted.scopes - rights_of(wanted.role, frozenset(Right)))
    if extra:
        raise _invalid("scopes", f"The role {wanted.role.value!r} has not: {', '.join(extra)}. Leave them out.")


async def _check_pools(database: Database, tenant_no: TenantNo, pools: frozenset[str] | None) -> None:
    tenant = await database.tenants.get(tenant_no)
    refused = tenant.refused_pools(pools) if pools and tenant is not None else []
    if refused:
        raise _invalid("pools", f"Unknown pool {refused[0]!r}.")


def _invalid(field: str, message: str) -> InvalidBody:
    return InvalidBody(message, faults=(Fault(f"/{field}", message),))


def describe_key(row: KeyRow) -> dict[str, Any]:
    """A key for people and programs, without its secret."""
    return {name: value for name, value in asdict(row).items() if name != "tenant_no"}


def _recorded(row: KeyRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "role": row.role.value,
        "scopes": None if row.scopes is None else [scope.value for scope in row.scopes],
        "pools": None if row.pools is None else list(row.pools),
        "expires_at": None if row.expires_at is None else row.expires_at.isoformat(),
    }
