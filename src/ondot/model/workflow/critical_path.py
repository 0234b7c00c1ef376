"""The critical path of a run (W9): the chain of steps that decided how long it took.

It leads backwards from the step that ended last: each time to the parent that ended last, because the step could not
start before it. A `finally` step could not start before everything else had ended. While a run goes on, it leads back
from the step that has waited or run longest.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

Times = tuple[datetime | None, datetime | None]
"""When a step was released, and when it ended. A join is not released."""


def find_critical_path(
    parents: Sequence[Sequence[int]], times: Mapping[int, Times], finals: Collection[int] = ()
) -> list[int]:
    """Numbers of steps, in the order in which they ran. `times`: of the steps that ran or run. `finals`: those that are
    `finally`."""
    running = {no: released_at for no, (released_at, ended_at) in times.items() if released_at and not ended_at}
    ended = {no: ended_at for no, (_, ended_at) in times.items() if ended_at is not None}
    if not running and not ended:
        return []
    no = min(running, key=lambda no: (running[no], no)) if running else max(ended, key=lambda no: (ended[no], no))
    path = [no]
    while True:
        above = _find_ended_above(parents, path[-1], ended)
        if path[-1] in finals:
            above = [parent for parent in above if parent in finals] or [no for no in ended if no not in finals]
        if not above:
            break
        path.append(max(above, key=lambda no: (ended[no], no)))
    return path[::-1]


def _find_ended_above(parents: Sequence[Sequence[int]], no: int, ended: Mapping[int, datetime]) -> list[int]:
    """The parents of a step that ended; instead of one that did not run, such as a BLOCKED or SKIPPED one, those that
    ended above it: a step `when: failure` below a BLOCKED one was decided by the failure."""
    found: list[int] = []
    seen: set[int] = set()
    wanted = list(parents[no])
    while wanted:
        parent = wanted.pop()
        if parent in seen:
            continue
        seen.add(parent)
        if parent in ended:
            found.append(parent)
        else:
            wanted += parents[parent]
    return found
