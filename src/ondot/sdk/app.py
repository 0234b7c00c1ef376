"""The application of a user: which functions there are, and when they run by themselves (E3).

    app = Ondot()

    @app.job(cron="0 9 * * 1-5", timezone="Europe/Berlin", retries=5)
    async def daily_report(ctx: Context, region: str = "eu") -> dict: ...

`ondot worker module:app` runs the handlers and registers their schedules. What is wrong with a schedule is told where
it is written, as the module is imported, and needs no server.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, ParamSpec, TypeVar, overload

from ondot.model.ids import EPOCH
from ondot.model.job import Priority
from ondot.model.schedule import Cron, Interval, Schedule, check
from ondot.sdk.client import Client
from ondot.sdk.handler import Duration, Handler, written

P = ParamSpec("P")
R = TypeVar("R")


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
        jitter: Duration | None = None,
        retries: int | None = None,
        timeout: Duration | None = None,
        priority: Priority | None = None,
        pool: str | None = None,
        labels: Mapping[str, str] | None = None,
        key: str | None = None,
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
        jitter: Duration | None = None,
        retries: int | None = None,
        timeout: Duration | None = None,
        priority: Priority | None = None,
        pool: str | None = None,
        labels: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> Any:
        """Register a function. With `cron` or `every` it has a schedule of its own, which the worker registers."""
        timing = _timing(cron=cron, timezone=timezone, every=every, jitter=jitter)
        if key is not None and timing is None:
            raise TypeError("`key` names the job of a schedule; give it with `cron` or `every`.")
        options: dict[str, Any] = {
            "retry": None if retries is None else {"max_retries": retries},
            "timeout": None if timeout is None else written(timeout),
            "priority": priority,
            "pool": pool,
            "labels": dict(labels) if labels else None,
        }
        given = {option: value for option, value in options.items() if value is not None}

        def register(function: Callable[..., Any]) -> Handler[..., Any]:
            handler = Handler(function, name=name, options=given, timing=timing, key=key, submit=self.client.create_job)
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

    async def close(self) -> None:
        await self.client.close()

    async def __aenter__(self) -> "Ondot":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _timing(
    *, cron: str | None, timezone: str | None, every: Duration | None, jitter: Duration | None
) -> dict[str, Any] | None:
    """The schedule of a body. Raises InvalidSchedule, or TypeError for a company that makes no sense."""
    if cron is not None and every is not None:
        raise TypeError("A job takes one of `cron` and `every`.")
    if timezone is not None and cron is None:
        raise TypeError("`timezone` goes with `cron`: intervals measure real time.")
    if cron is None and every is None:
        if jitter is not None:
            raise TypeError("`jitter` spreads the fires of a schedule; give it with `cron` or `every`.")
        return None
    timing: dict[str, Any] = {}
    jitter_s = 0.0
    if jitter is not None:
        timing["jitter"] = jitter_s = written(jitter)
    if every is not None:
        timing["every"] = written(every)
        when: Cron | Interval = Interval(every_s=float(timing["every"]), anchor_at=EPOCH)
    else:
        assert cron is not None
        timing["cron"] = cron
        if timezone is not None:
            timing["timezone"] = timezone
        when = Cron(expression=cron, timezone=timezone or "UTC")
    check(Schedule(when=when, jitter_s=float(jitter_s)))
    return timing
