"""When a worker is lost (E6): its heartbeat counter has not moved for the timeout, by two clocks.

The housekeeper's monotonic clock alone would mark every worker lost after the housekeeper itself froze. The database's
clock alone would do so after a clock step, or after an outage in which no worker could send a heartbeat. So both must
agree. Time in which the housekeeper could not reach the database (a gap) does not count, and after it live workers have
time to send a heartbeat. Silence seen before the gap still counts, or a server that keeps restarting would keep dead
workers alive.

Gaps that follow each other closely are not outages but a slow housekeeper. Of each such gap `gap_s` counts, or a dead
worker would never be lost while checks are more than `gap_s` apart. So a dead worker is lost after at most `most_gaps`
gaps plus the timeout. After a step of the database's clock, all watching starts again.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

CLOCK_STEP_S = 2.0
"""A larger difference between the two clocks' progress is a clock step."""
BACK_S = 5.0
"""How long a live worker may take to send a heartbeat after the database is back (L4)."""
BEATS_A_TIMEOUT = 3
"""How many heartbeats a worker sends within the timeout."""
SILENT = 0.5
"""A worker without a heartbeat for this part of the timeout is silent: it missed one of three before it is lost."""


def is_silent(state: str, silent_s: float, timeout_s: float) -> bool:
    """Whether to show a worker as silent. This does not mark it lost."""
    return state in {"ALIVE", "DRAINING"} and silent_s > timeout_s * SILENT


def is_stalled(state: str, stalled_at: object) -> bool:
    """Whether it has reported that its loop is blocked, and has not ended since."""
    return state in {"ALIVE", "DRAINING"} and stalled_at is not None


def gap_s(timeout_s: float) -> float:
    """A longer time between two checks is a gap. A live worker that was about to beat survives a shorter one."""
    return max(timeout_s * 0.3, min(timeout_s * 0.5, 1.0))


def most_gaps(timeout_s: float) -> int:
    """The most gaps before a silent worker is lost. Of two consecutive gaps, or the time between them, at least `gap_s`
    counts. So: enough gaps for the timeout, the first that does not count, and the one in which the timeout ends."""
    return math.ceil(max(timeout_s, BACK_S) / gap_s(timeout_s)) + 2


def when_lost(timeout_s: float) -> str:
    """What happens to a silent worker, in words that are true after an outage too, however long it has been silent."""
    return (
        f"A worker that sends no heartbeat for {timeout_s:g} s is marked lost; an outage of PostgreSQL longer than"
        f" {gap_s(timeout_s):g} s does not count, and no worker is marked lost in the {BACK_S:g} s after it"
    )


@dataclass(frozen=True, slots=True)
class Beat:
    """The database's record of one worker."""

    worker_id: UUID
    beat_no: int
    beat_at: datetime


@dataclass(slots=True)
class _Seen:
    """`at_s`: since when the counter has not moved. `back_s`: since when the worker could send a heartbeat after the
    first gap. Every gap moves both forward."""

    beat_no: int
    at_s: float
    back_s: float = -math.inf


@dataclass(slots=True)
class Watch:
    """The memory of one housekeeper. `look` takes both clocks as arguments and is pure except for this memory."""

    timeout_s: float
    _seen: dict[UUID, _Seen] = field(default_factory=dict)
    _last_look: tuple[float, datetime, float] | None = None
    _gap_ended_s: float = -math.inf

    def look(
        self, beats: Iterable[Beat], *, monotonic_s: float, database_now: datetime, took_s: float = 0.0
    ) -> list[Beat]:
        """The workers that are lost now, each with the heartbeat that decided it.

        `took_s`: how long before `monotonic_s` the database may have read its clock. A busy housekeeper that gets the
        answer late must not see a clock step.
        """
        self._adjust_for_gaps_and_steps(monotonic_s, database_now, took_s)
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
            # A heartbeat in the future was written before the clock was set back: its age is unknown.
            age_s = (database_now - beat.beat_at).total_seconds()
            still_there = age_s > self.timeout_s or age_s < -CLOCK_STEP_S
            if still_here and still_there:
                lost.append(beat)
        self._seen = seen
        return lost

    def next_loss_s(self, monotonic_s: float) -> float | None:
        """Seconds until the worker that is silent for longest is lost, if it stays silent. None: there is no worker."""
        first_s = min(map(self._lost_at_s, self._seen.values()), default=None)
        return None if first_s is None else max(first_s - monotonic_s, 0.0)

    def _lost_at_s(self, seen: _Seen) -> float:
        return max(seen.at_s + self.timeout_s, seen.back_s + BACK_S)

    def _adjust_for_gaps_and_steps(self, monotonic_s: float, database_now: datetime, took_s: float) -> None:
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
