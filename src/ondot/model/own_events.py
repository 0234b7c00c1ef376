"""ondot's own events (S11): their types, and how far one may lead to the next.

Each event carries `ondothops`: how many of ondot's own events led to it, one after the other. It is inherited by what
an execution causes, so that jobs that start each other in a circle end after `MAX_HOPS`.
"""

from typing import Any, Final

MAX_HOPS: Final = 16
HOPS: Final = "ondothops"

RUN_BLOCKED: Final = "ondot.run.blocked"
JOB_PAUSED: Final = "ondot.job.paused"
TYPES: Final = (
    "ondot.execution.succeeded",
    "ondot.execution.failed",
    "ondot.execution.cancelled",
    "ondot.execution.skipped",
    RUN_BLOCKED,
    JOB_PAUSED,
)


def hops_of(event: dict[str, Any]) -> int:
    """How many events led to this one; 0 for one that does not say so."""
    hops = event.get(HOPS)
    if isinstance(hops, str) and hops.isascii() and hops.isdigit() and len(hops) <= 9:
        return int(hops)
    return hops if isinstance(hops, int) and not isinstance(hops, bool) and hops > 0 else 0


def why_too_far(event: dict[str, Any]) -> str | None:
    """Why an event is refused; None: it is not."""
    hops = hops_of(event)
    if hops <= MAX_HOPS:
        return None
    return (
        f"{HOPS} is {hops}, and more than {MAX_HOPS} events that lead to one another are refused: jobs start each other"
        " in a circle. Narrow their filters."
    )
