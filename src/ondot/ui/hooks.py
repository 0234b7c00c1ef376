"""`/hooks`: a tenant's hooks without their tokens (S11). Its buttons call `/v1/hooks`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import quote

from ondot.model.errors import NotFound
from ondot.model.hook import Signature
from ondot.model.ids import TenantNo
from ondot.store.database import Database
from ondot.store.hooks import HookRow, list_hooks

ROWS: Final = 100
LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class HooksView:
    now: datetime
    rows: tuple[HookRow, ...]
    signatures: tuple[str, ...]
    more: str | None
    """The address of the next page."""


async def read_hooks(database: Database, tenant_no: TenantNo, parameters: Mapping[str, str]) -> HooksView:
    after = parameters.get("after", "")
    if len(after) > LONGEST or "\0" in after:
        raise NotFound("There is no such page of hooks.")
    async with database.connection() as connection:
        rows = await list_hooks(connection, tenant_no, after=after, limit=ROWS + 1)
    more = f"/hooks?after={quote(rows[ROWS - 1].name, safe='')}" if len(rows) > ROWS else None
    return HooksView(database.clock.now(), tuple(rows[:ROWS]), tuple(Signature), more)
