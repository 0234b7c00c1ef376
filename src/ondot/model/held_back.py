"""Executions that are due and wait for a limit (E13). They count as waiting everywhere that waiting is shown.

A line is the executions that wait at one gate in one pool. Counting stops at a ceiling, so that it stays cheap.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ondot.model.ids import JobId
from ondot.model.schedule.words import duration

FUNCTION_KEY: Final = "function:"
"""The prefix of the concurrency key of an SDK function with its own limit (`sdk.options`)."""
BEHIND_S: Final = 5.0
"""Limits make work wait; a wait of this long is reported."""


@dataclass(frozen=True, slots=True)
class HeldLine:
    """Executions that wait at one gate. `job_id` and `job_name`: of the first in line; `limit`: in words."""

    job_id: JobId
    job_name: str
    pool: str
    limit: str
    count: int
    oldest_at: datetime


@dataclass(frozen=True, slots=True)
class HeldBack:
    """`is_least`: there are more than `count`. `lines`: longest first."""

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
    """The function that a concurrency key belongs to: users did not write that key, so they see the function."""
    return key.removeprefix(FUNCTION_KEY) if key.startswith(FUNCTION_KEY) else None


def limit_in_words(stage: Mapping[str, Any]) -> str:
    """A gate's limit in words: "1 at a time", "key 'erp': one every 6 seconds". `stage` is as stored."""
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
