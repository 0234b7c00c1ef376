"""Rows without an owner: the kinds that the self-check looks for, and its memory between two checks (P4, P5, L6).

Every state has an owner that moves it on. A row that the self-check finds has none, so each finding is a bug in ondot.
A race must not look like a finding: a row seen once is only suspected; it is found if it is still there, unchanged,
some time later. A suspect's key holds the columns that an owner would have changed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

Place = Literal[
    "executions", "ready", "waiting", "gated", "slots", "lines", "leases", "runs", "timers", "partitions", "counts"
]


class Kind(StrEnum):
    RUNNING_OF_GONE_WORKER = "running_of_gone_worker"
    RUNNING_WITHOUT_LEASE = "running_without_lease"
    OVERDUE_TIMER = "overdue_timer"
    UNQUEUED = "unqueued"
    QUEUED_WITHOUT_EXECUTION = "queued_without_execution"
    EMPTY_LEASE = "empty_lease"
    SLOT_WITHOUT_HOLDER = "slot_without_holder"
    LINE_OVERLOOKED = "line_overlooked"
    STRANDED_RUN = "stranded_run"
    PARTITION = "partition"
    WRONG_COUNT = "wrong_count"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a kind is, and how it is repaired."""

    what: str
    done: str


MEANINGS: Final = {
    Kind.RUNNING_OF_GONE_WORKER: Meaning(
        "executions running on a worker that is gone, unknown to recovery",
        "handed to recovery; each counts one lost worker",
    ),
    Kind.RUNNING_WITHOUT_LEASE: Meaning(
        "executions running on a live worker without a lease that names them",
        "taken from their worker and handed to recovery; each counts one lost worker",
    ),
    Kind.OVERDUE_TIMER: Meaning(
        "jobs with a fire that is long due and not planned, although a scheduler owns their partition",
        "planned now, by their misfire policy",
    ),
    Kind.UNQUEUED: Meaning(
        "executions that waited in no queue and in no line",
        "put back into their queue or line",
    ),
    Kind.QUEUED_WITHOUT_EXECUTION: Meaning(
        "rows in a queue or line without an execution that waits",
        "deleted",
    ),
    Kind.EMPTY_LEASE: Meaning("leases without a running execution", "deleted"),
    Kind.SLOT_WITHOUT_HOLDER: Meaning(
        "slots of limits that no execution held",
        "freed; the executions that wait for them are admitted",
    ),
    Kind.LINE_OVERLOOKED: Meaning(
        "lines at limits that have room, which no worker was going to look at",
        "put on the list that workers look at",
    ),
    Kind.STRANDED_RUN: Meaning(
        "runs of workflows that had not ended, and that nothing was going to move",
        "the ends that they missed were reported to them, and they were advanced",
    ),
    Kind.PARTITION: Meaning(
        "partitions that were missing, or had no owner while schedulers were alive",
        "created if missing; a scheduler takes those without an owner",
    ),
    Kind.WRONG_COUNT: Meaning(
        "tenants with a quota whose running attempts were counted wrong",
        "counted again",
    ),
}


@dataclass(frozen=True, slots=True)
class Suspect:
    """A row that seems to have no owner: its kind, its table, and the key and columns it was seen with."""

    kind: Kind
    place: Place
    key: tuple[object, ...]

    @property
    def name(self) -> str:
        """Its id or number, for people."""
        return str(self.key[0])


CONFIRM_AFTER_S: Final[dict[Place, float]] = {"timers": 30.0, "leases": 120.0, "partitions": 30.0}
"""How long after it was first seen it must still be there. Planning very many timers takes long, a worker names the
leases it holds in its heartbeats, and another node takes a dead node's partitions when the lease ends."""
CONFIRM_SOONEST_S: Final = 10.0


@dataclass(slots=True)
class Memory:
    """The memory of one housekeeper. If it is lost, a finding is only reported later."""

    most: int = 5_000
    _since_s: dict[Suspect, float] = field(default_factory=dict)
    _reported: set[Suspect] = field(default_factory=set)

    @property
    def is_full(self) -> bool:
        """Whether there are so many suspects that they must be handled before the check looks for more."""
        return len(self._since_s) >= self.most

    def suspect(self, suspects: Iterable[Suspect], *, monotonic_s: float) -> None:
        for suspect in suspects:
            self._since_s.setdefault(suspect, monotonic_s)

    def take_ripe(self, *, monotonic_s: float, limit: int) -> list[Suspect]:
        """Remove and return suspects of one kind and place that were seen long enough ago to be checked again."""
        ripe: list[Suspect] = []
        for suspect, since_s in self._since_s.items():
            is_ripe = monotonic_s - since_s >= CONFIRM_AFTER_S.get(suspect.place, CONFIRM_SOONEST_S)
            if is_ripe and (not ripe or (suspect.kind, suspect.place) == (ripe[0].kind, ripe[0].place)):
                ripe.append(suspect)
                if len(ripe) == limit:
                    break
        for suspect in ripe:
            del self._since_s[suspect]
        return ripe

    def select_new(self, suspects: Iterable[Suspect]) -> list[Suspect]:
        """The findings that were not reported before; a finding that cannot be repaired is reported once."""
        new = [suspect for suspect in suspects if suspect not in self._reported]
        if len(self._reported) >= self.most:
            self._reported.clear()
        self._reported.update(new)
        return new
