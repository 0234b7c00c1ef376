"""A registered workflow (W1, W4): described once at import, checked, started by a worker's schedule or from Python.

    await nightly.enqueue(region="us")              a run now; returns a handle
    await nightly.schedule(in_="1h", region="us")   a run later

Every run gets all arguments, defaults too, because references of steps name them.
"""

import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Concatenate, Final, Generic, ParamSpec

import msgspec

from ondot.model.errors import InvalidBody, InvalidGraph
from ondot.sdk.client import Client
from ondot.sdk.handler import Submit, instant_text, payload_of_event
from ondot.sdk.options import ENQUEUED_ONLY, RECURRING_ONLY, Duration, of_function, seconds_of, without
from ondot.sdk.runs import RunHandle
from ondot.sdk.workflow import Workflow, describe

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
        self.options: Final = of_function(options, name)
        self.timing: Final = dict(timing) if timing else None
        self._pause_after_failures = pause_after_failures
        self._submit = submit
        self._client = client
        self.parameters: Final = _parameters(function, name)
        needed = [p.name for p in self.parameters.values() if p.default is p.empty]
        if needed and self.timing is not None and "event" not in self.timing:
            raise TypeError(
                f"{name} runs by a schedule, which passes no arguments. Add defaults for: {', '.join(needed)}."
            )
        self.workflow: Final = describe(function, name, self.parameters)
        self.target: Final = {"workflow": {"steps": self.workflow.steps, **of_workflow}}
        self._check()
        self.__doc__ = function.__doc__

    def __repr__(self) -> str:
        return f"<WorkflowHandler {self.name}>"

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle:
        """Start a run now."""
        return RunHandle(self._client, await self._submit(self.body(*args, **kwargs)))

    async def schedule(
        self, *, at: datetime | str | None = None, in_: Duration | None = None, **arguments: Any
    ) -> RunHandle:
        """Start a run at an instant, or after a delay."""
        if (at is None) == (in_ is None):
            raise TypeError("schedule takes one of `at` (an aware datetime) and `in_` (a timedelta, or seconds).")
        when = {"in": seconds_of("in_", in_)} if at is None else {"at": instant_text(at)}
        body = self._body(without(self.options, RECURRING_ONLY), arguments)
        return RunHandle(self._client, await self._submit(body | {"schedule": when}))

    def body(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """The body of a job that runs it once with these arguments. Raises TypeError if they do not fit."""
        named = dict(zip(self.parameters, args, strict=False))
        if len(args) > len(self.parameters) or named.keys() & kwargs.keys():
            raise TypeError(f"{self.name} takes ({', '.join(map(str, self.parameters.values()))}).")
        return self._body(without(self.options, RECURRING_ONLY), {**named, **kwargs})

    def recurring_body(self) -> dict[str, Any] | None:
        """The body of the job that recurs by the workflow's own schedule; None if it has none."""
        if self.timing is None:
            return None
        body = self._body(without(self.options, ENQUEUED_ONLY), {}, is_event="event" in self.timing)
        body |= {"schedule": dict(self.timing), "key": self.key}
        if self._pause_after_failures is not None:
            body["pause_after_failures"] = self._pause_after_failures
        return body

    def _body(self, options: Mapping[str, Any], given: Mapping[str, Any], *, is_event: bool = False) -> dict[str, Any]:
        defaults = {p.name: p.default for p in self.parameters.values() if p.default is not p.empty}
        missing = [] if is_event else [name for name in self.parameters if name not in {**defaults, **given}]
        unknown = [name for name in given if name not in self.parameters]
        if missing or unknown:
            fault = f"there is no argument {unknown[0]!r}" if unknown else f"the argument {missing[0]!r} is missing"
            takes = ", ".join(str(p.replace(annotation=p.empty)) for p in self.parameters.values())
            raise TypeError(f"{self.name}: {fault}; it takes ({takes}).")
        body = {"name": self.name, "target": self.target, **options}
        arguments = {**defaults, **given}
        if is_event:
            arguments |= payload_of_event(self.parameters.values())
        if arguments:
            try:
                body["payload"] = msgspec.to_builtins(arguments, str_keys=True)
            except (TypeError, ValueError, RecursionError) as error:
                raise TypeError(f"{self.name}: arguments are sent as JSON, and these cannot be: {error}") from None
        return body

    def _check(self) -> None:
        """Read the body as a server would: the graph, patterns, references. Errors name the line of their step."""
        from ondot.document.parse import job_spec  # here: a program without workflows need not load pydantic

        body = self.recurring_body() or {
            **without(self.options, RECURRING_ONLY),
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


def _parameters(function: Callable[..., None], name: str) -> dict[str, inspect.Parameter]:
    """The arguments of a run: those of the function after the first, which is the `Workflow`."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{name} describes a workflow and awaits nothing: write `def`, not `async def`.")
    given = list(inspect.signature(function).parameters.values())
    first, others = (given[0] if given else None), given[1:]
    if first is None or first.kind not in {first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD}:
        raise TypeError(f"{name} must take a Workflow first: def {name}(w: Workflow) -> None.")
    for parameter in others:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
            raise TypeError(f"{name}: arguments of a run are sent by name, so {parameter} cannot be one.")
    return {parameter.name: parameter for parameter in others}
