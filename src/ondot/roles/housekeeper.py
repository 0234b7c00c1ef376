"""Housekeeping: runs in scheduler nodes, on the owner of partition 0 (E6, L3, S4, S12)."""

import asyncio
from collections.abc import Awaitable, Callable

from ondot.flow.dead_letters import bulk_pass
from ondot.flow.dispatch import Dispatcher
from ondot.flow.failing import pause_failing_pass
from ondot.flow.gate import expire_pass, tidy_pass
from ondot.flow.recover import lose_pass, recover_pass
from ondot.flow.retain import retain_pass, sweep_pass
from ondot.flow.zones import zones_pass
from ondot.model.liveness import Watch
from ondot.roles.loop import every
from ondot.store.chores import find_chores
from ondot.store.database import Database

LOSE_EVERY_S = 1.0
LOOKS_A_TIMEOUT = 5
"""Beats are looked at often enough that the housekeeper's own rhythm is never taken for a gap (`model.liveness`)."""
SWEEP_EVERY_S = 5.0
CHORES_EVERY_S = 1.0
RETAIN_EVERY_S = 60.0
ZONES_EVERY_S = 60.0


class Housekeeper:
    def __init__(self, database: Database, dispatcher: Dispatcher, on_duty: Callable[[], bool]) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._on_duty = on_duty
        self._watch = Watch(database.settings.heartbeat_s)
        self._lose_every_s = min(LOSE_EVERY_S, database.settings.heartbeat_s / LOOKS_A_TIMEOUT)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name, tick_s, one_pass in (
                ("recover", self._lose_every_s, self._recover),
                ("sweep", SWEEP_EVERY_S, lambda: sweep_pass(self._database, self._dispatcher)),
                ("chores", CHORES_EVERY_S, self._chores),
                ("tidy", RETAIN_EVERY_S, lambda: tidy_pass(self._database)),
                ("retain", RETAIN_EVERY_S, lambda: retain_pass(self._database)),
                ("zones", ZONES_EVERY_S, lambda: zones_pass(self._database, self._dispatcher)),
            ):
                group.create_task(every(tick_s, self._if_on_duty(one_pass), name=name), name=name)

    async def _recover(self) -> int:
        await lose_pass(self._database, self._watch)
        return await recover_pass(self._database, self._dispatcher)

    async def _chores(self) -> int:
        """What comes up now and then: looked for all at once, done by passes of their own."""
        async with self._database.connection() as connection:
            chores = await find_chores(connection)
        if chores.expire:
            await expire_pass(self._database)
        if chores.failing:
            await pause_failing_pass(self._database)
        if chores.bulk:
            await bulk_pass(self._database, self._dispatcher)
        return 0

    def _if_on_duty(self, one_pass: Callable[[], Awaitable[int]]) -> Callable[[], Awaitable[int]]:
        async def dutiful() -> int:
            return await one_pass() if self._on_duty() else 0

        return dutiful
