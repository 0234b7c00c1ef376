"""A person decides a step that waits for approval (W8): by API, by page, or by a signed link.

The first decision counts. It ends the step's wait, as time does, and is in the audit log; the run is advanced after the
commit. A link is made by a caller that may decide the step, and acts in its name.
"""

from base64 import b64decode
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from ondot.flow.dispatch import Dispatcher
from ondot.flow.workflows.advance import advance_arrived
from ondot.flow.workflows.run_pass import open_pass
from ondot.model.access import Role
from ondot.model.errors import Conflict, Forbidden, NotFound
from ondot.model.ids import ExecutionId, TenantNo
from ondot.model.workflow.approval_link import ApprovalLink, derive_key, read_link, sign_link
from ondot.model.workflow.spec import Approve
from ondot.model.workflow.states import StepState
from ondot.ports.objects import Objects
from ondot.settings import Settings, split_keys
from ondot.store.audit import By, record
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.runs import read_run
from ondot.store.step_waits import WaitRow, end_wait, find_wait
from ondot.telemetry.log import get_logger

RANKS = (Role.VIEWER, Role.OPERATOR, Role.EDITOR, Role.ADMIN, Role.OWNER)

log = get_logger()


@dataclass(frozen=True, slots=True)
class Approval:
    """A step that waits for a person. `job_name`: of its workflow."""

    run_id: ExecutionId
    step: str
    job_name: str
    wait: WaitRow


async def find_approval(
    database: Database, connection: Connection, tenant_no: TenantNo, run_id: ExecutionId, step: str
) -> Approval:
    """Raises NotFound, or Conflict if the step does not wait for approval."""
    run = await read_run(connection, tenant_no, run_id)
    work = None if run is None else await open_pass(database, connection, run)
    if work is None:
        raise NotFound(f"There is no run {run_id}.")
    no = work.graph.numbers.get(step)
    if no is None:
        raise NotFound(f"The run {run_id} has no step '{step[:100]}'.")
    if not isinstance(work.graph.steps[no].target, Approve):
        raise Conflict(f"Step '{step}' does not wait for approval: it has no `approve`.")
    await work.load({no})
    row = work.progress.rows[no]
    wait = None
    if row.execution_id is not None:
        wait = await find_wait(connection, tenant_no, run_id, ExecutionId(row.execution_id))
    if wait is None:
        raise Conflict(f"Step '{step}' is {row.state}: it does not wait for approval yet.")
    if wait.ended_at is not None or row.state is not StepState.RELEASED:
        raise Conflict(f"Step '{step}' is decided: it is {row.state}.", state=row.state.value)
    return Approval(run_id, step, work.spec.name, wait)


async def decide_approval(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    run_id: ExecutionId,
    step: str,
    *,
    is_approved: bool,
    role: Role,
    by: By,
    token: ExecutionId | None = None,
    objects: Objects | None = None,
) -> None:
    """Approve or reject a step. `token`: only this generation of it."""
    async with database.transaction() as connection:
        approval = await find_approval(database, connection, tenant_no, run_id, step)
        wait = approval.wait
        if token is not None and wait.execution_id != token:
            raise Conflict(f"This link is for an earlier attempt of step '{step}', which was decided or retried.")
        _check_role(wait, role, step)
        word = "approved" if is_approved else "rejected"
        why = f"{word} by {by.actor}" + (f": {by.reason}" if by.reason else "")
        result = {"approved": is_approved, "by": by.actor, "reason": by.reason}
        ended = await end_wait(
            connection,
            tenant_no,
            run_id,
            wait.execution_id,
            "SUCCEEDED" if is_approved else "FAILED",
            reason=None if is_approved else why,
            result=msgspec.json.encode(result).decode(),
        )
        if not ended:
            raise Conflict(f"Step '{step}' was decided at the same moment.")
        await record(
            connection,
            tenant_no,
            by,
            "step.approve" if is_approved else "step.reject",
            run_id,
            {"name": approval.job_name, "step": step},
        )
    log.info("step.decided", run_id=str(run_id), step=step, approved=is_approved)
    await advance_arrived(database, dispatcher, [run_id], objects)


async def make_link(
    database: Database,
    tenant_no: TenantNo,
    run_id: ExecutionId,
    step: str,
    *,
    lasts_s: float,
    role: Role,
    by: By,
) -> tuple[str, datetime]:
    """The token of a link that decides a step, and when it ends."""
    keys = link_keys(database.settings)
    if not keys:
        raise Conflict(
            "Links for approvals are signed by a key that is derived from ONDOT_SECRET_KEY, which is not set: set it,"
            " and restart the API."
        )
    async with database.transaction() as connection:
        approval = await find_approval(database, connection, tenant_no, run_id, step)
        _check_role(approval.wait, role, step)
        ends_at = (database.clock.now() + timedelta(seconds=lasts_s)).replace(microsecond=0)
        detail = {"name": approval.job_name, "step": step, "expires_at": ends_at.isoformat()}
        await record(connection, tenant_no, by, "step.link", run_id, detail)
    link = ApprovalLink(tenant_no, run_id, step, approval.wait.execution_id, by.actor, int(ends_at.timestamp()))
    return sign_link(keys[0], link), ends_at


async def open_link(database: Database, text: str) -> tuple[ApprovalLink, Approval]:
    """What a link asks. Raises NotFound if it is none or has ended, Conflict if the step is decided."""
    link = read_link(link_keys(database.settings), text)
    now = database.clock.now()
    if link is None or datetime.fromtimestamp(link.expires_s, UTC) <= now:
        raise NotFound("This link is not valid, or has expired. Ask for a new one.")
    async with database.connection() as connection:
        approval = await find_approval(database, connection, link.tenant_no, ExecutionId(link.run_id), link.step)
    if approval.wait.execution_id != link.execution_id:
        raise Conflict(f"This link is for an earlier attempt of step '{link.step}', which was decided or retried.")
    return link, approval


def link_keys(settings: Settings) -> list[bytes]:
    """The first one signs, all of them verify."""
    return [derive_key(b64decode(key)) for key in split_keys(settings.secret_key)]


def _check_role(wait: WaitRow, role: Role, step: str) -> None:
    needed = Role(wait.role or Role.OPERATOR)
    if role not in RANKS or RANKS.index(role) < RANKS.index(needed):
        raise Forbidden(f"Step '{step}' waits for a person of the role {needed} or above; you have {role}.")
