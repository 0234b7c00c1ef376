"""`/v1/executions/{id}/explain` and `/v1/jobs/{id}/explain` as a client sees them."""

from datetime import timedelta
from uuid import uuid4

import pytest

from tests.api.conftest import Caller
from tests.proves import proves
from tests.world import failed

FIELDS = {"id", "state", "summary", "may_start_at", "reasons", "now"}


@proves("E17")
async def test_an_execution_that_waits_for_a_worker_is_explained_with_what_to_do(api: Caller) -> None:
    job = await api.create({"name": "report", "function": "f", "pool": "gpu"})
    id_ = await api.execution_of(job)
    explanation = await api.get(f"/v1/executions/{id_}/explain")
    assert explanation.keys() == FIELDS
    assert (explanation["id"], explanation["state"], explanation["may_start_at"]) == (id_, "PENDING", None)
    [reason] = explanation["reasons"]
    assert (reason["code"], reason["pool"], reason["until"]) == ("no_worker", "gpu", None)
    assert reason["what_to_do"] == "Start one: `ondot worker --pool gpu`."
    assert "gpu" in explanation["summary"]


@proves("E17")
async def test_a_retry_and_its_end_are_explained_with_instants_in_utc(api: Caller) -> None:
    body = {"name": "flaky", "function": "f", "retry": {"max_retries": 1, "jitter": False, "initial": "30s"}}
    await api.create(body)
    worker = await api.world.worker()
    [attempt] = await worker.lease()
    await worker.complete(attempt, failed("it broke"))
    explanation = await api.get(f"/v1/executions/{attempt.leased.id}/explain")
    [reason] = explanation["reasons"]
    again_at = f"{api.world.after(30):%Y-%m-%dT%H:%M:%S}"
    assert (reason["code"], reason["error"], reason["retry"]) == ("backoff", "it broke", 1)
    assert explanation["may_start_at"].startswith(again_at)
    assert reason["ready_at"].startswith(again_at)
    assert reason["ready_at"].endswith("Z")
    await api.world.advance(30)
    await worker.run_one(failed("it broke"))
    explanation = await api.get(f"/v1/executions/{attempt.leased.id}/explain")
    assert (explanation["state"], explanation["reasons"][0]["code"]) == ("FAILED", "ended")
    assert "ondot dead-letter replay" in explanation["reasons"][0]["what_to_do"]


@proves("E17")
async def test_a_job_is_explained_with_its_reasons_its_executions_and_its_skipped_fires(api: Caller) -> None:
    job = await api.create({"name": "report", "function": "f", "every": "1h"})
    explanation = await api.get(f"/v1/jobs/{job['id']}/explain")
    assert explanation.keys() == FIELDS | {"live", "executions", "skipped_fires", "fire"}
    assert [reason["code"] for reason in explanation["reasons"]] == ["not_due", "no_scheduler"]
    assert explanation["reasons"][0]["schedule"] == "Every hour"
    assert (explanation["live"], explanation["executions"], explanation["skipped_fires"], explanation["fire"]) == (
        0,
        [],
        [],
        None,
    )
    await api.http.post(f"/v1/jobs/{job['id']}/run")
    explanation = await api.get(f"/v1/jobs/{job['id']}/explain")
    assert [one["reasons"][0]["code"] for one in explanation["executions"]] == ["no_worker"]
    await api.http.post(f"/v1/jobs/{job['id']}/pause")
    explanation = await api.get(f"/v1/jobs/{job['id']}/explain")
    assert (explanation["state"], explanation["reasons"][0]["code"]) == ("PAUSED", "paused")
    await api.world.advance(3 * 3600)
    await api.http.post(f"/v1/jobs/{job['id']}/resume")
    explanation = await api.get(f"/v1/jobs/{job['id']}/explain")
    assert [(entry["reason"], entry["count"]) for entry in explanation["skipped_fires"]] == [("paused", 3)]


@proves("E17")
async def test_a_fire_is_explained_by_its_instant(api: Caller) -> None:
    job = await api.create({"name": "report", "function": "f", "every": "1h"})
    first_at = api.world.after(3600)
    await api.world.advance(3600 - 10)
    await api.world.plan()
    await api.world.advance(10)
    [id_] = await api.run_all()
    path = f"/v1/jobs/{job['id']}/explain"
    fire = (await api.get(path, at=first_at.isoformat()))["fire"]
    assert (fire["code"], fire["execution_id"], fire["state"]) == ("executed", str(id_), "SUCCEEDED")
    fire = (await api.get(path, at=(first_at + timedelta(hours=1)).isoformat()))["fire"]
    assert fire["code"] == "not_yet"
    fire = (await api.get(path, at=(first_at + timedelta(minutes=10)).isoformat()))["fire"]
    assert (fire["code"], fire["fire_at"], fire["nearest"]["code"]) == ("not_a_fire", None, "executed")
    assert fire["before_at"].startswith(f"{first_at:%Y-%m-%dT%H:%M:%S}")


@proves("E17")
@pytest.mark.parametrize("at", ["nine", "2026-11-15T09:00:00", "9999-01-01T00:00:00Z"])
async def test_an_instant_that_cannot_be_parsed_is_rejected(api: Caller, at: str) -> None:
    job = await api.create({"name": "report", "function": "f", "every": "1h"})
    answer = await api.http.get(f"/v1/jobs/{job['id']}/explain", params={"at": at})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:ondot:problem:invalid-parameters")


@proves("E17")
async def test_an_unknown_id_is_not_found_and_a_misspelt_parameter_is_rejected(api: Caller) -> None:
    for path in (f"/v1/jobs/{uuid4()}", f"/v1/executions/{uuid4()}", "/v1/jobs/nine", "/v1/executions/nine"):
        assert (await api.http.get(f"{path}/explain")).status_code == 404
    job = await api.create({"name": "report", "function": "f"})
    answer = await api.http.get(f"/v1/jobs/{job['id']}/explain", params={"att": "2026-11-15T09:00:00Z"})
    assert answer.status_code == 422
    assert "Did you mean at?" in answer.json()["detail"]


@proves("E17", "T1")
async def test_explain_needs_a_key_where_keys_are_required(keyed: Caller) -> None:
    for path in (f"/v1/jobs/{uuid4()}", f"/v1/executions/{uuid4()}"):
        assert (await keyed.http.get(f"{path}/explain")).status_code == 401


@proves("E17")
async def test_explain_is_in_the_openapi_document(api: Caller) -> None:
    document = await api.get("/openapi.json")
    assert {"/v1/jobs/{id}/explain", "/v1/executions/{id}/explain"} <= document["paths"].keys()
    codes = document["components"]["schemas"]["ReasonOut"]["properties"]["code"]["enum"]
    assert {"held", "no_worker", "overlap", "late_plan"} <= set(codes)
