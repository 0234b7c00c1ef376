"""`/v1/report` (O10): what went wrong in a window, by job and cause, each with the call that repairs it; and
`/v1/jobs/{id}/misses` (O11): when a job did not meet what is expected of it."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from ondot.api.dependencies import RequestServices, SharedView, Tenant, needs
from ondot.api.parameters import JobPath, Limit, only_known_parameters
from ondot.api.routes.jobs import load_job
from ondot.flow.report.make import make_report
from ondot.model.access import Right
from ondot.model.expect import Which
from ondot.model.ids import JobId
from ondot.model.report.findings import Finding, Kind, Repair, Report
from ondot.model.report.window import parse_window
from ondot.store.expect import list_misses

router = APIRouter(tags=["report"], dependencies=[Depends(only_known_parameters)])


class RepairCall(BaseModel):
    """What repairs a finding. Without a `path` only the command does it."""

    label: str
    command: str = Field(description="For a terminal.")
    method: str | None
    path: str | None
    body: dict[str, Any] | None
    right: str = Field(description="The right that the call needs.")


class FindingOut(BaseModel):
    """Trouble of one job with one cause."""

    kind: Kind
    job_id: UUID | None = Field(description="Of failed jobs that run once: an example.")
    job_name: str | None
    reason: str
    count: int = Field(description="Executions, fires or attempts.")
    is_least: bool = Field(description="There may be more than `count`.")
    is_open: bool = Field(description="A person should act.")
    repaired: int = Field(description="How many of them were replayed, discarded, backfilled, or succeeded later.")
    is_repaired: bool
    first_at: datetime | None
    last_at: datetime
    execution_id: UUID | None = Field(description="The latest of them, as an example.")
    run_id: UUID | None
    pool: str | None
    repair: list[RepairCall]
    facts: dict[str, Any] = Field(description="Further facts of the kind.")


class RanOut(BaseModel):
    """Executions created in the window that have ended, without steps of runs."""

    ended: int = Field(description="Without skipped ones.")
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    from_at: datetime | None = Field(description="Those created before were not counted; null: all were.")


class ReportOut(BaseModel):
    since: datetime
    until: datetime
    zone: str
    now: datetime
    summary: str = Field(description="In a sentence or two, for people.")
    open: int = Field(description="Findings that need a person.")
    ran: RanOut
    findings: list[FindingOut] = Field(description="By job and cause, the worst first; repaired ones last.")
    limits: list[str] = Field(description="What was not looked at, in words; empty: everything was.")


@router.get("/report", dependencies=[needs(Right.JOBS_READ)], response_model=ReportOut)
async def get_report(
    services: RequestServices,
    tenant_no: Tenant,
    view: SharedView,
    since: Annotated[
        str,
        Query(
            max_length=64,
            description="A duration such as `24h`, `yesterday` or `today` (midnight in `zone`), or an instant.",
        ),
    ] = "24h",
    until: Annotated[str | None, Query(max_length=64, description="The same forms; by default, now.")] = None,
    zone: Annotated[str | None, Query(max_length=64, description="An IANA time zone; by default, UTC.")] = None,
) -> ReportOut:
    """What went wrong: missed, failed, late, retried, skipped, held back, lost, blocked and slower, each with its job,
    its reason and the call that repairs it."""
    window = parse_window(since, until, zone, services.database.clock.now())
    return _out(await make_report(services.database, tenant_no, window, is_whole=view.is_whole))


class MissOut(BaseModel):
    """One time that a job did not meet what is expected of it."""

    id: UUID
    which: Which
    fire_at: datetime | None = Field(description="The latest fire that missed it; null for `success_every`.")
    due_at: datetime
    seen_at: datetime
    cleared_at: datetime | None = Field(description="When it came good, or the forecast was withdrawn; null: open.")
    predicted: bool = Field(description="It was a forecast, and did not happen or has not happened yet.")
    count: int = Field(description="Fires that missed it until it came good.")
    reason: str
    execution_id: UUID | None


class MissList(BaseModel):
    items: list[MissOut]


@router.get("/jobs/{id}/misses", dependencies=[needs(Right.JOBS_READ, by_pool=True)], response_model=MissList)
async def job_misses(services: RequestServices, tenant_no: Tenant, id_: JobPath, limit: Limit = 50) -> MissList:
    """When a job did not meet what its `expect` says, latest first. Kept for 90 days."""
    row = await load_job(services, tenant_no, JobId(id_))
    async with services.database.reading(tenant_no) as connection:
        rows = await list_misses(connection, tenant_no, row.id, limit)
    return MissList(items=[MissOut(**{name: getattr(one, name) for name in MissOut.model_fields}) for one in rows])


def _out(report: Report) -> ReportOut:
    return ReportOut(
        since=report.window.since,
        until=report.window.until,
        zone=report.window.zone,
        now=report.now,
        summary=report.summary,
        open=report.open,
        ran=RanOut(**{name: getattr(report.ran, name) for name in RanOut.model_fields}),
        findings=[_finding(finding) for finding in report.findings],
        limits=list(report.limits),
    )


def _finding(finding: Finding) -> FindingOut:
    fields = {name: getattr(finding, name) for name in FindingOut.model_fields if name not in {"repair", "facts"}}
    return FindingOut(**fields, repair=[_repair(one) for one in finding.repair], facts=dict(finding.facts))


def _repair(repair: Repair) -> RepairCall:
    return RepairCall(
        label=repair.label,
        command=repair.command,
        method=repair.method,
        path=repair.path,
        body=None if repair.body is None else dict(repair.body),
        right=repair.right,
    )
