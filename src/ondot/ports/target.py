"""What an attempt calls: http, function, shell. A target turns one call into a report and raises nothing."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from msgspec import Struct, field

from ondot.model.ids import ExecutionId, JobId
from ondot.model.outcome import Cancelled, Failed, Succeeded

SpecT_contra = TypeVar("SpecT_contra", contravariant=True)


class Cancel:
    """Asks one attempt to end (E8). `requested` may be read from any thread; the rest belongs to the loop.

    Who waits is called back: an event and a task that waits for it would cost an attempt more than a short function.
    """

    __slots__ = ("_listeners", "grace_s", "requested")

    def __init__(self, grace_s: float = 10.0) -> None:
        self.grace_s = grace_s
        self.requested = False
        self._listeners: tuple[Callable[[], object], ...] = ()

    def request(self) -> None:
        self.requested = True
        for listener in self._listeners:
            listener()

    def listen(self, listener: Callable[[], object]) -> None:
        """Call this when somebody asks, at once if somebody has; until `unlisten`."""
        self._listeners += (listener,)
        if self.requested:
            listener()

    def unlisten(self, listener: Callable[[], object]) -> None:
        self._listeners = tuple(each for each in self._listeners if each != listener)


class OpenTransaction(Protocol):
    """Opens the transaction that holds a handler's effect and its completion; on its own connection if given None."""

    @property
    def elsewhere(self) -> str:
        """What another process needs to open it, as JSON. The database's password is in it: not for logs."""

    @property
    def is_committed(self) -> bool:
        """The attempt has succeeded, whatever its handler still does."""

    def __call__(self, given: Any, /) -> AbstractAsyncContextManager[Any]: ...


class Call(Struct, frozen=True):
    """Everything a handler may know of the attempt. `payload` is JSON; `say` keeps a line of output."""

    execution_id: ExecutionId
    job_id: JobId
    job_name: str
    attempt_no: int
    fire_s: float
    """When it was due, in seconds since 1970: few ask."""
    payload: bytes
    timeout_s: float | None
    """None: as long as it likes."""
    say: Callable[[str, str], None]
    progress: Callable[[float | None, str | None, str | None], None]
    checkpoint: str | None = None
    cancel: Cancel = field(default_factory=Cancel)
    transaction: OpenTransaction | None = None
    """None: this worker has no database to share."""
    losses: int = 0
    """Workers lost so far while they ran this execution: from two on a function is a suspect, and runs in a child."""

    @property
    def fire_at(self) -> datetime:
        return datetime.fromtimestamp(self.fire_s, UTC)

    @property
    def fencing_token(self) -> int:
        """Grows with every attempt of one execution: a receiver refuses a smaller one than it has seen."""
        return self.attempt_no


End = Callable[[Succeeded | Failed | Cancelled | None], None]
"""Told once how a call ended; None: it was interrupted."""

Interrupt = Callable[[], object]
"""Ends a call that nobody waits for any longer: its worker stops, or is lost."""


class Target(Protocol[SpecT_contra]):
    async def call(self, spec: SpecT_contra, call: Call) -> Succeeded | Failed | Cancelled: ...
