"""The demo: its jobs are valid, documented and do what they document; a restart creates no duplicates."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from ondot.demo import app, doomed_import, hello, is_slow, moody_service, orders, seed
from ondot.document.parse import job_spec
from ondot.model.ids import first_id_at
from ondot.sdk.context import Context
from ondot.testing import open_world
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World

A_JOB = UUID(int=2)


def context(*, attempt: int = 1, fire_at: datetime = datetime(2026, 3, 4, tzinfo=UTC), job_id: UUID = A_JOB) -> Context:
    return Context(
        execution_id=UUID(int=1),
        job_id=job_id,
        job_name="demo",
        attempt=attempt,
        fire_at=fire_at,
        fencing_token=attempt,
        checkpoint=None,
        say=lambda _line: None,
        report=lambda _fraction, _message, _checkpoint: None,
        is_cancelled=lambda: False,
    )


@proves("O6")
def test_every_job_of_the_demo_has_a_docstring() -> None:
    assert {"hello", "pulse", "minute_report", "moody_service", "doomed_import"} <= set(app.handlers)
    assert set(app.workflows) == {"orders"}
    assert all(handler.function.__doc__ for handler in app.handlers.values())
    assert all(workflow.function.__doc__ for workflow in app.workflows.values())


@proves("O6")
def test_the_schedules_of_the_demo_are_bodies_that_the_api_accepts() -> None:
    now = datetime(2026, 3, 4, tzinfo=UTC)
    names = {job_spec(body, now).name for body in app.schedules()}
    assert names == {"pulse", "minute_report", "moody_service", "backup", "doomed_import", "large_order", "orders"}


@proves("O6")
async def test_hello_greets() -> None:
    assert await hello("Ada") == "Hello, Ada!"


@proves("O6")
async def test_the_moody_service_fails_every_second_time_and_a_retry_succeeds() -> None:
    fires = [datetime(2026, 3, 4, 0, 0, second, tzinfo=UTC) for second in (0, 20, 40)]
    moods = []
    for fire_at in fires:
        try:
            await moody_service(context(fire_at=fire_at))
        except ConnectionError:
            moods.append("failed")
        else:
            moods.append("fine")
    assert sorted(set(moods)) == ["failed", "fine"]
    assert moods[0] != moods[1]
    assert moods[0] == moods[2]
    for fire_at in fires:
        assert await moody_service(context(attempt=2, fire_at=fire_at)) == "answered at attempt 2"


@proves("O6", "O4")
def test_one_backup_of_each_hour_is_late_and_the_first_one_too() -> None:
    created_at = datetime(2026, 3, 4, 12, 7, tzinfo=UTC)
    job_id = first_id_at(created_at)
    for apart_s in (-0.02, 0, 0.02):
        fires = [created_at + timedelta(seconds=30 * n + apart_s) for n in range(1, 241)]
        slow = [n for n, fire_at in enumerate(fires, 1) if is_slow(context(fire_at=fire_at, job_id=job_id))]
        assert slow == [1, 121], "two hours: less than half an hour apart they would be one long incident"


@proves("O6")
def test_the_doomed_import_fails_on_every_attempt() -> None:
    with pytest.raises(ValueError, match=r"line 17 of customers\.csv"):
        doomed_import(context(attempt=3))


@proves("O6", "W3", "W7")
async def test_the_workflow_of_the_demo_branches_maps_fails_and_recovers() -> None:
    async with open_world(app, at="2026-03-04T00:00:00Z") as demo:
        await demo.pause("minute_report")  # it takes eight real seconds
        await demo.pause("backup")  # up to seven
        await demo.advance(minutes=3, seconds=20)
        runs = await demo.runs(orders)
        assert [run.state for run in runs] == ["SUCCEEDED"] * len(runs)
        states = [run.states for run in runs]
        assert {(one["express"], one["parcel"]) for one in states} == {
            ("SUCCEEDED", "SKIPPED"),
            ("SKIPPED", "SUCCEEDED"),
        }
        assert {(one["charge"], one["ask_for_another_card"]) for one in states} == {
            ("SUCCEEDED", "SKIPPED"),
            ("FAILED", "SUCCEEDED"),
        }
        assert {call.outcome for call in demo.calls("pack")} == {"SUCCEEDED", "FAILED"}
        await demo.send_event(type="demo.order.placed", source="/demo", data={"order": "o", "amount": 100})
        await demo.send_event(type="demo.order.placed", source="/demo", data={"order": "p", "amount": 99})
        await demo.run_due()
        assert [call.arguments["order"] for call in demo.calls("large_order")] == ["o"]


@proves("O6")
async def test_a_restart_finds_the_recurring_job_and_runs_hello_again(world: World) -> None:
    async with served(world.database) as page:
        await asyncio.to_thread(seed, page.url)
        await world.advance(60)
        await world.plan()
        worker = await world.worker()
        await worker.complete_all(await worker.lease())
        await asyncio.to_thread(seed, page.url)
        items = (await page.client.get("/v1/jobs")).json()["items"]
        [alert] = (await page.client.get("/v1/alerts")).json()["items"]
    assert (alert["name"], alert["notify"]) == ("late backups", [])
    assert sorted((item["name"], item["state"]) for item in items) == [
        ("hello_once", "ACTIVE"),
        ("hello_once", "ENDED"),
        ("place_order", "ACTIVE"),
        ("watch_myself", "ACTIVE"),
    ]
