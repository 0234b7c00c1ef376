"""Functions as users register them: what they are called, what they ask of the server, what is refused at once."""

import inspect
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from aiohttp import web

import ondot
from ondot import Context, Ondot
from ondot.document.parse import job_spec
from ondot.model.errors import InvalidSchedule
from ondot.model.schedule import Cron
from ondot.model.target import FunctionTarget
from ondot.sdk.handler import Handler
from tests.proves import proves
from tests.receiver import Receiver, open_receiver

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with open_receiver() as receiver:
        receiver.answer(lambda: web.json_response({"id": "1", "state": "ACTIVE"}, status=201))
        yield receiver


@pytest.fixture
async def app(receiver: Receiver) -> AsyncIterator[Ondot]:
    async with Ondot(receiver.url, "key") as app:
        yield app


def sent(receiver: Receiver) -> Any:
    [received] = receiver.received
    assert (received.method, received.path) == ("POST", "/v1/jobs")
    return json.loads(received.body)


@proves("E3")
async def test_a_registered_function_is_called_like_the_function_itself(app: Ondot) -> None:
    @app.job
    def add(a: int, b: int = 1) -> int:
        """Adds."""
        return a + b

    @app.job(name="times")
    async def multiply(a: int, b: int) -> int:
        return a * b

    assert add(1, b=2) == 3
    assert await multiply(2, 3) == 6
    assert add.__doc__ == "Adds."
    assert repr(add) == "<Handler add>"
    assert list(inspect.signature(add).parameters) == ["a", "b"]
    assert app.handlers == {"add": add, "times": multiply}


@proves("S1", "E3")
async def test_enqueue_asks_for_one_run_now_with_the_options_of_the_function(app: Ondot, receiver: Receiver) -> None:
    @app.job(retries=5, timeout="2m", priority="high", pool="mail", labels={"team": "bi"})
    async def send(ctx: Context, to: str, at: datetime | None = None) -> None: ...

    handle = await send.enqueue("a@example.com", at=NOW)
    assert (handle.id, handle.job) == ("1", {"id": "1", "state": "ACTIVE"})
    assert sent(receiver) == {
        "name": "send",
        "target": {"function": "send"},
        "retry": {"max_retries": 5},
        "timeout": "2m",
        "priority": "high",
        "pool": "mail",
        "labels": {"team": "bi"},
        "payload": {"to": "a@example.com", "at": "2030-01-01T00:00:00Z"},
    }
    assert "idempotency-key" in receiver.received[0].headers


@proves("S1")
@pytest.mark.parametrize(
    ("when", "schedule"),
    [
        ({"at": datetime(2031, 1, 1, 9, tzinfo=timezone(timedelta(hours=1)))}, {"at": "2031-01-01T08:00:00Z"}),
        ({"at": "2031-01-01T09:00:00+01:00"}, {"at": "2031-01-01T08:00:00Z"}),
        ({"in_": timedelta(minutes=1, milliseconds=500)}, {"in": 60.5}),
        ({"in_": "1h30m"}, {"in": 5400}),
        ({"in_": 0}, {"in": 0}),
    ],
)
async def test_options_ask_for_one_run_at_an_instant_or_after_a_while(
    app: Ondot, receiver: Receiver, when: dict[str, Any], schedule: dict[str, Any]
) -> None:
    @app.job
    def report(region: str = "eu") -> None: ...

    await report.options(**when).enqueue("us")
    assert sent(receiver)["schedule"] == schedule
    assert sent(receiver)["payload"] == {"region": "us"}


@proves("S1")
async def test_options_take_at_most_one_instant_and_one_that_is_clear(app: Ondot, receiver: Receiver) -> None:
    @app.job
    def report() -> None: ...

    with pytest.raises(TypeError, match="report: `at` and `in_` both say when it runs; leave one out"):
        report.options(at=NOW, in_=5)
    with pytest.raises(ValueError, match="time zone"):
        report.options(at=datetime(2031, 1, 1))  # noqa: DTZ001 - the fault
    with pytest.raises(ValueError, match="`in_` must be a duration"):
        report.options(in_="soon")
    with pytest.raises(ValueError, match="`at` must be an aware datetime, or text in RFC 3339"):
        report.options(at="tomorrow")
    with pytest.raises(ValueError, match="time zone"):
        report.options(at="2031-01-01T09:00:00")
    with pytest.raises(TypeError, match="`at` must be an aware datetime"):
        report.options(at=NOW.timestamp())  # type: ignore[arg-type]
    assert receiver.received == []


@proves("E3")
@pytest.mark.parametrize("arguments", [{}, {"too": 1}, {"to": 1, "more": 1}, {"to": 1, "ctx": 1}, {"to": object()}])
async def test_arguments_that_do_not_fit_are_refused_before_anything_is_sent(
    app: Ondot, receiver: Receiver, arguments: dict[str, Any]
) -> None:
    @app.job
    async def send(ctx: Context, to: str) -> None: ...

    with pytest.raises(TypeError, match=r"^send: "):
        await send.enqueue(**arguments)
    assert receiver.received == []


@proves("S2", "S3", "S12")
def test_the_schedules_of_an_app_are_jobs_that_the_server_takes() -> None:
    app = Ondot()

    @app.job(cron="0 9 * * 1-5", timezone="Europe/Berlin", jitter="30s", retries=5)
    async def daily_report(ctx: Context, region: str = "eu") -> None: ...

    @app.job(every=timedelta(minutes=15), key="mine")
    def tick() -> None: ...

    @app.job
    def by_hand() -> None: ...

    daily, ticking = app.schedules()
    assert daily == {
        "name": "daily_report",
        "target": {"function": "daily_report"},
        "schedule": {"cron": "0 9 * * 1-5", "timezone": "Europe/Berlin", "jitter": "30s"},
        "retry": {"max_retries": 5},
        "key": "function:daily_report",
    }
    spec = job_spec(daily, NOW)
    assert spec.target == FunctionTarget(name="daily_report")
    assert spec.schedule is not None
    assert spec.schedule.when == Cron(expression="0 9 * * 1-5", timezone="Europe/Berlin")
    assert (ticking["key"], ticking["schedule"]) == ("mine", {"every": 900})
    assert job_spec(ticking, NOW).recurs


@proves("S2")
@pytest.mark.parametrize("options", [{"cron": "61 * * * *"}, {"cron": "@daily", "timezone": "Mars/Base"}, {"every": 0}])
def test_an_invalid_schedule_is_rejected_where_it_is_written(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchedule, match=r"^tick: "):
        Ondot().job(name="tick", **options)(lambda: None)


@proves("S2")
@pytest.mark.parametrize(
    "options",
    [{"cron": "@daily", "every": 5}, {"timezone": "UTC"}, {"every": 5, "timezone": "UTC"}, {"jitter": 5}, {"key": "a"}],
)
def test_options_that_make_no_sense_together_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"^tick: "):
        Ondot().job(name="tick", **options)(lambda: None)


@proves("E3")
def test_two_functions_of_one_name_are_refused() -> None:
    app = Ondot()

    @app.job
    def report() -> None: ...

    with pytest.raises(ValueError, match="already"):
        app.job(name="report")(lambda: None)
    assert list(app.handlers) == ["report"]


@proves("E3")
def test_functions_that_could_never_be_run_are_refused_at_once() -> None:
    app = Ondot()

    def generates() -> Any:
        yield 1

    async def generates_later() -> Any:
        yield 1

    def context_second(a: int, ctx: Context) -> None: ...

    def needs(a: int) -> None: ...

    refused: list[Callable[[], object]] = [
        lambda: app.job(generates),
        lambda: app.job(generates_later),
        lambda: app.job(context_second),
        lambda: app.job(every=5)(needs),
        lambda: app.job(lambda: None),
    ]
    for register in refused:
        with pytest.raises(TypeError):
            register()
    for name in ("", "a b", "a\\b", "a\nb", "x" * 201):
        with pytest.raises((ValueError, TypeError)):
            app.job(name=name)(needs)
    assert app.handlers == {}


@proves("E3")
def test_the_context_is_passed_to_functions_that_take_it() -> None:
    def by_name(ctx, a=1): ...  # type: ignore[no-untyped-def]
    def by_annotation(context: Context, a: int = 1) -> None: ...
    def by_text(c: "Context") -> None: ...
    def by_unknown_text(c: "ondot.Context", d: "NoSuchName" = 1) -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def by_keyword(*, ctx: Context) -> None: ...
    def not_at_all(a: int = 1) -> None: ...
    def nothing() -> None: ...
    def anything(**ctx: Any) -> None: ...

    asks: list[Callable[..., Any]] = [by_name, by_annotation, by_text, by_unknown_text, by_keyword]
    assert all(Handler(function).takes_context for function in asks)
    assert not any(Handler(function).takes_context for function in (not_at_all, nothing, anything))
    assert Handler(by_keyword).parameters.arrange(None, {}) == ((), {"ctx": None})


@proves("E3")
def test_a_context_can_be_made_by_hand_for_a_test_of_a_handler() -> None:
    said: list[str] = []
    ctx = Context(
        execution_id=UUID(int=1),
        job_id=UUID(int=2),
        job_name="report",
        attempt=1,
        fire_at=NOW,
        fencing_token=1,
        checkpoint=None,
        say=said.append,
        report=lambda *_: None,
        is_cancelled=lambda: False,
    )
    ctx.log("sent", mails=3, subject="a=b", nothing=None)
    assert said == ['sent mails=3 subject="a=b" nothing=None']
    assert ctx.checkpoint is None
    with pytest.raises(ValueError, match="the limit is"):
        ctx.heartbeat(checkpoint="x" * 2_000_000)
    with pytest.raises(TypeError):
        ctx.heartbeat(checkpoint=object())


@proves("E3")
async def test_a_function_without_an_app_cannot_be_enqueued() -> None:
    def lonely() -> None: ...

    with pytest.raises(RuntimeError, match="belongs to no app"):
        await Handler(lonely).enqueue()


@proves("O6")
def test_importing_ondot_alone_loads_neither_the_sdk_nor_what_it_needs() -> None:
    heavy = ("ondot.", "httpx", "pydantic", "msgspec")
    script = f"import sys, ondot; ondot.__version__; print(*(n for n in sys.modules if n.startswith({heavy})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    assert ondot.Ondot is Ondot
    assert issubclass(ondot.Stale, Exception)
    assert all(getattr(ondot, name) for name in ondot.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = ondot.Nothing


@proves("S6", "S10", "S12")
def test_a_function_may_have_a_recurrence_rule_and_all_else_a_schedule_has() -> None:
    app = Ondot()
    more = {"misfire": {"policy": "all", "window": "1d"}, "calendar": {"exclude_holidays": "DE"}}

    @app.job(
        rrule="FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17",
        timezone="Europe/Berlin",
        schedule=more,
        pause_after_failures=3,
    )
    def close_the_month() -> None: ...

    @app.job(cron="@every 90s")
    def tick() -> None: ...

    closing, ticking = app.schedules()
    assert closing["schedule"] == {
        "rrule": "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17",
        "timezone": "Europe/Berlin",
        **more,
    }
    spec = job_spec(closing, NOW)
    assert spec.schedule is not None
    assert (spec.schedule.misfire.policy, spec.pause_after_failures) == ("all", 3)
    assert job_spec(ticking, NOW).recurs


@proves("S12")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cron": "@daily", "rrule": "FREQ=DAILY"}, "`cron` and `rrule` are two schedules"),
        ({"pause_after_failures": 3}, "is for a job that recurs"),
        ({"schedule": {"misfire": {}}}, "is part of a schedule"),
        ({"every": 5, "schedule": {"every": 6}}, "given twice"),
    ],
)
def test_an_error_in_the_options_gives_the_reason(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Ondot().job(name="tick", **options)(lambda: None)


@proves("D1")
@pytest.mark.parametrize("name", ["delay", "apply_async", "send", "defer"])
def test_the_name_that_others_give_to_enqueue_is_answered_with_ours(name: str) -> None:
    @Ondot().job
    def crawl(url: str) -> None: ...

    with pytest.raises(AttributeError, match=r"Write `await crawl\.enqueue\(…\)`, or `crawl\.sync\.enqueue\(…\)`"):
        getattr(crawl, name)


@proves("D1")
def test_what_is_no_function_is_refused_where_it_is_written() -> None:
    class Crawler:
        def crawl(self, url: str) -> None: ...

    app = Ondot()
    with pytest.raises(TypeError, match=r"'0 9 \* \* \*' is no function\. Write options by name"):
        app.job("0 9 * * *")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="is no function"):
        app.job(Crawler)
    with pytest.raises(TypeError, match="crawl is a method"):
        app.job(Crawler.crawl)
    assert app.job(Crawler().crawl).name == "crawl"
