"""Replay the dead letter of a step (W8, E10): it is a retry in the step's run, and no execution of its own.

The letter is locked, and a repair locks the run before its letters. So the run is taken only if no other transaction
has it: else two that wait for each other would end in a deadlock.
"""

from ondot.flow.work import Work
from ondot.flow.workflows.repair import Wanted, repair_in
from ondot.flow.workflows.results import NeedsObjects
from ondot.flow.workflows.run_pass import Effects
from ondot.model.errors import Conflict, NotFound
from ondot.model.ids import ExecutionId
from ondot.model.workflow.graph import compile_graph
from ondot.model.workflow.spec import WorkflowTarget
from ondot.store.audit import By
from ondot.store.dead_letters import LockedLetter
from ondot.store.runs import take_run


async def retry_letter(work: Work, letter: LockedLetter, payload: str | None, by: By) -> Effects | str:
    """Retry the step of a letter in its run, which resolves the letter; or why that is not possible."""
    run_id, step_no = letter.run_id, letter.step_no
    assert run_id is not None
    assert step_no is not None
    version = (letter.ended.job_id, letter.ended.job_version)
    spec = (await work.database.specs.find(work.connection, [version])).get(version)
    if spec is None or not isinstance(spec.target, WorkflowTarget):
        return f"Version {version[1]} of the workflow {version[0]} is gone: its run {run_id} cannot be repaired."
    if await take_run(work.connection, ExecutionId(run_id)) is None:
        return f"Its run {run_id} is being changed at this moment, or is gone: try again."
    wanted = Wanted("retry", (compile_graph(spec.target).names[step_no],), payload=payload)
    try:
        async with work.connection.transaction():
            _, effects = await repair_in(work, run_id, wanted, by, {})
    except (Conflict, NotFound) as refusal:
        return refusal.message
    except NeedsObjects:
        return f"Large results have to be read first: retry the run itself, POST /v1/runs/{run_id}/retry."
    return effects
