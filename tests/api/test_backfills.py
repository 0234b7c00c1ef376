"""`/v1/jobs/{id}/backfill` as a client sees it."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.api.conftest import Caller
from tests.proves import proves


def body_of(api: Caller, hours: int, **fields: Any) -> dict[str, Any]:
    now = api.world.now
    return {"from_at": (now - timedelta(hours=hours)).isoformat(), "to_at": now.isoformat(), **fields}


async def hourly(api: Caller) -> str:
    job = await api.create({"name": "hourly", "cron": "30 * * * *", "function": "hello"})
    return f"/v1/jobs/{job['id']}"


@proves("S7")
async def test_a_dry_run_counts_and_starts_nothing(api: Caller) -> None:
    job = await hourly(api)
    answer = await api.http.post(f"{job}/backfill", json=body_of(api, 24, dry_run=True))
    assert (answer.status_code, answer.json()) == (200, {"dry_run": True, "total": 24, "existing": 0, "to_run": 24})
    assert (await api.get(f"{job}/backfills"))["items"] == []


@proves("S7")
async def test_a_backfill_is_accepted_run_and_listed_with_its_progress(api: Caller) -> None:
    job = await hourly(api)
    answer = await api.http.post(f"{job}/backfill", json=body_of(api, 5, concurrency=5, order="newest"))
    assert answer.status_code == 202, answer.text
    started = answer.json()
    assert (started["state"], started["total"], started["order"], started["ended_at"]) == ("RUNNING", 5, "newest", None)
    await api.world.work_off()
    assert (await api.get(f"{job}/backfills/{started['id']}"))["open"] == 5
    await api.run_all()
    await api.world.advance(1)
    await api.world.work_off()
    [ended] = (await api.get(f"{job}/backfills"))["items"]
    assert (ended["state"], ended["made"], ended["succeeded"], ended["open"]) == ("DONE", 5, 5, 0)
    items = (await api.get(f"{job}/executions"))["items"]
    assert {item["origin"] for item in items} == {"backfill"}


@proves("S7")
async def test_a_backfill_of_a_paused_job_is_held_and_can_be_cancelled_twice(api: Caller) -> None:
    job = await hourly(api)
    started = (await api.http.post(f"{job}/backfill", json=body_of(api, 5))).json()
    await api.http.post(f"{job}/pause")
    path = f"{job}/backfills/{started['id']}"
    assert (await api.get(path))["state"] == "HELD"
    for _ in range(2):
        answer = await api.http.post(f"{path}/cancel")
        assert (answer.status_code, answer.json()["state"]) == (200, "CANCELLED")


@proves("S7")
async def test_short_names_of_the_range_are_accepted(api: Caller) -> None:
    job = await hourly(api)
    body = body_of(api, 24, dryRun=True)
    answer = await api.http.post(f"{job}/backfill", json={"from": body["from_at"], "to": body["to_at"], "dryRun": True})
    assert (answer.status_code, answer.json()["total"]) == (200, 24)


@proves("S7")
@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"from_at": "yesterday"}, "/from_at"),
        ({"order": "random"}, "/order"),
        ({"concurrency": 0}, "/concurrency"),
        ({"conccurrency": 2}, "/conccurrency"),
        ({"to_at": "2199-01-01T00:00:00Z"}, "/to_at"),
    ],
)
async def test_a_bad_request_names_the_field(api: Caller, fields: dict[str, Any], pointer: str) -> None:
    job = await hourly(api)
    answer = await api.http.post(f"{job}/backfill", json=body_of(api, 24, **fields))
    assert answer.status_code == 422, answer.text
    assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]


@proves("S7", "T1")
async def test_an_unknown_id_is_not_found(api: Caller) -> None:
    job = await hourly(api)
    assert (await api.http.get(f"{job}/backfills/{uuid4()}")).status_code == 404
    assert (await api.http.get(f"{job}/backfills/nonsense")).status_code == 404
    assert (await api.http.post(f"{job}/backfills/{uuid4()}/cancel")).status_code == 404
    for path in (f"/v1/jobs/{uuid4()}", "/v1/jobs/nonsense"):
        assert (await api.http.post(f"{path}/backfill", json=body_of(api, 1))).status_code == 404
        assert (await api.http.post(f"{path}/backfill", json=body_of(api, 1, dry_run=True))).status_code == 404
        assert (await api.http.get(f"{path}/backfills")).status_code == 404


@proves("S7", "P2")
async def test_the_same_key_returns_the_same_backfill_and_a_second_backfill_is_a_conflict(api: Caller) -> None:
    job = await hourly(api)
    body = body_of(api, 24)
    headers = {"Idempotency-Key": "backfill-1"}
    first, second = [await api.http.post(f"{job}/backfill", json=body, headers=headers) for _ in range(2)]
    assert (first.status_code, first.content) == (second.status_code, second.content)
    third = await api.http.post(f"{job}/backfill", json=body)
    assert third.status_code == 409
    assert "cancel" in third.json()["detail"]
