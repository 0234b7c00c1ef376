"""Random lives of random jobs on a real database, and what must be true after every single step.

Submit, plan, admit, lease, complete, lose, cancel, expire, pause, resume, update, delete, backfill, limits that change
and the turning of the clock, in any order;
every state change runs under the guard of `tests.store.guard` besides. At the end of a life every fire that was due is
looked for: it has one end on record, and nothing else has run.
"""

import asyncio
import logging
import os
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import structlog
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

from ondot.flow.backfill import Backfill, cancel_backfill, start_backfill
from ondot.flow.cancel import cancel
from ondot.flow.change.change import delete, pause, resume
from ondot.flow.gate import Tidying, expire_pass
from ondot.flow.lease import Assignment
from ondot.flow.pools import PoolLimits, set_limits
from ondot.flow.retain import sweep_pass
from ondot.model.errors import Conflict
from ondot.model.gates import Limits, Rate
from ondot.model.ids import DEFAULT_TENANT, JobId, PoolNo
from ondot.model.job import Debounce, Priority, Throttle, Unique
from ondot.model.misfire import Misfire, MissedPolicy
from ondot.model.outcome import Cancelled, Interrupted, NotBegun, Report, Succeeded
from ondot.model.planning import fires_between
from ondot.model.retry import Retry
from ondot.model.schedule import Blackout, Calendar, unrestricted
from ondot.store.audit import By
from ondot.store.workers import lose_worker, read_beats
from tests.proves import proves
from tests.servers import Server, new_database
from tests.world import Worker, World, every, failed, job, once, open_world

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from ondot.model.schedule import Schedule

T = TypeVar("T")

MUST_BE_EMPTY = {
    "a queue row without an execution that waits, in the same place": """
        SELECT r.execution_id FROM ondot.ready r LEFT JOIN ondot.execution e ON e.id = r.execution_id
        WHERE e.id IS NULL OR e.state NOT IN ('PENDING', 'RETRYING')
           OR (e.pool_no, e.class, e.tenant_no, e.ready_at) <> (r.pool_no, r.class, r.tenant_no, r.ready_at)""",
    "an execution that waits in no queue and in no line, or in both": """
        SELECT id FROM ondot.execution e WHERE state IN ('PENDING', 'RETRYING')
           AND (SELECT count(*) FROM ondot.ready r WHERE r.execution_id = e.id)
             + (SELECT count(*) FROM ondot.waiting w WHERE w.execution_id = e.id) <> 1""",
    "a place in line in another pool or before another gate than that of its execution": """
        SELECT w.execution_id FROM ondot.waiting w JOIN ondot.gated d ON d.execution_id = w.execution_id
        JOIN ondot.execution e ON e.id = w.execution_id
        WHERE (w.pool_no, d.pool_no, d.class) <> (e.pool_no, e.pool_no, e.class)
           OR (d.stages->w.stage->>'gate')::uuid <> w.gate_id""",
    "a fire that has not started, in another pool than its job": """
        SELECT e.id FROM ondot.execution e JOIN ondot.job j ON j.id = e.job_id
        WHERE e.state = 'PENDING' AND e.origin IN ('fire', 'backfill')
          AND (e.pool_no, e.job_version) <> (j.pool_no, j.version)""",
    "a place in line of an execution that does not wait": """
        SELECT w.execution_id FROM ondot.waiting w LEFT JOIN ondot.execution e ON e.id = w.execution_id
        WHERE e.id IS NULL OR e.state NOT IN ('PENDING', 'RETRYING') OR NOT e.gated""",
    "gates without an execution, or an execution without its gates": """
        SELECT d.execution_id, e.id FROM ondot.gated d FULL JOIN (SELECT id, state FROM ondot.execution WHERE gated) e
        ON e.id = d.execution_id WHERE e.id IS NULL OR d.execution_id IS NULL AND e.state <> 'RUNNING'""",
    "a slot without an execution, or a slot of a pool whose execution does not run": """
        SELECT s.gate_id, s.execution_id FROM ondot.slot s LEFT JOIN ondot.execution e ON e.id = s.execution_id
        WHERE e.id IS NULL OR s.gate_id = ondot.pool_gate(e.pool_no) AND e.state <> 'RUNNING'""",
    "a running execution that has not passed its gates": """
        SELECT e.id FROM ondot.execution e JOIN ondot.gated d ON d.execution_id = e.id,
               jsonb_array_elements(d.stages) s
        WHERE e.state = 'RUNNING' AND s->>'kind' <> 'rate' AND NOT EXISTS (
            SELECT FROM ondot.slot h WHERE h.gate_id = (s->>'gate')::uuid AND h.execution_id = e.id)""",
    "a line that nothing will look at although one may pass": """
        SELECT l.gate_id, l.pool_no FROM ondot.line l JOIN ondot.gate g ON g.id = l.gate_id CROSS JOIN LATERAL (
            SELECT w.ready_at, d.stages->w.stage AS here FROM ondot.waiting w
            JOIN ondot.gated d ON d.execution_id = w.execution_id
            WHERE w.gate_id = l.gate_id AND w.pool_no = l.pool_no ORDER BY w.ready_at, w.execution_id LIMIT 1) w
        WHERE l.look_at > greatest(w.ready_at, ondot.clock()) + interval '1 second' AND (g.kind = 'rate'
            AND l.look_at > g.token_at OR g.kind <> 'rate'
            AND (SELECT count(*) FROM ondot.slot s WHERE s.gate_id = g.id) < (w.here->>'limit')::integer)""",
    "an execution in a line or before a gate that does not exist": """
        SELECT w.execution_id FROM ondot.waiting w LEFT JOIN ondot.gate g ON g.id = w.gate_id
        LEFT JOIN ondot.line l ON l.gate_id = w.gate_id AND l.pool_no = w.pool_no
        WHERE g.id IS NULL OR l.gate_id IS NULL""",
    "a slot at a gate that its holder does not pass": """
        SELECT h.gate_id, h.execution_id FROM ondot.slot h JOIN ondot.gated d ON d.execution_id = h.execution_id
        JOIN ondot.execution e ON e.id = d.execution_id
        WHERE e.state <> 'RUNNING' AND NOT d.stages @> jsonb_build_array(jsonb_build_object('gate', h.gate_id))""",
    "an execution that waits at a gate and has a slot beyond it": """
        SELECT w.execution_id FROM ondot.waiting w JOIN ondot.gated d ON d.execution_id = w.execution_id,
               jsonb_array_elements(d.stages) WITH ORDINALITY AS s(stage, no)
        WHERE s.no - 1 > w.stage AND EXISTS (
            SELECT FROM ondot.slot h
            WHERE h.gate_id = (s.stage->>'gate')::uuid AND h.execution_id = w.execution_id)""",
    "an execution that is asked to end and does not run": """
        SELECT id FROM ondot.execution WHERE cancel_at IS NOT NULL AND state <> 'RUNNING'""",
    "an execution that runs under no lease, or under two": """
        SELECT e.id FROM ondot.execution e WHERE state = 'RUNNING' AND (
            SELECT count(*) FROM ondot.lease l, unnest(l.execution_ids, l.attempt_nos) AS m(id, attempt_no)
            WHERE m.id = e.id AND m.attempt_no = e.attempt_no AND l.worker_id = e.worker_id) <> 1""",
    "a fire with two executions": """
        SELECT job_id, fire_at FROM (
            SELECT job_id, fire_at, origin FROM ondot.execution
            UNION ALL SELECT job_id, fire_at, origin FROM ondot.history) e
        WHERE origin IN ('fire', 'backfill') GROUP BY 1, 2 HAVING count(*) > 1""",
    "an execution that is live and ended": """
        SELECT id FROM ondot.execution JOIN ondot.history USING (id)""",
    "an attempt that started before its fire": """
        SELECT id FROM ondot.history WHERE started_at < fire_at""",
    "a dead letter that has not failed, or a failure without one": """
        SELECT h.id, d.execution_id FROM (SELECT id FROM ondot.history WHERE state = 'FAILED') h
        FULL JOIN ondot.dead_letter d ON d.execution_id = h.id WHERE h.id IS NULL OR d.execution_id IS NULL""",
    "a budget that was overdrawn": """
        SELECT id FROM ondot.history WHERE failures > 2 OR losses > 2""",
    "a coming fire of a job that is paused or deleted": """
        SELECT e.id FROM ondot.execution e JOIN ondot.job j ON j.id = e.job_id
        WHERE j.state <> 'ACTIVE' AND e.origin IN ('fire', 'backfill') AND e.attempt_no = 0 AND e.state = 'PENDING'""",
    "a running timer of a job that is paused or deleted": """
        SELECT t.job_id FROM ondot.timer t JOIN ondot.job j ON j.id = t.job_id
        WHERE j.state <> 'ACTIVE' AND t.next_fire_at < 'infinity'""",
    "a fire that is both skipped and run": """
        SELECT e.job_id, e.fire_at FROM (
            SELECT job_id, fire_at, origin FROM ondot.execution
            UNION ALL SELECT job_id, fire_at, origin FROM ondot.history) e
        JOIN ondot.skipped s ON s.job_id = e.job_id AND e.fire_at BETWEEN s.from_at AND s.to_at
        WHERE e.origin IN ('fire', 'backfill')""",
    "a fire that is skipped twice": """
        SELECT a.job_id, a.from_at, a.to_at, b.from_at, b.to_at FROM ondot.skipped a JOIN ondot.skipped b
        ON a.job_id = b.job_id AND (a.from_at, a.to_at) < (b.from_at, b.to_at) AND a.to_at >= b.from_at""",
    "a fire that is owed, and skipped or run": """
        SELECT o.job_id, o.from_at, o.to_at FROM ondot.owed o JOIN (
            SELECT job_id, from_at, to_at FROM ondot.skipped WHERE reason <> 'calendar'
            UNION ALL SELECT job_id, fire_at, fire_at FROM ondot.execution WHERE origin = 'fire'
            UNION ALL SELECT job_id, fire_at, fire_at FROM ondot.history WHERE origin = 'fire') e
        ON e.job_id = o.job_id AND e.from_at <= o.to_at AND e.to_at >= o.from_at
        WHERE o.origin = 'fire' AND o.from_at <= o.to_at""",
    "more executions of a backfill at once than its limit": """
        SELECT b.id FROM ondot.backfill b JOIN ondot.execution e ON e.job_id = b.job_id AND e.origin = 'backfill'
        WHERE b.state = 'RUNNING' AND e.id > b.id GROUP BY b.id HAVING count(*) > max(b.concurrency)""",
    "a running backfill without its owed range, or an owed range without its backfill": """
        SELECT b.id, o.id FROM (SELECT id FROM ondot.backfill WHERE state = 'RUNNING') b
        FULL JOIN (SELECT id FROM ondot.owed WHERE origin = 'backfill') o ON o.id = b.id
        WHERE b.id IS NULL OR o.id IS NULL""",
    "an owed range of a job that is deleted, or from an outage of one that is paused": """
        SELECT o.id FROM ondot.owed o JOIN ondot.job j ON j.id = o.job_id
        WHERE j.state = 'DELETED' OR j.state = 'PAUSED' AND o.origin = 'fire'""",
}

OVERFULL = """
    SELECT h.gate_id, array_agg(h.execution_id) AS holders,
           array_agg(h.execution_id) FILTER (WHERE e.state = 'RUNNING') AS running
    FROM ondot.slot h JOIN ondot.execution e ON e.id = h.execution_id
    LEFT JOIN ondot.pool p ON ondot.pool_gate(p.pool_no) = h.gate_id
    LEFT JOIN ondot.gated d ON d.execution_id = h.execution_id
    LEFT JOIN LATERAL jsonb_array_elements(d.stages) s ON (s->>'gate')::uuid = h.gate_id
    GROUP BY h.gate_id HAVING count(*) > max(coalesce(p.concurrency, (s->>'limit')::integer))
"""
"""Gates with more executions through them than any of these allows. A limit that is set or lowered also counts
executions that run already, so this is no fault by itself. But while it lasts, nothing more passes there."""

ENDS_ON_RECORD = """
    SELECT from_at, to_at, false AS is_owed FROM ondot.skipped WHERE job_id = $1
    UNION ALL SELECT from_at, to_at, true FROM ondot.owed WHERE job_id = $1 AND origin = 'fire'
    UNION ALL SELECT fire_at, fire_at, false FROM ondot.execution WHERE job_id = $1 AND origin IN ('fire', 'backfill')
    UNION ALL SELECT fire_at, fire_at, false FROM ondot.history WHERE job_id = $1 AND origin IN ('fire', 'backfill')
"""
"""An owed range holds the fires that the calendar keeps; those that it excludes in between are skipped already."""

OUT_OF_PLACE = " UNION ALL ".join(
    f"SELECT '{what}' AS what, to_jsonb(x)::text AS found FROM ({sql}) x" for what, sql in MUST_BE_EMPTY.items()
)

reports = st.sampled_from(
    [Succeeded("1"), failed(), failed(retryable=False), NotBegun("stops"), Interrupted("stops"), Cancelled("asked to")]
)
limits = st.none() | st.builds(
    Limits,
    overlap=st.sampled_from(["allow", "skip", "queue", "cancel"]),
    order_key=st.sampled_from([None, None, "o"]),
    concurrency=st.sampled_from([None, 1, 2]),
    key=st.just("k"),
    key_concurrency=st.sampled_from([None, 1, 2]),
    rate=st.sampled_from([None, None, Rate(limit=1, per_s=5)]),
    key_rate=st.sampled_from([None, None, Rate(limit=2, per_s=3, burst=2), Rate(limit=1, per_s=7)]),
)
pools = st.sampled_from(["default", "default", "other"])
priorities = st.sampled_from(["normal", "high", "low"])
deadlines = st.sampled_from([None, None, None, 5.0, 40.0])
LIVES = int(os.environ.get("ONDOT_TEST_LIVES", "60"))
"""How many lives one run tries; 1,000 before a release, by ONDOT_TEST_LIVES=1000."""
SEEDS = ["the_same_each_time", *(["random"] if "ONDOT_TEST_LIVES" in os.environ else [])]
"""Random lives are a search for what nobody has thought of. They run when a person asks for them: a change must not
fail for a fault that it did not touch."""
misfires = st.builds(
    Misfire,
    policy=st.sampled_from(["skip", "once", "all"]),
    grace_s=st.sampled_from([2, 60]),
    window_s=st.sampled_from([50, 3600]),
    limit=st.sampled_from([3, 100]),
)
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
        self.schedules: dict[JobId, list[tuple[datetime, Schedule | None]]] = {}
        self.completed: list[Assignment] = []
        self.holders: dict[UUID, set[UUID]] = {}
        self.has_changed_a_limit = False
        self.pool_nos: list[PoolNo] = list(self.run(self._pools()).values())

    async def _pools(self) -> dict[str, PoolNo]:
        async with self.world.database.transaction() as connection:
            return await self.world.database.pools.numbers(connection, DEFAULT_TENANT, ["default", "other"])

    def run(self, what: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(what)

    @rule(target=jobs, seconds=st.integers(0, 40), limits=limits, deadline_s=deadlines)
    def submit_once(self, seconds: int, limits: Limits | None, deadline_s: float | None) -> JobId:
        spec = job(schedule=once(self.world.after(seconds)), retry=BUDGET, limits=limits, start_deadline_s=deadline_s)
        return self.run(self.world.submit(spec)).id

    @rule(target=jobs, key=st.sampled_from("ab"), kind=st.sampled_from(["unique", "throttle", "debounce"]))
    def submit_with_a_key(self, key: str, kind: str) -> JobId:
        wish: dict[str, Any] = {
            "unique": Unique(key=key, within_s=9),
            "throttle": Throttle(key=key, per_s=11, limit=2),
            "debounce": Debounce(key=key, wait_s=13 if key == "a" else 33, max_wait_s=40),
        }
        return self.run(self.world.submit(job(retry=BUDGET, **{kind: wish[kind]}))).id

    @rule(
        target=jobs,
        seconds=st.integers(1, 60),
        jitter_s=st.sampled_from([0, 15]),
        misfire=misfires,
        closed=st.none() | st.tuples(st.integers(0, 200), st.integers(1, 100)),
        limits=limits,
        deadline_s=deadlines,
    )
    def submit_recurring(
        self,
        seconds: int,
        jitter_s: int,
        misfire: Misfire,
        closed: tuple[int, int] | None,
        limits: Limits | None,
        deadline_s: float | None,
    ) -> JobId:
        calendar = None
        if closed is not None:
            from_at, to_at = self.world.after(closed[0]), self.world.after(sum(closed))
            calendar = Calendar(blackouts=(Blackout(from_at=from_at, to_at=to_at),))
        schedule = every(seconds, self.world.now, jitter_s=jitter_s, misfire=misfire, calendar=calendar)
        spec = job(schedule=schedule, retry=BUDGET, limits=limits, start_deadline_s=deadline_s)
        job_id = self.run(self.world.submit(spec)).id
        self.schedules[job_id] = [(self.world.now, schedule)]
        return job_id

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
        return self.run(self.world.worker(pool_nos=self.pool_nos))

    @rule(target=leased, worker=workers, slots=st.integers(1, 5))
    def lease(self, worker: Worker, slots: int) -> Any:
        return multiple(*((worker, assignment) for assignment in self.run(worker.lease(slots))))

    @rule(held=leased, report=reports)
    def complete(self, held: tuple[Worker, Assignment], report: Report) -> None:
        """Also twice, and by lost workers: those change nothing."""
        worker, assignment = held
        if assignment in self.completed:
            # A worker counts each attempt of a lease once: a repetition must not make it forget a lease with others.
            worker.completer.hold(assignment.lease_id, 1)
        self.completed.append(assignment)
        self.run(worker.complete(assignment, report))

    @rule(pick=st.integers(0, 10_000))
    def cancel_one(self, pick: int) -> None:
        if rows := self.run(self.world.executions()):
            with suppress(Conflict):
                self.run(
                    cancel(
                        self.world.database,
                        self.world.dispatcher,
                        DEFAULT_TENANT,
                        rows[pick % len(rows)].id,
                        by=By("somebody"),
                    )
                )

    @rule()
    def expire(self) -> None:
        self.run(expire_pass(self.world.database))

    @rule()
    def tidy(self) -> None:
        self.run(Tidying(self.world.database).one_pass())

    @rule(concurrency=st.none() | st.integers(1, 5), rate=st.none() | st.just(Rate(limit=3, per_s=2, burst=2)))
    def limit_the_pool(self, concurrency: int | None, rate: Rate | None) -> None:
        limits = PoolLimits(concurrency, rate)
        self.run(
            set_limits(self.world.database, self.world.dispatcher, DEFAULT_TENANT, "default", limits, by=By("somebody"))
        )
        self.has_changed_a_limit = True

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

    @rule(job_id=jobs, seconds=st.integers(1, 60), limits=limits, pool=pools, priority=priorities)
    def update(self, job_id: JobId, seconds: int, limits: Limits | None, pool: str, priority: Priority) -> None:
        schedule = every(seconds, self.world.now)
        spec = job("changed", schedule=schedule, retry=BUDGET, limits=limits, pool=pool, priority=priority)
        with suppress(Conflict):
            self.run(self.world.update(job_id, spec))
            self.has_changed_a_limit = True
            self.schedules.setdefault(job_id, []).append((self.world.now, schedule))

    @rule(job_id=jobs)
    def pause(self, job_id: JobId) -> None:
        with suppress(Conflict):
            self.run(pause(self.world.database, DEFAULT_TENANT, job_id))

    @rule(job_id=jobs, missed=st.sampled_from(["skip", "once", "all"]))
    def resume(self, job_id: JobId, missed: MissedPolicy) -> None:
        with suppress(Conflict):
            self.run(resume(self.world.database, self.world.dispatcher, DEFAULT_TENANT, job_id, missed=missed))

    @rule(job_id=jobs, seconds=st.integers(0, 300), newest_first=st.booleans(), concurrency=st.integers(1, 4))
    def backfill(self, job_id: JobId, seconds: int, newest_first: bool, concurrency: int) -> None:
        asked = Backfill(self.world.after(-seconds), self.world.now, newest_first, concurrency)
        start = start_backfill(self.world.database, DEFAULT_TENANT, job_id, asked, render=lambda row: str(row.id))
        with suppress(Conflict):
            self.run(start)

    @rule(job_id=jobs)
    def cancel_the_backfill(self, job_id: JobId) -> None:
        for row in self.run(self.world.fetch("SELECT id FROM ondot.backfill WHERE job_id = $1", job_id)):
            self.run(cancel_backfill(self.world.database, DEFAULT_TENANT, job_id, row["id"]))

    @rule()
    def work_off(self) -> None:
        self.run(self.world.work_off())

    @rule(job_id=jobs)
    def delete(self, job_id: JobId) -> None:
        with suppress(Conflict):
            self.run(delete(self.world.database, DEFAULT_TENANT, job_id))
            self.schedules.get(job_id, []).append((self.world.now, None))

    @invariant()
    def nothing_is_out_of_place(self) -> None:
        found = self.run(self.world.fetch(OUT_OF_PLACE))
        assert not found, "\n".join(f"{row['what']}: {row['found']}" for row in found)

    @invariant()
    def nothing_passes_a_full_gate(self) -> None:
        slots = self.run(self.world.fetch("SELECT gate_id, array_agg(execution_id) AS h FROM ondot.slot GROUP BY 1"))
        for row in self.run(self.world.fetch(OVERFULL)):
            passed = set(row["holders"]) - self.holders.get(row["gate_id"], set())
            if self.has_changed_a_limit:
                passed -= set(row["running"] or ())
            assert not passed, f"{passed} passed the gate {row['gate_id']}, which was full"
        self.holders = {row["gate_id"]: set(row["h"]) for row in slots}
        self.has_changed_a_limit = False

    async def _every_fire_has_its_end(self) -> None:
        for job_id, schedules in self.schedules.items():
            timer = await self.world.timer(job_id)
            assert timer is not None
            due: list[datetime] = []
            kept: set[datetime] = set()
            until_ats = [*(from_at for from_at, _ in schedules[1:]), timer["fired_through"]]
            for (from_at, schedule), until_at in zip(schedules, until_ats, strict=True):
                if schedule is not None:
                    due += fires_between(unrestricted(schedule), from_at, until_at, at_most=100_000)
                    kept |= set(fires_between(schedule, from_at, until_at, at_most=100_000))
            ranges = await self.world.fetch(ENDS_ON_RECORD, job_id)
            for fire_at in due:
                ends = sum(
                    row["from_at"] <= fire_at <= row["to_at"] for row in ranges if fire_at in kept or not row["is_owed"]
                )
                assert ends == 1, f"{fire_at} of {job_id} has {ends} ends on record"
            run = await self.world.fetch(
                "SELECT fire_at FROM (SELECT job_id, fire_at, origin FROM ondot.execution"
                " UNION ALL SELECT job_id, fire_at, origin FROM ondot.history"
                "  WHERE NOT (state = 'CANCELLED' AND ended_at < fire_at)) e"  # ahead of a change of the schedule
                " WHERE job_id = $1 AND origin = 'fire'",
                job_id,
            )
            assert {row["fire_at"] for row in run if row["fire_at"] > schedules[0][0]} <= set(due)

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            try:
                self.run(self._every_fire_has_its_end())
            finally:
                self.run(self.stack.aclose())
                self.runner.close()


@pytest.fixture
def quiet() -> Iterator[None]:
    """Only errors are logged: thousands of lines below a failure would hide its steps."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield
    structlog.configure(**before)


@proves("E5", "E11", "P3", "P4", "P5", "P7", "P9", "P10", "P11")
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("seed", SEEDS)
def test_no_order_of_events_brings_anything_out_of_place(server: Server, seed: str) -> None:
    """The same lives show what a change breaks; random ones find what nobody has thought of, also much later."""
    bound = type("Life", (Life,), {"server": server})
    run_state_machine_as_test(
        bound,
        settings=settings(
            max_examples=LIVES,
            stateful_step_count=30,
            deadline=None,
            database=None,
            derandomize=seed != "random",
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
