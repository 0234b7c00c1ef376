"""The endpoints of ondot itself (T3): where the API's processes listen, and where PostgreSQL does."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("listeners")


@dataclass(frozen=True, slots=True)
class OwnEndpoint:
    """An address and a port; or the URL that clients of the API use."""

    address: str | None
    port: int | None
    url: str | None


async def show_listener(
    connection: Connection, id_: UUID, host: str, addresses: Sequence[str], port: int, url: str
) -> None:
    await connection.execute(_SQL["show_listener"].text, id_, host, list(addresses), port, url)


async def remove_listener(connection: Connection, id_: UUID) -> None:
    await connection.execute(_SQL["remove_listener"].text, id_)


async def list_own_endpoints(connection: Connection) -> list[OwnEndpoint]:
    rows = await connection.fetch(_SQL["list_own_endpoints"].text)
    return [OwnEndpoint(*row.values()) for row in rows]
