"""Removes everything of deleted tenants, in the background and in bounded batches (T2).

First its work ends: executions that wait are cancelled; running ones are asked to end, as by any cancel, and after
`STOPPED_AFTER_S` they end without their worker, whose outcome is then refused. After that every table that has
`tenant_no` is walked through page by page: the catalog lists them, so that a new table cannot be forgotten, and pages
need no index, which every insert would pay for. One walk serves all deleted tenants. Days from before the first of them
was created are left out. Objects in storage are deleted before the rows that name them.

Transactions that were under way, and executions that end meanwhile, may still add rows behind the walk. So it is
repeated until a whole round has found nothing, and there was no execution at its start and at its end. The position is
kept in memory only: a node that takes over starts the round again.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from ondot.model.execution import CANCEL
from ondot.model.ids import TenantNo
from ondot.ports.objects import Objects
from ondot.store.database import Database
from ondot.store.endings import end_queued
from ondot.store.removal import (
    DeletedTenant,
    TenantTable,
    cancel_running,
    end_removal,
    find_deleted_tenants,
    find_object_keys,
    find_waiting,
    has_executions,
    list_tables,
    record_removal,
    remove_rows,
    stop_running,
)
from ondot.telemetry.log import get_logger

REASON: Final = "its tenant was deleted"
STOPPED_AFTER_S: Final = 5.0
"""Workers look for cancels each second; a handler that goes on after this is ended by its worker, without a record."""
EXECUTIONS_A_STATEMENT: Final = 500
PAGES_A_STATEMENT: Final = 512
"""4 MB: some milliseconds where nothing is found; at most 12,544 rows of history, about a second on a busy machine."""
PASS_S: Final = 1.0
OBJECTS: Final = "object_"

_DAY: Final = re.compile(r"_(\d{8})$")
_MARGIN: Final = timedelta(days=2)
"""Clocks differ, and a day's table has ids of other zones."""

log = get_logger()


@dataclass(slots=True)
class _Round:
    """One walk through all tables, on behalf of these tenants."""

    tenants: tuple[TenantNo, ...]
    tables: list[TenantTable]
    has_executions: bool
    """When it started: they may have ended behind it."""
    started_s: float = field(default_factory=time.monotonic)
    table: int = 0
    page: int = 0
    removed: int = 0
    pages_done: int = 0

    @property
    def share(self) -> float:
        return self.pages_done / max(sum(table.pages for table in self.tables), 1)


class Removal:
    def __init__(self, database: Database, objects: Objects | None = None) -> None:
        """`objects`: the storage of large results and logs, None if there is none."""
        self._database = database
        self._objects = objects
        self._round: _Round | None = None

    async def one_pass(self) -> int:
        """Work for about a second; returns whether there is more to do."""
        async with self._database.connection() as connection:
            deleted = await find_deleted_tenants(connection)
        if not deleted:
            self._round = None
            return 0
        if sum([await self._end_work(tenant.tenant_no) for tenant in deleted]):
            self._round = None  # what has ended now is in tables that the walk may have left behind
            return 1
        tenants = tuple(tenant.tenant_no for tenant in deleted)
        if self._round is None or self._round.tenants != tenants:
            # Before the tables are listed: the end of an execution may be on a page that was not there then.
            is_live = await self._has_executions(tenants)
            self._round = _Round(tenants, await self._list_tables(deleted), is_live)
        started_s = time.monotonic()
        removed = 0
        while self._round.table < len(self._round.tables) and time.monotonic() - started_s < PASS_S:
            removed += await self._remove_some(self._round)
        self._round.removed += removed
        return await self._report(self._round, removed)

    async def _end_work(self, tenant_no: TenantNo) -> int:
        """A batch of executions; returns how many have ended or were asked to end."""
        async with self._database.transaction() as connection:
            waiting = await find_waiting(connection, tenant_no, EXECUTIONS_A_STATEMENT)
            ended = len(await end_queued(connection, tenant_no, dict.fromkeys(waiting, REASON), CANCEL))
        async with self._database.connection() as connection:
            asked = await cancel_running(connection, tenant_no, REASON, EXECUTIONS_A_STATEMENT)
            stopped = await stop_running(connection, tenant_no, STOPPED_AFTER_S, EXECUTIONS_A_STATEMENT)
        if ended or asked or stopped:
            log.info("tenant.work_ended", tenant_no=tenant_no, cancelled=ended, asked=asked, stopped=stopped)
        return ended + asked + stopped

    async def _has_executions(self, tenants: Sequence[TenantNo]) -> bool:
        async with self._database.connection() as connection:
            return any([await has_executions(connection, tenant_no) for tenant_no in tenants])

    async def _list_tables(self, deleted: Sequence[DeletedTenant]) -> list[TenantTable]:
        async with self._database.connection() as connection:
            tables = await list_tables(connection)
        since_at = min(tenant.created_at for tenant in deleted) - _MARGIN
        return [table for table in tables if table.pages and not _is_older(table.name, since_at)]

    async def _remove_some(self, walk: _Round) -> int:
        """The next pages of the walk; returns how many rows were removed."""
        table, page = walk.tables[walk.table], walk.page
        if table.name.startswith(OBJECTS) and self._objects is not None:
            async with self._database.connection() as connection:
                keys = await find_object_keys(connection, table, walk.tenants, page, PAGES_A_STATEMENT)
            if keys:
                await self._objects.delete(keys)
        async with self._database.connection() as connection:
            removed = await remove_rows(connection, table, walk.tenants, page, PAGES_A_STATEMENT)
        walk.page = page + PAGES_A_STATEMENT
        walk.pages_done += min(PAGES_A_STATEMENT, max(table.pages - page, 0))
        if walk.page >= table.pages:
            walk.table, walk.page = walk.table + 1, 0
        return removed

    async def _report(self, walk: _Round, removed: int) -> int:
        """Store the progress, and end the removal after a round that has found nothing."""
        is_over = walk.table >= len(walk.tables)
        async with self._database.connection() as connection:
            await record_removal(connection, walk.tenants, removed, walk.share)
            if not is_over:
                return 1
            self._round = None
            if walk.removed:
                return 1
            if walk.has_executions or await self._has_executions(walk.tenants):
                return 0  # they run, or ran, and were asked to end: the next pass looks again
            await end_removal(connection, walk.tenants)
        log.info("tenant.removed", tenants=walk.tenants)
        return 1


def _is_older(name: str, since_at: datetime) -> bool:
    """Whether a table is the partition of a day before this instant."""
    day = _DAY.search(name)
    return day is not None and day[1] < f"{since_at:%Y%m%d}"
