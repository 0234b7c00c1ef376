"""The beat of a process, from a thread with its own event loop and its own connection.

A herd's arithmetic or a handler that computes may hold the main loop for seconds; the beat must not stop for it. What
is said in a beat is read from the main thread's objects, which hand out snapshots.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ondot.model.errors import Held, Unavailable
from ondot.roles.loop import pause_after
from ondot.settings import Settings
from ondot.store.connection import AWAY, Connection, OwnConnection
from ondot.store.database import connect, witness_for
from ondot.telemetry.log import get_logger

log = get_logger()

OneBeat = Callable[[Connection], Awaitable[float | None]]
"""Beats once and says in how many seconds to beat again; None: there is nothing left to beat for."""

SHORTEST_TIMEOUT_S = 1.0
SHORTEST_PAUSE_S = 0.05
TRY_AGAIN_S = 0.5


class BeatThread:
    """Beats each `every_s`, or sooner if a beat asks for it. One that is not answered before the next would be due is
    given up, with its connection: of two tries at least one must fit into the time after which nobody waits for us.

    `confirmed_s` is when the last beat that PostgreSQL confirmed was *sent* (monotonic).
    """

    def __init__(self, settings: Settings, one_beat: OneBeat, *, every_s: float, name: str) -> None:
        self._settings = settings
        self._one_beat = one_beat
        self._every_s = every_s
        self._stop = threading.Event()
        self._nudge: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, name=f"beat-{name}", daemon=True)
        self.confirmed_s = time.monotonic()
        self.is_held = False
        """Nothing may be begun on this database (`store.lineage`)."""

    def start(self) -> None:
        self.confirmed_s = time.monotonic()
        self._thread.start()

    async def stop(self) -> None:
        """End the thread; a beat that is under way is awaited for a moment."""
        self._stop.set()
        self.beat_now()
        await asyncio.to_thread(self._thread.join, 5.0)

    def beat_now(self) -> None:
        """Do not wait for the next beat: there is something to tell."""
        if self._nudge:
            with suppress(RuntimeError):
                self._nudge()

    @property
    def silent_s(self) -> float:
        """For how long nobody can have heard of us, at worst."""
        return time.monotonic() - self.confirmed_s

    def _run(self) -> None:
        asyncio.run(self._beat_for_ever())

    async def _beat_for_ever(self) -> None:
        nudged = asyncio.Event()
        loop = asyncio.get_running_loop()

        def nudge() -> None:
            loop.call_soon_threadsafe(nudged.set)

        self._nudge = nudge
        connection: OwnConnection | None = None
        witness = witness_for(self._settings)
        missed = 0
        while not self._stop.is_set():
            sent_s = time.monotonic()
            pause_s = self._every_s
            try:
                async with asyncio.timeout(max(self._every_s, SHORTEST_TIMEOUT_S)):
                    if connection is None or connection.is_closed():
                        connection = await connect(self._settings)
                    # Each time: somebody else may have found that all is to be held, and PgBouncer may have gone to
                    # another server without saying so.
                    await witness.check(connection)
                    again_s = await self._one_beat(connection)
                    if again_s is None:
                        break
                    pause_s = min(again_s, self._every_s)
                self.confirmed_s = sent_s
                self.is_held = False
                witness.confirm()
                if missed:
                    log.info("beat.back", missed=missed)
                missed = 0
            except Exception as error:  # the boundary of a pass
                missed += 1
                # Until a beat is confirmed: who cannot reach the database has heard nothing else of it.
                self.is_held = self.is_held or isinstance(error, Held)
                # Not a whole interval: until the next beat is confirmed, nothing is begun here.
                pause_s = pause_after(missed, TRY_AGAIN_S)
                if not isinstance(error, (*AWAY, Unavailable)):
                    log.exception("beat.failed")
                elif missed == 1:
                    log.warning("beat.missed", error=str(error) or type(error).__name__)
                if connection is not None:
                    connection.terminate()
                    connection = None
            with suppress(TimeoutError):
                async with asyncio.timeout(max(pause_s - (time.monotonic() - sent_s), SHORTEST_PAUSE_S)):
                    await nudged.wait()
            nudged.clear()
        if connection is not None:
            with suppress(*AWAY):
                await connection.close(timeout=2)
