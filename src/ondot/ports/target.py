"""What an attempt calls. Each kind of target (http, function, shell) has one implementation of `Target`, registered
under the type of its spec; `app` builds the registry. A new kind adds one entry to it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from msgspec import Struct, field

from ondot.model.ids import DEFAULT_TENANT, ExecutionId, JobId, TenantNo
from ondot.model.job import TargetSpec
from ondot.model.outcome import Cancelled, Failed, Interrupted, NoFunction, Succeeded
from ondot.model.scrub import SecretValues
from ondot.model.workflow.step_results import StepResults

SpecT_contra = TypeVar("SpecT_contra", contravariant=True)


class Cancel:
    """Asks one attempt to end (E8). `requested` may be read from any thread; the rest belongs to the loop.

    Listeners are called back: an event, and a task that waits for it, would cost more than a short function.
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
        """Call it when the attempt is asked to end, at once if it already was; until `unlisten`."""
        self._listeners += (listener,)
        if self.requested:
            listener()

    def unlisten(self, listener: Callable[[], object]) -> None:
        self._listeners = tuple(each for each in self._listeners if each != listener)


class OpenTransaction(Protocol):
    """Opens the transaction of a handler's effect and its completion; on a connection of its own if passed None."""

    @property
    def elsewhere(self) -> str:
        """What another process needs to open it, as JSON. It contains the database's password: never log it."""

    @property
    def is_committed(self) -> bool:
        """The attempt has succeeded, whatever its handler does from here on."""

    def __call__(self, given: Any, /) -> AbstractAsyncContextManager[Any]: ...


class Call(Struct, frozen=True):
    """Everything a target may know of the attempt. `payload` is JSON; `say` records a line of output."""

    execution_id: ExecutionId
    job_id: JobId
    job_name: str
    attempt_no: int
    fire_s: float
    """When it was due, in seconds since 1970; converted only when asked for, which is rare."""
    payload: bytes
    timeout_s: float | None
    """None: no limit."""
    say: Callable[[str, str], None]
    progress: Callable[[float | None, str | None, str | None], None]
    checkpoint: str | None = None
    cancel: Cancel = field(default_factory=Cancel)
    transaction: OpenTransaction | None = None
    """None: this worker has no database to share."""
    secrets: SecretValues | None = None
    """Those that the call may use. None: it has none."""
    losses: int = 0
    """Workers lost so far while they ran this execution. From two on, a function is a suspect and runs in a child."""
    tenant_no: TenantNo = DEFAULT_TENANT
    pool: str = "default"
    results: StepResults | None = None
    """Of the steps above this one, if it is a step and the target reads them."""
    result_bytes: int | None = None
    """How much of its answer or standard output the result has, because a step may read it; None for the usual."""
    run_id: ExecutionId | None = None
    """The run of which it is a step, with the step's name, and the number of its item if it is mapped."""
    step: str | None = None
    item_no: int | None = None
    hops: int | None = None
    """The `ondothops` of an event that the target sends; None: no event started the execution."""
    traceparent: str | None = None
    """The span that the call belongs to; None: no trace is known."""
    tracestate: str | None = None
    """Of its trace, as it came."""

    @property
    def fire_at(self) -> datetime:
        return datetime.fromtimestamp(self.fire_s, UTC)

    @property
    def fencing_token(self) -> int:
        """Grows with every attempt of one execution: a receiver refuses one that is smaller than the last it saw."""
        return self.attempt_no


CallReport = Succeeded | Failed | Cancelled | NoFunction | Interrupted
"""How a call ended. `Interrupted`: the process that ran it is gone."""

End = Callable[[Succeeded | Failed | Cancelled | NoFunction | None], None]
"""Called once when a call has ended; None: it was interrupted by `Interrupt`."""

Interrupt = Callable[[], object]
"""Ends a call whose report is no longer wanted: the worker is stopping, or was declared lost."""


class Target(Protocol[SpecT_contra]):
    """Makes the calls of one kind of target; raises nothing but its own cancellation.

    A new kind implements `call`, and `close` if it keeps connections. The rest is for kinds that run users' code inside
    the worker's process, as functions do.
    """

    async def call(self, spec: SpecT_contra, call: Call) -> CallReport: ...

    async def close(self) -> None:
        """Release what it holds. No call runs any more."""
        return

    @property
    def stuck(self) -> int:
        """Calls that were given up and do not end: only a new process is rid of them."""
        return 0

    def startup_s(self, spec: SpecT_contra, call: Call) -> float:
        """How long starting this call may take in addition to its timeout."""
        return 0.0

    def secrets_of(self, spec: SpecT_contra) -> Sequence[str]:
        """Names of secrets that the called code reads by itself, beside those in the job."""
        return ()

    def reads_results(self, spec: SpecT_contra) -> bool:
        """Whether the called code may read the results of steps above its own."""
        return False

    def can_begin(self, spec: SpecT_contra) -> bool:
        """Whether `begin` may be used instead of `call`."""
        return False

    def begin(self, spec: SpecT_contra, call: Call, end: End) -> Interrupt | None:
        """Begin a call that reports by `end`, without a task that waits for it; None: it has already ended."""
        raise TypeError(f"{type(self).__name__} makes its calls by `call`.")

    def find_running(self) -> tuple[str, Call] | None:
        """The function that runs in the loop at this moment. Called from another thread while the loop is blocked."""
        return None

    def isolate(self, functions: frozenset[str]) -> None:
        """Run these functions in child processes: they have blocked a worker's loop lately. From any thread."""
        return


Targets = Mapping[type[TargetSpec], Target[Any]]
"""The registry: by the type of the spec, which is its kind."""
