"""Explain of runs and steps over HTTP, while the engine runs them."""

from ondot.model.workflow.spec import Approve
from tests.api.conftest import Caller
from tests.flow.workflows import advance, start, step
from tests.proves import proves
from tests.world import failed


@proves("E17", "W3")
async def test_a_run_is_explained_from_its_start_to_its_block(api: Caller) -> None:
    world = api.world
    worker = await world.worker()
    steps = {
        "load": step(),
        "report": step("load"),
        "ok": step(target=Approve()),
        "clean": step(is_final=True),
    }
    run = await start(world, worker, steps)
    running = await api.get(f"/v1/executions/{run}/explain")
    codes = [reason["code"] for reason in running["reasons"]]
    assert codes[0] == "run_running"
    assert {"waits_to_start", "waits_for_approval"} <= set(codes)
    waiting = await api.get(f"/v1/runs/{run}/steps/report/explain")
    assert waiting["state"] == "WAITING"
    assert waiting["summary"] == "Step report waits for load, which waits for a worker."
    queued = await api.get(f"/v1/runs/{run}/steps/load/explain")
    assert [reason["code"] for reason in queued["reasons"]][:2] == ["waits_to_start", "next"]
    assert (await api.get(f"/v1/runs/{run}/steps/clean/explain"))["reasons"][0]["code"] == "waits_for_end"
    [assignment] = await worker.lease()
    assert "waits for load, which runs" in (await api.get(f"/v1/runs/{run}/steps/report/explain"))["summary"]
    await worker.complete(assignment, failed("no such table", retryable=False))
    await advance(world, run)
    blocked = await api.get(f"/v1/runs/{run}/steps/report/explain")
    assert (blocked["state"], [reason["code"] for reason in blocked["reasons"]]) == (
        "BLOCKED",
        ["blocked", "step_failed"],
    )
    assert "parent load failed" in blocked["summary"]
    assert "no such table" in blocked["summary"]
    whole = await api.get(f"/v1/executions/{run}/explain")
    assert "step_failed" in [reason["code"] for reason in whole["reasons"]], "also while another step waits"


@proves("E17")
async def test_an_unknown_step_or_run_is_not_found(api: Caller) -> None:
    worker = await api.world.worker()
    run = await start(api.world, worker, {"load": step()})
    answer = await api.http.get(f"/v1/runs/{run}/steps/lod/explain")
    assert answer.status_code == 404
    assert "Did you mean `load`?" in answer.json()["detail"]
    job = await api.create({"name": "plain", "function": "f"})
    assert (await api.http.get(f"/v1/runs/{await api.execution_of(job)}/steps/a/explain")).status_code == 404
