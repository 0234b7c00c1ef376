"""Which lanes a worker takes from, in which order, and how many from each (E2): policy here, SQL only takes.

A lane is one (class, tenant) of a pool's queue. A tenant's lanes are served by how long their head has waited, with a
head start for each class: a class's penalty is the longest that work of a better class may overtake it for. So `low`
work that has waited `PENALTY_S[LOW]` longer than the oldest `high` work goes first: nothing starves, and the bound is
stated. Among tenants age counts for nothing, else one with a deep backlog would hold up all others: `Turns` gives each
its share, whoever was given least first.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import NamedTuple

from ondot.model.execution import PriorityClass
from ondot.model.ids import PoolNo, TenantNo

PENALTY_S: dict[PriorityClass, float] = {
    PriorityClass.RECOVERED: 0.0,
    PriorityClass.HIGH: 1.0,
    PriorityClass.NORMAL: 10.0,
    PriorityClass.LOW: 60.0,
    PriorityClass.CATCH_UP: 120.0,
    PriorityClass.SUSPECT: 120.0,
}
_PENALTIES = [timedelta(seconds=PENALTY_S[priority_class]) for priority_class in PriorityClass]

MOST_LANES = 100
"""That one lease takes from: with more tenants than these, some have their turn in the next."""
A_FEW = 8
"""Asked of a lane beyond what it gave when it had less than was asked for: if it gives that, it has become deep."""


class Lane(NamedTuple):
    """A tuple, since thousands of them are looked up for a survey."""

    pool_no: PoolNo
    priority_class: PriorityClass
    tenant_no: TenantNo


class Waiting(NamedTuple):
    """A lane that has work, and since when its head may start."""

    lane: Lane
    ready_at: datetime
    is_limited: bool = False
    """Its pool has limits of its own, which are counted when it is leased from."""


def in_order(waiting: Iterable[Waiting]) -> list[Lane]:
    """The lanes to take from, most deserving first."""
    return [
        entry.lane
        for entry in sorted(
            waiting,
            key=lambda entry: (
                entry.ready_at + _PENALTIES[entry.lane.priority_class],
                entry.lane.priority_class,
                entry.lane.tenant_no,
            ),
        )
    ]


@dataclass(frozen=True, slots=True)
class Take:
    """Up to so many of one lane."""

    lane: Lane
    count: int


class Turns:
    """Whose turn it is among tenants: deficit round robin, by what each was given so far for its weight.

    A tenant that comes (back) to wait begins level with the one that was given least: it has a claim from now on, none
    on what it did not need. Kept for one worker; workers that each share fairly share fairly together.
    """

    def __init__(self, weight: Callable[[TenantNo], float] = lambda _: 1.0) -> None:
        self._weight = weight
        self._given: dict[TenantNo, float] = {}
        self._level = 0.0
        self._few: dict[Lane, int] = {}
        """Lanes that lately gave less than they were asked for, and what is asked of them: the rest is others'."""

    def see(self, waiting: Iterable[Waiting]) -> None:
        """Who waits, by a new survey."""
        lanes = {entry.lane for entry in waiting}
        tenants = {lane.tenant_no for lane in lanes}
        known = [self._given[tenant_no] for tenant_no in tenants if tenant_no in self._given]
        self._level = max(self._level, min(known, default=self._level)) if tenants else 0.0
        came = dict.fromkeys(tenants - self._given.keys(), self._level)
        # Who went away with more than the others have now is not level with them when it comes back at once.
        stayed = {
            tenant_no: max(given, self._level)
            for tenant_no, given in self._given.items()
            if tenant_no in tenants or (tenants and given > self._level)
        }
        self._given = stayed | came
        self._few = {lane: few for lane, few in self._few.items() if lane in lanes}

    def in_turn(self, waiting: Iterable[Waiting]) -> list[Lane]:
        """All lanes, tenant by tenant: whoever was given least first, and of each the most deserving lane first."""
        order: dict[TenantNo, list[Lane]] = {}
        for lane in in_order(waiting):
            order.setdefault(lane.tenant_no, []).append(lane)
        # The sort is stable: of tenants that are level, the one whose head has waited longest goes first.
        return [lane for tenant_no in sorted(order, key=self._given_to) for lane in order[tenant_no]]

    def shares(self, lanes: Sequence[Lane], limit: int) -> list[Take]:
        """How many to take from each of these lanes, which are in turn. They are cut at the limit in all.

        Those that were given least are raised until all are level, and from there on by weight.
        """
        lanes = lanes[:MOST_LANES]
        tenants = [(tenant_no, list(own)) for tenant_no, own in groupby(lanes, key=lambda lane: lane.tenant_no)]
        if len(tenants) == 1:
            return [Take(lane, limit) for lane in lanes]
        shares = self._raised(tenants, limit)
        return [take for (_, own), share in zip(tenants, shares, strict=True) for take in self._of_one(own, share)]

    def took(self, takes: Sequence[Take], taken: Mapping[Lane, int], limit: int) -> list[Lane]:
        """What a lease brought of what it asked for. Gives the lanes that have no more, as far as it could see."""
        is_cut = sum(taken.values()) >= limit
        emptied = []
        for take in takes:
            got = taken.get(take.lane, 0)
            tenant_no = take.lane.tenant_no
            self._given[tenant_no] = self._given_to(tenant_no) + got / self._weight(tenant_no)
            if got < take.count and not is_cut:
                self._few[take.lane] = got + A_FEW
                emptied.append(take.lane)
            else:
                self._few.pop(take.lane, None)
        return emptied

    def _of_one(self, lanes: list[Lane], share: int) -> Iterator[Take]:
        """A tenant's share from its first lane, and of the next what the ones before are not believed to have."""
        for lane in lanes:
            if share <= 0:
                return
            yield Take(lane, share)
            share -= self._few.get(lane, share)

    def _given_to(self, tenant_no: TenantNo) -> float:
        return self._given.get(tenant_no, self._level)

    def _raised(self, tenants: Sequence[tuple[TenantNo, list[Lane]]], limit: int) -> list[int]:
        """What each tenant gets of the limit, in whole numbers; no more than it is believed to have."""
        rooms = [sum(self._few.get(lane, limit) for lane in own) for _, own in tenants]
        starts = [self._given_to(tenant_no) for tenant_no, _ in tenants]
        weights = [self._weight(tenant_no) for tenant_no, _ in tenants]
        level = _level_of(starts, weights, rooms, limit)
        shares = [
            min(room, max(int((level - start) * weight), 0))
            for start, weight, room in zip(starts, weights, rooms, strict=True)
        ]
        rest = limit - sum(shares)
        for n, room in enumerate(rooms):
            more = min(1, rest, room - shares[n])
            shares[n] += more
            rest -= more
        return shares


def _level_of(starts: Sequence[float], weights: Sequence[float], rooms: Sequence[int], amount: float) -> float:
    """Up to which level an amount fills vessels that begin at a height, are as wide as a weight, and hold so much."""
    changes = sorted(
        change
        for start, weight, room in zip(starts, weights, rooms, strict=True)
        for change in ((start, weight), (start + room / weight, -weight))
    )
    level, width = changes[0][0], 0.0
    for height, wider in changes:
        poured = (height - level) * width
        if poured >= amount:
            break
        amount -= poured
        level, width = height, width + wider
    else:
        return level
    return level + amount / width
