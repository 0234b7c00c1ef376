"""`/secrets`: a tenant's secrets without values (T5), for those who manage them. Its buttons call `/v1/secrets`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ondot.model.errors import NotFound
from ondot.model.ids import TenantNo
from ondot.model.secret import is_secret_name
from ondot.store.database import Database
from ondot.store.secrets import SecretRow, list_secrets

ROWS: Final = 100


@dataclass(frozen=True, slots=True)
class SecretsView:
    now: datetime
    rows: tuple[SecretRow, ...]
    more: str | None
    """The address of the next page."""


async def read_secrets(database: Database, tenant_no: TenantNo, parameters: Mapping[str, str]) -> SecretsView:
    after = parameters.get("after", "")
    if after and not is_secret_name(after):
        raise NotFound("There is no such page of secrets.")
    async with database.connection() as connection:
        rows = await list_secrets(connection, tenant_no, after=after, limit=ROWS + 1)
    more = f"/secrets?after={rows[ROWS - 1].name}" if len(rows) > ROWS else None
    return SecretsView(database.clock.now(), tuple(rows[:ROWS]), more)
