"""`/jobs/{id}/runs`: the latest runs of a workflow beside each other, a row for each step (W9).

Runs may be of several versions: a row is a name, and a cell is empty where a run's version has no such step. A page
shows 50 steps of 30 runs, so that a workflow of 10,000 steps costs no more than one of 50.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from ondot.model.errors import NotFound
from ondot.model.ids import JobId, TenantNo
from ondot.model.workflow.graph import Graph, compile_graph
from ondot.model.workflow.spec import WorkflowTarget
from ondot.store.database import Database
from ondot.store.jobs import get_job
from ondot.store.run_reads import RunRow, list_runs
from ondot.store.run_views import Cell as CellRow
from ondot.store.run_views import list_cells
from ondot.words.job import took, zone_of_job

RUNS_SHOWN: Final = 30
MOST_DIGITS: Final = 6
STEPS_SHOWN: Final = 50
WORDS: Final = {"RELEASED": "running or queued"}


@dataclass(frozen=True, slots=True)
class Column:
    id: UUID
    state: str
    version: int
    started_at: datetime | None
    took: str | None


@dataclass(frozen=True, slots=True)
class Cell:
    """`number`: of the step in its run. None in `MatrixRow.cells`: the version of the run has no such step."""

    run_id: UUID
    number: int
    state: str
    words: str


@dataclass(frozen=True, slots=True)
class MatrixRow:
    name: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True, slots=True)
class MatrixView:
    now: datetime
    job_id: UUID
    name: str
    zone: str | None
    columns: tuple[Column, ...]
    rows: tuple[MatrixRow, ...]
    first: int
    """The first step of the page, from 0."""
    total: int
    older: str | None
    cursor: UUID | None

    @property
    def last(self) -> int:
        return min(self.first + STEPS_SHOWN, self.total)

    def address(self, first: int) -> str:
        before = f"&cursor={self.cursor}" if self.cursor else ""
        return f"/jobs/{self.job_id}/runs?first={first}{before}"


async def read_matrix(
    database: Database, tenant_no: TenantNo, job_id: JobId, parameters: Mapping[str, str]
) -> MatrixView:
    """Raises NotFound."""
    cursor = _uuid(parameters.get("cursor", ""))
    async with database.reading(tenant_no) as connection:
        job = await get_job(connection, tenant_no, job_id)
        if job is None or not isinstance(job.spec.target, WorkflowTarget):
            raise NotFound(f"There is no workflow {job_id}.")
        runs = await list_runs(connection, tenant_no, limit=RUNS_SHOWN + 1, job_id=job_id, before=cursor)
        page = runs[:RUNS_SHOWN]
        specs = await database.specs.find(connection, {(row.job_id, row.job_version) for row in page})
        graphs = {
            version: compile_graph(spec.target)
            for (_, version), spec in specs.items()
            if isinstance(spec.target, WorkflowTarget)
        }
        current = compile_graph(job.spec.target)
        names = [current.names[number] for number in current.order]
        first = _first(parameters.get("first", ""), len(names))
        shown = names[first : first + STEPS_SHOWN]
        numbers = {graph.numbers[name] for graph in graphs.values() for name in shown if name in graph.numbers}
        cells = await list_cells(connection, tenant_no, [row.id for row in page], sorted(numbers))
    states: dict[tuple[UUID, int], CellRow] = {(cell.run_id, cell.step_no): cell for cell in cells}
    return MatrixView(
        now=database.clock.now(),
        job_id=job_id,
        name=job.spec.name,
        zone=zone_of_job(job.spec),
        columns=tuple(_column(row) for row in page),
        rows=tuple(
            MatrixRow(name, tuple(_cell(row, graphs.get(row.job_version), name, states) for row in page))
            for name in shown
        ),
        first=first,
        total=len(names),
        older=f"/jobs/{job_id}/runs?cursor={page[-1].id}&first={first}" if len(runs) > RUNS_SHOWN else None,
        cursor=cursor,
    )


def _cell(row: RunRow, graph: Graph | None, name: str, states: Mapping[tuple[UUID, int], CellRow]) -> Cell | None:
    number = None if graph is None else graph.numbers.get(name)
    if number is None:
        return None
    found = states.get((row.id, number))
    state = "WAITING" if found is None else found.state
    words = WORDS.get(state, state.lower())
    return Cell(row.id, number, state, f"{words}: {found.reason}" if found and found.reason else words)


def _column(row: RunRow) -> Column:
    ran_s = (row.ended_at - row.started_at).total_seconds() if row.ended_at and row.started_at else None
    return Column(row.id, row.state.value, row.job_version, row.started_at, None if ran_s is None else took(ran_s))


def _first(text: str, count: int) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else 0
    return number // STEPS_SHOWN * STEPS_SHOWN if number < count else 0


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
