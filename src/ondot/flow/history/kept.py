"""How long history is kept, and which days are due for a rewriting (O1). Pure: decides by the list of partitions.

A day is rewritten once for each retention that it has passed: an installation has at most four. Tables whose rows
belong to executions follow `history`, day by day. Days that are older than the longest retention hold little: when
there are some, they are merged into the catch-all of the past, and so the number of tables stays bounded. Rows that
still wait there are looked at once a week.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

from ondot.model.ids import TenantNo
from ondot.store.day_rewrite import Partition, start_of

ORDER: Final = ("history", "attempt", "log", "object", "job_once", "event_match", "event", "audit")
"""Each table after those whose rows decide what stays of it."""
FOLLOWS: Final = {
    "attempt": "history",
    "log": "history",
    "object": "history",
    "job_once": "history",
    "event_match": "history",
    "event": "event_match",
}
EVENT_DAYS: Final = 8
"""Events are kept at least this long: for 7 days a repeated one is answered with what the first one started."""
MERGED_FROM: Final = 7
MERGED_AT_ONCE: Final = 14
LOOK_AGAIN: Final = timedelta(days=7)
MOST_RETENTIONS: Final = 4
REASONS: Final = {
    "recent": "ended, fired or happened within the retention",
    "tenant": "belongs to a tenant with a longer retention",
    "live": "has not fired or has not ended",
    "dead_letter": "an open dead letter names it",
    "run": "belongs to a run of a workflow that is kept",
    "depended_on": "another job waits for it",
    "owed": "a catch-up or a backfill has not passed its fire yet",
    "execution": "belongs to an execution that is kept",
    "key": "holds a unique, throttled or debounced key",
    "changed": "was changed after its creation",
    "held": "a paused job holds the event",
    "matched": "what the event did is kept",
    "unsealed": "has no seal yet",
}
"""Why rows stay though their day is over, by the names of `store/sql/day_rewrite.sql`."""


@dataclass(frozen=True, slots=True)
class Retentions:
    """In days: the installation's, and those of tenants with one of their own."""

    days: int
    by_tenant: Mapping[TenantNo, int]

    @property
    def levels(self) -> list[int]:
        return sorted({self.days, *self.by_tenant.values()})

    @property
    def longest(self) -> int:
        return self.levels[-1]

    def of(self, tenant_no: TenantNo) -> int:
        return self.by_tenant.get(tenant_no, self.days)

    def cutoff(self, today: date) -> datetime:
        """What ended before goes, of tenants without a retention of their own."""
        return start_of(today - timedelta(days=self.days))

    def cutoffs(self, today: date) -> dict[TenantNo, datetime]:
        return {no: start_of(today - timedelta(days=days)) for no, days in self.by_tenant.items() if days != self.days}

    def at_least(self, days: int) -> "Retentions":
        return Retentions(max(self.days, days), {no: max(own, days) for no, own in self.by_tenant.items()})

    def at_most(self, days: int) -> "Retentions":
        return Retentions(min(self.days, days), {no: min(own, days) for no, own in self.by_tenant.items()})

    def passed_between(self, done: int, days: int) -> list[TenantNo] | None:
        """The tenants whose retention is over `done` and at most `days`; None: all that have none of their own too."""
        if done < self.days <= days:
            return None
        return [no for no, own in self.by_tenant.items() if done < own <= days]


def retention_day(now: datetime, after: timedelta) -> date:
    """The day by which retention counts. It begins `after` midnight: days must not go beside midnight's jobs, which are
    the most in many installations. A time that was missed is made up for at the next look."""
    return (now - after).date()


@dataclass(frozen=True, slots=True)
class Due:
    """Neighbouring partitions to rewrite into one, and the retention that applies to them."""

    partitions: tuple[Partition, ...]
    days: int

    @property
    def parent(self) -> str:
        return self.partitions[0].parent

    @property
    def sources(self) -> list[str]:
        return [partition.name for partition in self.partitions]


def find_due(
    by_parent: Mapping[str, Sequence[Partition]],
    retentions: Retentions,
    now: datetime,
    *,
    busy: Collection[str] = (),
) -> Due | None:
    """The next partitions to rewrite, oldest first, in the order of the tables. `busy`: tables to leave alone."""
    for parent in ORDER:
        if parent in busy:
            continue
        own = retentions.at_least(EVENT_DAYS) if parent.startswith("event") else retentions
        leader = by_parent.get(FOLLOWS.get(parent, ""))
        if due := _find_due_of(by_parent.get(parent, ()), own, leader, now):
            return due
    return None


def _find_due_of(
    partitions: Sequence[Partition], retentions: Retentions, leader: Sequence[Partition] | None, now: datetime
) -> Due | None:
    days = [partition for partition in partitions if partition.day is not None]
    for partition in days:
        level = _level(partition, retentions)
        if leader is not None:
            level = min(level, _level_of_leader(partition, leader, retentions.longest))
        if level > _done(partition) or (level and _waits_since(partition, now) and _has_left(partition)):
            return Due((partition,), level)
    if not days:
        return None
    over_before = days[0].today - timedelta(days=retentions.longest)
    over = [each for each in days if each.day and each.day < over_before and _done(each) >= retentions.longest]
    past = [partition for partition in partitions if partition.day is None]
    if len(over) >= MERGED_FROM and past:
        return Due((*past, *over[:MERGED_AT_ONCE]), retentions.longest)
    if past and not past[0].is_empty and _waits_since(past[0], now):
        return Due((past[0],), retentions.longest)
    return None


def is_overdue(partition: Partition, retentions: Retentions) -> bool:
    """Whether a day has passed a retention that was not applied to it yet."""
    return partition.day is not None and _level(partition, retentions) > _done(partition)


def _level(partition: Partition, retentions: Retentions) -> int:
    """The longest retention that a day has passed, with its last instant; 0: none."""
    assert partition.day is not None
    age = (partition.today - partition.day).days
    return max((days for days in retentions.levels if days < age), default=0)


def _level_of_leader(partition: Partition, leader: Sequence[Partition], longest: int) -> int:
    """What was applied to the same day of the table that it follows."""
    day = partition.day
    assert day is not None
    same = next((each for each in leader if each.day == day), None)
    if same is not None:
        return _done(same)
    return longest if leader and day < leader[0].first_day else 0


def _done(partition: Partition) -> int:
    return partition.last.days if partition.last else 0


def _has_left(partition: Partition) -> bool:
    return partition.last is not None and partition.last.kept > 0


def _waits_since(partition: Partition, now: datetime) -> bool:
    return partition.last is None or now - partition.last.at >= LOOK_AGAIN
