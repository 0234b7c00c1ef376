"""What an attempt calls: http, function, shell. A target turns one call into a report and raises nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from ondot.model.ids import ExecutionId, JobId
from ondot.model.outcome import Failed, Succeeded

SpecT_contra = TypeVar("SpecT_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Call:
    """Everything a handler may know of the attempt. `payload` is JSON; `say` keeps a line of output."""

    execution_id: ExecutionId
    job_id: JobId
    job_name: str
    attempt_no: int
    fire_at: datetime
    payload: bytes
    timeout_s: float
    say: Callable[[str, str], None]
    progress: Callable[[float | None, str | None, str | None], None]
    checkpoint: str | None = None

    @property
    def fencing_token(self) -> int:
        """Grows with every attempt of one execution: a receiver refuses a smaller one than it has seen."""
        return self.attempt_no


class Target(Protocol[SpecT_contra]):
    async def call(self, spec: SpecT_contra, call: Call) -> Succeeded | Failed: ...
