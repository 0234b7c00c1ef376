"""Random lives of random jobs on a real database, and what must be true after every single step.

Submit, plan, lease, complete, lose, pause, resume, update, delete and the turning of the clock, in any order; every
state change runs under the guard of `tests.store.guard` besides.
"""

import asyncio
import os
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from ondot.flow.change import delete, pause, resume, update
from ondot.flow.lease import Assignment
from ondot.flow.retain import sweep_pass
from ondot.model.errors import Conflict
from ondot.model.ids import DEFAULT_TENANT, JobId
from ondot.model.outcome import Interrupted, NotBegun, Report, Succeeded
from ondot.model.retry import Retry
from ondot.store.workers import lose_worker, read_beats
from tests.proves import proves
from tests.servers import Server, new_database
from tests.world import Worker, World, every, failed, job, once, open_world

T = TypeVar("T")

MUST_BE_EMPTY = {
    "a queue row without an execution that waits, in the same place": """
        SELECT r.execution_id FROM ondot.ready r LEFT JOIN ondot.execution e ON e.id = r.execution_id
        WHERE e.id IS NULL OR e.state NOT IN ('PENDING', 'RETRYING')
           OR (e.pool_no, e.class, e.tenant_no, e.ready_at) <> (r.pool_no, r.class, r.tenant_no, r.ready_at)""",
    "an execution that waits and is not in the queue": """
        SELECT id FROM ondot.execution e WHERE state IN ('PENDING', 'RETRYING')
           AND (SELECT count(*) FROM ondot.ready r WHERE r.execution_id = e.id) <> 1""",
    "an execution that runs under no lease, or under two": """
        SELECT e.id FROM ondot.execution e WHERE state = 'RUNNING' AND (
            SELECT count(*) FROM ondot.lease l, unnest(l.execution_ids, l.attempt_nos) AS m(id, attempt_no)
            WHERE m.id = e.id AND m.attempt_no = e.attempt_no AND l.worker_id = e.worker_id) <> 1""",
    "a fire with two executions": """
        SELECT job_id, fire_at FROM (
            SELECT job_id, fire_at, origin FROM ondot.execution
            UNION ALL SELECT job_id, fire_at, origin FROM ondot.history) e
        WHERE origin = 'fire' GROUP BY 1, 2 HAVING count(*) > 1""",
    "an execution that is live and ended": """
        SELECT id FROM ondot.execution JOIN ondot.history USING (id)""",
    "an attempt that began before its fire": """
        SELECT id FROM ondot.history WHERE started_at < fire_at""",
    "a dead letter that has not failed, or a failure without one": """
        SELECT h.id, d.execution_id FROM (SELECT id FROM ondot.history WHERE state = 'FAILED') h
        FULL JOIN ondot.dead_letter d ON d.execution_id = h.id WHERE h.id IS NULL OR d.execution_id IS NULL""",
    "a budget that was overdrawn": """
        SELECT id FROM ondot.history WHERE failures > 2 OR losses > 2""",
    "a fire to come of a job that is paused or deleted": """
        SELECT e.id FROM ondot.execution e JOIN ondot.job j ON j.id = e.job_id
        WHERE j.state <> 'ACTIVE' AND e.origin = 'fire' AND e.attempt_no = 0 AND e.state = 'PENDING'""",
    "a timer of a job that is paused or deleted, and goes": """
        SELECT t.job_id FROM ondot.timer t JOIN ondot.job j ON j.id = t.job_id
        WHERE j.state <> 'ACTIVE' AND t.next_fire_at < 'infinity'""",
    "a fire that is both skipped and run": """
        SELECT e.job_id, e.fire_at FROM (
            SELECT job_id, fire_at, origin FROM ondot.execution
            UNION ALL SELECT job_id, fire_at, origin FROM ondot.history) e
        JOIN ondot.skipped s ON s.job_id = e.job_id AND e.fire_at BETWEEN s.from_at AND s.to_at
        WHERE e.origin = 'fire'""",
}

OUT_OF_PLACE = " UNION ALL ".join(
    f"SELECT '{what}' AS what, to_jsonb(x)::text AS found FROM ({sql}) x" for what, sql in MUST_BE_EMPTY.items()
)

reports = st.sampled_from([Succeeded("1"), failed(), failed(retryable=False), NotBegun("stops"), Interrupted("stops")])
LIVES = int(os.environ.get("ONDOT_TEST_LIVES", "60"))
"""How many are lived in one run; a thousand before a release."""
BUDGET = Retry(max_retries=1, max_worker_losses=1, backoff="fixed", initial_s=7, jitter=False)


class Life(RuleBasedStateMachine):
    jobs: Bundle[JobId] = Bundle("jobs")
    workers: Bundle[Worker] = Bundle("workers")
    leased: Bundle[tuple[Worker, Assignment]] = Bundle("leased")
    server: Server

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        url = self.run(self.stack.enter_async_context(new_database(self.server)))
        self.world: World = self.run(self.stack.enter_async_context(open_world(url)))

    def run(self, what: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(what)

    @rule(target=jobs, seconds=st.integers(0, 40))
    def submit_once(self, seconds: int) -> JobId:
        return self.run(self.world.submit(job(schedule=once(self.world.after(seconds)), retry=BUDGET))).id

    @rule(target=jobs, seconds=st.integers(1, 60), jitter_s=st.sampled_from([0, 15]))
    def submit_recurring(self, seconds: int, jitter_s: int) -> JobId:
        schedule = every(seconds, self.world.now, jitter_s=jitter_s)
        return self.run(self.world.submit(job(schedule=schedule, retry=BUDGET))).id

    @rule(job_id=jobs)
    def run_by_hand(self, job_id: JobId) -> None:
        with suppress(Conflict):
            self.run(self.world.run_now(job_id))

    @rule(seconds=st.sampled_from([0.5, 3, 10, 30, 200]))
    def turn_the_clock(self, seconds: float) -> None:
        self.run(self.world.advance(seconds))

    @rule()
    def plan(self) -> None:
        self.run(self.world.plan())

    @rule(target=workers)
    def start_a_worker(self) -> Worker:
        return self.run(self.world.worker())

    @rule(target=leased, worker=workers, slots=st.integers(1, 5))
    def lease(self, worker: Worker, slots: int) -> Any:
        return multiple(*((worker, assignment) for assignment in self.run(worker.lease(slots))))

    @rule(held=leased, report=reports)
    def complete(self, held: tuple[Worker, Assignment], report: Report) -> None:
        """Also twice, and by workers that were lost: those change nothing."""
        worker, assignment = held
        self.run(worker.complete(assignment, report))

    @rule(worker=workers)
    def beat(self, worker: Worker) -> None:
        self.run(worker.beat())

    @rule(worker=workers)
    def lose(self, worker: Worker) -> None:
        self.run(self._lose(worker))

    async def _lose(self, worker: Worker) -> None:
        async with self.world.database.connection() as connection:
            for beat in (await read_beats(connection))[0]:
                if beat.worker_id == worker.id:
                    await lose_worker(connection, beat)
        await self.world.recover()

    @rule()
    def sweep(self) -> None:
        self.run(sweep_pass(self.world.database, self.world.dispatcher))

    @rule(job_id=jobs, seconds=st.integers(1, 60))
    def update(self, job_id: JobId, seconds: int) -> None:
        spec = job("changed", schedule=every(seconds, self.world.now), retry=BUDGET)
        with suppress(Conflict):
            self.run(update(self.world.database, self.world.dispatcher, DEFAULT_TENANT, job_id, spec))

    @rule(job_id=jobs)
    def pause(self, job_id: JobId) -> None:
        with suppress(Conflict):
            self.run(pause(self.world.database, DEFAULT_TENANT, job_id))

    @rule(job_id=jobs)
    def resume(self, job_id: JobId) -> None:
        with suppress(Conflict):
            self.run(resume(self.world.database, self.world.dispatcher, DEFAULT_TENANT, job_id))

    @rule(job_id=jobs)
    def delete(self, job_id: JobId) -> None:
        with suppress(Conflict):
            self.run(delete(self.world.database, DEFAULT_TENANT, job_id))

    @invariant()
    def nothing_is_out_of_place(self) -> None:
        found = self.run(self.world.fetch(OUT_OF_PLACE))
        assert not found, "\n".join(f"{row['what']}: {row['found']}" for row in found)

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.run(self.stack.aclose())
            self.runner.close()


@proves("E5", "E11", "P3", "P4", "P5", "P7", "P9", "P10")
@pytest.mark.timeout(3600)
def test_no_order_of_events_brings_anything_out_of_place(server: Server) -> None:
    bound = type("Life", (Life,), {"server": server})
    run_state_machine_as_test(
        bound,
        settings=settings(
            max_examples=LIVES,
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
