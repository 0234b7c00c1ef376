"""Steps and items that end FAILED without an attempt (W3, W7): their payload cannot be made, too many of their items
failed, nobody approved them, or their workflow cannot be started.

A step leaves a record in history and a dead letter; an item a record alone, because its step has the letter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ondot.flow.workflows.run_pass import RunPass
from ondot.model.completion import encode_error
from ondot.model.ids import ExecutionId
from ondot.model.outcome import AttemptError
from ondot.model.target import AttemptTarget
from ondot.model.workflow.spec import StepSpec
from ondot.model.workflow.states import StepState
from ondot.store.steps import Rejected, reject_steps
from ondot.telemetry.log import get_logger

log = get_logger()

Code = Literal["unresolved", "items_failed", "not_started", "not_approved", "wait_timeout"]
_REASONS: dict[Code, str] = {
    "unresolved": "its payload cannot be made",
    "items_failed": "too many of its items failed",
    "not_started": "its workflow cannot be started",
    "not_approved": "it was not approved",
    "wait_timeout": "the event did not arrive in time",
}


@dataclass(frozen=True, slots=True)
class Rejection:
    step_no: int
    message: str
    code: Code = "unresolved"


async def fail_steps(work: RunPass, rejections: Sequence[Rejection]) -> None:
    """End loaded steps FAILED, each with a sentence."""
    entries = []
    for rejection, id_ in zip(rejections, work.database.clock.new_ids(len(rejections)), strict=True):
        no = rejection.step_no
        row = work.progress.rows[no]
        if row.execution_id is None or row.state is not StepState.RELEASED or has_executions(work.graph.steps[no]):
            row.execution_id = id_
            work.released.add(no)
        work.progress.end(no, StepState.FAILED, rejection.message)
        entries.append(await _entry(work, no, ExecutionId(row.execution_id), rejection.message, rejection.code))
        log.warning("step.rejected", run_id=str(work.run.id), step=work.graph.names[no], error=rejection.message)
    await reject_steps(work.connection, work.run, entries)


async def fail_items(
    work: RunPass, no: int, items: Mapping[ExecutionId, tuple[int, str]], code: Code = "unresolved"
) -> None:
    """Record items that end before they have an execution."""
    entries = [await _entry(work, no, id_, message, code, item_no) for id_, (item_no, message) in items.items()]
    await reject_steps(work.connection, work.run, entries)


def has_executions(step: StepSpec) -> bool:
    """Whether the id of the step's generation is that of an execution, and not only a token."""
    return step.map is None and isinstance(step.target, AttemptTarget)


async def _entry(
    work: RunPass, no: int, id_: ExecutionId, message: str, code: Code, item_no: int | None = None
) -> Rejected:
    pools = await work.database.pools.register(work.connection, {work.spec.pool})
    error = encode_error(AttemptError(code, message))
    return Rejected(id_, no, pools[work.spec.pool], work.run.priority_class, error, _REASONS[code], item_no)
