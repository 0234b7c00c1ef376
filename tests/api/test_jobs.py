"""`/v1/jobs` as a client sees it."""

import asyncio
import threading
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from ondot.api.routes import create
from ondot.flow.change.change import pause
from ondot.flow.submit import FEW
from ondot.model.ids import DEFAULT_TENANT, JobId
from tests.api.conftest import Caller
from tests.proves import proves

HELLO: dict[str, Any] = {"name": "hello", "function": "hello", "payload": {"name": "Ada"}}
DAILY: dict[str, Any] = {
    "name": "daily-report",
    "schedule": {
        "cron": "0 9 * * 1-5",
        "timezone": "Europe/Berlin",
        "dst": {"gap": "shift", "fold": "first"},
        "jitter": "30s",
        "start_at": None,
        "end_at": None,
        "max_fires": None,
        "misfire": {"policy": "once", "grace": "60s", "window": "1h", "limit": 100},
        "calendar": {"exclude_holidays": "DE", "exclude_dates": [], "business_days": False, "blackouts": []},
    },
    "target": {"http": {"url": "https://example.com/report", "method": "POST", "headers": {}}},
    "payload": {"region": "eu"},
    "pool": "default",
    "priority": "normal",
    "labels": {"team": "bi"},
    "retry": {
        "max_retries": 3,
        "backoff": "exponential",
        "initial": "1s",
        "factor": 2,
        "max": "1h",
        "jitter": True,
        "max_worker_losses": 3,
    },
    "timeout": "5m",
    "overlap": "allow",
    "concurrency_key": None,
    "depends_on": [],
    "key": None,
}


@proves("S1")
async def test_a_job_without_a_schedule_runs_now(api: Caller) -> None:
    job = await api.create(HELLO)
    assert (job["state"], job["version"], job["schedule_in_words"][:4]) == ("ACTIVE", 1, "Once")
    assert UUID(job["id"]).version == 7
    assert await api.run_all()
    status = await api.get(f"/v1/jobs/{job['id']}/status")
    assert (status["state"], status["status"], status["retry_count"]) == ("ENDED", "SUCCEEDED", 0)


@proves("S1", "S2", "S4", "S9")
async def test_the_long_body_of_the_contract_is_accepted_and_returned_in_full(api: Caller) -> None:
    job = await api.create(DAILY)
    assert job["schedule_in_words"].startswith("At 09:00")
    assert job["next_fire_at"].endswith("T08:00:00Z")
    again = await api.get(f"/v1/jobs/{job['id']}")
    assert again["latest_executions"] == []
    assert {name: again[name] for name in ("name", "payload", "pool", "priority", "labels", "timeout")} == {
        "name": "daily-report",
        "payload": {"region": "eu"},
        "pool": "default",
        "priority": "normal",
        "labels": {"team": "bi"},
        "timeout": 300,
    }


@proves("S1", "S2", "S3")
@pytest.mark.parametrize(
    "body",
    [
        {"cron": "*/5 * * * *", "url": "https://example.com/x"},
        {"cron_expression": "0 3 * * *", "callback_url": "https://example.com/x"},
        {"every": "15m", "handler": "https://example.com/x"},
        {"in": "90s", "function": "report"},
        {"delay": 30, "handler": "report"},
        {"type": "CRON", "schedule": "0 3 * * *", "timezone": "Europe/Berlin", "function": "report"},
        {"type": "INTERVAL", "schedule": "1h30m", "function": "report"},
        {"type": "DELAYED", "schedule": "PT15M", "function": "report"},
        {"target": {"pool": "mail", "handler": "send"}},
        {"command": ["echo", "hello"], "timeout_s": 5},
        {
            "function": "f",
            "retry_policy": {"max_attempts": 5, "backoff": "EXPONENTIAL", "initial_delay_ms": 500},
            "priority": "MEDIUM",
        },
        {"function": "f", "max_retries": 0, "timeout_seconds": 10, "priority": "HIGH"},
        {"function": "f", "maxRetries": 2, "timeoutSec": 10},
    ],
)
async def test_every_short_form_is_accepted(api: Caller, body: dict[str, Any]) -> None:
    job = await api.create({"name": "short", **body})
    assert job["state"] == "ACTIVE"


@proves("S1")
@pytest.mark.parametrize("field", ["at", "run_at", "schedule_at"])
async def test_an_instant_is_a_one_time_job(api: Caller, field: str) -> None:
    at = (api.world.now + timedelta(hours=2)).isoformat()
    job = await api.create({"name": "later", field: at, "url": "https://example.com/x"})
    assert job["next_fire_at"] == at.replace("+00:00", "Z")


@proves("P2")
async def test_the_same_idempotency_key_returns_the_same_response_and_creates_one_job(api: Caller) -> None:
    first = await api.create(HELLO, **{"Idempotency-Key": "k1"})
    await api.world.advance(5)
    twins = await asyncio.gather(*(api.create(HELLO, **{"Idempotency-Key": "k1"}) for _ in range(5)))
    assert twins == [first] * 5
    assert (await api.get("/v1/jobs"))["items"][0]["id"] == first["id"]
    assert await api.world.count("job_once") == 1
    other = await api.http.post("/v1/jobs", json={**HELLO, "name": "other"}, headers={"Idempotency-Key": "k1"})
    assert (other.status_code, other.json()["type"]) == (422, "urn:ondot:problem:idempotency-key-reused")


@proves("S1", "P1")
async def test_a_batch_is_stored_whole_and_answered_in_its_order(api: Caller) -> None:
    bodies = [{**HELLO, "name": f"job {n}", **({"cron": "0 3 * * *"} if n % 3 == 0 else {})} for n in range(300)]
    answer = await api.http.post("/v1/jobs/batch", json={"jobs": bodies})
    assert answer.status_code == 201
    assert [item["name"] for item in answer.json()["items"]] == [body["name"] for body in bodies]
    assert await api.world.count("execution") == 200


@proves("S1")
async def test_other_requests_are_answered_while_a_large_batch_is_parsed_and_rendered(
    api: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, go_on = asyncio.get_running_loop(), threading.Event()
    started = {"job_specs": asyncio.Event(), "created_batch_text": asyncio.Event()}

    def hold(name: str) -> None:
        real = getattr(create, name)

        def slow(*arguments: Any, **options: Any) -> Any:
            loop.call_soon_threadsafe(started[name].set)
            assert go_on.wait(10), f"{name} blocks the loop for all other requests"
            go_on.clear()
            return real(*arguments, **options)

        monkeypatch.setattr(create, name, slow)

    for name in started:
        hold(name)
    bodies = [{"function": "f", "cron": f"{n} 9 * * *"} for n in range(FEW + 1)]
    batch = asyncio.create_task(
        api.http.post("/v1/jobs/batch", json={"jobs": bodies}, headers={"Idempotency-Key": "large"})
    )
    for name, event in started.items():
        await asyncio.wait_for(event.wait(), 20)
        await api.create(HELLO, **{"Idempotency-Key": name})
        go_on.set()
    answer = await batch
    assert answer.status_code == 201, answer.text
    assert [item["schedule"]["cron"] for item in answer.json()["items"]] == [body["cron"] for body in bodies]


@proves("P1")
async def test_a_batch_with_one_bad_job_stores_none_and_points_at_it(api: Caller) -> None:
    answer = await api.http.post("/v1/jobs/batch", json={"jobs": [HELLO, {**HELLO, "cron": "99 * * * *"}]})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["errors"][0]["pointer"].startswith("/jobs/1/")
    assert await api.world.count("job_once") == 0


async def test_lists_are_paged_and_filtered(api: Caller) -> None:
    made = [await api.create({**HELLO, "name": f"job {n}", "labels": {"n": str(n % 2)}}) for n in range(5)]
    await api.create({"name": "nightly", "cron": "0 3 * * *", "function": "f", "pool": "night"})
    page = await api.get("/v1/jobs", limit=4)
    rest = await api.get("/v1/jobs", limit=4, cursor=page["next_cursor"])
    assert [item["name"] for item in page["items"] + rest["items"]] == [
        "nightly",
        *(f"job {n}" for n in (4, 3, 2, 1, 0)),
    ]
    assert rest["next_cursor"] is None
    assert {item["name"] for item in (await api.get("/v1/jobs", label="n:1"))["items"]} == {"job 1", "job 3"}
    assert [item["name"] for item in (await api.get("/v1/jobs", pool="night"))["items"]] == ["nightly"]
    assert (await api.get("/v1/jobs", pool="nobody"))["items"] == []
    assert len((await api.get("/v1/jobs", q="JOB"))["items"]) == 5
    assert len((await api.get("/v1/jobs", name="job 1"))["items"]) == 1
    await api.run_all()
    assert len((await api.get("/v1/jobs", state="ENDED"))["items"]) == len(made)
    assert [item["name"] for item in (await api.get("/v1/jobs", state="ACTIVE"))["items"]] == ["nightly"]


@proves("S8", "P10")
async def test_a_deleted_job_fires_no_more_and_is_shown_as_deleted(api: Caller) -> None:
    job = await api.create({"name": "pulse", "every": "10s", "function": "f"})
    answer = await api.http.delete(f"/v1/jobs/{job['id']}")
    assert (answer.status_code, answer.json()) == (200, {"deleted": True})
    assert (await api.http.delete(f"/v1/jobs/{job['id']}")).status_code == 200
    assert (await api.get(f"/v1/jobs/{job['id']}"))["state"] == "DELETED"
    assert (await api.get("/v1/jobs"))["items"] == []
    await api.world.advance(60)
    await api.world.plan()
    assert await api.run_all() == []


@proves("S8")
async def test_a_one_time_job_that_has_ended_cannot_be_deleted(api: Caller) -> None:
    job = await api.create(HELLO)
    await api.run_all()
    answer = await api.http.delete(f"/v1/jobs/{job['id']}")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:ondot:problem:conflict")


@proves("S8", "P10")
async def test_a_paused_job_waits_and_a_resumed_one_fires_again(api: Caller) -> None:
    job = await api.create({"name": "pulse", "every": "10s", "function": "f"})
    assert (await api.http.post(f"/v1/jobs/{job['id']}/pause")).json()["state"] == "PAUSED"
    await api.world.advance(35)
    await api.world.plan()
    assert await api.run_all() == []
    resumed = (await api.http.post(f"/v1/jobs/{job['id']}/resume")).json()
    assert resumed["state"] == "ACTIVE"
    await api.world.advance(6)
    assert len(await api.run_all()) == 1


async def test_run_starts_one_execution_now_with_a_payload_of_its_own(api: Caller) -> None:
    job = await api.create({"name": "nightly", "cron": "0 3 * * *", "function": "f", "payload": {"a": 1}})
    answer = await api.http.post(f"/v1/jobs/{job['id']}/run", json={"payload": {"a": 2}})
    assert answer.status_code == 201
    execution = await api.get(f"/v1/executions/{answer.json()['execution_id']}")
    assert (execution["origin"], execution["state"], execution["payload"]) == ("run", "PENDING", {"a": 2})
    assert (await api.http.post(f"/v1/jobs/{job['id']}/run")).status_code == 201
    assert len(await api.run_all()) == 2


@proves("P2")
async def test_run_with_the_same_idempotency_key_runs_once(api: Caller) -> None:
    job = await api.create({"name": "nightly", "cron": "0 3 * * *", "function": "f"})
    answers = [await api.http.post(f"/v1/jobs/{job['id']}/run", headers={"Idempotency-Key": "now"}) for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    assert len(await api.run_all()) == 1


@proves("P4", "S8")
async def test_a_job_shows_which_of_its_fires_were_skipped_and_why(api: Caller) -> None:
    job = await api.create({"name": "pulse", "every": "10s", "function": "f"})
    await api.http.post(f"/v1/jobs/{job['id']}/pause")
    await api.world.advance(35)
    await api.http.post(f"/v1/jobs/{job['id']}/resume")
    [skipped] = (await api.get(f"/v1/jobs/{job['id']}"))["skipped_fires"]
    assert (skipped["reason"], skipped["count"]) == ("paused", 3)


async def test_an_unknown_method_is_405_with_the_methods_that_exist(api: Caller) -> None:
    job = await api.create(HELLO)
    answer = await api.http.post(f"/v1/jobs/{job['id']}", json={})
    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET, PATCH, PUT")


@proves("S12")
async def test_a_key_that_is_taken_updates_its_job(api: Caller) -> None:
    body = {"name": "nightly", "cron": "0 3 * * *", "function": "f", "key": "nightly"}
    first = await api.create(body)
    same = await api.create(body)
    assert (same["id"], same["version"]) == (first["id"], 1)
    changed = await api.create({**body, "cron": "0 4 * * *"})
    assert (changed["id"], changed["version"]) == (first["id"], 2)
    assert changed["next_fire_at"].endswith("T04:00:00Z")


@proves("S12")
async def test_a_keyed_job_to_run_now_runs_once_if_it_is_sent_several_times(api: Caller) -> None:
    first = await api.create({**HELLO, "key": "import-42"})
    assert len(await api.run_all()) == 1
    await api.world.advance(5)
    again = await api.create({**HELLO, "key": "import-42"})
    assert (again["id"], again["state"], again["version"]) == (first["id"], "ENDED", 1)
    assert await api.run_all() == []


@proves("S8", "P10")
async def test_a_put_makes_a_new_version_that_takes_effect_at_once(api: Caller) -> None:
    body = {"name": "pulse", "every": "10s", "function": "f", "key": "pulse"}
    job = await api.create(body)
    path = f"/v1/jobs/{job['id']}"
    changed = await api.http.put(path, json={"name": "pulse", "every": "15s", "function": "f"})
    assert (changed.status_code, changed.headers["etag"]) == (200, '"2"')
    assert (changed.json()["version"], changed.json()["key"], changed.json()["schedule"]["every"]) == (2, "pulse", 15)
    await api.world.advance(10)
    assert await api.run_all() == []
    await api.world.advance(5)
    assert len(await api.run_all()) == 1
    assert (await api.http.put(path, json={**body, "key": "other"})).status_code == 409


@proves("S8")
async def test_if_match_guards_against_two_editors(api: Caller) -> None:
    body = {"name": "nightly", "cron": "0 3 * * *", "function": "f"}
    job = await api.create(body)
    path = f"/v1/jobs/{job['id']}"
    assert (await api.http.put(path, json=body, headers={"If-Match": '"1"'})).status_code == 200
    late = await api.http.put(path, json=body, headers={"If-Match": '"1"'})
    assert (late.status_code, late.json()["type"]) == (412, "urn:ondot:problem:precondition-failed")
    assert (await api.http.put(path, json=body, headers={"If-Match": "nonsense"})).status_code == 422
    assert (await api.http.put(path, json={"cron": "99 * * * *", "function": "f"})).status_code == 422


@proves("S8")
async def test_if_match_guards_pause_resume_and_delete(api: Caller) -> None:
    job = await api.create({"name": "nightly", "cron": "0 3 * * *", "function": "f"})
    path = f"/v1/jobs/{job['id']}"
    await api.http.patch(path, json={"timeout": 5})
    old, new = {"If-Match": '"1"'}, {"If-Match": '"2"'}
    for method, way in (("POST", "/pause"), ("POST", "/resume"), ("DELETE", "")):
        late = await api.http.request(method, f"{path}{way}", headers=old)
        assert (late.status_code, late.json()["type"]) == (412, "urn:ondot:problem:precondition-failed"), way
        assert (await api.http.request(method, f"{path}{way}", headers={"If-Match": "x"})).status_code == 422
        assert (await api.http.request(method, f"{path}{way}", headers=new)).status_code == 200, way


@proves("S6", "S8")
@pytest.mark.parametrize(("missed", "runs"), [(None, 0), ("skip", 0), ("once", 1), ("all", 3)])
async def test_a_resume_runs_missed_fires_only_if_asked(api: Caller, missed: str | None, runs: int) -> None:
    job = await api.create({"name": "pulse", "every": "10s", "function": "f"})
    await api.http.post(f"/v1/jobs/{job['id']}/pause")
    await api.world.advance(35)
    path = f"/v1/jobs/{job['id']}/resume"
    resumed = await (api.http.post(path) if missed is None else api.http.post(path, json={"missed": missed}))
    assert (resumed.status_code, resumed.json()["state"], resumed.headers["etag"]) == (200, "ACTIVE", '"1"')
    rows = (await api.get(f"/v1/jobs/{job['id']}"))["skipped_fires"]
    assert 3 - sum(row["count"] for row in rows) == runs


async def test_a_resume_rejects_an_unknown_body(api: Caller) -> None:
    job = await api.create({"name": "pulse", "every": "10s", "function": "f"})
    answer = await api.http.post(f"/v1/jobs/{job['id']}/resume", json={"missed": "some"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/missed")


@proves("S8", "S3")
@pytest.mark.parametrize(
    "body",
    [
        DAILY,
        {"name": "pulse", "every": "10s", "function": "f", "key": "pulse", "pause_after_failures": 3},
        {"name": "spread", "cron": "H H * * *", "function": "f"},
        {"name": "third", "function": "f", "schedule": {"rrule": "FREQ=DAILY;INTERVAL=3"}},
        {"name": "two", "function": "f", "schedule": {"cron": "@daily", "include": [{"every": "7h"}]}},
        {"name": "once", "in": "1h", "function": "f"},
    ],
    ids=lambda body: body["name"],
)
async def test_a_job_can_be_put_back_as_it_was_read_and_fires_as_before(api: Caller, body: dict[str, Any]) -> None:
    job = await api.create(body)
    path = f"/v1/jobs/{job['id']}"
    read = await api.get(path)
    fires = await api.get(f"{path}/next")
    await api.world.advance(7)
    again = await api.http.put(path, json=read)
    assert again.status_code == 200, again.text
    stored = again.json()
    ignored = {"version", "updated_at", "warnings"}
    assert {name: stored[name] for name in stored if name not in ignored} == {
        name: read[name] for name in stored if name not in ignored
    }
    assert await api.get(f"{path}/next") == fires
    if body.get("key"):
        # An anchor that the server chose stays: the first body again is no change.
        assert (await api.create(body))["version"] == stored["version"]


@proves("S9")
async def test_the_next_fires_of_a_job_are_listed(api: Caller) -> None:
    job = await api.create({"name": "nightly", "cron": "0 3 * * *", "function": "f"})
    coming = await api.get(f"/v1/jobs/{job['id']}/next", n=3)
    assert len(coming["fires"]) == 3
    assert coming["fires"][0]["fire_at"] == job["next_fire_at"]
    assert coming["fires"][0].keys() == {"fire_at", "local", "remark"}
    later = await api.get(f"/v1/jobs/{job['id']}/next", n=1, after="2030-01-01T04:00:00+01:00")
    assert later["fires"][0]["fire_at"] == "2030-01-02T03:00:00Z"
    for bad in ("2030-01-01T04:00:00", "soon", "9999-01-01T00:00:00Z"):
        answer = await api.http.get(f"/v1/jobs/{job['id']}/next", params={"after": bad})
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:ondot:problem:invalid-parameters")


@proves("S5", "S9")
async def test_the_next_fires_of_a_job_with_jitter_show_when_they_start(api: Caller) -> None:
    job = await api.create({"name": "pulse", "schedule": {"every": "10s", "jitter": "5s"}, "function": "f"})
    coming = await api.get(f"/v1/jobs/{job['id']}/next", n=2)
    await api.world.advance(15)
    worker = await api.world.worker()
    await worker.lease()
    executions = (await api.get(f"/v1/jobs/{job['id']}/executions"))["items"]
    ready = {execution["fire_at"]: execution["ready_at"] for execution in executions}
    assert ready[coming["fires"][0]["fire_at"]] == coming["fires"][0]["ready_at"]
    assert {fire["remark"] for fire in coming["fires"]} == {"jittered"}


@proves("S2", "S9")
async def test_the_next_fires_of_a_cron_with_h_are_those_that_the_job_has(api: Caller) -> None:
    job = await api.create({"name": "spread", "cron": "H H * * *", "function": "f"})
    coming = await api.get(f"/v1/jobs/{job['id']}/next", n=2)
    assert coming["fires"][0]["fire_at"] == job["next_fire_at"]
    answer = await api.http.post("/v1/schedules/preview", json={"cron": "H H * * *", "n": 2, "job_id": job["id"]})
    assert answer.json()["fires"] == coming["fires"]


@proves("S8", "S9")
async def test_the_next_fires_of_a_job_end_at_max_fires(api: Caller) -> None:
    job = await api.create({"name": "three", "schedule": {"every": "10s", "max_fires": 3}, "function": "f"})
    path = f"/v1/jobs/{job['id']}/next"
    fires = (await api.get(path))["fires"]
    assert len(fires) == 3
    await api.world.advance(11)
    await api.world.plan()
    assert (await api.get(path))["fires"] == fires[1:]
    assert (await api.get(path, after=fires[1]["fire_at"]))["fires"] == fires[2:]
    assert (await api.get(path, after=fires[2]["fire_at"]))["fires"] == []
    assert "at most 3 times" in (await api.get(path))["in_words"]


@proves("S9", "S4")
async def test_a_preview_shows_what_a_clock_change_does(api: Caller) -> None:
    answer = await api.http.post(
        "/v1/schedules/preview",
        json={
            "schedule": {"cron": "30 2 * * *", "timezone": "Europe/Berlin"},
            "after": "2026-03-28T12:00:00Z",
            "n": 2,
        },
    )
    shown = answer.json()
    assert shown.keys() == {"in_words", "fires", "skipped"}
    assert shown["in_words"].startswith("At 02:30")
    assert shown["fires"][0] == {
        "fire_at": "2026-03-29T01:00:00Z",
        "local": shown["fires"][0]["local"],
        "remark": "shifted",
    }


@proves("S9", "S4", "S10")
async def test_a_preview_of_the_past_starts_at_after(api: Caller) -> None:
    body = {"cron": "0 9 * * *", "end_at": "2021-01-01T00:00:00Z"}
    asked = {"schedule": body, "after": "2020-12-30T12:00:00Z", "n": 5}
    shown = await api.http.post("/v1/schedules/preview", json=asked)
    assert (shown.status_code, [fire["fire_at"] for fire in shown.json()["fires"]]) == (200, ["2020-12-31T09:00:00Z"])
    over = await api.http.post("/v1/jobs", json={"function": "f", "schedule": body})
    assert (over.status_code, over.json()["errors"][0]["pointer"]) == (422, "/schedule/end_at")


async def test_a_preview_shows_which_fires_are_skipped_and_why(api: Caller) -> None:
    schedule = {
        "cron": "30 2 * * *",
        "timezone": "Europe/Berlin",
        "dst": {"gap": "skip"},
        "calendar": {"exclude_dates": ["2026-03-28"]},
    }
    body = {"schedule": schedule, "after": "2026-03-27T12:00:00Z", "n": 2}
    shown = (await api.http.post("/v1/schedules/preview", json=body)).json()
    assert shown["skipped"] == [
        {"local": "2026-03-28T02:30:00+01:00", "reason": "date"},
        {"local": "2026-03-29T02:30:00", "reason": "gap"},
    ]


@proves("S12")
async def test_a_job_shows_after_how_many_failures_it_pauses_and_why_it_did(api: Caller) -> None:
    job = await api.create({"name": "pulse", "every": "10s", "function": "f", "pauseAfterFailures": 2})
    assert (job["pause_after_failures"], job["state_reason"]) == (2, None)
    await pause(api.world.database, DEFAULT_TENANT, JobId(UUID(job["id"])), because="2 failures in a row")
    paused = await api.get(f"/v1/jobs/{job['id']}")
    assert (paused["state"], paused["state_reason"]) == ("PAUSED", "2 failures in a row")
    assert (await api.http.post(f"/v1/jobs/{job['id']}/resume")).json()["state_reason"] is None


@pytest.mark.parametrize("path", ["", "/status", "/next", "/executions"])
@pytest.mark.parametrize(
    "id_", ["01a1de89-cd41-7462-b41c-105d59568642", "nonsense", "00000000-0000-0000-0000-00000000000g"]
)
async def test_an_unknown_path_or_id_is_404_with_a_problem(api: Caller, path: str, id_: str) -> None:
    answer = await api.http.get(f"/v1/jobs/{id_}{path}")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:ondot:problem:not-found")


async def test_the_api_is_also_mounted_under_api(api: Caller) -> None:
    job = await api.create(HELLO)
    assert (await api.get(f"/api/v1/jobs/{job['id']}"))["id"] == job["id"]


async def test_a_create_carries_the_version_as_etag(api: Caller) -> None:
    body = {"function": "f", "every": "1h", "key": "k"}
    answers = [
        await api.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "1"}),
        await api.http.post("/v1/jobs", json={**body, "every": "2h"}),
        await api.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "1"}),
    ]
    assert [(answer.status_code, answer.headers["etag"]) for answer in answers] == [
        (201, '"1"'),
        (201, '"2"'),
        (201, '"1"'),
    ]
    job = answers[1].json()
    kept = await api.http.patch(
        f"/v1/jobs/{job['id']}", json={"timeout": 5}, headers={"If-Match": answers[1].headers["etag"]}
    )
    assert kept.status_code == 200


async def test_a_get_carries_the_version_as_etag(api: Caller) -> None:
    job = await api.create(HELLO)
    assert (await api.http.get(f"/v1/jobs/{job['id']}")).headers["etag"] == '"1"'


@proves("S8")
async def test_created_at_stays_the_same_in_every_response_and_after_a_change(api: Caller) -> None:
    for body in ({"function": "f", "in": "1h"}, {"function": "f", "every": "1h"}):
        created = await api.create(body)
        path = f"/v1/jobs/{created['id']}"
        assert (await api.get(path))["created_at"] == created["created_at"]
        await api.world.advance(5)
        assert (await api.http.post(f"{path}/pause")).json()["created_at"] == created["created_at"]
        stored = await api.world.value("SELECT created_at FROM ondot.job WHERE id = $1", created["id"])
        assert stored == datetime.fromisoformat(created["created_at"])
