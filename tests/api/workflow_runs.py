"""Runs of workflows that were created through the API."""

from typing import Any

from ondot.flow.workflows.begin import begin
from ondot.model.ids import ExecutionId
from tests.api.conftest import Caller
from tests.flow.workflows import run_steps
from tests.world import Worker, failed

CHAIN = {
    "a": {"function": "f"},
    "b": {"function": "f", "depends_on": ["a"]},
    "c": {"function": "f", "depends_on": ["b"]},
}
BROKEN = failed(retryable=False)


async def begin_run(api: Caller, worker: Worker) -> ExecutionId:
    """Lease the run that waits, and begin it."""
    [assignment] = await worker.lease(1)
    assert await begin(api.world.database, api.world.dispatcher, worker.id, assignment.leased) is True
    worker.completer.release(assignment.lease_id)
    return assignment.leased.id


async def start_run(api: Caller, worker: Worker, steps: dict[str, Any] = CHAIN, **fields: Any) -> ExecutionId:
    """Create a workflow that runs once, and begin its run."""
    await api.create({"name": "flow", "target": {"workflow": {"steps": steps}}, **fields})
    return await begin_run(api, worker)


async def blocked_run(api: Caller, worker: Worker, **fields: Any) -> ExecutionId:
    """A run of a chain whose second step has failed."""
    run = await start_run(api, worker, **fields)
    await run_steps(api.world, worker, run, {"b": BROKEN})
    return run
