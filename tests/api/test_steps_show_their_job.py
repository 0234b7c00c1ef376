"""A step's execution has its run as `job_id` in the tables. Users see the workflow's job, on every surface (W1)."""

import re
from typing import Any
from uuid import uuid4

from ondot.model.ids import ExecutionId
from ondot.model.retry import Retry
from tests.api.conftest import Caller
from tests.flow.workflows import run_steps, start, step
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World, failed

STEPS = {
    "good": step(),
    "bad": step(retry=Retry(max_retries=0)),
    "again": step(retry=Retry(max_retries=3)),
    "below": step("bad"),
    "running": step(),
}


async def a_run(world: World) -> tuple[ExecutionId, list[str]]:
    """A run with steps in every state; returns it, and the executions of its steps."""
    worker = await world.worker()
    run = await start(world, worker, STEPS, labels={"team": "blue"})
    reports = {"bad": failed("broken", retryable=False), "again": failed("for now")}
    for assignment in await worker.lease():
        assert assignment.step is not None
        if assignment.step.step != "running":
            await worker.complete(assignment, reports.get(assignment.step.step))
    await run_steps(world, worker, run)
    live = await world.fetch("SELECT id FROM ondot.execution WHERE origin = 'step'")
    ended = await world.fetch("SELECT id FROM ondot.history WHERE origin = 'step'")
    assert len(live) == 2
    assert len(ended) == 2
    return run, [str(row["id"]) for row in (*live, *ended)]


def jobs_in(value: Any) -> set[str]:
    """Every value of a field that names a job."""
    if isinstance(value, list):
        return {found for each in value for found in jobs_in(each)}
    if not isinstance(value, dict):
        return set()
    own = {str(value[name]) for name in ("job_id", "job") if name in value}
    return own.union(*map(jobs_in, value.values()))


@proves("W1", "O3")
async def test_no_answer_names_the_run_as_a_job(api: Caller) -> None:
    run, steps = await a_run(api.world)
    [job] = (await api.get("/v1/jobs"))["items"]
    paths = [
        *("/v1/executions", "/v1/executions?origin=step", f"/v1/executions?run={run}", "/v1/dead-letters"),
        *("/v1/audit", "/v1/events", "/v1/runs", "/readyz"),
        *(
            f"/v1/runs/{run}",
            f"/v1/runs/{run}/steps",
            f"/v1/executions/{run}/explain",
            f"/v1/jobs/{job['id']}/executions",
        ),
        *(f"/v1/runs/{run}/steps/{name}{rest}" for name in STEPS for rest in ("", "/explain")),
        *(f"/v1/jobs/{job['id']}/explain", f"/v1/jobs/{job['id']}/status", f"/v1/workflows/{job['id']}/runs"),
        *(f"/v1/executions/{id_}{rest}" for id_ in steps for rest in ("", "/explain")),
    ]
    seen = set()
    for path in paths:
        answer = await api.http.get(path)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        found = jobs_in(answer.json())
        assert str(run) not in found, path
        seen |= found
    metrics = (await api.http.get("/metrics")).text
    assert str(run) not in metrics
    for rest in ("", "/executions", "/status", "/explain"):
        assert (await api.http.get(f"/v1/jobs/{run}{rest}")).status_code == 404, rest
    for rest in ("/run", "/pause", "/resume"):
        assert (await api.http.post(f"/v1/jobs/{run}{rest}")).status_code == 404, rest
    assert (await api.http.delete(f"/v1/jobs/{run}")).status_code == 404
    assert job["id"] in seen


@proves("W1", "W9")
async def test_no_page_links_to_the_run_as_a_job(world: World) -> None:
    run, steps = await a_run(world)
    async with served(world.database) as page:
        paths = [
            *("/", "/executions", "/executions?steps=true", "/executions?steps=1", "/dead-letters", "/fleet", "/jobs"),
            *(f"/runs/{run}", f"/runs/{run}?view=table", f"/runs/{run}/steps/0", f"/runs/{run}/steps/1"),
            *(f"/executions/{id_}" for id_ in steps),
        ]
        for path in paths:
            answer = await page.client.get(path)
            assert answer.status_code == 200, path
            assert f"/jobs/{run}" not in answer.text, path
            assert not re.search(rf"job {run}", answer.text), path
        assert (await page.client.get(f"/jobs/{run}")).status_code == 404
        assert (await page.client.get(f"/jobs/{uuid4()}")).status_code == 404
