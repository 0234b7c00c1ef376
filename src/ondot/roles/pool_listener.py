"""Listens for the pools of a worker, and knows whether hints arrive (C4, C5, L5).

It listens through every transport that carries hints of one of its pools, and follows changes: each second it compares
with what the last heartbeat has returned. A transport is trusted while beats arrive through it for all of the worker's
pools that have it (`model.beats`).
"""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from ondot.flow.pool_transports import PoolTransports
from ondot.model.beats import Beat, Heard, hear
from ondot.model.ids import PoolNo
from ondot.model.routes import WITHOUT_BEATS
from ondot.ports.transport import OnWake
from ondot.roles.loop import every
from ondot.telemetry.metrics import TRANSPORT_TRUSTED, TRUST_LOST

FOLLOW_EVERY_S: Final = 1.0


class PoolListener:
    def __init__(self, transports: PoolTransports, pool_nos: Sequence[PoolNo], on_wake: OnWake) -> None:
        self._transports = transports
        self._pool_nos = tuple(pool_nos)
        self._on_wake = on_wake
        self._heard: dict[tuple[str, PoolNo], Heard] = {}
        self._listening: dict[str, tuple[tuple[PoolNo, ...], asyncio.Task[None]]] = {}

    @property
    def trusted_until_s(self) -> float | None:
        """Until when hints of all pools arrive for certain, if no further beat comes (monotonic). None: of some pool
        they may not."""
        untils = []
        for pool_no in self._pool_nos:
            heard = self._heard.get((self._transports.current(pool_no), pool_no))
            if heard is None or heard.trusted_until_s is None:
                return None
            untils.append(heard.trusted_until_s)
        return min(untils, default=None)

    @property
    def trusts(self) -> list[str]:
        """The transports through which hints arrive, for each pool that has one of them; the heartbeat's thread reads
        it."""
        now_s = time.monotonic()
        trusted: dict[str, bool] = {}
        for pool_no in self._pool_nos:
            name = self._transports.current(pool_no)
            heard = self._heard.get((name, pool_no))
            trusted[name] = trusted.get(name, True) and heard is not None and heard.is_trusted(now_s)
        return sorted(name for name, is_trusted in trusted.items() if is_trusted)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:

            async def follow() -> int:
                self._follow(group)
                return 0

            await every(FOLLOW_EVERY_S, follow, name="listener")

    def _follow(self, group: asyncio.TaskGroup) -> None:
        """Listen through the transports that serve the pools now, and no others."""
        wanted = self._transports.serve(self._pool_nos)
        for name, (pool_nos, task) in list(self._listening.items()):
            if wanted.get(name) != pool_nos or task.done():
                task.cancel()
                del self._listening[name]
        for name, pool_nos in wanted.items():
            if name in self._listening or (transport := self._transports.open_or_none(name)) is None:
                continue

            def on_beat(beat: Beat, pool_no: PoolNo, name: str = name) -> None:
                self._hear(name, beat, pool_no)

            listening = group.create_task(transport.listen(pool_nos, self._on_wake, on_beat), name=f"listener-{name}")
            self._listening[name] = (pool_nos, listening)
            if name not in WITHOUT_BEATS:
                TRANSPORT_TRUSTED.follow(partial(self._count_trust, name), name)

    def _count_trust(self, name: str) -> float:
        return float(name in self.trusts)

    def _hear(self, name: str, beat: Beat, pool_no: PoolNo) -> None:
        before = self._heard.get((name, pool_no))
        heard = self._heard[name, pool_no] = hear(before, beat, time.monotonic())
        if before is not None and heard.gaps > before.gaps:
            TRUST_LOST.labels(name).inc()
