"""The API states facts: each of these was wrong once, and is tried as a new user would."""

from typing import Any

from tests.api.conftest import Caller
from tests.proves import proves
from tests.world import failed


@proves("O5")
async def test_status_shows_when_a_job_last_ran_while_its_next_execution_waits(api: Caller) -> None:
    job = await api.create({"name": "crawl", "function": "crawl", "every": "3s", "concurrency": 1})
    await api.world.plan()
    await api.world.advance(3)
    began_at = api.world.now
    await api.run_all()
    status = await api.get(f"/v1/jobs/{job['id']}/status")
    assert (status["status"], status["last_run"]) == ("SUCCEEDED", began_at.isoformat().replace("+00:00", "Z"))
    await api.world.advance(3)
    status = await api.get(f"/v1/jobs/{job['id']}/status")
    assert (status["status"], status["last_run"]) == ("PENDING", began_at.isoformat().replace("+00:00", "Z"))


@proves("E14")
async def test_an_execution_shows_the_payload_that_its_target_was_sent(api: Caller) -> None:
    job = await api.create({"name": "report", "function": "f", "payload": {"path": "a"}, "cron": "0 9 * * *"})
    started = (await api.http.post(f"/v1/jobs/{job['id']}/run")).json()["execution_id"]
    own = (await api.http.post(f"/v1/jobs/{job['id']}/run", json={"payload": [1]})).json()["execution_id"]
    await api.http.patch(f"/v1/jobs/{job['id']}", json={"payload": {"path": "b"}})
    for listed in (await api.get("/v1/executions"), await api.get(f"/v1/jobs/{job['id']}/executions")):
        assert {item["id"]: item["payload"] for item in listed["items"]} == {started: {"path": "a"}, own: [1]}
    assert (await api.get(f"/v1/executions/{started}"))["payload"] == {"path": "a"}
    await api.run_all()
    assert (await api.get(f"/v1/executions/{started}"))["payload"] == {"path": "a"}
    assert (await api.get(f"/v1/executions/{own}"))["payload"] == [1]


async def test_a_list_leaves_out_a_long_payload_of_a_job_and_the_execution_itself_has_it(api: Caller) -> None:
    await api.create({"name": "long", "function": "f", "payload": "x" * 20_000})
    [listed] = (await api.get("/v1/executions"))["items"]
    assert listed["payload"] is None
    assert len((await api.get(f"/v1/executions/{listed['id']}"))["payload"]) == 20_000


@proves("E17")
async def test_a_one_time_job_that_failed_is_explained_by_its_failure_and_what_to_do(api: Caller) -> None:
    job = await api.create({"name": "once", "function": "f", "max_retries": 0})
    worker = await api.world.worker()
    attempt = await worker.run_one(failed("no such table"))
    explanation = await api.get(f"/v1/jobs/{job['id']}/explain")
    assert "FAILED" in explanation["summary"]
    assert "no such table" in explanation["summary"]
    assert explanation["reasons"][0]["what_to_do"].endswith(f"`ondot dead-letter replay {attempt.leased.id}`.")
    assert explanation["reasons"][0]["execution_id"] == str(attempt.leased.id)


@proves("E17")
async def test_jobs_that_were_cancelled_or_skipped_or_succeeded_are_explained_by_that(api: Caller) -> None:
    cancelled = await api.create({"name": "cancelled", "function": "f"})
    await api.http.post(f"/v1/executions/{await api.execution_of(cancelled)}/cancel", json={})
    assert "CANCELLED" in (await api.get(f"/v1/jobs/{cancelled['id']}/explain"))["summary"]
    throttle = {"key": "k", "per": "1h"}
    done = await api.create({"name": "done", "function": "f", "throttle": throttle})
    skipped = await api.create({"name": "skipped", "function": "f", "throttle": throttle})
    await api.run_all()
    assert "SKIPPED" in (await api.get(f"/v1/jobs/{skipped['id']}/explain"))["summary"]
    assert "Its last execution succeeded" in (await api.get(f"/v1/jobs/{done['id']}/explain"))["summary"]


@proves("O5")
async def test_executions_are_listed_by_when_they_were_due_over_all_pages(api: Caller) -> None:
    """A job of every 3 s is planned 20 s ahead: by id, its later fires were listed before executions that ran since."""
    fires = await api.create({"name": "fires", "function": "f", "every": "3s"})
    await api.world.plan()
    for _ in range(6):
        await api.world.advance(1.5)
        await api.create({"name": "now", "function": "f"})
        await api.run_all()
    await api.http.post(f"/v1/jobs/{fires['id']}/run")

    async def pages(path: str, limit: int, **more: Any) -> list[dict[str, Any]]:
        items, cursor = [], None
        while True:
            page = await api.get(path, limit=limit, **({"cursor": cursor} if cursor else {}), **more)
            items += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return items

    whole = await pages("/v1/executions", 50)
    due = [item["fire_at"] for item in whole]
    assert len(due) == 10
    assert due == sorted(due, reverse=True)
    for limit in (1, 2, 3, 7):
        assert [item["id"] for item in await pages("/v1/executions", limit)] == [item["id"] for item in whole]
    of_job = await pages(f"/v1/jobs/{fires['id']}/executions", 2)
    assert [item["id"] for item in of_job] == [item["id"] for item in whole if item["job_name"] == "fires"]
    ended = await pages("/v1/executions", 2, state="SUCCEEDED")
    assert [item["id"] for item in ended] == [item["id"] for item in whole if item["state"] == "SUCCEEDED"]


@proves("S6", "P4")
async def test_fires_skipped_by_an_outage_are_listed_with_their_jobs_until_a_backfill_runs_them(api: Caller) -> None:
    never = {"misfire": {"policy": "skip"}}
    jobs = [
        await api.create({"name": name, "function": "f", "schedule": {"every": "10s", **never}}) for name in ("a", "b")
    ]
    await api.world.advance(3600)
    await api.world.plan()
    listed = await api.get("/v1/skipped-fires", reason="misfire")
    assert {item["job_name"] for item in listed["items"]} == {"a", "b"}
    [entry] = [item for item in listed["items"] if item["job_name"] == "a"]
    assert entry["count"] > 300
    assert entry["what_to_do"] == (
        f"ondot job backfill {jobs[0]['id']} --from {entry['from_at']} --to {entry['to_at']}"
    )
    first = await api.get("/v1/skipped-fires", limit=1)
    second = await api.get("/v1/skipped-fires", limit=1, cursor=first["next_cursor"])
    assert {first["items"][0]["job_id"], second["items"][0]["job_id"]} == {job["id"] for job in jobs}
    assert second["next_cursor"] is None
    body = {"from_at": entry["from_at"], "to_at": entry["to_at"]}
    made = await api.http.post(f"/v1/jobs/{jobs[0]['id']}/backfill", json=body)
    assert made.status_code == 202, made.text
    [entry] = [item for item in (await api.get("/v1/skipped-fires"))["items"] if item["job_name"] == "a"]
    assert (entry["is_backfilled"], entry["what_to_do"]) == (True, None)


async def test_a_list_of_skipped_executions_points_to_the_skipped_fires(api: Caller) -> None:
    assert "/v1/skipped-fires" in (await api.get("/v1/executions", state="SKIPPED"))["see"]
    assert (await api.get("/v1/executions"))["see"] is None


async def test_a_cursor_of_another_list_is_rejected(api: Caller) -> None:
    answer = await api.http.get("/v1/skipped-fires", params={"cursor": "x"})
    assert answer.status_code == 422
