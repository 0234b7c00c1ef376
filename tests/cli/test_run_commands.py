"""`ondot run` and `ondot workflow runs`, against the API as served (W3, W8)."""

import asyncio
import json
from typing import Any
from uuid import UUID

from ondot.kms import generate_key
from ondot.model.ids import ExecutionId
from ondot.model.workflow.spec import Approve
from tests.cli.running import Ran, ondot
from tests.flow.test_maps import over, run_all
from tests.flow.test_repair import blocked, resume
from tests.flow.workflows import run_state, run_steps, start, step, step_states
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World, failed


async def ask(page: Served, *words: object) -> Ran:
    return await asyncio.to_thread(ondot, *map(str, words), url=page.url)


async def answer(page: Served, *words: object) -> dict[str, Any]:
    ran = await ask(page, *words, "-o", "json")
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(ran.out)
    assert isinstance(document, dict)
    return document


@proves("W3", "W8", "O5")
async def test_a_blocked_run_is_drawn_as_a_tree_and_retried(world: World) -> None:
    worker = await world.worker()
    run = await blocked(world, worker)
    async with served(world.database) as page:
        shown = await ask(page, "run", "get", run)
        assert "BLOCKED" in shown.out
        assert "step b failed" in shown.out
        assert f"ondot run retry {run}" in shown.out
        lines = shown.out.splitlines()
        assert any("FAILED b" in line for line in lines)
        assert any("BLOCKED c" in line and "parent b failed" in line for line in lines)
        watched = await ask(page, "run", "get", run, "-w")
        assert watched.code == 1, "a run that waits for a person has not succeeded"
        dry = await ask(page, "run", "retry", run, "--dry-run")
        assert "Would run again, if its rule says so: b, c" in dry.out
        done = await ask(page, "run", "retry", run, "--reason", "fixed")
        assert (done.code, done.out.splitlines()) == (
            0,
            ["Runs again, if its rule says so: b, c", f"The run {run} is PENDING."],
        )
        again = await ask(page, "run", "retry", run)
        assert again.code == 4
        await resume(world, worker, run)
        await run_steps(world, worker, run)
        assert (await ask(page, "run", "get", run, "-w")).code == 0
        listed = await answer(page, "run", "list", "--state", "succeeded")
        assert [item["id"] for item in listed["items"]] == [str(run)]
        of_workflow = await ask(page, "workflow", "runs", listed["items"][0]["job_id"])
        assert "SUCCEEDED" in of_workflow.out
        step = await ask(page, "run", "step", run, "b")
        assert "GENERATION" in step.out


@proves("W8", "O5")
async def test_steps_are_skipped_and_given_results_and_runs_given_up_by_command(world: World) -> None:
    worker = await world.worker()
    run = await blocked(world, worker)
    async with served(world.database) as page:
        wrong = await ask(page, "run", "skip", run, "bb")
        assert (wrong.code, "did you mean 'b'?" in wrong.err) == (2, True)
        done = await answer(page, "run", "result", run, "b", '{"n": 1}')
        assert done["set_by_hand"] == {"b": "SUCCEEDED"}
        await resume(world, worker, run)
        assert "is RUNNING" in (await ask(page, "run", "pause", run)).out
        await ask(page, "run", "resume", run)
        assert (await ask(page, "run", "give-up", run)).code == 4
        assert (await ask(page, "run", "cancel", run, "--reason", "wrong day")).code == 0
        assert await run_state(world, run) == "CANCELLED"


@proves("W8", "O5")
async def test_waiting_for_a_run_that_is_blocked_ends_with_1_and_names_the_step(world: World) -> None:
    worker = await world.worker()
    run = await blocked(world, worker)
    async with served(world.database) as page:
        waited = await ask(page, "execution", "get", run, "-w")
        assert waited.code == 1
        assert "step b failed" in waited.out, waited.out


@proves("W7", "W8", "O5")
async def test_a_mapped_step_that_failed_shows_which_items_failed_and_why(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"load": step(map=over(list(range(6)))), "end": step("load")})
    await run_all(world, worker, run, lambda _name, item, _: failed(retryable=False) if item in {1, 4} else None)
    async with served(world.database) as page:
        tree = await ask(page, "run", "get", run)
        line = " ".join(tree.out.split("FAILED load")[1].split("BLOCKED end")[0].split())
        assert "4 of 6 items, 2 failed" in line
        assert line.count("2 of 6 items of step 'load' failed") == 1, "once, not as its reason and as its error"
        why = await answer(page, "workflow", "explain", run)
        assert f"`ondot run step {run} load`" in why["reasons"][0]["what_to_do"]
        shown = await ask(page, "run", "step", run, "load")
        assert [row.split()[0] for row in shown.out.split("ITEM")[1].splitlines() if row[:1].isdigit()] == ["1", "4"]
        assert "it broke" in shown.out
        document = await answer(page, "run", "step", run, "load")
        assert document["map"] == {
            "total": 6,
            "waiting": 0,
            "running": 0,
            "succeeded": 4,
            "failed": 2,
            "concurrency": None,
        }


@proves("W8", "O5")
async def test_a_step_that_waits_for_a_person_is_decided_by_command(world: World) -> None:
    worker = await world.worker()
    world.database.settings = world.database.settings.model_copy(
        update={"secret_key": generate_key(), "public_url": "https://ondot.example.com"}
    )
    run = await start(world, worker, {"ok": step(target=Approve()), "go": step("ok"), "no": step(target=Approve())})
    async with served(world.database) as page:
        early = await ask(page, "run", "approve", run, "go")
        assert early.code != 0
        made = await ask(page, "run", "link", run, "ok", "--expires-in", "2h")
        assert made.out.startswith("https://ondot.example.com/approvals/")
        done = await ask(page, "run", "approve", run, "ok", "--reason", "checked")
        assert (done.code, done.out) == (0, "Step ok is approved.\n")
        again = await ask(page, "run", "reject", run, "ok")
        assert (again.code, "is decided" in again.err) == (4, True)
        rejected = await answer(page, "run", "reject", run, "no")
        assert rejected == {"run_id": str(run), "step": "no", "approved": False}
    assert await step_states(world, run) == {"ok": "SUCCEEDED", "go": "RELEASED", "no": "FAILED"}


@proves("W8")
async def test_an_ended_run_is_run_again_as_a_new_one(world: World) -> None:
    worker = await world.worker()
    run = await blocked(world, worker)
    async with served(world.database) as page:
        early = await ask(page, "run", "rerun", run)
        assert early.code == 4
        assert f"ondot run retry {run}" in early.err
        await ask(page, "run", "give-up", run)
        assert f"ondot run rerun {run}" in (await ask(page, "run", "get", run)).out
        dry = await ask(page, "run", "rerun", run, "--dry-run", "--version", "latest")
        assert dry.out.splitlines() == [
            "Would run again, if its rule says so: b, c",
            f"The run {run} stays as it is; a new run would be PENDING.",
        ]
        assert (await ask(page, "run", "rerun", run, "b", "--from", "a")).code == 2
        new = (await answer(page, "run", "rerun", run, "--reason", "fixed"))["run_id"]
        await resume(world, worker, ExecutionId(UUID(new)))
        assert await run_steps(world, worker, ExecutionId(UUID(new))) == [["b"], ["c"]]
        shown = await ask(page, "run", "get", new, "-w")
        assert shown.code == 0
        assert str(run) in shown.out
