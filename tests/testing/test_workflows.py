"""Workflows and jobs that wait, in a world whose clock the test turns."""

from datetime import timedelta
from typing import Any

import pytest

from ondot import Context, Ondot, Workflow
from ondot.model.errors import Conflict
from ondot.testing import open_world
from tests.proves import proves

NOON = "2026-03-01T12:00:00Z"

app = Ondot()


@app.job(retries=0)
async def list_files(ctx: Context, region: str) -> dict[str, Any]:
    return {"files": [f"{region}-{n}" for n in range(3)]}


@app.job(retries=0)
async def process(file: str) -> str:
    return file.upper()


@app.job(retries=0)
def report(n: int) -> str:
    return f"{n} files"


@app.job
def clean_up() -> None: ...


@app.workflow(cron="0 2 * * *")
def nightly(w: Workflow, region: str = "eu") -> None:
    files = w.step(list_files, region=region)
    done = w.map(process, over=files.result["files"])
    pause = w.wait("1h", after=done)
    ok = w.approve(after=pause, timeout="1d")
    summary = w.step(report, after=ok, n=done.count)
    w.step(clean_up, after=summary, when="ended", finally_=True)


@proves("O7", "W9", "W8")
async def test_a_recurring_workflow_waits_by_the_clock_and_goes_on_when_it_is_approved() -> None:
    async with open_world(app, at=NOON) as world:
        await world.run_until("2026-03-02T02:59:59Z")
        [run] = await world.runs(nightly)
        assert run.states == {
            "list_files": "SUCCEEDED",
            "process": "SUCCEEDED",
            "wait": "RELEASED",
            "approve": "WAITING",
            "report": "WAITING",
            "clean_up": "WAITING",
        }
        assert sorted(call.arguments["file"] for call in world.calls(process)) == ["eu-0", "eu-1", "eu-2"]
        await world.advance(seconds=1)
        [run] = await world.runs(nightly)
        assert run.states["approve"] == "RELEASED"
        await world.approve(run)
        await world.run_due()
        [run] = await world.runs(nightly)
        assert run.state == "SUCCEEDED"
        assert run.steps["report"].result == "3 files"
        assert run.states["clean_up"] == "SUCCEEDED"
        with pytest.raises(Conflict, match="does not wait"):
            await world.approve(run)


@proves("O7", "W3")
async def test_a_step_that_fails_blocks_its_run_until_the_time_to_give_up() -> None:
    async with open_world(app, at=NOON) as world:
        world.fail(process, ValueError("no such file"))
        handle = await nightly.enqueue(region="us")
        await world.run_due()
        [run] = await world.runs(handle)
        assert (run.state, run.states["process"], run.states["report"]) == ("BLOCKED", "FAILED", "BLOCKED")
        await world.advance(days=7, seconds=1)
        [run] = await world.runs(handle)
        assert run.state == "FAILED"
        assert run.states["clean_up"] == "SUCCEEDED"


@proves("O7", "W8")
async def test_an_approval_that_is_not_given_in_time_fails_its_step() -> None:
    async with open_world(app, at=NOON) as world:
        handle = await nightly.enqueue()
        await world.advance(hours=26)
        [run] = await world.runs(handle)
        assert (run.state, run.states["approve"]) == ("BLOCKED", "FAILED")
        assert "not approved in time" in (run.steps["approve"].reason or "")


@proves("O7", "W1")
async def test_a_job_that_comes_after_another_runs_at_the_same_instant() -> None:
    async with open_world(app, at=NOON) as world:
        first = await process.options(in_="1h").enqueue("a")
        await report.options(after=first).enqueue(n=1)
        await world.run_due()
        assert world.calls(report) == []
        start = world.now
        await world.advance(hours=2)
        [call] = world.calls(report)
        assert call.at == start + timedelta(hours=1)


@proves("O7", "S11")
async def test_an_event_starts_jobs_and_workflows_with_its_data() -> None:
    one = Ondot()

    @one.job(event={"type": "order.paid", "filter": {"data": {"amount": [{"numeric": [">=", 100]}]}}})
    def thank(order_id: int, event: dict[str, Any]) -> str:
        return f"{order_id} by {event['source']}"

    @one.workflow(event={"type": "order.paid"})
    def fulfil(w: Workflow, order_id: int) -> None:
        w.step(one.handlers["thank"], order_id=order_id, event={"source": "workflow"})

    async with open_world(one, at=NOON) as world:
        answer = await world.send_event(type="order.paid", source="/shop", data={"order_id": 7, "amount": 100})
        assert answer["matched"] == 2
        await world.send_event(type="order.paid", source="/shop", data={"order_id": 8, "amount": 5})
        await world.run_due()
        assert sorted(call.result for call in world.calls(thank)) == ["7 by /shop", "7 by workflow", "8 by workflow"]
        assert [run.state for run in await world.runs(fulfil)] == ["SUCCEEDED"] * 2


@proves("O7", "S11")
async def test_functions_that_send_events_to_themselves_end() -> None:
    one = Ondot()
    worlds: list[Any] = []

    @one.job(event={"type": "ping"}, retries=0)
    async def ping(ctx: Context, **_: Any) -> int | None:
        await worlds[0].client.send_event({"type": "ping", "source": "/itself"}, ctx)
        return ctx.hops

    async with open_world(one, at=NOON) as world:
        worlds.append(world)
        await world.send_event(type="ping", source="/shop")
        await world.run_due()
        assert [call.result for call in world.calls(ping)[:-1]] == list(range(1, 17))
        error = world.calls(ping)[-1].error
        assert error is not None
        assert "in a circle" in error["message"]


@proves("O7", "W4")
async def test_a_month_of_a_nightly_workflow_has_a_run_for_each_night() -> None:
    one = Ondot()

    @one.job
    def a() -> int:
        return 1

    @one.job
    def b(n: int) -> int:
        return n + 1

    @one.workflow(cron="0 2 * * *")
    def short(w: Workflow) -> None:
        w.step(b, n=w.step(a).result)

    async with open_world(one, at=NOON) as world:
        await world.advance(days=30)
        runs = await world.runs(short)
        assert [run.state for run in runs] == ["SUCCEEDED"] * 30
        assert {run.steps["b"].result for run in runs} == {2}
