"""What a world tells of what happened in it: plain, frozen values in UTC."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from ondot.model.execution import Origin, Outcome, State


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt that was begun: which job, when it was due, when it began by the world's clock, what came of it.

    `target` is the function's name, the URL, or the command. `arguments` are a function's by name; for other targets
    the payload. `result` and `error` are JSON, as the API shows them.
    """

    job: str
    fire_at: datetime
    at: datetime
    attempt: int
    arguments: Any
    outcome: Outcome
    target: str
    result: Any
    error: dict[str, Any] | None
    job_id: UUID
    execution_id: UUID


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution, live or ended. `origin`: what made it, a fire or something else. `attempts` were begun so far."""

    id: UUID
    job_id: UUID
    state: State
    origin: Origin
    fire_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    attempts: int
    reason: str | None
    result: Any
    error: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Skipped:
    """Fires from `from_at` to `to_at`, both included, that did not run, and why. `count` None: too many to count."""

    from_at: datetime
    to_at: datetime
    reason: str
    count: int | None


@dataclass(frozen=True, slots=True)
class Request:
    """What an HTTP target would have received, and when by the world's clock."""

    method: str
    url: str
    at: datetime
    body: Any
    headers: Mapping[str, str] = field(repr=False)
