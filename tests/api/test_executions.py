"""`/v1/executions` as a client sees it."""

from datetime import UTC, datetime

from ondot.store.logs import LogLine, add_log_lines
from tests.api.conftest import Caller
from tests.proves import proves
from tests.world import failed


@proves("E4", "E5")
async def test_an_execution_shows_all_its_attempts(api: Caller) -> None:
    job = await api.create({"name": "flaky", "function": "f", "retry": {"jitter": False, "initial": "1s"}})
    worker = await api.world.worker()
    [attempt] = await worker.lease()
    await worker.complete(attempt, failed("it broke"))
    execution = await api.get(f"/v1/executions/{attempt.leased.id}")
    assert (execution["state"], execution["attempt"], execution["failures"]) == ("RETRYING", 1, 1)
    await api.world.advance(1)
    [attempt] = await worker.lease()
    running = await api.get(f"/v1/executions/{attempt.leased.id}")
    assert [entry["outcome"] for entry in running["attempts"]] == ["FAILED", None]
    await worker.complete(attempt)
    execution = await api.get(f"/v1/executions/{attempt.leased.id}")
    assert (execution["state"], execution["result"], execution["job_name"]) == ("SUCCEEDED", "done", "flaky")
    assert [entry["outcome"] for entry in execution["attempts"]] == ["FAILED", "SUCCEEDED"]
    assert execution["attempts"][0]["error"]["message"] == "it broke"
    assert (await api.get(f"/v1/jobs/{job['id']}/status"))["retry_count"] == 1


@proves("E10")
async def test_an_execution_that_failed_for_good_shows_why(api: Caller) -> None:
    await api.create({"name": "broken", "function": "f", "max_retries": 0})
    worker = await api.world.worker()
    [attempt] = await worker.lease()
    await worker.complete(attempt, failed("no such table"))
    execution = await api.get(f"/v1/executions/{attempt.leased.id}")
    assert (execution["state"], execution["error"]["message"]) == ("FAILED", "no such table")
    assert "no retries" in execution["reason"]
    assert await api.world.count("dead_letter") == 1


async def test_executions_are_listed_live_and_ended_newest_first(api: Caller) -> None:
    for n in range(3):
        await api.create({"name": f"job {n}", "function": "f"})
    await api.run_all()
    await api.create({"name": "job 3", "function": "f", "pool": "other"})
    listed = await api.get("/v1/executions")
    assert {item["state"] for item in listed["items"]} == {"SUCCEEDED", "PENDING"}
    assert listed["items"][0]["job_name"] == "job 3"
    assert len((await api.get("/v1/executions", state="SUCCEEDED"))["items"]) == 3
    assert len((await api.get("/v1/executions", pool="other"))["items"]) == 1
    first = await api.get("/v1/executions", limit=2)
    assert len((await api.get("/v1/executions", limit=2, cursor=first["next_cursor"]))["items"]) == 2
    assert (await api.get("/v1/executions", to_at="2020-01-01T00:00:00Z"))["items"] == []
    bad = await api.http.get("/v1/executions", params={"from_at": "2020-01-01T00:00:00"})
    assert bad.status_code == 422


@proves("E14")
async def test_logs_are_paged_by_a_cursor_and_show_when_they_end(api: Caller) -> None:
    job = await api.create({"name": "chatty", "function": "f"})
    [id_] = await api.run_all()
    at = datetime(2026, 1, 1, tzinfo=UTC)
    lines = [LogLine(id_, 1, n, 1, at, "stdout", f"line {n}") for n in (1, 2, 3)]  # type: ignore[arg-type]
    async with api.world.database.connection() as connection:
        await add_log_lines(connection, lines)
    assert await api.execution_of(job) == str(id_)
    page = await api.get(f"/v1/executions/{id_}/logs", limit=2)
    assert [entry["line"] for entry in page["items"]] == ["line 1", "line 2"]
    assert not page["ended"]
    rest = await api.get(f"/v1/executions/{id_}/logs", limit=2, cursor=page["next_cursor"])
    assert [entry["line"] for entry in rest["items"]] == ["line 3"]
    assert rest["ended"]
    assert (await api.http.get(f"/v1/executions/{id_}/logs", params={"cursor": "x"})).status_code == 422
