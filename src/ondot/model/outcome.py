"""Reports of attempts: what a target returns, before `model.completion` decides what follows."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ondot.model.execution import Outcome


@dataclass(frozen=True, slots=True)
class AttemptError:
    """Why an attempt failed. `code` is stable, for machines; `message` one line for people; `detail` the rest."""

    code: str
    message: str
    detail: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.detail:
            entry["detail"] = self.detail
        return entry | self.facts


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The result as JSON text, if there is one."""

    result: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    error: AttemptError
    retryable: bool = True
    retry_after_s: float | None = None
    outcome: Outcome = Outcome.FAILED
    result: str | None = None
    retry_at: datetime | None = None
    """The next attempt starts at this instant at the earliest, by the database's clock: no other clock counts (C3)."""


@dataclass(frozen=True, slots=True)
class NotBegun:
    """The call was never made: the worker is stopping, or may have been marked lost. Costs nothing."""

    reason: str


@dataclass(frozen=True, slots=True)
class NoFunction:
    """The worker does not have the function: during a deploy, or because nobody has it. No call was made, so it costs
    nothing; the execution waits until a worker has registered the function."""

    function: str
    message: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The call was started, and its worker or its child process ended before it did."""

    reason: str
    code: str = "worker_stopped"
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """It was cancelled while it ran, and ended: by itself, or by force when its grace was over."""

    message: str
    forced: bool = False
    result: str | None = None


Report = Succeeded | Failed | Cancelled | NotBegun | NoFunction | Interrupted


def timed_out(timeout_s: float, remark: str = "") -> Failed:
    message = f"It did not end within its timeout of {timeout_s:g} s.{remark and f' {remark}'}"
    return Failed(AttemptError("timeout", message, facts={"timeout_s": timeout_s}), outcome=Outcome.TIMED_OUT)
