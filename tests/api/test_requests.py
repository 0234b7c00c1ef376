"""Requests that are rejected before their content is read: endless bodies, unknown parameters, slow schedules."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ondot.api import intake
from ondot.document import parse as wire
from tests.api.conftest import Caller
from tests.proves import proves


async def test_a_body_that_never_ends_is_rejected_in_bounded_time(api: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "WITHIN_S", 0.05)

    async def endless() -> AsyncIterator[bytes]:
        yield b'{"name": '
        await asyncio.Event().wait()

    answer = await api.http.post("/v1/jobs", content=endless())
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:ondot:problem:invalid-request")
    assert "did not end" in answer.json()["detail"]


async def test_a_body_that_claims_to_be_huge_is_rejected_before_it_is_read(api: Caller) -> None:
    read = 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal read
        read += 1
        yield b"{}"

    answer = await api.http.post("/v1/jobs", content=counted(), headers={"content-length": "999999999999"})
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:ondot:problem:too-large")
    assert read == 0


async def test_a_body_that_grows_past_the_limit_is_rejected(api: Caller) -> None:
    async def growing() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 2**20

    answer = await api.http.post("/v1/jobs", content=growing())
    assert answer.status_code == 413


async def test_an_empty_body_is_rejected_as_empty(api: Caller) -> None:
    answer = await api.http.post("/v1/jobs")
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:ondot:problem:not-json")
    assert "empty" in answer.json()["detail"]


async def test_a_misspelt_filter_does_not_list_everything(api: Caller) -> None:
    answer = await api.http.get("/v1/jobs", params={"stat": "ACTIVE"})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:ondot:problem:invalid-parameters")
    assert "Did you mean state?" in answer.json()["detail"]


@pytest.mark.parametrize(
    "query",
    [
        "executions?from_at=0001-01-01T00:00:00%2B14:00",
        "executions?to_at=9999-12-31T23:59:59-12:00",
        "executions?from_at=2026-11-15T12:00:00",
        "executions?pool=a%00b",
        "jobs?pool=a%00b",
        "jobs?name=%00",
        "jobs?q=%00",
        "jobs?label=a:%00",
        "jobs?label=a",
        "jobs?cursor=nonsense",
        "jobs?limit=0",
        "jobs?limit=99999999999999999999",
        "jobs?state=RUNING",
    ],
)
async def test_a_strange_parameter_is_rejected_without_a_server_error(api: Caller, query: str) -> None:
    answer = await api.http.get(f"/v1/{query}")
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:ondot:problem:invalid-parameters")


@pytest.mark.parametrize("cursor", ["99999999999.1", "1.99999999999", "1", "-1.2", "1.2.3", "9" * 5000 + ".1"])
async def test_an_invalid_cursor_of_a_log_is_rejected(api: Caller, cursor: str) -> None:
    job = await api.create({"name": "x", "function": "f"})
    id_ = await api.execution_of(job)
    answer = await api.http.get(f"/v1/executions/{id_}/logs", params={"cursor": cursor})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:ondot:problem:invalid-parameters")


async def test_an_invalid_parameter_is_rejected_by_name(api: Caller) -> None:
    answer = await api.http.get("/v1/jobs", params={"limit": "many"})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:ondot:problem:invalid-parameters")
    assert "limit" in answer.json()["detail"]


async def test_a_slow_schedule_does_not_delay_other_requests(api: Caller) -> None:
    rules = [{"cron": f"{n % 60} {n // 60} 15W * *", "timezone": "Europe/Berlin"} for n in range(100)]
    body = {"schedule": {"cron": "0 9 15W * *", "include": rules}, "n": 300}
    order: list[str] = []

    async def ask(name: str, path: str) -> None:
        answer = await (api.http.post(path, json=body) if name == "slow" else api.http.get(path))
        assert answer.status_code == 200
        order.append(name)

    await asyncio.gather(ask("slow", "/v1/schedules/preview"), ask("quick", "/livez"))
    assert order == ["quick", "slow"]


ONE_IN_SIXTY = {
    "cron": "* * * * * *",
    "exclude": [{"rrule": f"FREQ=SECONDLY;BYSECOND={','.join(map(str, range(59)))}"}],
}


async def test_a_schedule_that_takes_too_long_is_rejected_on_every_route(api: Caller) -> None:
    job = await api.create({"name": "x", "function": "f", "cron": "@daily"})
    schedule = {
        "every": "1s",
        "anchor_at": "2026-01-01T00:00:00Z",
        "exclude": [{"every": "2s", "anchor_at": at} for at in ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z")],
    }
    for method, path, body, pointer in (
        ("POST", "/v1/jobs", {"function": "f", "schedule": schedule}, "/schedule/exclude"),
        ("POST", "/v1/jobs/batch", {"jobs": [{"function": "f", "schedule": schedule}]}, "/jobs/0/schedule/exclude"),
        ("PUT", f"/v1/jobs/{job['id']}", {"function": "f", "schedule": schedule}, "/schedule/exclude"),
        ("PATCH", f"/v1/jobs/{job['id']}", {"schedule": schedule}, "/schedule/exclude"),
        ("POST", "/v1/schedules/preview", {"schedule": schedule}, "/schedule/exclude"),
        ("POST", "/v1/schedules/preview", {"schedule": ONE_IN_SIXTY, "n": 1000}, "/schedule/exclude"),
    ):
        answer = await api.http.request(method, path, json=body)
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:ondot:problem:invalid-schedule"), path
        assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]
        assert "too long to compute" in answer.json()["detail"]


async def test_the_schedules_of_a_batch_have_one_budget(api: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_BATCH_LOOKS", 5_000)
    jobs = [{"function": "f", "schedule": ONE_IN_SIXTY} for _ in range(20)]
    answer = await api.http.post("/v1/jobs/batch", json={"jobs": jobs})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:ondot:problem:invalid-schedule")
    assert "another batch" in answer.json()["detail"]
    assert (await api.http.post("/v1/jobs/batch", json={"jobs": jobs[:1]})).status_code == 201


@proves("P9")
async def test_a_parameter_that_takes_one_value_is_not_given_twice(api: Caller) -> None:
    """Of two the last would count alone, and the list would look filtered by both."""
    for path in (
        "/v1/executions?q=state:failed&q=job:a",
        "/v1/jobs?limit=1&limit=2",
        "/v1/jobs?format=csv&q=a&q=b",
        "/v1/jobs?format=csv&limit=1&limit=2",
        "/v1/report?since=1h&since=2h",
    ):
        answer = await api.http.get(path)
        assert (answer.status_code, "is given 2 times" in answer.text) == (422, True), (path, answer.text)
    for path in ("/v1/jobs?label=a:b&label=c:d", "/v1/runs?state=RUNNING&state=FAILED"):
        answer = await api.http.get(path)
        assert answer.status_code == 200, answer.text
