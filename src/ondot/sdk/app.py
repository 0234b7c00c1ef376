"""The application of a user: its functions and their schedules (E3).

    app = Ondot()

    @app.job(cron="0 9 * * 1-5", timezone="Europe/Berlin", retries=5)
    async def daily_report(ctx: Context, region: str = "eu") -> dict: ...

`ondot worker module:app` runs the handlers and registers their schedules. A wrong schedule or option raises an error
where it is written, when the module is imported; no server is needed.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType, TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload
from uuid import UUID

import msgspec

from ondot.model.app_release import check_app, check_release
from ondot.model.errors import InvalidSchedule
from ondot.sdk.client import Client
from ondot.sdk.context import Context
from ondot.sdk.handle import Handle, handle_by_id
from ondot.sdk.handler import Handler, function_name
from ondot.sdk.options import JobOptions, WorkflowOptions, read_options, read_secrets, seconds_of
from ondot.sdk.transaction import Block, open_transaction
from ondot.sdk.workflow import Workflow
from ondot.sdk.workflow_handler import OF_WORKFLOWS, WorkflowHandler

P = ParamSpec("P")
R = TypeVar("R")

JOBS_A_REQUEST = 1000
"""The most jobs that `enqueue_many` sends in one request."""
BYTES_A_REQUEST = 8 * 1024 * 1024
"""The most bytes of their bodies: half of what a server accepts in a batch by default."""


class Register(Protocol):
    """What `@app.job(…)` with options returns: it makes a handler of a function."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Handler[P, R, Concatenate[Context, P], Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Handler[P, R, P, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> Handler[P, R, Concatenate[Context, P], R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Handler[P, R, P, R]: ...


class Ondot:
    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        name: str | None = None,
        release: str | None = None,
    ) -> None:
        """The URL and API key of the server; by default ONDOT_URL and ONDOT_API_KEY, read at the first request.

        `name` is the app's own; by default the MODULE of `ondot worker MODULE:APP`. A job that the app declares belongs
        to this name. `release` names the code's version; by default ONDOT_RELEASE, else a hash of what it declares.
        """
        self.client = Client(url, api_key)
        self.name = None if name is None else check_app(name)
        self.release = None if release is None else check_release(release)
        self._handlers: dict[str, Handler[..., Any]] = {}
        self._workflows: dict[str, WorkflowHandler[Any]] = {}

    @overload
    def job(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Handler[P, R, Concatenate[Context, P], Coroutine[Any, Any, R]]: ...

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Handler[P, R, P, Coroutine[Any, Any, R]]: ...

    @overload
    def job(self, function: Callable[Concatenate[Context, P], R], /) -> Handler[P, R, Concatenate[Context, P], R]: ...

    @overload
    def job(self, function: Callable[P, R], /) -> Handler[P, R, P, R]: ...

    @overload
    def job(self, function: None = None, /, **options: Unpack[JobOptions]) -> Register: ...

    def job(self, function: Callable[..., Any] | None = None, /, **options: Unpack[JobOptions]) -> Any:
        """Register a function. With `cron`, `every` or `rrule` it has a schedule, which the worker registers.

        The options are the fields of a job, by the names of the API: see `ondot.sdk.options`. `schedule` holds the
        other fields of the schedule: `{"misfire": {"policy": "all"}, "calendar": {…}}`.
        """

        def register(function: Callable[..., Any]) -> Handler[..., Any]:
            name = function_name(options.get("name"), function)
            with _naming(name):
                secrets = read_secrets(options.get("secrets"))
                given, timing = read_options(options, name)
            handler: Handler[..., Any] = Handler(
                function,
                name=name,
                timing=timing,
                pause_after_failures=given.pop("pause_after_failures", None),
                key=given.pop("key", None),
                options=given,
                secrets=secrets,
                client=self.client,
                submit=self._submit,
                submit_many=self._submit_many,
            )
            if name in self._handlers:
                raise ValueError(
                    f"There is a job {name!r} already, of {self._handlers[name].function!r}; "
                    "give this one another name: @app.job(name=…)."
                )
            self._handlers[name] = handler
            return handler

        return register if function is None else register(function)

    @overload
    def workflow(self, function: Callable[Concatenate[Workflow, P], None], /) -> WorkflowHandler[P]: ...

    @overload
    def workflow(
        self, function: None = None, /, **options: Unpack[WorkflowOptions]
    ) -> Callable[[Callable[Concatenate[Workflow, P], None]], WorkflowHandler[P]]: ...

    def workflow(self, function: Callable[..., None] | None = None, /, **options: Unpack[WorkflowOptions]) -> Any:
        """Register a workflow: the function gets a `Workflow` and describes its steps, once, now.

        The options are those of `job`; overlap, limits and misfires count runs, `timeout` is that of the run. Also
        `on_failure`: "block" (default) or "fail", and `blocked_for`: how long a BLOCKED run waits for a person.
        """

        def register(function: Callable[..., None]) -> WorkflowHandler[Any]:
            name = function_name(options.get("name"), function)
            with _naming(name):
                own = {option: options[option] for option in OF_WORKFLOWS if options.get(option) is not None}
                if "blocked_for" in own:
                    own["blocked_for"] = seconds_of("blocked_for", own["blocked_for"])
                rest = {option: value for option, value in options.items() if option not in OF_WORKFLOWS}
                given, timing = read_options(rest, name)
            if name in self._workflows:
                raise ValueError(
                    f"There is a workflow {name!r} already; give this one another name: @app.workflow(name=…)."
                )
            handler: WorkflowHandler[Any] = WorkflowHandler(
                function,
                name=name,
                timing=timing,
                pause_after_failures=given.pop("pause_after_failures", None),
                key=given.pop("key", None),
                options=given,
                of_workflow=own,
                submit=self._submit,
                client=self.client,
            )
            self._workflows[name] = handler
            return handler

        return register if function is None else register(function)

    @property
    def workflows(self) -> Mapping[str, WorkflowHandler[Any]]:
        return MappingProxyType(self._workflows)

    @property
    def handlers(self) -> Mapping[str, Handler[..., Any]]:
        return MappingProxyType(self._handlers)

    def schedules(self) -> list[dict[str, Any]]:
        """The bodies of the jobs that recur by the handlers' own schedules; their keys make them upserts."""
        bodies = [handler.recurring_body() for handler in self._handlers.values()]
        bodies += [workflow.recurring_body() for workflow in self._workflows.values()]
        return [body for body in bodies if body is not None]

    def transaction(self, connection: Any, *, tenant: str = "default") -> Block:
        """Jobs that are enqueued in the block exist if and only if the caller's transaction commits.

        `with` for blocking connections and sessions to ondot's database, `async with` for async ones: of asyncpg,
        psycopg, SQLAlchemy 2 and Django. The block never commits. No request is sent to the server; workers find a job
        within a second after the commit.
        """
        return Block(self, connection, tenant)

    def handle(self, id_: UUID | str) -> Handle[Any]:
        """The handle of a job that was enqueued elsewhere, by its id; its result is plain JSON. A handle of a function
        has the type that the function returns: `send_invoice.handle(id)`."""
        return handle_by_id(self.client, id_, lambda result: result)

    async def _submit(self, body: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        if (transaction := open_transaction(self)) is not None:
            return await transaction.submit(body), False
        return await self.client.create_job(body), True

    async def _submit_many(self, bodies: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], bool]:
        if (transaction := open_transaction(self)) is not None:
            return await transaction.submit_many(bodies), False
        jobs: list[dict[str, Any]] = []
        for batch in batches(bodies):
            jobs += (await self.client.create_jobs(batch))["items"]
        return jobs, True

    async def close(self) -> None:
        await self.client.close()

    async def __aenter__(self) -> "Ondot":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Put the function's name before an error in its options: a module has many functions."""
    try:
        yield
    except InvalidSchedule as error:
        raise InvalidSchedule(f"{name}: {error.message}", error.faults, **error.facts) from None
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def batches(bodies: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The bodies of each request, up to JOBS_A_REQUEST jobs and BYTES_A_REQUEST bytes. A larger job goes alone."""
    batch: list[dict[str, Any]] = []
    size = 0
    for body in bodies:
        length = len(msgspec.json.encode(body))
        if batch and (len(batch) == JOBS_A_REQUEST or size + length > BYTES_A_REQUEST):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += length
    if batch:
        yield batch
