"""`/v1/runs`: runs as they are shown, and repairs (W3, W8)."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from ondot.model.outcome import Succeeded
from tests.api.conftest import Caller
from tests.api.workflow_runs import BROKEN, CHAIN, begin_run, blocked_run, start_run
from tests.flow.workflows import advance, run_steps
from tests.proves import proves


async def post(api: Caller, path: str, body: Any, status: int, **headers: str) -> Any:
    answer = await api.http.post(path, json=body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


@proves("W3", "W8")
async def test_a_blocked_run_shows_which_step_failed_and_what_waits_for_it(api: Caller) -> None:
    worker = await api.world.worker()
    run = await blocked_run(api, worker)
    shown = await api.get(f"/v1/runs/{run}")
    assert (shown["state"], shown["reason"]) == ("BLOCKED", "step b failed")
    assert shown["failed_steps"] == ["b"]
    assert shown["critical_path"] == ["a", "b"]
    assert [(step["name"], step["state"]) for step in shown["steps"]] == [
        ("a", "SUCCEEDED"),
        ("b", "FAILED"),
        ("c", "BLOCKED"),
    ]
    b, c = shown["steps"][1:]
    assert (b["generation"], b["execution_state"], b["attempt"], b["kind"]) == (1, "FAILED", 1, "function")
    assert b["error"]["message"]
    assert (c["reason"], c["execution_id"], c["depends_on"]) == ("parent b failed", None, ["b"])
    counts = {name: count for name, count in shown["counts"].items() if count}
    assert counts == {"succeeded": 1, "failed": 1, "blocked": 1}


@proves("W8")
async def test_times_of_a_step_are_split_into_blocked_queued_and_running(api: Caller) -> None:
    world = api.world
    worker = await world.worker()
    run = await start_run(api, worker)
    await world.advance(2)
    [a] = await worker.lease()
    await world.advance(3)
    await worker.complete(a, Succeeded('{"rows": 5}'))
    await advance(world, run)
    await world.advance(5)
    a_out, b_out, c_out = (await api.get(f"/v1/runs/{run}"))["steps"]
    assert (a_out["blocked_s"], a_out["queued_s"], a_out["running_s"]) == (0, 2, 3)
    assert (b_out["blocked_s"], b_out["queued_s"], b_out["execution_state"]) == (5, None, "PENDING")
    assert c_out["waits_for"] == ["b"]
    assert a_out["result"] == {"rows": 5}
    assert (await api.get(f"/v1/runs/{run}/steps/a"))["result"] == {"rows": 5}


@proves("W8")
async def test_a_run_that_waits_for_its_turn_is_shown_too(api: Caller) -> None:
    job = await api.create({"name": "flow", "target": {"workflow": {"steps": CHAIN}}})
    [shown] = (await api.get(f"/v1/workflows/{job['id']}/runs"))["items"]
    assert (shown["state"], shown["counts"]["waiting"], shown["job_name"]) == ("PENDING", 3, "flow")
    detail = await api.get(f"/v1/runs/{shown['id']}")
    assert (detail["state"], detail["steps"]) == ("PENDING", [])
    run = await begin_run(api, await api.world.worker())
    assert str(run) == shown["id"]
    [shown] = (await api.get(f"/v1/workflows/{job['id']}/runs"))["items"]
    assert (shown["state"], shown["counts"]["running"]) == ("RUNNING", 1)


@proves("W8")
async def test_runs_are_listed_by_state_newest_first(api: Caller) -> None:
    worker = await api.world.worker()
    first = await blocked_run(api, worker)
    second = await start_run(api, worker)
    everything = await api.get("/v1/runs")
    assert [item["id"] for item in everything["items"]] == [str(second), str(first)]
    only = await api.get("/v1/runs", state=["BLOCKED", "FAILED"])
    assert [item["id"] for item in only["items"]] == [str(first)]
    page = await api.get("/v1/runs", limit=1)
    rest = await api.get("/v1/runs", limit=1, cursor=page["next_cursor"])
    assert [item["id"] for item in rest["items"]] == [str(first)]
    assert rest["next_cursor"] is None


@proves("W5", "W8")
async def test_steps_are_paged_in_the_order_of_the_workflow(api: Caller) -> None:
    worker = await api.world.worker()
    steps = {f"s{no}": {"function": "f"} for no in range(7)}
    run = await start_run(api, worker, steps)
    names: list[str] = []
    paging: dict[str, Any] = {"limit": 3}
    while True:
        page = await api.get(f"/v1/runs/{run}/steps", **paging)
        names += [step["name"] for step in page["items"]]
        paging["cursor"] = page["next_cursor"]
        if page["next_cursor"] is None:
            break
    assert names == list(steps)
    assert (await api.http.get(f"/v1/runs/{run}/steps?cursor=x")).status_code == 422
    assert (await api.get(f"/v1/runs/{run}/steps", state="FAILED"))["items"] == []


@proves("W3", "W8")
async def test_a_retry_by_api_runs_the_failed_step_again_and_shows_both_generations(api: Caller) -> None:
    worker = await api.world.worker()
    run = await blocked_run(api, worker)
    dry = await post(api, f"/v1/runs/{run}/retry", {"dry_run": True}, 200)
    assert (dry["dry_run"], dry["runs_again"], dry["repair_id"]) == (True, ["b", "c"], None)
    done = await post(api, f"/v1/runs/{run}/retry", {"reason": "fixed"}, 200)
    assert (done["runs_again"], done["stops"], done["state"]) == (["b", "c"], [], "PENDING")
    assert await begin_run(api, worker) == run
    await run_steps(api.world, worker, run)
    shown = await api.get(f"/v1/runs/{run}")
    assert shown["state"] == "SUCCEEDED"
    [repair] = shown["repairs"]
    assert (repair["action"], repair["reason"], repair["steps"]) == ("retry", "fixed", ["b"])
    step = await api.get(f"/v1/runs/{run}/steps/b")
    assert [(g["generation"], g["state"]) for g in step["generations"]] == [(1, "FAILED"), (2, "SUCCEEDED")]
    assert step["generations"][0]["replaced_by"] == repair["id"]


@proves("W8", "P2")
async def test_a_lost_reply_is_repeated_by_its_key(api: Caller) -> None:
    worker = await api.world.worker()
    run = await blocked_run(api, worker)
    first = await post(api, f"/v1/runs/{run}/retry", {}, 200, **{"idempotency-key": "k"})
    again = await post(api, f"/v1/runs/{run}/retry", {}, 200, **{"idempotency-key": "k"})
    assert first == again
    await post(api, f"/v1/runs/{run}/retry", {}, 409)


@proves("W8")
async def test_of_two_people_at_once_one_retries_and_the_others_are_refused(api: Caller) -> None:
    worker = await api.world.worker()
    run = await blocked_run(api, worker)
    answers = await asyncio.gather(*(api.http.post(f"/v1/runs/{run}/retry", json={}) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
    assert await api.world.count("repair") == 1


@proves("W8")
async def test_a_step_can_be_skipped_and_a_result_set(api: Caller) -> None:
    worker = await api.world.worker()
    run = await blocked_run(api, worker)
    await post(api, f"/v1/runs/{run}/result", {"step": "b", "result": {"n": 1}, "reason": "by hand"}, 200)
    assert await begin_run(api, worker) == run
    await run_steps(api.world, worker, run, {"c": BROKEN})
    done = await post(api, f"/v1/runs/{run}/skip", {"step": "c"}, 200)
    assert done["set_by_hand"] == {"c": "SKIPPED"}
    assert await begin_run(api, worker) == run
    shown = await api.get(f"/v1/runs/{run}")
    assert shown["state"] == "SUCCEEDED"
    assert shown["steps"][1]["result"] == {"n": 1}
    assert shown["steps"][2]["reason"] == "skipped by local"


@proves("W8")
async def test_what_a_repair_cannot_do_is_said_with_a_pointer_or_a_way_out(api: Caller) -> None:
    worker = await api.world.worker()
    run = await blocked_run(api, worker)
    path = f"/v1/runs/{run}/retry"
    both = await post(api, path, {"steps": ["a"], "from": ["b"]}, 422)
    assert both["errors"][0]["pointer"] == "/from"
    unknown = await post(api, path, {"from": ["bb"]}, 422)
    assert unknown["errors"][0] == {"pointer": "/from/0", "detail": "There is no step 'bb'; did you mean 'b'?"}
    await post(api, path, {"steps": []}, 422)
    await post(api, path, {"stepz": ["a"]}, 422)
    await post(api, path, {"payload": 1}, 422)
    refused = await post(api, path, {"steps": ["c"]}, 409)
    assert "'c' has not run because of 'b'" in refused["detail"]
    await post(api, f"/v1/runs/{uuid4()}/retry", {}, 404)
    await post(api, "/v1/runs/nonsense/retry", {}, 404)
    assert (await api.http.get(f"/v1/runs/{run}/steps/bb")).json()["detail"].endswith("Did you mean 'b'?")


@proves("W8")
async def test_an_execution_of_a_plain_job_is_no_run(api: Caller) -> None:
    job = await api.create({"name": "plain", "function": "f"})
    [execution] = (await api.get(f"/v1/jobs/{job['id']}/executions"))["items"]
    assert (await api.http.get(f"/v1/runs/{execution['id']}")).status_code == 404
    assert (await api.http.get(f"/v1/workflows/{job['id']}/runs")).status_code == 409


@proves("W8")
async def test_a_paused_run_starts_no_steps_until_it_is_resumed(api: Caller) -> None:
    worker = await api.world.worker()
    run = await start_run(api, worker)
    done = await post(api, f"/v1/runs/{run}/pause", {"reason": "wait"}, 200)
    assert (done["action"], done["state"]) == ("pause", "RUNNING")
    [a] = await worker.lease()
    await worker.complete(a)
    await advance(api.world, run)
    assert await worker.lease() == []
    assert (await api.get(f"/v1/runs/{run}"))["is_paused"] is True
    await post(api, f"/v1/runs/{run}/resume", None, 200)
    assert await run_steps(api.world, worker, run) == [["b"], ["c"]]
    shown = await api.get(f"/v1/runs/{run}")
    assert [repair["action"] for repair in shown["repairs"]] == ["resume", "pause"]


@proves("W8")
async def test_a_run_is_cancelled_or_given_up_and_then_stays_as_it_is(api: Caller) -> None:
    worker = await api.world.worker()
    given_up = await blocked_run(api, worker)
    await post(api, f"/v1/runs/{given_up}/give-up", {"dry_run": True}, 200)
    done = await post(api, f"/v1/runs/{given_up}/give-up", {"reason": "too late"}, 200)
    assert done["state"] == "FAILED"
    cancelled = await start_run(api, worker)
    assert (await post(api, f"/v1/runs/{cancelled}/give-up", None, 409))["detail"].endswith("Cancel it instead.")
    await post(api, f"/v1/runs/{cancelled}/cancel", None, 202)
    for run in (given_up, cancelled):
        assert "ondot run rerun" in (await post(api, f"/v1/runs/{run}/retry", {"from": ["a"]}, 409))["detail"]


@proves("W8")
async def test_a_run_that_waits_for_its_turn_can_be_cancelled_and_not_paused(api: Caller) -> None:
    job = await api.create({"name": "flow", "target": {"workflow": {"steps": CHAIN}}})
    [shown] = (await api.get(f"/v1/workflows/{job['id']}/runs"))["items"]
    await post(api, f"/v1/runs/{shown['id']}/pause", None, 409)
    assert (await post(api, f"/v1/runs/{shown['id']}/cancel", None, 202))["state"] == "CANCELLED"


@proves("W8")
async def test_executions_of_a_run_and_of_its_steps_show_run_step_and_the_job_of_the_workflow(api: Caller) -> None:
    worker = await api.world.worker()
    job = await api.create({"name": "flow", "payload": {"n": 1}, "target": {"workflow": {"steps": CHAIN}}})
    run = await begin_run(api, worker)
    [a] = await worker.lease()
    shown = await api.get(f"/v1/executions/{a.leased.id}")
    assert (shown["job_id"], shown["job_name"]) == (job["id"], "flow")
    assert (shown["run_id"], shown["step"], shown["item"], shown["origin"]) == (str(run), "a", None, "step")
    assert shown["payload"] == {"n": 1}
    await worker.complete(a)
    await advance(api.world, run)
    ended = await api.get(f"/v1/executions/{a.leased.id}")
    assert (ended["job_id"], ended["run_id"], ended["step"]) == (job["id"], str(run), "a")
    of_run = await api.get(f"/v1/executions/{run}")
    assert (of_run["job_id"], of_run["run_id"], of_run["step"]) == (job["id"], None, None)


@proves("W8")
async def test_lists_of_executions_leave_out_steps_unless_they_are_asked_for(api: Caller) -> None:
    worker = await api.world.worker()
    run = await blocked_run(api, worker)
    assert [item["id"] for item in (await api.get("/v1/executions"))["items"]] == [str(run)]
    steps = (await api.get("/v1/executions", origin="step"))["items"]
    assert sorted(item["step"] for item in steps) == ["a", "b"]
    assert str(run) not in {item["job_id"] for item in steps}
    of_run = (await api.get("/v1/executions", run=run, state="FAILED"))["items"]
    assert [item["step"] for item in of_run] == ["b"]
    assert (await api.http.get(f"/v1/executions?run={run}&pool=x")).status_code == 422


@proves("W8", "E10")
async def test_replaying_the_letter_of_a_step_is_a_retry_in_its_run(api: Caller) -> None:
    worker = await api.world.worker()
    run = await blocked_run(api, worker)
    [letter] = (await api.get("/v1/dead-letters"))["items"]
    ids = {"ids": [letter["execution_id"]], "reason": "fixed"}
    [done] = (await post(api, "/v1/dead-letters/replay", ids, 200))["items"]
    assert (done["result"], done["replay_id"]) == ("replayed", str(run))
    assert (await api.get(f"/v1/runs/{run}"))["state"] == "PENDING"
    assert await begin_run(api, worker) == run
    assert await run_steps(api.world, worker, run) == [["b"], ["c"]]
    assert (await api.get(f"/v1/runs/{run}"))["state"] == "SUCCEEDED"


@proves("W8", "E10")
async def test_the_letter_of_an_ended_run_is_not_replayed_and_a_discard_changes_no_step(api: Caller) -> None:
    worker = await api.world.worker()
    run = await blocked_run(api, worker)
    [letter] = (await api.get("/v1/dead-letters"))["items"]
    await post(api, f"/v1/runs/{run}/give-up", None, 200)
    ids = {"ids": [letter["execution_id"]], "reason": "not needed"}
    [refused] = (await post(api, "/v1/dead-letters/replay", ids, 200))["items"]
    assert refused["result"] == "not_retried"
    assert "ondot run rerun" in refused["detail"]
    before = (await api.get(f"/v1/runs/{run}"))["steps"]
    await post(api, "/v1/dead-letters/discard", ids, 200)
    assert (await api.get(f"/v1/runs/{run}"))["steps"] == before


@proves("W8")
async def test_a_result_that_is_nested_very_deeply_is_shown_as_text(api: Caller) -> None:
    """The encoder of answers stops at 255 levels, and the whole run could not be looked at."""
    worker = await api.world.worker()
    run = await start_run(api, worker)
    deep = "[" * 900 + "]" * 900
    await run_steps(api.world, worker, run, {"a": Succeeded(deep)})
    shown = await api.get(f"/v1/runs/{run}")
    assert (shown["state"], shown["steps"][0]["result"]) == ("SUCCEEDED", deep)
    assert (await api.get(f"/v1/runs/{run}/steps/a"))["result"] == deep
    assert (await api.get(f"/v1/executions/{shown['steps'][0]['execution_id']}"))["result"] == deep


@proves("W3", "E11")
async def test_a_letter_of_a_failure_that_was_handled_is_shown_with_its_run_and_step(api: Caller) -> None:
    worker = await api.world.worker()
    steps = {"a": {"function": "f"}, "fix": {"function": "f", "depends_on": ["a"], "when": "failure", "handles": True}}
    run = await start_run(api, worker, steps)
    await run_steps(api.world, worker, run, {"a": BROKEN})
    failed = (await api.get(f"/v1/runs/{run}"))["steps"][0]["execution_id"]
    letter = await api.get(f"/v1/dead-letters/{failed}")
    assert (letter["state"], letter["run_id"], letter["step"]) == ("handled", str(run), "a")
    for state in ("handled", "all"):
        assert [item["step"] for item in (await api.get("/v1/dead-letters", state=state))["items"]] == ["a"]
    assert (await api.get("/v1/dead-letters"))["items"] == []


@proves("W8", "P2")
async def test_a_rerun_by_api_is_a_new_run_with_the_results_of_the_other_steps(api: Caller) -> None:
    worker = await api.world.worker()
    run = await blocked_run(api, worker)
    refused = await post(api, f"/v1/runs/{run}/rerun", {}, 409)
    assert "/retry" in refused["detail"]
    await post(api, f"/v1/runs/{run}/give-up", {}, 200)
    dry = await post(api, f"/v1/runs/{run}/rerun", {"dry_run": True}, 200)
    assert (dry["run_id"], dry["rerun_of"], dry["runs_again"]) == (str(run), str(run), ["b", "c"])
    done = await post(api, f"/v1/runs/{run}/rerun", {"reason": "fixed"}, 201, **{"idempotency-key": "k"})
    assert done == await post(api, f"/v1/runs/{run}/rerun", {"reason": "fixed"}, 201, **{"idempotency-key": "k"})
    assert (done["action"], done["state"], done["rerun_of"]) == ("rerun", "PENDING", str(run))
    waiting = await api.get(f"/v1/runs/{done['run_id']}")
    assert (waiting["state"], waiting["rerun_of"], waiting["origin"]) == ("PENDING", str(run), "run")
    assert [(one["name"], one["state"]) for one in waiting["steps"]] == [
        ("a", "SUCCEEDED"),
        ("b", "WAITING"),
        ("c", "WAITING"),
    ]
    new = await begin_run(api, worker)
    assert str(new) == done["run_id"]
    assert await run_steps(api.world, worker, new) == [["b"], ["c"]]
    shown = await api.get(f"/v1/runs/{new}")
    assert (shown["state"], shown["repairs"][0]["action"]) == ("SUCCEEDED", "rerun")
    assert (shown["steps"][0]["reason"], shown["steps"][0]["generation"]) == ("taken over", 0)
    assert (await api.get(f"/v1/runs/{run}"))["state"] == "FAILED"


@proves("W8", "E8")
async def test_a_rerun_that_waits_can_be_cancelled_by_api(api: Caller) -> None:
    worker = await api.world.worker()
    run = await blocked_run(api, worker)
    await post(api, f"/v1/runs/{run}/give-up", {}, 200)
    new = (await post(api, f"/v1/runs/{run}/rerun", {}, 201))["run_id"]
    assert (await post(api, f"/v1/runs/{new}/cancel", {}, 202))["state"] == "CANCELLED"
    assert await worker.lease() == []


@proves("W8")
@pytest.mark.parametrize("action", ["retry", "rerun"])
async def test_a_version_is_same_or_latest(api: Caller, action: str) -> None:
    run = await blocked_run(api, await api.world.worker())
    answer = await post(api, f"/v1/runs/{run}/{action}", {"version": "newest"}, 422)
    assert "latest" in str(answer)
    await post(api, f"/v1/runs/{run}/{action}", {"payload": 1}, 422)
