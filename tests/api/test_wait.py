"""`POST /v1/jobs/wait`: the first end among many jobs, of any caller, with few statements (D2)."""

import asyncio
from typing import Any

import pytest

from ondot.flow.awaited import AwaitedJobs
from ondot.model.access import Role
from ondot.model.errors import Unavailable
from ondot.model.ids import DEFAULT_TENANT, JobId
from ondot.model.outcome import AttemptError, Failed, Succeeded
from ondot.store.awaited import find_jobs_over
from tests.api.conftest import Caller, key_of
from tests.proves import proves
from tests.world import World

STRANGER = "019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"


async def wait(api: Caller, *ids: str, wait_s: float = 0, headers: dict[str, str] | None = None) -> dict[str, Any]:
    answer = await api.http.post("/v1/jobs/wait", json={"ids": ids, "wait": wait_s}, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def until_awaited(awaited: AwaitedJobs, jobs: int) -> None:
    async with asyncio.timeout(60):
        while len(awaited) != jobs:
            await asyncio.sleep(0)


@proves("D2")
async def test_a_waiting_request_is_answered_when_the_first_of_its_jobs_ends(api: Caller) -> None:
    first = await api.create({"name": "a", "function": "f"})
    [ran] = await api.run_all()
    other = await api.create({"name": "b", "function": "f"})
    at_once = await wait(api, first["id"], other["id"], wait_s=25)
    assert [item["job_id"] for item in at_once["items"]] == [first["id"]]
    assert at_once["items"][0]["execution_id"] == str(ran)
    assert at_once["items"][0]["state"] == "SUCCEEDED"
    assert (await wait(api, other["id"])) == {"items": [], "unknown": []}

    waiting = asyncio.create_task(wait(api, other["id"], wait_s=25))
    await until_awaited(api.services.awaited, 1)
    await api.run_all()
    assert [item["job_id"] for item in (await waiting)["items"]] == [other["id"]]
    assert len(api.services.awaited) == 0


@proves("D2")
async def test_how_each_job_ended_is_part_of_the_answer(api: Caller) -> None:
    worker = await api.world.worker()
    reports: dict[str, Failed | Succeeded] = {
        "failed": Failed(AttemptError("exception", "ValueError: no", "a traceback", {"type": "ValueError"})),
        "returned": Succeeded('{"n": 10000000000000000000000000001}'),
        "long": Succeeded('"' + "x" * 20_000 + '"'),
        "deep": Succeeded("[" * 5_000 + "]" * 5_000),
    }
    ids = {}
    for name, report in reports.items():
        ids[name] = (await api.create({"name": name, "function": "f", "max_retries": 0}))["id"]
        await worker.run_one(report)
    later = await api.create({"name": "later", "function": "f", "in": "1h"})
    cancelled = await api.create({"name": "cancelled", "function": "f"})
    await api.http.post(f"/v1/executions/{await api.execution_of(cancelled)}/cancel")
    unique = {"name": "unique", "function": "f", "unique": {"key": "one"}}
    await api.create(unique)
    refused = await api.create(unique)
    deleted = await api.create({"name": "deleted", "function": "f", "in": "1h"})
    await api.http.delete(f"/v1/jobs/{deleted['id']}")
    others = {"cancelled": cancelled, "refused": refused, "deleted": deleted, "later": later}
    ids |= {name: job["id"] for name, job in others.items()}
    answer = await wait(api, *ids.values(), STRANGER)
    assert answer["unknown"] == [STRANGER]
    ended = {name: item for item in answer["items"] for name, id_ in ids.items() if id_ == item["job_id"]}
    assert {name: item["state"] for name, item in ended.items()} == {
        "failed": "FAILED",
        "returned": "SUCCEEDED",
        "long": "SUCCEEDED",
        "deep": "SUCCEEDED",
        "cancelled": "CANCELLED",
        "refused": "SKIPPED",
        "deleted": None,
    }
    assert ended["failed"]["error"] == {"code": "exception", "type": "ValueError", "message": "ValueError: no"}
    assert ended["returned"]["result"] == {"n": 10000000000000000000000000001}
    assert [ended[name]["result_omitted"] for name in ("returned", "long", "deep")] == [False, True, True]
    assert "unique" in ended["refused"]["reason"]


@proves("D2", "T1", "P12")
async def test_a_caller_waits_only_for_jobs_that_it_may_read(keyed: Caller) -> None:
    writer = await key_of(keyed.world, DEFAULT_TENANT, Role.EDITOR)
    job = await keyed.create({"name": "a", "function": "f", "pool": "default"}, **writer)
    ids = {"ids": [job["id"]], "wait": 0}
    assert (await keyed.http.post("/v1/jobs/wait", json=ids)).status_code == 401
    of_pool = await key_of(keyed.world, DEFAULT_TENANT, Role.EDITOR, pools=["batch"])
    assert (await wait(keyed, job["id"], headers=of_pool))["unknown"] == [job["id"]]
    assert (await wait(keyed, job["id"], headers=writer))["unknown"] == []


@proves("D2")
@pytest.mark.parametrize(
    "body", [{}, {"ids": []}, {"ids": ["x"]}, {"ids": [STRANGER], "wait": 26}, {"ids": [STRANGER] * 5_001}, []]
)
async def test_a_wait_for_nothing_or_too_much_is_refused(api: Caller, body: Any) -> None:
    assert (await api.http.post("/v1/jobs/wait", json=body)).status_code == 422


@proves("D2")
async def test_one_survey_serves_all_requests_and_none_runs_without_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = asyncio.Event()
    awaited = AwaitedJobs(world.database, stopping)
    jobs = [JobId(world.database.clock.new_id()) for _ in range(3_000)]
    looks = 0

    async def counted(*arguments: Any) -> list[JobId]:
        nonlocal looks
        looks += 1
        return await find_jobs_over(*arguments)

    monkeypatch.setattr("ondot.flow.awaited.find_jobs_over", counted)
    with awaited.watch(DEFAULT_TENANT, jobs) as one, awaited.watch(DEFAULT_TENANT, jobs[:10]) as other:
        async with asyncio.timeout(60):
            await one.wake.wait()
            await other.wake.wait()
    assert other.over == set(jobs[:10])
    assert 1 <= looks <= 3  # a thousand in each statement, however many requests there are
    async with asyncio.timeout(60):
        while awaited._survey is not None:
            await asyncio.sleep(0)


@proves("D2")
async def test_waiting_requests_are_answered_when_the_api_stops_or_the_database_is_away(
    api: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await api.create({"name": "a", "function": "f", "in": "1h"})
    services = api.services
    waiting = asyncio.create_task(wait(api, job["id"], wait_s=25))
    await until_awaited(services.awaited, 1)
    services.stopping.set()
    assert await waiting == {"items": [], "unknown": []}
    services.stopping.clear()

    asking = asyncio.create_task(api.http.post("/v1/jobs/wait", json={"ids": [job["id"]], "wait": 25}, timeout=60))
    await until_awaited(services.awaited, 1)

    async def away(*_: Any) -> list[JobId]:
        raise Unavailable("The database is away.")

    monkeypatch.setattr("ondot.flow.awaited.find_jobs_over", away)
    assert (await asking).status_code == 503
