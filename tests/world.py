"""A whole ondot on its own database, with a clock turned by hand: the base of the tests of the flow.

`ondot.clock()` reads a row that only the test writes, and the process's estimate of it is frozen at the same instant.
So nothing is due until the test sets the clock, and no test waits. The methods read like sentences and call the passes
that roles repeat; only time is faked.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import random
from typing import Any
from uuid import UUID

import msgspec

from ondot.flow.backfill import owed_pass
from ondot.flow.change.change import update
from ondot.flow.complete import Completer, Done, end_attempt
from ondot.flow.dispatch import Dispatcher
from ondot.flow.idempotency import Idempotency
from ondot.flow.lease import Assignment, Leaser
from ondot.flow.new_jobs import Accepted
from ondot.flow.plan import Planner
from ondot.flow.recover import recover_pass
from ondot.flow.retain import Retention
from ondot.flow.run_now import run_now
from ondot.flow.submit import submit
from ondot.model.app_release import AppRelease
from ondot.model.completion import decide
from ondot.model.execution import State
from ondot.model.function import DeclaredFunction
from ondot.model.ids import DEFAULT_TENANT, PARTITIONS, ExecutionId, JobId, PoolNo, TenantNo, WorkerId
from ondot.model.job import JobSpec
from ondot.model.outcome import AttemptError, Failed, Report, Succeeded
from ondot.model.schedule import Cron, Interval, Once, Schedule
from ondot.model.target import FunctionTarget
from ondot.ports.transport import Wake
from ondot.store.connection import Connection, Record
from ondot.store.database import Database, open_database
from ondot.store.executions import ExecutionRow, get_execution
from ondot.store.jobs import JobRow, get_job
from ondot.store.known_functions import ALL_TENANTS, register_functions
from ondot.store.outcomes import Written
from ondot.store.workers import BeatReply, beat_worker, register_worker
from ondot.testing.clock import HAND_CLOCK, turn_clock
from ondot.transports.polling import PollingTransport
from tests.servers import connected, settings_for

DEFAULT_POOL = PoolNo(1)
OF_WORLD = AppRelease("world", "1")
FUNCTIONS = [
    DeclaredFunction(name=name, description=None, options={}, argument_defaults={}, schema=None, enqueued={})
    for name in ("report", "f", "doomed")
]
"""What its workers have registered: functions that take anything."""


def job(name: str = "report", **fields: Any) -> JobSpec:
    """A spec with the fields that matter to a test; without a schedule it runs at once."""
    fields.setdefault("target", FunctionTarget(name="report"))
    if "payload" in fields:
        fields["payload"] = msgspec.Raw(fields["payload"])
    return JobSpec(name=name, **fields)


def once(at: datetime, **fields: Any) -> Schedule:
    return Schedule(when=Once(at=at), **fields)


def every(seconds: float, anchor_at: datetime, **fields: Any) -> Schedule:
    return Schedule(when=Interval(every_s=seconds, anchor_at=anchor_at), **fields)


def cron(expression: str, **fields: Any) -> Schedule:
    return Schedule(when=Cron(expression=expression), **fields)


def failed(message: str = "it broke", **fields: Any) -> Failed:
    return Failed(AttemptError("broken", message), **fields)


class RecordingTransport(PollingTransport):
    """Sends nothing, and records the wake-ups."""

    def __init__(self) -> None:
        self.sent: list[Wake] = []
        self.published = asyncio.Event()

    async def publish(self, wakes: Sequence[Wake]) -> None:
        self.sent.extend(wakes)
        self.published.set()


@dataclass(slots=True)
class Worker:
    """One incarnation: leases executions and writes their outcomes."""

    world: "World"
    id: WorkerId
    leaser: Leaser
    completer: Completer

    async def lease(self, slots: int = 100) -> list[Assignment]:
        batch = await self.leaser.one_pass(slots)
        for assignment in batch.assignments:
            self.completer.hold(assignment.lease_id, 1)
        self.leaser.acknowledge()
        return batch.assignments

    async def run_one(self, report: Report | None = None) -> Assignment:
        """Lease the one execution that is due and complete it."""
        [assignment] = await self.lease()
        await self.complete(assignment, report)
        return assignment

    async def complete(self, assignment: Assignment, report: Report | None = None) -> list[Written]:
        return await self.complete_all([assignment], report)

    async def complete_all(self, assignments: Sequence[Assignment], report: Report | None = None) -> list[Written]:
        return await self.completer.write([done(assignment, report) for assignment in assignments])

    async def beat(self) -> BeatReply | None:
        async with self.world.database.connection() as connection:
            return await beat_worker(
                connection,
                self.id,
                state="ALIVE",
                running=0,
                lease_ids=self.completer.leases,
                bounds=self.leaser.bounds,
            )


def done(assignment: Assignment, report: Report | None = None) -> Done:
    spec = assignment.spec
    assert spec is not None
    completion = decide(assignment.leased, spec, report or Succeeded('"done"'), random)
    return end_attempt(assignment, completion)


@dataclass(slots=True)
class World:
    url: str
    database: Database
    transport: RecordingTransport
    dispatcher: Dispatcher
    planner: Planner
    now: datetime

    async def set_clock(self, at: datetime) -> None:
        await turn_clock(self.database, at)
        self.now = at

    async def advance(self, seconds: float) -> None:
        await self.set_clock(self.after(seconds))

    def after(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)

    async def add_tenant(self, name: str = "other", *, pools: Sequence[str] = ("*",), weight: float = 1) -> TenantNo:
        """Another tenant; the first one is number 2."""
        sql = "INSERT INTO ondot.tenant (name, pools, weight) VALUES ($1, $2, $3) RETURNING tenant_no"
        [row] = await self.fetch(sql, name, list(pools), weight)
        self.database.tenants.forget()
        return TenantNo(row["tenant_no"])

    async def submit(self, spec: JobSpec, tenant_no: TenantNo = DEFAULT_TENANT) -> Accepted:
        return (await self.submit_all([spec], tenant_no))[0]

    async def submit_all(self, specs: Sequence[JobSpec], tenant_no: TenantNo = DEFAULT_TENANT) -> list[Accepted]:
        stored: list[Accepted] = []

        def answer(accepted: list[Accepted]) -> str:
            stored[:] = accepted
            return "[]"

        await submit(self.database, self.dispatcher, tenant_no, specs, render=answer)
        return stored

    async def submit_with_key(self, key: str, spec: JobSpec) -> str:
        """Returns the response: the job's id as JSON."""
        return await submit(
            self.database,
            self.dispatcher,
            DEFAULT_TENANT,
            [spec],
            render=lambda accepted: msgspec.json.encode(str(accepted[0].id)).decode(),
            idempotency=Idempotency(key, msgspec.json.encode(spec)),
        )

    async def run_now(self, job_id: JobId, payload: bytes | None = None, *, key: str | None = None) -> ExecutionId:
        idempotency = Idempotency(key, payload or b"") if key else None
        text = await run_now(
            self.database,
            self.dispatcher,
            DEFAULT_TENANT,
            job_id,
            payload,
            render=lambda id_: f'"{id_}"',
            idempotency=idempotency,
        )
        return ExecutionId(UUID(text.strip('"')))

    async def update(
        self,
        job_id: JobId,
        spec: JobSpec,
        *,
        if_version: int | None = None,
        tenant_no: TenantNo = DEFAULT_TENANT,
    ) -> JobRow:
        async def compute(_job: JobRow, _now: datetime) -> JobSpec:
            return spec

        return await update(self.database, self.dispatcher, tenant_no, job_id, compute, if_version=if_version)

    async def plan(self) -> int:
        """Plan every partition until nothing before the horizon is left; returns how many timers moved."""
        total = 0
        while moved := await self.planner.one_pass(range(PARTITIONS)):
            total += moved
        return total

    async def work_off(self) -> int:
        """Work off one turn of each owed range that is due; returns how many there were."""
        return await owed_pass(self.database, self.dispatcher, range(PARTITIONS))

    async def worker(self, *, pool_nos: Sequence[PoolNo] = (DEFAULT_POOL,)) -> Worker:
        id_ = WorkerId(self.database.clock.new_id())
        async with self.database.connection() as connection:
            await register_functions(connection, ALL_TENANTS, OF_WORLD, FUNCTIONS)
            await register_worker(
                connection, id_, host="here", pid=1, release="0", pool_nos=pool_nos, slots=100, app=OF_WORLD
            )
        return Worker(self, id_, Leaser(self.database, id_, pool_nos), Completer(self.database, self.dispatcher, id_))

    async def retain(self) -> int:
        """Remove old rows until there is nothing left to remove; returns how many passes had more."""
        retention = Retention(self.database)
        passes = 0
        while await retention.one_pass():
            passes += 1
        return passes

    async def recover(self) -> int:
        return await recover_pass(self.database, self.dispatcher)

    async def job(self, job_id: JobId) -> JobRow:
        async with self.database.connection() as connection:
            row = await get_job(connection, DEFAULT_TENANT, job_id)
        assert row is not None
        return row

    async def execution(self, id_: ExecutionId) -> ExecutionRow:
        async with self.database.connection() as connection:
            row = await get_execution(connection, DEFAULT_TENANT, id_)
        assert row is not None
        return row

    async def executions(self, job_id: JobId | None = None) -> list[ExecutionRow]:
        """Live and ended ones, in the order of their fires."""
        ids = await self.fetch(
            "SELECT id FROM (SELECT id, job_id, fire_at FROM ondot.execution"
            " UNION ALL SELECT id, job_id, fire_at FROM ondot.history) e"
            " WHERE $1::uuid IS NULL OR job_id = $1 ORDER BY fire_at, id",
            job_id,
        )
        return [await self.execution(row["id"]) for row in ids]

    async def states(self, job_id: JobId | None = None) -> list[State]:
        return [execution.state for execution in await self.executions(job_id)]

    async def fires(self, job_id: JobId) -> list[float]:
        """When a job's executions are due, in seconds from now."""
        return [(execution.fire_at - self.now).total_seconds() for execution in await self.executions(job_id)]

    async def timer(self, job_id: JobId) -> Record | None:
        rows = await self.fetch("SELECT * FROM ondot.timer WHERE job_id = $1", job_id)
        return rows[0] if rows else None

    async def skipped(self, job_id: JobId) -> list[tuple[float, float, str, int | None]]:
        """Ranges of fires that did not run: from and to in seconds from now, the reason, how many."""
        rows = await self.fetch(
            "SELECT from_at, to_at, reason, count FROM ondot.skipped WHERE job_id = $1 ORDER BY from_at", job_id
        )
        return [
            (
                (row["from_at"] - self.now).total_seconds(),
                (row["to_at"] - self.now).total_seconds(),
                row["reason"],
                row["count"],
            )
            for row in rows
        ]

    async def count(self, table: str) -> int:
        return int(await self.value(f"SELECT count(*) FROM ondot.{table}"))

    async def value(self, sql: str, *arguments: object) -> Any:
        async with self.database.connection() as connection:
            return await connection.fetchval(sql, *arguments)

    async def fetch(self, sql: str, *arguments: object) -> list[Record]:
        async with self.database.connection() as connection:
            return await connection.fetch(sql, *arguments)

    @asynccontextmanager
    async def second_connection(self) -> AsyncIterator[Connection]:
        """Another connection, for transactions that stay open."""
        async with connected(self.url) as connection:
            yield connection

    async def until_a_lock_is_awaited(self, count: int = 1) -> None:
        """Wait until `count` statements in this database wait for locks."""
        async with asyncio.timeout(60), self.second_connection() as connection:
            while count > await connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND wait_event_type = 'Lock' AND cardinality(pg_blocking_pids(pid)) > 0"
            ):
                await asyncio.sleep(0)


@asynccontextmanager
async def open_world(url: str) -> AsyncIterator[World]:
    database = await open_database(settings_for(url))
    try:
        async with database.connection() as connection:
            await connection.execute(HAND_CLOCK)
            now = await connection.fetchval("SELECT ondot.clock()")
        database.clock.freeze(now)
        transport = RecordingTransport()
        dispatcher = Dispatcher(transport)
        yield World(url, database, transport, dispatcher, Planner(database, dispatcher), now)
    finally:
        await database.close()
