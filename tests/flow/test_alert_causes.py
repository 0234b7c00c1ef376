"""Each kind of alert from its real cause, through the engine, to the message that a receiver gets (O4).

Nothing here writes a row that an alert reads: jobs fail, workers die, runs block, storage is away.
"""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ondot.document.alerts import read_alert
from ondot.flow.alerts.define import create_alert
from ondot.flow.alerts.evaluate import Evaluator
from ondot.flow.bulk.turns import bulk_pass
from ondot.flow.channels.send import queue_message
from ondot.flow.expect.watch import expect_pass
from ondot.flow.history.archive import Archive
from ondot.flow.history.rewrite import Rewriting
from ondot.flow.pings import late_pass
from ondot.flow.recover import lose_pass
from ondot.flow.removal import Removal
from ondot.flow.tenants import delete_tenant
from ondot.model.expect import Expect
from ondot.model.gates import Limits
from ondot.model.ids import DEFAULT_TENANT, JobId
from ondot.model.liveness import Watch
from ondot.model.misfire import Misfire
from ondot.model.retry import Retry
from ondot.store.audit import By
from tests.channels import Channels, open_channels
from tests.flow import workflows
from tests.flow.checking import Checker
from tests.flow.test_archive import Unsure, in_directory
from tests.flow.test_depends_on import arrive
from tests.flow.test_history import age, is_there, keep_for, run_one
from tests.proves import proves
from tests.receiver import Receiver, open_receiver
from tests.world import World, every, failed, job

NEVER = {"retry": Retry(max_retries=0)}
OF_ALERTS = ("alert", "incident", "cause", "channel", "delivery", "condition")


@dataclass
class Ear:
    """A channel and what arrives there; alerts are made by the API, evaluated and delivered as a scheduler does."""

    channels: Channels
    receiver: Receiver
    evaluator: Evaluator
    heard: int = 0

    @property
    def world(self) -> World:
        return self.channels.world

    async def watch(self, kind: str, **thresholds: Any) -> None:
        body = {"name": kind, "when": {kind: thresholds}, "notify": ["ops"]}
        answer = await self.channels.api.http.post("/v1/alerts", json=body)
        assert answer.status_code == 201, answer.text

    async def look(self, after: float = 0) -> list[tuple[str, str]]:
        """One look of the housekeeper; returns the type and title of the messages that arrive."""
        await self.world.advance(after)
        await self.evaluator.one_pass()
        while await self.channels.deliver():
            pass
        arrived = [json.loads(each.body) for each in self.receiver.received[self.heard :]]
        self.heard = len(self.receiver.received)
        return [(each["type"].removeprefix("incident."), each["title"]) for each in arrived]

    async def opened(self, after: float = 0) -> str:
        """The title of the one message that arrives, which opens an incident."""
        [(kind, title)] = await self.look(after)
        assert kind == "opened"
        return title

    async def is_over(self) -> bool:
        """Whether a recovery arrives after a calm while, and nothing else."""
        messages = await self.look() + await self.look(16) + await self.look(61)
        return [kind for kind, _ in messages] == ["recovered"]


@pytest.fixture
async def ear(world: World) -> AsyncIterator[Ear]:
    async with open_receiver() as receiver, open_channels(world) as channels:
        await channels.create(webhook={"url": receiver.url})
        yield Ear(channels, receiver, Evaluator(world.database, queue_message, rests=0))


async def fail(world: World, job_id: JobId, times: int = 1) -> None:
    worker = await world.worker()
    for _ in range(times):
        await world.run_now(job_id)
        await worker.complete_all(await worker.lease(), failed("no route"))


@proves("O4")
async def test_letters_failures_and_failures_in_a_row_are_reported_until_they_are_over(ear: Ear, world: World) -> None:
    nightly = await world.submit(job("nightly", schedule=every(86_400, world.now), **NEVER))
    await ear.watch("dead_letters", over=1)
    assert await ear.look() == []
    await fail(world, nightly.id, times=2)
    assert await ear.opened() == "2 open dead letters of one job, more than 1"
    # Another cause on the same job joins its incident, and has no message of its own.
    await ear.watch("failing", in_a_row=2)
    await ear.watch("failures", over=1, within="10m")
    assert await ear.look() == []
    worker = await world.worker()
    await world.run_now(nightly.id)
    await worker.complete_all(await worker.lease())
    answer = await ear.channels.api.http.post("/v1/dead-letters/discard", json={"all": True, "reason": "handled"})
    assert answer.status_code < 300, answer.text
    while await bulk_pass(world.database, world.dispatcher):
        pass
    assert not await world.value("SELECT count(*) FROM ondot.dead_letter WHERE resolved_at IS NULL")
    assert await ear.look(300) == [], "two failures within ten minutes"
    await ear.look(301)
    assert await ear.is_over()


@proves("O4", "E13")
async def test_work_that_is_late_or_waits_is_reported_also_behind_a_limit(ear: Ear, world: World) -> None:
    await world.submit(job("crawl", schedule=every(600, world.now), limits=Limits(concurrency=1)))
    await ear.watch("oldest_wait", over="2m", held_back=True)
    await ear.watch("lateness", over="5m")
    worker = await world.worker()
    await world.advance(600)
    await world.plan()
    [running] = await worker.lease()
    await world.advance(600)
    await world.plan()
    assert await worker.lease() == [], "its limit holds it back"
    assert await ear.look(119) == []
    assert "behind a limit since" in await ear.opened(after=2)
    title = await ear.opened(after=180)
    assert title.startswith("crawl is late: due since")
    assert title.endswith("it waits for a limit")
    await worker.complete(running)
    await worker.complete_all(await worker.lease())
    messages = await ear.look() + await ear.look(16) + await ear.look(61)
    assert [kind for kind, _ in messages] == ["recovered", "recovered"]


@proves("O4", "L3")
async def test_a_pool_whose_workers_died_is_reported_without_any_worker(ear: Ear, world: World) -> None:
    watch, monotonic_s = Watch(world.database.settings.heartbeat_s), 0.0

    async def look_for_losses(seconds: float) -> int:
        nonlocal monotonic_s
        monotonic_s += seconds
        await world.advance(seconds)
        return await lose_pass(world.database, watch, lambda: monotonic_s)

    await world.worker()
    await ear.watch("workers", below=1)
    await look_for_losses(0)
    assert await ear.look() == []
    losses = [await look_for_losses(1) for _ in range(int(world.database.settings.heartbeat_s) + 2)]
    assert sum(losses) >= 1
    assert await ear.opened() == "The pool default has no worker, 1 must be alive"
    await world.worker()
    assert await ear.is_over()


@proves("O4", "S4")
async def test_fires_that_no_scheduler_planned_in_time_are_reported(ear: Ear, world: World) -> None:
    schedule = every(600, world.now, misfire=Misfire(policy="skip", grace_s=60))
    await world.submit(job("pulse", schedule=schedule))
    await ear.watch("missed_schedule")
    assert await ear.look() == []
    await world.advance(3 * 600 + 300)
    await world.plan()
    assert (await ear.opened()).startswith("pulse missed 3 fires (")


@proves("O4", "O11")
async def test_a_missed_expectation_is_reported_until_it_comes_good(ear: Ear, world: World) -> None:
    await world.submit(job("etl", schedule=every(3600, world.now), expect=Expect(end_within_s=60)))
    await ear.watch("expectation")
    worker = await world.worker()
    await world.advance(3600)
    await world.plan()
    [late] = await worker.lease()
    assert await ear.look(59) == []
    await world.advance(2)
    await expect_pass(world.database)
    assert (await ear.opened()).startswith("etl has not succeeded 1 minute after it was due")
    await worker.complete(late)
    await world.advance(15)
    await expect_pass(world.database)
    assert await ear.is_over()


@proves("O4", "W2", "W9")
async def test_a_run_and_a_job_that_wait_for_a_person_are_reported(ear: Ear, world: World) -> None:
    await ear.watch("blocked_run")
    worker = await world.worker()
    run = await workflows.start(world, worker, {"a": workflows.step(retry=Retry(max_retries=0))})
    await worker.complete_all(await worker.lease(), failed())
    await workflows.advance(world, run)
    assert (await ear.opened()).startswith("A run of flow waits for a person")
    answer = await ear.channels.api.http.post(f"/v1/runs/{run}/retry", json={})
    assert answer.status_code < 300, answer.text
    await workflows.advance(world, run)
    await worker.complete_all(await worker.lease())
    await workflows.advance(world, run)
    assert await ear.is_over()

    for number, fails_before in enumerate((False, True)):
        parent = await world.submit(job("extract", **NEVER))
        if fails_before:
            await worker.run_one(failed())
        await world.submit(job(f"load {number}", depends_on=(str(parent.id),)))
        if not fails_before:
            await worker.run_one(failed())
            await arrive(world)
        titles = [title for _, title in await ear.look()]
        assert titles == ["load 0 waits for a job that did not succeed"][: 1 - number], "the second joins the first"
    [incident] = [each for each in (await ear.channels.api.get("/v1/incidents"))["items"] if each["state"] == "open"]
    assert incident["causes"] == 2


@proves("O4")
async def test_a_ping_that_is_late_is_reported_until_it_arrives(ear: Ear, world: World) -> None:
    http = ear.channels.api.http
    made = (await http.post("/v1/pings", json={"name": "backup", "period": "1h", "grace": "5m"})).json()
    await ear.watch("ping")
    assert (await http.get(f"/ping/{made['token']}")).status_code == 200
    assert await ear.look(3600 + 299) == []
    await world.advance(2)
    assert await late_pass(world.database) == 1
    assert "backup is late" in await ear.opened()
    ear.channels.api.services.pings._written.clear()  # 5 s have passed
    assert (await http.get(f"/ping/{made['token']}")).status_code == 200
    assert await ear.is_over()


@proves("O4", "T2")
async def test_a_quota_that_refuses_requests_is_reported_while_it_does(ear: Ear, world: World) -> None:
    await world.fetch("""UPDATE ondot.tenant SET quotas = '{"jobs": 1}' WHERE tenant_no = 1""")
    world.database.tenants.forget()
    await ear.watch("quota")
    http = ear.channels.api.http
    later = (world.now + timedelta(days=1)).isoformat()
    statuses = [
        (await http.post("/v1/jobs", json={"function": "f", "schedule": {"at": later}})).status_code for _ in range(3)
    ]
    assert statuses[-1] == 429
    assert "quota of jobs is reached" in await ear.opened()
    assert await ear.look(3600) == []
    assert await ear.is_over()


@proves("O4")
async def test_a_channel_that_fails_for_hours_is_reported_through_another(ear: Ear, world: World) -> None:
    async with open_receiver() as broken:
        broken.answer(lambda: web.Response(status=500))
        await ear.channels.create("broken", webhook={"url": broken.url})
        body = {"name": "w", "when": {"workers": {"below": 1}}, "notify": ["broken"]}
        assert (await ear.channels.api.http.post("/v1/alerts", json=body)).status_code == 201
        await ear.watch("delivery")
        assert await ear.look() == []
        for _ in range(5):
            assert await ear.look(3600) == []
        [(_, title), *_] = await ear.look(3600) or await ear.look()
        assert title.startswith("The channel broken did not deliver 'The pool default has no worker")


@proves("O4", "O1")
async def test_a_disk_that_is_nearly_full_is_reported_until_there_is_room(ear: Ear, world: World) -> None:
    await ear.watch("disk")

    async def rewrite_with(**settings: Any) -> None:
        changed = world.database.settings.model_copy(update=settings)
        rewriting = Rewriting(dataclasses.replace(world.database, settings=changed))
        while await rewriting.one_pass():
            pass

    await rewrite_with(disk_limit=1_000_000)
    assert "ONDOT_RETENTION_MIN_DAYS to let history go sooner" in await ear.opened()
    await rewrite_with(disk_limit=1_000_000, retention_min_days=7)
    assert await ear.look(60) == [], "it is the same cause"
    await rewrite_with(disk_limit=1_000_000_000_000)
    assert await ear.is_over()


@proves("O4", "O1")
async def test_an_archive_that_is_away_is_reported_and_days_go_once_it_is_back(
    ear: Ear, world: World, tmp_path: Path
) -> None:
    keep_for(world)
    await ear.watch("archive")
    old = await run_one(world)
    await age(world, 4)
    files = Unsure(in_directory(tmp_path))
    rewriting = Rewriting(world.database, Archive(world.database, files))

    async def rewrite() -> None:
        while await rewriting.one_pass():
            pass

    files.is_away = True
    for _ in range(3):
        await rewrite()
    assert await is_there(world, old)
    assert "cannot be archived to unsure:, and are kept: it does not answer" in await ear.opened()
    files.is_away = False
    await rewrite()
    await rewrite()
    assert not await is_there(world, old)
    assert await ear.is_over()


@proves("O4", "P5")
async def test_what_the_self_check_finds_is_reported(ear: Ear, world: World) -> None:
    await ear.watch("self_check")
    await world.submit(job())
    await world.fetch("DELETE FROM ondot.ready")  # as a bug would
    await Checker(world).look_twice()
    assert await ear.opened() == "The self-check found and repaired unqueued (1 in all)"
    await ear.look(900)
    assert await ear.is_over()


@proves("O4", "T1")
async def test_a_tenant_that_is_deleted_with_an_open_incident_gets_no_message_and_stops_no_other(
    ear: Ear, world: World
) -> None:
    """Its receivers are public, so nothing arrives here: what counts is what is sent."""
    acme = await world.add_tenant("acme")
    await world.fetch(
        "INSERT INTO ondot.channel (id, tenant_no, name, job_id, spec, created_by)"
        " SELECT ondot.new_id(), $1, 'theirs', job_id, spec, 'ann' FROM ondot.channel",
        acme,
    )
    body = read_alert({"name": "theirs", "when": {"workers": {"below": 1}}, "notify": ["theirs"], "repeat": "1m"})
    await create_alert(world.database, acme, body, render=lambda _: "{}", idempotency=None, by=By("ann"))
    await ear.look()
    assert [row["kind"] for row in await world.fetch("SELECT kind FROM ondot.delivery")] == ["opened"]
    await delete_tenant(world.database, "acme", home_no=DEFAULT_TENANT, by=By("ann"))
    await ear.watch("workers", below=1)
    assert [kind for kind, _ in await ear.look(61)] == ["opened"], "to the other tenant"
    removal = Removal(world.database, None)
    while await removal.one_pass():
        pass
    assert await ear.look(61) == []
    left = [await world.value(f"SELECT count(*) FROM ondot.{name} WHERE tenant_no = $1", acme) for name in OF_ALERTS]
    assert left == [0] * len(OF_ALERTS)


@proves("O4")
async def test_a_channel_that_is_deleted_while_a_message_is_sent_ends_it(ear: Ear, world: World) -> None:
    arrived, may_answer = asyncio.Event(), asyncio.Event()

    async def answer_later(_: web.Request) -> web.StreamResponse:
        arrived.set()
        await may_answer.wait()
        return web.Response(status=500)

    ear.receiver.answering = answer_later
    await ear.watch("workers", below=1)
    http = ear.channels.api.http
    looking = asyncio.create_task(ear.look())
    async with asyncio.timeout(30):
        await arrived.wait()
    [alert] = (await ear.channels.api.get("/v1/alerts"))["items"]
    patch = await http.patch(f"/v1/alerts/{alert['id']}", json={"notify": []})
    assert patch.status_code == 200, patch.text
    assert (await http.delete("/v1/channels/ops")).status_code == 200
    may_answer.set()
    await looking
    assert await ear.look(3600) == []
    assert [await world.count(name) for name in ("delivery", "execution")] == [0, 0]


@proves("O4")
async def test_an_alert_that_is_changed_while_its_incident_is_open_goes_on_with_it(ear: Ear, world: World) -> None:
    await ear.watch("workers", below=1)
    await ear.opened()
    [alert] = (await ear.channels.api.get("/v1/alerts"))["items"]
    http = ear.channels.api.http
    for number in range(5):
        patch = {"for": f"{number}m", "repeat": "1m", "name": f"workers {number}"}
        assert (await http.patch(f"/v1/alerts/{alert['id']}", json=patch)).status_code == 200
        assert await ear.look(1) == [], "its message was sent"
    # However long a pass takes, one reminder follows, not one for each minute that has passed.
    assert [kind for kind, _ in await ear.look(600)] == ["reminder"]
    assert await ear.look(1) == []
    await world.advance(-3600)  # the clock of the database is set back
    assert await ear.look(1) == []
    assert [kind for kind, _ in await ear.look(61)] == ["reminder"]
    # It asks for something else now, which holds too: another incident would be wrong.
    other = {"when": {"workers": {"below": 2}}, "for": "0s"}
    assert (await http.patch(f"/v1/alerts/{alert['id']}", json=other)).status_code == 200
    assert await ear.look(1) == []
    assert (await http.delete(f"/v1/alerts/{alert['id']}")).status_code == 200
    assert [kind for kind, _ in await ear.look(1)] == ["recovered"]
