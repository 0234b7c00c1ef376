"""`/v1/functions`: the functions that workers have registered, with their options and arguments (D1)."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, Field

from ondot.api.dependencies import RequestServices, Tenant, needs
from ondot.api.parameters import Limit, only_known_parameters
from ondot.flow.known_functions import FunctionView, read_function
from ondot.model.access import Right
from ondot.model.app_release import MAX_APP
from ondot.model.execution import State
from ondot.model.text import MAX_NAME
from ondot.store.known_functions import list_functions

router = APIRouter(tags=["functions"], dependencies=[Depends(only_known_parameters)])

FunctionPath = Annotated[
    str, Path(max_length=MAX_NAME, description="The name of the function.", examples=["daily_report"])
]


class FunctionOut(BaseModel):
    """A function, as its release in force has it: the newest that a live worker runs, else the newest."""

    name: str
    description: str | None = Field(description="The first line of its docstring.")
    app: str
    release: str
    options: dict[str, Any] = Field(description="Defaults of its jobs, as fields of a job; keys may name arguments.")
    workers: int = Field(description="Live workers that run it, of all its releases. 0: its jobs wait.")
    releases: int = Field(description="How many releases are known.")
    registered_at: datetime = Field(description="When a worker first registered this release.")
    seen_at: datetime = Field(description="When a live worker last ran this release, to the hour.")


class ReleaseOut(BaseModel):
    app: str
    release: str
    workers: int
    description: str | None
    options: dict[str, Any]
    arguments: dict[str, Any] | None
    registered_at: datetime
    seen_at: datetime


class FunctionWorkerOut(BaseModel):
    id: UUID
    host: str
    pid: int
    pools: list[str]
    app: str
    release: str
    started_at: datetime


class FunctionRunOut(BaseModel):
    execution_id: UUID
    job_id: UUID
    job_name: str
    state: State
    fire_at: datetime
    ended_at: datetime | None


class FunctionDetail(FunctionOut):
    arguments: dict[str, Any] | None = Field(
        description="The JSON Schema of its arguments; null: they are checked by the worker alone."
    )
    known_releases: list[ReleaseOut] = Field(description="Its releases, the one in force first.")
    live_workers: list[FunctionWorkerOut] = Field(description="Workers that run it now, up to 100.")
    pools: list[str] = Field(description="The pools that these workers serve.")
    latest_executions: list[FunctionRunOut] = Field(description="The latest execution of each of its latest jobs.")


class FunctionList(BaseModel):
    items: list[FunctionOut]
    next_cursor: str | None


@router.get("/functions", dependencies=[needs(Right.JOBS_READ)], response_model=FunctionList)
async def list_all_functions(
    services: RequestServices,
    tenant_no: Tenant,
    q: Annotated[str | None, Query(max_length=MAX_NAME, description="A part of the name.")] = None,
    app: Annotated[str | None, Query(max_length=MAX_APP, description="Only functions of this app.")] = None,
    limit: Limit = 50,
    cursor: Annotated[str | None, Query(max_length=MAX_NAME, description="`next_cursor` of the page before.")] = None,
) -> FunctionList:
    """Functions that workers have registered, by name. One that no worker runs any more stays for 14 days."""
    async with services.database.reading(tenant_no) as connection:
        rows = await list_functions(connection, tenant_no, after=cursor or "", part=q, app=app, limit=limit + 1)
    return FunctionList(
        items=[FunctionOut.model_validate(row, from_attributes=True) for row in rows[:limit]],
        next_cursor=rows[limit - 1].name if len(rows) > limit else None,
    )


@router.get("/functions/{name:path}", dependencies=[needs(Right.JOBS_READ)], response_model=FunctionDetail)
async def get_one_function(services: RequestServices, tenant_no: Tenant, name: FunctionPath) -> FunctionDetail:
    """One function: its options, the schema of its arguments, its releases, its workers and its latest executions."""
    return function_out(await read_function(services.database, tenant_no, name))


def function_out(view: FunctionView) -> FunctionDetail:
    in_force = view.releases[0]
    return FunctionDetail(
        name=in_force.name,
        description=in_force.description,
        app=in_force.app,
        release=in_force.release,
        options=in_force.options,
        workers=sum(release.workers for release in view.releases),
        releases=len(view.releases),
        registered_at=in_force.registered_at,
        seen_at=in_force.seen_at,
        arguments=in_force.schema,
        known_releases=[
            ReleaseOut(
                app=release.app,
                release=release.release,
                workers=release.workers,
                description=release.description,
                options=release.options,
                arguments=release.schema,
                registered_at=release.registered_at,
                seen_at=release.seen_at,
            )
            for release in view.releases
        ],
        live_workers=[FunctionWorkerOut.model_validate(worker, from_attributes=True) for worker in view.workers],
        pools=sorted({pool for worker in view.workers for pool in worker.pools}),
        latest_executions=[
            FunctionRunOut(
                execution_id=run.execution_id,
                job_id=run.job_id,
                job_name=run.job_name,
                state=run.state,
                fire_at=run.fire_at,
                ended_at=run.ended_at,
            )
            for run in view.latest
        ],
    )
