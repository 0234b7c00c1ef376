"""Metrics that all processes share, read from the database when they are asked for (O2): every API process shows the
same. Counts stop at a ceiling, and say so: `…_capped` is 1 where there is more than was counted."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import Metric

from ondot.model.alerts.kinds import KINDS
from ondot.model.errors import Unavailable
from ondot.model.liveness import is_stalled
from ondot.model.tenant import TENANTS_SHOWN, Tenant, TenantState
from ondot.model.workflow.states import RunState
from ondot.store.arrivals import count_arrivals
from ondot.store.check import list_found
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.fleet import list_workers, read_nodes
from ondot.store.incidents import count_incidents_by_kind
from ondot.store.lineage import read_lineage
from ondot.store.overview import Depth, count_dead_letters, count_jobs, read_held_back, read_queue_depth
from ondot.store.queue import oldest_due
from ondot.store.runs import count_runs
from ondot.store.sinks import Lag, list_all_sinks, measure_lags
from ondot.store.specs import Specs
from ondot.store.usage import read_load
from ondot.telemetry.metrics import OTHER_POOLS, POOLS_SHOWN

SINKS_SHOWN: Final = 100
"""The most sinks with series of their own: those that fail or are behind."""
SINK_ROWS_COUNTED: Final = 1_000
ARRIVALS_COUNTED: Final = 10_000
COUNTED: Final = 100_000
"""Due executions are counted this far, in each pool and class."""
WITHIN_S: Final = 5.0


async def read_shared_metrics(database: Database) -> CollectorRegistry:
    registry = CollectorRegistry()
    up = Gauge("ondot_database_up", "Whether the database answered", registry=registry)
    try:
        async with database.connection() as connection:
            for add_gauges in FROM_THE_DATABASE:
                await add_gauges(connection, registry)
            if shown := database.settings.shown_tenants:
                await database.tenants.refresh(connection)
                await _add_tenants(connection, registry, _pick(database.tenants.known.values(), shown))
        up.set(1)
    except Unavailable:
        up.set(0)
    return registry


def read_from_thread(database: Database, loop: asyncio.AbstractEventLoop) -> Iterable[Metric]:
    """The same from another thread. Nothing if the loop hangs: that they are missing is what a scraper should see."""
    reading = asyncio.run_coroutine_threadsafe(read_shared_metrics(database), loop)
    try:
        return list(reading.result(WITHIN_S).collect())
    except TimeoutError:
        reading.cancel()
        return ()


async def _add_queues(connection: Connection, registry: CollectorRegistry) -> None:
    depth = Gauge(
        "ondot_queue_depth",
        "Due executions waiting for a worker (counted up to 100,000)",
        ["pool", "class"],
        registry=registry,
    )
    capped = Gauge(
        "ondot_queue_depth_capped",
        "1 for each pool in which more executions wait than were counted",
        ["pool"],
        registry=registry,
    )
    age = Gauge("ondot_queue_oldest_seconds", "Wait of the oldest due execution", ["pool", "class"], registry=registry)
    oldest_s: dict[tuple[str, str], float] = {}
    lag = Gauge("ondot_lag_seconds", "Age of the oldest due fire that is not served", registry=registry)
    waiting = await read_queue_depth(connection, COUNTED)
    shown = _longest_waiting(waiting)
    for entry in waiting:
        labels = (entry.pool if entry.pool in shown else OTHER_POOLS, entry.priority_class.name.lower())
        depth.labels(*labels).inc(entry.count)
        if entry.count >= COUNTED:
            capped.labels(labels[0]).set(1)
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
        "Due executions held back by a limit of their job or key (counted up to 100,000)",
        ["limit"],
        registry=registry,
    )
    capped = Gauge(
        "ondot_held_back_capped", "Whether more executions are held back than were counted", registry=registry
    )
    age = Gauge("ondot_held_back_oldest_seconds", "Wait of the oldest execution held back", registry=registry)
    found = await read_held_back(connection, Specs(), None, lines=0, ceiling=COUNTED)
    capped.set(found.is_least)
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
    of_pool = Gauge("ondot_pool_slots", "Slots of live workers that serve a pool", ["pool"], registry=registry)
    by_pool = Gauge("ondot_pool_workers", "Live workers that serve a pool", ["pool"], registry=registry)
    pools = sorted({pool for row in alive for pool in row.pools})
    for row in alive:
        # A worker of several pools that are not shown counts once.
        for pool in {pool if pool in pools[:POOLS_SHOWN] else OTHER_POOLS for pool in row.pools}:
            of_pool.labels(pool).inc(row.slots)
            by_pool.labels(pool).inc()


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
    incidents = Gauge("ondot_incidents_open", "Open incidents by the kind of their alert", ["kind"], registry=registry)
    for kind in KINDS:
        incidents.labels(kind).set(0)
    for kind, _, count in await count_incidents_by_kind(connection):
        incidents.labels(kind).inc(count)


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


async def _add_sinks(connection: Connection, registry: CollectorRegistry) -> None:
    sinks = await list_all_sinks(connection, SINKS_SHOWN)
    if not sinks:
        return
    labels = ["tenant", "sink"]
    waiting = Gauge("ondot_sink_waiting_events", "Events that a sink has not sent", labels, registry=registry)
    lag = Gauge("ondot_sink_lag_seconds", "Age of the oldest event that a sink has not sent", labels, registry=registry)
    failing = Gauge("ondot_sink_failing", "1 while a sink fails", labels, registry=registry)
    sent = Gauge("ondot_sink_sent", "Events that a sink has sent since it was created", labels, registry=registry)
    lost = Gauge(
        "ondot_sink_lost", "Events that a sink left out: refused, or dropped as too old", labels, registry=registry
    )
    lags = await measure_lags(connection, sinks, SINK_ROWS_COUNTED)
    for sink in sinks:
        behind = lags.get(sink.id, Lag())
        of = behind.tenant, sink.name
        waiting.labels(*of).set(behind.events)
        lag.labels(*of).set(behind.behind_s)
        failing.labels(*of).set(sink.failing_since is not None)
        sent.labels(*of).set(sink.sent)
        lost.labels(*of).set(sink.refused + sink.dropped)


FROM_THE_DATABASE: Final[tuple[Callable[[Connection, CollectorRegistry], Awaitable[None]], ...]] = (
    _add_queues,
    _add_held_back,
    _add_workers,
    _add_nodes,
    _add_jobs,
    _add_runs,
    _add_lineage,
    _add_found,
    _add_sinks,
)
"""Each reads a part of the state that all processes share, and adds its gauges."""
