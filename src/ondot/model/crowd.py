"""Where there is room: warnings about crowded instants, and the offset of a job that may be spread (S13).

Pure. A `Crowd` is one pool's fires and predicted waits by minute for the next day. A schedule is judged by its fires in
that day, at most `FIRES_LOOKED_AT` of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from msgspec import structs

from ondot.model.herd import Grid
from ondot.model.schedule import Cron, Schedule
from ondot.model.schedule.listing import list_fires
from ondot.model.schedule.looks import allowed

if TYPE_CHECKING:
    from array import array

CROWDED_S: Final = 5.0
"""The predicted wait from which an instant is crowded."""
FIRES_LOOKED_AT: Final = 50
LOOKS: Final = 2_000
PROPOSED: Final = 3
_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class Warned:
    """`at`: the most crowded fire. `minutes`: of its hour, those with the most room."""

    at: datetime
    wait_s: float
    minutes: tuple[int, ...]


@dataclass(slots=True)
class Crowd:
    grid: Grid
    fires: "array[float]"
    waits: Sequence[float]

    def warn(self, schedule: Schedule, delay_s: float) -> Warned | None:
        """None: none of its next fires is in a crowd."""
        steps = self._steps(schedule, int(delay_s))
        if not steps:
            return None
        worst = max(steps, key=lambda step: self.waits[step])
        if self.waits[worst] < CROWDED_S:
            return None
        at = self.grid.begin_at + timedelta(seconds=worst * self.grid.step_s)
        return Warned(at, self.waits[worst], self._better_minutes(schedule))

    def choose_offset(self, schedule: Schedule, seed: bytes) -> int:
        """The delay within its spread at which the fewest others are due. It counts from now on, so that the next of a
        thousand jobs gets another one."""
        spread_s, step_s = int(schedule.spread_s), self.grid.step_s
        steps = self._steps(structs.replace(schedule, spread_s=0, offset_s=None), 0)
        loads = self._loads(steps, spread_s // step_s + 1)
        least = min(loads)
        later = min((shift for shift, load in enumerate(loads) if load == least), key=lambda shift: _hash(seed, shift))
        for step in steps:
            due = step + later
            self.fires[due if due < self.grid.steps else due - _DAY_S // step_s] += 1
        # Within the minute any second will do: not all of them the first.
        room_s = min(step_s, spread_s - later * step_s + 1)
        return later * step_s + _hash(seed, -1) % room_s

    def _loads(self, steps: list[int], shifts: int) -> Sequence[float]:
        """What else is due with these steps, for each shift of them. By whole slices: a window of a day has 1,441
        shifts, and a request may have a thousand such jobs."""
        known = self.fires + self.fires[-(_DAY_S // self.grid.step_s) :]  # what is later is taken to be as a day before
        columns = zip(*(known[step : step + shifts] for step in steps), strict=True)
        return list(map(sum, columns)) or [0.0] * shifts

    def _load(self, steps: list[int], shift: int) -> float:
        last = self.grid.steps
        return sum(self.fires[step + shift] for step in steps if step + shift < last)

    def _better_minutes(self, schedule: Schedule) -> tuple[int, ...]:
        rule = schedule.when
        if not isinstance(rule, Cron) or len(fields := rule.expression.split()) != 5 or not fields[0].isdigit():
            return ()
        now = int(fields[0])
        ranked = []
        for minute in range(60):
            moved = structs.replace(rule, expression=" ".join((str(minute), *fields[1:])))
            steps = self._steps(structs.replace(schedule, when=moved), 0)
            wait_s = max((self.waits[step] for step in steps), default=0.0)
            ranked.append((wait_s, self._load(steps, 0), abs(minute - now), minute))
        ranked.sort()
        return tuple(sorted(minute for wait_s, *_, minute in ranked[:PROPOSED] if wait_s < CROWDED_S))

    def _steps(self, schedule: Schedule, delay_s: int) -> list[int]:
        begin_at = self.grid.begin_at
        with allowed(LOOKS):
            fires, _ = list_fires(schedule, begin_at, self.grid.end_at, FIRES_LOOKED_AT)
        first_s = int(begin_at.timestamp())
        steps = ((fire_s + delay_s - first_s) // self.grid.step_s for fire_s in fires)
        return [step for step in steps if step < self.grid.steps]


def _hash(seed: bytes, number: int) -> int:
    return int.from_bytes(blake2b(seed + number.to_bytes(4, "big", signed=True), digest_size=4).digest(), "big")
