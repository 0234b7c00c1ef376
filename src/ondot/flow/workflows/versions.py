"""Runs that go on by the latest version of their workflow (W8): whether it fits, and the change to it.

A retry keeps the run's id, and its rows name steps by number: the latest version may only add steps after those that
the run has. A rerun makes new rows, by name, and has no such limit.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ondot.flow.work import Work
from ondot.flow.workflows.run_pass import RunPass, open_pass
from ondot.model.errors import Conflict
from ondot.model.job import JobSpec, JobState
from ondot.model.workflow.graph import Graph, compile_graph
from ondot.model.workflow.progress import StepRow
from ondot.model.workflow.rerun import VersionFaults, find_again, find_version_faults
from ondot.model.workflow.spec import WorkflowTarget
from ondot.model.workflow.states import MOVING, StepState
from ondot.store.jobs import JobRow, get_job, share_jobs
from ondot.store.reruns import add_steps, set_run_version
from ondot.store.runs import RunRow

NAMED = 10


async def take_latest(
    work: Work, run_pass: RunPass, rows: dict[int, StepRow], start: Sequence[int], *, dry_run: bool
) -> tuple[RunPass, set[int]]:
    """Let the run go on by the latest version, and add rows for its new steps; returns a pass by it, and the steps that
    run again. Raises Conflict if it does not fit."""
    run, old = run_pass.run, run_pass.graph
    await share_jobs(work.connection, [run.job_id])
    job = await get_job(work.connection, work.tenant_no, run.job_id)
    if job is None or job.state is JobState.DELETED:
        raise Conflict(f"The workflow {run.job_id} is deleted, so there is no latest version of it.")
    if job.version == run.job_version:
        return run_pass, find_again(old, old, start)
    new = latest_graph(job)
    if new.names[: len(old.names)] != old.names:
        raise Conflict(
            f"Version {job.version} has removed or moved steps that the run {run.id} has. Retry it by its own version,"
            f" or end it (`ondot run cancel {run.id}`) and make a new one: `ondot run rerun {run.id} --version latest`."
        )
    again = find_again(old, new, start)
    open_ = [no for no, row in rows.items() if row.state in MOVING and no not in again and not old.steps[no].is_final]
    refuse_version(find_version_faults(old, new, start, open_), job.version)
    added = range(len(old.names), len(new.names))
    rows |= {no: StepRow(no) for no in added}
    if dry_run:
        run.job_version = job.version
        return replace(run_pass, graph=new), again
    await set_run_version(work.connection, work.tenant_no, run.id, job.version)
    await add_steps(work.connection, work.tenant_no, run.id, added)
    run.job_version = job.version
    count_steps(run, new, rows)
    changed = await open_pass(work.database, work.connection, run, run_pass.objects)
    assert changed is not None, "the latest version is a workflow"
    return changed, again


def latest_graph(job: JobRow) -> Graph:
    if not isinstance(job.spec.target, WorkflowTarget):
        raise Conflict(f"The latest version of the job {job.id} is no workflow.")
    return compile_graph(job.spec.target)


async def find_spec(work: Work, run: RunRow, version: int) -> JobSpec | None:
    """A version of a run's workflow; None: it is gone, or is no workflow."""
    key = (run.job_id, version)
    spec = (await work.database.specs.find(work.connection, [key])).get(key)
    return spec if spec is not None and isinstance(spec.target, WorkflowTarget) else None


def graph_of(spec: JobSpec) -> Graph:
    assert isinstance(spec.target, WorkflowTarget)
    return compile_graph(spec.target)


def refuse_version(faults: VersionFaults, version: int) -> None:
    """Raises Conflict that names the steps for which the version does not fit."""
    if not faults:
        return
    sentences = []
    if faults.differ:
        sentences.append(f"{name_steps(faults.differ)} differ in version {version}, and would not run again.")
    if faults.added:
        sentences.append(f"{name_steps(faults.added)} are new in version {version}, and below no step that runs again.")
    if faults.removed:
        sentences.append(f"{name_steps(faults.removed)} are not in version {version}, and have outcomes.")
    raise Conflict(
        " ".join([*sentences, 'Name steps above them in "from", or leave `version` out.']),
        steps=[*faults.differ, *faults.added, *faults.removed][:NAMED],
    )


def name_steps(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    quoted = ", ".join(f"'{name}'" for name in names[:NAMED])
    return f"Steps {quoted}{more}"


def count_steps(run: RunRow, graph: Graph, rows: Mapping[int, StepRow]) -> None:
    """The counts of a run, from all its steps."""
    counts = Counter(rows[no].state for no, step in enumerate(graph.steps) if not step.is_final)
    run.waiting, run.active = counts[StepState.WAITING], counts[StepState.RELEASED]
    run.succeeded, run.skipped = counts[StepState.SUCCEEDED], counts[StepState.SKIPPED]
    run.failed, run.blocked = counts[StepState.FAILED] + counts[StepState.CANCELLED], counts[StepState.BLOCKED]
