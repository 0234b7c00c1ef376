"""The heartbeat of a process, from a thread with its own event loop and its own connection.

A beat says that the main loop works: it is sent only while that loop moves (`roles.pulse`, P13). A loop that is blocked
for a moment delays the beat by that moment; a stalled loop is reported to the database, without a beat. The content of
a beat is read from snapshots of the main thread's objects.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ondot.model.errors import DatabaseHeld, Unavailable
from ondot.ports.coordinator import CoordinatorAway
from ondot.roles.loop import pause_after
from ondot.roles.pulse import Pulse, Stall
from ondot.settings import Settings
from ondot.store.connection import AWAY, Connection, OwnConnection
from ondot.store.database import connect, new_witness
from ondot.telemetry.log import get_logger

log = get_logger()

OneBeat = Callable[[Connection], Awaitable[float | None]]
"""Beats once and returns in how many seconds to beat again; None: no more beats are needed."""

OneReport = Callable[[Connection, Stall, float], Awaitable[None]]
"""Reports that the loop is stalled, and for how many seconds."""

SHORTEST_TIMEOUT_S = 1.0
SHORTEST_PAUSE_S = 0.05
TRY_AGAIN_S = 0.5


class BeatThread:
    """Beats each `every_s`, or sooner if a beat asks for it. A beat without an answer is given up when the next is due,
    with its connection: of two tries at least one must fit into the timeout after which this process counts as lost.

    `confirmed_s` is when the last beat that PostgreSQL confirmed was *sent* (monotonic).
    """

    def __init__(
        self,
        settings: Settings,
        one_beat: OneBeat,
        *,
        every_s: float,
        name: str,
        pulse: Pulse,
        one_report: OneReport,
        on_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`on_end`: closes what `one_beat` has opened in the thread's loop."""
        self._settings = settings
        self._one_beat = one_beat
        self._pulse = pulse
        self._one_report = one_report
        self._on_end = on_end
        pulse.on_stall = self.beat_now
        self._reported: Stall | None = None
        self._connection: OwnConnection | None = None
        self._witness = new_witness(settings)
        self._missed = 0
        self._every_s = every_s
        self._stop = threading.Event()
        self._nudge: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, name=f"beat-{name}", daemon=True)
        self.confirmed_s = time.monotonic()
        self.answered_s = self.confirmed_s
        """As `confirmed_s`, of beats that failed for another reason than PostgreSQL too."""
        self.is_held = False
        """Nothing may start on this database (`store.lineage`)."""

    def start(self) -> None:
        self.confirmed_s = self.answered_s = time.monotonic()
        self._pulse.start()
        self._thread.start()

    async def stop(self) -> None:
        """End the thread; a beat that is under way gets a moment."""
        self._stop.set()
        self.beat_now()
        await asyncio.to_thread(self._thread.join, 5.0)
        self._pulse.stop()

    def beat_now(self) -> None:
        """Do not wait for the next beat: the state has changed."""
        if self._nudge:
            with suppress(RuntimeError):
                self._nudge()

    @property
    def silent_s(self) -> float:
        """How long ago the last confirmed beat was sent."""
        return time.monotonic() - self.confirmed_s

    @property
    def database_silent_s(self) -> float:
        """How long ago the last beat that PostgreSQL answered was sent."""
        return time.monotonic() - self.answered_s

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                asyncio.run(self._beat_for_ever())
            except Exception:
                # Without this thread the process would run on, send no beat, and never learn that it is lost.
                log.exception("beat.failed")
                self._stop.wait(TRY_AGAIN_S)
            else:
                return

    async def _beat_for_ever(self) -> None:
        nudged = asyncio.Event()
        loop = asyncio.get_running_loop()

        def nudge() -> None:
            loop.call_soon_threadsafe(nudged.set)

        self._nudge = nudge
        try:
            await self._beat_until_stopped(nudged)
            if self._connection is not None:
                with suppress(*AWAY):
                    await self._connection.close(timeout=2)
        finally:
            if self._on_end is not None:
                await self._on_end()
            # In any case: it belongs to this loop, and the next try has a loop of its own.
            if self._connection is not None:
                self._connection.terminate()
                self._connection = None

    async def _beat_until_stopped(self, nudged: asyncio.Event) -> None:
        while not self._stop.is_set():
            if not self._pulse.is_moving and self._pulse.stall is self._reported:
                # Look again soon: as soon as the loop moves, a beat is sent.
                await asyncio.sleep(self._pulse.look_again_s)
                continue
            sent_s = time.monotonic()
            pause_s = await self._one_try(sent_s)
            if pause_s is None:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(max(pause_s - (time.monotonic() - sent_s), SHORTEST_PAUSE_S)):
                    await nudged.wait()
            nudged.clear()

    async def _one_try(self, sent_s: float) -> float | None:
        """Send a beat, or a report if the loop is stalled. Returns the pause before the next; None: no more."""
        try:
            async with asyncio.timeout(max(self._every_s, SHORTEST_TIMEOUT_S)):
                if self._connection is None or self._connection.is_closed():
                    self._connection = await connect(self._settings)
                # Each time: another process may have found that nothing may start, and PgBouncer may have switched to
                # another server silently.
                await self._witness.check(self._connection)
                if not self._pulse.is_moving:
                    await self._report(self._connection)
                    return 0.0
                self._reported = None
                again_s = await self._one_beat(self._connection)
                if again_s is None:
                    return None
        except Exception as error:  # noqa: BLE001 - the boundary of a pass
            if isinstance(error, CoordinatorAway):
                self.answered_s = sent_s
            return self._note_failure(error)
        self.confirmed_s = self.answered_s = sent_s
        self.is_held = False
        self._witness.confirm()
        if self._missed:
            log.info("beat.back", missed=self._missed)
        self._missed = 0
        return min(again_s, self._every_s)

    async def _report(self, connection: Connection) -> None:
        if (stall := self._pulse.stall) is not None:
            await self._one_report(connection, stall, self._pulse.stalled_s)
        self._reported = stall

    def _note_failure(self, error: Exception) -> float:
        self._missed += 1
        # Until a beat is confirmed: a process that cannot reach the database knows nothing newer.
        self.is_held = self.is_held or isinstance(error, DatabaseHeld)
        if not isinstance(error, (*AWAY, Unavailable)):
            log.exception("beat.failed", exc_info=error)
        elif self._missed == 1:
            log.warning("beat.missed", error=str(error) or type(error).__name__)
        if self._connection is not None and not isinstance(error, CoordinatorAway):
            self._connection.terminate()
            self._connection = None
        # Not a whole interval: until the next beat is confirmed, nothing starts here.
        return pause_after(self._missed, TRY_AGAIN_S)
