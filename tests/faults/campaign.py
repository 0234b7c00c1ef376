"""A campaign: a fleet of real processes under a workload and a weather of faults, then the judgement.

the workload submits and changes jobs of all kinds by HTTP    → acks.jsonl
the weather kills, freezes, cuts, restarts from a seed        → faults.jsonl
the receiver records every call                               → calls.jsonl
other tenants and their owner do the same beside it           → tenants.jsonl, tenant_calls.jsonl
users of workflows start, retry and cancel runs               → flows.jsonl, flow_calls.jsonl
users of events send them while jobs that wait for them change → events.jsonl
jobs fail and recover, and alerts report it to channels       → alerts.jsonl, alert_calls.jsonl
days past their retention are made before, and rewritten      → past.jsonl, past_calls.jsonl
the checkers compare all of them with the database, when all work has ended
the report states what was injected, what was checked, and how to repeat it → faults.md, faults.json
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from brokers import Broker, Etcd, Kafka, Nats, RabbitMQ, Redis
from tests.faults.alert_checks import judge_alerts
from tests.faults.alert_receiver import keeping_alert_books
from tests.faults.alert_users import AlertUsers
from tests.faults.audit import Violation
from tests.faults.checker import Bounds, Verdict, judge
from tests.faults.event_checks import judge_events
from tests.faults.event_users import EventUsers
from tests.faults.fleet import EFFECTS
from tests.faults.flow_checks import judge_flows
from tests.faults.flow_users import FlowUsers
from tests.faults.ledger import keeping_books
from tests.faults.old_days import KEPT_DAYS, OldDays
from tests.faults.owners import Owners
from tests.faults.postgres import Postgres, a_postgres
from tests.faults.report import Report, RunFacts, report, write_report
from tests.faults.stage import Stage, a_stage
from tests.faults.tenant_checks import Successes, count_left, judge_tenants
from tests.faults.tenant_users import TenantUsers
from tests.faults.weather import Weather
from tests.faults.workload import Workload

LOOK_EVERY_S = 0.25
KEPT = (
    "history",
    "attempt",
    "execution",
    "skipped",
    "job",
    "job_version",
    "job_once",
    "timer",
    "worker",
    "node",
    "found",
    "run",
    "step",
    "item",
    "arrival",
    "repair",
    "past_step",
    "event",
    "event_match",
    "subscription",
    "alert",
    "incident",
    "cause",
    "delivery",
)

_REST = """
SELECT (SELECT count(*) FROM ondot.execution WHERE state <> 'BLOCKED') + (SELECT count(*) FROM ondot.arrival)
     + (SELECT count(*) FROM ondot.lease) + (SELECT count(*) FROM ondot.owed)
     + (SELECT count(*) FROM ondot.timer WHERE next_fire_at < ondot.clock() + interval '300 days') AS left
"""


BROKERS: dict[str, tuple[str, type[Broker]]] = {
    "redis": ("redis_url", Redis),
    "kafka": ("kafka_servers", Kafka),
    "rabbitmq": ("rabbitmq_url", RabbitMQ),
    "nats": ("nats_url", Nats),
}
"""The setting and the server of each transport that has one."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """The parameters of a run; the same seed and sizes make the same workload and the same faults."""

    seconds: float
    seed: int
    jobs: int
    schedulers: int = 3
    workers: int = 4
    apis: int = 2
    tenants: int = 0
    """Others than the first, which the workload belongs to: 0, or 3 and more."""
    flows: int = 0
    """How many workflows, beside the jobs."""
    sends: int = 0
    """How many requests send events."""
    alerts: int = 0
    """How many alerts, without that of a storm."""
    old_days: bool = False
    """Days past their retention, which are rewritten during the run."""
    kinds: Sequence[str] | None = None
    focus: tuple[str, ...] = ()
    """Only these kinds of jobs (`tests.faults.mix`); empty: all of them."""
    bug: str | None = None
    lease_s: float = 5.0
    heartbeat_s: float = 10.0
    horizon_s: float = 20.0
    slack_s: float = 1.0
    """How much a loaded machine may add to the bounds of lateness."""
    calm_within_s: float = 90.0
    calm_s: tuple[float, float] = (1.0, 4.0)
    """The pauses between faults."""
    in_namespaces: int = 0
    at_once: int = 1
    """How many sequences of faults run at the same time."""
    standby: bool = False
    """A synchronous standby, to which the run may fail over."""
    disk_mb: int | None = None
    """The size of a separate disk for PostgreSQL that can be filled; needs root."""
    coordination: str = "postgres"
    """Where schedulers hold their leases: with `etcd` the run has its own, and its faults."""
    transport: str = "postgres"
    """What carries hints: with `redis`, `kafka`, `rabbitmq` or `nats` the run has its own server, and its faults."""
    settings: dict[str, str] = field(default_factory=dict)

    async def run(self, directory: Path) -> tuple[Verdict, Report]:
        async with AsyncExitStack() as stack:
            postgres = await stack.enter_async_context(a_postgres(disk_mb=self.disk_mb))
            books = directory / "calls.jsonl"
            ledger = await stack.enter_async_context(keeping_books(books))
            tenant_books = directory / "tenant_calls.jsonl"
            tenant_ledger = await stack.enter_async_context(keeping_books(tenant_books))
            flow_ledger = await stack.enter_async_context(keeping_books(directory / "flow_calls.jsonl"))
            alert_receiver = await stack.enter_async_context(keeping_alert_books(directory / "alert_calls.jsonl"))
            event_ledger = await stack.enter_async_context(keeping_books(directory / "event_calls.jsonl"))
            etcd = stack.enter_context(Etcd.running()) if self.coordination == "etcd" else None
            setting, kind = BROKERS.get(self.transport, ("", None))
            broker = stack.enter_context(kind.running()) if kind is not None else None
            async with _connected(postgres) as connection:
                await connection.execute(EFFECTS)
            old_days = None
            if self.old_days:
                past_books = directory / "past_calls.jsonl"
                past_ledger = await stack.enter_async_context(keeping_books(past_books))
                old_days = OldDays(
                    postgres,
                    directory / "objects",
                    past_ledger.url,
                    past_books,
                    self.seconds,
                    self.seed,
                    directory / "past.jsonl",
                )
                await old_days.make()
            if self.standby:
                await postgres.add_standby()
            stage = await stack.enter_async_context(
                a_stage(
                    postgres,
                    directory,
                    schedulers=self.schedulers,
                    workers=self.workers,
                    apis=self.apis,
                    bug=self.bug,
                    in_namespaces=self.in_namespaces,
                    allow_unsafe_database="0",
                    lease_s=f"{self.lease_s:g}",
                    heartbeat_s=f"{self.heartbeat_s:g}",
                    horizon_s=f"{self.horizon_s:g}",
                    test_pace="1",
                    coordination=self.coordination,
                    **({"transport": self.transport, setting: broker.url} if broker is not None else {}),
                    **({"etcd_url": etcd.url} if etcd is not None else {}),
                    **({"retention_days": str(KEPT_DAYS)} if self.old_days else {}),
                    **self.settings,
                )
            )
            users = None
            if self.tenants:
                journal = directory / "tenants.jsonl"
                users = TenantUsers(
                    stage.api_urls,
                    tenant_ledger.url,
                    self.seed,
                    self.tenants,
                    journal,
                    postgres.connect,
                )
                await stack.enter_async_context(users.open())
            headers = users.owner_headers if users is not None else {}
            flows = FlowUsers(
                stage.api_urls, flow_ledger.url, self.flows, self.seed, directory / "flows.jsonl", headers
            )
            events = EventUsers(
                stage.api_urls, event_ledger.url, self.sends, self.seed, directory / "events.jsonl", headers
            )
            alerts = AlertUsers(
                stage.api_urls,
                alert_receiver,
                self.alerts,
                self.seed,
                directory / "alerts.jsonl",
                self.calm_within_s,
                headers,
            )
            return await self._run(
                directory,
                postgres,
                stage,
                ledger.url,
                books,
                users,
                tenant_books,
                flows,
                events,
                alerts,
                old_days,
                etcd,
                broker,
            )

    async def _run(
        self,
        directory: Path,
        postgres: Postgres,
        stage: Stage,
        receiver_url: str,
        books: Path,
        users: TenantUsers | None,
        tenant_books: Path,
        flows: FlowUsers,
        events: EventUsers,
        alerts: AlertUsers,
        old_days: OldDays | None,
        etcd: Etcd | None,
        broker: Broker | None,
    ) -> tuple[Verdict, Report]:
        acks, log = directory / "acks.jsonl", directory / "faults.jsonl"
        owners = Owners(postgres.connect)
        successes = Successes()
        watching = asyncio.gather(owners.watch(), successes.watch(postgres.connect))
        headers = users.owner_headers if users is not None else {}
        workload = Workload(stage.api_urls, receiver_url, self.jobs, self.seed, self.seconds, acks, self.focus, headers)
        weather = Weather(
            stage.fleet,
            postgres,
            stage.proxies,
            self.seed,
            self.kinds,
            self.calm_s,
            log=log,
            namespaces=stage.namespaces,
            tenants=users,
            etcd=etcd,
            broker=broker,
            at_once=self.at_once,
        )
        began_s = time.time()
        async with asyncio.TaskGroup() as group:
            group.create_task(workload.run())
            if users is not None:
                group.create_task(users.run(self.seconds))
            group.create_task(flows.run(self.seconds))
            group.create_task(events.run(self.seconds))
            group.create_task(alerts.run(self.seconds))
            if old_days is not None:
                group.create_task(old_days.run(self.seconds))
            blowing = group.create_task(weather.blow(self.seconds))
        await workload.settle(within_s=self.calm_within_s)
        if users is not None:
            await users.settle(within_s=self.calm_within_s)
        await flows.settle(within_s=self.calm_within_s)
        await events.settle(within_s=self.calm_within_s)
        left = await self._calm(postgres)
        if old_days is not None:
            await old_days.settle(within_s=self.calm_within_s)
        ended_s = time.time()
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        bounds = Bounds(self.heartbeat_s, self.lease_s, workers=self.workers, slack_s=self.slack_s)
        async with _connected(postgres) as connection, connection.transaction(isolation="repeatable_read"):
            verdict = await judge(connection, books, acks, log, began_s=began_s, ended_s=ended_s, bounds=bounds)
            verdict.violations += await _found_by_itself(connection)
            if self.flows:
                flow_books = directory / "flow_calls.jsonl"
                verdict.violations += await judge_flows(connection, flows.journal, flow_books, verdict.counts)
            if self.sends:
                verdict.violations += await judge_events(connection, events.journal, verdict.counts)
            if self.alerts:
                verdict.violations += await judge_alerts(
                    connection,
                    alerts.journal,
                    directory / "alert_calls.jsonl",
                    log,
                    ended_s=ended_s,
                    slack_s=self.slack_s,
                    counts=verdict.counts,
                )
            if old_days is not None:
                verdict.violations += await old_days.judge(connection, verdict.counts)
            if users is not None:
                verdict.violations += await judge_tenants(
                    connection, users.journal, tenant_books, log, successes, self.slack_s, verdict.counts
                )
        if left:
            message = f"{left} live rows are left after {self.calm_within_s:g} s"
            verdict.violations.append(Violation("not_calm", "fleet", message))
        verdict.violations += [
            Violation("exited", name, "ended, but the harness did not kill it") for name in weather.exited
        ]
        if not verdict.clean:
            await _keep_tables(postgres, directory)
        schedulers = [member for member in stage.fleet.members if member.role == "scheduler"]
        takeovers = owners.takeovers_s(blowing.result(), schedulers)
        sizes = {
            "jobs": self.jobs,
            "schedulers": self.schedulers,
            "workers": self.workers,
            "apis": self.apis,
            "tenants": self.tenants,
            "flows": self.flows,
            "sends": self.sends,
            "alerts": self.alerts,
        }
        happened = workload.happened + flows.happened + events.happened + alerts.happened
        if users is not None:
            happened += users.happened
        facts = RunFacts(
            seed=self.seed,
            seconds=self.seconds,
            sizes=sizes,
            took_s=ended_s - began_s,
            takeovers_s=takeovers,
            workload=dict(happened),
            coordination=self.coordination,
            transport=self.transport,
        )
        written = report(facts, verdict, log)
        write_report(written, directory)
        return verdict, written

    async def _calm(self, postgres: Postgres) -> int:
        """Wait until nothing runs, waits or is due; return the rows that are left when that takes too long."""
        deadline_s = time.monotonic() + self.calm_within_s
        left = -1
        while left and time.monotonic() < deadline_s:
            async with _connected(postgres) as connection:
                while (
                    left := await connection.fetchval(_REST) + await count_left(connection)
                ) and time.monotonic() < deadline_s:
                    await asyncio.sleep(LOOK_EVERY_S)
        return left


async def _found_by_itself(connection: asyncpg.Connection) -> list[Violation]:
    """The findings of ondot's own self-check: each is a bug."""
    rows = await connection.fetch("SELECT kind, count, example::text FROM ondot.found")
    return [Violation("self_check", row["kind"], f"{row['count']} found: {row['example']}") for row in rows]


async def _keep_tables(postgres: Postgres, directory: Path) -> None:
    """Save the tables of a failed run, because its server is removed."""
    async with _connected(postgres) as connection:
        for name in KEPT:
            query = f"SELECT * FROM ondot.{name}"
            await connection.copy_from_query(query, output=directory / f"{name}.csv", format="csv", header=True)


@asynccontextmanager
async def _connected(postgres: Postgres) -> AsyncIterator[asyncpg.Connection]:
    connection = await postgres.connect()
    try:
        yield connection
    finally:
        await connection.close()
