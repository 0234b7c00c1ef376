"""`/v1/executions/{id}/cancel` as a client sees it, and jobs whose key is taken."""

from uuid import uuid4

from tests.api.conftest import Caller
from tests.proves import proves


@proves("E8", "T6")
async def test_a_waiting_execution_is_cancelled_at_once_and_shows_by_which_caller_and_why(api: Caller) -> None:
    id_ = await api.execution_of(await api.create({"function": "f", "in": "10s"}))
    answer = await api.http.post(f"/v1/executions/{id_}/cancel", json={"reason": "wrong region"})
    assert answer.status_code == 202
    execution = answer.json()
    assert (execution["state"], execution["reason"]) == ("CANCELLED", "cancelled by local: wrong region")
    [entry] = (await api.get("/v1/audit", subject=id_))["items"]
    assert (entry["action"], entry["actor"], entry["detail"]["reason"]) == ("execution.cancel", "local", "wrong region")


@proves("E8")
async def test_a_running_execution_is_asked_to_stop_and_shows_since_when(api: Caller) -> None:
    await api.create({"function": "f"})
    worker = await api.world.worker()
    [attempt] = await worker.lease()
    answer = await api.http.post(f"/v1/executions/{attempt.leased.id}/cancel")
    assert answer.status_code == 202
    assert (answer.json()["state"], answer.json()["cancel_requested_at"] is not None) == ("RUNNING", True)
    explanation = await api.get(f"/v1/executions/{attempt.leased.id}/explain")
    assert explanation["reasons"][0]["code"] == "cancelling"


@proves("E8")
async def test_an_ended_or_unknown_execution_cannot_be_cancelled_and_a_bad_body_is_rejected(api: Caller) -> None:
    await api.create({"function": "f"})
    [id_] = await api.run_all()
    assert (await api.http.post(f"/v1/executions/{id_}/cancel")).status_code == 409
    assert (await api.http.post(f"/v1/executions/{uuid4()}/cancel")).status_code == 404
    answer = await api.http.post(f"/v1/executions/{id_}/cancel", json={"because": "x"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/because"


@proves("E16", "P4")
async def test_a_job_whose_key_is_taken_is_created_and_shows_why_it_does_not_run(api: Caller) -> None:
    first = await api.create({"function": "f", "unique": "invoice-7"})
    second = await api.create({"function": "f", "unique": "invoice-7"})
    reason = f"unique: the job {first['id']} has the key 'invoice-7'"
    assert (second["state"], second["state_reason"], second["next_fire_at"]) == ("ENDED", reason, None)
    [execution] = (await api.get(f"/v1/jobs/{second['id']}/executions"))["items"]
    assert (execution["state"], execution["reason"]) == ("SKIPPED", reason)
