"""Who is lost (E6): a beat counter that stood still for the timeout by two clocks.

The housekeeper's monotonic clock alone would declare every worker lost after its own freeze; the database's alone,
after a step of its clock or an outage in which nobody could beat. So both must agree. A gap in which the housekeeper
itself did not reach the database counts for nobody, and after it whoever lives has time to beat again; but a silence
that was seen before it is not forgotten, or a server that restarts again and again would keep the dead alive.

Gaps that follow each other closely are a slow housekeeper's rhythm and no outage: of each of them `gap_s` counts, or a
dead worker would never be lost while looks are more than `gap_s` apart. So a worker that never beats again is lost
after `most_gaps` gaps at most, and the timeout. After a step of the database's clock every watch starts again.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

CLOCK_STEP_S = 2.0
"""A difference between the two clocks' progress that is taken for a step."""
BACK_S = 5.0
"""So long may whoever lives take to beat again when the database is back (L4)."""
BEATS_A_TIMEOUT = 3
"""How often a worker beats within the timeout."""
SILENT = 0.5
"""Longer than that part of the timeout without a beat: it has missed one, of three before it is lost."""


def is_silent(state: str, silent_s: float, timeout_s: float) -> bool:
    """Whether people should hear of a worker that has not ended: nobody is declared lost by this."""
    return state in {"ALIVE", "DRAINING"} and silent_s > timeout_s * SILENT


def is_stalled(state: str, stalled_at: object) -> bool:
    """Whether it has said that its loop stands still, and has not ended since."""
    return state in {"ALIVE", "DRAINING"} and stalled_at is not None


def gap_s(timeout_s: float) -> float:
    """Longer without a look is a gap: whoever lives, and had just not beaten, survives a shorter one."""
    return max(timeout_s * 0.3, min(timeout_s * 0.5, 1.0))


def most_gaps(timeout_s: float) -> int:
    """In how many gaps at most a worker that is silent is not lost yet. Of two in a row, or the time between them, at
    least `gap_s` counts: so many for the timeout, the first for nothing, one in which the time is over."""
    return math.ceil(max(timeout_s, BACK_S) / gap_s(timeout_s)) + 2


def when_lost(timeout_s: float) -> str:
    """What becomes of a silent worker, in words that are true after an outage too, however long it has been silent."""
    return (
        f"A scheduler declares lost whom it has watched be silent for {timeout_s:g} s; an outage of PostgreSQL of more"
        f" than {gap_s(timeout_s):g} s does not count, and for {BACK_S:g} s after it nobody is judged"
    )


@dataclass(frozen=True, slots=True)
class Beat:
    """What the database knows of one worker."""

    worker_id: UUID
    beat_no: int
    beat_at: datetime


@dataclass(slots=True)
class _Seen:
    """Since when a counter stands still: `at_s`; and `back_s`, since when there was time to beat again after the first
    gap in that. Both are moved on by every gap."""

    beat_no: int
    at_s: float
    back_s: float = -math.inf


@dataclass(slots=True)
class Watch:
    """Memory of one housekeeper. `look` is pure but for this memory: it takes both clocks as arguments."""

    timeout_s: float
    _seen: dict[UUID, _Seen] = field(default_factory=dict)
    _last_look: tuple[float, datetime, float] | None = None
    _gap_ended_s: float = -math.inf

    def look(
        self, beats: Iterable[Beat], *, monotonic_s: float, database_now: datetime, took_s: float = 0.0
    ) -> list[Beat]:
        """The workers that are lost as of this look, with the beat they are judged by.

        `took_s`: how long before `monotonic_s` the database may have read its clock. A busy housekeeper's late reading
        is no step of that clock.
        """
        self._mind_gaps_and_steps(monotonic_s, database_now, took_s)
        self._last_look = (monotonic_s, database_now, took_s)
        lost = []
        seen: dict[UUID, _Seen] = {}
        for beat in beats:
            before = self._seen.get(beat.worker_id)
            if before is None or before.beat_no != beat.beat_no:
                seen[beat.worker_id] = _Seen(beat.beat_no, monotonic_s)
                continue
            seen[beat.worker_id] = before
            still_here = self._lost_at_s(before) < monotonic_s
            # A beat of the future is one from before the clock was set back: that clock tells nothing of its age.
            age_s = (database_now - beat.beat_at).total_seconds()
            still_there = age_s > self.timeout_s or age_s < -CLOCK_STEP_S
            if still_here and still_there:
                lost.append(beat)
        self._seen = seen
        return lost

    def next_loss_s(self, monotonic_s: float) -> float | None:
        """In how many seconds the one that is silent for longest is lost, if it stays so; None: there is nobody."""
        first_s = min(map(self._lost_at_s, self._seen.values()), default=None)
        return None if first_s is None else max(first_s - monotonic_s, 0.0)

    def _lost_at_s(self, seen: _Seen) -> float:
        return max(seen.at_s + self.timeout_s, seen.back_s + BACK_S)

    def _mind_gaps_and_steps(self, monotonic_s: float, database_now: datetime, took_s: float) -> None:
        if self._last_look is None:
            return
        last_s, last_now, last_took_s = self._last_look
        passed_here = monotonic_s - last_s
        passed_there = (database_now - last_now).total_seconds()
        if abs(passed_here - passed_there) > CLOCK_STEP_S + max(took_s, last_took_s):
            self._seen.clear()
        elif passed_here > (longest_s := gap_s(self.timeout_s)):
            is_first = last_s - self._gap_ended_s >= longest_s
            excused_s = passed_here if is_first else passed_here - longest_s
            self._gap_ended_s = monotonic_s
            for seen in self._seen.values():
                seen.at_s += excused_s
                seen.back_s = seen.back_s + excused_s if seen.back_s > -math.inf else monotonic_s
