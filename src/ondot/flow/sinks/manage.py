"""Creates, changes, pauses, tests and deletes sinks (E3). Each change is in the audit log, without credentials.

A new sink gets what happens from then on; workers notice it within a second. A paused one gets nothing, and its events
wait as those of a failing one do. What it has not sent when it is deleted is not sent any more.
"""

import asyncio
from dataclasses import dataclass
from typing import Final, Literal

from msgspec import structs

from ondot.flow.alerts.conditions import clear_condition
from ondot.flow.channels.credentials import check_references, find_references, keep_hidden, seal
from ondot.flow.connections.manage import describe_unknown
from ondot.flow.vault import Vault
from ondot.flow.work import Work, begin
from ondot.model.channel import WebhookChannel
from ondot.model.errors import Conflict, InvalidBody, NotFound
from ondot.model.ids import TenantNo
from ondot.model.sink import SINK_FAILS, BrokerPlace, SinkPlace, SinkSpec, WebhookPlace, kind_of
from ondot.store.audit import Action, By, record_change
from ondot.store.connections import find_connections
from ondot.store.database import Database
from ondot.store.sinks import (
    Lag,
    SinkRow,
    count_sinks,
    delete_sink,
    get_sink,
    list_sinks,
    lock_sink,
    measure_lags,
    post_test_event,
    put_sink,
    set_sink_paused,
)

MOST: Final = 50
"""Sinks of a tenant."""
COUNTED: Final = 10_000
"""Rows of the outbox among which what waits for a sink is counted."""
TEST_LOOKS_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Tested:
    """How a test event went. `waiting`: how many events the sink has not sent."""

    state: Literal["DELIVERED", "REFUSED", "FAILED", "WAITING"]
    error: str | None
    waiting: int


async def save_sink(
    database: Database, vault: Vault, tenant_no: TenantNo, name: str, spec: SinkSpec, *, by: By
) -> SinkRow:
    """Create or replace a sink. The caller has checked the right to refer to secrets."""
    if isinstance(spec.place, WebhookPlace):
        await check_references(vault, tenant_no, as_channel(spec.place))
    async with begin(database, tenant_no) as work:
        before = await lock_sink(work.connection, tenant_no, name)
        if before is None and await count_sinks(work.connection, tenant_no) >= MOST:
            raise Conflict(f"There are {MOST} sinks, which is the limit: delete those that nobody needs.")
        place = await _admit_place(vault, work, spec.place, None if before is None else before.spec.place)
        id_, version = await put_sink(
            work.connection, database.clock.new_id(), tenant_no, name, structs.replace(spec, place=place), by=by.actor
        )
        action: Action = "sink.create" if version == 1 else "sink.update"
        detail = {
            "name": name,
            "kind": kind_of(place),
            "types": list(spec.types),
            "secrets": sorted(references_of(place)) or None,
        }
        await record_change(work.connection, tenant_no, by, action, id_, detail)
        row = await get_sink(work.connection, tenant_no, name)
    assert row is not None
    return row


async def remove_sink(database: Database, tenant_no: TenantNo, name: str, *, by: By) -> SinkRow:
    async with begin(database, tenant_no) as work:
        await lock_sink(work.connection, tenant_no, name)
        row = await get_sink(work.connection, tenant_no, name)
        if row is None:
            raise unknown_sink(name)
        await delete_sink(work.connection, tenant_no, row.id)
        await clear_condition(work.connection, SINK_FAILS, tenant_no, name)
        await record_change(work.connection, tenant_no, by, "sink.delete", row.id, {"name": name})
    return row


async def pause_sink(database: Database, tenant_no: TenantNo, name: str, *, is_paused: bool, by: By) -> SinkRow:
    """Pause or resume; a sink that is as asked stays as it is."""
    async with begin(database, tenant_no) as work:
        locked = await lock_sink(work.connection, tenant_no, name)
        if locked is None:
            raise unknown_sink(name)
        if locked.is_paused is not is_paused:
            await set_sink_paused(work.connection, tenant_no, locked.id, is_paused=is_paused, by=by.actor)
            await clear_condition(work.connection, SINK_FAILS, tenant_no, name)
            action: Action = "sink.pause" if is_paused else "sink.resume"
            await record_change(work.connection, tenant_no, by, action, locked.id, {"name": name})
        row = await get_sink(work.connection, tenant_no, name)
    assert row is not None
    return row


async def read_sink_row(database: Database, tenant_no: TenantNo, name: str) -> tuple[SinkRow, Lag]:
    async with database.connection() as connection:
        row = await get_sink(connection, tenant_no, name)
        if row is None:
            raise unknown_sink(name)
        lags = await measure_lags(connection, [row], COUNTED)
    return row, lags.get(row.id, Lag())


async def read_sink_rows(
    database: Database, tenant_no: TenantNo, *, after: str = "", limit: int
) -> list[tuple[SinkRow, Lag]]:
    async with database.connection() as connection:
        rows = await list_sinks(connection, tenant_no, after=after, limit=limit)
        lags = await measure_lags(connection, rows, COUNTED)
    return [(row, lags.get(row.id, Lag())) for row in rows]


async def send_test_event(database: Database, tenant_no: TenantNo, name: str, *, wait_s: float, by: By) -> Tested:
    """Send an event of the type `ondot.sink.test` after all that waits for the sink, and wait a while for it."""
    async with begin(database, tenant_no) as work:
        locked = await lock_sink(work.connection, tenant_no, name)
        if locked is None:
            raise unknown_sink(name)
        if locked.is_paused:
            raise Conflict(f"The sink {name!r} is paused. Resume it with `ondot sink resume {name}`, then test it.")
        row = await get_sink(work.connection, tenant_no, name)
        detail = {"sink": name, "message": f"{by.actor} sent a test event to the sink {name!r}."}
        no = await post_test_event(work.connection, tenant_no, locked.id, detail)
        await record_change(work.connection, tenant_no, by, "sink.test", locked.id, {"name": name})
    assert row is not None
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_s
    while True:
        now, lag = await read_sink_row(database, tenant_no, name)
        if now.position >= no:
            return Tested("REFUSED" if now.refused > row.refused else "DELIVERED", now.error, lag.events)
        if now.error_at is not None and now.error_at != row.error_at:
            return Tested("FAILED", now.error, lag.events)
        if loop.time() >= until_s:
            return Tested("WAITING", now.error if now.failing_since is not None else None, lag.events)
        await asyncio.sleep(TEST_LOOKS_S)


async def _admit_place(vault: Vault, work: Work, wanted: SinkPlace, stored: SinkPlace | None) -> SinkPlace:
    """The place as it is stored. Raises InvalidBody for a connection that does not exist, or is of another kind."""
    if isinstance(wanted, BrokerPlace):
        found = (await find_connections(work.connection, work.tenant_no, [wanted.connection])).get(wanted.connection)
        if found is None:
            raise InvalidBody(await describe_unknown(work.connection, work.tenant_no, wanted.connection))
        if found.spec.kind != kind_of(wanted):
            raise InvalidBody(
                f"The connection {wanted.connection!r} is of the kind {found.spec.kind}, and the sink says"
                f" {kind_of(wanted)}. Name another connection."
            )
        return wanted
    before = as_channel(stored) if isinstance(stored, WebhookPlace) else None
    sealed = await seal(vault, work.tenant_no, keep_hidden(as_channel(wanted), before))
    assert isinstance(sealed, WebhookChannel)
    return structs.replace(wanted, url=sealed.url, headers=sealed.headers)


def references_of(place: SinkPlace) -> frozenset[str]:
    """The names of the secrets that it refers to by itself."""
    return find_references(as_channel(place)) if isinstance(place, WebhookPlace) else frozenset()


def as_channel(place: WebhookPlace) -> WebhookChannel:
    """Its credentials are kept as those of a channel."""
    return WebhookChannel(url=place.url, headers=place.headers, only_public=place.only_public)


def unknown_sink(name: str) -> NotFound:
    return NotFound(f"There is no sink {name!r}. List them with `ondot sink list`.")
