"""The page of a tenant's users (T7), for those who manage them. Its buttons call `/v1/users`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from ondot.model.access import Role
from ondot.model.errors import NotFound
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.store.database import Database
from ondot.store.users import UserRow, list_users

ROWS: Final = 100
ROLES: Final = (Role.VIEWER, Role.OPERATOR, Role.EDITOR, Role.ADMIN, Role.OWNER)


@dataclass(frozen=True, slots=True)
class UsersView:
    now: datetime
    rows: tuple[UserRow, ...]
    roles: tuple[str, ...]
    """That a user of this tenant may have."""
    more: str | None
    """The address of the next page."""


async def read_users(database: Database, tenant_no: TenantNo, parameters: Mapping[str, str]) -> UsersView:
    try:
        after = UUID(parameters["after"]) if parameters.get("after") else None
    except ValueError:
        raise NotFound("There is no such page of users.") from None
    async with database.connection() as connection:
        rows = await list_users(connection, tenant_no, after=after, limit=ROWS + 1)
    roles = tuple(role.value for role in ROLES if role is not Role.OWNER or tenant_no == DEFAULT_TENANT)
    more = f"/users?after={rows[ROWS - 1].id}" if len(rows) > ROWS else None
    return UsersView(database.clock.now(), tuple(rows[:ROWS]), roles, more)
