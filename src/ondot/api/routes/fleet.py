"""`/v1/nodes` and `/v1/workers`: the processes that plan and run, what each owns, and its last heartbeat (C1, E1)."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from ondot.api.dependencies import RequestServices, Services, SharedView, View, needs
from ondot.api.parameters import Cursor, Limit, only_known_parameters, parse_cursor
from ondot.model.access import Caller, Right
from ondot.model.ids import TenantNo
from ondot.model.tenant import TenantState
from ondot.store.fleet import NodeRow, WorkerRow, WorkerState, list_workers, read_nodes

router = APIRouter(tags=["fleet"], dependencies=[Depends(only_known_parameters)])


class PartitionOut(BaseModel):
    """A slice of the jobs. Its owner plans their fires."""

    partition: int
    epoch: int = Field(description="Grows with each owner.")
    owned_since: datetime | None


class NodeOut(BaseModel):
    """A scheduler process."""

    id: UUID
    state: Literal["ALIVE", "EXPIRED"] = Field(
        description="EXPIRED: its lease is over, and it did not sign off. Listed for an hour."
    )
    host: str
    pid: int
    release: str
    started_at: datetime
    beat_at: datetime = Field(description="When it last renewed its lease.")
    expires_at: datetime = Field(description="When its lease ends if it does not renew it.")
    stalled_at: datetime | None = Field(
        description="Since when its loop is stalled: it sends no heartbeat, and other processes take over its work."
        " Null: not stalled."
    )
    stalled_in: str | None = Field(description="The line of code in which its loop is stalled.")
    silent_s: float = Field(description="Seconds since its last heartbeat.")
    coordination: str = Field(description="Where it holds its lease: `postgres` or `etcd`.")
    away_since: datetime | None = Field(
        description="Since when it runs but cannot renew its lease there: it plans nothing. Null: it can, or is gone."
    )
    away_why: str | None = Field(description="Why it cannot.")
    partitions: list[PartitionOut] = Field(
        description="The partitions that it owns. EXPIRED: those that no other node has taken over yet; they are also"
        " in `unowned`."
    )


class NodeList(BaseModel):
    """Scheduler nodes, oldest first, partitions without an owner, and whether everything is held."""

    partitions: int = Field(description="How many there are.")
    unowned: list[int] = Field(description="Partitions without a live owner: the fires of their jobs are not planned.")
    held_at: datetime | None = Field(
        description="Since when no fire is planned and nothing starts: the database may have lost commits that it"
        " acknowledged, and an operator must check it. Null: nothing is held."
    )
    held_why: str | None
    items: list[NodeOut]


class WorkerOut(BaseModel):
    """A worker process, from its start to its end. A worker that was lost and returns has a new id."""

    id: UUID
    state: WorkerState = Field(
        description="DRAINING: it is about to end, and leases nothing more. LOST: it sent no heartbeat, and its work"
        " went back to the queue. GONE: it has ended. LOST and GONE are listed for ten minutes."
    )
    host: str
    pid: int
    release: str = Field(description="Of ondot.")
    app: str | None = Field(description="The app whose functions it runs. null: it has none.")
    app_release: str | None = Field(description="The release of that app.")
    pools: list[str]
    tenants: list[str] | None = Field(
        description="The tenants whose work it runs, as far as the caller knows them. null: all, or there is one."
    )
    slots: int = Field(description="Attempts that it can run at once.")
    running: int | None = Field(
        description="Attempts that it runs, as of its last heartbeat; null if there are other tenants, whose"
        " work you do not see."
    )
    started_at: datetime
    beat_at: datetime
    silent_s: float = Field(description="Seconds since its last heartbeat; if it has ended, from there to its end.")
    ended_at: datetime | None
    stalled_at: datetime | None = Field(
        description="Since when its loop is stalled: it sends no heartbeat, and other processes take over its work."
        " Null: not stalled."
    )
    stalled_in: str | None = Field(description="The line of code in which its loop is stalled.")
    trusts: list[str] | None = Field(
        description="The transports through which wake-ups reach it for certain. While those of all its pools are among"
        " them, it asks PostgreSQL each 15 s if it has nothing to do, else each second. null: its release does not"
        " report it."
    )


class WorkerList(BaseModel):
    heartbeat_s: float = Field(description="A worker that sends no heartbeat for longer is marked lost.")
    items: list[WorkerOut]
    next_cursor: str | None


@router.get("/nodes", dependencies=[needs(Right.JOBS_READ)], response_model=NodeList)
async def list_scheduler_nodes(services: RequestServices, view: SharedView) -> NodeList:
    """Scheduler nodes with the partitions that they own: live ones, and those that expired. For owners, if there are
    several tenants."""
    if not view.is_whole:
        view.caller.require(Right.FLEET_MANAGE)
    async with services.database.connection() as connection:
        nodes = await read_nodes(connection)
    return NodeList(
        partitions=nodes.partitions,
        unowned=list(nodes.unowned),
        held_at=nodes.held_at,
        held_why=nodes.held_why,
        items=[_node_out(row, nodes.now) for row in nodes.rows],
    )


@router.get("/workers", dependencies=[needs(Right.JOBS_READ)], response_model=WorkerList)
async def list_all_workers(
    services: RequestServices,
    view: SharedView,
    state: Annotated[WorkerState | None, Query(description="Only workers in this state.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> WorkerList:
    """Workers, newest first, as of their last heartbeats."""
    async with services.database.connection() as connection:
        before = parse_cursor(cursor)
        rows = await list_workers(
            connection, state=state, before=before, limit=limit + 1, tenant_no=view.caller.tenant_no
        )
    known = await _known_tenants(services, view.caller)
    shown = [row for row in rows[:limit] if any(view.shows(pool) for pool in row.pools)]
    return WorkerList(
        heartbeat_s=services.database.settings.heartbeat_s,
        items=[_worker_out(row, known, view) for row in shown],
        next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None,
    )


def _node_out(row: NodeRow, now: datetime) -> NodeOut:
    return NodeOut(
        id=row.id,
        state="ALIVE" if row.is_alive else "EXPIRED",
        host=row.host,
        pid=row.pid,
        release=row.release,
        started_at=row.started_at,
        beat_at=row.beat_at,
        expires_at=row.expires_at,
        stalled_at=row.stalled_at,
        stalled_in=row.stalled_in,
        silent_s=max((now - row.beat_at).total_seconds(), 0.0),
        coordination=row.coordination,
        away_since=row.away_since if row.is_away(now) else None,
        away_why=row.away_why if row.is_away(now) else None,
        partitions=[
            PartitionOut(partition=owned.no, epoch=owned.epoch, owned_since=owned.owned_since)
            for owned in row.partitions
        ],
    )


async def _known_tenants(services: Services, caller: Caller) -> dict[TenantNo, str]:
    """By number, those that a caller may know: an owner all, others their own. Empty if there is only one."""
    tenants = await services.database.tenants.snapshot()
    live = {no: tenant.name for no, tenant in tenants.items() if tenant.state is not TenantState.DELETED}
    if len(live) < 2:
        return {}
    return live if caller.is_owner else {no: name for no, name in live.items() if no == caller.tenant_no}


def _worker_out(row: WorkerRow, known: Mapping[TenantNo, str], view: View) -> WorkerOut:
    return WorkerOut(
        id=row.id,
        state=row.state,
        host=row.host,
        pid=row.pid,
        release=row.release,
        app=row.app,
        app_release=row.app_release,
        pools=[pool for pool in row.pools if view.shows(pool)],
        tenants=None
        if row.tenant_nos is None or not known
        else sorted(known[TenantNo(no)] for no in row.tenant_nos if no in known),
        slots=row.slots,
        running=row.running if view.is_whole else None,
        started_at=row.started_at,
        beat_at=row.beat_at,
        silent_s=row.silent_s,
        ended_at=row.ended_at,
        stalled_at=row.stalled_at,
        stalled_in=row.stalled_in,
        trusts=None if row.trusts is None else list(row.trusts),
    )
