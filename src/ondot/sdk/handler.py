"""A registered function (E3): called like the function itself, or run by a worker.

    await daily_report(ctx, "eu")                  runs here and now, without ondot
    await daily_report.enqueue(region="eu")        a worker runs it now
    await daily_report.enqueue_many([{…}, {…}])    a worker runs it once for each of these
    await daily_report.schedule(at=…, region="eu") a worker runs it once, at that instant
    await daily_report.enqueue(after=[job])        a worker runs it once that job has succeeded

Arguments are sent as JSON, by name. They are checked against the signature before a request is sent, and again by the
worker, which may run another version of the code. A key among the options may name arguments, `"region:{region}"`; it
is filled for each job.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Generic, ParamSpec, TypeVar
from uuid import UUID

import msgspec

from ondot.model.text import MAX_NAME, is_function_name
from ondot.sdk.context import Context
from ondot.sdk.options import (
    ENQUEUED_ONLY,
    RECURRING_ONLY,
    Duration,
    fill,
    names_in,
    of_function,
    seconds_of,
    templates,
    with_keys_filled,
    without,
)

P = ParamSpec("P")
R = TypeVar("R")

Answer = dict[str, Any]
Submit = Callable[[dict[str, Any]], Awaitable[Answer]]
"""Creates a job from its body."""
SubmitMany = Callable[[list[dict[str, Any]]], Awaitable[list[Answer]]]

_INSTANT: Final = 'an aware datetime, or text in RFC 3339 such as "2030-01-31T09:00:00Z"'
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
TASK_NAME: Final = "ondot function "
"""The start of the names of tasks that run functions."""
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Handler(Generic[P, R]):
    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        options: Mapping[str, Any] | None = None,
        timing: Mapping[str, Any] | None = None,
        pause_after_failures: int | None = None,
        key: str | None = None,
        secrets: Sequence[str] = (),
        submit: Submit | None = None,
        submit_many: SubmitMany | None = None,
    ) -> None:
        """`options` are fields of this function's jobs; `timing` is the schedule of the job that recurs."""
        self.function: Final = function
        self.name: Final = function_name(name, function)
        self.is_async: Final = inspect.iscoroutinefunction(function)
        self.options: Final = of_function(options or {}, self.name)
        self.timing: Final = dict(timing) if timing else None
        self.pause_after_failures: Final = pause_after_failures
        self.key: Final = key or f"function:{self.name}"
        self.secrets: Final = tuple(secrets)
        """Those that it reads by `ctx.secret`."""
        self._submit = submit
        self._submit_many = submit_many
        self.signature: Final = _signature(function)
        self.takes_context: Final = _takes_context(self.signature)
        self._check_parameters()
        self._check_keys()
        self.task_name: Final = f"{TASK_NAME}{self.name}"
        named = [p for p in self._own_parameters() if p.kind in _NAMED]
        self._named: Final = frozenset(p.name for p in named)
        self._needed: Final = frozenset(p.name for p in named if p.default is p.empty)
        self._defaults: Final = {
            p.name: p.default for p in self.signature.parameters.values() if p.default is not p.empty
        }
        self._enqueued: Final = without(self.options, RECURRING_ONLY)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Handler {self.name}>"

    async def enqueue(self, **arguments: Any) -> Answer:
        """Have a worker run it once, now. Returns the job that was created.

        `after`: jobs that must have succeeded before, as the answers that created them, their ids or their keys; unless
        the function has an argument of that name.
        """
        parents = self._take_parents(arguments)
        return await self._create(self.body(arguments) | parents)

    async def enqueue_many(self, many: Iterable[Mapping[str, Any]]) -> list[Answer]:
        """Have a worker run it once for each of these arguments, now. Returns the jobs that were created, in order.

        If arguments do not fit the function, nothing is sent. In a transaction all jobs are one statement. Over HTTP
        each thousand is one request, which creates all of its jobs or none.
        """
        bodies = [self.body(arguments) for arguments in many]
        if self._submit_many is None:
            raise self._no_app()
        return await self._submit_many(bodies)

    async def schedule(
        self, *, at: datetime | str | None = None, in_: Duration | None = None, **arguments: Any
    ) -> Answer:
        """Have a worker run it once: at an instant, or after a delay. Returns the job that was created."""
        if (at is None) == (in_ is None):
            raise TypeError("schedule takes one of `at` (an aware datetime) and `in_` (a timedelta, or seconds).")
        when = {"in": seconds_of("in_", in_)} if at is None else {"at": instant_text(at)}
        parents = self._take_parents(arguments)
        body = self.body(arguments) | parents
        if "debounce" in body:
            raise TypeError(f"{self.name}: `debounce` decides when the job runs; use enqueue instead of schedule.")
        return await self._create(body | {"schedule": when})

    def body(self, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The body of a job that runs this function once with these arguments. Raises TypeError if they do not fit."""
        return self._body(self._enqueued, dict(arguments or {}))

    def recurring_body(self) -> dict[str, Any] | None:
        """The body of the job that recurs by the function's own schedule; None if it has none."""
        if self.timing is None:
            return None
        options = without(self.options, ENQUEUED_ONLY)
        body = self._of_event(options) if "event" in self.timing else self._body(options, {})
        body |= {"schedule": dict(self.timing), "key": self.key}
        if self.pause_after_failures is not None:
            body["pause_after_failures"] = self.pause_after_failures
        return body

    def _of_event(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The body of the job that events start: `event` is the event, other arguments without a default are fields of
        its data, by name."""
        if any(names_in(template) for _, template in templates(options)):
            raise TypeError(f"{self.name} is started by events, and its keys cannot name arguments.")
        payload = payload_of_event(self._own_parameters())
        return {"name": self.name, "target": {"function": self.name}, **options, "payload": payload}

    def _body(self, options: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        self.bind(None, given)
        body = {
            "name": self.name,
            "target": {"function": self.name},
            **with_keys_filled(options, lambda option, template: self._fill_key(option, template, given)),
        }
        if given:
            try:
                body["payload"] = msgspec.to_builtins(given, str_keys=True)
            except (TypeError, ValueError, RecursionError) as error:
                raise TypeError(f"{self.name}: arguments are sent as JSON, and these cannot be: {error}") from None
        return body

    def bind(self, context: Context | None, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the call. Raises TypeError, with the signature, if they do not fit."""
        positional: tuple[Any, ...] = ()
        named = dict(arguments)
        if self.takes_context:
            first = next(iter(self.signature.parameters.values()))
            if first.name in named:
                raise TypeError(f"{self.name}: the worker passes `{first.name}`; it cannot be an argument.")
            if first.kind in _POSITIONAL:
                positional = (context,)
            else:
                named[first.name] = context
        if not self._fits(arguments):
            try:
                self.signature.bind(*positional, **named)
            except TypeError as error:
                raise TypeError(f"{self.name}: {error}; it takes {self._takes()}.") from None
        return positional, named

    def _fits(self, arguments: Mapping[str, Any]) -> bool:
        """Whether they fit for certain. Quicker than binding the signature, which takes as long as a short function."""
        return self._needed <= arguments.keys() <= self._named

    @property
    def parameters(self) -> list[str]:
        """The names of its arguments, without the context."""
        return [parameter.name for parameter in self._own_parameters() if parameter.kind in _NAMED]

    def _take_parents(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The jobs that it comes after, taken out of the arguments."""
        if "after" not in arguments or "after" in self._named:
            return {}
        after = arguments.pop("after")
        parents = after if isinstance(after, list | tuple) else [after]
        ids = [parent.get("id") if isinstance(parent, Mapping) else getattr(parent, "id", parent) for parent in parents]
        if wrong := [parent for parent, id_ in zip(parents, ids, strict=True) if not isinstance(id_, str | UUID)]:
            raise TypeError(f"{self.name}: `after` takes jobs: answers of enqueue, ids or keys, got {wrong[0]!r:.60}.")
        return {"depends_on": [str(id_) for id_ in ids]}

    async def _create(self, body: dict[str, Any]) -> Answer:
        if self._submit is None:
            raise self._no_app()
        return await self._submit(body)

    def _no_app(self) -> RuntimeError:
        return RuntimeError(f"{self.name} belongs to no app: register it with `@app.job` of an `Ondot`.")

    def _own_parameters(self) -> list[inspect.Parameter]:
        """Without the context, which the worker passes."""
        return list(self.signature.parameters.values())[1 if self.takes_context else 0 :]

    @property
    def first_parameter(self) -> str | None:
        """The first one that can be passed by name, without the context; None: it takes none."""
        named = (p.name for p in self._own_parameters() if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY})
        return next(named, None)

    def _takes(self) -> str:
        parameters = self._own_parameters()
        return (
            f"({', '.join(str(p.replace(annotation=p.empty)) for p in parameters)})" if parameters else "no arguments"
        )

    def _check_parameters(self) -> None:
        if inspect.isgeneratorfunction(self.function) or inspect.isasyncgenfunction(self.function):
            raise TypeError(f"{self.name} is a generator, which a worker does not iterate. Return the result instead.")
        parameters = self._own_parameters()
        needed = [p for p in parameters if p.default is p.empty and p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}]
        if unnamed := [p.name for p in needed if p.kind is p.POSITIONAL_ONLY]:
            raise TypeError(
                f"{self.name}: arguments are sent by name, and {', '.join(unnamed)} can only be positional."
            )
        if needed and self.timing is not None and "event" not in self.timing:
            names = ", ".join(p.name for p in needed)
            raise TypeError(f"{self.name} runs by a schedule, which passes no arguments. Add defaults for: {names}.")

    def _check_keys(self) -> None:
        """A key may name only parameters. Checked when the function is registered, not at the first enqueue."""
        parameters = self.signature.parameters.values()
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = {p.name for p in self._own_parameters()}
        for option, template in templates(self.options):
            try:
                missing = [name for name in names_in(template) if name not in named]
            except ValueError as error:
                raise TypeError(f"{self.name}: cannot fill the key of `{option}`: {error}") from None
            if missing and (not takes_any or (self.timing is not None and option not in ENQUEUED_ONLY)):
                raise TypeError(f"{self.name}: `{option}` names {missing[0]!r}; it takes {self._takes()}.")

    def _fill_key(self, option: str, template: str, given: Mapping[str, Any]) -> str:
        arguments = {**self._defaults, **given}
        if missing := [name for name in names_in(template) if name not in arguments]:
            raise TypeError(f"{self.name}: `{option}` is {template!r}, and there is no argument {missing[0]!r}.")
        try:
            return fill(template, arguments)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"{self.name}: cannot fill `{option}`: {error}") from None


def payload_of_event(parameters: Iterable[inspect.Parameter]) -> dict[str, Any]:
    """The arguments that an event gives: `event` whole, and fields of its data for those without a default."""
    return {
        parameter.name: {"$from": "event" if parameter.name == "event" else f"event.data.{parameter.name}"}
        for parameter in parameters
        if parameter.kind in _NAMED and (parameter.name == "event" or parameter.default is parameter.empty)
    }


def instant_text(at: object) -> str:
    """The instant as it is written in a body."""
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at)
        except ValueError:
            raise ValueError(f"`at` must be {_INSTANT}, got {at!r:.80}.") from None
    if not isinstance(at, datetime):
        raise TypeError(f"`at` must be {_INSTANT}, got {at!r:.80}.")
    if at.tzinfo is None:
        raise ValueError("`at` must have a time zone: tzinfo=UTC for a datetime, Z or +01:00 at the end of text.")
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def function_name(given: str | None, function: object) -> str:
    name = str(getattr(function, "__name__", "")) if given is None else given
    if not name or name == "<lambda>":
        raise TypeError(f"{function!r} has no name. Give it one: @app.job(name=…).")
    if not is_function_name(name):
        raise ValueError(
            f"{name[:MAX_NAME]!r} cannot be a function's name. Use up to {MAX_NAME} characters without blanks."
        )
    return name


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, SyntaxError, AttributeError, TypeError):
        # Annotations may name what exists only for type checkers; they stay text.
        return inspect.signature(function)


def _takes_context(signature: inspect.Signature) -> bool:
    first = next(iter(signature.parameters.values()), None)
    if first is None or first.kind in {first.VAR_POSITIONAL, first.VAR_KEYWORD}:
        return False
    annotation = first.annotation
    if isinstance(annotation, str):
        return first.name == "ctx" or annotation.rpartition(".")[2] == "Context"
    return first.name == "ctx" or (isinstance(annotation, type) and issubclass(annotation, Context))
