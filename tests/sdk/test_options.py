"""The options of a registered function: retries, limits, and keys filled from its arguments."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from ondot import Context, Ondot
from ondot.document.body import JobBody
from ondot.document.parse import job_spec
from ondot.document.schedule_body import ScheduleBody
from ondot.flow.gate import admit_pass
from ondot.model.errors import InvalidBody
from ondot.model.gates import Limits, Rate
from ondot.model.job import Debounce, Throttle, Unique
from ondot.model.retry import Retry
from ondot.sdk.options import JobOptions, fill, names_in
from ondot.sdk.transaction.specs import spec_of
from tests.proves import proves
from tests.world import DEFAULT_POOL, World

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def named() -> None: ...


@proves("E4")
def test_a_function_chooses_which_errors_are_retried_and_how() -> None:
    class Refused(Exception): ...

    @Ondot().job(retries=5, retry={"initial": timedelta(seconds=2), "max": "1m", "never_on": [Refused, "5xx", 404]})
    def charge() -> None: ...

    assert job_spec(charge.body(), NOW).retry == Retry(
        max_retries=5,
        initial_s=2.0,
        max_s=60.0,
        never_on=(
            "test_a_function_chooses_which_errors_are_retried_and_how.<locals>.Refused",
            "5xx",
            "404",
        ),
    )


@proves("E13")
@pytest.mark.parametrize(
    ("options", "key_concurrency", "key_rate"),
    [
        ({"concurrency": 5}, 5, None),
        ({"rate": "10/s"}, None, Rate(limit=10, per_s=1.0)),
        (
            {"concurrency": 2, "rate": {"limit": 10, "per": timedelta(minutes=1), "burst": 3}},
            2,
            Rate(limit=10, per_s=60.0, burst=3),
        ),
    ],
)
def test_a_limit_of_a_function_is_shared_by_all_that_run_it(
    options: dict[str, Any], key_concurrency: int | None, key_rate: Rate | None
) -> None:
    @Ondot().job(every=60, **options)
    def report(region: str = "eu") -> None: ...

    shared = Limits(key="function:report", key_concurrency=key_concurrency, key_rate=key_rate)
    recurring = report.recurring_body()
    assert recurring is not None
    assert job_spec(recurring, NOW).limits == shared
    assert job_spec(report.body("us"), NOW).limits == shared
    assert spec_of(report.body("us")).limits == shared


@proves("E13")
async def test_all_jobs_of_a_function_with_a_limit_wait_for_each_other(world: World) -> None:
    app = Ondot()

    @app.job(every=3600, concurrency=1)
    def report(region: str = "eu") -> None: ...

    recurring = report.recurring_body()
    assert recurring is not None
    bodies = (recurring, report.body("us"), report.body() | {"schedule": {"in": 0}})
    await world.submit_all([job_spec(body, world.now) for body in bodies])
    await world.advance(3600)
    await world.plan()
    worker = await world.worker()
    began = []
    for _ in bodies:
        await admit_pass(world.database, [DEFAULT_POOL])
        [attempt] = await worker.lease()
        began.append(attempt.leased.id)
        await worker.complete(attempt)
    assert len(set(began)) == 3


@proves("E12", "E13", "E16")
def test_a_limit_with_a_key_is_of_each_key_and_overlap_of_the_schedule() -> None:
    @Ondot().job(
        every=60,
        overlap="skip",
        concurrency=2,
        rate="5/s",
        concurrency_key="region:{region}",
        order_key="all",
        start_deadline="10m",
        cancel_grace=timedelta(seconds=30),
    )
    def report(ctx: Context, region: str = "eu") -> None: ...

    body = report.recurring_body()
    assert body is not None
    spec = job_spec(body, NOW)
    keyed = Limits(key="region:eu", key_concurrency=2, key_rate=Rate(limit=5, per_s=1.0), order_key="all")
    assert spec.limits == replace(keyed, overlap="skip")
    assert (spec.start_deadline_s, spec.cancel_grace_s) == (600.0, 30.0)
    assert job_spec(report.body(), NOW).limits == keyed
    assert job_spec(report.body("us"), NOW).limits == replace(keyed, key="region:us")


@proves("E13")
def test_a_name_with_braces_is_no_template_and_one_that_is_too_long_is_refused() -> None:
    @Ondot().job(name="a{b}", concurrency=1)
    def braces() -> None: ...

    assert braces.body()["concurrency_key"] == "function:a{b}"
    with pytest.raises(ValueError, match="too long to limit it by"):
        Ondot().job(name="x" * 195, concurrency=1)(lambda: None)
    assert Ondot().job(name="x" * 195)(lambda: None).body()["name"] == "x" * 195


@proves("E13")
@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": True},
        {"concurrency": 10_001},
        {"concurrency": "5"},
        {"rate": "fast"},
        {"rate": "0/s"},
        {"rate": "10/100ms"},
        {"rate": {"limit": 10}},
        {"rate": {"limit": 10, "per": 60, "burst": 11}},
        {"concurrency_key": "k", "key_rate": "10/31d"},
    ],
)
def test_an_invalid_limit_is_rejected_where_it_is_written(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^named: `(key_rate|concurrency|rate(\.\w+)?)` (must be|is missing)"):
        Ondot().job(**options)(named)


@proves("E16")
def test_unique_debounce_and_throttle_apply_to_enqueued_jobs_and_never_to_the_schedule() -> None:
    app = Ondot()

    @app.job(every=60, unique={"key": "a:{a}", "within": "1h"})
    def one(a: int = 1) -> None: ...

    @app.job(every=60, throttle={"key": "{a}-{b}", "per": "1m", "limit": 3})
    def other(a: int = 1, b: str = "x") -> None: ...

    @app.job(unique="plain")
    def two() -> None: ...

    @app.job(debounce={"key": "index:{document}", "wait": timedelta(seconds=5)})
    def three(document: UUID) -> None: ...

    assert all(recurring.keys().isdisjoint({"unique", "throttle"}) for recurring in app.schedules())
    assert job_spec(one.body(7), NOW).unique == Unique(key="a:7", within_s=3600.0)
    assert job_spec(other.body(a=7), NOW).throttle == Throttle(key="7-x", per_s=60.0, limit=3)
    assert job_spec(two.body(), NOW).unique == Unique(key="plain")
    assert job_spec(three.body(UUID(int=7)), NOW).debounce == Debounce(key=f"index:{UUID(int=7)}", wait_s=5.0)


@proves("E16")
async def test_a_function_that_is_debounced_cannot_be_scheduled() -> None:
    @Ondot().job(debounce={"key": "k", "wait": 5})
    def index() -> None: ...

    with pytest.raises(TypeError, match=r"index: `debounce` decides when the job runs; leave out `at`"):
        index.options(in_=60)


def test_a_key_is_filled_with_arguments_as_they_travel() -> None:
    arguments = {"a": 1, "b": "text", "c": True, "d": None, "e": NOW, "f": 1.5}
    assert fill("{a}/{b}/{c}/{d}/{e}/{f}", arguments) == "1/text/true/null/2030-01-01T00:00:00Z/1.5"
    assert fill("{{a}} is {a}", arguments) == "{a} is 1"
    assert names_in("{{a}} {b}{c}") == ["b", "c"]


@proves("E13", "E16")
@pytest.mark.parametrize(
    "options",
    [
        {"concurrency_key": "customer:{customer}"},
        {"order_key": "{customer_id.name}"},
        {"order_key": "{}"},
        {"order_key": "{customer_id!r}"},
        {"order_key": "{customer_id"},
        {"unique": {"key": "{ctx}"}},
    ],
)
def test_a_key_that_names_no_argument_is_refused_where_it_is_written(options: dict[str, Any]) -> None:
    def charge(ctx: Context, customer_id: int) -> None: ...

    with pytest.raises(TypeError, match=r"^charge: .*`(concurrency_key|order_key|unique)`"):
        Ondot().job(**options)(charge)


@proves("E13")
async def test_an_argument_that_a_key_needs_is_missed_at_the_enqueue() -> None:
    @Ondot().job(concurrency_key="customer:{customer_id}")
    def charge(**anything: Any) -> None: ...

    with pytest.raises(TypeError, match=r"charge: `concurrency_key` is .*, and there is no argument 'customer_id'"):
        await charge.enqueue(amount=5)
    assert charge.body(customer_id=7)["concurrency_key"] == "customer:7"
    with pytest.raises(TypeError, match="names 'customer_id'"):
        Ondot().job(every=5, concurrency_key="{customer_id}")(charge.function)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"overlap": "skip"}, "each enqueue makes a job of its own"),
        ({"concurrency_key": "k", "concurrency": 5, "key_concurrency": 5}, "`concurrency` is the limit of each key"),
        ({"concurrency_key": "k", "rate": "5/s", "key_rate": "5/s"}, "`rate` is the limit of each key"),
        ({"key": "a"}, "`key` is for a job that recurs"),
        ({"retries": 5, "retry": {"max_retries": 4}}, "given twice"),
        ({"concurency": 5}, "did you mean `concurrency`"),
        ({"nonsense": 5}, "has no option `nonsense`"),
        ({"queue": "mail"}, "did you mean `pool`"),
        ({"interval": 60}, "did you mean `every`"),
        ({"in_": "10m"}, r"write f\.options\(in_=…\)"),
        ({"url": "https://example.com"}, "has no option `url`"),
        ({"every": 60, "schedule": "daily"}, "`schedule` must be a mapping"),
        ({"retry": {3: 4}}, "`retry` must be a mapping with text as names"),
    ],
)
def test_options_that_a_function_cannot_have_are_refused_as_a_wrong_call(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=rf"^named: .*{words}"):
        Ondot().job(**options)(named)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key_rate": "5/s"}, "`key_rate` .* `concurrency_key` too, or use `rate`"),
        ({"key_concurrency": 5}, "`key_concurrency` .* `concurrency_key` too, or use `concurrency`"),
        ({"unique": "a", "debounce": {"key": "a", "wait": 5}}, "`debounce` and `unique` exclude each other"),
        ({"unique": "a", "throttle": {"key": "a", "per": 5}}, "`throttle` and `unique` exclude each other"),
        (
            {"throttle": {"key": "a", "per": 5}, "debounce": {"key": "a", "wait": 5}},
            "`throttle` and `debounce` exclude",
        ),
        ({"debounce": {"wait": 5}}, "`debounce.key` is missing"),
        ({"debounce": {}}, "`debounce.key` is missing"),
        ({"unique": {"key": None}}, "`unique.key` is missing"),
        ({"rate": {}}, "`rate.limit` is missing"),
        ({"timeout": {}}, "`timeout` must be"),
        ({"debounce": {"key": "a", "wait": 5, "maxwait": 6}}, "`maxwait` in `debounce`; did you mean `max_wait`"),
        ({"throttle": {"key": "a", "per": 5, "burst": 1}}, "`burst` in `throttle`"),
        ({"retry": {"retries": 5}}, "`retries` in `retry`; did you mean `max_retries`"),
        ({"retry": {"never_on": [404], "retry_on": [404]}}, '"404" .* `retry_on` and `never_on`'),
        ({"retries": -1, "retry": {"initial": "soon"}}, "`retries` must be .* `retry.initial` must be"),
    ],
)
def test_options_that_no_job_can_have_are_refused_in_the_words_of_the_api(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=rf"^named: .*{words}"):
        Ondot().job(**options)(named)


def test_empty_labels_retries_and_schedules_are_as_if_left_out() -> None:
    assert Ondot().job(labels={}, retry={}, schedule={})(named).body() == Ondot().job(named).body()


def test_the_options_of_a_function_are_the_fields_of_a_job() -> None:
    of_function = {"name", "schedule", "target", "payload", "depends_on"}
    of_schedule = {"cron", "every", "rrule", "event", "timezone", "jitter", "spread"}
    assert of_schedule <= ScheduleBody.model_fields.keys()
    own = JobOptions.__annotations__.keys() - of_schedule - {"name", "schedule", "retries", "secrets"}
    assert own == JobBody.model_fields.keys() - of_function


@proves("E4", "E12", "E13", "E16")
@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"overlap": "sometimes", "every": 60}, "overlap"),
        ({"concurrency_key": ""}, "concurrency_key"),
        ({"concurrency_key": 7}, "concurrency_key"),
        ({"order_key": " "}, "order_key"),
        ({"priority": "urgent"}, "priority"),
        ({"priority": 1}, "priority"),
        ({"pool": "My Pool"}, "pool"),
        ({"pool": "x" * 64}, "pool"),
        ({"labels": {"team": 7}}, "labels"),
        ({"labels": {"team": None}}, "labels"),
        ({"retries": -1}, "retries"),
        ({"retries": 101}, "retries"),
        ({"retries": "3"}, "retries"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": timedelta(seconds=-1)}, "timeout"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "8d"}, "timeout"),
        ({"start_deadline": "soon"}, "start_deadline"),
        ({"start_deadline": 0}, "start_deadline"),
        ({"cancel_grace": "2h"}, "cancel_grace"),
        ({"pause_after_failures": 0, "every": 60}, "pause_after_failures"),
        ({"key": "", "every": 60}, "key"),
        ({"retry": 5}, "retry"),
        ({"retry": {"max_retries": -1}}, "retry.max_retries"),
        ({"retry": {"backoff": "quadratic"}}, "retry.backoff"),
        ({"retry": {"initial": "soon"}}, "retry.initial"),
        ({"retry": {"factor": 0.5}}, "retry.factor"),
        ({"retry": {"jitter": 1}}, "retry.jitter"),
        ({"retry": {"delays": "1s"}}, "retry.delays"),
        ({"retry": {"delays": ["1s", "soon"]}}, "retry.delays"),
        ({"retry": {"never_on": "ValueError"}}, "retry.never_on"),
        ({"retry": {"never_on": [200]}}, "retry.never_on"),
        ({"retry": {"never_on": ["200"]}}, "retry.never_on"),
        ({"retry": {"never_on": ["not found"]}}, "retry.never_on"),
        ({"retry": {"retry_on": [None]}}, "retry.retry_on"),
        ({"unique": 7}, "unique"),
        ({"unique": ""}, "unique"),
        ({"unique": {"key": 7}}, "unique.key"),
        ({"unique": {"key": "a", "within": 0}}, "unique.within"),
        ({"debounce": "a"}, "debounce"),
        ({"debounce": {"key": "a", "wait": "soon"}}, "debounce.wait"),
        ({"debounce": {"key": "a", "wait": 5, "max_wait": 4}}, "debounce.max_wait"),
        ({"throttle": {"key": "a", "per": 5, "limit": 0}}, "throttle.limit"),
    ],
)
def test_an_invalid_option_is_rejected_by_its_name_and_by_the_api_too(options: dict[str, Any], path: str) -> None:
    with pytest.raises(ValueError, match=rf"^named: `{path}(\.0|\.1|\.team)?` must be "):
        Ondot().job(**options)(named)
    body = {"function": "named", **options}
    if isinstance(body.get("timeout"), timedelta):
        body["timeout"] = body["timeout"].total_seconds()
    with pytest.raises(InvalidBody):
        job_spec(body, NOW)


@pytest.mark.parametrize("entry", [ValueError("no"), int, True])
def test_only_types_of_exceptions_say_which_errors_are_not_retried(entry: object) -> None:
    words = "write ValueError" if isinstance(entry, ValueError) else "the type of an exception"
    with pytest.raises(ValueError, match=rf"^named: `retry.never_on(.0)?` .*{words}"):
        Ondot().job(retry={"never_on": [entry]})(named)


def test_the_widest_options_that_the_sdk_takes_the_api_takes_too() -> None:
    @Ondot().job(
        every=60,
        key="mine",
        pause_after_failures=2**31 - 1,
        retries=100,
        retry={
            "backoff": "listed",
            "initial": 0,
            "max": "366d",
            "factor": 100,
            "jitter": False,
            "delays": [0, timedelta(days=366)] * 50,
            "max_worker_losses": 100,
            "never_on": [TimeoutError, 300, "599", "4xx", "timeout"],
            "retry_on": {500},
        },
        timeout="7d",
        start_deadline="366d",
        cancel_grace="1h",
        pool="a" * 63,
        priority="low",
        labels={"x" * 63: "y" * 255},
        overlap="queue",
        throttle={"key": "k", "per": "366d", "limit": 1_000_000},
    )
    def widest() -> None: ...

    recurring = widest.recurring_body()
    assert recurring is not None
    assert job_spec(recurring, NOW).limits == Limits(overlap="queue")
    assert job_spec(widest.body(), NOW).retry.never_on == ("TimeoutError", "300", "599", "4xx", "timeout")


def test_options_that_are_none_or_empty_are_as_if_left_out() -> None:
    @Ondot().job(labels={}, retry={}, timeout=None, unique=None, pool=None)
    def plain() -> None: ...

    assert plain.fields == {}


def test_a_duration_is_not_a_count() -> None:
    with pytest.raises(ValueError, match=r"`concurrency` must be a whole number, got datetime\.timedelta"):

        @Ondot().job(concurrency=timedelta(minutes=5))  # type: ignore[call-overload,untyped-decorator]
        def crawl() -> None: ...
