"""`/v1/report` (O10): a night with one of each trouble. The report names each, and each printed repair works."""

from typing import Any

import pytest

from ondot.flow.auto_pause import pause_failing_pass
from ondot.flow.bulk.turns import bulk_pass
from ondot.flow.recover import recover_pass
from ondot.model.gates import Limits
from ondot.model.ids import JobId
from ondot.model.outcome import Succeeded
from ondot.model.retry import Retry
from ondot.model.schedule import Misfire
from tests.api.conftest import Caller
from tests.api.workflow_runs import blocked_run
from tests.proves import proves
from tests.world import Worker, World, every, failed, job

NO_RETRY = Retry(max_retries=0)
FIXED = Retry(max_retries=3, backoff="fixed", initial_s=1, jitter=False)
LEAST = {"failed", "blocked", "missed", "paused", "no_worker", "late", "held_back", "lost_worker", "skipped", "retried"}


async def work(world: World, worker: Worker, reports: dict[str, Any], *, takes_s: float = 0) -> None:
    """Run everything that is due; a job that is not named succeeds."""
    await world.plan()
    assignments = await worker.lease()
    await world.advance(takes_s)
    for assignment in assignments:
        assert assignment.spec is not None
        await worker.complete(assignment, reports.get(assignment.spec.name, Succeeded("1")))


async def live_through_a_night(api: Caller) -> dict[str, JobId]:
    """One of each trouble; returns the jobs by name. The night starts 8 hours before its end."""
    world = api.world
    worker = await world.worker()
    jobs: dict[str, JobId] = {}

    async def submit(name: str, **fields: Any) -> None:
        jobs[name] = (await world.submit(job(name, **fields))).id

    # The days before: six runs of a job that takes 2 s, and tonight one that takes 30 s.
    await submit("grows", schedule=every(3600, world.now))
    for _ in range(6):
        await world.advance(3600)
        await work(world, worker, {}, takes_s=2)
    await world.advance(3600)
    await work(world, worker, {}, takes_s=30)
    # Failed for good, twice; three jobs that run once with one cause; one that fails, is retried and succeeds.
    await submit("nightly", schedule=every(600, world.now), retry=NO_RETRY)
    for _ in range(2):
        await world.advance(600)
        await work(world, worker, {"nightly": failed("no space left")})
    await world.update(jobs["nightly"], job("nightly", schedule=every(86_400, world.now)))
    for n in range(3):
        await submit(f"once-{n}", retry=NO_RETRY)
    await submit("flaky", retry=FIXED)
    await work(world, worker, {f"once-{n}": failed("refused") for n in range(3)} | {"flaky": failed("reset by peer")})
    await world.advance(2)
    await work(world, worker, {})
    # Paused because it keeps failing.
    await submit("sick", schedule=every(60, world.now), pause_after_failures=1, retry=NO_RETRY)
    await world.advance(60)
    await work(world, worker, {"sick": failed("sick")})
    await pause_failing_pass(world.database)
    # Missed in an outage, and one that starts two minutes late.
    await submit("missed", schedule=every(10, world.now, misfire=Misfire(policy="skip")))
    await submit("late", schedule=every(1000, world.now, misfire=Misfire(policy="once")))
    await world.advance(1000 - 5)
    await world.plan()
    await world.advance(125)
    await work(world, worker, {})
    await world.update(jobs["missed"], job("missed", schedule=every(86_400, world.now)))
    # Lost with its worker, recovered, and run again.
    await submit("lost")
    victim = await world.worker()
    await victim.lease()
    sql = "UPDATE ondot.worker SET state = 'LOST', ended_at = ondot.clock() WHERE id = $1"
    await world.fetch(sql, victim.id)
    await recover_pass(world.database, world.dispatcher)
    await world.advance(60)
    await work(world, worker, {})
    # A run that waits for a person.
    await blocked_run(api, worker)
    # Skipped because the previous one runs, and held back by a limit; nothing of pool gpu has a worker.
    await submit("overlaps", schedule=every(100, world.now), limits=Limits(overlap="skip"))
    await submit("crawl", schedule=every(3600, world.now), limits=Limits(concurrency=1))
    await world.advance(100)
    await world.plan()
    await world.run_now(jobs["crawl"])
    await world.run_now(jobs["crawl"])
    running = await worker.lease()
    assert {one.spec.name for one in running if one.spec} == {"overlaps", "crawl"}
    await world.advance(100)
    await world.plan()
    assert await worker.lease() == []
    await submit("gpu", pool="gpu")
    await world.advance(100)
    return jobs


async def find(api: Caller, since: str = "8h", **parameters: Any) -> dict[str, Any]:
    return await api.get("/v1/report", since=since, **parameters)


@proves("O10", "O8")
async def test_the_report_of_a_night_names_each_trouble_and_each_repair_works(api: Caller) -> None:
    empty = await find(api)
    assert (empty["summary"], empty["findings"]) == ("Nothing ran, and nothing went wrong.", [])
    jobs = await live_through_a_night(api)
    report = await find(api, "100m")
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for finding in report["findings"]:
        by_kind.setdefault(finding["kind"], []).append(finding)
    assert by_kind.keys() >= LEAST | {"slower"}, report["summary"]
    named = {(one["kind"], one["job_name"]): one for one in report["findings"]}
    assert named["failed", "nightly"]["count"] == 2
    assert "no space left" in named["failed", "nightly"]["reason"]
    [alike] = [one for one in by_kind["failed"] if "refused" in one["reason"]]
    assert (alike["count"], alike["is_open"]) == (3, True)
    assert "it succeeded then" in named["retried", "flaky"]["reason"]
    assert named["paused", "sick"]["repair"][0]["path"] == f"/v1/jobs/{jobs['sick']}/resume"
    assert named["missed", "missed"]["count"] > 50
    assert "2 min" in named["late", "late"]["reason"]
    assert "15.0 times" in named["slower", "grows"]["reason"]
    assert named["skipped", "overlaps"]["is_open"] is False
    assert named["held_back", "crawl"]["repair"][0]["body"] == {"concurrency": 2}
    assert by_kind["no_worker"][0]["repair"][0]["command"] == "ondot worker --pool gpu"
    assert by_kind["lost_worker"][0]["reason"].startswith("here:1 sent no heartbeat")
    # Open ones are first, and the first line counts them.
    opens = [one["is_open"] for one in report["findings"]]
    assert opens == sorted(opens, reverse=True)
    assert f"{report['open']} things need a person" in report["summary"]
    assert report["limits"] == []
    # Every printed call works, and what it repairs is repaired.
    for finding in report["findings"]:
        for repair in finding["repair"]:
            if repair["path"] is not None:
                answer = await api.http.request(repair["method"], repair["path"], json=repair["body"])
                assert answer.is_success, f"{finding['kind']} {repair}: {answer.text}"
    while await bulk_pass(api.world.database, api.world.dispatcher):
        pass
    again = await find(api, "100m")
    left = {(one["kind"], one["job_name"]) for one in again["findings"] if one["is_open"]}
    assert {kind for kind, _ in left} <= {"no_worker", "blocked"}, left
    repaired = {one["kind"] for one in again["findings"] if one["is_repaired"]}
    assert repaired >= {"failed", "missed", "retried"}


@proves("O10")
@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"since": "soon"}, "Write 24h"),
        ({"since": "0s"}, "before until"),
        ({"since": "400d"}, "31 days"),
        ({"since": "2031-01-01T00:00:00Z"}, "in the past"),
        ({"since": "yesterday", "zone": "Berlin"}, "Europe/Berlin"),
        ({"since": "24h", "until": "48h"}, "before until"),
    ],
)
async def test_a_window_that_cannot_be_read_is_rejected_with_advice(
    api: Caller, parameters: dict[str, str], words: str
) -> None:
    answer = await api.http.get("/v1/report", params=parameters)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


@proves("O10", "O11")
async def test_the_report_of_a_past_window_does_not_change_with_what_happens_later(api: Caller) -> None:
    world = api.world
    worker = await world.worker()
    watched = (await world.submit(job("watched", schedule=every(86_400, world.now)))).id

    async def miss(due_in_s: float, *, which: str, predicted: bool = False) -> None:
        await world.fetch(
            "INSERT INTO ondot.miss (id, tenant_no, job_id, which, due_at, count, predicted, reason, seen_at)"
            " VALUES (gen_random_uuid(), 1, $1, $2, $3, 1, $4, 'why', ondot.clock())",
            watched,
            which,
            world.after(due_in_s),
            predicted,
        )

    async def skip(number: int) -> None:
        await world.fetch(
            "INSERT INTO ondot.skipped (job_id, job_version, tenant_no, from_at, to_at, reason, count, at)"
            " SELECT $1, 1, 1, ondot.clock() - n * interval '1 s', ondot.clock() - n * interval '1 s', 'misfire', 1,"
            " ondot.clock() FROM generate_series(1, $2) n",
            watched,
            number,
        )

    await miss(-1, which="end_by")
    await skip(3)
    await world.submit(job("long"))
    await world.submit(job("flaky", retry=Retry(max_retries=1, backoff="fixed", initial_s=7200, jitter=False)))
    leased = {one.spec.name: one for one in await worker.lease() if one.spec}
    await worker.complete(leased["flaky"], failed("reset"))
    await world.advance(60)
    window = {"since": world.after(-3600).isoformat(), "until": world.now.isoformat()}
    now = await api.get("/v1/report", **window)
    await world.advance(60)
    past = await api.get("/v1/report", **window)
    # Later: a miss and a forecast, an end that took long, a last failure, and more missed ranges than a report reads.
    await miss(-1, which="success_every")
    await miss(3600, which="start_by", predicted=True)
    await world.advance(7200)
    await worker.complete(leased["long"])
    await work(world, worker, {"flaky": failed("reset")})
    await skip(1001)
    again = await api.get("/v1/report", **window)
    kinds = {(one["kind"], one["job_name"]): one["count"] for one in past["findings"]}
    assert kinds == {("expectation", "watched"): 1, ("missed", "watched"): 3, ("retried", "flaky"): 1}
    assert (again["findings"], again["ran"]) == (past["findings"], past["ran"])
    assert now["ran"] == past["ran"]
    latest = await api.get("/v1/report", since="3h")
    predicted = [one for one in latest["findings"] if one["kind"] == "expectation"]
    assert {one["facts"]["which"] for one in predicted} == {"end_by", "success_every", "start_by"}
