"""What there is of history (O1, O11): its size, its days, what stays though its day is over and why, what goes next.

Numbers of rows are PostgreSQL's estimates, so that a look costs no scan.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from ondot.flow.history.archive import CONDITION as ARCHIVE
from ondot.flow.history.disk import KIND as DISK
from ondot.flow.history.disk import read_used
from ondot.flow.history.kept import Retentions, is_overdue, retention_day
from ondot.flow.history.rewrite import read_retentions
from ondot.model.ids import INSTALLATION, TenantNo
from ondot.store.conditions import list_messages
from ondot.store.database import Database
from ondot.store.day_rewrite import (
    DayCopy,
    Partition,
    find_gone,
    list_copies,
    list_partitions,
    read_sizes,
    start_of,
)

DAY = timedelta(days=1)
TROUBLES = (ARCHIVE, DISK)


@dataclass(frozen=True, slots=True)
class HistoryDay:
    """All tables of a day. `executions`: those that ended; None: nobody has counted yet. `day`: None: all before."""

    day: date | None
    executions: int | None
    bytes: int
    is_rewritten: bool


@dataclass(frozen=True, slots=True)
class LastRewriting:
    """All rewritings of the day that was rewritten last."""

    name: str
    at: datetime
    took_s: float
    removed: int
    kept: int
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class HistoryView:
    now: datetime
    bytes: int
    history_bytes: int
    retentions: Retentions
    tenants: Mapping[TenantNo, str]
    kept_from: datetime | None
    days: Sequence[HistoryDay]
    stays: Mapping[str, Mapping[str, int]]
    """By table and reason: rows of days that are over."""
    next_day: date | None
    next_at: datetime | None
    """In the past if the day is kept for longer than it should be: `troubles` may say why."""
    troubles: Sequence[str]
    """Why days do not go, or the disk fills up."""
    last: LastRewriting | None
    under_way: Sequence[DayCopy]
    lists_of_objects: int
    """Days whose objects are still to be deleted from storage."""
    disk_used: float | None
    """From 0 to 1; None: not known."""

    @property
    def oldest_day(self) -> date | None:
        return next((each.day for each in reversed(self.days) if each.day is not None and each.executions != 0), None)


async def read_history(database: Database) -> HistoryView:
    known = await database.tenants.snapshot()
    async with database.connection() as connection:
        now, size, kept_from = await read_sizes(connection)
        partitions = await list_partitions(connection)
        retentions = await read_retentions(connection, database.settings.retention_days)
        copies, gone = await list_copies(connection), await find_gone(connection)
        used = await read_used(connection, database.settings)
        troubles = await list_messages(connection, INSTALLATION, TROUBLES)
    after = database.settings.retention_after
    next_day = _next_day(partitions, retentions, retention_day(now, after))
    return HistoryView(
        now,
        size,
        sum(partition.bytes for partition in partitions),
        retentions,
        {no: known[no].name for no in retentions.by_tenant if no in known},
        kept_from,
        _by_day(partitions),
        _stays(partitions),
        next_day,
        None if next_day is None else start_of(next_day) + DAY * (retentions.levels[0] + 1) + after,
        troubles,
        _last(partitions),
        copies,
        len(gone),
        used,
    )


def _by_day(partitions: Sequence[Partition]) -> list[HistoryDay]:
    """Newest first. The days ahead are empty, and left out."""
    found: dict[date | None, list[Partition]] = defaultdict(list)
    for partition in partitions:
        if partition.day is None or partition.day <= partition.today:
            found[partition.day].append(partition)
    return [
        HistoryDay(day, _executions(of_day), sum(each.bytes for each in of_day), any(each.last for each in of_day))
        for day, of_day in sorted(found.items(), key=lambda entry: entry[0] or date.min, reverse=True)
    ]


def _executions(of_day: Sequence[Partition]) -> int | None:
    history = next((each for each in of_day if each.parent == "history"), None)
    if history is None or history.is_empty:
        return 0
    return None if history.about_rows < 0 else history.about_rows


def _stays(partitions: Sequence[Partition]) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for partition in partitions:
        if partition.last is not None and partition.last.kept:
            found[partition.parent].update(partition.last.reasons)
    return {parent: dict(reasons) for parent, reasons in found.items() if reasons}


def _next_day(partitions: Sequence[Partition], retentions: Retentions, today: date) -> date | None:
    """The oldest day with rows to which no retention was applied yet."""
    waiting = (
        partition.day
        for partition in partitions
        if partition.day is not None
        and not partition.is_empty
        and ((today - partition.day).days <= retentions.levels[0] or is_overdue(partition, retentions))
    )
    return min(waiting, default=None)


def _last(partitions: Sequence[Partition]) -> LastRewriting | None:
    done = [(each, each.last) for each in partitions if each.last is not None and each.last.removed]
    if not done:
        return None
    newest, _ = max(done, key=lambda entry: entry[1].at)
    of_day = [last for each, last in done if each.day == newest.day]
    return LastRewriting(
        "earlier days" if newest.day is None else newest.day.isoformat(),
        max(last.at for last in of_day),
        sum(last.took_s for last in of_day),
        sum(last.removed for last in of_day),
        sum(last.kept for last in of_day),
        sum(last.bytes_before - last.bytes_after for last in of_day),
    )
