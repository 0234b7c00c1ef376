"""Rewrites days past their retention (O1, L1): what must stay is copied, the copy takes the day's place, the rest goes.

It begins at `ONDOT_RETENTION_AT`, a quiet time, unless the disk is nearly full. Nothing is deleted row by row. A
rewriting has three steps, each a transaction of its own or several:

1. start: an empty copy; from here on a trigger enters the ids of rows that are written to the day, late completions
   for example. `kept_from` rises in the same transaction.
2. copy: part by part, each with its progress. The row of `day_copy` is locked meanwhile, so of two schedulers one
   works; if it dies, the next one continues.
3. swap: under a lock of some milliseconds the written rows are copied again, the copy is attached, and the day is
   dropped. As for new days (`flow.days`), nothing is tried while another transaction holds the table, a dump for
   example, and a try that does not get the lock at once gives up: others would wait behind it.

So a crash leaves the day as it was, or the new one. A copy that cannot go on (its table got another column meanwhile)
is given up, and starts again.
"""

import asyncio
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

from ondot.flow.days import is_held
from ondot.flow.history.archive import Archive
from ondot.flow.history.disk import Disk
from ondot.flow.history.kept import EVENT_DAYS, ORDER, Due, Retentions, find_due, retention_day
from ondot.store.connection import DATABASE_ERROR, LOCKED, Connection
from ondot.store.database import Database
from ondot.store.day_rewrite import (
    DayCopy,
    Partition,
    copy_some,
    count_touched,
    drop_copy,
    has_rows_of,
    list_copies,
    list_partitions,
    list_retentions,
    lock_copy,
    note_rewritten,
    start_copy,
    swap_copy,
)
from ondot.store.days import read_day_tables
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import HISTORY_REMOVED, HISTORY_REWRITTEN

TRY_MS: Final = 50
TRIES: Final = 5
BETWEEN_TRIES_S: Final = 0.2
MOST_TOUCHED: Final = 10_000
"""Rows that were written meanwhile are copied under the lock of the swap. With more than this, a tenant's removal for
example, the copy starts again."""

log = get_logger()


class Rewriting:
    def __init__(self, database: Database, archive: Archive | None = None) -> None:
        """`archive`: gets each day before it goes."""
        self._archive = archive
        # A part of a large day may take minutes.
        self._database = database.patient
        self._disk = Disk(self._database)
        self._put_off: set[str] = set()

    async def one_pass(self) -> int:
        """One step of one rewriting; returns whether there is more to do now. Tables that are in use are left for the
        next round, which starts after a pass that returns 0."""
        async with self._database.connection() as connection:
            copies = await list_copies(connection)
        for copy in copies:
            if copy.parent not in self._put_off:
                await self._continue(copy)
                return 1
        async with self._database.connection() as connection:
            if any(table.is_far for table in await read_day_tables(connection)):
                return 0  # the clock may be wrong, see flow.days
            retentions = await read_retentions(connection, self._database.settings.retention_days)
            now = await connection.fetchval("SELECT ondot.clock()")
            partitions = await list_partitions(connection)
        settings = self._database.settings
        is_full = await self._disk.is_nearly_full()
        if is_full and settings.retention_min_days is not None:
            retentions = retentions.at_most(settings.retention_min_days)
        today = retention_day(now, timedelta(0) if is_full else settings.retention_after)
        by_parent: dict[str, list[Partition]] = defaultdict(list)
        for partition in partitions:
            by_parent[partition.parent].append(replace(partition, today=today))
        busy = self._put_off | {copy.parent for copy in copies}
        while due := find_due(by_parent, retentions, now, busy=busy):
            if not await self._has_nothing_to_remove(due, retentions):
                await self._start(due, retentions)
                return 1
            [partition] = due.partitions
            async with self._database.connection() as connection:
                last = await note_rewritten(connection, partition, due.days)
            known = by_parent[due.parent]
            known[known.index(partition)] = replace(partition, last=last)
        self._put_off.clear()
        return 0

    async def _start(self, due: Due, retentions: Retentions) -> None:
        if due.parent.startswith("event"):
            retentions = retentions.at_least(EVENT_DAYS)
        if await is_held(self._database, due.parent):
            self._put_off.add(due.parent)
            return
        if self._archive is not None and not await self._archive.store(due.partitions, due.days):
            # Of no other table either in this round: each try may wait for a storage that does not answer.
            self._put_off.update(ORDER)
            return
        today = due.partitions[0].today
        cutoff, cutoffs = retentions.cutoff(today), retentions.cutoffs(today)
        try:
            async with self._database.transaction() as connection:
                await start_copy(connection, due.parent, due.sources, due.days, cutoff, cutoffs, wait_ms=TRY_MS)
        except LOCKED:
            self._put_off.add(due.parent)

    async def _has_nothing_to_remove(self, due: Due, retentions: Retentions) -> bool:
        """One day that is empty, or has no row of the tenants whose retention it has passed now."""
        [partition, *others] = due.partitions
        if others or partition.is_empty:
            return not others
        done = partition.last.days if partition.last else 0
        tenants = retentions.passed_between(done, due.days)
        if done >= due.days or tenants is None:
            return False
        async with self._database.connection() as connection:
            return not await has_rows_of(connection, partition.name, tenants)

    async def _continue(self, copy: DayCopy) -> None:
        try:
            if copy.is_copied:
                await self._swap(copy)
            elif not await self._copy_some(copy.parent):
                self._put_off.add(copy.parent)  # another process is at it
        except LOCKED:
            self._put_off.add(copy.parent)
        except DATABASE_ERROR:
            log.exception("history.given_up", table=copy.parent, partitions=copy.sources)
            self._put_off.add(copy.parent)
            with suppress(LOCKED):
                async with self._database.transaction() as connection:
                    await drop_copy(connection, copy.parent, wait_ms=TRY_MS)

    async def _copy_some(self, parent: str) -> bool:
        async with self._database.transaction() as connection:
            copy = await lock_copy(connection, parent)
            if copy is None:
                return False
            if not copy.is_copied:
                await copy_some(connection, copy)
        return True

    async def _swap(self, copy: DayCopy) -> None:
        if await is_held(self._database, copy.parent):
            self._put_off.add(copy.parent)
            return
        async with self._database.connection() as connection:
            touched = await count_touched(connection, copy.parent)
        if touched > MOST_TOUCHED:
            log.info("history.given_up", table=copy.parent, partitions=copy.sources, because=f"{touched} rows changed")
            async with self._database.transaction() as connection:
                await drop_copy(connection, copy.parent, wait_ms=TRY_MS)
            return
        for number in range(TRIES):
            try:
                async with self._database.transaction() as connection:
                    removed = await swap_copy(connection, copy.parent, wait_ms=TRY_MS)
                break
            except LOCKED:
                if number == TRIES - 1:
                    raise
                await asyncio.sleep(BETWEEN_TRIES_S)
        if removed is None:
            return
        HISTORY_REWRITTEN.labels(copy.parent).inc()
        HISTORY_REMOVED.labels(copy.parent).inc(removed)
        log.info("history.rewritten", table=copy.parent, partitions=copy.sources, days=copy.days, removed=removed)


async def read_retentions(connection: Connection, days: int) -> Retentions:
    return Retentions(days, await list_retentions(connection))
