"""`/runs/{id}`: a run of a workflow with its graph, its timeline or its table of steps (W9).

This module only reads, and reads the table only where it is shown; the graph and the timeline come from `run_picture`.
The page's buttons use the API. `mark` changes only if more than the time has changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from ondot.flow.explain import explain_execution
from ondot.flow.history.gone import find_why_unknown
from ondot.model.ids import ExecutionId, TenantNo
from ondot.model.workflow.spec import Approve, WorkflowTarget
from ondot.store.database import Database
from ondot.store.executions import get_execution
from ondot.store.run_reads import (
    RepairRow,
    RunRow,
    StepExecution,
    find_step_executions,
    get_run,
    list_repairs,
    list_runs,
)
from ondot.store.run_views import (
    MapCounts,
    RunExecution,
    ThinStep,
    list_maps,
    list_run_executions,
    list_steps_in_need,
    list_thin_steps,
)
from ondot.ui.execution import Text, format_payload
from ondot.ui.run_picture import CHILDREN_SHOWN, find_spec, newest_children, workflow_of
from ondot.ui.run_states import STATES, by_id, kind_of, shown_state, words_of
from ondot.words.job import ORIGINS, one_line, took, zone_of_job

VIEWS: Final = {"graph": "Graph", "gantt": "Timeline", "table": "Table"}
ROWS_SHOWN: Final = 100
NEED_SHOWN: Final = 5
REPAIRS_SHOWN: Final = 10
LONGEST_NAME: Final = 200
LONGEST_CAUSE: Final = 300
DATE: Final = datetime(2000, 1, 1, tzinfo=UTC)
ENDED: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "SKIPPED"})


@dataclass(frozen=True, slots=True)
class Query:
    """`page`: of the table, from 1."""

    view: str = "graph"
    state: str = ""
    q: str = ""
    page: int = 1

    def address(self, run_id: UUID, **changes: object) -> str:
        fields = {"view": self.view, "state": self.state, "q": self.q, "page": self.page} | changes
        shown = {name: str(value) for name, value in fields.items() if value and (name, value) not in _PLAIN}
        return f"/runs/{run_id}" + (f"?{urlencode(shown)}" if shown else "")


_PLAIN: Final = {("view", "graph"), ("page", 1)}


@dataclass(frozen=True, slots=True)
class Row:
    """A step in the table."""

    number: int
    name: str
    kind: str
    state: str
    words: str
    reason: str | None
    generation: int
    attempts: int
    released_at: datetime | None
    queued: str | None
    ran: str | None
    items: MapCounts | None
    execution_id: UUID | None
    child: UUID | None


@dataclass(frozen=True, slots=True)
class Need:
    """A step that waits for a person: it failed, or it asks for an approval."""

    number: int
    name: str
    state: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class RunView:
    now: datetime
    id: UUID
    job_id: UUID
    name: str
    version: int
    zone: str | None
    state: str
    verdict: str | None
    reason: str | None
    is_paused: bool
    origin: str
    fire_at: datetime
    started_at: datetime | None
    blocked_at: datetime | None
    ended_at: datetime | None
    took: str | None
    counts: tuple[tuple[str, int], ...]
    """Of its steps by state, without `finally` ones."""
    total: int
    finals: int
    superseded: int
    parent: UUID | None
    parent_step_no: int | None
    rerun_of: UUID | None
    summary: str
    payload: Text
    needs: tuple[Need, ...]
    repairs: tuple[RepairRow, ...]
    query: Query
    rows: tuple[Row, ...]
    found: int

    @property
    def is_live(self) -> bool:
        return self.state not in ENDED

    @property
    def done(self) -> int:
        return sum(count for state, count in self.counts if state in {"SUCCEEDED", "SKIPPED"})

    @property
    def bar(self) -> list[tuple[str, float, float]]:
        """State, start and width of each part of a bar that is 1,000 wide."""
        parts, start = [], 0.0
        for state, count in self.counts:
            width = 1000 * count / max(self.total, 1)
            parts.append((state, round(start, 1), round(width, 1)))
            start += width
        return parts

    @property
    def has_failed(self) -> bool:
        return any(need.state == "FAILED" for need in self.needs)

    @property
    def failed(self) -> int:
        return dict(self.counts).get("FAILED", 0)

    @property
    def pages(self) -> int:
        return max(-(-self.found // ROWS_SHOWN), 1)

    @property
    def views(self) -> list[tuple[str, str, str]]:
        """Name, words and address of each view."""
        return [(name, words, Query(view=name).address(self.id)) for name, words in VIEWS.items()]

    @property
    def mark(self) -> str:
        return sha256(repr(replace(self, now=DATE)).encode()).hexdigest()[:12]


def parse_query(parameters: Mapping[str, str]) -> Query:
    """Values that cannot be parsed are ignored: a click should find steps, not fail."""
    view, state, page = parameters.get("view", ""), parameters.get("state", "").upper(), parameters.get("page", "")
    return Query(
        view=view if view in VIEWS else "graph",
        state=state if state in STATES else "",
        q=parameters.get("q", "").replace("\0", "").strip()[:LONGEST_NAME],
        page=int(page) if page.isascii() and page.isdigit() and 0 < int(page[:6]) < 10**6 else 1,
    )


async def read_run(database: Database, tenant_no: TenantNo, run_id: UUID, query: Query) -> RunView:
    """Raises NotFound."""
    now = database.clock.now()
    steps: list[ThinStep] = []
    executions: list[RunExecution] = []
    children: list[RunRow] = []
    needing: list[ThinStep] = []
    causes: dict[ExecutionId, StepExecution] = {}
    repairs: list[RepairRow] = []
    maps: dict[int, MapCounts] = {}
    async with database.reading(tenant_no) as connection:
        row = await get_execution(connection, tenant_no, ExecutionId(run_id))
        run = await get_run(connection, tenant_no, run_id)
        if row is None:
            raise await find_why_unknown(database, tenant_no, "run", run_id)
        job_id, version = (row.job_id, row.job_version) if run is None else (run.job_id, run.job_version)
        spec = await find_spec(database, connection, job_id, version)
        target = workflow_of(spec, f"run {run_id}")
        if run is not None:
            needing = await list_steps_in_need(connection, tenant_no, run_id, _approvals(target), NEED_SHOWN)
            causes = await find_step_executions(
                connection, tenant_no, [step.execution_id for step in needing if step.execution_id]
            )
            repairs = await list_repairs(connection, tenant_no, run_id, REPAIRS_SHOWN)
            if query.view == "table":
                steps = await list_thin_steps(connection, tenant_no, run_id)
                executions = await list_run_executions(connection, tenant_no, run, now)
                maps = await list_maps(connection, tenant_no, run_id)
                children = await list_runs(connection, tenant_no, limit=CHILDREN_SHOWN, parent_run_id=run_id)
    assert spec is not None
    explanation = await explain_execution(database, tenant_no, ExecutionId(run_id))
    names = list(target.steps)
    finals = [name for name, step in target.steps.items() if step.is_final]
    rows: tuple[Row, ...] = ()
    found = 0
    if query.view == "table":
        rows, found = _table(target, steps, executions, maps, newest_children(children), query)
    started_at = run.started_at if run else row.started_at
    return RunView(
        now=now,
        id=run_id,
        job_id=job_id,
        name=spec.name,
        version=version,
        zone=zone_of_job(spec),
        state=row.state.value if run is None or run.ended_at else run.state.value,
        verdict=run.verdict if run else None,
        reason=(run.reason if run else None) or row.reason,
        is_paused=bool(run and run.is_paused),
        origin=ORIGINS.get(row.origin, row.origin),
        fire_at=row.fire_at,
        started_at=started_at,
        blocked_at=run.blocked_at if run else None,
        ended_at=row.ended_at,
        took=took((row.ended_at - started_at).total_seconds()) if row.ended_at and started_at else None,
        counts=_counts(run),
        total=len(names) - len(finals),
        finals=len(finals),
        superseded=run.superseded if run else 0,
        parent=run.parent_run_id if run else None,
        parent_step_no=run.parent_step_no if run else None,
        rerun_of=run.rerun_of if run else None,
        summary=explanation.summary,
        payload=format_payload(row, spec),
        needs=tuple(
            Need(
                step.step_no,
                names[step.step_no],
                "APPROVAL" if step.state == "RELEASED" else step.state,
                step.reason or _cause(causes.get(step.execution_id) if step.execution_id else None),
            )
            for step in needing
        ),
        repairs=tuple(repairs),
        query=query,
        rows=rows,
        found=found,
    )


def _cause(execution: StepExecution | None) -> str | None:
    message = None if execution is None or execution.error is None else execution.error.get("message")
    return one_line(str(message))[:LONGEST_CAUSE] if message else None


def _approvals(target: WorkflowTarget) -> list[int]:
    return [number for number, step in enumerate(target.steps.values()) if isinstance(step.target, Approve)]


def _counts(run: RunRow | None) -> tuple[tuple[str, int], ...]:
    if run is None:
        return ()
    counted = {
        "SUCCEEDED": run.succeeded,
        "SKIPPED": run.skipped,
        "FAILED": run.failed,
        "BLOCKED": run.blocked,
        "RUNNING": run.active,
        "WAITING": run.waiting,
    }
    return tuple((state, count) for state, count in counted.items() if count)


def _table(
    target: WorkflowTarget,
    steps: Sequence[ThinStep],
    executions: Sequence[RunExecution],
    maps: Mapping[int, MapCounts],
    children: Mapping[int, UUID],
    query: Query,
) -> tuple[tuple[Row, ...], int]:
    """The rows of the query's page, and how many match in all."""
    known, by_number = by_id(executions), {step.step_no: step for step in steps}
    part = query.q.casefold()
    matching: list[tuple[int, str]] = []
    for number, (name, spec) in enumerate(target.steps.items()):
        if part in name.casefold():
            state = shown_state(spec, by_number.get(number), known)
            if query.state in {"", state}:
                matching.append((number, state))
    specs = list(target.steps.items())
    shown = matching[(query.page - 1) * ROWS_SHOWN : query.page * ROWS_SHOWN]
    rows = []
    for number, state in shown:
        (name, spec), step = specs[number], by_number.get(number)
        execution = known.get(step.execution_id) if step and step.execution_id else None
        started_at = execution.started_at if execution else None
        rows.append(
            Row(
                number=number,
                name=name,
                kind=f"map of {kind_of(spec)}" if spec.map else kind_of(spec),
                state=state,
                words=words_of(state),
                reason=step.reason if step else None,
                generation=step.generation if step else 0,
                attempts=execution.attempt_no if execution else 0,
                released_at=step.released_at if step else None,
                queued=_between(step.released_at if step else None, started_at),
                ran=_between(started_at, step.ended_at if step else None),
                items=maps.get(number),
                execution_id=execution.id if execution else None,
                child=children.get(number),
            )
        )
    return tuple(rows), len(matching)


def _between(from_at: datetime | None, to_at: datetime | None) -> str | None:
    return None if from_at is None or to_at is None else took((to_at - from_at).total_seconds())
