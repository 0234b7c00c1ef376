"""The release of tzdata with which stored fires were computed (S4)."""

from dataclasses import dataclass
from uuid import UUID

from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("zones")


@dataclass(frozen=True, slots=True)
class Zones:
    """`version` None: unknown. `through`: the last job that was recomputed for the `coming` release."""

    version: str | None
    coming: str | None = None
    through: UUID | None = None


async def read_zones(connection: Connection) -> Zones:
    row = await connection.fetchrow(_SQL["read_zones"].text)
    assert row is not None
    return Zones(*row.values())


async def set_zones(connection: Connection, zones: Zones) -> None:
    await connection.execute(_SQL["set_zones"].text, zones.version, zones.coming, zones.through)
