"""Users (T1, T7): people who sign in to the pages. A user belongs to one tenant; owners belong to the first.

An e-mail address may be a user of several tenants, each with a password of its own: no tenant learns from a refused
address that another one has it. Only hashes of passwords and invitations are stored.
"""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from ondot.model.access import Role
from ondot.model.ids import TenantNo
from ondot.store.connection import TAKEN, Connection, Record
from ondot.store.newest import NO_ID
from ondot.store.queries import load_queries

_SQL = load_queries("users")

INVITED_S: Final = 7 * 24 * 3600.0


class UserState(StrEnum):
    ACTIVE = "ACTIVE"
    DISABLED = "DISABLED"


@dataclass(frozen=True, slots=True)
class UserRow:
    id: UUID
    tenant_no: TenantNo
    email: str
    name: str
    role: Role
    state: UserState
    has_password: bool
    subject: str | None
    """The OpenID provider's id of the person; None: they have not signed in through it."""
    invited_until: datetime | None
    known_network: str | None
    created_at: datetime
    last_sign_in_at: datetime | None

    @property
    def is_active(self) -> bool:
        return self.state is UserState.ACTIVE


@dataclass(frozen=True, slots=True)
class NewUser:
    id: UUID
    tenant_no: TenantNo
    email: str
    name: str
    role: Role
    created_by: str
    password: str | None = None
    """The hash."""
    invitation: str | None = None


def new_invitation() -> str:
    return secrets.token_urlsafe(32)


async def add_user(connection: Connection, user: NewUser) -> bool:
    """False: the tenant has a user with this address."""
    invitation = hash_secret(user.invitation) if user.invitation else None
    try:
        async with connection.transaction():
            await connection.execute(
                _SQL["add_user"].text,
                user.id,
                user.tenant_no,
                user.email,
                user.name,
                user.role.value,
                user.password,
                invitation,
                INVITED_S if invitation else None,
                user.created_by,
            )
    except TAKEN:
        return False
    return True


async def list_users(
    connection: Connection, tenant_no: TenantNo, *, after: UUID | None = None, limit: int = 100
) -> list[UserRow]:
    rows = await connection.fetch(_SQL["list_users"].text, tenant_no, after or NO_ID, limit)
    return [_user(row) for row in rows]


async def get_user(connection: Connection, tenant_no: TenantNo, id_: UUID) -> UserRow | None:
    return _optional(await connection.fetchrow(_SQL["get_user"].text, tenant_no, id_))


async def lock_user(connection: Connection, tenant_no: TenantNo, id_: UUID) -> UserRow | None:
    return _optional(await connection.fetchrow(_SQL["lock_user"].text, tenant_no, id_))


async def lock_owners(connection: Connection) -> list[UUID]:
    """The active owners of the installation, locked by id."""
    return [row["id"] for row in await connection.fetch(_SQL["lock_owners"].text)]


async def find_by_email(
    connection: Connection, tenant_no: TenantNo, email: str
) -> tuple[UserRow, str | None] | tuple[None, None]:
    """The user, and the hash of its password."""
    row = await connection.fetchrow(_SQL["find_user_by_email"].text, tenant_no, email)
    return (None, None) if row is None else (_user(row), row["password"])


async def find_by_invitation(connection: Connection, invitation: str) -> UserRow | None:
    return _optional(await connection.fetchrow(_SQL["find_user_by_invitation"].text, hash_secret(invitation)))


async def change_user(
    connection: Connection, tenant_no: TenantNo, id_: UUID, *, name: str, role: Role, state: UserState
) -> UserRow | None:
    row = await connection.fetchrow(_SQL["change_user"].text, tenant_no, id_, name, role.value, state.value)
    return _optional(row)


async def set_password(connection: Connection, tenant_no: TenantNo, id_: UUID, password: str) -> bool:
    """`password`: the hash."""
    return await connection.fetchval(_SQL["set_password"].text, tenant_no, id_, password) is not None


async def accept_invitation(
    connection: Connection, tenant_no: TenantNo, id_: UUID, password: str, invitation: str
) -> bool:
    """False: it was used, replaced or has expired meanwhile."""
    digest = hash_secret(invitation)
    return await connection.fetchval(_SQL["accept_invitation"].text, tenant_no, id_, password, digest) is not None


async def invite_user(connection: Connection, tenant_no: TenantNo, id_: UUID, invitation: str) -> datetime | None:
    """When the invitation expires; None if there is no such user."""
    until: datetime | None = await connection.fetchval(
        _SQL["invite_user"].text, tenant_no, id_, hash_secret(invitation), INVITED_S
    )
    return until


async def bind_subject(connection: Connection, tenant_no: TenantNo, id_: UUID, subject: str) -> bool:
    """False: the user is bound to another person of the provider."""
    return await connection.fetchval(_SQL["bind_subject"].text, tenant_no, id_, subject) is not None


async def note_sign_in(connection: Connection, tenant_no: TenantNo, id_: UUID, network: str) -> None:
    await connection.execute(_SQL["note_sign_in"].text, tenant_no, id_, network)


async def delete_user(connection: Connection, tenant_no: TenantNo, id_: UUID) -> bool:
    """Its sessions go with it."""
    return await connection.fetchval(_SQL["delete_user"].text, tenant_no, id_) is not None


async def read_population(connection: Connection) -> tuple[bool, bool]:
    """Whether there is a user, and whether there is a second tenant."""
    row = await connection.fetchrow(_SQL["has_users"].text)
    assert row is not None
    return row["has_users"], row["has_tenants"]


def hash_secret(secret: str) -> bytes:
    """Of a value with 256 random bits, which a plain hash protects."""
    return hashlib.sha256(secret.encode()).digest()


def _optional(row: Record | None) -> UserRow | None:
    return None if row is None else _user(row)


def _user(row: Record) -> UserRow:
    return UserRow(
        row["id"],
        TenantNo(row["tenant_no"]),
        row["email"],
        row["name"],
        Role(row["role"]),
        UserState(row["state"]),
        row["has_password"],
        row["subject"],
        row["invited_until"],
        row["known_network"],
        row["created_at"],
        row["last_sign_in_at"],
    )
