"""Executions that are due and wait for a limit (E13): held back is waiting, and is said wherever waiting is.

A line is what waits before one gate in one pool. Counts go up to a ceiling, so that looking stays cheap.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ondot.model.ids import JobId
from ondot.model.schedule.words import duration

FUNCTION_KEY: Final = "function:"
"""What begins the concurrency key of an SDK function that has a limit of its own (`sdk.options`)."""
BEHIND_S: Final = 5.0
"""A limit is there to make some wait; one that has waited for this long is worth a word."""


@dataclass(frozen=True, slots=True)
class HeldLine:
    """What waits before one gate. `job_id` and `job_name` are of the first in line; `limit` is in words."""

    job_id: JobId
    job_name: str
    pool: str
    limit: str
    count: int
    oldest_at: datetime


@dataclass(frozen=True, slots=True)
class HeldBack:
    """`is_least`: there are more than were counted. `lines`: the longest first."""

    now: datetime
    count: int = 0
    is_least: bool = False
    oldest_at: datetime | None = None
    by_kind: Mapping[str, int] | None = None
    lines: tuple[HeldLine, ...] = ()

    @property
    def oldest_s(self) -> float:
        return 0.0 if self.oldest_at is None else max((self.now - self.oldest_at).total_seconds(), 0.0)

    @property
    def is_behind(self) -> bool:
        return self.oldest_s >= BEHIND_S

    @property
    def counted(self) -> str:
        return f"{self.count:,}{' or more' if self.is_least else ''}"


def of_function(key: str) -> str | None:
    """The function that a concurrency key stands for: nobody wrote that key, so people are shown the function."""
    return key.removeprefix(FUNCTION_KEY) if key.startswith(FUNCTION_KEY) else None


def limit_in_words(stage: Mapping[str, Any]) -> str:
    """The limit of a gate, as it is stored with an execution: "1 at a time", "key 'erp': one every 6 seconds"."""
    of, _, key = stage["name"].partition(":")
    match stage["kind"]:
        case "rate":
            words = f"one every {duration(stage['every_s'])}"
        case "order":
            words = "one after the other"
        case _:
            words = f"{stage['limit']:,} at a time"
    if of == "job":
        return words
    if function := of_function(key):
        return f"function {function}: {words}"
    return f"{'order ' if stage['kind'] == 'order' else ''}key {key!r}: {words}"
