"""`/keys`: a tenant's API keys without their secrets (T1), for those who manage them. Its buttons call `/v1/keys`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from ondot.model.access import Role
from ondot.model.errors import NotFound
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.store.database import Database
from ondot.store.keys import KeyRow, list_keys

ROWS: Final = 100


@dataclass(frozen=True, slots=True)
class KeysView:
    now: datetime
    rows: tuple[KeyRow, ...]
    roles: tuple[str, ...]
    """That a key of this tenant may have."""
    more: str | None
    """The address of the next page."""


async def read_keys(database: Database, tenant_no: TenantNo, parameters: Mapping[str, str]) -> KeysView:
    try:
        before = UUID(parameters["before"]) if parameters.get("before") else None
    except ValueError:
        raise NotFound("There is no such page of keys.") from None
    async with database.connection() as connection:
        rows = await list_keys(connection, tenant_no, before=before, limit=ROWS + 1)
    roles = tuple(role.value for role in Role if role is not Role.OWNER or tenant_no == DEFAULT_TENANT)
    more = f"/keys?before={rows[ROWS - 1].id}" if len(rows) > ROWS else None
    return KeysView(database.clock.now(), tuple(rows[:ROWS]), roles, more)
