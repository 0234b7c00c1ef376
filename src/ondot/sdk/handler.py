"""A registered function (E3, D2): called like the function itself, or run by a worker.

    await daily_report(ctx, "eu")                           runs here and now, without ondot
    handle = await daily_report.enqueue("eu")               a worker runs it now
    await handle.result()                                   what it returned, as annotated
    await daily_report.options(in_="10m").enqueue("eu")     a worker runs it in ten minutes
    await daily_report.enqueue_many(daily_report.args(region) for region in regions)

Arguments are sent as JSON, by name, and read by their annotations (`arguments`). They are checked before a request is
sent, and again by the worker, which may run another version of the code. A key among the options may name arguments,
`"region:{region}"`; it is filled for each job.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Unpack, cast
from uuid import UUID

from typing_extensions import ParamSpec, TypeVar

from ondot.model.text import MAX_NAME, is_function_name
from ondot.sdk.arguments import ArgumentError, Arguments, BadArguments, FunctionTypes, namespace_of
from ondot.sdk.client import Client
from ondot.sdk.context import Context
from ondot.sdk.handle import Handle, handle_by_id
from ondot.sdk.options import (
    ENQUEUED_ONLY,
    RECURRING_ONLY,
    EnqueueOptions,
    fill,
    names_in,
    of_function,
    read_enqueue_options,
    templates,
    with_keys_filled,
    without,
)
from ondot.sdk.parameters import Parameters, payload_of_event
from ondot.sdk.sync import Blocking

if TYPE_CHECKING:
    from ondot.sdk.sync_types import SyncBoundHandler, SyncHandler

P = ParamSpec("P")
"""What a caller passes to `enqueue`: the parameters without the context."""
R = TypeVar("R")
"""What the function returns, awaited."""
C = ParamSpec("C", default=...)
"""The parameters of the function itself, with the context."""
V = TypeVar("V", default=Any)
"""What a call of the function itself returns: for an async function, a coroutine."""

Answer = dict[str, Any]
Submit = Callable[[dict[str, Any]], Awaitable[tuple[Answer, bool]]]
"""Creates a job from its body. Returns the API's answer, and False if it was created in the caller's transaction."""
SubmitMany = Callable[[list[dict[str, Any]]], Awaitable[tuple[list[Answer], bool]]]

OF_OTHERS: Final = frozenset({"apply_async", "defer", "defer_async", "delay", "kiq", "send", "send_with_options"})
"""What Celery, Dramatiq, Procrastinate and Taskiq call `enqueue`."""
TASK_NAME: Final = "ondot function "
"""The start of the names of tasks that run functions."""


class Handler(Generic[P, R, C, V]):
    """A registered function, as `@app.job` returns it."""

    def __init__(
        self,
        function: Callable[C, V],
        *,
        name: str | None = None,
        options: Mapping[str, Any] | None = None,
        timing: Mapping[str, Any] | None = None,
        pause_after_failures: int | None = None,
        key: str | None = None,
        secrets: Sequence[str] = (),
        client: Client | None = None,
        submit: Submit | None = None,
        submit_many: SubmitMany | None = None,
    ) -> None:
        """`options` are fields of this function's jobs; `timing` is the schedule of the job that recurs."""
        self.function: Final = function
        self.name: Final = function_name(name, function)
        self.is_async: Final = inspect.iscoroutinefunction(function)
        self.fields: Final = of_function(options or {}, self.name)
        """The options of the function as fields of its jobs."""
        self.timing: Final = dict(timing) if timing else None
        self.pause_after_failures: Final = pause_after_failures
        self.key: Final = key or f"function:{self.name}"
        self.secrets: Final = tuple(secrets)
        """Those that it reads by `ctx.secret`."""
        self._client = client
        self._submit = submit
        self._submit_many = submit_many
        namespace = namespace_of(function)
        self.parameters: Final = Parameters(self.name, inspect.signature(function), namespace)
        returns = self.parameters.signature.return_annotation
        self.types: Final = FunctionTypes(self.name, self.parameters.own, returns, namespace)
        """How its arguments and its result travel; `types.schema()` is the JSON Schema of its payload."""
        self._check_parameters()
        self._check_keys()
        self.task_name: Final = f"{TASK_NAME}{self.name}"
        self._enqueued: Final = without(self.fields, RECURRING_ONLY)
        self._has_templates: Final = any(True for _ in templates(self.fields))
        functools.update_wrapper(self, function)

    def __call__(self, /, *args: C.args, **kwargs: C.kwargs) -> V:
        """Run the function here and now, without ondot."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Handler {self.name}>"

    @property
    def sync(self) -> "SyncHandler[P, R]":
        """The same without asyncio: `f.sync.enqueue(…)` blocks until the job is created."""
        return cast("SyncHandler[P, R]", Blocking(self))

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Have a worker run it once, now, with these arguments. Raises ArgumentError if they do not fit."""
        return await self._create(self.body(*args, **kwargs))

    async def enqueue_many(self, many: Iterable[Arguments[P]], /) -> list[Handle[R]]:
        """Have a worker run it once for each of these arguments, now: `f.enqueue_many(f.args(n) for n in numbers)`.

        Returns the handles in the same order. In a transaction all jobs are one statement. Over HTTP each thousand is
        one request, which creates all of its jobs or none.
        """
        return await self._create_many([self._body(self._enqueued, self._payload_of(one)) for one in many])

    def args(self, /, *args: P.args, **kwargs: P.kwargs) -> Arguments[P]:
        """The arguments of one call, checked, for `enqueue_many`. Raises ArgumentError if they do not fit."""
        return Arguments(self.name, self._payload(args, kwargs))

    def options(self, **options: Unpack[EnqueueOptions]) -> "BoundHandler[P, R]":
        """The same function with options for its next jobs: when they run, after which jobs, and how.

        `at`: an aware datetime, or RFC 3339 text. `in_`: a delay. `after`: jobs that must have succeeded before, as
        handles, ids or keys. `key`: of the job, so that there is only one; it may name arguments, as in
        `"invoice:{number}"`. The others replace those of `@app.job` for these jobs; `labels` and `retry` are merged.
        """
        return BoundHandler(self, read_enqueue_options(options, self.name, self._enqueued))

    def handle(self, id_: UUID | str) -> Handle[R]:
        """The handle of a job of this function that was enqueued elsewhere, by its id."""
        return handle_by_id(self._needed_client(), id_, self.types.decode_result)

    def body(self, /, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """The body of a job that runs this function once with these arguments. Raises ArgumentError if they do not
        fit."""
        return self._body(self._enqueued, self._payload(args, kwargs))

    def recurring_body(self) -> dict[str, Any] | None:
        """The body of the job that recurs by the function's own schedule; None if it has none."""
        if self.timing is None:
            return None
        options = without(self.fields, ENQUEUED_ONLY)
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
        payload = payload_of_event(self.parameters.own)
        return {"name": self.name, "target": {"function": self.name}, **options, "payload": payload}

    def _body(self, fields: Mapping[str, Any], payload: dict[str, Any]) -> dict[str, Any]:
        body = {"name": self.name, "target": {"function": self.name}, **fields}
        if self._has_templates or fields is not self._enqueued:
            body = with_keys_filled(body, lambda option, template: self._fill_key(option, template, payload))
            if "key" in body:
                body["key"] = self._fill_key("key", body["key"], payload)
        if payload:
            body["payload"] = payload
        return body

    # Arguments --------------------------------------------------------------------------------------------------------

    @property
    def takes_context(self) -> bool:
        return self.parameters.has_context

    def bind(self, context: Context | None, payload: dict[str, Any]) -> Callable[[], Any]:
        """The call of the function with the arguments of this payload. Raises ArgumentError if their names do not fit;
        the call raises BadArguments if a value does not."""
        self.parameters.check_names(payload)
        if self.types.fits(payload):
            positional, named = self.parameters.arrange(context, payload)
            return functools.partial(self.function, *positional, **named)
        return functools.partial(self._decode_and_call, context, payload)

    def check_step(self, given: Mapping[str, Any], is_later: Callable[[Any], bool]) -> dict[str, Any]:
        """The arguments of a step of a workflow as they travel; those that are known later stay as they are."""
        self.parameters.check_names(given)
        known = {name: value for name, value in given.items() if not is_later(value)}
        return {**given, **self.types.encode(known)}

    def _decode_and_call(self, context: Context | None, payload: dict[str, Any]) -> Any:
        try:
            arguments = self.types.decode(payload)
        except ArgumentError as error:
            raise BadArguments(str(error)) from None
        positional, named = self.parameters.arrange(context, arguments)
        return self.function(*positional, **named)

    def _payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call as they travel, by name."""
        return self.types.encode(self.parameters.name_all(args, kwargs))

    def _payload_of(self, one: Arguments[P]) -> dict[str, Any]:
        if getattr(one, "function", None) != self.name:
            raise TypeError(
                f"{self.name}: enqueue_many takes the arguments of calls, such as {self.name}.args(…) for each of them,"
                f" got {one!r:.60}."
            )
        return one.payload

    # Creating jobs ----------------------------------------------------------------------------------------------------

    async def _create(self, body: dict[str, Any]) -> Handle[R]:
        client = self._needed_client()
        assert self._submit is not None
        job, is_committed = await self._submit(body)
        return Handle(client, job, self.types.decode_result, is_committed)

    async def _create_many(self, bodies: list[dict[str, Any]]) -> list[Handle[R]]:
        client, decode = self._needed_client(), self.types.decode_result
        assert self._submit_many is not None
        jobs, is_committed = await self._submit_many(bodies)
        return [Handle(client, job, decode, is_committed) for job in jobs]

    def _needed_client(self) -> Client:
        if self._client is None:
            raise RuntimeError(f"{self.name} belongs to no app: register it with `@app.job` of an `Ondot`.")
        return self._client

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "schedule":
                raise AttributeError(f"Write {self.name}.options(at=…) or .options(in_=…), then .enqueue(…).")
            if name in OF_OTHERS:
                raise AttributeError(
                    f"Write `await {self.name}.enqueue(…)`, or `{self.name}.sync.enqueue(…)` without asyncio; "
                    f"options before it: {self.name}.options(in_=…).enqueue(…)."
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _check_parameters(self) -> None:
        if inspect.isgeneratorfunction(self.function) or inspect.isasyncgenfunction(self.function):
            raise TypeError(f"{self.name} is a generator, which a worker does not iterate. Return the result instead.")
        if self.parameters.own and self.parameters.own[0].name in ("self", "cls"):
            raise TypeError(f"{self.name} is a method, and a worker has no object to call it on. Use a function.")
        needed = [p for p in self.parameters.own if p.name in self.parameters.needed]
        if needed and self.timing is not None and "event" not in self.timing:
            names = ", ".join(p.name for p in needed)
            raise TypeError(f"{self.name} runs by a schedule, which passes no arguments. Add defaults for: {names}.")

    def _check_keys(self) -> None:
        """A key may name only parameters. Checked when the function is registered, not at the first enqueue."""
        takes_any = self.parameters.takes_others
        named = {p.name for p in self.parameters.own}
        for option, template in templates(self.fields):
            try:
                missing = [name for name in names_in(template) if name not in named]
            except ValueError as error:
                raise TypeError(f"{self.name}: cannot fill the key of `{option}`: {error}") from None
            if missing and (not takes_any or (self.timing is not None and option not in ENQUEUED_ONLY)):
                raise TypeError(f"{self.name}: `{option}` names {missing[0]!r}; it takes {self.parameters.text}.")

    def _fill_key(self, option: str, template: str, payload: Mapping[str, Any]) -> str:
        arguments = {**self._defaults, **payload}
        if missing := [name for name in names_in(template) if name not in arguments]:
            raise TypeError(f"{self.name}: `{option}` is {template!r}, and there is no argument {missing[0]!r}.")
        try:
            return fill(template, arguments)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"{self.name}: cannot fill `{option}`: {error}") from None

    @functools.cached_property
    def _defaults(self) -> dict[str, Any]:
        return self.types.encoded_defaults()


class BoundHandler(Generic[P, R]):
    """A function with options for its next jobs, as `handler.options(…)` returns it. It can be used many times."""

    def __init__(self, handler: Handler[P, R, ..., Any], fields: Mapping[str, Any]) -> None:
        self._handler = handler
        self._fields = fields

    def __repr__(self) -> str:
        return f"<BoundHandler {self._handler.name}>"

    @property
    def sync(self) -> "SyncBoundHandler[P, R]":
        """The same without asyncio: `f.options(…).sync.enqueue(…)` blocks until the job is created."""
        return cast("SyncBoundHandler[P, R]", Blocking(self))

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Have a worker run it once, with these arguments and options. Raises ArgumentError if they do not fit."""
        return await self._handler._create(self.body(*args, **kwargs))

    async def enqueue_many(self, many: Iterable[Arguments[P]], /) -> list[Handle[R]]:
        """Have a worker run it once for each of these arguments: `f.options(…).enqueue_many(f.args(n) for n in …)`.

        A `key` among the options must name arguments then: each job has its own.
        """
        handler = self._handler
        return await handler._create_many([handler._body(self._fields, handler._payload_of(one)) for one in many])

    def body(self, /, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """The body of the job that `enqueue` creates."""
        return self._handler._body(self._fields, self._handler._payload(args, kwargs))


def function_name(given: str | None, function: object) -> str:
    if not callable(function) or isinstance(function, type):
        raise TypeError(f'{function!r:.80} is no function. Write options by name: @app.job(cron="0 9 * * *").')
    name = str(getattr(function, "__name__", "")) if given is None else given
    if not name or name == "<lambda>":
        raise TypeError(f"{function!r} has no name. Give it one: @app.job(name=…).")
    if not is_function_name(name):
        raise ValueError(
            f"{name[:MAX_NAME]!r} cannot be a function's name. Use up to {MAX_NAME} characters without blanks."
        )
    return name
