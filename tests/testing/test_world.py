"""The contract of `ondot.testing`: what users may build their tests on."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from ondot import Context, Ondot
from ondot.model.errors import Conflict, InvalidBody, Misconfigured, NotFound
from ondot.sdk.decisions import RetryAt
from ondot.testing import World, open_world
from tests.proves import proves

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def hourly(name: str = "hourly", **schedule: Any) -> dict[str, Any]:
    return {"name": name, "function": "work", "schedule": {"cron": "0 * * * *", **schedule}}


@pytest.fixture
def app() -> Ondot:
    app = Ondot()

    @app.job
    async def work(n: int = 0) -> int:
        return n

    return app


def hours_of(world: World, job: Any) -> list[float]:
    return [(call.fire_at - BEGIN) / HOUR for call in world.calls(job)]


@proves("O7", "S2")
async def test_a_year_of_working_days_runs_by_itself() -> None:
    app = Ondot()
    seen: list[datetime] = []

    @app.job(cron="0 9 * * 1-5", timezone="Europe/Berlin")
    async def daily_report(ctx: Context) -> None:
        seen.append(world.now)
        assert ctx.fire_at == world.now

    async with open_world(app, at="2026-01-01T00:00:00Z") as world:
        await world.run_until("2027-01-01T00:00:00Z")
        calls = world.calls("daily_report")
        assert len(calls) == 261
        assert [call.at for call in calls] == [call.fire_at for call in calls] == seen
        assert {call.outcome for call in calls} == {"SUCCEEDED"}
        assert world.now == datetime(2027, 1, 1, tzinfo=UTC)
        assert {execution.state for execution in await world.executions(daily_report)} == {"SUCCEEDED"}


@proves("O7", "E3")
async def test_functions_run_in_the_loop_and_in_threads_and_their_calls_are_recorded() -> None:
    app = Ondot()

    @app.job
    async def double(n: int) -> int:
        return 2 * n

    @app.job
    def shout(ctx: Context, text: str = "ho") -> str:
        ctx.log("shouting")
        return text.upper()

    async with open_world(app, at=BEGIN) as world:
        await double.enqueue(n=4)
        await shout.enqueue()
        assert world.calls() == []
        await world.run_due()
        [doubled], [shouted] = world.calls("double"), world.calls(shout)
        assert (doubled.arguments, doubled.result, doubled.attempt) == ({"n": 4}, 8, 1)
        assert (shouted.arguments, shouted.result, shouted.at) == ({}, "HO", BEGIN)
        assert world.now == BEGIN
        [line] = (await world.client.execution_logs(shouted.execution_id))["items"]
        assert (line["line"], line["at"]) == ("shouting", "2026-01-01T00:00:00Z")


@proves("O7", "E4")
async def test_a_failed_attempt_is_tried_again_when_its_backoff_is_over() -> None:
    app = Ondot()

    @app.job
    async def flaky(ctx: Context) -> str:
        if ctx.attempt < 3:
            raise RuntimeError("not yet")
        return "at last"

    async with open_world(app, at=BEGIN) as world:
        retry = {"max_retries": 5, "backoff": "fixed", "initial": "10m", "jitter": False}
        await world.create({"name": "flaky", "function": "flaky", "in": "1h", "retry": retry})
        await world.advance(hours=1)
        assert [call.outcome for call in world.calls("flaky")] == ["FAILED"]
        [execution] = await world.executions("flaky")
        assert (execution.state, execution.attempts) == ("RETRYING", 1)
        await world.advance(days=1)
        minutes = [(call.at - BEGIN).total_seconds() / 60 for call in world.calls("flaky")]
        assert minutes == [60, 70, 80]
        first, _, last = world.calls("flaky")
        assert first.error is not None
        assert first.error["message"] == "RuntimeError: not yet"
        assert (last.outcome, last.result, last.fire_at) == ("SUCCEEDED", "at last", BEGIN + HOUR)


@proves("O7", "E4")
async def test_a_function_that_asks_for_an_instant_is_tried_again_at_that_instant_of_the_worlds_clock() -> None:
    app = Ondot()

    @app.job
    async def patient(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise RetryAt(ctx.fire_at + timedelta(days=1), "tomorrow")

    @app.job
    def patient_in_a_thread(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise RetryAt(ctx.fire_at + timedelta(days=2), "the day after")

    async with open_world(app, at=BEGIN) as world:
        await world.create({"name": "one", "function": "patient", "retry": {"jitter": False, "initial": "1s"}})
        await world.create({"name": "two", "function": "patient_in_a_thread", "retry": {"initial": "1s"}})
        await world.advance(days=3)
        assert [call.at for call in world.calls("one")] == [BEGIN, BEGIN + timedelta(days=1)]
        assert [call.at for call in world.calls("two")] == [BEGIN, BEGIN + timedelta(days=2)]


@proves("O7", "S1")
async def test_functions_enqueue_and_schedule_others_from_inside() -> None:
    app = Ondot()

    @app.job(cron="0 12 * * *")
    async def parent(ctx: Context) -> None:
        await child.enqueue(of="loop")
        await child.options(in_="90m").enqueue(of="later")

    @app.job(cron="0 18 * * *")
    def parent_in_a_thread() -> None:
        asyncio.run(child.enqueue(of="thread"))

    @app.job(pool="others")
    async def child(of: str) -> None: ...

    async with open_world(app, at=BEGIN) as world:
        await world.advance(days=1)
        hours = [((call.at - BEGIN) / HOUR, call.arguments["of"]) for call in world.calls(child)]
        assert hours == [(12, "loop"), (13.5, "later"), (18, "thread")]


@proves("O7", "S6")
@pytest.mark.parametrize(
    ("misfire", "executed", "skipped"),
    [
        ({"policy": "skip"}, [6], [(1, 5, "misfire", 5)]),
        ({"policy": "once"}, [5, 6], [(1, 4, "coalesced", 4)]),
        ({"policy": "all", "window": "4h"}, [3, 4, 5, 6], [(1, 2, "misfire", 2)]),
        ({"policy": "all", "window": "1d"}, [1, 2, 3, 4, 5, 6], []),
    ],
)
async def test_after_an_outage_missed_fires_are_treated_by_the_jobs_policy(
    app: Ondot, misfire: dict[str, Any], executed: list[float], skipped: list[tuple[float, float, str, int]]
) -> None:
    end = BEGIN + timedelta(hours=6, minutes=30)
    async with open_world(app, at=BEGIN + timedelta(minutes=30)) as world:
        await world.create(hourly(misfire={**misfire, "grace": "45m"}))
        await world.outage(until=end)
        assert world.now == end
        await world.advance(minutes=10)
        assert sorted(hours_of(world, "hourly")) == executed
        assert {call.at for call in world.calls("hourly")} <= {end, end + timedelta(seconds=0.25)}
        ranges = [
            ((range_.from_at - BEGIN) / HOUR, (range_.to_at - BEGIN) / HOUR, range_.reason, range_.count)
            for range_ in await world.skipped("hourly")
        ]
        assert ranges == skipped


@proves("O7", "S6")
async def test_an_outage_lasts_as_long_as_its_body(app: Ondot) -> None:
    async with open_world(app, at=BEGIN + timedelta(minutes=30)) as world:
        await world.create(hourly())
        await world.advance(hours=2)
        async with world.outage():
            await world.advance(hours=1)
            await world.create({"name": "meanwhile", "function": "work"})
            await world.advance(hours=1)
            assert hours_of(world, "hourly") == [1, 2]
        assert hours_of(world, "hourly") == [1, 2, 4]
        assert [call.at for call in world.calls("meanwhile")] == [world.now]
        await world.advance(hours=1)
        assert hours_of(world, "hourly") == [1, 2, 4, 5]
        with pytest.raises(TypeError, match="needs an end"):
            await world.outage()


@proves("O7", "S8")
async def test_jobs_are_paused_resumed_changed_run_and_deleted_by_their_names(app: Ondot) -> None:
    async with open_world(app, at=BEGIN + timedelta(minutes=30)) as world:
        job = await world.create(hourly())
        assert await world.next_fires("hourly", 2) == [BEGIN + HOUR, BEGIN + 2 * HOUR]
        await world.advance(hours=1)
        await world.pause("hourly")
        await world.advance(hours=2)
        await world.resume("hourly")
        await world.advance(hours=1)
        assert hours_of(world, job) == [1, 4]
        [skipped] = await world.skipped("hourly")
        assert (skipped.reason, skipped.count) == ("paused", 2)

        await world.update("hourly", {"schedule": {"cron": "15 * * * *"}})
        await world.advance(hours=1)
        assert hours_of(world, job) == [1, 4, 5.25]

        await world.run_now("hourly", n=7)
        await world.run_due()
        assert world.calls("hourly")[-1].arguments == {"n": 7}
        assert [execution.origin for execution in await world.executions(job["id"])][-1] == "run"

        await world.delete("hourly")
        await world.advance(days=1)
        assert len(world.calls("hourly")) == 4
        assert len(await world.executions("hourly")) == 4
        with pytest.raises(NotFound, match="deleted"):
            await world.pause("hourly")


@proves("O7", "S7")
async def test_a_backfill_is_worked_off_as_the_clock_is_turned(app: Ondot) -> None:
    async with open_world(app, at=BEGIN + timedelta(hours=10)) as world:
        job = await world.create(hourly())
        await world.client.backfill_job(job["id"], BEGIN, BEGIN + 3 * HOUR, concurrency=2)
        await world.advance(minutes=1)
        assert hours_of(world, job) == [0, 1, 2, 3]
        assert {execution.origin for execution in await world.executions(job)} == {"backfill"}


@proves("O7", "S12")
async def test_a_job_that_keeps_failing_is_paused_as_anywhere() -> None:
    app = Ondot()

    @app.job
    def broken() -> None:
        raise RuntimeError

    async with open_world(app, at=BEGIN + timedelta(minutes=30)) as world:
        body = {"name": "broken", "function": "broken", "cron": "0 * * * *", "max_retries": 0}
        await world.create({**body, "pause_after_failures": 3})
        await world.advance(days=2)
        assert hours_of(world, "broken") == [1, 2, 3]


@proves("O7", "E3")
async def test_http_targets_are_answered_from_a_table() -> None:
    url = "https://example.com/report"
    async with open_world(at=BEGIN) as world:
        world.on_http(url, status=503, headers={"Retry-After": "600"})
        world.on_http(url, json={"ok": True})
        await world.create({"name": "report", "url": url, "payload": {"region": "eu"}, "cron": "0 6 * * *"})
        await world.advance(days=2)
        assert [(call.outcome, (call.at - BEGIN) / HOUR) for call in world.calls("report")] == [
            ("FAILED", 6),
            ("SUCCEEDED", 6 + 1 / 6),
            ("SUCCEEDED", 30),
        ]
        assert world.calls(url)[-1].result == {"status": 200, "body": {"ok": True}}
        first, second, _ = world.requests
        assert (first.method, first.url, first.body, first.at) == ("POST", url, {"region": "eu"}, BEGIN + 6 * HOUR)
        assert (first.headers["Ondot-Attempt"], second.headers["ondot-attempt"]) == ("1", "2")
        world.on_http(url, status=404, text="gone")
        await world.advance(days=1)
        assert [execution.state for execution in await world.executions("report")] == ["SUCCEEDED"] * 2 + ["FAILED"]


@proves("O7", "T3")
async def test_a_world_reaches_no_network_and_runs_no_shell_unless_asked() -> None:
    async with open_world(at=BEGIN) as world:
        await world.create({"name": "fetch", "url": "https://example.com/", "max_retries": 0})
        await world.create({"name": "touch", "command": ["true"], "max_retries": 0})
        await world.run_due()
        [fetched], [touched] = world.calls("fetch"), world.calls("touch")
        assert fetched.error is not None
        assert 'world.on_http("https://example.com/")' in fetched.error["message"]
        assert touched.outcome == "FAILED"
    async with open_world(at=BEGIN, allow_shell=True) as world:
        await world.create({"name": "touch", "command": ["true"]})
        await world.run_due()
        assert [call.outcome for call in world.calls("touch")] == ["SUCCEEDED"]


@proves("O7")
async def test_bodies_are_checked_as_the_api_checks_them(app: Ondot) -> None:
    async with open_world(app, at=BEGIN) as world:
        with pytest.raises(InvalidBody) as refused:
            await world.create({"name": "x", "function": "work", "schedule": {"cron": "61 * * * *"}, "colour": "red"})
        assert {fault.pointer for fault in refused.value.faults} >= {"/colour"}
        with pytest.raises(InvalidBody, match="past"):
            await world.create({"name": "x", "function": "work", "at": "2025-01-01T00:00:00Z"})


@proves("O7")
async def test_mistakes_in_a_test_raise_errors_that_say_what_to_do(app: Ondot) -> None:
    with pytest.raises(Misconfigured, match="no functions"):
        async with open_world(Ondot(), at=BEGIN):
            pass
    for naive in ("2026-01-01T00:00:00", datetime(2026, 1, 1)):  # noqa: DTZ001 - the fault
        with pytest.raises(ValueError, match="no time zone"):
            async with open_world(app, at=naive):
                pass
    async with open_world(app, at=BEGIN) as world:
        with pytest.raises(ValueError, match="cannot be turned back"):
            await world.run_until("2025-12-31T00:00:00Z")
        with pytest.raises(ValueError, match="is not an instant"):
            await world.run_until("tomorrow")
        with pytest.raises(NotFound, match="did you mean 'work'"):
            world.calls("wrok")
        with pytest.raises(NotFound, match="there are: work"):
            await world.skipped("something else")
        assert world.calls("work") == []
        await world.create({"name": "twin", "function": "work", "in": "1h"})
        await world.create({"name": "twin", "function": "work", "in": "1h"})
        assert world.calls("twin") == []
        with pytest.raises(Conflict, match="2 jobs are named 'twin'"):
            await world.pause("twin")
        with pytest.raises(RuntimeError, match="another world"):
            async with open_world(app, at=BEGIN):
                pass
        with pytest.raises(RuntimeError, match="already an outage"):
            async with world.outage(), world.outage():
                pass


@proves("O7")
async def test_a_handler_cannot_turn_the_clock() -> None:
    app = Ondot()

    @app.job
    async def clever() -> None:
        await world.advance(hours=1)

    async with open_world(app, at=BEGIN) as world:
        await world.create({"name": "clever", "function": "clever", "max_retries": 0})
        await world.run_due()
        [call] = world.calls(clever)
        assert call.error is not None
        assert "cannot turn the clock" in call.error["message"]
        assert world.now == BEGIN


@proves("O7")
async def test_worlds_know_nothing_of_each_other(app: Ondot) -> None:
    async with open_world(app, at=BEGIN) as one, open_world(at="2030-06-01T00:00:00+02:00") as other:
        await one.create(hourly("mine"))
        await one.advance(hours=1)
        assert (await other.client.list_jobs())["items"] == []
        assert other.now == datetime(2030, 5, 31, 22, tzinfo=UTC)
        assert one.now == BEGIN + HOUR


@proves("O7")
async def test_a_client_that_was_in_a_world_is_itself_again_after_it(app: Ondot) -> None:
    opens = app.client._open
    async with open_world(app, at=BEGIN):
        assert app.client._open != opens
    assert app.client._open == opens


@proves("O7")
async def test_a_world_that_has_ended_says_so_and_still_has_its_calls(app: Ondot) -> None:
    async with open_world(app, at=BEGIN) as world:
        made = await world.create(hourly())
        await world.advance(hours=1)
    assert len(world.calls("hourly")) == 1
    for ask in (
        lambda: world.advance(hours=1),
        lambda: world.executions(made),
        lambda: world.create(hourly()),
        lambda: world.next_fires(made),
    ):
        with pytest.raises(RuntimeError, match="ended with its `async with"):
            await ask()
    with pytest.raises(RuntimeError, match="ended with its"):
        _ = world.now
    with pytest.raises(AttributeError, match="no 'nonsense'"):
        world.nonsense  # type: ignore[attr-defined]  # noqa: B018


@proves("O7")
async def test_a_world_that_is_not_entered_says_how_to(app: Ondot) -> None:
    opening: Any = open_world(app, at=BEGIN)
    with pytest.raises(TypeError, match="async with open_world"):
        await opening
    with pytest.raises(TypeError, match="async with open_world"), opening:
        pass
    with pytest.raises(TypeError, match="no world yet that has a 'create'"):
        await opening.create(hourly())


@proves("O7", "D3")
async def test_a_job_of_a_transaction_in_the_worlds_database_runs_in_the_world(app: Ondot) -> None:
    async with open_world(app, at=BEGIN) as world:
        with psycopg.connect(world.database_url) as connection, app.transaction(connection):
            await app.handlers["work"].enqueue(n=7)
        await world.run_due()
        assert [call.arguments for call in world.calls("work")] == [{"n": 7}]
    with pytest.raises(RuntimeError, match="ended with its"):
        _ = world.database_url
