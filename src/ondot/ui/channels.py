"""`/channels` and `/pings`: where messages go and how the latest were delivered; jobs elsewhere and their latest calls
(O4). Their buttons call `/v1/channels` and `/v1/pings`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import quote

from ondot.model.channel import kind_of, render_channel
from ondot.model.errors import NotFound
from ondot.model.ids import TenantNo
from ondot.store.channels import ChannelRow, DeliveryRow, list_channels, list_deliveries
from ondot.store.database import Database
from ondot.store.pings import PingCallRow, PingRow, list_latest_calls, list_pings

ROWS: Final = 100
LONGEST: Final = 200
DELIVERIES: Final = 50


@dataclass(frozen=True, slots=True)
class ShownChannel:
    row: ChannelRow
    kind: str
    to: str


@dataclass(frozen=True, slots=True)
class ChannelsView:
    now: datetime
    rows: tuple[ShownChannel, ...]
    deliveries: tuple[DeliveryRow, ...]
    """The latest of all channels."""
    more: str | None


@dataclass(frozen=True, slots=True)
class PingsView:
    now: datetime
    rows: tuple[tuple[PingRow, tuple[PingCallRow, ...]], ...]
    """With the latest calls of each."""
    more: str | None


async def read_channels(database: Database, tenant_no: TenantNo, parameters: Mapping[str, str]) -> ChannelsView:
    after = name_after(parameters)
    async with database.connection() as connection:
        rows = await list_channels(connection, tenant_no, after=after, limit=ROWS + 1)
        deliveries = await list_deliveries(connection, tenant_no, limit=DELIVERIES)
    shown = tuple(ShownChannel(row, kind_of(row.spec), _place_of(row)) for row in rows[:ROWS])
    return ChannelsView(
        database.clock.now(), shown, tuple(deliveries), page_after("/channels", [row.name for row in rows])
    )


async def read_pings(database: Database, tenant_no: TenantNo, parameters: Mapping[str, str]) -> PingsView:
    after = name_after(parameters)
    async with database.connection() as connection:
        rows = await list_pings(connection, tenant_no, after=after, limit=ROWS + 1)
        calls = await list_latest_calls(connection, tenant_no, [row.id for row in rows[:ROWS]])
    shown = tuple((row, tuple(calls.get(row.id, ()))) for row in rows[:ROWS])
    return PingsView(database.clock.now(), shown, page_after("/pings", [row.name for row in rows]))


def name_after(parameters: Mapping[str, str]) -> str:
    after = parameters.get("after", "")
    if len(after) > LONGEST or "\0" in after:
        raise NotFound("There is no such page.")
    return after


def page_after(page: str, names: list[str]) -> str | None:
    return f"{page}?after={quote(names[ROWS - 1], safe='')}" if len(names) > ROWS else None


def _place_of(row: ChannelRow) -> str:
    shown = render_channel(row.spec)
    if "to" in shown:
        return ", ".join(shown["to"])
    place = shown.get("routing_key", shown["url"])
    return place if isinstance(place, str) else f"secret {place['$secret']}"
