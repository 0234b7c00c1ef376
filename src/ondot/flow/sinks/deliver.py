"""Delivers the outbox to sinks (E3): each sink on its own, in order, at least once.

The scheduler on duty does it. Its position advances after the acknowledgement, so a scheduler that is killed between
the two leaves a batch that its successor sends again, with the same ids; two at once do the same. A sink that fails is
tried again after a while, up to a minute; others do not wait for it. Rows go when every sink of their tenant has them,
or when they are older than `ONDOT_SINK_RETENTION_HOURS`: the condition `sink` has reported the failing sink long
before, and each sink counts the events that it misses.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final
from uuid import UUID

from ondot.flow.alerts.conditions import clear_condition, report_condition
from ondot.flow.sinks.horizon import Horizon
from ondot.flow.sinks.make_events import make_events
from ondot.flow.sinks.send import Sender
from ondot.flow.sinks.sent import Sent
from ondot.model.errors import Unavailable
from ondot.model.sink import SINK_FAILS
from ondot.model.sink_event import SinkEvent
from ondot.store.connection import DATABASE_ERROR
from ondot.store.database import Database
from ondot.store.sinks import (
    SinkRow,
    advance_sink,
    drop_old,
    fail_sink,
    find_due_sinks,
    find_oldest,
    find_outbox_tenants,
    list_all_sinks,
    measure_lags,
    read_outbox,
    remove_sent,
)
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import SINK_EVENTS

AT_ONCE: Final = 1_000
"""Events of one turn of a sink."""
SINKS_AT_ONCE: Final = 200
SENDING_AT_ONCE: Final = 200
"""A receiver that hangs holds its place for half a minute, and no connection to the database."""
FIRST_AGAIN_S: Final = 1.0
LONGEST_AGAIN_S: Final = 60.0
REPORTED_AFTER_S: Final = 60.0
"""A sink that has failed for this long is a condition that alerts watch."""
BEHIND_S: Final = 300.0
BEHIND_HOLDS_S: Final = 90.0
REMOVED_AT_ONCE: Final = 5_000
LONGEST_ERROR: Final = 1_000

log = get_logger()


class SinkDelivery:
    def __init__(self, database: Database, sender: Sender) -> None:
        self._database = database
        self._sender = sender
        self.horizon = Horizon()
        self._room = asyncio.Semaphore(SENDING_AT_ONCE)
        self._sending: dict[UUID, asyncio.Task[None]] = {}
        self.done = asyncio.Event()
        """Set when a sink has had a turn: it may have more to send."""

    async def one_pass(self) -> int:
        """Start a turn for each sink that has something to send; returns how many. None waits for another."""
        async with self._database.connection() as connection:
            through = await self.horizon.advance(connection)
            due = await find_due_sinks(connection, through, SINKS_AT_ONCE)
        started = 0
        for sink in due:
            if sink.id not in self._sending:
                task = asyncio.create_task(self._turn(sink, through), name=f"sink-{sink.name}")
                self._sending[sink.id] = task
                task.add_done_callback(partial(self._end, sink.id))
                started += 1
        return started

    async def drain(self) -> None:
        """Wait for the turns that have started."""
        await asyncio.gather(*self._sending.values(), return_exceptions=True)

    async def stop(self) -> None:
        """Drop what is being sent: its position has not advanced, so it is sent again."""
        for task in self._sending.values():
            task.cancel()
        await self.drain()

    def _end(self, id_: UUID, _: object) -> None:
        self._sending.pop(id_, None)
        self.done.set()

    async def _turn(self, sink: SinkRow, through: int) -> None:
        async with self._room:
            try:
                await self._deliver(sink, through)
            except (Unavailable, DATABASE_ERROR) as error:
                log.warning("sink.not_read", sink=sink.name, tenant_no=sink.tenant_no, error=str(error))
            except Exception as error:  # a bug must not end the loop of all sinks
                log.exception("sink.failed", sink=sink.name, tenant_no=sink.tenant_no)
                await self._fail(sink, f"{type(error).__name__}: {error}", None)

    async def _deliver(self, sink: SinkRow, through: int) -> None:
        tenant = await self._database.tenants.get(sink.tenant_no)
        if tenant is None:
            return
        async with self._database.connection() as connection:
            rows = await read_outbox(connection, sink.tenant_no, after=sink.position, through=through, events=AT_ONCE)
            if not rows:
                return
            events = await make_events(connection, sink, tenant.name, rows)
        sent = await self._sender.send(sink, events) if events else Sent()
        _count(sink, sent)
        if not sent.failed:
            await self._advance(sink, rows[-1].no, sent)
            return
        # What was acknowledged before the first failure is not sent again.
        first = min(int(event.value["sequence"]) for event in sent.failed)
        done = max((row.no for row in rows if row.no < first), default=None)
        if done is not None:
            await self._advance(sink, done, _part(sent, events, done))
        await self._fail(sink, sent.error or "It was not acknowledged.", sent.retry_after_s)

    async def _advance(self, sink: SinkRow, position: int, sent: Sent) -> None:
        async with self._database.connection() as connection:
            is_there = await advance_sink(
                connection,
                sink,
                position,
                sent=sent.sent,
                shortened=sent.shortened,
                refused=sent.refused,
                error=None if sent.refusal is None else sent.refusal[:LONGEST_ERROR],
            )
            if is_there and sink.failing_since is not None:
                await clear_condition(connection, SINK_FAILS, sink.tenant_no, sink.name)
        if sent.refused:
            log.warning("sink.refused", sink=sink.name, tenant_no=sink.tenant_no, count=sent.refused, why=sent.refusal)

    async def _fail(self, sink: SinkRow, error: str, retry_after_s: float | None) -> None:
        again_s = max(min(FIRST_AGAIN_S * 2.0 ** min(sink.tries, 10), LONGEST_AGAIN_S), retry_after_s or 0.0)
        async with self._database.connection() as connection:
            since = await fail_sink(connection, sink, error[:LONGEST_ERROR], again_s)
            now = self._database.clock.now()
            if since is not None and (now - since).total_seconds() >= REPORTED_AFTER_S:
                message = f"The sink {sink.name} has delivered nothing since {since:%Y-%m-%d %H:%M:%S} UTC: {error}"
                await report_condition(
                    connection, SINK_FAILS, sink.tenant_no, sink.name, message, {"sink": sink.name}, since=since
                )
        log.warning("sink.retrying", sink=sink.name, tenant_no=sink.tenant_no, error=error, again_in_s=again_s)

    async def watch_pass(self) -> int:
        """Report sinks that are far behind though they do not fail, long before anything is dropped."""
        kept_s = self._database.settings.sink_retention_hours * 3600.0
        async with self._database.connection() as connection:
            sinks = await list_all_sinks(connection, SINKS_AT_ONCE)
            lags = await measure_lags(connection, sinks, 1)
            for sink in sinks:
                behind_s = lags[sink.id].behind_s if sink.id in lags else 0.0
                if sink.failing_since is None and behind_s >= (kept_s / 2 if sink.is_paused else BEHIND_S):
                    why = "it is paused" if sink.is_paused else "its receiver is slow, or a transaction is held open"
                    message = f"The sink {sink.name} is {behind_s / 60:,.0f} minutes behind: {why}."
                    details = {"sink": sink.name, "behind_s": behind_s}
                    await report_condition(
                        connection, SINK_FAILS, sink.tenant_no, sink.name, message, details, holds_s=BEHIND_HOLDS_S
                    )
        return 0

    async def tidy_pass(self) -> int:
        """Remove rows that every sink has, and drop those that are too old; returns how many rows went."""
        kept_s = self._database.settings.sink_retention_hours * 3600.0
        removed = 0
        async with self._database.connection() as connection:
            for tenant_no in await find_outbox_tenants(connection):
                through = await find_oldest(connection, tenant_no, kept_s)
                if through is not None:
                    for _, name, dropped in await drop_old(connection, tenant_no, through):
                        log.error("sink.dropped", sink=name, tenant_no=tenant_no, dropped_so_far=dropped)
                removed += await remove_sent(connection, tenant_no, REMOVED_AT_ONCE)
        return removed


def _count(sink: SinkRow, sent: Sent) -> None:
    for result, count in (
        ("sent", sent.sent),
        ("shortened", sent.shortened),
        ("refused", sent.refused),
        ("failed", len(sent.failed)),
    ):
        if count:
            SINK_EVENTS.labels(result).inc(count)


def _part(sent: Sent, events: Sequence[SinkEvent], through: int) -> Sent:
    """What is known to be delivered up to a row of the outbox."""
    count = sum(int(event.value["sequence"]) <= through for event in events)
    return Sent(sent=count - min(count, sent.refused), refused=min(count, sent.refused), refusal=sent.refusal)
