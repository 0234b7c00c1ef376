"""Create, change, invite and delete users (T1, T7), each in one transaction with its record in the audit log.

Nobody grants more than they have, and nobody changes a user who has more. Owners belong to the first tenant, and the
last active one stays.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from ondot.model.access import Caller, Role
from ondot.model.errors import Conflict, Fault, Forbidden, InvalidBody, NotFound
from ondot.model.ids import DEFAULT_TENANT
from ondot.store.audit import By, record_change
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.sessions import end_sessions
from ondot.store.users import (
    NewUser,
    UserRow,
    UserState,
    add_user,
    change_user,
    delete_user,
    get_user,
    invite_user,
    lock_owners,
    lock_user,
    new_invitation,
)


@dataclass(frozen=True, slots=True)
class Invitation:
    """Shown once: only its hash is stored."""

    token: str
    expires_at: datetime

    def url(self, base_url: str) -> str:
        return f"{base_url}/invitation?token={self.token}"


@dataclass(frozen=True, slots=True)
class Changes:
    """None: as it is."""

    name: str | None = None
    role: Role | None = None
    state: UserState | None = None


async def create(
    database: Database, caller: Caller, by: By, *, email: str, name: str, role: Role, password: str | None = None
) -> tuple[UserRow, Invitation | None]:
    """Add a user to the caller's tenant. Without a password (its hash), with an invitation to set one."""
    _check_role(caller, role)
    token = None if password else new_invitation()
    user = NewUser(database.clock.new_id(), caller.tenant_no, email, name, role, by.actor, password, token)
    async with database.transaction() as connection:
        if not await add_user(connection, user):
            raise Conflict(f"There is a user {email} already. Change it, or reset its password.")
        detail = {"email": email, "role": role.value}
        await record_change(connection, caller.tenant_no, by, "user.create", user.id, detail)
        row = await get_user(connection, caller.tenant_no, user.id)
    assert row is not None
    if token is None or row.invited_until is None:
        return row, None
    return row, Invitation(token, row.invited_until)


async def change(database: Database, caller: Caller, by: By, id_: UUID, changes: Changes) -> UserRow:
    async with database.transaction() as connection:
        before = await _lock(connection, caller, id_, keeps_owner=_keeps_owner(changes))
        if changes.role is not None and changes.role is not before.role:
            _check_role(caller, changes.role)
        after = await change_user(
            connection,
            caller.tenant_no,
            id_,
            name=changes.name or before.name,
            role=changes.role or before.role,
            state=changes.state or before.state,
        )
        assert after is not None
        if not after.is_active:
            await end_sessions(connection, caller.tenant_no, id_)
        if detail := _difference(before, after):
            await record_change(connection, caller.tenant_no, by, "user.change", id_, detail)
    return after


async def reset(database: Database, caller: Caller, by: By, id_: UUID) -> tuple[UserRow, Invitation]:
    """The password and the binding to the provider end, and so do all sessions; a new invitation is the way in."""
    token = new_invitation()
    async with database.transaction() as connection:
        user = await _lock(connection, caller, id_, keeps_owner=True)
        if not user.is_active:
            raise Conflict(f"{user.email} is disabled. Enable the user first.")
        until = await invite_user(connection, caller.tenant_no, id_, token)
        assert until is not None
        await end_sessions(connection, caller.tenant_no, id_)
        await record_change(connection, caller.tenant_no, by, "user.reset", id_, {"email": user.email})
    return user, Invitation(token, until)


async def delete(database: Database, caller: Caller, by: By, id_: UUID) -> UserRow:
    async with database.transaction() as connection:
        user = await _lock(connection, caller, id_, keeps_owner=False)
        await delete_user(connection, caller.tenant_no, id_)
        detail = {"email": user.email, "role": user.role.value}
        await record_change(connection, caller.tenant_no, by, "user.delete", id_, detail)
    return user


async def _lock(connection: Connection, caller: Caller, id_: UUID, *, keeps_owner: bool) -> UserRow:
    """The user, locked, if the caller may change it. `keeps_owner`: an owner stays an active one."""
    # Owners first, by id, in every transaction: two that remove each other wait for each other, in one order.
    owners = await lock_owners(connection) if caller.tenant_no == DEFAULT_TENANT and not keeps_owner else []
    user = await lock_user(connection, caller.tenant_no, id_)
    if user is None:
        raise NotFound(f"There is no user {id_}.")
    if not caller.may_grant(user.role):
        raise Forbidden(f"{user.email} is {_a(user.role)}, who has more rights than you. Ask {_a(user.role)}.")
    if owners == [id_]:
        raise Conflict(f"{user.email} is the last owner. Make another user an owner first.")
    return user


def _check_role(caller: Caller, role: Role) -> None:
    if role is Role.WORKER:
        raise _invalid_role("The role 'worker' is for keys. Use viewer, operator, editor, admin or owner.")
    if role is Role.OWNER and caller.tenant_no != DEFAULT_TENANT:
        raise _invalid_role("Owners belong to the first tenant. Use viewer, operator, editor or admin.")
    if not caller.may_grant(role):
        raise Forbidden(f"You cannot make {_a(role)}: you do not have all rights of that role. Ask {_a(role)}.")


def _invalid_role(message: str) -> InvalidBody:
    return InvalidBody(message, (Fault("/role", message),))


def _keeps_owner(changes: Changes) -> bool:
    return changes.role in {None, Role.OWNER} and changes.state in {None, UserState.ACTIVE}


def _difference(before: UserRow, after: UserRow) -> dict[str, dict[str, str]]:
    return {
        name: {"before": str(getattr(before, name)), "after": str(getattr(after, name))}
        for name in ("name", "role", "state")
        if getattr(before, name) != getattr(after, name)
    }


def _a(role: Role) -> str:
    return f"{'an' if role.value[0] in 'aeiou' else 'a'} {role.value}"
