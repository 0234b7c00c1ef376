"""The loop in which a worker leases work (E1, C5): how much fits, and what it waits for before it looks again.

A lease brings as many executions as there are free slots, and starts them a few at a time. Between two leases the
worker waits for a wake-up, the next instant that it knows of, a free slot if there is a backlog, or its next poll:
after a second, or after 15 while it trusts the transports of its pools (`model.beats`).
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ondot.flow.complete import Completer
from ondot.flow.lease import Batch, Leaser
from ondot.flow.run import Runner
from ondot.model.beats import POLL_S, poll_at_s
from ondot.model.ids import PoolNo
from ondot.model.retry import free_for_suspects
from ondot.ports.transport import Wake
from ondot.store.database import Database

if TYPE_CHECKING:
    from datetime import datetime

LOOK_AGAIN_S: Final = 0.02
GATHER_SLOTS_S: Final = 0.01
GATHERED_SHARE: Final = 4
"""After a slot has become free, wait this long for more, or until a quarter is free: a lease of a hundred costs hardly
more than one of ten."""
START_AT_A_TIME: Final = 64
"""A thousand attempts started at once leave the processor's caches before the first of them has run, and each takes
twice as long (34 µs instead of 18 for one that does nothing)."""
STEPS_OF_A_SHORT_ATTEMPT: Final = 4


class LeaseLoop:
    def __init__(
        self,
        database: Database,
        leaser: Leaser,
        runner: Runner,
        completer: Completer,
        pool_nos: tuple[PoolNo, ...],
        slots: int,
        slot_free: asyncio.Event,
        lost: asyncio.Event,
        trusted_until_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`slot_free`: set when a slot becomes free or an outcome is written. `lost`: the worker was declared lost.
        `trusted_until_s`: until when hints of all pools arrive for certain (monotonic); None: they may not."""
        self._database = database
        self._leaser = leaser
        self._runner = runner
        self._completer = completer
        self._pool_nos = pool_nos
        self._slots = slots
        self._slot_free = slot_free
        self._lost = lost
        self._trusted_until_s = trusted_until_s
        self._wake = asyncio.Event()
        self._asked_s = time.monotonic()
        self._hinted_at: datetime | None = None
        """The first instant of hints for later than a second, since the last pass."""
        self.leasing = asyncio.Lock()
        """Held from the lease until all that it brought has started."""

    async def one_pass(self, group: asyncio.TaskGroup) -> int:
        """Lease what fits into the free slots, start it, and wait for a reason to look again."""
        self._wake.clear()
        self._slot_free.clear()
        self._asked_s, self._hinted_at = time.monotonic(), None
        async with self.leasing:
            free = self._free_slots()
            batch = await self._leaser.one_pass(free, free_for_suspects(self._slots, self._runner.in_flight.suspects))
            if batch.assignments:
                self._completer.hold(batch.assignments[0].lease_id, len(batch.assignments))
                self._leaser.acknowledge()
            for number, assignment in enumerate(batch.assignments, 1):
                self._runner.start(group, assignment)
                if number % START_AT_A_TIME == 0:
                    await _let_them_run()
        await self._wait(batch, free - len(batch.assignments))
        return 1

    def on_wake(self, wake: Wake) -> None:
        """A wake-up for later interrupts nothing: the wait looks at its instant at least once a second."""
        if wake.pool_no not in self._pool_nos:
            return
        if (wake.ready_at - self._database.clock.now()).total_seconds() < POLL_S:
            self._wake.set()
        else:
            self._hinted_at = wake.ready_at if self._hinted_at is None else min(self._hinted_at, wake.ready_at)

    def _free_slots(self) -> int:
        """None while no call may start. Outcomes wait for PostgreSQL without a slot, but only as many as there are
        slots."""
        if self._runner.may_start() is not None:
            return 0
        free = self._slots - len(self._runner.in_flight)
        return max(min(free, free + self._slots - self._completer.unwritten), 0)

    async def _wait(self, batch: Batch, free: int) -> None:
        if batch.more and free > 0:
            return
        if batch.more:
            # Each second all the same: executions that wait at a gate may have to be skipped, or to cancel one here.
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await first_of(self._slot_free, self._lost)
            await self._gather_slots()
            return
        while (pause_s := self._pause_s(batch)) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await (first_of(self._wake, self._slot_free) if batch.kept else self._wake.wait())
                    return

    def _pause_s(self, batch: Batch) -> float:
        """How long to wait before the next decision: to ask PostgreSQL again, or to wait on if the transports of its
        pools are trusted still."""
        now_s = time.monotonic()
        if batch.contended:
            until_s = self._asked_s + LOOK_AGAIN_S
        else:
            # What is kept for other tenants is known from PostgreSQL alone.
            until_s = poll_at_s(self._asked_s, now_s, None if batch.kept else self._trusted_until_s())
        pause_s = until_s - now_s
        for instant in (batch.next_at, self._hinted_at):
            if instant is not None:
                pause_s = min(pause_s, (instant - self._database.clock.now()).total_seconds())
        return pause_s

    async def _gather_slots(self) -> None:
        enough = self._slots - max(self._slots // GATHERED_SHARE, 1)
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHER_SLOTS_S):
                while len(self._runner.in_flight) > enough:
                    self._slot_free.clear()
                    await self._slot_free.wait()


async def first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _let_them_run() -> None:
    """As many turns of the loop as an attempt takes that waits for nothing."""
    for _ in range(STEPS_OF_A_SHORT_ATTEMPT):
        await asyncio.sleep(0)
