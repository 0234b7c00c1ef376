"""What nobody owns: the kinds that the self-check looks for, and what it remembers between two looks (P4, P5, L6).

Every state has an owner who will move it on. What the self-check finds has none, so each finding is a bug of ondot. A
race must not look like one: what is seen once is only suspected, and is found if it is still there, unchanged, a while
later. The suspect's key holds what would have changed if somebody had moved it on.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

Place = Literal["executions", "ready", "waiting", "gated", "slots", "lines", "leases", "timers", "partitions"]


class Kind(StrEnum):
    RUNNING_OF_GONE_WORKER = "running_of_gone_worker"
    RUNNING_WITHOUT_LEASE = "running_without_lease"
    OVERDUE_TIMER = "overdue_timer"
    UNQUEUED = "unqueued"
    QUEUED_WITHOUT_EXECUTION = "queued_without_execution"
    EMPTY_LEASE = "empty_lease"
    SLOT_WITHOUT_HOLDER = "slot_without_holder"
    LINE_OVERLOOKED = "line_overlooked"
    PARTITION = "partition"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a kind is, and what was done about it."""

    what: str
    done: str


MEANINGS: Final = {
    Kind.RUNNING_OF_GONE_WORKER: Meaning(
        "executions that ran under a worker that is gone, and that recovery did not know of",
        "given to recovery, at the cost of a lost worker",
    ),
    Kind.RUNNING_WITHOUT_LEASE: Meaning(
        "executions that ran under a worker that lives and had no lease that named them",
        "taken from their worker and given to recovery, at the cost of a lost worker",
    ),
    Kind.OVERDUE_TIMER: Meaning(
        "jobs whose fire was long due and not planned, though a scheduler owns their partition",
        "planned now, by their misfire policy",
    ),
    Kind.UNQUEUED: Meaning(
        "executions that waited in no queue and in no line",
        "put back into their queue or line",
    ),
    Kind.QUEUED_WITHOUT_EXECUTION: Meaning(
        "places in the queue or in a line that no execution waited in",
        "deleted",
    ),
    Kind.EMPTY_LEASE: Meaning("leases of which nothing ran any more", "deleted"),
    Kind.SLOT_WITHOUT_HOLDER: Meaning(
        "slots of limits that no execution held",
        "given back, and who waits for them called",
    ),
    Kind.LINE_OVERLOOKED: Meaning(
        "lines before limits with room, which no worker was to look at",
        "called",
    ),
    Kind.PARTITION: Meaning(
        "partitions that were missing, or without an owner while schedulers lived",
        "made if they were missing; a scheduler takes what has no owner",
    ),
}


@dataclass(frozen=True, slots=True)
class Suspect:
    """Something that nobody seems to own: where it is, which it is, and as what it was seen."""

    kind: Kind
    place: Place
    key: tuple[object, ...]

    @property
    def name(self) -> str:
        """What people call it: its id, or its number."""
        return str(self.key[0])


APART_S: Final[dict[Place, float]] = {"timers": 30.0, "leases": 120.0, "partitions": 30.0}
"""How long after the first look it must still be there. A plan of very many timers takes a while, a worker names the
leases it holds with its beats, and partitions of a dead node are taken when its lease is over."""
SOONEST_S: Final = 10.0


@dataclass(slots=True)
class Memory:
    """Of one housekeeper; nothing is lost with it but the time until the next look."""

    most: int = 5_000
    _since_s: dict[Suspect, float] = field(default_factory=dict)
    _told: set[Suspect] = field(default_factory=set)

    @property
    def is_full(self) -> bool:
        """So much is suspected that it is to be seen to before looking any further."""
        return len(self._since_s) >= self.most

    def suspect(self, suspects: Iterable[Suspect], *, monotonic_s: float) -> None:
        for suspect in suspects:
            self._since_s.setdefault(suspect, monotonic_s)

    def take_ripe(self, *, monotonic_s: float, limit: int) -> list[Suspect]:
        """Those seen long enough ago, of one kind and place, to be looked at once more: suspected no longer."""
        ripe: list[Suspect] = []
        for suspect, since_s in self._since_s.items():
            is_ripe = monotonic_s - since_s >= APART_S.get(suspect.place, SOONEST_S)
            if is_ripe and (not ripe or (suspect.kind, suspect.place) == (ripe[0].kind, ripe[0].place)):
                ripe.append(suspect)
                if len(ripe) == limit:
                    break
        for suspect in ripe:
            del self._since_s[suspect]
        return ripe

    def not_told(self, suspects: Iterable[Suspect]) -> list[Suspect]:
        """Of what was found and stays as it is, what is new: the rest was counted before."""
        new = [suspect for suspect in suspects if suspect not in self._told]
        if len(self._told) >= self.most:
            self._told.clear()
        self._told.update(new)
        return new
