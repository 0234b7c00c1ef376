"""The critical path of a run (W9): the chain of steps that decided how long it took.

It leads backwards from the step that ended last: each time to the parent that ended last, because the step could not
start before it. While a run goes on, it leads back from the step that has waited or run longest.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

Times = tuple[datetime | None, datetime | None]
"""When a step was released, and when it ended. A join is not released."""


def find_critical_path(parents: Sequence[Sequence[int]], times: Mapping[int, Times]) -> list[int]:
    """Numbers of steps, in the order in which they ran. `times`: of the steps that ran or run."""
    running = {no: released_at for no, (released_at, ended_at) in times.items() if released_at and not ended_at}
    ended = {no: ended_at for no, (_, ended_at) in times.items() if ended_at is not None}
    if not running and not ended:
        return []
    no = min(running, key=lambda no: (running[no], no)) if running else max(ended, key=lambda no: (ended[no], no))
    path = [no]
    while above := [parent for parent in parents[path[-1]] if parent in ended]:
        path.append(max(above, key=lambda no: (ended[no], no)))
    return path[::-1]
