"""`/v1/jobs/{id}/declared`, `/reset`, `/adopt`: what the code declares of a job, and the ways back to it (D4)."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from ondot.api.dependencies import ByCaller, CallerDep, RequestServices, Services, Tenant, needs
from ondot.api.job_rules import check_step_pools
from ondot.api.job_secrets import admit_secrets_of_one
from ondot.api.parameters import JobPath, only_known_parameters
from ondot.api.routes.jobs import load_job
from ondot.document.declared import read_document
from ondot.flow.change.change import update
from ondot.flow.declared_jobs import Declaration, adopt, read_declaration, undeclared
from ondot.flow.descriptor_sets import check_descriptor_sets
from ondot.model.access import Right
from ondot.model.app_release import MAX_APP
from ondot.model.ids import JobId, TenantNo
from ondot.model.job import JobSpec, keep_anchors, keep_hidden
from ondot.model.job_access import check_jobs, limit_reach
from ondot.store.declared import set_declared_version
from ondot.store.jobs import JobRow

router = APIRouter(tags=["jobs"], dependencies=[Depends(only_known_parameters)])


class DeclaredField(BaseModel):
    """A field of a job: labels, expectations, steps, and members of `retry` and `schedule` count one by one."""

    field: str = Field(description="For example `timeout`, `retry.max_retries`, `labels.team`, `schedule.rule`.")
    code: Any = Field(description="What the code declares.")
    by_hand: Any = Field(description="What an operator changed it to. null: it is as declared, if `differs` is false.")
    in_force: Any
    differs: bool


class RefusedOut(BaseModel):
    """A declaration of the same key that was not applied."""

    app: str
    release: str
    why: str
    refused_at: datetime


class DeclaredOut(BaseModel):
    """What the code of an app declares of a job, beside what is in force."""

    job_id: UUID
    name: str
    key: str
    app: str = Field(description="The job belongs to this app.")
    release: str = Field(description="The release that last changed its declaration.")
    declared_at: datetime
    in_words: str
    dropped_release: str | None = Field(description="The first release that no longer declares it. null: it does.")
    dropped_at: datetime | None
    renamed_to: list[str] = Field(description="Keys with the same schedule that this release declares instead.")
    fields: list[DeclaredField] = Field(description="Those that differ first; without those at their defaults.")
    refused: list[RefusedOut] = Field(description="Other apps that declare the same key.")


class ResetOut(BaseModel):
    """The fields that a reset changes, or would."""

    job_id: UUID
    version: int
    changed: list[str]
    dry_run: bool


@router.get("/jobs/{id}/declared", dependencies=[needs(Right.JOBS_READ, by_pool=True)], response_model=DeclaredOut)
async def get_declared(services: RequestServices, tenant_no: Tenant, id_: JobPath) -> DeclaredOut:
    """What the code declares of a job, what was changed by hand, and what is in force, by field. 404 if no app declares
    the job."""
    job = await load_job(services, tenant_no, JobId(id_))
    return _declared_out(job, await _load(services, tenant_no, job))


@router.post("/jobs/{id}/reset", dependencies=[needs(Right.JOBS_WRITE, by_pool=True)], response_model=ResetOut)
async def reset_job(
    services: RequestServices,
    caller: CallerDep,
    id_: JobPath,
    by: ByCaller,
    dry_run: Annotated[bool, Query(description="Only list what would change.")] = False,
) -> ResetOut:
    """Go back to what the code declares: a new version without what was changed by hand. A pause stays."""
    tenant_no = caller.tenant_no
    job = await load_job(services, tenant_no, JobId(id_))
    declaration = await _load(services, tenant_no, job)
    changed = [difference.field for difference in declaration.differs]
    if dry_run:
        return ResetOut(job_id=job.id, version=job.version, changed=changed, dry_run=True)

    async def compute(stored: JobRow, now: datetime) -> JobSpec:
        spec = read_document(declaration.row.document, now)
        spec = keep_anchors(keep_hidden(spec, stored.spec), stored.spec)
        check_jobs(caller, [spec])
        await check_step_pools(services, caller, [spec])
        await check_descriptor_sets([spec])
        [spec] = limit_reach(caller, [spec])
        services.quotas.check_version(tenant_no, spec)
        return await admit_secrets_of_one(services, caller, spec)

    row = declaration.row
    why = f"Reset to what {row.app} declares, release {row.release}{f': {by.reason}' if by.reason else '.'}"
    updated = await update(
        services.database,
        services.dispatcher,
        tenant_no,
        job.id,
        compute,
        only_if_changed=True,
        by=by.because(why),
    )
    async with services.database.connection() as connection:
        await set_declared_version(connection, tenant_no, job.id, updated.version)
    return ResetOut(job_id=job.id, version=updated.version, changed=changed, dry_run=False)


@router.post("/jobs/{id}/adopt", dependencies=[needs(Right.JOBS_WRITE, by_pool=True)], response_model=DeclaredOut)
async def adopt_job(
    services: RequestServices,
    tenant_no: Tenant,
    id_: JobPath,
    by: ByCaller,
    app: Annotated[str, Query(max_length=MAX_APP, description="The app that declares the job from now on.")],
) -> DeclaredOut:
    """Hand a job over to another app: its workers' declarations of the key count from now on."""
    job = await load_job(services, tenant_no, JobId(id_))
    await adopt(services.database, tenant_no, job.id, app, by=by)
    return _declared_out(job, await _load(services, tenant_no, job))


async def _load(services: Services, tenant_no: TenantNo, job: JobRow) -> Declaration:
    async with services.database.reading(tenant_no) as connection:
        declaration = await read_declaration(connection, tenant_no, job)
    if declaration is None:
        raise undeclared(job.id)
    return declaration


def _declared_out(job: JobRow, declaration: Declaration) -> DeclaredOut:
    row = declaration.row
    return DeclaredOut(
        job_id=job.id,
        name=job.spec.name,
        key=row.key,
        app=row.app,
        release=row.release,
        declared_at=row.declared_at,
        in_words=declaration.in_words,
        dropped_release=row.dropped_release,
        dropped_at=row.dropped_at,
        renamed_to=list(declaration.renamed_to),
        fields=[
            DeclaredField(
                field=one.field,
                code=one.code,
                by_hand=one.in_force if differs else None,
                in_force=one.in_force,
                differs=differs,
            )
            for differs, found in ((True, declaration.differs), (False, declaration.same))
            for one in found
        ],
        refused=[
            RefusedOut(app=one.app, release=one.release, why=one.why, refused_at=one.refused_at)
            for one in declaration.refused
        ],
    )
