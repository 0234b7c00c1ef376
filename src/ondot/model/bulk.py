"""Operations on many things at once (O8): what can be done to what, which right that needs, what would be refused.

The table of actions is the only list of them: the API, the commands and the pages read it. Refusals here are those that
a dry run can see from the state of an item; the action itself decides again when its turn comes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, get_args

from ondot.model.access import Right

Kind = Literal["executions", "jobs", "dead_letters", "runs"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
BulkAction = Literal["cancel", "retry", "pause", "resume", "delete", "update", "run", "replay", "discard"]
BulkState = Literal["RUNNING", "DONE", "CANCELLED"]

MOST_IDS: Final = 10_000
DEFAULT_PER_S: Final = 50
MOST_PER_S: Final = 1_000
KEPT_REFUSALS: Final = 10_000
"""Refused items that are kept with their reason; further ones are counted."""
MOST_UNDOABLE: Final = 100_000
"""Changed items that are remembered, for an undo. An operation that changes more cannot be undone."""

RIGHTS: Final[Mapping[Kind, Mapping[BulkAction, Right]]] = MappingProxyType(
    {
        "executions": {"cancel": Right.JOBS_RUN, "retry": Right.JOBS_RUN},
        "jobs": {
            "pause": Right.JOBS_RUN,
            "resume": Right.JOBS_RUN,
            "run": Right.JOBS_RUN,
            "update": Right.JOBS_WRITE,
            "delete": Right.JOBS_WRITE,
        },
        "dead_letters": {"replay": Right.JOBS_RUN, "discard": Right.JOBS_RUN},
        "runs": {
            "cancel": Right.JOBS_RUN,
            "retry": Right.JOBS_RUN,
            "pause": Right.JOBS_RUN,
            "resume": Right.JOBS_RUN,
        },
    }
)
"""What can be done to each kind, and the right that it needs."""

UNDO: Final[Mapping[BulkAction, BulkAction]] = MappingProxyType(
    {"pause": "resume", "resume": "pause", "update": "update"}
)
"""What undoes an action: an update restores what was before."""

STARTS: Final = frozenset({"run", "retry", "replay"})
"""Actions that start executions: they are no faster than the tenant's quota of creates."""

NOUNS: Final[Mapping[Kind, str]] = MappingProxyType(
    {"executions": "execution", "jobs": "job", "dead_letters": "dead letter", "runs": "run"}
)

_ENDED: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "SKIPPED"})


@dataclass(frozen=True, slots=True)
class Seen:
    """An item as a dry run sees it. `pool` None: unknown, or it concerns several."""

    state: str
    pool: str | None
    name: str | None = None


def why_missing(kind: Kind, id_: object) -> str:
    return f"There is no {NOUNS[kind]} {id_}."


def why_refused(kind: Kind, action: BulkAction, id_: object, state: str) -> str | None:
    """Why an item in this state would be refused; None: it would be changed, or is as it should be already."""
    what = f"The {NOUNS[kind]} {id_}"
    if kind == "jobs":
        return f"{what} is deleted." if state == "DELETED" and action != "delete" else None
    if kind == "dead_letters":
        return None if state == "open" else f"{what} was {state}: nothing is left to do."
    if action == "retry":
        is_under_way = kind == "executions" and state in {"PENDING", "RUNNING", "BLOCKED"}
        advice = "only one that has ended, or waits for its next attempt, can be retried"
        return f"{what} is {state}: {advice}." if is_under_way else None
    is_over = state in _ENDED and not (action == "cancel" and state == "CANCELLED")
    return f"{what} has ended {state}: there is nothing left to {action}." if is_over else None
