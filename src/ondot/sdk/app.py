"""The application of a user: which functions there are, and when they run by themselves (E3).

    app = Ondot()

    @app.job(cron="0 9 * * 1-5", timezone="Europe/Berlin", retries=5)
    async def daily_report(ctx: Context, region: str = "eu") -> dict: ...

`ondot worker module:app` runs the handlers and registers their schedules. What is wrong with a schedule or an option is
told where it is written, as the module is imported, and needs no server.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from types import MappingProxyType, TracebackType
from typing import Any, ParamSpec, TypeVar, Unpack, overload

import msgspec

from ondot.model.errors import InvalidSchedule
from ondot.model.ids import EPOCH
from ondot.model.job import Priority
from ondot.model.schedule import Cron, Interval, Rrule, Schedule, When, check, every_of
from ondot.model.schedule.rrule import begins_of
from ondot.sdk.checks import duration_of
from ondot.sdk.client import Client
from ondot.sdk.handler import Handler, checked_name
from ondot.sdk.options import Duration, JobOptions, checked_options
from ondot.sdk.transaction import enqueuing, open_transaction

P = ParamSpec("P")
R = TypeVar("R")

A_REQUEST = 1000
"""Jobs of `enqueue_many` in one request."""
BYTES_A_REQUEST = 8 * 1024 * 1024
"""Of their bodies: half of what a server accepts in a batch by default."""


class Ondot:
    def __init__(self, url: str | None = None, api_key: str | None = None) -> None:
        """Address and key of the server; by default ONDOT_URL and ONDOT_API_KEY, read when first needed."""
        self.client = Client(url, api_key)
        self._handlers: dict[str, Handler[..., Any]] = {}

    @overload
    def job(self, function: Callable[P, R], /) -> Handler[P, R]: ...

    @overload
    def job(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        every: Duration | None = None,
        rrule: str | None = None,
        jitter: Duration | None = None,
        schedule: Mapping[str, Any] | None = None,
        retries: int | None = None,
        timeout: Duration | None = None,
        priority: Priority | None = None,
        pool: str | None = None,
        labels: Mapping[str, str] | None = None,
        pause_after_failures: int | None = None,
        key: str | None = None,
        **more: Unpack[JobOptions],
    ) -> Callable[[Callable[P, R]], Handler[P, R]]: ...

    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        every: Duration | None = None,
        rrule: str | None = None,
        jitter: Duration | None = None,
        schedule: Mapping[str, Any] | None = None,
        retries: int | None = None,
        timeout: Duration | None = None,
        priority: Priority | None = None,
        pool: str | None = None,
        labels: Mapping[str, str] | None = None,
        pause_after_failures: int | None = None,
        key: str | None = None,
        **more: Unpack[JobOptions],
    ) -> Any:
        """Register a function. With `cron`, `every` or `rrule` it has a schedule, which the worker registers.

        `schedule` is what else the schedule has, as in the API: `{"misfire": {"policy": "all"}, "calendar": {…}}`.
        `more` is what else a job has, by the names of the API: see `ondot.sdk.options`.
        """
        options: dict[str, Any] = {
            "retries": retries,
            "timeout": timeout,
            "priority": priority,
            "pool": pool,
            "labels": labels,
            "pause_after_failures": pause_after_failures,
            "key": key,
            **more,
        }

        def register(function: Callable[..., Any]) -> Handler[..., Any]:
            name_ = checked_name(name, function)
            with _told_of(name_):
                timing = _timing(cron=cron, timezone=timezone, every=every, rrule=rrule, jitter=jitter, more=schedule)
                given = checked_options(options, recurs=timing is not None)
            handler = Handler(
                function,
                name=name_,
                timing=timing,
                pause_after_failures=given.pop("pause_after_failures", None),
                key=given.pop("key", None),
                options=given,
                submit=self._submit,
                submit_many=self._submit_many,
            )
            if handler.name in self._handlers:
                raise ValueError(
                    f"There is a job {handler.name!r} already, of {self._handlers[handler.name].function!r}; "
                    "give this one another name: @app.job(name=…)."
                )
            self._handlers[handler.name] = handler
            return handler

        return register if function is None else register(function)

    @property
    def handlers(self) -> Mapping[str, Handler[..., Any]]:
        return MappingProxyType(self._handlers)

    def schedules(self) -> list[dict[str, Any]]:
        """The jobs that the handlers' own schedules ask for, as bodies to create; their keys make them upserts."""
        bodies = (handler.recurring_body() for handler in self._handlers.values())
        return [body for body in bodies if body is not None]

    def transaction(self, connection: Any, *, tenant: str = "default") -> AbstractAsyncContextManager[None]:
        """What is enqueued and scheduled in the block is there if and only if the caller's transaction commits.

        `async with connection.transaction(), app.transaction(connection):` with an asyncpg connection to ondot's
        database. Nothing is sent to the server; workers find the job within a second of the commit.
        """
        return enqueuing(self, connection, tenant)

    async def _submit(self, body: dict[str, Any]) -> dict[str, Any]:
        transaction = open_transaction(self)
        return await (self.client.create_job(body) if transaction is None else transaction.submit(body))

    async def _submit_many(self, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if (transaction := open_transaction(self)) is not None:
            return await transaction.submit_many(bodies)
        made: list[dict[str, Any]] = []
        for portion in portions(bodies):
            made += (await self.client.create_jobs(portion))["items"]
        return made

    async def close(self) -> None:
        await self.client.close()

    async def __aenter__(self) -> "Ondot":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


@contextmanager
def _told_of(name: str) -> Iterator[None]:
    """What is wrong with an option is told with the function's name: a module has many."""
    try:
        yield
    except InvalidSchedule as error:
        raise InvalidSchedule(f"{name}: {error.message}", error.faults, **error.facts) from None
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _timing(
    *,
    cron: str | None,
    timezone: str | None,
    every: Duration | None,
    rrule: str | None,
    jitter: Duration | None,
    more: Mapping[str, Any] | None,
) -> dict[str, Any] | None:
    """The schedule of a body. Raises InvalidSchedule, or TypeError for a company that makes no sense."""
    if sum(kind is not None for kind in (cron, every, rrule)) > 1:
        raise TypeError("A job takes one of `cron`, `every` and `rrule`.")
    if timezone is not None and cron is None and rrule is None:
        raise TypeError("`timezone` goes with `cron` or `rrule`: intervals measure real time.")
    timing: dict[str, Any] = {}
    if jitter is not None:
        timing["jitter"] = duration_of("jitter", jitter)
    if timezone is not None:
        timing["timezone"] = timezone
    when: When
    if every is not None:
        timing["every"] = duration_of("every", every)
        when = Interval(every_s=float(timing["every"]), anchor_at=EPOCH)
    elif cron is not None:
        timing["cron"] = cron
        every_s = every_of(cron)
        zone = timezone or "UTC"
        when = Cron(expression=cron, timezone=zone) if every_s is None else Interval(every_s=every_s, anchor_at=EPOCH)
    elif rrule is not None:
        timing["rrule"] = rrule
        begins, zone_given = begins_of(rrule) or (EPOCH.replace(tzinfo=None), None)
        when = Rrule(text=rrule, begins=begins, timezone=timezone or zone_given or "UTC")
    else:
        if jitter is not None or more is not None:
            option = "jitter" if jitter is not None else "schedule"
            raise TypeError(f"`{option}` is of a schedule; give it with `cron`, `every` or `rrule`.")
        return None
    check(Schedule(when=when, jitter_s=float(timing.get("jitter", 0))))
    if twice := timing.keys() & (more or {}).keys():
        raise TypeError(f"`{min(twice)}` is given twice, alone and in `schedule`; leave one out.")
    return timing | dict(more or {})


def portions(bodies: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """What goes into one request each: so many jobs, and so many bytes unless a single job has more."""
    portion: list[dict[str, Any]] = []
    size = 0
    for body in bodies:
        length = len(msgspec.json.encode(body))
        if portion and (len(portion) == A_REQUEST or size + length > BYTES_A_REQUEST):
            yield portion
            portion, size = [], 0
        portion.append(body)
        size += length
    if portion:
        yield portion
