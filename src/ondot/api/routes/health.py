"""`/livez`, `/readyz` and `/metrics`: for monitoring.

Readiness depends on the oldest due fire that is not served yet (L7), not on "the process is up": alive but not
scheduling is the classic outage.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from ondot import __version__
from ondot.api.dependencies import RequestServices, Services
from ondot.model.access import Right
from ondot.model.errors import OndotError, Unavailable
from ondot.model.held_back import HeldBack
from ondot.model.lineage import held_error
from ondot.model.liveness import is_stalled
from ondot.model.tenant import TENANTS_SHOWN, Tenant, TenantState
from ondot.model.workflow.states import RunState
from ondot.store.arrivals import count_arrivals
from ondot.store.check import list_found
from ondot.store.connection import Connection
from ondot.store.fleet import list_workers, read_nodes
from ondot.store.lineage import read_lineage
from ondot.store.overview import Depth, count_dead_letters, count_jobs, read_held_back, read_queue_depth
from ondot.store.queue import oldest_due
from ondot.store.runs import count_runs
from ondot.store.specs import Specs
from ondot.store.usage import read_load
from ondot.telemetry.metrics import OTHER_POOLS, POOLS_SHOWN, REGISTRY

LIMITS_SHOWN: Final = 5
ARRIVALS_COUNTED: Final = 10_000

router = APIRouter(include_in_schema=False)


@router.get("/livez")
async def live() -> dict[str, str]:
    return {"status": "alive", "version": __version__}


@router.get("/readyz")
async def ready(request: Request, services: RequestServices, response: Response) -> dict[str, object]:
    try:
        async with services.database.connection() as connection:
            due = await oldest_due(connection)
            lineage = await read_lineage(connection)
            held_back = await read_held_back(connection, services.database.specs, None, lines=LIMITS_SHOWN)
    except Unavailable as error:
        response.status_code = 503
        response.headers["Retry-After"] = "5"
        return {"status": "unavailable", "why": error.message}
    if lineage is not None and lineage.why_not is not None:
        response.status_code = 503
        response.headers["Retry-After"] = "60"
        return {"status": "held", "why": held_error(lineage.why_not).message}
    limit_s = due.limit_s(services.database.settings.ready_lag_s)
    has_names = await _may_read_names(services, request)
    limited = _held_back_out(held_back, with_lines=has_names)
    if due.lag_s <= limit_s:
        return {"status": "ready", "lag_s": round(due.lag_s, 3), **limited}
    response.status_code = 503
    response.headers["Retry-After"] = "5"
    is_unplanned = (due.unplanned_s or 0.0) >= (due.waiting_s or 0.0)
    if is_unplanned:
        why = (
            "a fire is due and not planned. Check that a scheduler runs (`ondot scheduler`) and is alive"
            " (`ondot fleet`)."
        )
    elif has_names:
        why = (
            f"a due execution waits in pool {due.pool!r}. Check that the pool has a worker with free slots"
            f" (`ondot worker --pool {due.pool}`)."
        )
    else:
        why = "a due execution waits. Check that its pool has a worker with free slots (`ondot fleet`)."
    return {"status": "late", "lag_s": round(due.lag_s, 3), "limit_s": limit_s, "why": why, **limited}


async def _may_read_names(services: Services, request: Request) -> bool:
    """Everyone may call `/readyz` and gets numbers. Names of jobs and pools are for callers who may read all of them:
    an owner, the account that runs ondot without keys, and, as long as there is one tenant, each of its readers."""
    try:
        caller = await services.auth.caller(request)
        if caller.pools is not None or not caller.may(Right.JOBS_READ):
            return False
        return caller.may(Right.FLEET_MANAGE) or not await services.database.tenants.are_several()
    except OndotError:
        return False


def _held_back_out(held: HeldBack, *, with_lines: bool) -> dict[str, object]:
    """Executions that wait for limits. They are shown, but ondot is still ready: the jobs set these limits.

    `with_lines`: also the longest lines, with the names of jobs and keys.
    """
    counts: dict[str, object] = {"held_back": held.count, "held_back_s": round(held.oldest_s, 3)}
    if with_lines:
        counts["limits"] = [
            {"job": line.job_name, "job_id": str(line.job_id), "limit": line.limit, "count": line.count}
            for line in held.lines
        ]
    return counts


@router.get("/metrics")
async def metrics(request: Request, services: RequestServices) -> Response:
    """The counters of this process, and gauges of all processes, read from the database."""
    if services.database.settings.metrics_auth == "on":
        (await services.auth.caller(request)).require(Right.FLEET_MANAGE)
    registry = CollectorRegistry()
    up = Gauge("ondot_database_up", "Whether the database answered", registry=registry)
    try:
        async with services.database.connection() as connection:
            for add_gauges in FROM_THE_DATABASE:
                await add_gauges(connection, registry)
            if shown := services.database.settings.shown_tenants:
                await services.database.tenants.refresh(connection)
                await _add_tenants(connection, registry, _pick(services.database.tenants.known.values(), shown))
        up.set(1)
    except Unavailable:
        up.set(0)
    return Response(generate_latest(REGISTRY) + generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


async def _add_queues(connection: Connection, registry: CollectorRegistry) -> None:
    depth = Gauge(
        "ondot_queue_depth",
        "Due executions waiting for a worker (counted up to 10,000)",
        ["pool", "class"],
        registry=registry,
    )
    age = Gauge("ondot_queue_oldest_seconds", "Wait of the oldest due execution", ["pool", "class"], registry=registry)
    oldest_s: dict[tuple[str, str], float] = {}
    lag = Gauge("ondot_lag_seconds", "Age of the oldest due fire that is not served", registry=registry)
    waiting = await read_queue_depth(connection)
    shown = _longest_waiting(waiting)
    for entry in waiting:
        labels = (entry.pool if entry.pool in shown else OTHER_POOLS, entry.priority_class.name.lower())
        depth.labels(*labels).inc(entry.count)
        oldest_s[labels] = max(oldest_s.get(labels, 0.0), entry.oldest_s)
    for labels, wait_s in oldest_s.items():
        age.labels(*labels).set(wait_s)
    lag.set((await oldest_due(connection)).lag_s)


def _longest_waiting(waiting: Sequence[Depth]) -> frozenset[str]:
    """The pools with a series of their own: those whose work has waited longest."""
    oldest_s: dict[str, float] = {}
    for entry in waiting:
        oldest_s[entry.pool] = max(oldest_s.get(entry.pool, 0.0), entry.oldest_s)
    return frozenset(sorted(oldest_s, key=oldest_s.__getitem__, reverse=True)[:POOLS_SHOWN])


def _pick(tenants: Iterable[Tenant], shown: frozenset[str]) -> list[Tenant]:
    """Those with series of their own, oldest first."""
    alive = [
        tenant
        for tenant in tenants
        if tenant.state is not TenantState.DELETED and ("*" in shown or tenant.name in shown)
    ]
    return sorted(alive, key=lambda tenant: (tenant.name not in shown, tenant.tenant_no))[:TENANTS_SHOWN]


async def _add_tenants(connection: Connection, registry: CollectorRegistry, tenants: Sequence[Tenant]) -> None:
    slots = Gauge("ondot_tenant_slots", "Slots that a tenant holds", ["tenant"], registry=registry)
    waiting = Gauge(
        "ondot_tenant_waiting",
        "Due executions of a tenant waiting for a worker (counted up to 10,000 for each pool and class)",
        ["tenant"],
        registry=registry,
    )
    load = await read_load(connection, [tenant.tenant_no for tenant in tenants])
    for tenant in tenants:
        of_slots, of_waiting = load[tenant.tenant_no]
        slots.labels(tenant.name).set(of_slots)
        waiting.labels(tenant.name).set(of_waiting)


async def _add_held_back(connection: Connection, registry: CollectorRegistry) -> None:
    held = Gauge(
        "ondot_held_back",
        "Due executions held back by a limit of their job or key (counted up to 10,000)",
        ["limit"],
        registry=registry,
    )
    age = Gauge("ondot_held_back_oldest_seconds", "Wait of the oldest execution held back", registry=registry)
    found = await read_held_back(connection, Specs(), None, lines=0)
    for kind in ("concurrency", "rate", "overlap", "order"):
        held.labels(kind).set((found.by_kind or {}).get(kind, 0))
    age.set(found.oldest_s)


async def _add_workers(connection: Connection, registry: CollectorRegistry) -> None:
    workers = Gauge("ondot_workers", "Workers by state", ["state"], registry=registry)
    slots = Gauge("ondot_slots", "Slots of live workers", ["use"], registry=registry)
    rows = await list_workers(connection)
    alive = [row for row in rows if row.state == "ALIVE"]
    stalled = [row for row in rows if is_stalled(row.state, row.stalled_at)]
    for state in ("ALIVE", "DRAINING", "LOST"):
        workers.labels(state.lower()).set(sum(row.state == state and row not in stalled for row in rows))
    workers.labels("stalled").set(len(stalled))
    slots.labels("all").set(sum(row.slots for row in alive))
    slots.labels("running").set(sum(row.running for row in alive))


async def _add_nodes(connection: Connection, registry: CollectorRegistry) -> None:
    live = Gauge("ondot_scheduler_nodes", "Live scheduler nodes", registry=registry)
    stalled = Gauge(
        "ondot_scheduler_nodes_stalled",
        "Scheduler nodes whose loop is stalled, or was when their lease ended within the hour",
        registry=registry,
    )
    owned = Gauge("ondot_partitions_owned", "Partitions that a live node owns", registry=registry)
    unowned = Gauge("ondot_partitions_unowned", "Partitions without a live owner", registry=registry)
    nodes = await read_nodes(connection)
    live.set(sum(row.is_alive for row in nodes.rows))
    stalled.set(sum(row.stalled_at is not None for row in nodes.rows))
    owned.set(nodes.partitions - len(nodes.unowned))
    unowned.set(len(nodes.unowned))


async def _add_jobs(connection: Connection, registry: CollectorRegistry) -> None:
    jobs = Gauge("ondot_jobs", "Recurring jobs by state", ["state"], registry=registry)
    dead_letters = Gauge("ondot_dead_letters", "Failed executions that wait for a person", registry=registry)
    active, paused = await count_jobs(connection)
    jobs.labels("active").set(active)
    jobs.labels("paused").set(paused)
    dead_letters.set(await count_dead_letters(connection))


async def _add_runs(connection: Connection, registry: CollectorRegistry) -> None:
    runs = Gauge("ondot_runs", "Runs of workflows that have not ended, by state", ["state"], registry=registry)
    waiting = Gauge(
        "ondot_arrivals_waiting",
        "Ends of steps that their runs have not seen (counted up to 10,000)",
        registry=registry,
    )
    oldest = Gauge("ondot_arrivals_oldest_seconds", "Wait of the oldest end of a step", registry=registry)
    found = await count_runs(connection)
    for state in (RunState.PENDING, RunState.RUNNING, RunState.BLOCKED, RunState.ENDING):
        runs.labels(state.lower()).set(found.get(state, 0))
    count, oldest_s = await count_arrivals(connection, ARRIVALS_COUNTED)
    waiting.set(count)
    oldest.set(oldest_s)


async def _add_lineage(connection: Connection, registry: CollectorRegistry) -> None:
    is_held = Gauge(
        "ondot_held", "Whether everything is held because the database may have lost commits", registry=registry
    )
    lineage = await read_lineage(connection)
    is_held.set(lineage is not None and lineage.why_not is not None)


async def _add_found(connection: Connection, registry: CollectorRegistry) -> None:
    found = Gauge("ondot_found", "Faults that the self-check found, over all processes", ["kind"], registry=registry)
    for entry in await list_found(connection):
        found.labels(entry.kind).set(entry.count)


FROM_THE_DATABASE: Final[tuple[Callable[[Connection, CollectorRegistry], Awaitable[None]], ...]] = (
    _add_queues,
    _add_held_back,
    _add_workers,
    _add_nodes,
    _add_jobs,
    _add_runs,
    _add_lineage,
    _add_found,
)
"""Each reads a part of the state that all processes share, and adds its gauges."""
