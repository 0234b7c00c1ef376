"""What a world records: plain, frozen values in UTC."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from ondot.model.execution import Origin, Outcome, State


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt that was started: its job, when it was due, when it started by the world's clock, how it ended.

    `target` is the function's name, the URL, or the command. `arguments` are a function's arguments by name; for other
    targets the payload. `result` and `error` are JSON, as the API returns them.
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
    """One execution, live or ended. `origin`: what created it, such as a fire. `attempts`: how many were started."""

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
class RunStep:
    """A step of a run. `result`: what it returned, as JSON; of a map see the calls of its function."""

    state: str
    reason: str | None
    execution_id: UUID | None
    result: Any


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a workflow, with its steps by name."""

    id: UUID
    job_id: UUID
    state: str
    reason: str | None
    steps: Mapping[str, RunStep]

    @property
    def states(self) -> dict[str, str]:
        """The states of the steps by name."""
        return {name: step.state for name, step in self.steps.items()}


@dataclass(frozen=True, slots=True)
class Skipped:
    """Fires from `from_at` to `to_at`, both included, that did not run, and why. `count` None: too many to count."""

    from_at: datetime
    to_at: datetime
    reason: str
    count: int | None


@dataclass(frozen=True, slots=True)
class Request:
    """A request to an HTTP target, and when by the world's clock."""

    method: str
    url: str
    at: datetime
    body: Any
    headers: Mapping[str, str] = field(repr=False)
