"""Schedulers and workers as they run: real loops and threads on a real database and its real clock."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, get_args

import pytest

from ondot.app import open_transport
from ondot.coordination.postgres import PostgresCoordinator
from ondot.flow.dispatch import Dispatcher
from ondot.flow.pool_transports import PoolTransports
from ondot.flow.submit import submit
from ondot.model.errors import Unavailable
from ondot.model.gates import Limits
from ondot.model.ids import DEFAULT_TENANT, PARTITIONS, PoolNo
from ondot.model.job import JobSpec, TargetSpec
from ondot.model.outcome import Failed, Succeeded
from ondot.model.target import FunctionTarget
from ondot.ports.target import Call, Target, Targets
from ondot.roles.scheduler import Scheduler
from ondot.roles.worker import Worker
from ondot.store.database import Database, open_database
from ondot.transports.polling import PollingTransport
from ondot.transports.postgres import PostgresTransport
from tests.proves import proves
from tests.servers import connected, settings_for
from tests.world import every, job

PATIENCE_S = 30


class Handler(Target[TargetSpec]):
    """A target that the test controls: it records calls, and ends them when the test says so."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[Call] = asyncio.Queue()
        self.go = asyncio.Event()
        self.go.set()
        self.says: str | None = None

    async def call(self, spec: object, call: Call) -> Succeeded | Failed:
        self.calls.put_nowait(call)
        if self.says:
            call.say("log", self.says)
        await self.go.wait()
        return Succeeded('"done"')


class Fleet:
    def __init__(self, database: Database, transports: PoolTransports, group: asyncio.TaskGroup) -> None:
        self.database = database
        self.transports = transports
        self.handler = Handler()
        self._group = group
        self._stops: list[asyncio.Event] = []
        self._dispatcher = Dispatcher(transports)
        self._sending = group.create_task(self._dispatcher.run())

    def run(self, role: Callable[[asyncio.Event], Coroutine[Any, Any, object]]) -> Callable[[], Awaitable[None]]:
        """Start a role; return a function that stops it and waits for its end."""
        stop = asyncio.Event()
        self._stops.append(stop)
        task = self._group.create_task(role(stop))

        async def stopped() -> None:
            stop.set()
            await task

        return stopped

    def scheduler(self) -> Callable[[], Awaitable[None]]:
        return self.run(Scheduler(self.database, self.transports, PostgresCoordinator(self.database)).run)

    def worker(self, slots: int = 10) -> Callable[[], Awaitable[None]]:
        targets: Targets = dict.fromkeys(get_args(TargetSpec), self.handler)
        return self.run(Worker(self.database, self.transports, targets, [PoolNo(1)], slots).run)

    async def submit(self, *specs: JobSpec) -> None:
        await submit(self.database, self._dispatcher, DEFAULT_TENANT, specs, render=lambda _: "")

    async def value(self, sql: str) -> Any:
        async with self.database.connection() as connection:
            return await connection.fetchval(sql)

    async def until(self, sql: str, value: object) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.value(sql) != value:
                await asyncio.sleep(0.01)

    def stop_all(self) -> None:
        for stop in self._stops:
            stop.set()
        self.handler.go.set()
        self._sending.cancel()


@asynccontextmanager
async def open_fleet(url: str, *, polling: bool = False, **changed: object) -> AsyncIterator[Fleet]:
    """`transport` among the settings: as in production; else LISTEN, or polling alone."""
    settings = settings_for(url).model_copy(update={"lease_s": 1.0, "heartbeat_s": 1.5, "grace_s": 10.0, **changed})
    database = await open_database(settings)
    await database.read_clock()
    try:
        async with asyncio.TaskGroup() as group:
            transport = PollingTransport() if polling else PostgresTransport(database)
            transports = PoolTransports.of(database, transport)
            if "transport" in changed:
                transports = PoolTransports(database, lambda name: open_transport(name, database), settings.transport)
            fleet = Fleet(database, transports, group)
            try:
                yield fleet
            finally:
                fleet.stop_all()
        await transports.close()
    finally:
        await database.close()


@pytest.fixture
async def fleet(database_url: str) -> AsyncIterator[Fleet]:
    async with open_fleet(database_url) as fleet:
        yield fleet


OWNED = "SELECT count(*) FROM ondot.partition WHERE owner IS NOT NULL"
OWNERS = "SELECT count(DISTINCT owner) FROM ondot.partition WHERE owner IS NOT NULL"
SHARES = (
    "SELECT array_agg(n ORDER BY n) FROM"
    " (SELECT count(*) AS n FROM ondot.partition WHERE owner IS NOT NULL GROUP BY owner) s"
)


@proves("C1", "L2")
async def test_nodes_share_the_partitions_and_a_stopping_one_hands_its_own_over(fleet: Fleet) -> None:
    stop_first = fleet.scheduler()
    await fleet.until(OWNED, PARTITIONS)
    stop_second = fleet.scheduler()
    await fleet.until(SHARES, [PARTITIONS // 2, PARTITIONS // 2])
    await stop_first()
    assert await fleet.value(OWNERS) == 1
    await fleet.until(SHARES, [PARTITIONS])
    await stop_second()
    assert await fleet.value(OWNED) == 0
    assert await fleet.value("SELECT count(*) FROM ondot.node") == 0


@proves("C2", "L2")
async def test_the_partitions_of_a_node_that_is_gone_are_taken_over(fleet: Fleet) -> None:
    await fleet.value(
        "INSERT INTO ondot.node VALUES ('01a1de89-cd41-7462-b41c-105d59568642', 0, 'gone', 1, '0',"
        " ondot.clock(), ondot.clock(), ondot.clock() + interval '1 second') RETURNING 1"
    )
    await fleet.value(
        "WITH taken AS (UPDATE ondot.partition SET owner = '01a1de89-cd41-7462-b41c-105d59568642', epoch = 7"
        " RETURNING 1) SELECT count(*) FROM taken"
    )
    fleet.scheduler()
    await fleet.until(OWNERS, 1)
    await fleet.until("SELECT count(*) FROM ondot.partition WHERE epoch = 8", PARTITIONS)


@proves("E1", "S3", "P9")
async def test_a_recurring_job_fires_on_the_dot_and_never_early(fleet: Fleet) -> None:
    fleet.scheduler()
    fleet.worker()
    await fleet.submit(job(schedule=every(1.0, fleet.database.clock.now())))
    async with asyncio.timeout(PATIENCE_S):
        calls = [await fleet.handler.calls.get() for _ in range(3)]
    assert [(call.fire_at - calls[0].fire_at).total_seconds() for call in calls] == [0, 1, 2]
    await fleet.until("SELECT count(*) >= 3 FROM ondot.history", True)
    assert await fleet.value("SELECT bool_and(started_at >= fire_at) FROM ondot.history")


@proves("C5")
async def test_without_wake_ups_work_starts_by_polling(database_url: str) -> None:
    async with open_fleet(database_url, polling=True) as fleet:
        fleet.worker()
        await fleet.until("SELECT count(*) FROM ondot.worker", 1)
        await fleet.submit(job())
        async with asyncio.timeout(PATIENCE_S):
            await fleet.handler.calls.get()


@proves("E6", "P6", "L3")
async def test_a_worker_declared_lost_drops_its_work_and_continues_as_another(fleet: Fleet) -> None:
    fleet.handler.go.clear()
    fleet.worker()
    await fleet.submit(job())
    async with asyncio.timeout(PATIENCE_S):
        await fleet.handler.calls.get()
        # As a housekeeper does that got no heartbeat of it: its next beat is refused.
        await fleet.value("UPDATE ondot.worker SET state = 'LOST', ended_at = ondot.clock() RETURNING 1")
        fleet.scheduler()
        again = await fleet.handler.calls.get()
    assert again.attempt_no == 2
    fleet.handler.go.set()
    await fleet.until("SELECT count(*) FROM ondot.history WHERE state = 'SUCCEEDED' AND losses = 1", 1)
    assert await fleet.value("SELECT array_agg(outcome) FROM ondot.attempt") == ["WORKER_LOST"]
    assert await fleet.value("SELECT count(*) FROM ondot.worker WHERE state = 'ALIVE'") == 1


@proves("C11")
async def test_a_stopping_worker_lets_its_attempts_end_and_leaves(fleet: Fleet) -> None:
    fleet.handler.go.clear()
    stop = fleet.worker(slots=1)
    await fleet.submit(job(), job())
    async with asyncio.timeout(PATIENCE_S):
        await fleet.handler.calls.get()
        stopping = asyncio.ensure_future(stop())
        await fleet.until("SELECT count(*) FROM ondot.worker WHERE state = 'DRAINING'", 1)
        fleet.handler.go.set()
        await stopping
    assert await fleet.value("SELECT count(*) FROM ondot.history WHERE state = 'SUCCEEDED'") == 1
    assert await fleet.value("SELECT count(*) FROM ondot.ready") == 1
    assert await fleet.value("SELECT array_agg(state) FROM ondot.worker") == ["GONE"]
    assert await fleet.value("SELECT count(*) FROM ondot.lease") == 0


@proves("C11", "E6")
async def test_an_attempt_that_outlasts_the_grace_goes_back_for_one_of_its_losses(database_url: str) -> None:
    async with open_fleet(database_url, grace_s=0.0) as fleet:
        fleet.handler.go.clear()
        stop = fleet.worker()
        await fleet.submit(job())
        async with asyncio.timeout(PATIENCE_S):
            await fleet.handler.calls.get()
            await stop()
        assert await fleet.value("SELECT (state, failures, losses)::text FROM ondot.execution") == "(RETRYING,0,1)"
        assert await fleet.value("SELECT outcome FROM ondot.attempt") == "WORKER_LOST"


@proves("P7", "P8", "C11")
async def test_an_outcome_is_written_though_its_words_cannot_be_before_the_grace_is_over(database_url: str) -> None:
    async with open_fleet(database_url, grace_s=0.2) as fleet:
        stop = fleet.worker()
        fleet.handler.says = "hello"
        async with connected(database_url) as other, asyncio.timeout(PATIENCE_S):
            transaction = other.transaction()
            await transaction.start()
            await other.execute("LOCK TABLE ondot.log IN ACCESS EXCLUSIVE MODE")
            await fleet.submit(job())
            await fleet.handler.calls.get()
            await stop()
            await transaction.rollback()
        assert await fleet.value("SELECT array_agg(state) FROM ondot.history") == ["SUCCEEDED"]
        assert await fleet.value("SELECT count(*) FROM ondot.attempt") == 0


@proves("L4", "P5")
async def test_connections_that_are_cut_again_and_again_lose_and_double_nothing(fleet: Fleet) -> None:
    fleet.scheduler()
    fleet.worker(slots=20)
    await fleet.until(OWNED, PARTITIONS)
    cut = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    calls = 0
    async with asyncio.timeout(PATIENCE_S * 2):
        for _ in range(5):
            await _stubbornly(lambda: fleet.submit(*[job(target=FunctionTarget(name="f"))] * 40))
            await _stubbornly(lambda: fleet.value(cut))
        await _stubbornly(lambda: fleet.until("SELECT count(*) FROM ondot.execution", 0))
    while not fleet.handler.calls.empty():
        fleet.handler.calls.get_nowait()
        calls += 1
    jobs = await fleet.value("SELECT count(*) FROM ondot.job_once")
    assert await fleet.value("SELECT count(*) FROM ondot.history WHERE state = 'SUCCEEDED'") == jobs
    attempts = await fleet.value("SELECT sum(attempt_no) FROM ondot.history")
    assert jobs <= calls <= attempts


async def _stubbornly(action: Callable[[], Awaitable[object]]) -> None:
    """Until it is done without a cut."""
    done = False
    while not done:
        with suppress(Unavailable):
            await action()
            done = True


@proves("E12", "E8")
async def test_a_worker_without_room_asks_what_it_runs_to_end_when_the_next_fire_is_due(fleet: Fleet) -> None:
    fleet.handler.go.clear()
    fleet.scheduler()
    fleet.worker(slots=1)
    schedule = every(1, fleet.database.clock.now())
    await fleet.submit(job(schedule=schedule, limits=Limits(overlap="cancel"), cancel_grace_s=5))
    async with asyncio.timeout(PATIENCE_S):
        call = await fleet.handler.calls.get()
        asked = asyncio.Event()
        call.cancel.listen(asked.set)
        await asked.wait()
    fleet.handler.go.set()


@proves("E12", "P4")
async def test_a_worker_without_room_skips_the_fires_that_are_not_to_wait(fleet: Fleet) -> None:
    fleet.handler.go.clear()
    fleet.scheduler()
    fleet.worker(slots=1)
    schedule = every(1, fleet.database.clock.now())
    await fleet.submit(job(schedule=schedule, limits=Limits(overlap="skip")))
    await fleet.until("SELECT count(*) >= 2 FROM ondot.history WHERE state = 'SKIPPED' AND reason = 'overlap'", True)
    assert fleet.handler.calls.qsize() == 1
