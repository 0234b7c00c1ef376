"""The critical path of a run (W9): the chain of steps that decided how long it took.

It leads backwards from the step that ended last: each time to the parent that ended last, because the step could not
start before it. While a run goes on, it leads back from the step that has waited or run longest.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

Times = tuple[datetime | None, datetime | None]
"""When a step was released, and when it ended."""


def find_critical_path(parents: Sequence[Sequence[int]], times: Mapping[int, Times]) -> list[int]:
    """Numbers of steps, in the order in which they ran. `times`: of the steps that ran or run."""
    ran = {no: at for no, at in times.items() if at[0] is not None}
    if not ran:
        return []
    running = [no for no, (_, ended_at) in ran.items() if ended_at is None]
    no: int | None = min(running, key=lambda no: (ran[no][0], no)) if running else max(ran, key=lambda no: _end(ran, no))
    path: list[int] = []
    while no is not None:
        path.append(no)
        above = [parent for parent in parents[no] if parent in ran and ran[parent][1] is not None]
        no = max(above, key=lambda parent: _end(ran, parent), default=None)
    return path[::-1]


def _end(times: Mapping[int, Times], no: int) -> tuple[datetime, int]:
    ended_at = times[no][1]
    assert ended_at is not None
    return ended_at, -no
