"""③a The transports of this process (C4, C5): each pool's hints go through its own, and through two for a while after a
change (`model.routes`).

A transport is opened when a pool first uses it. Each sends on its own: one that is frozen delays no hint of another.
While it sends, further hints of a pool become one. A transport that this process cannot open, or that does not answer,
loses hints: workers poll.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Self

from ondot.model.errors import Misconfigured
from ondot.model.ids import PoolNo
from ondot.model.routes import names_of, pools_by_transport
from ondot.ports.transport import Transport, Wake
from ondot.store.database import Database
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import HINTS_LOST, HINTS_SENT

if TYPE_CHECKING:
    from datetime import datetime

log = get_logger()


class PoolTransports:
    """`default`: the installation's transport, of all pools without one of their own."""

    def __init__(self, database: Database, open_by_name: Callable[[str], Transport], default: str) -> None:
        self._database = database
        self._open_by_name = open_by_name
        self.default = default
        self._opened: dict[str, Transport] = {}
        self._outboxes: dict[str, _Outbox] = {}
        self._refused: set[str] = set()

    @classmethod
    def of(cls, database: Database, transport: Transport) -> Self:
        """The same one for all pools."""
        return cls(database, lambda _name: transport, transport.name)

    def serve(self, pool_nos: Iterable[PoolNo]) -> dict[str, tuple[PoolNo, ...]]:
        """Which transports carry the hints of these pools now."""
        return pools_by_transport(pool_nos, self._database.pools.routes, self.default, self._database.clock.now())

    def current(self, pool_no: PoolNo) -> str:
        """The name of the transport that a pool has now."""
        return self._names_of(pool_no)[0]

    def open(self, name: str) -> Transport:
        """Raises Misconfigured if this process lacks what it needs: its address, or a package."""
        if (transport := self._opened.get(name)) is None:
            transport = self._opened[name] = self._open_by_name(name)
        return transport

    def open_or_none(self, name: str) -> Transport | None:
        """None: this process cannot use it, which is logged once."""
        try:
            return self.open(name)
        except Misconfigured as error:
            if name not in self._refused:
                self._refused.add(name)
                log.warning("transport.misconfigured", transport=name, error=error.message, then="workers poll")
            return None

    async def publish(self, wakes: Sequence[Wake]) -> None:
        """Returns at once; what a transport does not take is counted and logged."""
        if not self._database.pools.routes:
            return self._outbox(self.default).add(wakes)
        for wake in wakes:
            for name in self._names_of(wake.pool_no):
                self._outbox(name).add([wake])
        return None

    async def close(self) -> None:
        for outbox in self._outboxes.values():
            await outbox.end()
        for transport in self._opened.values():
            await transport.close()

    def _names_of(self, pool_no: PoolNo) -> tuple[str, ...]:
        return names_of(self._database.pools.routes.get(pool_no), self.default, self._database.clock.now())

    def _outbox(self, name: str) -> "_Outbox":
        if (outbox := self._outboxes.get(name)) is None:
            outbox = self._outboxes[name] = _Outbox(name, lambda: self.open_or_none(name))
        return outbox


class _Outbox:
    """The hints of one transport: sent at once, and while some are being sent, the others wait, one for each pool."""

    def __init__(self, name: str, transport: Callable[[], Transport | None]) -> None:
        self._name = name
        self._transport = transport
        self._pending: dict[PoolNo, datetime] = {}
        self._sending: asyncio.Task[None] | None = None
        self._is_away = False

    def add(self, wakes: Iterable[Wake]) -> None:
        for wake in wakes:
            known = self._pending.get(wake.pool_no)
            self._pending[wake.pool_no] = wake.ready_at if known is None else min(known, wake.ready_at)
        if self._pending and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._send(), name=f"hints-{self._name}")

    async def end(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _send(self) -> None:
        while self._pending:
            wakes = [Wake(pool_no, ready_at) for pool_no, ready_at in self._pending.items()]
            self._pending.clear()
            transport = self._transport()
            if transport is None:
                HINTS_LOST.labels(self._name).inc(len(wakes))
                continue
            try:
                await transport.publish(wakes)
            except Exception as error:  # noqa: BLE001 - a hint that is lost costs a poll, whatever the reason
                HINTS_LOST.labels(self._name).inc(len(wakes))
                if not self._is_away:
                    why = str(error) or type(error).__name__
                    log.warning("hints.lost", transport=self._name, error=why, then="workers poll")
                self._is_away = True
            else:
                HINTS_SENT.labels(self._name).inc(len(wakes))
                if self._is_away:
                    log.info("hints.sent_again", transport=self._name)
                self._is_away = False
