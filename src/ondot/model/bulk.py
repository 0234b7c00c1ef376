"""Operations on many things at once (O8): what can be done to what, which right that needs, what would be refused.

The table of actions is the only list of them: the API, the commands and the pages read it. Refusals here are those that
a dry run can foresee; the action itself decides again when its turn comes.
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

Hindrance = Literal[
    "begun",
    "has_attempts",
    "is_step",
    "replayed",
    "being_replayed",
    "version_gone",
    "job_deleted",
    "job_gone",
    "run_over",
    "not_started",
    "nothing_failed",
]
"""Why some actions would be refused, besides the state. `begun`: the fire of a one-time job runs or is over;
`has_attempts`: it runs, or waits for its next attempt."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An item as a dry run sees it. `pool` None: unknown, or it concerns several."""

    state: str
    pool: str | None
    name: str | None = None
    hindrances: frozenset[Hindrance] = frozenset()


def why_missing(kind: Kind, id_: object) -> str:
    return f"There is no {NOUNS[kind]} {id_}."


def why_refused(
    kind: Kind, action: BulkAction, id_: object, seen: Seen, *, current_version: bool = False, own_payload: bool = False
) -> str | None:
    """Why an item would be refused; None: it would be changed, or is as it should be already."""
    if kind == "jobs":
        why = _why_job(action, seen)
    elif kind == "dead_letters":
        why = _why_gone(seen, current_version) if action == "replay" and seen.state == "open" else None
    elif action == "retry":
        is_own = current_version or own_payload
        why = _why_no_retry(seen, current_version, is_own) if kind == "executions" else _why_no_repair(seen)
    elif "not_started" in seen.hindrances and action != "cancel":
        why = _NOT_STARTED
    else:
        is_over = seen.state in _ENDED and not (action == "cancel" and seen.state == "CANCELLED")
        why = f"has ended {seen.state}: there is nothing left to {action}." if is_over else None
    return None if why is None else f"The {NOUNS[kind]} {id_} {why}"


_NOT_STARTED: Final = "has not started. Cancel it, or wait until it starts."


def _why_job(action: BulkAction, seen: Seen) -> str | None:
    if seen.state == "DELETED":
        return None if action == "delete" else "is deleted: create it again."
    # One that waits for its next attempt may be deleted, but not changed.
    too_late = {"begun"} if action == "delete" else {"begun", "has_attempts"}
    if action in {"pause", "update", "delete"} and seen.hindrances & too_late:
        return "has started or ended: a one-time job can be changed only before it runs."
    return None


def _why_gone(seen: Seen, current_version: bool) -> str | None:
    if "run_over" in seen.hindrances:
        return "is of a run that has ended, or is gone: rerun it."
    if current_version and "job_deleted" in seen.hindrances:
        return "is of a job that is deleted: leave out `version` to run it by the version that failed."
    if ("job_gone" if current_version else "version_gone") in seen.hindrances:
        return "is of a version of the job that is gone: it cannot be run again."
    return None


def _why_no_retry(seen: Seen, current_version: bool, is_own: bool) -> str | None:
    if seen.state in {"PENDING", "RUNNING", "BLOCKED"}:
        return f"is {seen.state}: only one that has ended, or waits for its next attempt, can be retried."
    if seen.state == "RETRYING":
        return "continues with its own payload and version: leave both out." if is_own else None
    if "is_step" in seen.hindrances:
        return "is a step of a run: retry it there, so that the steps after it follow."
    if "replayed" in seen.hindrances:
        return "was replayed already: retry its replay."
    if "being_replayed" in seen.hindrances:
        return "is being run again: wait for its end, or cancel that one."
    return _why_gone(seen, current_version)


def _why_no_repair(seen: Seen) -> str | None:
    if "not_started" in seen.hindrances:
        return _NOT_STARTED
    if seen.state in _ENDED:
        return f"has ended {seen.state} and stays as it is: rerun it."
    if seen.state == "ENDING":
        return "is ending: its `finally` steps run. Wait until it has ended."
    return "has no step that failed: there is nothing to retry." if "nothing_failed" in seen.hindrances else None
