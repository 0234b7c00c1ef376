"""Whose turn it is among the tenants of a pool, in slot-seconds by weight (E2, L6, T2). Pure: no clock, no I/O.

`model.fairness` orders the lanes of one tenant; `Turns` orders tenants, and cuts a lease into shares. Nothing starves:
a tenant that waits falls behind in what it got, until it is first.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from heapq import heapify, heappop, heappush
from itertools import groupby
from types import MappingProxyType
from typing import Final

from ondot.model.fairness import PENALTIES, Lane, Take, Waiting, order_lanes
from ondot.model.ids import TenantNo

MOST_LANES: Final = 200
"""Lanes that one lease takes from: with more tenants than that, some have their turn in the next lease."""
A_FEW: Final = 8
"""Asked of a lane beyond its last yield, if that was less than asked: when it yields this too, it has become deep."""
DEPOSIT_S: Final = 10.0
"""An attempt is charged at most this much in advance: one that may run for hours must not cost its tenant hours of
turns before they have passed."""
UNKNOWN_S: Final = 1.0
"""What the first attempt of a tenant is charged in advance, at least."""
SHORTEST_S: Final = 0.0001
NEW_SHARE: Final = 0.1
"""How much the last attempt counts in what a tenant's attempts usually take."""
NO_ROOMS: Final[Mapping[TenantNo, int]] = MappingProxyType({})


class _Account:
    """What one tenant got of this worker. `height`: slot-seconds divided by weight, above the level of `Turns`."""

    __slots__ = ("_ends", "_took_s", "height", "running")

    def __init__(self, attempt_s: float) -> None:
        self.height = 0.0
        self.running = 0
        self._took_s = attempt_s
        self._ends = 1.0

    @property
    def deposit_s(self) -> float:
        """What an attempt usually takes. One that still runs counts too: long ones are known before the first ends."""
        return max(min(self._took_s / self._ends, DEPOSIT_S), SHORTEST_S)

    def accrue(self, more_s: float) -> None:
        self._took_s += more_s

    def end(self, more_s: float) -> None:
        self._took_s = self._took_s * (1 - NEW_SHARE) + more_s
        self._ends = self._ends * (1 - NEW_SHARE) + 1


class _Held:
    """Slots that attempts of one tenant hold since the same instant, and the seconds that each is charged so far."""

    __slots__ = ("accrued_s", "charged_s", "running", "since_s", "tenant_no")

    def __init__(self, tenant_no: TenantNo, running: int, since_s: float, charged_s: float) -> None:
        self.tenant_no = tenant_no
        self.running = running
        self.since_s = since_s
        self.charged_s = charged_s
        self.accrued_s = 0.0


class Turns:
    """Whose turn it is among tenants: deficit round robin, by the slot-seconds that each got, divided by its weight.

    An attempt is charged when it starts, by what its tenant's attempts usually take (at most `DEPOSIT_S`). It is
    charged further while it runs beyond that, and corrected when it ends. So a tenant of long jobs gets the same
    slot-seconds as one of short jobs, and about its share of the slots meanwhile.

    A tenant that starts to wait, or waits again, starts level with the one that got least: its claim counts from now
    on, not for what it did not need before. Each worker keeps its own turns; if each shares fairly, all together do.
    Instants are seconds of a monotonic clock.
    """

    def __init__(self, weight: Callable[[TenantNo], float] = lambda _: 1.0) -> None:
        self._weight = weight
        self._accounts: dict[TenantNo, _Account] = {}
        self._held: dict[Hashable, _Held] = {}
        self._running: set[_Held] = set()
        """The values of `_held`: attempts that start at the same time are charged as one."""
        self._usual_s = UNKNOWN_S
        self._lanes: dict[TenantNo, list[Waiting]] = {}
        self._heap: list[tuple[float, float, datetime, TenantNo]] = []
        self._drawn: list[TenantNo] = []
        self._few: dict[Lane, int] = {}
        """Lanes that yielded less than was asked of them, and what is asked of them next: others get the rest."""

    # What waits ------------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._lanes)

    @property
    def is_shared(self) -> bool:
        """Whether several tenants wait."""
        return len(self._lanes) > 1

    def update(self, waiting: Iterable[Waiting]) -> None:
        """Take over which lanes have due work by a new survey."""
        lanes: dict[TenantNo, list[Waiting]] = {}
        for entry in waiting:
            lanes.setdefault(entry.lane.tenant_no, []).append(entry)
        if self._few:
            known = {entry.lane for own in lanes.values() for entry in own}
            self._few = {lane: few for lane, few in self._few.items() if lane in known}
        self._lanes = lanes
        self._set_level()
        self._line_up()

    def next_in_turn(self, most: int = MOST_LANES) -> list[Lane]:
        """Lanes, tenant by tenant: the one that got least first, and for each the most deserving lane first.

        Each call of the next tenants in turn; `record` puts those back that have more.
        """
        found: list[Lane] = []
        while self._heap and len(found) < most:
            *_, tenant_no = place = heappop(self._heap)
            if tenant_no not in self._lanes:
                continue
            if (now := self._place(tenant_no)) > place:
                # It was charged since it was put there: others may be before it now.
                heappush(self._heap, now)
                continue
            self._drawn.append(tenant_no)
            found += order_lanes(self._lanes[tenant_no])
        return found

    def start_round(self) -> None:
        """Put the tenants back that had their turn, and still wait."""
        for tenant_no in self._drawn:
            if tenant_no in self._lanes:
                heappush(self._heap, self._place(tenant_no))
        self._drawn = []

    def share_out(
        self,
        lanes: Sequence[Lane],
        limit: int,
        *,
        free: int | None = None,
        rooms: Mapping[TenantNo, int] = NO_ROOMS,
        held_free: Mapping[TenantNo, int] = NO_ROOMS,
    ) -> list[Take]:
        """How many to take from each of these lanes, which are in their order, up to the limit in total.

        Tenants that got least are raised until all are level, then all of them by weight. `rooms`: how many attempts of
        a tenant may start. `held_free`: how many of the `free` slots are held free for a tenant: only it gets them.
        """
        lanes = lanes[:MOST_LANES]
        tenants = [(tenant_no, list(own)) for tenant_no, own in groupby(lanes, key=lambda lane: lane.tenant_no)]
        common = max((limit if free is None else free) - sum(held_free.values()), 0)
        is_exact = bool(rooms or held_free)
        if len(tenants) == 1:
            [(tenant_no, own)] = tenants
            if not is_exact:
                return [Take(lane, limit) for lane in own]
            limit = min(limit, rooms.get(tenant_no, limit), common + held_free.get(tenant_no, 0))
            return list(self._takes_of_one(own, limit, is_exact=True))
        shares = self._share_by_tenant(tenants, limit, common, rooms, held_free)
        return [
            take
            for (_, own), share in zip(tenants, shares, strict=True)
            for take in self._takes_of_one(own, share, is_exact=is_exact)
        ]

    def record(self, takes: Sequence[Take], taken: Mapping[Lane, int], limit: int) -> list[Lane]:
        """Record what a lease yielded. Returns the lanes that are empty now, as far as it could see."""
        is_cut = sum(taken.values()) >= limit
        emptied = []
        for take in takes:
            got = taken.get(take.lane, 0)
            if got < take.count and not is_cut:
                self._few[take.lane] = got + A_FEW
                emptied.append(take.lane)
            else:
                self._few.pop(take.lane, None)
        for lane in emptied:
            self._remove(lane)
        return emptied

    def leave_out(self, tenant_no: TenantNo) -> None:
        """Until the next survey: nothing of this tenant may start."""
        self._lanes.pop(tenant_no, None)

    # What is charged -------------------------------------------------------------------------------------------------

    def begin_from(self, held: Mapping[TenantNo, float]) -> None:
        """The first turns of a new worker: as if it had done for a second what these slots do, which tenants hold.

        Otherwise the first attempts of many small workers all go to the oldest backlog. Call it after `update`.
        """
        for tenant_no, slots in held.items():
            self._account(tenant_no).height += slots / self._weight(tenant_no)
        self._line_up()

    def start(self, key: Hashable, tenant_no: TenantNo, now_s: float) -> None:
        """An attempt starts, and holds a slot until `end`."""
        self.start_all((key,), tenant_no, now_s)

    def start_all(self, keys: Collection[Hashable], tenant_no: TenantNo, now_s: float) -> None:
        account = self._account(tenant_no)
        deposit_s = account.deposit_s
        account.running += len(keys)
        account.height += len(keys) * deposit_s / self._weight(tenant_no)
        held = _Held(tenant_no, len(keys), now_s, deposit_s)
        self._held.update(dict.fromkeys(keys, held))
        self._running.add(held)

    def accrue(self, now_s: float) -> None:
        """Charge the attempts that run for longer than they were charged for."""
        for held in self._running:
            ran_s = now_s - held.since_s
            more_s = ran_s - held.charged_s
            if more_s > 0:
                held.charged_s += more_s
                account = self._account(held.tenant_no)
                account.height += held.running * more_s / self._weight(held.tenant_no)
                account.accrue(held.running * (ran_s - held.accrued_s))
                held.accrued_s = ran_s

    def end(self, key: Hashable, now_s: float) -> None:
        held = self._held.pop(key, None)
        if held is None:
            return
        held.running -= 1
        if not held.running:
            self._running.remove(held)
        took_s = max(now_s - held.since_s, SHORTEST_S)
        account = self._account(held.tenant_no)
        account.running -= 1
        account.height += (took_s - held.charged_s) / self._weight(held.tenant_no)
        account.end(took_s - held.accrued_s)
        self._usual_s += (took_s - self._usual_s) * NEW_SHARE

    def slots_held(self) -> dict[TenantNo, int]:
        """By tenant, of this worker."""
        return {tenant_no: account.running for tenant_no, account in list(self._accounts.items()) if account.running}

    # ---

    def _set_level(self) -> None:
        """Measure heights from the one that got least of those that wait, which new ones start level with."""
        known = [account.height for tenant_no in self._lanes if (account := self._accounts.get(tenant_no)) is not None]
        level = min(known, default=0.0)
        for tenant_no, account in list(self._accounts.items()):
            account.height = account.height - level
            if tenant_no not in self._lanes:
                # A tenant that left with more than the others have now is not level with them if it returns at once.
                account.height = max(account.height, 0.0)
                if not account.running and (not account.height or not self._lanes):
                    del self._accounts[tenant_no]
        for tenant_no in self._lanes.keys() - self._accounts.keys():
            self._account(tenant_no)

    def _line_up(self) -> None:
        self._drawn = []
        self._heap = [self._place(tenant_no) for tenant_no in self._lanes]
        heapify(self._heap)

    def _account(self, tenant_no: TenantNo) -> _Account:
        account = self._accounts.get(tenant_no)
        if account is None:
            account = self._accounts[tenant_no] = _Account(max(self._usual_s, UNKNOWN_S))
        return account

    def _place(self, tenant_no: TenantNo) -> tuple[float, float, datetime, TenantNo]:
        """Among level tenants, the one with fewer slots goes first, then the one whose head has waited longest."""
        first, *others = self._lanes[tenant_no]
        head_at = first.ready_at + PENALTIES[first.lane.priority_class]
        for entry in others:
            head_at = min(head_at, entry.ready_at + PENALTIES[entry.lane.priority_class])
        account = self._account(tenant_no)
        slots = account.running / self._weight(tenant_no) if account.running else 0.0
        return account.height, slots, head_at, tenant_no

    def _remove(self, lane: Lane) -> None:
        own = self._lanes.get(lane.tenant_no)
        if own is None:
            return
        own[:] = [entry for entry in own if entry.lane != lane]
        if not own:
            del self._lanes[lane.tenant_no]

    def _takes_of_one(self, lanes: list[Lane], share: int, *, is_exact: bool) -> Iterator[Take]:
        """A tenant's share from its first lane; from the next ones the part that those before may lack.

        `is_exact`: no more than the share in total, so less than it if a lane has become shorter.
        """
        for lane in lanes:
            if share <= 0:
                return
            likely = self._few.get(lane, share)
            yield Take(lane, min(share, likely) if is_exact else share)
            share -= likely

    def _share_by_tenant(
        self,
        tenants: Sequence[tuple[TenantNo, list[Lane]]],
        limit: int,
        common: int,
        rooms: Mapping[TenantNo, int],
        held_free: Mapping[TenantNo, int],
    ) -> list[int]:
        """What each tenant gets of the limit, in whole numbers, and no more than it is likely to have."""
        accounts = [self._account(tenant_no) for tenant_no, _ in tenants]
        most = [
            min(sum(self._few.get(lane, limit) for lane in own), rooms.get(tenant_no, limit))
            for tenant_no, own in tenants
        ]
        shares = [0] * len(tenants)
        left = limit
        for n, (tenant_no, _) in enumerate(tenants):
            shares[n] = min(held_free.get(tenant_no, 0), most[n], left)
            left -= shares[n]
        # How many attempts raise a tenant by 1.
        widths = [
            self._weight(tenant_no) / account.deposit_s
            for (tenant_no, _), account in zip(tenants, accounts, strict=True)
        ]
        starts = [
            account.height + share / width for account, share, width in zip(accounts, shares, widths, strict=True)
        ]
        rest = min(left, common)
        level = _fill_level(starts, widths, [room - share for room, share in zip(most, shares, strict=True)], rest)
        for n, (start, width) in enumerate(zip(starts, widths, strict=True)):
            more = min(most[n] - shares[n], max(int((level - start) * width), 0), rest)
            shares[n] += more
            rest -= more
        for n, room in enumerate(most):
            more = min(1, rest, room - shares[n])
            shares[n] += more
            rest -= more
        return shares


def _fill_level(starts: Sequence[float], widths: Sequence[float], rooms: Sequence[int], amount: float) -> float:
    """The level to which an amount fills vessels, each with the height where it starts, its width and its volume."""
    changes = sorted(
        change
        for start, width, room in zip(starts, widths, rooms, strict=True)
        for change in ((start, width), (start + room / width, -width))
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
    return level + amount / width if width > 0 else level
