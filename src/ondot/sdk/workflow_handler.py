"""A registered workflow (W1, W4): described once at import, checked, started by a worker's schedule or from Python.

    await nightly.enqueue(region="us")                      a run now; returns a handle
    await nightly.options(in_="1h").enqueue(region="us")    a run later

Every run gets all arguments, defaults too, because references of steps name them.
"""

import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Unpack, cast

from ondot.model.errors import InvalidBody, InvalidGraph
from ondot.sdk.arguments import FunctionTypes, namespace_of
from ondot.sdk.client import Client
from ondot.sdk.handler import Submit
from ondot.sdk.options import (
    ENQUEUED_ONLY,
    RECURRING_ONLY,
    EnqueueOptions,
    of_function,
    read_enqueue_options,
    without,
)
from ondot.sdk.parameters import Parameters, payload_of_event
from ondot.sdk.runs import RunHandle
from ondot.sdk.sync import Blocking
from ondot.sdk.workflow import Workflow, describe

if TYPE_CHECKING:
    from ondot.sdk.sync_types import SyncBoundWorkflow, SyncWorkflowHandler

P = ParamSpec("P")

OF_WORKFLOWS: Final = ("on_failure", "blocked_for")


class WorkflowHandler(Generic[P]):
    def __init__(
        self,
        function: Callable[Concatenate[Workflow, P], None],
        *,
        name: str,
        options: Mapping[str, Any],
        timing: Mapping[str, Any] | None,
        pause_after_failures: int | None,
        key: str | None,
        of_workflow: Mapping[str, Any],
        submit: Submit,
        client: Client,
    ) -> None:
        self.function: Final = function
        self.name: Final = name
        self.key: Final = key or f"workflow:{name}"
        self.fields: Final = of_function(options, name)
        self.timing: Final = dict(timing) if timing else None
        self._pause_after_failures = pause_after_failures
        self._submit = submit
        self._client = client
        self._enqueued: Final = without(self.fields, RECURRING_ONLY)
        namespace = namespace_of(function)
        self.parameters: Final = Parameters(name, _signature(function, name), namespace)
        self.types: Final = FunctionTypes(name, self.parameters.own, None, namespace)
        needed = [parameter for parameter in self.parameters.names if parameter in self.parameters.needed]
        if needed and self.timing is not None and "event" not in self.timing:
            raise TypeError(
                f"{name} runs by a schedule, which passes no arguments. Add defaults for: {', '.join(needed)}."
            )
        self.workflow: Final = describe(function, name, self.parameters.names)
        self.target: Final = {"workflow": {"steps": self.workflow.steps, **of_workflow}}
        self._check()
        self.__doc__ = function.__doc__

    def __repr__(self) -> str:
        return f"<WorkflowHandler {self.name}>"

    @property
    def sync(self) -> "SyncWorkflowHandler[P]":
        """The same without asyncio: its methods block."""
        return cast("SyncWorkflowHandler[P]", Blocking(self))

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> RunHandle:
        """Start a run now. Raises ArgumentError if the arguments do not fit."""
        return await self._create(self.body(*args, **kwargs))

    def options(self, **options: Unpack[EnqueueOptions]) -> "BoundWorkflow[P]":
        """The same workflow with options for its next runs: when they start, after which jobs, and how."""
        return BoundWorkflow(self, read_enqueue_options(options, self.name, self._enqueued))

    def body(self, /, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """The body of a job that runs it once with these arguments. Raises ArgumentError if they do not fit."""
        return self._body(self._enqueued, self.parameters.name_all(args, kwargs))

    async def _create(self, body: dict[str, Any]) -> RunHandle:
        job, is_committed = await self._submit(body)
        return RunHandle(self._client, job, is_committed)

    def recurring_body(self) -> dict[str, Any] | None:
        """The body of the job that recurs by the workflow's own schedule; None if it has none."""
        if self.timing is None:
            return None
        body = self._body(without(self.fields, ENQUEUED_ONLY), {}, is_event="event" in self.timing)
        body |= {"schedule": dict(self.timing), "key": self.key}
        if self._pause_after_failures is not None:
            body["pause_after_failures"] = self._pause_after_failures
        return body

    def _body(self, fields: Mapping[str, Any], given: Mapping[str, Any], *, is_event: bool = False) -> dict[str, Any]:
        body = {"name": self.name, "target": self.target, **fields}
        arguments = {**self.types.encoded_defaults(), **self.types.encode(given)}
        if is_event:
            arguments |= payload_of_event(self.parameters.own)
        if arguments:
            body["payload"] = arguments
        return body

    def _check(self) -> None:
        """Read the body as a server would: the graph, patterns, references. Errors name the line of their step."""
        from ondot.document.parse import job_spec  # here: a program without workflows need not load pydantic

        body = self.recurring_body() or {
            **without(self.fields, RECURRING_ONLY),
            "name": self.name,
            "target": self.target,
        }
        body = {name: value for name, value in body.items() if "{" not in str(value) or name in {"target", "schedule"}}
        try:
            job_spec(body, datetime.now(UTC), may_be_over=True)
        except InvalidBody as refusal:
            faults = [f"{self._where(fault.pointer)}{fault.message}" for fault in refusal.faults] or [refusal.message]
            kind = InvalidGraph if isinstance(refusal, InvalidGraph) else type(refusal)
            raise kind(f"{self.name}: {'; '.join(faults)}", refusal.faults, **refusal.facts) from None

    def _where(self, pointer: str) -> str:
        """The line of the step that a pointer is in."""
        parts = pointer.split("/")
        step = parts[parts.index("steps") + 1] if "steps" in parts[:-1] else None
        return f"{self.workflow.lines[step]}, step {step}: " if step in self.workflow.lines else ""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "schedule":
                raise AttributeError(f"Write {self.name}.options(at=…) or .options(in_=…), then .enqueue(…).")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class BoundWorkflow(Generic[P]):
    """A workflow with options for its next runs, as `workflow.options(…)` returns it."""

    def __init__(self, workflow: WorkflowHandler[P], fields: Mapping[str, Any]) -> None:
        self._workflow = workflow
        self._fields = fields

    def __repr__(self) -> str:
        return f"<BoundWorkflow {self._workflow.name}>"

    @property
    def sync(self) -> "SyncBoundWorkflow[P]":
        """The same without asyncio: its methods block."""
        return cast("SyncBoundWorkflow[P]", Blocking(self))

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> RunHandle:
        """Start a run with these arguments and options. Raises ArgumentError if they do not fit."""
        workflow = self._workflow
        return await workflow._create(workflow._body(self._fields, workflow.parameters.name_all(args, kwargs)))


def _signature(function: Callable[..., None], name: str) -> inspect.Signature:
    """The arguments of a run: those of the function after the first, which is the `Workflow`."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{name} describes a workflow and awaits nothing: write `def`, not `async def`.")
    signature = inspect.signature(function)
    given = list(signature.parameters.values())
    first, others = (given[0] if given else None), given[1:]
    if first is None or first.kind not in {first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD}:
        raise TypeError(f"{name} must take a Workflow first: def {name}(w: Workflow) -> None.")
    for parameter in others:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
            raise TypeError(f"{name}: arguments of a run are sent by name, so {parameter} cannot be one.")
    return signature.replace(parameters=others)
